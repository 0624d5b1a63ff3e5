"""Does our CNN learn on FEMNIST what FederatedScope's learned? Its logs beside our courses.

`--runs` is a folder of FederatedScope's output folders with `config.yaml.gz` and
`eval_results.raw.gz`; those of `convnet2` are read, two in all: FedAvg with 20 clients and FedProx
with 30. Ours train with the settings their files state, on as many writers of about as many samples
each. Which writers theirs were cannot be told, so ours are several random choices, and their
spread is shown. Losses and accuracies are means over clients, weighted by samples.

Each variant of ours takes over one more thing that FederatedScope does differently and the settings
do not say; see `femnist_courses.VARIANTS`.

A round of 20 clients takes about 7 s of one core, and theirs went for 200, so ours stop early; with
a GPU ask for `--device cuda --rounds 200 --short 200 --choices 3`. Every finished course is kept in
`--work`, and read from there the next time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import femnist_courses as ours
import measuring
import numpy as np
from femnist_courses import Curve, Variant
from femnist_logs import read_log, read_settings
from femnist_picture import draw
from femnist_tables import (
    Pair,
    curve_table,
    lag_table,
    logs_table,
    settings_table,
    shared_clients,
    variant_table,
)
from tqdm import tqdm

from fedhpo_gym.datasets import Dataset, load_dataset
from fedhpo_gym.errors import MissingDataError

REPOSITORY = Path(__file__).parents[1]
PICTURE = REPOSITORY / "docs" / "pictures" / "femnist_runs.svg"
WORK = REPOSITORY / "runs" / "femnist_runs"
PATTERN = "*convnet2*"
SHOWN = (1, 2, 5, 10, 20, 35, 50, 75, 100, 150, 182, 200)
PACKAGE = "package"


def evaluated(rounds: int) -> list[int]:
    """Return the rounds to evaluate of a course of so many."""
    return sorted({*(r for r in SHOWN if r < rounds), rounds})


def compare(
    folder: Path,
    dataset: Dataset,
    variants: Sequence[Variant],
    furthest: int,
    choices: int,
    arguments: argparse.Namespace,
) -> Pair:
    """Read a run and train ours, in some variants, some of them for the furthest rounds."""
    settings, log = read_settings(folder), read_log(folder)
    wanted = log.samples.sum(axis=1)
    courses: dict[str, list[Curve]] = {}
    chosen = []
    for choice in range(1, choices + 1):
        federation = ours.choose_federation(dataset, wanted, choice)
        different = ours.unmatched(settings, federation)
        if different:
            raise ValueError(f"{folder.name} cannot be compared: {', '.join(different)}")
        chosen.append(federation.num_samples.sum(axis=0))
        for variant in variants:
            rounds = min(length(variant, choice, furthest, arguments), len(log.metrics))
            if not rounds:
                continue
            name = ours.course_name(settings, variant, federation)
            with tqdm(total=rounds, unit="round", desc=name) as bar:
                curve = ours.cached(
                    arguments.work / f"{name}.json",
                    evaluated(rounds),
                    lambda v=variant, f=federation, r=rounds, b=bar: ours.train(
                        settings, v, f, evaluated(r), arguments.device, b.update
                    ),
                )
            courses.setdefault(variant.name, []).append(curve)
    return Pair(settings, log, courses, np.array(chosen))


def length(variant: Variant, choice: int, furthest: int, arguments: argparse.Namespace) -> int:
    """Return for how many rounds a course is trained; 0 for not at all.

    On the first choice of writers all variants are trained, the closest and the package furthest;
    on the others the closest alone.
    """
    if choice > 1:
        return int(arguments.short) if variant.name == arguments.closest else 0
    far = variant.name in (arguments.closest, PACKAGE)
    return furthest if far else int(arguments.short)


def main(argv: Sequence[str] | None = None) -> str:
    """Train ours, print the tables, write them to a file and draw the curves."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--runs", type=Path, help="folder of FederatedScope's output folders")
    furthest = "of the courses that go furthest; one number, or one per run"
    parser.add_argument("--rounds", type=int, default=[20, 5], nargs="+", help=furthest)
    parser.add_argument("--short", type=int, default=5, help="rounds of all other courses")
    choices = "choices of writers; one number, or one per run"
    parser.add_argument("--choices", type=int, default=[2, 1], nargs="+", help=choices)
    parser.add_argument("--closest", default="statistics", choices=ours.VARIANTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--work", type=Path, default=WORK, help="folder of finished courses")
    arguments = parser.parse_args(argv)
    found = sorted(arguments.runs.glob(PATTERN)) if arguments.runs else []
    if not found:
        print(f"skipped: needs --runs PATH, a folder that holds {PATTERN}")
        return ""
    load = measuring.load_average()
    try:
        dataset = load_dataset("FEMNIST")
    except MissingDataError as error:
        print(f"skipped: {error}")
        return ""
    closest = ours.VARIANTS[arguments.closest]
    pairs = []
    for index, folder in enumerate(found):
        # Variants on the first run only: they cost as much as everything else.
        variants = [closest] if index else list(ours.VARIANTS.values())
        own = [given[min(index, len(given) - 1)] for given in (arguments.rounds, arguments.choices)]
        pairs.append(compare(folder, dataset, variants, *own, arguments))
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(arguments.picture, {pair.name: (pair.theirs, pair.courses) for pair in pairs})
    sections = ["## Settings, and samples of both", settings_table(pairs)]
    for pair in pairs:
        sections += [f"## {pair.name}: {closest.name}", curve_table(pair, closest.name)]
        sections += [f"## {pair.name}: means of validation and test", variant_table(pair)]
        sections += [f"## {pair.name}: rounds to equal losses", lag_table(pair)]
    for one, other in pairwise(pairs):
        title = f"{one.settings.algorithm} beside {other.settings.algorithm}, both theirs"
        alike = shared_clients(one.log, other.log)
        text = f"Means of validation and test over the first {alike} clients, which have as many"
        text += " samples of every split in both logs."
        sections += [f"## {title}", text, logs_table(one, other, SHOWN)]
    shown = f"--runs PATH --rounds {' '.join(map(str, arguments.rounds))}"
    shown += f" --short {arguments.short} --choices {' '.join(map(str, arguments.choices))}"
    shown += f" --closest {arguments.closest}"
    command = ["python", "benchmarks/femnist_runs.py", shown]
    return measuring.write_report(
        arguments.out, "FederatedScope's FEMNIST runs", command, load, sections
    )


if __name__ == "__main__":
    main()
