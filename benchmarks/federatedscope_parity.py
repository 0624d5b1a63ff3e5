"""Does our engine learn what FederatedScope learns? Their curves on the same clients' samples.

Both train LR by FedAvg on one federation, and each of FederatedScope's courses starts from the
initial weights of one of ours. Reported per learning rate, for the validation loss weighted over
clients:

- full batches, 4 local epochs: nothing is random then, so the largest difference over courses and
  rounds is that of the arithmetic;
- minibatches of 64, one local epoch, drawn by each program for itself: how many of FederatedScope's
  values (rounds x seeds) lie between the smallest and the largest of our engine's seeds in the same
  round. If the two were one distribution, a share of (S - 1) / (S + 1) would, S being the number of
  our seeds; the rounds of a course are far from independent;
- the same courses: the mean difference of those that start alike, in the round where it is largest,
  and the same in standard errors. The largest of many rounds is above 1 by chance alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import measuring
import numpy as np
import peer
from measuring import number
from numpy.typing import NDArray

from fedhpo_gym.courses.training import task_federation
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.algorithms import get_algorithm
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import LogisticRegression, get_model
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.seeding import stream
from fedhpo_gym.tasks import Task, get_task

RATES = (0.1, 0.01)
FIRST_SEED = 100
HEADER = (
    "learning rate",
    "full batches: largest difference, nats",
    "minibatches: theirs inside our band",
    "expected",
    "largest mean difference, nats",
    "... in standard errors",
)


def courses(rate: float, count: int, batch_size: int = 64, epochs: int = 1) -> list[Course]:
    """Return one course of all clients per seed."""
    configuration = {
        "learning_rate": rate,
        "weight_decay": 0.001,
        "batch_size": batch_size,
        "step_size": epochs,
    }
    return [Course(configuration, 1.0, FIRST_SEED + index) for index in range(count)]


def full_batch_courses(federation: Federation, rate: float) -> list[Course]:
    """Return two courses whose every minibatch is all a client has: no draw matters."""
    return courses(rate, 2, int(federation.num_samples[:, 0].max()), 4)


def engine_curves(
    task: Task, federation: Federation, chosen: Sequence[Course], rounds: int
) -> NDArray[np.float64]:
    """Return our engine's (courses, rounds) weighted validation losses."""
    federations = {course.seed: replace(federation, seed=course.seed) for course in chosen}
    algorithm = get_algorithm(task.algorithm)
    batch = CourseBatch(federations, get_model(task.model), algorithm, chosen)
    losses = batch.advance(rounds).metrics[:, :, :, 1, 0].astype(np.float64)
    samples = federation.num_samples[:, 1]
    weighted: NDArray[np.float64] = losses @ (samples / samples.sum())
    return weighted


def initial_weights(federation: Federation, course: Course) -> NDArray[np.float32]:
    """Return the (classes, features + 1) weights our engine starts a course from."""
    model = LogisticRegression.for_federation(federation)
    return model.init(stream(course.seed, "init"))["weight"]


def compare(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> dict[str, float]:
    """Compare (seeds, rounds) curves of two programs; their seeds are the first of ours.

    Returns:
        `inside`: share of their values inside the band of ours; `expected`: what it would be if
        both were one distribution; `largest`: the largest mean difference of paired curves in
        nats; `standard_errors`: the same difference in standard errors.
    """
    low, high = ours.min(axis=0), ours.max(axis=0)
    paired = theirs - ours[: len(theirs)]
    mean = paired.mean(axis=0)
    errors = paired.std(axis=0, ddof=1) / np.sqrt(len(paired))
    worst = int(np.abs(mean).argmax())
    return {
        "inside": float(((low <= theirs) & (theirs <= high)).mean()),
        "expected": (len(ours) - 1) / (len(ours) + 1),
        "largest": float(mean[worst]),
        "standard_errors": float(abs(mean[worst]) / errors[worst]),
    }


def main(argv: Sequence[str] | None = None) -> str:
    """Run both, print the tables and write them to a file; without FederatedScope, say so."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--task", default="LR-CreditG-v0")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=40, help="seeds of our engine")
    parser.add_argument("--federatedscope-seeds", type=int, default=20)
    peer.add_arguments(parser)
    arguments = parser.parse_args(argv)
    if not arguments.federatedscope:
        print("skipped: needs --federatedscope PATH, FederatedScope's source tree")
        return ""
    load = measuring.load_average()
    task = get_task(arguments.task).variant(preprocessing="standardized")
    federation = task_federation(task, task.seeds[0])
    rounds, count = arguments.rounds, arguments.federatedscope_seeds
    rows, curves = [], []
    for rate in RATES:
        full = full_batch_courses(federation, rate)
        asked = [*full, *courses(rate, count)]
        theirs, versions = _federatedscope_curves(federation, asked, arguments)
        exact = engine_curves(task, federation, full, rounds)
        ours = engine_curves(task, federation, courses(rate, arguments.seeds), rounds)
        arithmetic = float(np.abs(exact - theirs[: len(full)]).max())
        rows.append(_row(rate, arithmetic, compare(ours, theirs[len(full) :])))
        curves.extend(_curve_rows(rate, ours, theirs[len(full) :]))
    sections = [
        f"Table {task.table_name}, the samples of seed {task.seeds[0]} for both; FedAvg, all "
        f"{federation.num_clients} clients, weight decay 0.001, {rounds} rounds; {arguments.seeds} "
        f"seeds of our engine, {count} of FederatedScope ({versions}).",
        measuring.table(HEADER, rows),
        "## Validation loss, minibatches of 64",
        measuring.table(
            ("learning rate, round", "ours: min", "mean", "max", "theirs: mean"), curves
        ),
    ]
    shown = f"--task {arguments.task} --rounds {rounds} --seeds {arguments.seeds}"
    shown += f" --federatedscope PATH --federatedscope-seeds {count}"
    command = ["python", "benchmarks/federatedscope_parity.py", shown]
    return measuring.write_report(
        arguments.out, "Parity with FederatedScope", command, load, sections
    )


def _federatedscope_curves(
    federation: Federation, chosen: Sequence[Course], arguments: argparse.Namespace
) -> tuple[NDArray[np.float64], str]:
    source, python = arguments.federatedscope, arguments.federatedscope_python
    initial = [initial_weights(federation, course) for course in chosen]
    answer = peer.run_courses(source, python, federation, chosen, arguments.rounds, initial)
    losses = np.array([course["val_loss"] for course in answer["courses"]])
    return losses, peer.describe(answer)


def _row(rate: float, arithmetic: float, found: dict[str, float]) -> list[str]:
    return [
        f"{rate:g}",
        number(arithmetic, 2),
        f"{found['inside']:.1%}",
        f"{found['expected']:.1%}",
        number(found["largest"], 2),
        number(found["standard_errors"], 2),
    ]


def _curve_rows(
    rate: float, ours: NDArray[np.float64], theirs: NDArray[np.float64]
) -> list[list[str]]:
    rounds = ours.shape[1]
    shown = sorted({1, max(1, rounds // 10), max(1, rounds // 2), rounds})
    rows = []
    for at in shown:
        column = ours[:, at - 1]
        values = (column.min(), column.mean(), column.max(), theirs[:, at - 1].mean())
        rows.append([f"{rate:g}, {at}", *(f"{value:.4f}" for value in values)])
    return rows


if __name__ == "__main__":
    main()
