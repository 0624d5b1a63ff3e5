"""Numbers and picture of `noise_study.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from studies import cell, table

LABELS = {"random": "random search", "optuna-tpe": "TPE", "hyperband": "Hyperband", "bohb": "BOHB"}
COLOURS = {"random": "#8a8f98", "optuna-tpe": "#e69138", "hyperband": "#0b5394", "bohb": "#6aa84f"}
Errors = Mapping[tuple[str, ...], list[float]]


def percent(values: list[float]) -> str:
    """Return a mean and its standard error in per cent."""
    return cell(100.0 * np.array(values), 1)


def tuned_table(study: Any, tuned: Errors, problem: str) -> str:
    """Return the errors of every agent under every condition."""
    rows = [
        [condition, *(percent(tuned[problem, agent, condition]) for agent in study.agents)]
        for condition in study.conditions
    ]
    return table(["evaluated", *(LABELS[agent] for agent in study.agents)], rows)


def proxy_table(study: Any, proxies: Errors) -> str:
    """Return the errors on every problem of what was chosen on every other."""
    rows = [
        [
            source,
            *("-" if source == goal else percent(proxies[source, goal]) for goal in study.problems),
        ]
        for source in study.problems
    ]
    return table(["chosen on \\ used on", *study.problems], rows)


def report(study: Any, found: Mapping[str, Errors]) -> str:
    """Return all tables as Markdown."""
    lines = [
        f"True validation error in per cent of the configuration that is chosen, mean ± standard "
        f"error over {study.seeds} seeds; the training of {study.courses} full courses each.\n"
    ]
    for problem in study.problems:
        lines += [f"**{problem}**\n", tuned_table(study, found["tuned"], problem)]
    lines += [
        "**Proxy tuning**: random search on one problem with exact evaluations, used on another\n",
        proxy_table(study, found["proxies"]),
    ]
    return "\n".join(lines)


def draw(study: Any, tuned: Errors, path: Path) -> None:
    """Draw the errors of every agent on every problem."""
    import matplotlib.pyplot as plt

    number = len(study.problems)
    figure, axes = plt.subplots(1, number, figsize=(3.6 * number, 4.2), squeeze=False, sharey=False)
    places = np.arange(len(study.conditions))
    for axis, problem in zip(axes[0], study.problems, strict=True):
        for shift, agent in enumerate(study.agents):
            errors = [100 * np.array(tuned[problem, agent, c]) for c in study.conditions]
            means = [one.mean() for one in errors]
            bars = [one.std(ddof=1) / len(one) ** 0.5 if len(one) > 1 else 0.0 for one in errors]
            axis.errorbar(
                places + 0.12 * (shift - 1.5),
                means,
                yerr=bars,
                fmt="o",
                markersize=4,
                color=COLOURS[agent],
                label=LABELS[agent],
            )
        axis.set_title(problem, fontsize=10)
        axis.set_xticks(places, list(study.conditions), rotation=60, ha="right", fontsize=8)
        axis.grid(axis="y", alpha=0.3)
    axes[0][0].set_ylabel("true validation error (%)")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
