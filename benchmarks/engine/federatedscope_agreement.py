"""Does FederatedScope train what our engine trains? Its courses beside ours, on equal federations.

- *Without chance*: logistic regression on full batches of all clients, from equal initial weights.
  Nothing is drawn, so every difference of a client's loss or accuracy is rounding.
- *With chance*: each program draws minibatches, cohorts and, unless it is given ours, initial
  weights for itself. Compared is the validation loss of the last round, in pairs of equal seeds.
- *Time*: real seconds of a trial of one seed, in programs that have been started.

Initial weights reach FederatedScope as a checkpoint, by its own setting `federate.restore_from`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
import peer
import torch
from measuring import number
from numpy.typing import NDArray

from fedhpo_gym.backends.federatedscope.backend import CourseRequest, Curve, RemoteCourse
from fedhpo_gym.backends.federatedscope.installation import find_installation
from fedhpo_gym.backends.federatedscope.process import Message, Peer
from fedhpo_gym.backends.training import make_batch, make_course, task_federation
from fedhpo_gym.core.errors import MissingDataError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.fl.models.logistic import LogisticRegression
from fedhpo_gym.tasks import Task, get_task

ALGORITHMS: Mapping[str, Mapping[str, float]] = {
    "fedavg": {},
    "fedopt": {"server_learning_rate": 0.5, "server_momentum": 0.5},
    "fedprox": {"mu": 0.1},
}
LINEAR = {"learning_rate": 0.5, "weight_decay": 1e-3, "batch_size": 32, "step_size": 2}
LAYERS = {**LINEAR, "learning_rate": 0.05, "model_depth": 1, "model_width": 64}
GRAPH = {"learning_rate": 0.25, "weight_decay": 5e-4, "dropout": 0.0, "step_size": 4}
IMAGES = {**GRAPH, "learning_rate": 0.05, "batch_size": 32, "step_size": 1}
CASES: Mapping[str, tuple[str, Mapping[str, float], int, float, int]] = {
    "LR": ("LR-BreastCancer-v1", LINEAR, 9, 0.6, 20),
    "LR-steep": ("LR-BreastCancer-v1", {**LINEAR, "learning_rate": 5.0}, 9, 1.0, 20),
    "LR-long": ("LR-CreditG-v1", LINEAR, 27, 0.6, 10),
    "MLP": ("MLP-CreditG-v1", LAYERS, 27, 1.0, 5),
    "GNN": ("GNN-Cora-v1", GRAPH, 19, 1.0, 4),
    "CNN": ("CNN-FEMNIST-v1", IMAGES, 3, 0.2, 1),
}
"""Problem, configuration, rounds, client sample rate, and seeds at most."""


@dataclass(frozen=True)
class EqualStart(CourseRequest):
    """A course that starts from the initial weights of our logistic regression."""

    def message(self, number: int, peer: Peer) -> Message:
        """Return the request, with a checkpoint of these weights."""
        model = LogisticRegression.for_federation(task_federation(self.task, self.seed))
        weight = torch.from_numpy(model.init(stream(self.seed, "init"))["weight"])
        state = {"fc.weight": weight[:, :-1].clone(), "fc.bias": weight[:, -1].clone()}
        path = peer.folder / f"initial-{number}.pt"
        torch.save({"cur_round": 0, "model": state}, path)
        request = super().message(number, peer)
        return {**request, "entries": {**request["entries"], "federate.restore_from": str(path)}}


@dataclass
class Pair:
    """The same course by both: (clients, splits, metrics) after some rounds, and seconds."""

    ours: NDArray[np.float32]
    theirs: NDArray[np.float32]
    samples: NDArray[np.int64]
    seconds: tuple[float, float]

    @classmethod
    def train(cls, process: Peer, request: CourseRequest) -> Pair:
        """Train a course twice: (rounds, clients, splits, metrics) each."""
        task, seed, rounds = request.task, request.seed, request.rounds
        assert request.evaluated is not None  # noqa: S101 - every request here names its rounds
        curve, start = Curve(task_federation(task, seed).num_samples), time.perf_counter()
        RemoteCourse(process, request, 600.0).advance(rounds, curve.hear)
        between = time.perf_counter()
        course = make_course(task, request.configuration, request.client_sample_rate, seed)
        ours = make_batch(task, [course]).advance(rounds, evaluated=request.evaluated).metrics[0]
        seconds = between - start, time.perf_counter() - between
        return cls(ours, curve.at(request.evaluated), curve.num_samples, seconds)

    def loss_gap(self) -> float:
        """Return theirs minus ours of the validation loss after the last round."""
        gap = self.theirs[-1, :, 1, 0].astype(float) - self.ours[-1, :, 1, 0]
        return float(np.average(gap, weights=self.samples[:, 1]))


def variants(name: str) -> list[tuple[str, Task, Mapping[str, float]]]:
    """Return a task with each algorithm: its name, the task and the algorithm's settings."""
    task = get_task(name).variant(precision="float32")
    return [(a, task.variant(algorithm=a), added) for a, added in ALGORITHMS.items()]


def exact(process: Peer, rounds: int) -> str:
    """Return the table of courses without chance: full batches of all clients."""
    rows, every = [], range(1, rounds + 1)
    for algorithm, task, added in variants("LR-CreditG-v1"):
        largest = int(task_federation(task, 1).num_samples[:, 0].max())
        values = {**LINEAR, **added, "batch_size": largest, "step_size": 3}
        pair = Pair.train(process, EqualStart(task, values, 1.0, 1, rounds, every))
        loss, accuracy = np.abs(pair.ours - pair.theirs).max(axis=(0, 1, 2))[:2].tolist()
        rows.append([algorithm, number(loss, 2), number(accuracy, 2)])
    head = ("algorithm", "largest difference of a loss, nats", "of an accuracy")
    return measuring.table(head, rows)


def with_chance(process: Peer, case: str, most: int) -> tuple[list[list[str]], list[str]]:
    """Return the lines of a case: gaps by how courses start, and seconds of a trial."""
    name, values, rounds, rate, seeds = CASES[case]
    starts = {"equal": EqualStart} if name.startswith("LR-") else {}
    rows, clock = [], np.empty(0)
    for start, kind in {**starts, "own": CourseRequest}.items():
        row = [f"{name}, learning rate {values['learning_rate']:g}, {rounds} rounds, {start}"]
        for _, task, added in variants(name):
            asked = task, {**values, **added}, rate
            pairs = [
                Pair.train(process, kind(*asked, seed, rounds, [rounds]))
                for seed in range(1, min(seeds, most) + 1)
            ]
            gaps = np.array([pair.loss_gap() for pair in pairs])
            error = gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else np.nan
            row.append(f"{gaps.mean():+.4f} ({error:.4f})")
            # The first course of a kind also compiles, or reads data, in either program.
            clock = np.median([pair.seconds for pair in pairs[1:] or pairs], axis=0)
        rows.append([*row, str(len(pairs))])
    theirs, ours = clock.tolist()
    return rows, [name, str(rounds), number(theirs), number(ours), number(theirs / ours, 2)]


def main(argv: Sequence[str] | None = None) -> str:
    """Train, compare, print and write the tables."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", type=int, default=20, help="seeds of a problem at most")
    parser.add_argument("--exact-rounds", type=int, default=30)
    peer.add_arguments(parser)
    options = parser.parse_args(argv)
    if not options.federatedscope:
        raise MissingDataError("agreement is measured with --federatedscope PATH only")
    process = Peer(
        find_installation(str(options.federatedscope), str(options.federatedscope_python))
    )
    try:
        without = exact(process, options.exact_rounds)
        cases = [with_chance(process, case, options.seeds) for case in options.cases]
    finally:
        process.close()
    versions = ", ".join(f"{key} {value}" for key, value in process.versions.items())
    return measuring.write_report(
        options,
        "Agreement with FederatedScope",
        f"{versions}.",
        f"Without chance: LR-CreditG-v1, seed 1, full batches of all clients, equal initial "
        f"weights, {options.exact_rounds} rounds of 3 local epochs; of all clients and splits.",
        without,
        "With chance: validation loss of the last round in nats, theirs minus ours; mean over "
        "seeds, and its standard error in brackets. Initial weights are equal, or each "
        "program's own.",
        measuring.table(
            ("problem, and initial weights", *ALGORITHMS, "seeds"),
            [row for rows, _ in cases for row in rows],
        ),
        "Real seconds of a trial of one seed with FedProx, evaluated once; medians over all seeds "
        "but the first. Both programs have been started.",
        measuring.table(
            ("problem", "rounds", "theirs, s", "ours, s", "times"), [times for _, times in cases]
        ),
    )


if __name__ == "__main__":
    measuring.run(main)
