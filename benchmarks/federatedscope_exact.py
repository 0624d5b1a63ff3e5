"""Where nothing is random, FederatedScope's courses behind the bridge are ours, up to rounding.

Logistic regression on full batches of all clients, from the same initial weights: no draw is left,
so a difference in what an algorithm does, in weights, weight decay or local epochs shows at once.
Reported per algorithm: the largest difference of any client's loss and accuracy over all rounds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import measuring
import numpy as np
from measuring import number
from numpy.typing import NDArray

from fedhpo_gym.backends.federatedscope.installation import VARIABLE, find
from fedhpo_gym.backends.federatedscope.process import Message, Peer
from fedhpo_gym.backends.federatedscope.running import CourseRequest, Curve, RemoteCourse
from fedhpo_gym.courses.handing import arrays_of
from fedhpo_gym.courses.training import make_batch, make_course, task_federation
from fedhpo_gym.fl.models import LogisticRegression
from fedhpo_gym.seeding import stream
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task, get_task

SEED = 1
LOCAL = {"learning_rate": 0.1, "weight_decay": 0.001, "step_size": 3}
ALGORITHMS: Mapping[str, Mapping[str, Value]] = {
    "fedavg": {},
    "fedopt": {"server_learning_rate": 0.5, "server_momentum": 0.5},
    "fedprox": {"mu": 0.5},
}
HEADER = ("algorithm", "validation loss at last", "largest difference of a loss", "of an accuracy")


@dataclass(frozen=True)
class WithInitial(CourseRequest):
    """A course that starts from weights in the file with its federation."""

    def message(self, number: int, peer: Peer) -> Message:
        """Return the request, with the initial weights of our engine."""
        federation = task_federation(self.task, self.seed)
        model = LogisticRegression.for_federation(federation)
        weights = model.init(stream(self.seed, "init"))["weight"]
        path = peer.folder / f"initial-{number}.npz"
        initial = {"weight": weights[:, :-1], "bias": weights[:, -1]}
        np.savez(path, **arrays_of(federation), **initial)
        names = {f"fc.{name}": name for name in initial}
        return {**super().message(number, peer), "data": str(path), "initial": names}


def theirs(peer: Peer, task: Task, values: Mapping[str, Value], rounds: int) -> NDArray[np.float32]:
    """Return (rounds, clients, splits, metrics) of FederatedScope's course."""
    every = range(1, rounds + 1)
    course = RemoteCourse(peer, WithInitial(task, values, 1.0, SEED, rounds, every), 600.0)
    curve = Curve(task_federation(task, SEED).num_samples)
    course.advance(rounds, curve.hear)
    return curve.at(every)


def ours(task: Task, values: Mapping[str, Value], rounds: int) -> NDArray[np.float32]:
    """Return the same of our engine's course."""
    batch = make_batch(task, [make_course(task, values, 1.0, SEED)])
    metrics: NDArray[np.float32] = batch.advance(rounds).metrics[0]
    return metrics


def main(argv: Sequence[str] | None = None) -> str:
    """Compare, print and write the table."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--task", default="LR-CreditG-v1")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--source", help="FederatedScope's source tree")
    parser.add_argument("--interpreter", help="Python that has its dependencies")
    arguments = parser.parse_args(argv)
    if not arguments.source and not os.environ.get(VARIABLE):
        print(f"skipped: needs --source PATH, FederatedScope's source tree, or {VARIABLE}")
        return ""
    load = measuring.load_average()
    peer = Peer(find(arguments.source, arguments.interpreter))
    rows = []
    for algorithm, added in ALGORITHMS.items():
        task = get_task(arguments.task).variant(algorithm=algorithm)
        samples = task_federation(task, SEED).num_samples
        values = {**LOCAL, "batch_size": int(samples[:, 0].max()), **added}
        one = ours(task, values, arguments.rounds)
        other = theirs(peer, task, values, arguments.rounds)
        gap = np.abs(one - other).max(axis=(0, 1, 2))
        last = float((one[-1, :, 1, 0] * samples[:, 1]).sum() / samples[:, 1].sum())
        rows.append([algorithm, f"{last:.4f}", number(float(gap[0]), 2), number(float(gap[1]), 2)])
    versions = ", ".join(f"{name} {version}" for name, version in peer.versions.items())
    peer.close()
    sections = [
        f"{arguments.task}, seed {SEED}, all clients, {arguments.rounds} rounds, learning rate "
        f"0.1, weight decay 0.001, 3 local steps ({versions}).",
        measuring.table(HEADER, rows),
    ]
    command = ["python", "benchmarks/federatedscope_exact.py", f"--rounds {arguments.rounds}"]
    title = "Courses without chance beside FederatedScope"
    return measuring.write_report(arguments.out, title, command, load, sections)


if __name__ == "__main__":
    main()
