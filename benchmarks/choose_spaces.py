"""Searches wide spaces of the tabular families, to choose those of version 1.

Every course of a wide grid is trained on standardized features. Finished units are kept in the
folder `--parts`, so the command resumes. For each family there is a table about the wide grid and
one about the part of it that lies in the chosen space, as far as it does: the values of version 1
are others.

The loss of a cell is the validation loss of its best round, averaged over the seeds. Beside it
stands what predicting the label frequencies of the training data costs on the same validation
data. Except for the optimum, a loss counts at most as much as this: what makes a bad configuration
worse is no reason to tune.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import measuring
import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau
from space_search import (
    DATASETS,
    DEAR,
    SEARCHES,
    Found,
    Search,
    compute,
    decades,
    is_finished,
    read,
)

from fedhpo_gym.landscape.anova import variance_shares
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import get_task

EARLY = 9
NEAR = 0.01
LOW = (27, 0.2)
"""Round and client sample rate of a low fidelity."""
CHOSEN: Mapping[str, Mapping[str, Sequence[Value]]] = {
    "LR": {
        "learning_rate": decades(-2, 1.5),
        "weight_decay": decades(-5, -1, 1),
        "step_size": (1, 4),
    },
}
"""By search, the wide grid's values that lie in the space of version 1."""

# fmt: off
HEALTH = (
    "data set", "label frequencies", "optimum", "at", "edges (cost of keeping off)",
    "loses to label frequencies", "diverges", "within 1 %", "seeds: spread / noise",
    "tau rounds", "tau rates", "tau seeds",
)
# fmt: on


def main(argv: Sequence[str] | None = None) -> str:
    """Train what is missing, then print what was found and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--parts", type=Path, default=Path("runs/spaces"), help="finished units")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--searches", nargs="+", default=[*SEARCHES], choices=SEARCHES)
    parser.add_argument("--datasets", nargs="+", default=[*DATASETS], choices=DATASETS)
    parser.add_argument(
        "--tables", type=Path, help="parts folder of `fedhpo-gym build FedHPO-LR-...-v1`, if any"
    )
    parser.add_argument("--only-finished", action="store_true", help="train nothing")
    arguments = parser.parse_args(argv)
    load, sections = measuring.load_average(), [str(__doc__).split("\n\n", 1)[1].strip()]
    for name in arguments.searches:
        search, found = SEARCHES[name], {}
        for dataset in arguments.datasets:
            task = search.task(dataset)
            if not arguments.only_finished:
                compute(task, arguments.parts, arguments.workers)
            if is_finished(task, arguments.parts):
                found[dataset] = read(task, arguments.parts)
        sections += report(name, search, found)
    if arguments.tables:
        tasks = {name: get_task(f"LR-{name}-v1") for name in arguments.datasets}
        built = {n: task for n, task in tasks.items() if is_finished(task, arguments.tables)}
        found = {name: read(task, arguments.tables) for name, task in built.items()}
        sections += ["## LR, version 1", "The whole grids, three seeds.", *_tables(found)]
    command = ["python", "benchmarks/choose_spaces.py", *(argv or [])]
    title = "Spaces of the tabular families"
    return measuring.write_report(arguments.out, title, command, load, sections)


def report(name: str, search: Search, found: Mapping[str, Found]) -> list[str]:
    """Return the paragraphs and tables of a search."""
    text = (
        f"{search.algorithm}, {search.rounds} rounds, seeds {_words(search.seeds)}, client sample "
        f"rates {_words(search.rates)}; {_axes(search.axes)}."
    )
    if search.of_dear:
        text += f" {', '.join(DEAR)}: rate 1.0 alone; {_axes(search.of_dear)}."
    sections = [f"## {name}", text, *_tables(found)]
    if name in CHOSEN:
        inside = {dataset: one.within(CHOSEN[name]) for dataset, one in found.items()}
        sections += [
            f"### {name}, in the chosen space",
            f"{_axes(CHOSEN[name])}.",
            *_tables(inside),
        ]
    return sections


def _tables(found: Mapping[str, Found]) -> list[str]:
    rows = [[dataset, *health(one)] for dataset, one in found.items()]
    low = {dataset: one for dataset, one in found.items() if min(one.rates) < 1.0}
    return [
        measuring.table(HEALTH, rows),
        "Shares of the variance of the capped loss, in percent, by functional ANOVA (here the "
        "plain one: the grid is complete): of the hyperparameter alone, and of all effects that it "
        "is part of. Variances are covariances between seeds where there are two or more, so noise "
        "is in none of them; the last column says what part of the variance that is.",
        _shares(found, max(next(iter(found.values())).rounds), 1.0),
        *((f"The same after {LOW[0]} rounds at rate {LOW[1]}.", _shares(low, *LOW)) if low else ()),
    ]


def _shares(found: Mapping[str, Found], round_: int, rate: float) -> str:
    axes = next(iter(found.values())).axes
    header = ("data set", *(f"{axis}: alone, in all" for axis in axes), "common to seeds")
    rows = [[dataset, *importance(one, round_, rate)] for dataset, one in found.items()]
    return measuring.table(header, rows)


def health(found: Found) -> list[str]:
    """Return the entries of `HEALTH` after the first."""
    last = found.rounds[-1]
    full = found.at(last, 1.0)
    capped, reference = _capped(found, full), found.reference.mean()
    mean, seeds = full.mean(axis=-1), full.shape[-1]
    where = np.unravel_index(int(mean.argmin()), mean.shape)
    values = [values[i] for values, i in zip(found.axes.values(), where, strict=True)]
    low = found.at(last, found.rates[0])
    early = found.at(max(r for r in found.rounds if r <= EARLY), 1.0)
    return [
        f"{reference:.3f}",
        f"{mean.min():.4f}",
        ", ".join(f"{value:g}" for value in values),
        ", ".join(edges(found, mean)) or "none",
        _percent(mean >= reference),
        _percent(np.isinf(full)),
        _percent(mean <= (1 + NEAR) * mean.min()),
        _spread(capped) if seeds > 1 else "",
        _tau(_capped(found, early).mean(axis=-1), capped.mean(axis=-1)),
        _tau(_capped(found, low).mean(axis=-1), capped.mean(axis=-1))
        if len(found.rates) > 1
        else "",
        _tau(capped[..., 0], capped[..., -1]) if seeds > 1 else "",
    ]


def edges(found: Found, losses: NDArray[np.float64]) -> Iterator[str]:
    """Yield the coordinates in which the optimum lies on an edge, and what keeping off it costs.

    An axis of two values has edges only, so it is left out.
    """
    where = np.unravel_index(int(losses.argmin()), losses.shape)
    for axis, (name, values) in enumerate(found.axes.items()):
        index = int(where[axis])
        if len(values) > 2 and index in (0, len(values) - 1):
            off = np.delete(losses, index, axis=axis).min() / losses.min() - 1.0
            yield f"{name} {'high' if index else 'low'} (+{100 * off:.1f} %)"


def importance(found: Found, round_: int, rate: float) -> list[str]:
    """Return shares of variance at a fidelity, by hyperparameter, and what seeds share."""
    capped = _capped(found, found.at(round_, rate))
    shares, common = variance_shares(capped) or (np.zeros((capped.ndim - 1, 2)), 0.0)
    pairs = [f"{100 * alone:.1f}, {100 * every:.1f}" for alone, every in shares]
    return [*pairs, f"{100 * common:.0f}"]


def _capped(found: Found, losses: NDArray[np.float64]) -> NDArray[np.float64]:
    capped: NDArray[np.float64] = np.minimum(losses, found.reference)
    return capped


def _spread(losses: NDArray[np.float64]) -> str:
    """Return the spread of configurations, in standard deviations of the seeds of one.

    The mean of every seed is taken away: seeds have easier and harder validation data.
    """
    centred = losses - losses.mean(axis=tuple(range(losses.ndim - 1)))
    noise = np.sqrt(centred.var(axis=-1, ddof=1).mean())
    return f"{centred.mean(axis=-1).std() / noise:.1f}"


def _tau(one: NDArray[np.float64], other: NDArray[np.float64]) -> str:
    return f"{kendalltau(one.ravel(), other.ravel()).statistic:.2f}"


def _percent(cells: NDArray[np.bool_]) -> str:
    return f"{100 * cells.mean():.1f} %"


def _axes(axes: Mapping[str, Sequence[Value]]) -> str:
    return "; ".join(f"{name} {_words(values)}" for name, values in axes.items())


def _words(values: Sequence[Value]) -> str:
    return ", ".join(f"{value:g}" for value in values)


if __name__ == "__main__":
    main()
