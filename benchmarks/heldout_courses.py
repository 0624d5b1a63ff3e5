"""Courses that were trained, beside what a surrogate says of them: read, written, compared."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.files import write_text
from fedhpo_gym.fitting.validate import kendall_tau
from fedhpo_gym.surrogates import Surrogate
from fedhpo_gym.tables import Sample

HEADER = (
    "round", "courses", "accuracy: mean error", "median", "sd of courses", "log loss: mean error",
    "tau",
)  # fmt: skip
OF_COURSE = ("course", "client_sample_rate", "seed")
OF_ROUND = ("round", "val_accuracy", "val_loss")
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Courses:
    """Trained courses.

    Attributes:
        numbers: (courses,) places in the endless sequence that samples are the front of.
        columns: (courses,) client sample rates and seeds, and values of each hyperparameter.
        rounds: rounds after which they were evaluated.
        truth: (courses, rounds, 2) validation accuracy and log loss, NaN where not trained.
    """

    numbers: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]
    rounds: tuple[int, ...]
    truth: Floats

    def __len__(self) -> int:
        """Return how many courses there are."""
        return len(self.numbers)

    @classmethod
    def of(cls, sample: Sample) -> Courses:
        """Return the courses of a sample."""
        accuracy = sample.objective("val", "accuracy")
        truth = np.stack([accuracy, np.log(sample.objective("val", "loss"))], axis=2)
        settings = sample.configurations()
        columns = {name: np.array([one[name] for one in settings]) for name in settings[0]}
        columns["client_sample_rate"] = sample.codes("client_sample_rate")
        columns["seed"] = np.array(sample.seeds)[sample.codes("seed")]
        return cls(sample.codes("point").astype(np.int64), columns, sample.rounds, truth)

    @classmethod
    def read(cls, path: Path) -> Courses:
        """Return the courses of a file that `write` wrote."""
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        numbers = np.unique([int(row["course"]) for row in rows])
        rounds = np.unique([int(row["round"]) for row in rows])
        truth = np.full((len(numbers), len(rounds), 2), np.nan)
        names = [name for name in rows[0] if name not in (*OF_ROUND, "course")]
        columns = {name: np.zeros(len(numbers)) for name in names}
        for row in rows:
            place = int(np.searchsorted(numbers, int(row["course"])))
            at = int(np.searchsorted(rounds, int(row["round"])))
            truth[place, at] = float(row["val_accuracy"]), np.log(float(row["val_loss"]))
            for name in names:
                columns[name][place] = float(row[name])
        return cls(numbers, columns, tuple(rounds.tolist()), truth)

    def write(self, path: Path) -> None:
        """Write a line per course and round: settings, validation accuracy and loss."""
        text = io.StringIO()
        names = [name for name in self.columns if name not in OF_COURSE]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*OF_COURSE, *names, *OF_ROUND])
        for index, number in enumerate(self.numbers.tolist()):
            own = [self.columns[name][index].item() for name in (*OF_COURSE[1:], *names)]
            for at, round_ in enumerate(self.rounds):
                accuracy, loss = self.truth[index, at]
                if not np.isnan(accuracy):
                    writer.writerow(
                        [number, *own, round_, f"{accuracy:.6g}", f"{np.exp(loss):.6g}"]
                    )
        write_text(path, text.getvalue())

    def take(self, index: NDArray[np.int64]) -> Courses:
        """Return some of the courses."""
        columns = {name: values[index] for name, values in self.columns.items()}
        return Courses(self.numbers[index], columns, self.rounds, self.truth[index])

    def claims(self, surrogate: Surrogate) -> Floats:
        """Return what a surrogate says of the courses, in the form of `truth`, at all rounds."""
        said = []
        for index in range(len(self)):
            own = {name: values[index] for name, values in self.columns.items()}
            said.append(claimed(surrogate, own, int(own.pop("seed")), self.rounds))
        return np.array(said)


def claimed(
    surrogate: Surrogate, settings: Mapping[str, float], seed: int, rounds: Sequence[int]
) -> Floats:
    """Return what a surrogate says of a course: (rounds, 2) accuracies and log losses."""
    columns = {name: np.full(len(rounds), value) for name, value in settings.items()}
    found = surrogate.look_up({**columns, "round": np.array(rounds)}, (seed,))
    return np.column_stack([found.mean("val", "accuracy"), np.log(found.mean("val", "loss"))])


def line(label: str, truth: Floats, said: Floats) -> list[str]:
    """Return one line of a report; both are (courses, 2)."""
    error = np.abs(truth - said)
    together = np.zeros(len(truth), np.int64)
    tau = kendall_tau(truth[:, 1], said[:, 1], together)
    return [
        label,
        str(len(truth)),
        f"{error[:, 0].mean():.4f}",
        f"{np.median(error[:, 0]):.4f}",
        f"{truth[:, 0].std():.4f}",
        f"{error[:, 1].mean():.4f}",
        f"{tau:.2f}",
    ]


def lines(courses: Courses, said: Floats) -> list[list[str]]:
    """Return a line for every round, for all of them, and for the last of each course."""
    truth = courses.truth
    trained = ~np.isnan(truth[..., 0])
    found = [
        line(str(round_), truth[trained[:, at], at], said[trained[:, at], at])
        for at, round_ in enumerate(courses.rounds)
    ]
    last = trained.sum(axis=1) - 1
    course = np.arange(len(truth))
    found.append(line("all", truth[trained], said[trained]))
    found.append(line("last of each", truth[course, last], said[course, last]))
    return found


def within_ends(truth: Floats, said: Floats) -> float:
    """Return tau at the last round of each course, among courses that end at the same round."""
    last = (~np.isnan(truth[..., 0])).sum(axis=1) - 1
    course = np.arange(len(truth))
    return kendall_tau(truth[course, last, 1], said[course, last, 1], last)
