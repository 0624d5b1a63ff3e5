"""Surrogates against courses that no fit has seen: do they err as their cards claim?

Draws configurations, client sample rates and seeds that are in no table and no sample, trains them,
and asks the surrogate the same. Every surrogate gets the same processor time; at the default one
core-hour suffices for all. Finished courses are kept, and the same command resumes.

    python benchmarks/surrogates/surrogate_fresh.py --seconds 240 --only "GNN-*"
"""

from __future__ import annotations

import fnmatch
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.errors import MissingDataError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.files import write_text
from fedhpo_gym.fitting.validate import kendall_tau
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates import Surrogate, list_surrogates, open_surrogate
from fedhpo_gym.surrogates.outputs import LARGEST_LOSS
from fedhpo_gym.tasks import task_of

MOST_COURSES, FEWEST_TO_RANK = 40, 6
PARTS = Path("fresh_courses")
HEADER = (
    "surrogate", "format", "courses", "accuracy claimed", "observed",
    "log loss claimed", "observed", "a constant claimed", "tau claimed", "observed",
)  # fmt: skip
Floats = NDArray[np.float64]


def draw(surrogate: Surrogate, number: int) -> dict[str, Any]:
    """Return fresh course `number`: floats between the points of any grid, so nobody has it."""
    rng = stream(0, "surrogate_fresh", number, *map(ord, surrogate.name))
    task = task_of(surrogate.identity)
    configuration = task.space.sample(rng)
    rate = surrogate.fidelity_space["client_sample_rate"].decode(rng.uniform(-1.0, 1.0))
    named = task.fidelity_space["client_sample_rate"].values
    if named is not None:  # training knows no others
        rate = min(named, key=lambda value: abs(float(value) - float(rate)))
    seed = surrogate.seeds[number % len(surrogate.seeds)]
    return {"configuration": configuration, "client_sample_rate": rate, "seed": seed}


def rounds_of(surrogate: Surrogate) -> list[int]:
    """Return the stored rounds that a surrogate answers."""
    last = surrogate.fidelity_space["round"].high
    grid = task_of(surrogate.identity).stored_fidelity_space()["round"].grid
    return [int(rounds) for rounds in grid if rounds <= last]


def train(surrogate: Surrogate, number: int) -> dict[str, Any]:
    """Train a fresh course; return what it was and (rounds, 2) accuracy and log loss."""
    course = draw(surrogate, number)
    backend = Raw(task_of(surrogate.identity), course["seed"])
    values = []
    for rounds in rounds_of(surrogate):
        fidelity = Fidelity(rounds, course["client_sample_rate"])
        found = backend.evaluate(course["configuration"], fidelity)
        loss = min(found.mean("val", "loss"), LARGEST_LOSS)
        values.append([found.mean("val", "accuracy"), float(np.log(loss))])
    return {**course, "values": values}


def courses_of(
    surrogate: Surrogate, folder: Path, seconds: float, bar: Any
) -> Iterator[dict[str, Any]]:
    """Yield finished courses, and train others until the time is spent; the first is not cut."""
    spent = 0.0
    for number in range(MOST_COURSES):
        part = folder / surrogate.name / f"{number}.json"
        if part.exists():
            course = json.loads(part.read_text(encoding="utf-8"))
        elif spent >= seconds:
            return
        else:
            start = time.process_time()
            course = {**train(surrogate, number), "cpu_s": time.process_time() - start}
            part.parent.mkdir(parents=True, exist_ok=True)
            write_text(part, json.dumps(course) + "\n")
        spent += course["cpu_s"]
        bar.update(min(course["cpu_s"], max(seconds - bar.n % seconds, 0.0)))
        yield course


def claims(surrogate: Surrogate, course: dict[str, Any]) -> Floats:
    """Return what a surrogate says of a course: (rounds, 2) accuracies and log losses."""
    rounds = np.array(rounds_of(surrogate))
    settings = {**course["configuration"], "client_sample_rate": course["client_sample_rate"]}
    columns = {name: np.full(len(rounds), value) for name, value in settings.items()}
    found = surrogate.look_up({**columns, "round": rounds}, (course["seed"],))
    losses = np.minimum(np.log(found.mean("val", "loss")), np.log(LARGEST_LOSS))
    return np.column_stack([found.mean("val", "accuracy"), losses])


def row(surrogate: Surrogate, courses: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line of the report."""
    truth = np.array([course["values"] for course in courses])
    said = np.array([claims(surrogate, course) for course in courses])
    accuracy, loss = np.abs(truth - said).mean(axis=(0, 1))
    stated = surrogate.card["errors_of_the_stored_model"]
    constant = stated.get("yardstick", {}).get("log_val_loss")
    held_out = [stated["held_out"][measure]["mae"] for measure in ("val_accuracy", "log_val_loss")]
    tau = float("nan")
    if len(courses) >= FEWEST_TO_RANK:
        together = np.zeros(len(courses), np.int64)
        tau = kendall_tau(truth[:, -1, 1], said[:, -1, 1], together)
    return [
        surrogate.name,
        str(surrogate.format),
        str(len(courses)),
        f"{held_out[0]:.3f}",
        f"{accuracy:.3f}",
        f"{held_out[1]:.3f}",
        f"{loss:.3f}",
        "" if constant is None else f"{constant:.3f}",
        f"{stated['verdict']['kendall_tau']:.2f}" if "verdict" in stated else "",
        "" if np.isnan(tau) else f"{tau:.2f}",
    ]


def main(argv: Sequence[str] | None = None) -> str:
    """Train, compare, print the table and write it to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of surrogates")
    parser.add_argument("--seconds", type=float, default=3600.0, help="processor time in all")
    parser.add_argument("--parts", type=Path, default=PARTS, help="where courses are kept")
    options = parser.parse_args(argv)
    names = fnmatch.filter(list_surrogates(), options.only)
    if not names:
        parser.error(f"`--only` must match a surrogate on this machine, {options.only!r} does not")
    lines, each = [], options.seconds / len(names)
    bars = {"total": options.seconds, "bar_format": "{l_bar}{bar}| {n:.0f}/{total:.0f} s"}
    with tqdm(**bars) as bar:
        for position, name in enumerate(names):
            bar.set_description(name)
            surrogate = open_surrogate(name)
            try:
                courses = list(courses_of(surrogate, options.parts, each, bar))
                lines.append(row(surrogate, courses))
            except MissingDataError:
                lines.append([name, "", "no data here", *[""] * (len(HEADER) - 3)])
            bar.n = each * (position + 1)
    return measuring.write_report(
        options,
        "Fresh courses",
        "Mean absolute errors over courses and rounds. Claims are those of the cards: held-out "
        "errors by configuration, and Kendall's tau of the validation loss at the last round.",
        measuring.table(HEADER, lines),
    )


if __name__ == "__main__":
    measuring.run(main)
