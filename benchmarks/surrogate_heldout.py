"""A surrogate fitted on the first courses of a stored sample, against the courses after them.

Courses of a sample are one endless sequence, so the first n are a sample by themselves. The suite's
own recipe is fitted on these, and asked for what the others were trained to. Nothing of the others
is seen by the fit, not even which kind of model to take.

    python benchmarks/surrogate_heldout.py FedHPO-CNN-FEMNIST-v1 --first 120
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fitting.fit import fit_surrogate
from fedhpo_gym.fitting.sources import FittingSample
from fedhpo_gym.fitting.validate import kendall_tau
from fedhpo_gym.surrogates import open_surrogate
from fedhpo_gym.tables import Sample, open_sample
from fedhpo_gym.tables.sample import write_sample
from fedhpo_gym.tasks import get_task

HEADER = (
    "round", "courses", "accuracy: mean error", "median", "sd of courses", "log loss: mean error",
    "tau",
)  # fmt: skip
Floats = NDArray[np.float64]


def write_first(sample: Sample, count: int, folder: Path) -> None:
    """Write the first courses of a sample as a sample of its own."""
    content = {**sample.card, "courses": count}
    arrays = {name: sample.codes(name)[:count] for name in sample.names}
    write_sample(folder, content, arrays)


def truths(sample: Sample) -> Floats:
    """Return (courses, rounds, 2) validation accuracy and log loss, NaN where not trained."""
    accuracy = sample.objective("val", "accuracy")
    return np.stack([accuracy, np.log(sample.objective("val", "loss"))], axis=2)


def claims(name: str, sample: Sample) -> Floats:
    """Return the same of a surrogate."""
    surrogate = open_surrogate(name)
    rounds = np.array(sample.rounds)
    rates, seeds = sample.codes("client_sample_rate"), sample.codes("seed")
    said = []
    for configuration, rate, seed in zip(sample.configurations(), rates, seeds, strict=True):
        query: dict[str, Any] = {**configuration, "client_sample_rate": float(rate)}
        columns = {key: np.full(len(rounds), value) for key, value in query.items()}
        found = surrogate.look_up({**columns, "round": rounds}, (sample.seeds[int(seed)],))
        said.append([found.mean("val", "accuracy"), np.log(found.mean("val", "loss"))])
    return np.moveaxis(np.array(said), 1, 2)


def line(label: str, truth: Floats, said: Floats) -> list[str]:
    """Return one line of the report; both are (courses, 2)."""
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


def lines(sample: Sample, truth: Floats, said: Floats) -> list[list[str]]:
    """Return a line for every round, for all of them, and for the last of each course."""
    trained = ~np.isnan(truth[..., 0])
    found = [
        line(str(round_), truth[trained[:, at], at], said[trained[:, at], at])
        for at, round_ in enumerate(sample.rounds)
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
    losses = (each[course, last, 1] for each in (truth, said))
    return kendall_tau(*losses, last)


def sharing(sample: Sample, first: int) -> int:
    """Return how many of the later courses share a block with one of the first."""
    rows = FittingSample(sample).rows(len(sample), np.random.default_rng(0))  # all: nothing drawn
    blocks = rows.configuration
    return int(np.isin(blocks[first:], blocks[:first]).sum())


def main(argv: Sequence[str] | None = None) -> str:
    """Fit, compare, print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("id", help="an environment id with a stored sample")
    parser.add_argument("--first", type=int, default=120, help="courses of the fit (120)")
    options: argparse.Namespace = parser.parse_args(argv)
    load = measuring.load_average()
    sample = open_sample(get_task(options.id).identity)
    with tempfile.TemporaryDirectory() as folder:
        write_first(sample, options.first, Path(folder))
        os.environ["FEDHPO_GYM_TABLES"] = folder
        fit_surrogate(sample.name, Path(folder), keep=True)
        said = claims(sample.name, sample)
    rest = slice(options.first, None)
    truth = truths(sample)
    rows = lines(sample, truth[rest], said[rest])
    same, shared = within_ends(truth[rest], said[rest]), sharing(sample, options.first)
    text = (
        f"{sample.name}: fitted on the first {options.first} of {len(sample)} courses, asked for "
        "the others. Mean and median absolute errors over courses; tau is Kendall's, of the "
        "validation loss among the courses of a line. The last two lines mix rounds, which alone "
        f"tell losses apart; at the last round of each, tau is {same:.2f} among courses that end "
        f"at the same round. {shared} of the others share integers, client sample rate and seed, "
        "and so minibatches, with one of the first."
    )
    command = ["python", "benchmarks/surrogate_heldout.py", options.id, f"--first {options.first}"]
    return measuring.write_report(
        options.out, "Held-out courses", command, load, [text, measuring.table(HEADER, rows)]
    )


if __name__ == "__main__":
    main()
