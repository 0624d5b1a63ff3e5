"""Are more heterogeneous clients harder to tune for? Figure 11 of FedHPO-Bench, asked again.

    python docs/studies/heterogeneity_study.py --out DIR

LDA deals the labels to the clients, and a smaller alpha deals less evenly. On raw features (version
0) and on standardized ones (version 1) the engine trains the same configurations for each alpha.
What is compared is how large a share of the configurations is near the best one. DIR holds one
study. The report is DIR/report.md, with a picture. Data that are not here are left out, and the
report says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pieces import claim, pieces

from fedhpo_gym.analysis.plot import COLOURS, SETTINGS, STYLES
from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.tasks import Task, get_task
from studies import cell, positive, study_parser, table, tables_here

TABLES = (
    *("Australian", "BloodTransfusion", "Car", "CreditG", "KC1", "Segment", "Vehicle"),
    *("BreastCancer", "Digits"),
)
FEATURES = {0: "raw features", 1: "standardized features"}
SHARE, NATS, ERROR = 0.1, 0.1, 0.05
"""Regrets that count as near the best: as a share of the range, of the loss, and of the error."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """What is asked of the engine."""

    names: Sequence[str] = TABLES
    alphas: Sequence[float] = (0.1, 0.5, 0.7)
    rounds: int = 100
    batch_size: int = 32


def configurations(task: Task, batch_size: int) -> list[dict[str, Any]]:
    """Return the part of a task's grid that has one batch size."""
    axes = [[batch_size] if d.name == "batch_size" else d.grid for d in task.space.dimensions]
    places = np.stack(np.meshgrid(*[range(len(axis)) for axis in axes], indexing="ij"), axis=-1)
    names = task.space.names
    return [
        {name: axis[i] for name, axis, i in zip(names, axes, at, strict=True)}
        for at in places.reshape(-1, len(axes))
    ]


def ask(study: Study, version: int, name: str, alpha: float) -> dict[str, Any]:
    """Return (seeds, configurations) losses, errors and spreads of clients' accuracies."""
    task = replace(get_task(f"LR-{name}-v{version}"), alpha=alpha)
    asked = configurations(task, study.batch_size)
    found = Raw(task).evaluate_many([(one, Fidelity(study.rounds, 1.0)) for one in asked])
    loss, accuracy = np.moveaxis(found.best[:, :, :, 1, :2].astype(np.float64), -1, 0)
    counts = found.num_samples[:, :, 1]
    weights = counts / counts.sum(axis=1, keepdims=True)
    values = {
        "loss": (loss * weights).sum(axis=-1),
        "error": 1.0 - (accuracy * weights).sum(axis=-1),
        "spread": accuracy.std(axis=-1),
    }
    return {name: value.T.tolist() for name, value in values.items()}


def regret(values: Any, share: bool) -> Floats:
    """Return (seeds, configurations) regrets, in shares of the range if asked."""
    found = np.asarray(values, dtype=np.float64)
    low, high = found.min(axis=1, keepdims=True), found.max(axis=1, keepdims=True)
    return np.array((found - low) / (high - low) if share else found - low)


def measures(answer: Mapping[str, Any]) -> dict[str, Floats]:
    """Return (seeds,) numbers that say how hard a problem is."""
    loss, error, spread = (np.asarray(answer[name]) for name in ("loss", "error", "spread"))
    best = loss.argmin(axis=1)
    rows = np.arange(len(loss))
    low, middle, high = np.quantile(loss, (0.1, 0.5, 0.9), axis=1)
    return {
        "best loss": loss[rows, best],
        "as good": (loss <= loss.min(axis=1, keepdims=True) * (1 + 1e-5)).mean(axis=1),
        "10 %": low,
        "median": middle,
        "90 %": high,
        "loss within 10 % of the range": (regret(loss, True) <= SHARE).mean(axis=1),
        "error within 10 % of the range": (regret(error, True) <= SHARE).mean(axis=1),
        "loss within 0.1 nats": (regret(loss, False) <= NATS).mean(axis=1),
        "error within 0.05": (regret(error, False) <= ERROR).mean(axis=1),
        "error of the best": error[rows, best],
        "spread of the best": spread[rows, best],
    }


def run(study: Study, out: Path, workers: int) -> dict[tuple[int, str, float], Any]:
    """Do every piece that is not there yet, and return them all."""
    keys = [(v, name, alpha) for v in FEATURES for name in study.names for alpha in study.alphas]
    jobs = {
        out / f"{name}-v{version}-alpha{alpha:g}.json": partial(ask, study, version, name, alpha)
        for version, name, alpha in keys
    }
    return dict(zip(keys, pieces(jobs, workers).values(), strict=True))


def overall(study: Study, results: Mapping[Any, Any], version: int) -> str:
    """Return a table of means over problems, with differences between the outer alphas."""
    names = study.names
    found = {key: measures(answer) for key, answer in results.items() if key[0] == version}
    columns = list(next(iter(found.values())))[5:]
    means = {
        alpha: {c: np.array([found[version, n, alpha][c].mean() for n in names]) for c in columns}
        for alpha in study.alphas
    }
    rows = [[f"{alpha:g}", *(cell(of[c]) for c in columns)] for alpha, of in means.items()]
    low, high = means[study.alphas[0]], means[study.alphas[-1]]
    apart = [cell(low[c] - high[c], sign=True) for c in columns]
    rows.append([f"{study.alphas[0]:g} minus {study.alphas[-1]:g}", *apart])
    return table(["alpha", *columns], rows)


def per_problem(results: Mapping[Any, Any], version: int) -> str:
    """Return a table of every problem: losses of configurations, mean over the seeds."""
    rows = []
    for (number, name, alpha), answer in results.items():
        if number == version:
            of = measures(answer)
            quantiles = [f"{of[c].mean():.4g}" for c in ("10 %", "median", "90 %")]
            last = ("as good", "loss within 0.1 nats", "error within 0.05", "spread of the best")
            near = [cell(of[c], 2) for c in last]
            rows.append([name, f"{alpha:g}", cell(of["best loss"]), *quantiles, *near])
    head = ["problem", "alpha", "best loss", "10 %", "median", "90 %", "as good"]
    return table([*head, "loss within 0.1 nats", "error within 0.05", "spread of the best"], rows)


def write_report(study: Study, results: Mapping[Any, Any], out: Path) -> None:
    """Write `report.md` and `heterogeneity.png`."""
    lines = [
        f"All clients, {study.rounds} rounds. Mean ± standard error over problems, of means over "
        "three seeds; per problem over the seeds.\n"
    ]
    for version, label in FEATURES.items():
        of = [answer for key, answer in results.items() if key[0] == version]
        if of:
            number = len(of[0]["loss"][0])
            lines += [f"**Version {version}, {label}: {number} configurations**\n"]
            lines += [overall(study, results, version), per_problem(results, version)]
    (out / "report.md").write_text("\n".join(lines), encoding="utf-8")
    draw(study, results, out / "heterogeneity.png")


def draw(study: Study, results: Mapping[Any, Any], path: Path) -> None:
    """Draw the share of configurations below each regret, the mean over problems and seeds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    scales = {"loss": np.geomspace(1e-2, 1e4, 201), "error": np.linspace(0.0, 1.0, 201)}
    with mpl.rc_context({**SETTINGS, "font.size": 10}):
        figure = Figure(figsize=(9.0, 6.4), layout="constrained", dpi=110)
        axes: Any = figure.subplots(2, 2, sharey=True, sharex="col")
        for row, version in zip(axes, FEATURES, strict=True):
            for axis, (metric, at) in zip(row, scales.items(), strict=True):
                for number, alpha in enumerate(study.alphas):
                    look = {"color": COLOURS[number], "linestyle": STYLES[number]}
                    share = below(results, version, alpha, metric, at)
                    axis.plot(at, share, label=f"α = {alpha:g}", **look)
                axis.set_title(f"{FEATURES[version]}: {metric}", loc="left", fontsize=10)
                axis.spines[["top", "right"]].set_visible(False)
                axis.set_ylim(0.0, 1.02)
            row[0].set_ylabel("share of configurations")
        axes[0, 0].set_xscale("log")
        axes[1, 0].set_xlabel("regret of the loss (nats)")
        axes[1, 1].set_xlabel("regret of the error, as a share of the range")
        axes[0, 1].legend(frameon=False, loc="lower right")
        figure.savefig(path)


def below(
    results: Mapping[Any, Any], version: int, alpha: float, metric: str, at: Floats
) -> Floats:
    """Return the share of configurations whose regret is at most `at`, the mean over problems."""
    parts = [
        (regret(answer[metric], metric == "error")[..., None] <= at).mean(axis=(0, 1))
        for key, answer in results.items()
        if key[0] == version and key[2] == alpha
    ]
    return np.mean(parts, axis=0) if parts else np.full(at.shape, np.nan)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--rounds", type=positive, help="rounds of every course (default: 100)")
    options = parser.parse_args(arguments)
    study = Study(tables_here(TABLES))
    if options.quick:
        study = Study(("BreastCancer",), (0.5, 0.7), rounds=1)
    if options.rounds:
        study = replace(study, rounds=options.rounds)
    claim(options.out, study)
    write_report(study, run(study, options.out, options.workers), options.out)
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
