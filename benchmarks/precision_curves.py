"""Do learning curves in bfloat16 lie within the spread of seeds of those in float32?

Some configurations of CNN-FEMNIST, drawn from the task's space, are trained under the task's seeds
in both precisions. A seed decides data split, cohorts, minibatches and initial weights, so courses
of the two precisions are paired. For every configuration the report gives the mean difference of
the two over seeds, and the standard deviation over seeds in float32, of validation loss and
accuracy after the last round. Rounding is harmless where the differences scatter about zero and
are small beside that spread.

Every finished course is kept in a folder, and none is trained twice.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measuring
import numpy as np
from measuring import number
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym import files, seeding
from fedhpo_gym.courses.training import make_batch, make_course, task_federation
from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.tasks import Task, get_task

PRECISIONS = ("float32", "bfloat16")
VALIDATION = SPLITS.index("val")
RATE = 0.2


def configurations(task: Task, count: int) -> list[dict[str, Any]]:
    """Return configurations drawn from the task's space."""
    rng = seeding.stream(0, "precision curves")
    return [task.space.sample(rng) for _ in range(count)]


def course(
    task: Task, configuration: Mapping[str, Any], seed: int, rounds: Sequence[int]
) -> list[list[float]]:
    """Return validation loss and accuracy after some rounds, weighted by the clients' samples."""
    batch = make_batch(task, [make_course(task, configuration, RATE, seed)])
    curves = batch.advance(max(rounds), evaluated=rounds)
    means = weighted(curves.metrics[0], task, seed)
    found: list[list[float]] = means.astype(float).tolist()
    return found


def weighted(metrics: NDArray[np.float32], task: Task, seed: int) -> NDArray[np.float64]:
    """Return (rounds, 2) validation loss and accuracy of (rounds, clients, splits, metrics)."""
    samples = task_federation(task, seed).num_samples[:, VALIDATION]
    values = metrics[:, :, VALIDATION, :2].astype(np.float64)
    return np.einsum("rcm,c->rm", values, samples / samples.sum())


def trained(folder: Path, number_: int, rounds: Sequence[int]) -> NDArray[np.float64]:
    """Return (configurations, seeds, precisions, rounds, 2) curves; train what is missing."""
    task = get_task("CNN-FEMNIST")
    chosen = configurations(task, number_)
    plan = list(itertools.product(range(number_), task.seeds, PRECISIONS))
    curves = []
    for index, seed, precision in tqdm(plan, unit="course"):
        words = "-".join(map(str, rounds))
        path = folder / f"{index}-seed{seed}-{precision}-rounds{words}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
        else:
            curve = course(task.variant(precision=precision), chosen[index], seed, rounds)
            content = {"configuration": chosen[index], "curve": curve}
            folder.mkdir(parents=True, exist_ok=True)
            files.write_text(path, json.dumps(content))
        if content["configuration"] != chosen[index]:
            raise SystemExit(f"{path} is of another configuration: remove it")
        curves.append(content["curve"])
    shape = (number_, len(task.seeds), len(PRECISIONS), len(rounds), 2)
    return np.array(curves).reshape(shape)


def report(curves: NDArray[np.float64], chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table, and what it says of all configurations."""
    difference = curves[:, :, 1] - curves[:, :, 0]  # configurations, seeds, rounds, measures
    mean, spread = difference.mean(axis=1), curves[:, :, 0].std(axis=1, ddof=1)
    header = ("configuration", "loss", "difference", "spread", "accuracy", "difference", "spread")
    lines = [
        [
            ", ".join(f"{name} {value:.3g}" for name, value in configuration.items()),
            *(
                number(part[index, -1, measure])
                for measure in (0, 1)
                for part in (curves[:, :, 0].mean(axis=1), mean, spread)
            ),
        ]
        for index, configuration in enumerate(chosen)
    ]
    texts = [measuring.table(header, lines)]
    for measure, name in enumerate(("loss", "accuracy")):
        inside = np.abs(mean[..., measure]) <= spread[..., measure]
        each = mean[:, -1, measure]
        error = each.std(ddof=1) / np.sqrt(len(each))
        texts.append(
            f"Validation {name}: at {inside.sum()} of {inside.size} evaluated rounds the mean "
            f"difference is within one standard deviation of seeds. After the last round it is "
            f"{each.mean():+.5f} over configurations, with a standard error of {error:.5f}; the "
            f"mean spread of seeds is {spread[:, -1, measure].mean():.5f}."
        )
    return texts


def main(argv: Sequence[str] | None = None) -> str:
    """Train what is missing, print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--configurations", type=int, default=10)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 3], help="evaluated rounds")
    default = Path("runs/precision_curves")
    parser.add_argument("--folder", type=Path, default=default, help="of finished courses")
    options = parser.parse_args(argv)
    load = measuring.load_average()
    curves = trained(options.folder, options.configurations, options.rounds)
    chosen = configurations(get_task("CNN-FEMNIST"), options.configurations)
    rounds = " ".join(map(str, options.rounds))
    words = (
        f"CNN-FEMNIST, client sample rate {RATE}, {options.configurations} configurations, the "
        f"task's seeds, rounds {rounds}. Difference: bfloat16 minus float32, mean over seeds. "
        "Spread: standard deviation over seeds in float32."
    )
    command = ["python", "benchmarks/precision_curves.py"]
    command += [f"--configurations {options.configurations} --rounds {rounds}"]
    texts = [words, *report(curves, chosen)]
    return measuring.write_report(options.out, "Curves in two precisions", command, load, texts)


if __name__ == "__main__":
    main()
