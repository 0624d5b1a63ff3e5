"""Categories and conditions: what is not active changes nothing, bit for bit."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace

coordinates = st.floats(-1.0, 1.0)


def lr() -> Dimension:
    return Dimension("lr", 0.01, 1.0, "float", log=True, bins=3)


def plain() -> SearchSpace:
    return SearchSpace((lr(), Dimension("step", 1, 4, "int", bins=4)))


def tree() -> SearchSpace:
    return SearchSpace(
        (
            lr(),
            Dimension.of_categories("server", ("none", "sgd", "adam"), scope="server"),
            Dimension("rate", 0.01, 10.0, "float", log=True, bins=4,
                      active=("server", ("sgd", "adam"))),
            Dimension("depth", 1, 3, "int", values=(1, 2, 3), active=("server", ("adam",))),
            Dimension("tau", 1e-5, 0.1, "float", log=True, bins=5, active=("depth", (2, 3))),
        )
    )  # fmt: skip


ACTIVE = {"none": (), "sgd": ("rate",), "adam": ("rate", "depth", "tau")}


@pytest.mark.slow
@given(st.lists(st.lists(coordinates, min_size=5, max_size=5), min_size=1))
def test_coordinates_that_are_not_active_change_nothing(drawn: list[list[float]]) -> None:
    """Of actions that differ there only, all there is is the same, bit for bit."""
    grid = tree().discretized()
    for space in (tree(), grid):
        actions = np.array(drawn)
        configs = [space.decode(action) for action in actions]
        for config in configs:
            known = ACTIVE[str(config["server"])]
            expected = [n for n in known if n != "tau" or config["depth"] != 1]
            assert list(config) == ["lr", "server", *expected]
        changed = actions.copy()
        for row, config in zip(changed, configs, strict=True):
            row[[name not in config for name in space.names]] = 0.789
        assert [space.decode(action) for action in changed] == configs
        assert (space.canonical(actions) == space.canonical(changed)).all()
        encoded = np.stack([space.encode(config) for config in configs])
        assert [space.decode(one) for one in encoded.astype(np.float64)] == [
            space.decode(one) for one in space.encode_columns(space.columns_of(configs))
        ]
        np.testing.assert_array_equal(space.encode_columns(space.columns_of(configs)), encoded)
        first, second = space.decode_columns(actions), space.decode_columns(changed)
        for name, column in first.items():
            assert column.tolist() == second[name].tolist()
            named = [(c[name], v) for c, v in zip(configs, column.tolist(), strict=True)
                     if name in c]  # fmt: skip
            assert all(a == b for a, b in named)
        if space is grid:
            flat = np.ravel_multi_index(
                [*zip(*map(grid.index, configs), strict=True)], grid.grid_shape
            )
            np.testing.assert_array_equal(grid.flat_grid_indices(actions), flat)
            np.testing.assert_array_equal(grid.flat_grid_indices(changed), flat)


def test_configurations_leave_out_what_is_not_active() -> None:
    space = tree()
    short = {"lr": 0.01, "server": "none"}
    assert space.validate(short) == short
    assert space.validate({**short, "rate": 1.0, "tau": 0.1}) == short
    np.testing.assert_array_equal(space.encode(short), space.encode({**short, "rate": 1.0}))
    with pytest.raises(InvalidArgumentError, match=r"'rate'\] are missing|\['rate'\]"):
        space.validate({"lr": 0.01, "server": "sgd"})
    with pytest.raises(InvalidArgumentError, match=r"must be in \[0.01, 10.0\]"):
        space.validate({**short, "rate": 11.0})
    with pytest.raises(InvalidArgumentError, match="must be one of"):
        space.validate({**short, "server": "sgdm"})


def test_numbers_stand_for_categories_and_come_back() -> None:
    space = tree()
    config = {"lr": 0.01, "server": "adam", "rate": 0.5, "depth": 2, "tau": 0.01}
    numbers = space.numbers(config)
    assert numbers == {**config, "server": 2.0}
    assert space.from_numbers(numbers) == config
    row = {"lr": 0.01, "server": 0.0, "rate": math.nan, "depth": math.nan, "tau": math.nan}
    assert space.from_numbers(row) == {"lr": 0.01, "server": "none"}
    with pytest.raises(InvalidArgumentError, match="position among"):
        space.from_numbers({**row, "server": 0.5})


def test_fixing_a_condition_decides_what_is_left() -> None:
    space = tree()
    assert space.fix({"server": "none"}).names == ("lr",)
    left = space.fix({"server": "adam"})
    assert left.names == ("lr", "rate", "depth", "tau")
    assert [d.active for d in left.dimensions] == [None, None, None, ("depth", (2, 3))]
    assert space.fix({"server": "adam", "depth": 1}).names == ("lr", "rate")
    with pytest.raises(InvalidArgumentError, match="`active` must name one of the dimensions"):
        SearchSpace(space.dimensions[2:])


def test_a_tree_survives_json_and_cards_without_conditions_stay_as_they_were() -> None:
    space = tree()
    assert SearchSpace.from_dict(json.loads(json.dumps(space.to_dict()))) == space
    assert all("active" not in record for record in plain().to_dict()["dimensions"])


def test_a_uniform_action_draws_categories_evenly() -> None:
    rng = np.random.default_rng(0)
    drawn = [tree().sample(rng)["server"] for _ in range(900)]
    counts = [drawn.count(name) for name in ("none", "sgd", "adam")]
    assert min(counts) > 240  # 300 expected, with a standard deviation of 14


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dimension.of_categories("a", ("x", "x")), "each once"),
        (lambda: Dimension.of_categories("a", ()), "at least one string"),
        (lambda: Dimension("a", 0, 1, "category", values=(1, 2)), "`values` must be"),
        (lambda: Dimension("a", 0, 5, "category", values=("x", "y")), "last position"),
        (lambda: Dimension("a", 0, 1, "float", active="b"), "a name and its values"),
        (lambda: Dimension("a", 0, 1, "float", active=("b", ())), "at least one of its"),
        (lambda: SearchSpace((Dimension("a", 0, 1, "float", active=("b", (1,))),)), "before it"),
        (lambda: SearchSpace((lr(), Dimension("a", 0, 1, "float", active=("lr", (3,))))), "in"),
    ],
)  # fmt: skip
def test_conditions_and_categories_that_cannot_be_are_refused(build: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build()
