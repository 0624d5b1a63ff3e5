"""Our learning curves beside those of real FederatedScope runs, recorded with the same settings.

The recorded runs trained on a draw of `make_classification(1000, 20)` whose seed and difficulty
are not recorded, partitioned by a generator we do not share. So the runs cannot agree point by
point; they must lie where our runs over many draws lie, at every round, in level and in shape.
"""

from __future__ import annotations

import ast
import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.data import Dataset  # noqa: E402
from fedhpo_gym.data.federation import make_federation  # noqa: E402
from fedhpo_gym.evaluation.records import Evaluation, Fidelity  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch  # noqa: E402
from fedhpo_gym.fl.models import get_model  # noqa: E402

ROUNDS = 30
KEYS = ("train_avg_loss", "val_avg_loss", "test_avg_loss", "train_acc", "val_acc", "test_acc")


def recorded(folder: Path) -> NDArray[np.float64]:
    """(rounds, keys) weighted averages of one recorded run."""
    rows = []
    for line in (folder / "eval_results.log").read_text(encoding="utf-8").splitlines():
        record = ast.literal_eval(line.replace("nan", "None"))
        if record["Role"] == "Server #" and record["Round"] != "Final":
            rows.append([record["Results_weighted_avg"][key] for key in KEYS])
    return np.array(rows[:ROUNDS])


@pytest.fixture(scope="module")
def ours() -> NDArray[np.float64]:
    """(runs, rounds, keys) of our engine: draws of the data, easy to hard."""
    runs = []
    for draw in range(36):
        informative = (2, 5, 10)[draw % 3]
        x, y = datasets.make_classification(1000, 20, n_informative=informative, random_state=draw)
        table = Dataset("made", x, y.astype(np.int64), 2, "")
        federations = {seed: make_federation(table, seed) for seed in (1,)}
        config = {"learning_rate": 0.1, "weight_decay": 0.0, "batch_size": 64, "step_size": 1}
        courses = [Course(config, 1.0, seed) for seed in federations]
        batch = CourseBatch(federations, get_model("LR"), get_algorithm("fedavg"), courses)
        for curve, federation in zip(
            batch.advance(ROUNDS).metrics, federations.values(), strict=True
        ):
            weights = federation.num_samples / federation.num_samples.sum(axis=0)
            mean = np.einsum("rcsm,cs->rms", curve, weights)
            runs.append(np.concatenate([mean[:, 0], mean[:, 1]], axis=1))
    return np.array(runs)


def progress(loss: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of the way from the first to the last loss is left, (..., rounds)."""
    return (loss - loss[..., -1:]) / (loss[..., :1] - loss[..., -1:])


@pytest.mark.parametrize("run", ["a653_lr", "head_lr"])
def test_recorded_runs_lie_where_ours_lie(
    shared_datasets: Path, ours: NDArray[np.float64], run: str
) -> None:
    theirs = recorded(shared_datasets / "fs_runs" / run)
    low, high = ours.min(axis=0), ours.max(axis=0)
    outside = [
        (int(r) + 1, KEYS[k], theirs[r, k], low[r, k], high[r, k])
        for r, k in np.argwhere((theirs < low) | (theirs > high))
    ]
    assert not outside
    left, spread, slack = progress(theirs[:, 0]), progress(ours[:, :, 0]), 0.02
    assert (spread.min(axis=0) - slack <= left).all(), "it converges as fast as ours"
    assert (left <= spread.max(axis=0) + slack).all(), "and no faster"


def test_means_are_weighted_as_federatedscope_weighs_them(shared_datasets: Path) -> None:
    folder = shared_datasets / "fs_runs" / "a653_lr"
    by_round: dict[int, list[dict[str, float]]] = {}
    with gzip.open(folder / "eval_results.raw.gz", "rt", encoding="utf-8") as handle:
        for line in handle:
            record = ast.literal_eval(line)
            result = record.get("Results_raw", {})
            if str(record["Role"]).startswith("Client") and "val_avg_loss" in result:
                by_round.setdefault(record["Round"], []).append(result)
    theirs = recorded(folder)
    for index, clients in list(by_round.items())[:ROUNDS]:
        split = ("train", "val", "test")
        best = [[[c[f"{s}_avg_loss"], c[f"{s}_acc"], c[f"{s}_f1"]] for s in split] for c in clients]
        evaluation = Evaluation(
            best=np.array([best]),
            current=None,
            num_samples=np.array([[[c[f"{s}_total"] for s in split] for c in clients]]),
            best_round=np.array([index]),
            diverged=np.array([False]),
            seeds=(1,),
            fidelity=Fidelity(index, 1.0),
        )
        assert evaluation.mean("val", "loss") == pytest.approx(theirs[index - 1, 1])
        assert evaluation.mean("test", "accuracy") == pytest.approx(theirs[index - 1, 5])
    assert sorted(by_round)[:3] == [1, 2, 3]
