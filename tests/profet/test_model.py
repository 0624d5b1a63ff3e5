"""Profet's model: networks by hand, and what a fitted one keeps when it is saved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp

from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.profet import Family, ProfetModel, forrester
from fedhpo_gym.profet.model import SampledNetwork, lowest

GRID = np.linspace(0.0, 1.0, 201)[:, None]


@pytest.fixture(scope="module")
def family() -> Family:
    made = forrester(4, points=20)
    squashed = 1.0 / (1.0 + np.exp(-made.values))
    return replace(made, values=squashed, costs=np.exp(made.values), link="logit")


@pytest.fixture(scope="module")
def model(family: Family) -> ProfetModel:
    pytest.importorskip("gpytorch")
    return ProfetModel.fit(
        family, samples=3, feature_steps=30, burn_in=300, keep_every=10, widths=(8, 8)
    )


def test_a_network_by_hand() -> None:
    network = SampledNetwork(
        weights=(np.array([[2.0], [1.0]]), np.array([[3.0]])),
        biases=(np.array([0.5]), np.array([-1.0])),
        deviation=0.0,
        centre=np.array([1.0, 0.0, 10.0]),
        scale=np.array([2.0, 1.0, 5.0]),
        link="log",
    )
    hidden = 3.0 * np.tanh(2.0 * (3.0 - 1.0) / 2.0 + 4.0 + 0.5) - 1.0
    np.testing.assert_allclose(network(np.array([[3.0, 4.0]]), None), np.exp(5.0 * hidden + 10.0))


@pytest.mark.slow
def test_a_saved_model_makes_the_same_tasks(model: ProfetModel, tmp_path: Path) -> None:
    model.save(tmp_path)
    again = ProfetModel.load(tmp_path)
    for number in (0, 2, 7):
        one, other = model.task(number), again.task(number)
        np.testing.assert_array_equal(one.value(GRID), other.value(GRID))
        np.testing.assert_array_equal(one.cost(GRID), other.cost(GRID))
    with pytest.raises(MissingDataError, match="no model of Profet"):
        ProfetModel.load(tmp_path / "none")


@pytest.mark.slow
def test_tasks_differ_and_stay_in_their_range(model: ProfetModel) -> None:
    values = np.array([model.task(i).value(GRID) for i in range(6)])
    assert len(np.unique(values[:, 0])) == 6
    assert 0.0 <= values.min() < values.max() <= 1.0
    # Networks are taken in turn, and shared by value and cost.
    first, fourth, second = (model.task(i).networks[1].weights[0] for i in (1, 4, 2))
    np.testing.assert_array_equal(first, fourth)
    assert not np.array_equal(first, second)
    assert (model.task(0).cost(GRID) > 0.0).all()


def test_a_point_has_the_same_value_alone_and_among_others(model: ProfetModel) -> None:
    alone = np.concatenate([model.task(3).value(point[None]) for point in GRID])
    np.testing.assert_array_equal(model.task(3).value(GRID), alone)


def test_damage_is_found(model: ProfetModel, tmp_path: Path) -> None:
    model.save(tmp_path)
    (arrays,) = tmp_path.glob("*.npz")
    arrays.write_bytes(arrays.read_bytes()[:-9])
    with pytest.raises(DamagedDataError, match="fit it again"):
        ProfetModel.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("links", ["cube"], r"links are \['cube'\]"),
        ("links", [], r"links are \[\]"),
        ("layers", 2.5, "`layers` must be an integer"),
        ("layers", 10**9, "`layers` must be"),
        ("seed", -1, "`seed` must be"),
        ("mean", np.zeros((3, 2)), r"deviation has shape \(4, 2\), not \(3, 2\)"),
        ("mean", np.zeros(4), "centre_0 has shape"),
        ("scale_0", np.zeros(4), "scale_0 must be 1e-30 or more"),
        ("centre_1", np.full(4, np.nan), "centre_1 must hold finite"),
        ("bias_0_1", np.zeros((3, 8), int), "bias_0_1 must hold finite floats"),
        ("bias_0_1", np.zeros((3, 9)), "weight_0_1 has shape"),
        ("bias_0_0", np.zeros((2, 8)), "bias_0_1 has shape"),
        ("weight_1_2", np.zeros((3, 8, 2)), r"weight_1_2 has shape \(3, 8, 2\), not \(3, 8, 1\)"),
        ("extra", np.zeros(1), "extra has shape"),
        ("log_1_variance", None, "log_1_variance has shape None"),
    ],
)
def test_what_makes_no_sense_is_refused(
    model: ProfetModel, tmp_path: Path, name: str, value: object, words: str
) -> None:
    card, arrays = dict(model.card), dict(model.arrays)
    changed = card if name in card else arrays
    changed[name] = value
    if value is None:
        del changed[name]
    replace(model, card=card, arrays=arrays).save(tmp_path)
    with pytest.raises(DamagedDataError, match=f"{words}.*fit it again"):
        ProfetModel.load(tmp_path)


def test_noise_is_of_each_point_and_has_the_deviation_of_the_network(model: ProfetModel) -> None:
    task = model.task(0)
    x = np.full((4000, 1), 0.3)
    odds = [np.log(v / (1.0 - v)) for v in (task.value(x, np.random.default_rng(0)), task.value(x))]
    deviation = np.exp(model.arrays["log_0_variance"][0, 0]) ** 0.5
    noise = (odds[0] - odds[1]) / (deviation * task.networks[0].scale[-1])
    assert abs(noise.mean()) < 0.1
    assert noise.std() == pytest.approx(1.0, rel=0.05)
    np.testing.assert_array_equal(task.value(x), task.value(x))


def test_the_optimum_is_no_higher_than_any_grid(model: ProfetModel) -> None:
    x, value = model.task(2).optimum()
    assert value <= model.task(2).value(GRID).min()
    assert model.task(2).value(x[None])[0] == value


@pytest.mark.parametrize("centre", [[0.3, 0.7], [0.0, 1.0]])
def test_search_finds_the_middle_and_the_corner(centre: list[float]) -> None:
    x, value = lowest(lambda points: ((points - centre) ** 2).sum(axis=1), 2)
    np.testing.assert_allclose(x, centre, atol=1e-5)
    assert value < 1e-9


def test_a_family_without_costs_has_none(family: Family) -> None:
    pytest.importorskip("gpytorch")
    how = {"samples": 1, "feature_steps": 1, "burn_in": 1, "widths": (2,)}
    task = ProfetModel.fit(replace(family, costs=None), **how).task(0)
    with pytest.raises(InvalidArgumentError, match="no costs"):
        task.cost(GRID)
    with pytest.raises(InvalidArgumentError, match=r"`x` must be \(n, 1\) points"):
        task.value(GRID + 1.0)


@pytest.mark.slow
def test_generated_functions_are_lowest_where_others_of_the_family_are() -> None:
    pytest.importorskip("gpytorch")
    made, nine, others = (
        forrester(9, points=16),
        np.linspace(0.1, 0.9, 9),
        np.linspace(0.1, 0.9, 41),
    )
    family = replace(made, values=(made.x[:, 0] - nine[:, None]) ** 2)
    model = ProfetModel.fit(family, samples=40, feature_steps=400, burn_in=2000, keep_every=30)
    tasks = [model.task(number) for number in range(40)]
    values = np.array([task.value(GRID) for task in tasks])
    assert ks_2samp(others, GRID[values.argmin(axis=1), 0]).pvalue > 0.05
    # Without their places, generated functions are too alike.
    blind = np.array([replace(task, features=0.0 * task.features).value(GRID) for task in tasks])
    assert ks_2samp(others, GRID[blind.argmin(axis=1), 0]).pvalue < 0.001
    spreads = np.ptp(values, axis=1)  # those of the family are .25 to .81
    assert 0.25 / 2 < spreads.min() < spreads.max() < 2 * 0.81
