"""Asynchronous against synchronous training under populations of devices.

`python docs/studies/async_study.py --out DIR` writes `DIR/async.png` and prints the tables of
`docs/studies/async.md`. It takes about a minute on an idle core, and needs no download.

Fifty clients hold scikit-learn's digits (LDA, alpha 0.5) and train a linear model; ten train
at a time. Every algorithm has the same clients, devices, minibatch size and virtual time, and its
own best of two learning rates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.analysis.plot import COLOURS, SETTINGS
from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation, make_user_federation
from fedhpo_gym.data.records import make_dataset
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import LogisticRegression
from fedhpo_gym.systems import ClientWork, CourseHistory, DeviceModel, JobClock, Work

CLIENTS, AT_ONCE, ALPHA = 50, 0.2, 0.5
SEEDS = (1, 2)
RATES = (1.0, 3.0)
SPREADS = (0.0, 0.6, 1.2)
SHOWN = 0.6
TARGET_ROUND = 30
"""Synchronous rounds whose loss is the target."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Contestant:
    """A way to train.

    Attributes:
        algorithm: its name.
        reports: that an aggregation waits for; 0: all of a cohort.
        rounds: aggregations that are computed.
        given: its hyperparameters.
    """

    algorithm: str
    reports: int
    rounds: int
    given: Mapping[str, float]


CONTESTANTS = {
    "FedAvg, synchronous": Contestant("fedavg", 0, 40, {}),
    "FedBuff, K = 10": Contestant(
        "fedbuff", 10, 100, {"buffer_size": 10, "server_learning_rate": 1.0}
    ),
    "FedBuff, K = 3": Contestant(
        "fedbuff", 3, 330, {"buffer_size": 3, "server_learning_rate": 1.0}
    ),
    "FedAsync": Contestant("fedasync", 1, 1000, {"mixing": 0.5, "staleness_exponent": 0.5}),
}


@dataclass(frozen=True)
class Curves:
    """What one contestant did with one learning rate.

    Attributes:
        loss: (seeds, evaluations) validation loss.
        seconds: (seeds, evaluations) virtual time.
        reports: (evaluations,) reports until then.
    """

    loss: Floats
    seconds: Floats
    reports: Floats

    def at(self, second: float) -> Floats:
        """Return (seeds,) losses at a time."""
        pairs = zip(self.seconds, self.loss, strict=True)
        return np.array([np.interp(second, times, loss) for times, loss in pairs])

    def reaching(self, target: float) -> Floats:
        """Return (seeds, 2) seconds and reports until a loss is reached; infinity if never."""
        found = np.full((len(self.loss), 2), np.inf)
        for row, (times, loss) in enumerate(zip(self.seconds, self.loss, strict=True)):
            where = np.flatnonzero(loss <= target)
            if len(where):
                found[row] = times[where[0]], self.reports[where[0]]
        return found


def federation(seed: int) -> Federation:
    """Return the digits, dealt to the clients."""
    digits = load_digits()
    rng = stream(seed, "clients of the study")
    users = np.empty(len(digits.target), np.int64)
    for label in range(10):
        rows = np.flatnonzero(digits.target == label)
        users[rows] = rng.choice(CLIENTS, len(rows), p=rng.dirichlet(np.full(CLIENTS, ALPHA)))
    data = make_dataset("digits", digits.data / 16.0, digits.target, 10, users)
    return make_user_federation(data, seed=seed)


def devices(spread: float) -> DeviceModel:
    """Return phones on which a sample takes 0.1 s in the median, and messages are small."""
    return DeviceModel(compute="samples", client_compute_s=0.1, compute_sigma=spread, seed=7)


def train(
    one: Contestant, spread: float, rates: Sequence[float], seeds: Sequence[int]
) -> dict[float, Curves]:
    """Return the curves of a contestant by learning rate."""
    federations = {seed: federation(seed) for seed in seeds}
    works = {seed: _work(data, one.reports) for seed, data in federations.items()}
    system = devices(spread)
    base = {"weight_decay": 0.0, "batch_size": 8.0, "step_size": 1.0, **one.given}
    courses = [
        Course(
            {**base, "learning_rate": rate},
            AT_ONCE,
            seed,
            JobClock(system, works[seed]) if one.reports else None,
        )
        for rate in rates
        for seed in seeds
    ]
    algorithm = get_algorithm(one.algorithm)
    batch = CourseBatch(
        federations, LogisticRegression, algorithm, courses, observe=True, local_metrics=False
    )
    every = max(one.rounds // 25, 1)
    curves = batch.advance(one.rounds, evaluated=range(every, one.rounds + 1, every))
    assert curves.feedback is not None  # noqa: S101 - it was asked for
    seconds = curves.feedback.seconds
    if not one.reports:
        seconds = np.array(
            [
                _waiting(system, works[course.seed], course.seed, sampled)
                for course, sampled in zip(courses, curves.feedback.sampled, strict=True)
            ]
        )
    times = seconds.cumsum(axis=1)[:, every - 1 :: every]
    counts = np.stack([federations[course.seed].num_samples[:, 1] for course in courses])
    loss = np.einsum("crn,cn->cr", curves.metrics[..., 1, 0], counts / counts.sum(1)[:, None])
    reports = curves.rounds * (one.reports or int(CLIENTS * AT_ONCE))
    number = len(seeds)
    return {
        rate: Curves(
            loss[i * number : (i + 1) * number], times[i * number : (i + 1) * number], reports
        )
        for i, rate in enumerate(rates)
    }


def _work(data: Federation, reports: int) -> Work:
    samples = data.num_samples[:, 0].astype(np.float64)
    own = ClientWork(np.ones(CLIENTS), None, samples)
    return Work.of_course(
        650, CLIENTS, Fidelity(1, AT_ONCE), samples=samples.max(), clients=own, reports=reports
    )


def _waiting(system: DeviceModel, work: Work, seed: int, sampled: NDArray[np.bool_]) -> list[float]:
    """Return the seconds of synchronous rounds, by those who took part."""
    times: list[float] = []
    for index, cohort in enumerate(sampled):
        happened = CourseHistory(seed, index, sum(times), cohort[None])
        one = Work(**{**vars(work), "happened": happened})
        times.append(system.cost(one).time_s)
    return times


def compare_prices() -> None:
    """Print what ten reports are expected to take, by how much devices differ."""
    rows = []
    for spread in SPREADS:
        prices = [
            np.mean([devices(spread).cost(_work(federation(seed), k)).time_s for seed in SEEDS])
            for k in (0, 10)
        ]
        cells = (f"{prices[0]:.2f} s", f"{prices[1]:.2f} s", f"{prices[0] / prices[1]:.2f}")
        rows.append((f"{spread:g}", *cells))
    heads = ["sd of ln k", "synchronous round of 10", "FedBuff, K = 10", "ratio"]
    print(markdown_table(heads, rows))


def report(spread: float, found: Mapping[str, Mapping[float, Curves]]) -> dict[str, Curves]:
    """Print the table of a population, and return each contestant's best curves."""
    names = list(found)
    best: dict[str, Curves] = {}
    until = min(
        curves.seconds[:, -1].min() for by_rate in found.values() for curves in by_rate.values()
    )
    rates = {}
    for name, by_rate in found.items():
        rates[name] = min(by_rate, key=lambda rate: float(np.median(by_rate[rate].at(until))))
        best[name] = by_rate[rates[name]]
    first = best[names[0]]
    place = int(np.searchsorted(first.reports, TARGET_ROUND * CLIENTS * AT_ONCE))
    target = float(np.median(first.loss[:, place]))
    print(f"\nspread of computation {spread:g}; target {target:.3f}; all have {until:,.0f} s\n")
    rows = []
    for name, curves in best.items():
        pace = np.median(curves.seconds[:, -1] / curves.reports[-1])
        seconds, reports = np.median(curves.reaching(target), axis=0)
        final = np.median(curves.at(until))
        cells = (f"{pace:.2f}", f"{seconds:,.0f}", f"{reports:,.0f}", f"{final:.3f}")
        rows.append((name, f"{rates[name]:g}", *cells))
    targets = ("s to target", "reports to target", "loss at the end")
    print(markdown_table(["", "learning rate", "s per report", *targets], rows))
    return best


def draw(best: Mapping[str, Curves], path: Path) -> None:
    """Draw loss over virtual time and over reports."""
    with mpl.rc_context({**SETTINGS, "font.size": 10}):
        figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=110)
        axes: Any = figure.subplots(1, 2, sharey=True)
        for colour, (name, curves) in zip(COLOURS, best.items(), strict=False):
            low, middle, high = np.quantile(curves.loss, (0.25, 0.5, 0.75), axis=0)
            seconds = np.median(curves.seconds, axis=0)
            for axis, at in zip(axes, (seconds, curves.reports), strict=True):
                axis.plot(at, middle, color=colour, label=name)
                axis.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
        ends = [float(np.median(curves.seconds[:, -1])) for curves in best.values()]
        axes[0].set_xlim(0, min(ends))
        axes[1].set_xlim(0, 1000)
        axes[0].set_xlabel("virtual seconds")
        axes[1].set_xlabel("reports that the server received")
        axes[0].set_ylabel("validation loss")
        axes[0].legend(frameon=False)
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_ylim(top=1.5)
        figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, print the tables and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the picture")
    parser.add_argument("--quick", action="store_true", help="one seed and one learning rate")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    rates, seeds = (RATES[1:], SEEDS[1:]) if options.quick else (RATES, SEEDS)
    compare_prices()
    found = {}
    for name, one in CONTESTANTS.items():
        found[name] = train(one, SHOWN, rates, seeds)
        print(f"{name} is trained", file=sys.stderr, flush=True)
    draw(report(SHOWN, found), options.out / "async.png")


if __name__ == "__main__":
    main()
