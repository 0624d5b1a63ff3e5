"""The codec: laws over random spaces, exact grids, and refusals that help."""

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError, UnknownNameError
from fedhpo_gym.space import Dimension, SearchSpace

RATES = (0.01, 0.01668, 0.02783, 0.04642, 0.07743, 0.12915, 0.21544, 0.35938, 0.59948, 1.0)


def lr() -> Dimension:
    return Dimension("lr", 0.01, 1.0, "float", log=True, values=RATES)


def cnn() -> SearchSpace:
    return SearchSpace(
        (
            lr(),
            Dimension("wd", 0.0, 0.1, "float", values=(0.0, 0.001, 0.01, 0.1)),
            Dimension("batch", 16, 64, "int", log=True, bins=3),
            Dimension("step", 1, 4, "int", bins=4),
            Dimension("momentum", 0.0, 0.9, "float", bins=2, scope="server"),
            Dimension("rate", 0.2, 1.0, "float", bins=5, scope="fidelity"),
        )
    )


CONFIG = {"lr": 0.12915, "wd": 0.001, "batch": 32, "step": 3, "momentum": 0.9, "rate": 0.6}


@st.composite
def int_intervals(draw: st.DrawFn) -> Dimension:
    log = draw(st.booleans())
    low = draw(st.integers(1 if log else -(10**6), 10**6))
    return Dimension("d", low, low + draw(st.integers(1, 2**20)), "int", log=log)


@st.composite
def float_intervals(draw: st.DrawFn) -> Dimension:
    if draw(st.booleans()):
        low = 10.0 ** draw(st.floats(-8, 2))
        return Dimension("d", low, low * 10.0 ** draw(st.floats(0.1, 8)), "float", log=True)
    low = draw(st.floats(-1e3, 1e3))
    return Dimension("d", low, low + draw(st.floats(0.01, 1e3)), "float")


@st.composite
def grids(draw: st.DrawFn) -> Dimension:
    if draw(st.booleans()):
        ints = tuple(sorted(draw(st.sets(st.integers(-1000, 1000), min_size=1, max_size=60))))
        return Dimension("d", ints[0], ints[-1], "int", values=ints)
    points = draw(st.sets(st.integers(-(10**6), 10**6), min_size=1, max_size=60))
    floats = tuple(sorted(point / 1000 for point in points))
    return Dimension("d", floats[0], floats[-1], "float", values=floats)


coordinates = st.floats(-1.0, 1.0)


@given(grids())
def test_grid_points_come_back_exactly_through_float32(dimension: Dimension) -> None:
    space = SearchSpace((dimension,))
    for value in dimension.grid:
        assert dimension.decode(dimension.encode(value)) == value
        assert space.decode(space.encode({"d": value})) == {"d": value}


@given(int_intervals(), st.data())
def test_integers_come_back_exactly_through_float32(dimension: Dimension, data: Any) -> None:
    space = SearchSpace((dimension,))
    drawn = data.draw(st.integers(int(dimension.low), int(dimension.high)))
    for value in (dimension.low, drawn, dimension.high):
        assert dimension.decode(dimension.encode(value)) == value
        assert space.decode(space.encode({"d": value})) == {"d": value}


@given(float_intervals(), coordinates)
def test_floats_come_back_up_to_rounding(dimension: Dimension, u: float) -> None:
    value = dimension.decode(u)
    span = dimension.high - dimension.low
    assert math.isclose(dimension.decode(dimension.encode(value)), value, abs_tol=1e-12 * span)
    space = SearchSpace((dimension,))
    (back,) = space.decode(space.encode({"d": value})).values()
    # float32 resolves a coordinate to 6e-8: of the span, or of its logarithm.
    if dimension.log:
        assert math.isclose(back, value, rel_tol=1e-7 * math.log(dimension.high / dimension.low))
    else:
        assert math.isclose(back, value, rel_tol=0.0, abs_tol=1e-7 * span)


@given(
    st.one_of(grids(), int_intervals(), float_intervals()),
    st.lists(st.one_of(coordinates, st.sampled_from([-1.0, 1.0, 1.0 + 1e-7])), min_size=1),
)
def test_columns_are_what_is_decoded_and_encoded_one_by_one(
    dimension: Dimension, drawn: list[float]
) -> None:
    space = SearchSpace((dimension,))
    columns = space.decode_columns(np.array(drawn)[:, None])
    one_by_one = [dimension.decode(u) for u in drawn]
    assert columns["d"].tolist() == one_by_one
    assert columns["d"].dtype.kind == ("i" if dimension.kind == "int" else "f")
    encoded = [space.encode({"d": value}).tolist() for value in one_by_one]
    assert space.encode_columns(columns).tolist() == encoded


@given(st.one_of(grids(), int_intervals(), float_intervals()), coordinates)
def test_decoded_values_are_legal_and_of_the_right_type(dimension: Dimension, u: float) -> None:
    value = dimension.decode(u)
    assert type(value) is (int if dimension.kind == "int" else float)
    assert dimension.contains(value)
    assert dimension.decode(-1.0) == dimension.low
    assert dimension.decode(1.0) == dimension.high


@given(st.one_of(grids(), int_intervals(), float_intervals()), coordinates, coordinates)
def test_decoding_is_monotone(dimension: Dimension, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert dimension.decode(low) <= dimension.decode(high)


@pytest.mark.slow
@given(grids())
def test_uniform_coordinates_are_uniform_over_the_grid(dimension: Dimension) -> None:
    n = len(dimension.grid)
    centres = [(2 * i + 1) / (40 * n) * 2 - 1 for i in range(20 * n)]
    counts = dict.fromkeys(dimension.grid, 0)
    for u in centres:
        counts[dimension.decode(u)] += 1
    # Centres that fall on a cell border may round either way.
    assert all(abs(count - 20) <= 1 for count in counts.values())


@pytest.mark.parametrize("log", [False, True])
def test_integer_mass_is_even_on_its_scale(log: bool) -> None:
    dimension = Dimension("d", 1, 4, "int", log=log)
    fine = [dimension.decode(u) for u in np.linspace(-1, 1, 200_001)]
    edges = np.array([0.5, 1.5, 2.5, 3.5, 4.5])
    scaled = np.log(edges) if log else edges
    expected = np.diff(scaled) / (scaled[-1] - scaled[0])
    observed = np.array([fine.count(value) for value in (1, 2, 3, 4)]) / len(fine)
    assert observed == pytest.approx(expected, abs=1e-4)


@settings(max_examples=50)
@given(st.lists(coordinates, min_size=6, max_size=6))
def test_batched_indices_agree_with_the_scalar_codec(action: list[float]) -> None:
    space = cnn().discretized()
    flat = space.flat_grid_indices(np.array([action, action[::-1]]))
    one, other = zip(*np.unravel_index(flat, space.grid_shape), strict=True)
    assert one == space.index(space.decode(action))
    assert other == space.index(space.decode(action[::-1]))


def test_hand_computed_codec() -> None:
    four = Dimension("d", 1, 4, "int", values=(1, 2, 3, 4))
    assert [four.encode(value) for value in (1, 2, 3, 4)] == [-0.75, -0.25, 0.25, 0.75]
    assert [four.decode(u) for u in (-0.51, -0.5, 0.0, 0.49, 0.5)] == [1, 2, 3, 3, 4]
    log = Dimension("d", 1e-4, 1.0, "float", log=True)
    assert log.decode(0.0) == pytest.approx(1e-2)
    assert log.encode(1e-3) == pytest.approx(-0.5)
    step = Dimension("d", 1, 4, "int")
    assert [step.decode(u) for u in (-0.501, -0.499, 0.0, 0.499, 0.501)] == [1, 2, 3, 3, 4]


def test_bins_make_clean_grids() -> None:
    assert Dimension("d", 1e-5, 1.0, "float", log=True, bins=6).grid == (
        (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    )
    assert Dimension("d", 0.2, 1.0, "float", bins=5).grid == (0.2, 0.4, 0.6, 0.8, 1.0)
    assert Dimension("d", 4, 256, "int", log=True, bins=7).grid == (4, 8, 16, 32, 64, 128, 256)
    assert Dimension("d", 0, 10, "int", bins=5).grid == (0, 3, 5, 8, 10)


def test_bins_only_matter_once_discretized() -> None:
    interval = Dimension("d", 0.2, 1.0, "float", bins=5)
    assert interval.contains(0.5)
    grid = interval.discretized()
    assert grid.values == interval.grid
    assert not grid.contains(0.5)
    assert grid.discretized() == grid


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "str"}, "`kind` must be one of"),
        ({"scope": "nobody"}, "`scope` must be one of"),
        ({"low": math.nan}, "`low` must be a finite number, got nan"),
        ({"high": math.inf}, "`high` must be a finite number"),
        ({"low": "0"}, "`low` must be a finite number, got '0'"),
        ({"low": 1.0}, "`high` must be above low=1.0"),
        ({"log": True}, "`low` must be positive on a logarithmic scale"),
        ({"kind": "int", "low": 0.5}, "`low` must be a whole number"),
        ({"kind": "int", "high": 2**20 + 1}, "use kind='float'"),
        ({"bins": 1}, "`bins` must be an integer of at least 2"),
        ({"bins": 10**10}, "`bins` must be an integer of at least 2 and at most 100000"),
        ({"bins": 2.0}, "`bins` must be an integer of at least 2"),
        ({"kind": "int", "bins": 3}, "no grid point repeats"),
        ({"values": ()}, "non-empty, strictly increasing"),
        ({"values": (0.0, 1.0, 0.5)}, "non-empty, strictly increasing"),
        ({"values": (0.0, 0.5)}, "set both to its ends"),
        ({"values": (0.0, "1")}, "`values` must be a finite number"),
    ],
)
def test_dimension_refuses_contradictions(fields: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"name": "d", "low": 0.0, "high": 1.0, "kind": "float", **fields}
    with pytest.raises(InvalidArgumentError, match=r"^Dimension 'd': ") as caught:
        Dimension(**arguments)
    assert message in str(caught.value)


def test_validate_returns_builtin_numbers_in_canonical_order() -> None:
    given = {
        "rate": np.float32(0.6),
        "momentum": np.float64(0.9),
        "step": np.int32(3),
        "batch": 32.0,
        "wd": np.float16(0.001),
        "lr": np.array(0.12915, dtype=np.float32),
    }
    checked = cnn().discretized().validate(given)
    assert checked == CONFIG
    assert list(checked) == list(cnn().names)
    assert {type(value) for value in checked.values()} == {int, float}


def test_validate_gives_the_grid_its_own_value_within_tolerance() -> None:
    assert lr().validate(0.12915 * (1 + 1e-12)) == 0.12915
    with pytest.raises(OffGridError):
        lr().validate(0.12915 * (1 + 1e-8))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lr": 0.1}, OffGridError, "must be on the grid, got 0.1; .* 0.07743, 0.12915."),
        ({"lr": 2.0}, InvalidArgumentError, r"must be in \[0.01, 1.0\], got 2.0"),
        ({"lr": math.nan}, InvalidArgumentError, "must be a finite number, got nan"),
        ({"lr": "0.01"}, InvalidArgumentError, "must be a finite number, got '0.01'"),
        ({"lr": None}, InvalidArgumentError, "must be a finite number, got None"),
        ({"lr": [0.01]}, InvalidArgumentError, "must be a finite number"),
        ({"step": True}, InvalidArgumentError, "must be a finite number, got True"),
        ({"step": np.True_}, InvalidArgumentError, "must be a finite number"),
        ({"step": 2.5}, InvalidArgumentError, "must be a whole number, got 2.5"),
        ({"step": 10**400}, InvalidArgumentError, "must be a finite number"),
        ({"step": 5}, InvalidArgumentError, r"must be in \[1, 4\], got 5"),
    ],
)
def test_validate_refuses_bad_values(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    (name,) = change
    with pytest.raises(error, match=message) as caught:
        cnn().validate({**CONFIG, **change}, what="action")
    assert f"`action[{name!r}]`" in str(caught.value)


def test_validate_names_missing_and_unknown_keys() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\['wd', 'rate'\] are missing"):
        cnn().validate({key: CONFIG[key] for key in CONFIG if key not in ("wd", "rate")})
    with pytest.raises(InvalidArgumentError, match=r"unknown keys \['batchs'\]. Did you.*'batch'"):
        cnn().validate({**CONFIG, "batchs": 1})
    with pytest.raises(InvalidArgumentError, match="`configuration` must be a mapping, got 3"):
        cnn().validate(3)  # type: ignore[arg-type]


def test_index_and_size() -> None:
    space = cnn()
    assert space.grid_shape == (10, 4, 3, 4, 2, 5)
    assert space.grid_size == 4800
    assert space.index(CONFIG) == (5, 1, 1, 2, 1, 2)
    with pytest.raises(OffGridError, match=r"the nearest legal values are 0.4, 0.6"):
        space.index({**CONFIG, "rate": 0.5})
    with pytest.raises(InvalidArgumentError, match="give `bins` or `values`"):
        SearchSpace((Dimension("d", 0.0, 1.0, "float"),)).index({"d": 0.5})


def test_every_grid_point_has_its_own_index() -> None:
    space = SearchSpace(cnn().dimensions[:4]).discretized()
    seen = set()
    for index in np.ndindex(*space.grid_shape):
        config = {d.name: d.grid[i] for d, i in zip(space.dimensions, index, strict=True)}
        assert space.index(config) == index
        assert space.decode(space.encode(config)) == config
        seen.add(tuple(config.items()))
    assert len(seen) == space.grid_size


def test_encode_is_float32_in_the_unit_box() -> None:
    action = cnn().encode(CONFIG)
    assert action.dtype == np.float32
    assert action.shape == (6,)
    assert np.all(np.abs(action) <= 1)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(5), r"must have shape \(6,\), got \(5,\)"),
        (np.zeros((1, 6)), r"must have shape \(6,\), got \(1, 6\)"),
        ([0, 0, 0, 0, 0, 1.1], r"must be in \[-1, 1\]"),
        ([0, 0, 0, 0, 0, math.nan], r"must be in \[-1, 1\]"),
    ],
)
def test_decode_refuses_bad_actions(action: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        cnn().decode(action)


@pytest.mark.parametrize("u", [1.01, -2.0, math.nan])
def test_dimension_decode_refuses_bad_coordinates(u: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`u` must be in \[-1, 1\]"):
        lr().decode(u)


def test_coordinates_off_by_rounding_count_as_the_ends() -> None:
    space = cnn().discretized()
    for end, value in ((-1.0000005, 0), (1.0000005, -1)):
        action = np.full(6, end)
        assert space.decode(action) == {d.name: d.grid[value] for d in space.dimensions}
        flat = space.flat_grid_indices(action)
        assert np.unravel_index(flat, space.grid_shape) == space.index(space.decode(action))
        assert cnn().decode(action) == space.decode(action)


def test_sampling_is_seeded_and_covers_the_grid() -> None:
    space = cnn()
    one, two = (np.random.default_rng(1) for _ in range(2))
    assert [space.sample(one) for _ in range(20)] == [space.sample(two) for _ in range(20)]
    assert {space.sample(one)["lr"] for _ in range(300)} == set(RATES)


def test_log_samples_are_uniform_in_the_logarithm() -> None:
    space = SearchSpace((Dimension("d", 1e-4, 1.0, "float", log=True),))
    rng = np.random.default_rng(0)
    logs = np.log10([space.sample(rng)["d"] for _ in range(4000)])
    assert np.quantile(logs, [0.25, 0.5, 0.75]) == pytest.approx([-3, -2, -1], abs=0.1)


def test_reads_like_a_mapping() -> None:
    space = cnn()
    assert len(space) == 6
    assert list(space) == list(space.names) == list(CONFIG)
    assert "lr" in space
    assert "dropout" not in space
    assert space["lr"] == lr()
    with pytest.raises(UnknownNameError, match=r"Unknown dimension 'bach'. Did you mean 'batch'"):
        space["bach"]


def test_the_part_of_a_grid_that_another_space_knows() -> None:
    round_ = Dimension("round", 1, 20, "int", values=(1, 5, 9, 20), scope="fidelity")
    rate = Dimension("rate", 0.2, 1.0, "float", bins=5, scope="fidelity")
    grid = SearchSpace((round_, rate))
    other = SearchSpace(
        (
            Dimension("round", 2, 9, "int", scope="fidelity"),
            Dimension("rate", 0.6, 0.6, "float", values=(0.6,), scope="fidelity"),
        )
    )
    kept = grid.within(other)
    assert [d.grid for d in kept.dimensions] == [(5, 9), (0.6,)]
    assert grid.within(grid) == grid.discretized()
    with pytest.raises(InvalidArgumentError, match=r"\['rate'\]"):
        grid.within(SearchSpace((round_, Dimension("rate", 0.3, 0.35, "float"))))


def test_fix() -> None:
    space = cnn()
    assert space.fix({"step": 1, "rate": 1.0}).names == ("lr", "wd", "batch", "momentum")
    assert len(space.fix(CONFIG)) == 0
    assert space.fix(CONFIG).decode(np.zeros(0)) == {}
    with pytest.raises(UnknownNameError, match="Unknown dimension 'mu'"):
        space.fix({"mu": 1})
    with pytest.raises(OffGridError, match=r"`mapping\['lr'\]`"):
        space.fix({"lr": 0.5})


def test_names_must_differ() -> None:
    with pytest.raises(InvalidArgumentError, match="distinct names"):
        SearchSpace((lr(), lr()))


def test_json_and_pickle_round_trips() -> None:
    for space in (cnn(), cnn().discretized(), SearchSpace(())):
        copy = SearchSpace.from_dict(json.loads(json.dumps(space.to_dict())))
        assert copy == space == pickle.loads(pickle.dumps(space))
        assert hash(copy) == hash(space)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "must have the one key 'dimensions'"),
        ({"dimensions": [{"name": "x"}]}, r"lacks \['high', 'kind', 'low'\]"),
        (
            {"dimensions": [{"name": "x", "low": 0, "high": 1, "kind": "int", "step": 1}]},
            r"unknown fields \['step'\]",
        ),
    ],
)
def test_from_dict_refuses_wrong_fields(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        SearchSpace.from_dict(data)


@pytest.mark.parametrize("value", [0, "1", [[]], None, [1.9]])
def test_what_is_no_dimension_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="`dimensions` must hold dimensions only"):
        SearchSpace(value)


@pytest.mark.parametrize("data", [1.9, None, [], {"dimensions": 1}, {"dimensions": ["x"]}])
def test_data_that_is_no_space_is_refused(data: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="`d"):
        SearchSpace.from_dict(data)


@pytest.mark.parametrize("name", ["name", "kind", "unit", "scope", "log"])
def test_fields_of_another_type_are_refused(name: str) -> None:
    fields = {"name": "x", "low": 0.1, "high": 1.0, "kind": "float", name: np.array([1.0, 2.0])}
    with pytest.raises(InvalidArgumentError, match=f"`{name}` must be"):
        Dimension(**fields)


@pytest.mark.parametrize("end", [2.0**63, 1e308, 2**63, 10**29])
def test_integers_fit_into_64_bits(end: float) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a "):
        Dimension("round", 1, end, "int", values=(1, end))
