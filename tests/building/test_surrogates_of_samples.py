"""Surrogates of samples: honest errors, many clients, and no answer beyond what was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("sklearn")

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.backends import make_backend
from fedhpo_gym.building.candidates import (
    ALIKE,
    CANDIDATES,
    fit_process,
    likelihood_slope,
    likely_kernel,
)
from fedhpo_gym.building.surrogate_data import (
    MAX_COMPONENTS,
    FittingSample,
    FittingTable,
    PreparedRows,
    open_source,
    prepare,
    principal_directions,
    scales_of,
)
from fedhpo_gym.building.surrogate_verdicts import folds_of, outcome_spread
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.records.files import read_folder
from fedhpo_gym.stored.catalogue import open_table
from fedhpo_gym.stored.surrogate import Surrogate, held_on
from fedhpo_gym.stored.surrogate_curves import KINDS
from fedhpo_gym.stored.surrogate_models import ExactKernel
from fedhpo_gym.stored.surrogate_rows import SPREAD_OUTPUTS, num_outputs, to_metrics
from fedhpo_gym.stored.table import Sample
from stored_files import (
    SAMPLE_COUNT,
    SAMPLE_NAME,
    SAMPLE_ROUNDS,
    SAMPLE_SEEDS,
    SAMPLE_TASK,
    fit_everything,
    fit_sample,
    write_made_up_sample,
    written_with,
)

ENV = {"id": "FedHPO-LR-CreditG-v0", "backend": "surrogate", "alpha": 0.25}
EVERYTHING = 10**9


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a sample and the surrogate fitted on it."""
    folder = tmp_path_factory.mktemp("samples")
    write_made_up_sample(folder)
    return fit_everything(folder, SAMPLE_NAME)


@pytest.fixture
def folder(fitted: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(fitted))
    return fitted


@pytest.fixture
def surrogate(folder: Path) -> Surrogate:
    return Surrogate(folder / f"{SAMPLE_NAME}.surrogate.json")


# -------------------------------------------------------------------------------------- rows


def test_rows_are_the_courses_of_the_sample(tmp_path: Path) -> None:
    sample = write_made_up_sample(tmp_path)
    source = FittingSample(sample)
    rows = source.rows(EVERYTHING, np.random.default_rng(0))
    assert len(rows) == SAMPLE_COUNT
    assert source.num_configurations == SAMPLE_COUNT
    course = 7
    weights = np.repeat(rows.weights[course : course + 1], len(SAMPLE_ROUNDS), axis=0)
    found = to_metrics(rows.outputs[course, :, :-1], weights)
    np.testing.assert_allclose(
        found[:, :, 1, 0], sample.values("best", "val", "loss")[course], rtol=1e-4
    )
    np.testing.assert_allclose(np.exp(rows.outputs[course, :, -2]), SAMPLE_ROUNDS, rtol=1e-6)
    assert rows.configuration[course] == course
    query = {**sample.configurations()[course], "round": 9}
    query["client_sample_rate"] = float(sample.codes("client_sample_rate")[course])
    columns = {name: np.array([value]) for name, value in query.items()}
    one = source.inputs.rows(columns, np.array([sample.codes("seed")[course]]))
    np.testing.assert_allclose(rows.inputs[course], one[0], atol=1e-6)


def test_courses_of_a_configuration_or_of_one_minibatch_are_held_out_together(
    tmp_path: Path,
) -> None:
    sample = write_made_up_sample(tmp_path)
    codes = {name: sample.codes(name).copy() for name in sample._codes}
    codes["configuration"][9] = codes["configuration"][4]
    source = FittingSample(written_with(sample, tmp_path / "twins", **codes))
    assert source.num_configurations == SAMPLE_COUNT - 1
    rows = source.rows(EVERYTHING, np.random.default_rng(0))
    fold = folds_of(rows.configuration, np.random.default_rng(0))
    assert fold[9] == fold[4]
    integers = [i for i, d in enumerate(sample.space.dimensions) if d.kind == "int"]
    codes["configuration"] = sample.codes("configuration").copy()
    for course, other in ((9, 4), (7, 9)):
        codes["configuration"][course, integers] = codes["configuration"][other, integers]
        for name in ("client_sample_rate", "seed"):
            codes[name][course] = codes[name][other]
    source = FittingSample(written_with(sample, tmp_path / "blocks", **codes))
    assert source.num_configurations == SAMPLE_COUNT
    assert source.num_held_out <= SAMPLE_COUNT - 2
    of_course = source.rows(EVERYTHING, np.random.default_rng(0)).configuration
    assert of_course[4] == of_course[7] == of_course[9]
    assert (of_course == of_course[4]).sum() < SAMPLE_COUNT // 2


def test_the_spread_of_outcomes_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = FittingSample(write_made_up_sample(tmp_path)).rows(5, np.random.default_rng(0))
    numbers = np.array([[0.1, 1.0], [0.2, 1.0], [0.3, 1.0], [0.4, 1.0], [0.9, 6.0]])
    numbers = np.repeat(numbers, len(SAMPLE_ROUNDS), axis=0)
    monkeypatch.setattr("fedhpo_gym.stored.surrogate_rows.objectives", lambda *_: numbers)
    expected = {"val_accuracy": 0.2, "log_val_loss": 1.0}
    assert outcome_spread(rows) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_table_goes_before_a_sample() -> None:
    assert isinstance(open_source(SAMPLE_NAME), FittingSample)
    assert isinstance(open_source("LR-CreditG-fedavg"), FittingTable)
    with pytest.raises(MissingDataError, match=r"neither a table nor a sample.*--sample N"):
        open_source("LR-Nothing-fedavg")
    with pytest.raises(MissingDataError, match=r'backend="surrogate".*fedhpo-gym build'):
        open_table(SAMPLE_NAME)


# --------------------------------------------------------------------------------------- card


@pytest.mark.slow
def test_the_card_says_what_it_was_fitted_on(surrogate: Surrogate, folder: Path) -> None:
    card = surrogate.card
    assert card["fitted_on"] == "sample"
    assert card["sample_sha256"] == Sample(folder / f"{SAMPLE_NAME}.sample.json").sha256
    assert card["num_configurations"] == SAMPLE_COUNT
    assert card["missing"] == "everything: it is made up"
    assert card["seed_spread"] == {}
    assert card["outcome_spread"]["log_val_loss"] > 0
    assert set(card["comparison"]["candidates"]) == set(CANDIDATES)


def test_its_error_is_that_of_unseen_configurations(surrogate: Surrogate) -> None:
    for result in surrogate.card["comparison"]["candidates"].values():
        for measure in ("val_accuracy", "log_val_loss"):
            errors = result["by_configuration"]
            assert errors["train"][measure]["mae"] < errors["test"][measure]["mae"]
    chosen = surrogate.card["model"]["candidate"]
    test = surrogate.card["comparison"]["candidates"][chosen]["by_configuration"]["test"]
    stated = surrogate.card["errors_of_the_stored_model"]
    assert test["log_val_loss"]["mae"] < 0.5 * stated["yardstick"]["log_val_loss"]
    assert stated["verdict"]["passed"]


# ------------------------------------------------------------------------------- its fidelities


@pytest.mark.parametrize("fidelity", [Fidelity(21, 0.4), Fidelity(20, 0.3), Fidelity(20, 0.9)])
def test_what_was_not_trained_is_refused(surrogate: Surrogate, fidelity: Fidelity) -> None:
    backend = make_backend("surrogate", SAMPLE_TASK)
    configuration = {d.name: d.high for d in SAMPLE_TASK.space.dimensions}
    for answer in (lambda: backend.evaluate(configuration, fidelity),
                   lambda: surrogate.evaluate(configuration, fidelity, (1,))):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=r'knows no others.*further.*backend="raw"'):
            answer()


@pytest.mark.usefixtures("folder")
def test_actions_are_decoded_into_the_range_that_was_trained() -> None:
    with gymnasium.make(**ENV) as env:
        env.reset(seed=0)
        corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * 6)).reshape(6, -1).T
        seen = set()
        for action in [*corners[:8], *corners[-8:]]:
            *_, info = env.step(action.astype(np.float32))
            seen.add((info["fidelity"]["round"], info["fidelity"]["client_sample_rate"]))
        assert {rounds for rounds, _ in seen} == {
            1,
            19,
        }  # of a table's rounds, the last that was trained
        assert {rate for _, rate in seen} == {0.4, 0.8}


@pytest.mark.usefixtures("folder")
def test_the_grid_of_the_environment_ends_where_training_did() -> None:
    with gymnasium.make(**ENV, grid=True) as env:
        rounds = env.unwrapped.search_space["round"].grid  # type: ignore[attr-defined]
        assert rounds == (1, 2, 3, 4, 6, 9, 13, 19)
        env.reset(seed=0)
        *_, info = env.step(np.ones(6, dtype=np.float32))
        assert info["fidelity"] == {"round": 19, "client_sample_rate": 0.8}


@pytest.mark.usefixtures("folder")
def test_a_pinned_round_beyond_is_refused_when_the_environment_is_made() -> None:
    with pytest.raises(InvalidArgumentError, match=r"fidelity\['round'\].*\[1, 20\].*500"):
        gymnasium.make(**ENV, fidelity={"round": 500})


@pytest.mark.usefixtures("folder")
def test_a_full_run_on_the_command_line_is_as_full_as_the_surrogate(tmp_path: Path) -> None:
    words = ["--agent", "random", "--seeds", "1", "--out", str(tmp_path), "--backend", "surrogate"]
    settings = ["--set", "alpha=0.25", "--set", "budget_trials=2"]
    assert main(["run", "FedHPO-LR-CreditG-v0", *words, *settings]) == 0
    [(_, record)] = read_folder([tmp_path])
    assert record.header.kwargs["fidelity"] == {"round": 19, "client_sample_rate": 0.8}


# ------------------------------------------------------------------------------ many clients


@pytest.mark.parametrize("count", [9, 300])
def test_directions_are_the_singular_vectors(count: int) -> None:
    rng = np.random.default_rng(1)
    rows = (rng.normal(size=(count, 60)) * np.geomspace(10, 0.1, 60)).astype(np.float32)
    ours = principal_directions(rows, 16)[:3].astype(np.float64)
    theirs = np.linalg.svd(rows)[2][:3]
    np.testing.assert_allclose(np.abs(np.sum(ours * theirs, axis=1)), 1.0, atol=1e-3)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    """Return a folder with a sample of 60 clients and its surrogate, and the card."""
    folder = tmp_path_factory.mktemp("crowd")
    write_made_up_sample(folder, clients=60)
    with pytest.MonkeyPatch.context() as patch:
        return folder, fit_sample(folder, patch, "random_forest").card


@pytest.mark.slow
def test_many_clients_are_compressed_and_the_card_says_so(
    crowd: tuple[Path, Mapping[str, Any]],
) -> None:
    folder, card = crowd
    stated = card["model"]["compression"]
    assert stated["client_outputs"] == 9 * 60
    assert stated["components_of_clients"] == MAX_COMPONENTS
    assert stated["share_of_variance_lost"] < 0.05
    with np.load(folder / card["arrays"]) as arrays:
        assert arrays["components"].shape == (MAX_COMPONENTS, 9 * 60)
        assert arrays["basis"].shape[1:] == (
            len(SAMPLE_ROUNDS),
            MAX_COMPONENTS + 5 + SPREAD_OUTPUTS,
        )
    assert card["comparison"]["candidates"]["random_forest"]["bytes_before_compression"] < 600_000


@pytest.mark.slow
def test_many_clients_are_answered_one_by_one(crowd: tuple[Path, Mapping[str, Any]]) -> None:
    folder, _ = crowd
    sample, surrogate = (Sample(folder / f"{SAMPLE_NAME}.sample.json"),
                         Surrogate(folder / f"{SAMPLE_NAME}.surrogate.json"))  # fmt: skip
    errors, spread = [], []
    for course in range(0, SAMPLE_COUNT, 5):
        seed = SAMPLE_SEEDS[sample.codes("seed")[course]]
        fidelity = Fidelity(9, float(sample.codes("client_sample_rate")[course]))
        found = surrogate.evaluate(sample.configurations()[course], fidelity, (seed,))
        truth = sample.values("best", "val", "accuracy")[course, 2]
        errors.append(np.abs(found.best[0, :, 1, 1] - truth).mean())
        spread.append(truth.std())
    assert np.mean(errors) < 0.25 * np.mean(spread)


@pytest.mark.slow
def test_many_clients_are_as_unequal_as_they_are(crowd: tuple[Path, Mapping[str, Any]]) -> None:
    """Compression makes clients alike; the quantiles that are predicted say how far they are."""
    held = held_on(crowd[1])
    assert held is not None
    for name in ("fairness_std", "fairness_p10", "fairness_p90"):
        assert held[name].passed, held[name].words


def test_five_clients_are_not_compressed_and_weigh_as_they_are(tmp_path: Path) -> None:
    rows = FittingSample(write_made_up_sample(tmp_path)).rows(EVERYTHING, stream(0, "test"))
    prepared = prepare(rows)
    assert prepared.clients is None
    curves = prepared.curves.reshape(SAMPLE_COUNT, len(SAMPLE_ROUNDS), num_outputs(5) + 1)
    whole = curves + prepared.centre
    assert whole[..., 3:-2].reshape(-1, 45).std(axis=0).max() == pytest.approx(1.0, abs=1e-2)
    many = FittingSample(write_made_up_sample(tmp_path / "many", 20)).rows(
        EVERYTHING, stream(0, "")
    )
    other = prepare(many)
    twenty = other.curves.reshape(SAMPLE_COUNT, len(SAMPLE_ROUNDS), -1) + other.centre
    weights = [
        each[..., 3:-2].reshape(SAMPLE_COUNT * len(SAMPLE_ROUNDS), -1) for each in (whole, twenty)
    ]
    five, more = (each.var(axis=0).sum() for each in weights)
    assert more == pytest.approx(five, rel=0.1)


# -------------------------------------------------------------- candidates that suit few courses


def made_up_rows(count: int = 120) -> PreparedRows:
    """Three inputs, the last of which does not matter, and two coefficients."""
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1, 1, (count, 3)).astype(np.float32)
    targets = np.column_stack([np.sin(3 * inputs[:, 0]), inputs[:, 0] * inputs[:, 1]])
    targets = (targets - targets.mean(axis=0)).astype(np.float32)
    basis = np.eye(2, dtype=np.float32)[:, None]
    scales = dict.fromkeys(("mean", "scale", "low", "high"), np.zeros(2, np.float32))
    known = np.ones(targets.shape, np.bool_)
    centre, names = np.zeros((1, 2)), ("a", "b", "c")
    return PreparedRows(inputs, targets, known, targets, 1, scales, centre, basis, None, names)


def test_a_gaussian_process_is_the_one_of_scikit_learn() -> None:
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    rows = made_up_rows()
    ours = fit_process(rows)
    stretch, noise = likely_kernel(rows.inputs.astype(float), rows.coefficients.astype(float))
    kernel = kernels.Matern(length_scale=1 / stretch, nu=1.5)
    gram = kernel(rows.inputs.astype(np.float64)) + noise * np.eye(len(rows.inputs))
    new = np.random.default_rng(1).uniform(-1, 1, (20, 3)).astype(np.float32)
    expected = kernel(new.astype(np.float64), rows.inputs.astype(np.float64)) @ np.linalg.solve(
        gram, rows.coefficients
    )
    np.testing.assert_allclose(ours.predict(new), expected, atol=1e-3)
    assert stretch[2] < 0.2 * stretch[0], "a column that does not matter is stretched less"


@pytest.mark.parametrize("products", [False, True])
def test_a_process_sees_products_or_what_is_in_them(products: bool) -> None:
    names = ("learning_rate", "step_size", "log(learning_rate*step_size)")
    rows = replace(made_up_rows(), names=names)
    stretch = fit_process(rows, products=products).arrays["stretch"]
    assert (stretch > 0).tolist() == [True, not products, products]


def test_seeds_can_be_alike() -> None:
    rows = made_up_rows()
    seed = (np.arange(120) % 2).astype(np.float32)
    inputs = np.column_stack([rows.inputs[:, :1], seed, 1 - seed])
    targets = rows.coefficients + 5 * seed[:, None]
    rows = replace(rows, inputs=inputs, coefficients=targets - targets.mean(axis=0), seeds=2)
    free, alike = (fit_process(rows, seeds_alike=one).arrays["stretch"] for one in (False, True))
    assert free[1:].max() > 2 * ALIKE
    np.testing.assert_array_less(alike[1:], ALIKE + 1e-6)


def test_a_loss_may_be_a_bit_lower_than_any_that_was_seen() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(400, 3 + 9 + 2)).astype(np.float32)
    found, lowest = scales_of(outputs, 1), outputs.min(axis=0)
    few = np.percentile(outputs, 5, axis=0)
    np.testing.assert_allclose(found["low"][:3], (2 * lowest - few)[:3], rtol=1e-5)
    np.testing.assert_array_equal(found["low"][3:], lowest[3:])


def test_the_slope_of_a_likelihood_is_that_of_scikit_learn() -> None:
    process = pytest.importorskip("sklearn.gaussian_process")
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    rows = made_up_rows(30)
    inputs, target = rows.inputs.astype(float), rows.coefficients[:, :1].astype(float)
    position = np.log([0.8, 0.5, 0.3, 0.05])
    stretch, noise = np.exp(position[:-1]), float(np.exp(position[-1]))
    distances = (inputs[:, None] - inputs) ** 2
    kernel = kernels.Matern(length_scale=1 / stretch, nu=1.5)
    gram = kernel(inputs) + noise * np.eye(30)
    variance = float(target[:, 0] @ np.linalg.solve(gram, target[:, 0])) / 30
    theirs = process.GaussianProcessRegressor(
        kernels.ConstantKernel(variance) * kernel + kernels.WhiteKernel(noise * variance),
        optimizer=None, alpha=0.0,
    ).fit(inputs, target[:, 0])  # fmt: skip
    _, slope = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    ours = likelihood_slope(position, distances, target, np.ones(1))
    # Theirs is by log length scale, of opposite sign, after that by log variance.
    np.testing.assert_allclose(30 * ours, [*-slope[1:4], slope[4]], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [("weights", None), ("weights", np.zeros(5)), ("points", np.zeros((5, 2))),
     ("stretch", np.ones(2))],
)  # fmt: skip
def test_a_kernel_whose_arrays_do_not_fit_is_refused(name: str, value: Any) -> None:
    arrays = {"stretch": np.ones(3), "points": np.zeros((5, 3)), "weights": np.zeros((5, 2))}
    ExactKernel(arrays)
    arrays.pop(name)
    with pytest.raises(InvalidArgumentError, match=r"kernel"):
        ExactKernel(arrays if value is None else {**arrays, name: value})


def test_what_suits_few_courses_is_better_on_few_smooth_courses(surrogate: Surrogate) -> None:
    found = surrogate.card["comparison"]["candidates"]
    errors = {
        name: result["by_configuration"]["test"]["log_val_loss"]["mae"]
        for name, result in found.items()
    }
    assert errors["gaussian_process"] < errors["random_forest"]
    assert surrogate.card["model"]["kind"] in KINDS
