"""Do two halves of a task lie side by side in Profet's latent space?

    python docs/studies/profet_latent.py --svm PATH --out DIR

After Klein et al. (2019), section 5.1, on the SVM meta-data of Wistuba et al. (2016). Its data sets
cannot be split any more, so configurations are: those that differ in one step of gamma are a pair,
of which each half has one, drawn for every task. The report is DIR/latent.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pieces import claim, piece
from profet_families import digest, svm

from fedhpo_gym.building.meta_model import task_features
from fedhpo_gym.core.files import write_text
from fedhpo_gym.core.seeding import stream
from studies import positive, study_parser, table

Array = NDArray[np.float64]
DIMENSIONS, RESAMPLES = 5, 1000
STEPS = 10_000


@dataclass(frozen=True)
class Study:
    """Steps of the latent model, and of which values."""

    steps: int
    data: str


def halves(x: Array, values: Array, seed: int) -> Array:
    """Return (2 T, N / 2) values: both halves of each of T tasks, one below the other."""
    order = np.lexsort((x[:, 1], x[:, 0]))
    pairs = values[:, order].reshape(len(values), -1, 2)
    swapped = stream(seed, "halves").random(pairs.shape[:2]) < 0.5
    both = np.where(swapped[..., None], pairs[..., ::-1], pairs)
    return np.asarray(both.transpose(0, 2, 1).reshape(2 * len(values), -1))


def neighbours(places: Array) -> NDArray[np.intp]:
    """Return (2 T,) the place of each half's other half among its neighbours, 1 the nearest."""
    away = ((places[:, None] - places) ** 2).sum(axis=2)
    np.fill_diagonal(away, np.inf)
    partner = np.arange(len(places)) ^ 1
    return np.asarray((away < away[np.arange(len(places)), partner][:, None]).sum(axis=1) + 1)


def row(name: str, found: NDArray[np.intp]) -> list[str]:
    """Return how many halves are nearest neighbours, with an interval over tasks."""
    hits = (found.reshape(-1, 2) == 1).mean(axis=1)
    drawn = stream(0, "latent").choice(hits, (RESAMPLES, len(hits))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return [name, f"{hits.mean():.2f} [{low:.2f}, {high:.2f}]", f"{np.median(found):.0f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the report that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument(
        "--svm", type=Path, required=True, help="folder or archive of the meta-data"
    )
    parser.add_argument("--seeds", type=positive, default=3, help="splits (three)")
    parser.add_argument(
        "--steps", type=positive, default=STEPS, help="of the latent model (10,000)"
    )
    options = parser.parse_args(arguments)
    family = svm(options.svm)
    study = Study(options.steps, digest(family))
    if options.quick:
        study = replace(study, steps=20)
    claim(options.out, study)
    rows = []
    for seed in range(options.seeds):
        both = halves(family.x, family.values, seed)
        standard = (both - both.mean(axis=1, keepdims=True)) / (
            both.std(axis=1, keepdims=True) + 1e-8
        )
        left, sizes, _ = np.linalg.svd(standard - standard.mean(axis=0), full_matrices=False)
        mean = piece(
            options.out / f"svm-{seed}.json",
            lambda both=both, seed=seed: task_features(
                both, DIMENSIONS, steps=study.steps, seed=seed
            ).mean.tolist(),
        )
        principal = left[:, :DIMENSIONS] * sizes[:DIMENSIONS]
        rows += [
            row(f"Bayesian GP-LVM, split {seed}", neighbours(np.array(mean))),
            row(f"principal components, split {seed}", neighbours(principal)),
            row(f"all values, split {seed}", neighbours(standard)),
        ]
    rows.append(["by chance", f"{1 / (2 * len(family.tasks) - 1):.2f}", f"{len(family.tasks)}"])
    head = ["", "nearest neighbour is the other half", "its place among neighbours, median"]
    write_text(options.out / "latent.md", table(head, rows))
    print((options.out / "latent.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
