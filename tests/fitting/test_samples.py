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
from fedhpo_gym.analysis.files import read_folder
from fedhpo_gym.backends import make_backend
from fedhpo_gym.cli import main
from fedhpo_gym.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity
from fedhpo_gym.fitting import fit as fitting
from fedhpo_gym.fitting.candidates import CANDIDATES
from fedhpo_gym.fitting.data import MAX_COMPONENTS, prepare, principal_components
from fedhpo_gym.fitting.sources import FittingSample, FittingTable, open_source
from fedhpo_gym.fitting.validate import compression_summary, folds_of, outcome_spread
from fedhpo_gym.seeding import stream
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.surrogates import Surrogate
from fedhpo_gym.surrogates.kernel import Kernel
from fedhpo_gym.surrogates.model import KINDS, Compression, OutcomeModel
from fedhpo_gym.surrogates.outputs import num_outputs, to_metrics
from fedhpo_gym.tables import Sample, codec, open_table
from fedhpo_gym.tables.sample import write_sample
from fedhpo_gym.tables.stored import WHICH
from fedhpo_gym.tasks import get_task
from quick_fits import fit_quickly

TASK = get_task("LR-CreditG").variant(alpha=0.25)  # nobody stores this variant
NAME = TASK.table_name
ENV = {"id": "FedHPO-LR-CreditG-v0", "backend": "surrogate", "alpha": 0.25}
ROUNDS, RATES, SEEDS, COUNT = (1, 3, 9, 20), (0.4, 0.8), (1, 2, 3), 40
EVERYTHING = 10**9


def write_made_up_sample(folder: Path, clients: int = 5, name: str = NAME) -> Sample:
    """Write a sample whose numbers follow a smooth formula."""
    rng = np.random.default_rng(0)
    space = TASK.space
    actions = rng.uniform(-1, 1, (COUNT, len(space)))
    configurations = [space.decode(action) for action in actions]
    seed, rate = np.arange(COUNT) % 3, np.array(RATES)[np.arange(COUNT) // 3 % 2]
    samples = rng.integers(20, 60, (3, clients, 3))
    progress = np.exp(-(actions[:, 0] ** 2))[:, None, None] * np.log1p(ROUNDS)[:, None]
    score = progress + 0.2 * rate[:, None, None] + 0.1 * seed[:, None, None]
    score = score + np.sin(np.arange(clients)) - 1.0
    arrays: dict[str, Any] = {
        "point": np.arange(COUNT),
        "configuration": np.array([list(c.values()) for c in configurations]),
        "client_sample_rate": rate,
        "seed": seed,
        "diverged_at": np.zeros(COUNT, np.uint16),
        "best_round": np.broadcast_to(ROUNDS, (COUNT, len(ROUNDS))).astype(np.uint16),
    }
    for s, split in enumerate(SPLITS):
        for metric in METRICS:
            values = np.exp(-score) if metric == "loss" else 1 / (1 + np.exp(-score))
            codes = codec.encode(metric, values, samples[seed][:, None, :, s])
            arrays |= {f"{which}_{split}_{metric}": codes for which in WHICH}
    rounds, rates = TASK.fidelity_space.dimensions
    fidelity = (
        replace(rounds, high=ROUNDS[-1], values=ROUNDS, bins=None),
        replace(rates, low=RATES[0], high=RATES[-1], values=RATES),
    )
    card = {
        **replace(TASK.identity, name=name).to_card(),
        "space": space.to_dict(),
        "fidelity_space": SearchSpace(fidelity).to_dict(),
        "seeds": list(SEEDS),
        "num_samples": samples.tolist(),
        "splits": list(SPLITS),
        "metrics": list(METRICS),
        "courses": COUNT,
        "missing": "everything: it is made up",
        "build_command": "fedhpo-gym build FedHPO-LR-CreditG --sample 40",
    }
    return Sample(write_sample(folder, card, arrays))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a sample and the surrogate fitted on it."""
    folder = tmp_path_factory.mktemp("samples")
    write_made_up_sample(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHPO_GYM_TABLES", str(folder))
        fit_quickly(patch)
        fitting.fit_surrogate(NAME)
    return folder


@pytest.fixture
def folder(fitted: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(fitted))
    return fitted


@pytest.fixture
def surrogate(folder: Path) -> Surrogate:
    return Surrogate(folder / f"{NAME}.surrogate.json")


# -------------------------------------------------------------------------------------- rows


def test_rows_are_the_courses_of_the_sample(tmp_path: Path) -> None:
    sample = write_made_up_sample(tmp_path)
    source = FittingSample(sample)
    rows = source.rows(EVERYTHING, np.random.default_rng(0))
    assert len(rows) == COUNT * len(ROUNDS)
    assert source.num_configurations == COUNT
    found, rounds = to_metrics(rows.outputs, rows.weights, np.full(len(rows), 20))
    at, course = 7 * len(ROUNDS) + 2, 7
    np.testing.assert_allclose(
        found[at, :, 1, 0], sample.values("best", "val", "loss")[course, 2], rtol=1e-4
    )
    assert rounds[at] == ROUNDS[2]
    assert rows.configuration[at] == course
    configuration = sample.configurations()[course]
    fidelity = Fidelity(ROUNDS[2], float(sample.codes("client_sample_rate")[course]))
    seed = np.array([sample.codes("seed")[course]])
    one = source.inputs.one(configuration, fidelity, seed)
    np.testing.assert_allclose(rows.inputs[at], one[0], atol=1e-6)


def test_courses_that_share_minibatches_are_held_out_together(tmp_path: Path) -> None:
    sample = write_made_up_sample(tmp_path)
    codes = {name: sample.codes(name).copy() for name in sample._codes}
    integers = [i for i, d in enumerate(sample.space.dimensions) if d.kind == "int"]
    for course, other in ((9, 4), (7, 9)):
        codes["configuration"][course, integers] = codes["configuration"][other, integers]
        for name in ("client_sample_rate", "seed"):
            codes[name][course] = codes[name][other]
    source = FittingSample(Sample(write_sample(tmp_path / "blocks", dict(sample.card), codes)))
    assert source.num_configurations == COUNT
    assert source.num_held_out <= COUNT - 2
    group = source.rows(EVERYTHING, np.random.default_rng(0)).configuration
    of_course = group.reshape(COUNT, len(ROUNDS))[:, 0]
    assert of_course[4] == of_course[7] == of_course[9]
    assert (of_course == of_course[4]).sum() < COUNT // 2


def test_courses_of_one_configuration_are_held_out_together(tmp_path: Path) -> None:
    sample = write_made_up_sample(tmp_path)
    codes = {name: sample.codes(name).copy() for name in sample._codes}
    codes["configuration"][9] = codes["configuration"][4]
    source = FittingSample(Sample(write_sample(tmp_path / "twins", dict(sample.card), codes)))
    assert source.num_configurations == COUNT - 1
    rows = source.rows(EVERYTHING, np.random.default_rng(0))
    fold = folds_of(rows.configuration, np.random.default_rng(0))
    of_course = fold.reshape(COUNT, len(ROUNDS))
    assert (of_course == of_course[:, :1]).all()
    assert of_course[9, 0] == of_course[4, 0]


def test_the_spread_of_outcomes_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = FittingSample(write_made_up_sample(tmp_path)).rows(5, np.random.default_rng(0))
    numbers = np.array([[0.1, 1.0], [0.2, 1.0], [0.3, 1.0], [0.4, 1.0], [0.9, 6.0]])
    monkeypatch.setattr("fedhpo_gym.fitting.validate.objectives", lambda *_: numbers)
    expected = {"val_accuracy": 0.2, "log_val_loss": 1.0}
    assert outcome_spread(rows) == pytest.approx(expected)


@pytest.mark.usefixtures("folder")
def test_a_table_goes_before_a_sample() -> None:
    assert isinstance(open_source(NAME), FittingSample)
    assert isinstance(open_source("LR-CreditG-fedavg"), FittingTable)
    with pytest.raises(MissingDataError, match=r"neither a table nor a sample.*--sample N"):
        open_source("LR-Nothing-fedavg")


# --------------------------------------------------------------------------------------- card


def test_the_card_says_what_it_was_fitted_on(surrogate: Surrogate, folder: Path) -> None:
    card = surrogate.card
    assert card["fitted_on"] == "sample"
    assert card["sample_sha256"] == Sample(folder / f"{NAME}.sample.json").sha256
    assert card["num_configurations"] == COUNT
    assert card["missing"] == "everything: it is made up"
    assert card["seed_spread"] == {}
    assert card["outcome_spread"]["log_val_loss"] > 0
    assert set(card["comparison"]["candidates"]) == set(CANDIDATES)


def test_its_error_is_that_of_unseen_configurations(surrogate: Surrogate) -> None:
    for result in surrogate.card["comparison"]["candidates"].values():
        assert "by_row" not in result
        for measure in ("val_accuracy", "log_val_loss"):
            errors = result["by_configuration"]
            assert errors["train"][measure]["mae"] < errors["test"][measure]["mae"]
    chosen = surrogate.card["model"]["candidate"]
    test = surrogate.card["comparison"]["candidates"][chosen]["by_configuration"]["test"]
    spread = surrogate.card["outcome_spread"]
    assert test["log_val_loss"]["mae"] < 0.5 * spread["log_val_loss"]


# ------------------------------------------------------------------------------- its fidelities


@pytest.mark.parametrize("fidelity", [Fidelity(21, 0.4), Fidelity(20, 0.3), Fidelity(20, 0.9)])
def test_what_was_not_trained_is_refused(surrogate: Surrogate, fidelity: Fidelity) -> None:
    backend = make_backend("surrogate", TASK)
    configuration = {d.name: d.high for d in TASK.space.dimensions}
    for answer in (lambda: backend.evaluate(configuration, fidelity),
                   lambda: surrogate.evaluate(configuration, fidelity, (1,))):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=r'knows no others.*backend="raw"'):
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
        assert {rounds for rounds, _ in seen} == {1, 20}
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
    assert main(["run", "FedHPO-LR-CreditG", *words, *settings]) == 0
    [(_, record)] = read_folder([tmp_path])
    assert record.header.kwargs["fidelity"] == {"round": 20, "client_sample_rate": 0.8}


@pytest.mark.usefixtures("folder")
def test_the_missing_table_names_the_surrogate() -> None:
    with pytest.raises(MissingDataError, match=r'backend="surrogate".*fedhpo-gym build'):
        open_table(NAME)


# ------------------------------------------------------------------------------ many clients


def test_a_compression_keeps_the_federation_and_the_plane_of_its_components() -> None:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(12, 3)))[0].T
    rows = np.column_stack(
        [rng.normal(size=(40, 3)), rng.normal(size=(40, 3)) @ basis, rng.normal(size=(40, 1))]
    ).astype(np.float32)
    compression = principal_components(rows)
    assert compression.components.shape == (12, 12)
    three = Compression(compression.components[:3])
    few = three.compress(rows)
    assert few.shape == (40, 7)
    np.testing.assert_array_equal(few[:, [0, 1, 2, -1]], rows[:, [0, 1, 2, -1]])
    np.testing.assert_allclose(three.expand(few), rows, atol=5e-3)


@pytest.mark.parametrize("count", [9, 300])
def test_components_are_the_singular_vectors(count: int) -> None:
    rng = np.random.default_rng(1)
    middle = rng.normal(size=(count, 60)) * np.geomspace(10, 0.1, 60)
    rows = np.column_stack([np.ones((count, 3)), middle, np.ones(count)]).astype(np.float32)
    ours = principal_components(rows).components[:3].astype(np.float64)
    theirs = np.linalg.svd(middle)[2][:3]
    np.testing.assert_allclose(np.abs(np.sum(ours * theirs, axis=1)), 1.0, atol=1e-3)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    """Return a folder with a sample of 60 clients and its surrogate, and the card."""
    folder = tmp_path_factory.mktemp("crowd")
    write_made_up_sample(folder, clients=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHPO_GYM_TABLES", str(folder))
        few = {name: CANDIDATES[name] for name in ("boosted_trees",)}
        patch.setattr(fitting, "CANDIDATES", few)
        patch.setattr("fedhpo_gym.fitting.candidates.BOOSTED_TREES", 40)
        card = fitting.fit_surrogate(NAME)
    return folder, Surrogate(card).card


def test_many_clients_are_compressed_and_the_card_says_so(
    crowd: tuple[Path, Mapping[str, Any]],
) -> None:
    folder, card = crowd
    stated = card["model"]["compression"]
    assert stated["client_outputs"] == 9 * 60
    assert stated["components"] == MAX_COMPONENTS
    assert stated["share_of_variance_lost"] < 0.05
    assert stated["val_accuracy_mae"] < 0.01
    model = Surrogate(folder / f"{NAME}.surrogate.json")._model
    assert model.regressor.predict(np.zeros((1, 9), np.float32)).shape == (1, MAX_COMPONENTS + 4)
    assert card["comparison"]["candidates"]["boosted_trees"]["bytes_before_compression"] < 600_000


def test_many_clients_are_answered_one_by_one(crowd: tuple[Path, Mapping[str, Any]]) -> None:
    folder, _ = crowd
    sample, surrogate = (Sample(folder / f"{NAME}.sample.json"),
                         Surrogate(folder / f"{NAME}.surrogate.json"))  # fmt: skip
    errors, spread = [], []
    for course in range(0, COUNT, 5):
        seed = SEEDS[sample.codes("seed")[course]]
        fidelity = Fidelity(9, float(sample.codes("client_sample_rate")[course]))
        found = surrogate.evaluate(sample.configurations()[course], fidelity, (seed,))
        truth = sample.values("best", "val", "accuracy")[course, 2]
        errors.append(np.abs(found.best[0, :, 1, 1] - truth).mean())
        spread.append(truth.std())
    assert np.mean(errors) < 0.25 * np.mean(spread)


def test_five_clients_are_not_compressed_and_weigh_as_they_are(tmp_path: Path) -> None:
    rows = FittingSample(write_made_up_sample(tmp_path)).rows(EVERYTHING, stream(0, "test"))
    prepared = prepare(rows)
    assert prepared.compression is None
    assert compression_summary(rows) is None
    assert prepared.targets.shape == (len(rows), num_outputs(5))
    assert prepared.targets[:, 3:-1].std(axis=0).max() == pytest.approx(1.0, abs=1e-2)
    many = FittingSample(write_made_up_sample(tmp_path / "many", 20)).rows(
        EVERYTHING, stream(0, "")
    )
    weights = (prepare(r).targets[:, 3:-1].var(axis=0).sum() for r in (rows, many))
    five, twenty = weights
    assert twenty == pytest.approx(five, rel=0.1)


def test_a_compressed_model_survives_storing(crowd: tuple[Path, Mapping[str, Any]]) -> None:
    folder, card = crowd
    model = Surrogate(folder / f"{NAME}.surrogate.json")._model
    again = OutcomeModel.from_arrays(card["model"]["kind"], model.arrays)
    rows = np.random.default_rng(0).uniform(-1, 1, (5, 9)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(rows), again.predict(rows))


def test_the_scales_of_many_clients_are_those_of_the_fit_and_half_as_large(tmp_path: Path) -> None:
    many = FittingSample(write_made_up_sample(tmp_path, 60)).rows(EVERYTHING, stream(0, "test"))
    fitted = prepare(many)
    arrays = {"stretch": np.ones(9), "points": np.zeros((1, 9)), "weights": np.zeros((1, 20))}
    stored = OutcomeModel(Kernel(arrays), fitted.scales, fitted.compression).arrays
    for name, value in fitted.scales.items():
        assert stored[name].dtype == np.float16
        np.testing.assert_array_equal(stored[name].astype(np.float32), value)


# -------------------------------------------------------------- candidates that suit few courses


def made_up_rows(count: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (count, 3)).astype(np.float32)
    targets = np.column_stack([np.sin(3 * rows[:, 0]), rows[:, 0] * rows[:, 1]])
    return rows, targets.astype(np.float32)


def test_kernel_ridge_is_the_one_of_scikit_learn() -> None:
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    rows, targets = made_up_rows()
    ours = CANDIDATES["kernel_ridge"].fit(rows, targets, False)["width=2.0, ridge=0.1"]
    stretch = ours.arrays["stretch"].astype(np.float64)
    kernel = kernels.Matern(length_scale=1 / stretch, nu=1.5)
    gram = kernel(rows.astype(np.float64)) + 0.1 * np.eye(len(rows))
    new = np.random.default_rng(1).uniform(-1, 1, (20, 3)).astype(np.float32)
    expected = kernel(new.astype(np.float64), rows.astype(np.float64)) @ np.linalg.solve(
        gram, targets
    )
    np.testing.assert_allclose(ours.predict(new), expected, atol=1e-3)
    assert stretch[2] < 0.6 * stretch[0], "a column that does not matter is stretched less"


@pytest.mark.parametrize(
    ("name", "value"),
    [("weights", None), ("weights", np.zeros(5)), ("points", np.zeros((5, 2))),
     ("stretch", np.ones(2))],
)  # fmt: skip
def test_a_kernel_whose_arrays_do_not_fit_is_refused(name: str, value: Any) -> None:
    arrays = {"stretch": np.ones(3), "points": np.zeros((5, 3)), "weights": np.zeros((5, 2))}
    Kernel(arrays)
    arrays.pop(name)
    with pytest.raises(InvalidArgumentError, match=r"kernel"):
        Kernel(arrays if value is None else {**arrays, name: value})


def test_boosted_trees_are_a_sum_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = pytest.importorskip("sklearn.tree")
    rows, targets = made_up_rows()
    monkeypatch.setattr("fedhpo_gym.fitting.candidates.BOOSTED_SHARE", 1.0)
    monkeypatch.setattr("fedhpo_gym.fitting.candidates.BOOSTED_TREES", 12)
    forest = CANDIDATES["boosted_trees"].fit(rows, targets, False)[""]
    total = np.zeros(targets.shape)
    for _ in range(12):
        one = tree.DecisionTreeRegressor(max_depth=5, random_state=0)
        total += 0.1 * one.fit(rows, targets - total).predict(rows)
    np.testing.assert_allclose(forest.predict(rows), total, atol=2e-3)


def test_what_suits_few_courses_is_better_on_few_smooth_courses(surrogate: Surrogate) -> None:
    found = surrogate.card["comparison"]["candidates"]
    errors = {
        name: result["by_configuration"]["test"]["log_val_loss"]["mae"]
        for name, result in found.items()
    }
    assert errors["kernel_ridge"] < errors["random_forest"]
    assert surrogate.card["model"]["kind"] in KINDS
