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
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import femnist_courses as ours
import measuring
import numpy as np
from femnist_courses import Curve, Variant
from femnist_logs import Settings, read_log, read_settings, weighted
from femnist_picture import draw
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.errors import MissingDataError
from fedhpo_gym.fl.datasets import Dataset, load_dataset
from fedhpo_gym.schema import SPLITS

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "femnist_runs.svg"
PATTERN = "*convnet2*"
SHOWN = (1, 2, 5, 10, 20, 35, 50, 75, 100, 150, 182, 200)
VAL, TEST = 1, 2
PACKAGE = "package"


@dataclass(frozen=True, eq=False)
class Pair:
    """One run of theirs and our courses with its settings.

    Attributes:
        settings: what both have in common.
        samples: (clients, splits) of theirs.
        theirs: (rounds, splits, 2) weighted loss and accuracy.
        courses: ours by variant, one curve per choice of writers.
        chosen: (choices, splits) samples of our writers.
    """

    settings: Settings
    samples: NDArray[np.int64]
    theirs: NDArray[np.float64]
    courses: Mapping[str, Sequence[Curve]]
    chosen: NDArray[np.int64]

    @property
    def name(self) -> str:
        """Algorithm and number of clients."""
        return f"{self.settings.algorithm}, {self.settings.num_clients} clients"


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
            name = f"{settings.algorithm}-{settings.num_clients}-{variant.name}-{choice}"
            with tqdm(total=rounds, unit="round", desc=name) as bar:
                curve = ours.cached(
                    arguments.work / f"{name}.json",
                    evaluated(rounds),
                    lambda v=variant, f=federation, r=rounds, b=bar: ours.train(
                        settings, v, f, evaluated(r), arguments.device, b.update
                    ),
                )
            courses.setdefault(variant.name, []).append(curve)
    theirs = weighted(log.metrics, log.samples)
    return Pair(settings, log.samples, theirs, courses, np.array(chosen))


def length(variant: Variant, choice: int, furthest: int, arguments: argparse.Namespace) -> int:
    """Return for how many rounds a course is trained; 0 for not at all.

    On the first choice of writers all variants are trained, the closest and the package furthest;
    on the others the closest alone.
    """
    if choice > 1:
        return int(arguments.short) if variant.name == arguments.closest else 0
    far = variant.name in (arguments.closest, PACKAGE)
    return furthest if far else int(arguments.short)


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
            *pair.samples.sum(axis=0),
            *chosen,
        )
        rows.append([pair.name, *(measuring.number(float(value), 5) for value in values)])
    header = ("run", "rounds logged", "learning rate", "batch", "local epochs", "mu")
    header += ("weight decay", "dropout", "largest gradient norm", "hidden width")
    header += tuple(f"{who}: {split}" for who in ("theirs", "ours") for split in SPLITS)
    return measuring.table(header, rows)


def curve_table(pair: Pair, variant: str) -> str:
    """Return both programs' curves: of ours, the least, mean and largest of the choices."""
    curves = pair.courses[variant]
    rows = []
    for index in sorted(set().union(*curves)):
        at = [curve[index] for curve in curves if index in curve]
        for split, name in ((VAL, "val"), (TEST, "test")):
            row = [f"{index}, {name}", str(len(at))]
            for metric in (0, 1):
                mine = [values[split, metric] for values in at]
                shown = (pair.theirs[index - 1, split, metric], min(mine), np.mean(mine), max(mine))
                row += [f"{value:.3f}" for value in shown]
            rows.append(row)
    of = [f"{metric}: {who}" for metric in ("loss", "accuracy") for who in COLUMNS]
    return measuring.table(("round, split", "choices of writers", *of), rows)


def variant_table(pair: Pair) -> str:
    """Return test losses and accuracies of theirs and of every variant of ours, first choice."""
    firsts = {name: curves[0] for name, curves in pair.courses.items()}
    rounds = sorted(set().union(*firsts.values()))
    rows = [["theirs", *_cells(dict(enumerate(pair.theirs, 1)), rounds)]]
    for name, curve in firsts.items():
        rows.append([f"{name}: {ours.VARIANTS[name].text}", *_cells(curve, rounds)])
    header = [f"{metric}, round {r}" for metric in ("test loss", "accuracy") for r in rounds]
    return measuring.table(("", *header), rows)


def _cells(curve: Curve, rounds: Sequence[int]) -> list[str]:
    return [
        f"{curve[index][TEST, metric]:.3f}" if index in curve else ""
        for metric in (0, 1)
        for index in rounds
    ]


COLUMNS = ("theirs", "ours: min", "mean", "max")


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
    default = Path(tempfile.gettempdir()) / "femnist_runs"
    parser.add_argument("--work", type=Path, default=default, help="folder of finished courses")
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
        if len(pair.courses) > 1:
            sections += [f"## {pair.name}: variants", variant_table(pair)]
    shown = f"--runs PATH --rounds {' '.join(map(str, arguments.rounds))}"
    shown += f" --short {arguments.short} --choices {' '.join(map(str, arguments.choices))}"
    shown += f" --closest {arguments.closest}"
    command = ["python", "benchmarks/femnist_runs.py", shown]
    return measuring.write_report(
        arguments.out, "FederatedScope's FEMNIST runs", command, load, sections
    )


if __name__ == "__main__":
    main()
