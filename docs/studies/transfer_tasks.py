"""What the tasks of FedHPO-B have in common: difficulty, optima, ranks, one for all.

    python docs/studies/transfer_tasks.py --out DIR

All follows from stored numbers, in seconds. DIR/tasks.md has the tables, DIR/transfer_tasks.png how
alike tasks rank the configurations that all of them have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.evaluation.stats import ranks
from fedhpo_gym.stored.meta_data import DESIGN_SIZE, MetaData, open_meta_data
from fedhpo_gym.tasks.meta import META_SPACES
from studies import study_parser, table

DRAWN = DESIGN_SIZE + 25
"""Uniform draws that say how hard a pool is: the evaluations of a run after 25 trials."""
NEAR = 0.05
"""Normalised regret of configurations that count as near the optimum."""


def regrets(data: MetaData) -> NDArray[np.float64]:
    """Return the (T, P) normalised regret of every configuration at full fidelity."""
    scores = data.scores[:, :, -1, -1]
    best, worst = scores.max(axis=1, keepdims=True), scores.min(axis=1, keepdims=True)
    return np.asarray((best - scores) / (best - worst))


def of_shared(
    data: MetaData, values: NDArray[np.float64], *, others: bool = False
) -> NDArray[np.float64]:
    """Return (T, S) values of what all pools have, in one order; or of a task's own children."""
    size, back = int(data.card["shared"]), np.argsort(data.arrays["order"], axis=1)
    found = np.take_along_axis(values, back, axis=1)
    return found[:, size:] if others else found[:, :size]


def left_by_random(values: NDArray[np.float64], draws: ArrayLike) -> NDArray[np.float64]:
    """Return the expected lowest of (P,) values after (...) numbers of draws, none repeated."""
    size, places = len(values), np.arange(len(values))
    # The i-th lowest is the lowest of those drawn if it is drawn and none before it is.
    none_so_far = np.cumprod(
        np.maximum(size - np.asarray(draws)[..., None] - places, 0) / (size - places), axis=-1
    )
    return np.asarray(-np.diff(none_so_far, prepend=1.0) @ np.sort(values))


def copies(data: MetaData) -> NDArray[np.int64]:
    """Return (T,) numbers of places whose features equal those of another place of the pool."""
    return np.array([len(pool) - len(np.unique(pool, axis=0)) for pool in data.features])


def alike(data: MetaData) -> NDArray[np.float64]:
    """Return the (T, T) rank correlations (Spearman's) of tasks over shared configurations."""
    return np.asarray(np.corrcoef(ranks(of_shared(data, regrets(data)))))


def spread(data: MetaData) -> list[list[str]]:
    """Return how the optima of tasks lie along each hyperparameter, as rows of words."""
    best = regrets(data).argmin(axis=1)
    found = [data.configuration(task, int(place)) for task, place in enumerate(best)]
    rows = []
    for dimension in data.space.dimensions:
        values = [one[dimension.name] for one in found if dimension.name in one]
        if dimension.kind == "category":
            shares = {word: values.count(word) / len(values) for word in dimension.grid}
            words = ", ".join(f"{word} {100 * share:.0f} %" for word, share in shares.items())
        else:
            low, middle, high = np.quantile(np.array(values, float), (0.1, 0.5, 0.9))
            words = f"{low:.3g} to {high:.3g}, median {middle:.3g}"
        rows.append([dimension.name, f"{dimension.low:.3g} to {dimension.high:.3g}", words])
    return rows


def one_for_all(data: MetaData) -> NDArray[np.float64]:
    """Return what the best shared configuration of meta-train, on average, leaves on each task."""
    found = of_shared(data, regrets(data))
    return np.asarray(found[:, found[list(data.where("train"))].mean(axis=0).argmin()])


def report(spaces: Sequence[str]) -> str:
    """Return all tables as Markdown."""
    rows, details, optima = [], [], []
    for space in spaces:
        data = open_meta_data(space)
        own, correlation, left = regrets(data), alike(data), one_for_all(data)
        random = np.array([left_by_random(one, DRAWN) for one in own])
        near = (own < NEAR).mean(axis=1)
        added = np.array([left_by_random(one, DRAWN) for one in of_shared(data, own, others=True)])
        others = correlation[~np.eye(len(own), dtype=bool)]
        test = list(data.where("test"))
        rows.append(
            [
                space,
                *(f"{np.quantile(random, q):.3f}" for q in (0.1, 0.5, 0.9)),
                f"{random[test].mean():.3f}, {added[test].mean():.3f}",
                f"{100 * np.median(near):.1f} %",
                f"{np.median(others):.2f} ({np.quantile(others, 0.1):.2f})",
                f"{np.median(left[test]):.2f} ({np.quantile(left[test], 0.9):.2f})",
                f"{(copies(data) > 0).sum()} of {len(own)}",
            ]
        )
        details += [
            [
                space,
                data.names[i],
                f"{random[i]:.3f}",
                f"{added[i]:.3f}",
                f"{100 * near[i]:.0f} %",
                f"{np.median(np.delete(correlation[i], i)):.2f}",
                f"{left[i]:.3f}",
            ]
            for i in test
        ]
        optima += [[space, *row] for row in spread(data)]
    heads = [
        "space",
        "hard: 10 %",
        "median",
        "90 %",
        "test: all, children",
        "near",
        "alike (10 %)",
        "one for all (90 %)",
        "copies",
    ]
    names = ["space", "task", f"random @{DRAWN}", "children", "near", "alike", "one for all"]
    return "\n".join(
        [
            table(heads, rows),
            table(names, details),
            table(["space", "hyperparameter", "range", "optima of all tasks"], optima),
        ]
    )


def draw(spaces: Sequence[str], path: Path) -> None:
    """Draw how alike the tasks of each space rank their shared configurations."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(spaces), figsize=(4.2 * len(spaces), 4.0))
    for axis, space in zip(axes, spaces, strict=True):
        data = open_meta_data(space)
        order = [i for split in ("train", "validation", "test") for i in data.where(split)]
        picture = axis.imshow(alike(data)[np.ix_(order, order)], vmin=0.0, vmax=1.0, cmap="viridis")
        for end in np.cumsum([len(data.where(split)) for split in ("train", "validation")]):
            axis.axhline(end - 0.5, color="white", linewidth=0.8)
            axis.axvline(end - 0.5, color="white", linewidth=0.8)
        axis.set_title(f"{space}: train, validation, test", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.colorbar(picture, ax=axes, label="rank correlation", shrink=0.8)
    figure.savefig(path, dpi=100, bbox_inches="tight")
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write tables and picture."""
    options = study_parser(__doc__).parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    spaces = META_SPACES[:2] if options.quick else META_SPACES
    (options.out / "tasks.md").write_text(report(spaces), encoding="utf-8")
    draw(spaces, options.out / "transfer_tasks.png")
    print((options.out / "tasks.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
