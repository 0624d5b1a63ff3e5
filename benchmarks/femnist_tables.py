"""The tables of `femnist_runs.py`: both programs' curves, and how far they are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import measuring
import numpy as np
from femnist_courses import VARIANTS, Curve
from femnist_logs import Log, Settings, weighted
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import SPLITS

VAL, TEST = 1, 2
COLUMNS = ("theirs", "ours: min", "mean", "max")


@dataclass(frozen=True, eq=False)
class Pair:
    """One run of theirs and our courses with its settings.

    Attributes:
        settings: what both have in common.
        log: of theirs.
        courses: ours by variant, one curve per choice of writers.
        chosen: (choices, splits) samples of our writers.
    """

    settings: Settings
    log: Log
    courses: Mapping[str, Sequence[Curve]]
    chosen: NDArray[np.int64]

    @property
    def name(self) -> str:
        """Algorithm and number of clients."""
        return f"{self.settings.algorithm}, {self.settings.num_clients} clients"

    @property
    def theirs(self) -> NDArray[np.float64]:
        """(rounds, splits, 2) weighted loss and accuracy."""
        return weighted(self.log.metrics, self.log.samples)

    @property
    def rounds(self) -> list[int]:
        """Rounds after which a course of ours was evaluated."""
        return sorted({index for curves in self.courses.values() for c in curves for index in c})


def held_out(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average (.., splits, 2) over validation and test: (.., 2)."""
    mean: NDArray[np.float64] = values[..., (VAL, TEST), :].mean(axis=-2)
    return mean


def settings_table(pairs: Sequence[Pair]) -> str:
    """Return what the configuration files say, and the samples of both federations."""
    rows = []
    for pair in pairs:
        said, chosen = pair.settings, pair.chosen.mean(axis=0)
        values = (
            len(pair.theirs),
            said.learning_rate,
            said.batch_size,
            said.local_epochs,
            said.mu,
            said.weight_decay,
            said.dropout,
            said.max_norm,
            said.hidden_width,
            said.mean,
            said.std,
            *pair.log.samples.sum(axis=0),
            *chosen,
        )
        rows.append([pair.name, *(measuring.number(float(value), 5) for value in values)])
    header = ("run", "rounds logged", "learning rate", "batch", "local epochs", "mu")
    header += ("weight decay", "dropout", "largest gradient norm", "hidden width")
    header += ("mean pixel", "deviation")
    header += tuple(f"{who}: {split}" for who in ("theirs", "ours") for split in SPLITS)
    return measuring.table(header, rows)


def curve_table(pair: Pair, variant: str) -> str:
    """Return both programs' curves: of ours, the least, mean and largest of the choices."""
    curves, theirs = pair.courses[variant], pair.theirs
    rows = []
    for index in sorted(set().union(*curves)):
        at = [curve[index] for curve in curves if index in curve]
        for split, name in ((VAL, "val"), (TEST, "test")):
            row = [f"{index}, {name}", str(len(at))]
            for metric in (0, 1):
                mine = [values[split, metric] for values in at]
                shown = (theirs[index - 1, split, metric], min(mine), np.mean(mine), max(mine))
                row += [f"{value:.3f}" for value in shown]
            rows.append(row)
    of = [f"{metric}: {who}" for metric in ("loss", "accuracy") for who in COLUMNS]
    return measuring.table(("round, split", "choices of writers", *of), rows)


def variant_table(pair: Pair) -> str:
    """Return the means of validation and test of theirs and of every course of ours."""
    rows = [["theirs", *_cells(dict(enumerate(pair.theirs, 1)), pair.rounds)]]
    for name, curves in pair.courses.items():
        for choice, curve in enumerate(curves, 1):
            writers = "" if choice == 1 else f", writers of choice {choice}"
            rows.append([f"{name}: {VARIANTS[name].text}{writers}", *_cells(curve, pair.rounds)])
    header = [f"{metric}, round {r}" for metric in ("loss", "accuracy") for r in pair.rounds]
    return measuring.table(("mean of validation and test", *header), rows)


def _cells(curve: Curve, rounds: Sequence[int]) -> list[str]:
    return [
        f"{held_out(curve[index])[metric]:.3f}" if index in curve else ""
        for metric in (0, 1)
        for index in rounds
    ]


def lag_table(pair: Pair) -> str:
    """Return when theirs first had the losses ours had, and both accuracies then.

    Means of validation and test, of the first choice of writers. A cell is empty where their log
    ends at a greater loss.
    """
    theirs, rows = held_out(pair.theirs), []
    for name, (curve, *_) in pair.courses.items():
        for index, values in curve.items():
            loss, accuracy = held_out(values)
            reached = np.flatnonzero(theirs[:, 0] <= loss)
            row = [f"{name}, round {index}", f"{loss:.3f}", f"{loss - theirs[index - 1, 0]:+.3f}"]
            if len(reached):
                then = theirs[reached[0], 1]
                row += [str(reached[0] + 1), f"{accuracy:.3f}", f"{then:.3f}"]
                row.append(f"{accuracy - then:+.3f}")
            rows.append(row + [""] * (7 - len(row)))
    header = ("ours", "loss", "minus theirs", "their first round of that loss", "our accuracy")
    return measuring.table((*header, "theirs at equal loss", "difference"), rows)


def shared_clients(one: Log, other: Log) -> int:
    """Return how many clients both runs begin with alike, by their samples of every split."""
    count = min(len(one.samples), len(other.samples))
    differ = np.flatnonzero((one.samples[:count] != other.samples[:count]).any(axis=1))
    return int(differ[0]) if len(differ) else count


def logs_table(one: Pair, other: Pair, shown: Sequence[int]) -> str:
    """Return how far apart two of their logs are on the clients they share."""
    count = shared_clients(one.log, other.log)
    both = [
        held_out(weighted(log.metrics[:, :count], log.samples[:count]))
        for log in (one.log, other.log)
    ]
    rows = []
    for index in (r for r in shown if r <= min(map(len, both))):
        (first, second), (right, too) = np.transpose([curve[index - 1] for curve in both])
        differences = (f"{second - first:+.3f}", f"{too - right:+.3f}")
        losses, accuracies = (f"{first:.3f}", f"{second:.3f}"), (f"{right:.3f}", f"{too:.3f}")
        rows.append([str(index), *losses, differences[0], *accuracies, differences[1]])
    names = (one.settings.algorithm, other.settings.algorithm, "difference")
    header = [f"{metric}: {name}" for metric in ("loss", "accuracy") for name in names]
    return measuring.table(("round", *header), rows)
