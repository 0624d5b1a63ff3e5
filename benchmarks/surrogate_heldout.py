"""Surrogates of samples against courses of the same sequence that their fit has not seen.

Courses of a sample are one endless sequence, so the first n are a sample by themselves. The suite's
own recipe is fitted on these, and asked for what the others were trained to. Nothing of the others
is seen by the fit, not even which kind of model to take.

    python benchmarks/surrogate_heldout.py FedHPO-CNN-FEMNIST-v1 --first 120

With `--courses`, the stored surrogate itself is asked for courses that were trained after it was
fitted: those of a file, or those that a larger sample in a folder has beyond the stored one, which
are then written to the file beside the report, `results/surrogate_later.md`.

    python benchmarks/surrogate_heldout.py FedHPO-CNN-FEMNIST-v1 --courses FILE_OR_FOLDER
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import measuring
import numpy as np
from heldout_courses import HEADER, Courses, Floats, lines, within_ends
from numpy.typing import NDArray

from fedhpo_gym.fitting.fit import fit_surrogate
from fedhpo_gym.fitting.sources import FittingSample
from fedhpo_gym.fitting.validate import kendall_tau
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates import open_surrogate
from fedhpo_gym.tables import Sample, open_sample
from fedhpo_gym.tables.sample import write_sample
from fedhpo_gym.tasks import get_task

RESAMPLES = 2000
LATER = "surrogate_later"
SHARED = ("client_sample_rate", "seed")
METHOD = (
    "Mean and median absolute errors over courses; tau is Kendall's, of the validation loss among "
    "the courses of a line."
)


def write_first(sample: Sample, count: int, folder: Path) -> None:
    """Write the first courses of a sample as a sample of its own."""
    content = {**sample.card, "courses": count}
    arrays = {name: sample.codes(name)[:count] for name in sample.names}
    write_sample(folder, content, arrays)


def sharing(sample: Sample, first: int) -> int:
    """Return how many of the later courses share a block with one of the first."""
    rows = FittingSample(sample).rows(len(sample), np.random.default_rng(0))  # all: nothing drawn
    blocks = rows.configuration
    return int(np.isin(blocks[first:], blocks[:first]).sum())


def fitted_again(sample: Sample, first: int) -> tuple[str, list[list[str]]]:
    """Return text and lines of a surrogate that is fitted on the first courses."""
    with tempfile.TemporaryDirectory() as folder:
        write_first(sample, first, Path(folder))
        os.environ["FEDHPO_GYM_TABLES"] = folder
        fit_surrogate(sample.name, Path(folder), keep=True)
        surrogate = open_surrogate(sample.name)
    courses = Courses.of(sample).take(np.arange(first, len(sample)))
    said = courses.claims(surrogate)
    same = within_ends(courses.truth, said)
    text = (
        f"{sample.name}: fitted on the first {first} of {len(sample)} courses, asked for the "
        f"others. {METHOD} The last two lines mix rounds, which alone tell losses apart; at the "
        f"last round of each, tau is {same:.2f} among courses that end at the same round. "
        f"{sharing(sample, first)} of the others share integers, client sample rate and seed, and "
        "so minibatches, with one of the first."
    )
    return text, lines(courses, said)


def later(path: Path, stored: Sample) -> Courses:
    """Return courses that are not in the stored sample, of a file or of a folder's sample."""
    if path.is_file():
        return Courses.read(path)
    found = Courses.of(Sample(path / f"{stored.name}.sample.json"))
    return found.take(np.flatnonzero(~np.isin(found.numbers, stored.codes("point"))))


def tau_error(truth: Floats, said: Floats) -> float:
    """Return the standard error of tau over draws of courses; both are (courses,) losses."""
    rng = stream(0, "surrogate_later")
    drawn = rng.integers(0, len(truth), (RESAMPLES, len(truth)))
    together = np.zeros(len(truth), np.int64)
    return float(np.std([kendall_tau(truth[own], said[own], together) for own in drawn]))


def reached_end(courses: Courses) -> NDArray[np.bool_]:
    """Return (courses,) which were trained to the last round."""
    return ~np.isnan(courses.truth[:, -1, 0])


def work(courses: Courses) -> float:
    """Return the mean over courses to the last round of client sample rate times local epochs."""
    done = courses.columns["client_sample_rate"] * courses.columns["step_size"]
    return float(done[reached_end(courses)].mean())


def of_rates(courses: Courses, said: Floats, stored: Courses) -> str:
    """Return errors at the last round by client sample rate, beside how many the fit had there."""
    rates, known = (own.columns["client_sample_rate"] for own in (courses, stored))
    fitted = known[reached_end(stored)]
    rows = []
    for rate in np.union1d(rates, fitted):
        own = rates == rate
        error = np.abs(courses.truth[own, -1] - said[own, -1])
        mean = [f"{each:.4f}" for each in error.mean(axis=0)] if own.any() else ["", ""]
        rows.append([f"{rate:g}", str((fitted == rate).sum()), str(own.sum()), *mean])
    return measuring.table(
        ("client sample rate", "courses of the fit", "courses", "accuracy", "log loss"), rows
    )


def repeated(courses: Courses, stored: Sample) -> int:
    """Return how many courses share minibatches with a stored one: integers, rate and seed."""
    names = [d.name for d in stored.space.dimensions if d.kind == "int"]
    keys = [
        list(zip(*(own.columns[name] for name in (*names, *SHARED)), strict=True))
        for own in (courses, Courses.of(stored))
    ]
    return sum(key in set(keys[1]) for key in keys[0])


def asked_of_stored(courses: Courses, stored: Sample) -> tuple[list[str], list[list[str]]]:
    """Return sections and lines of the stored surrogate, of courses of full length."""
    surrogate = open_surrogate(stored.name)
    said = courses.claims(surrogate)
    error = tau_error(courses.truth[:, -1, 1], said[:, -1, 1])
    text = (
        f"{stored.name}: the stored surrogate, fitted on {surrogate.card['num_configurations']} "
        f"courses, asked for {len(courses)} that were trained later. {METHOD} At round "
        f"{courses.rounds[-1]} its standard error is {error:.2f} (bootstrap over courses). "
        f"{repeated(courses, stored)} of them share integers, client sample rate and seed, and so "
        "minibatches, with one of the fit."
    )
    fitted = Courses.of(stored)
    end = (
        f"Mean errors at round {courses.rounds[-1]}, by client sample rate. These courses are no "
        f"random ones: a round of them is {work(courses) / work(fitted):.2f} of the work (client "
        "sample rate times local epochs) of those of the fit that reached this round."
    )
    return [text, end, of_rates(courses, said, fitted)], lines(courses, said)


def main(argv: Sequence[str] | None = None) -> str:
    """Ask a surrogate for courses it has not seen, print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("id", help="an environment id with a stored sample")
    parser.add_argument("--first", type=int, default=120, help="courses of the fit (120)")
    parser.add_argument("--courses", type=Path, help="ask the stored surrogate: a file or a folder")
    parser.set_defaults(out=None)
    options: argparse.Namespace = parser.parse_args(argv)
    name = "surrogate_heldout" if options.courses is None else LATER
    out = options.out or measuring.RESULTS / f"{name}.md"
    load = measuring.load_average()
    sample = open_sample(get_task(options.id).identity)
    command = ["python", "benchmarks/surrogate_heldout.py", options.id]
    if options.courses is None:
        text, rows = fitted_again(sample, options.first)
        command.append(f"--first {options.first}")
        sections = [text, measuring.table(HEADER, rows)]
    else:
        courses = later(options.courses, sample)
        if options.courses.is_dir():
            courses.write(out.with_suffix(".csv"))
        (text, *others), rows = asked_of_stored(courses, sample)
        command.append(f"--courses benchmarks/results/{LATER}.csv")
        sections = [text, measuring.table(HEADER, rows), *others]
    return measuring.write_report(out, "Held-out courses", command, load, sections)


if __name__ == "__main__":
    main()
