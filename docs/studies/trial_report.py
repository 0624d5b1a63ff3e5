"""Numbers and picture of `train_trial_policy.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies import cell, table

LABELS = {
    "policy": "learned policy",
    "sequence": "best fixed sequence",
    "optuna-tpe": "TPE",
    "random": "random search",
}
COLOURS = {"policy": "#0b5394", "sequence": "#6aa84f", "optuna-tpe": "#e69138", "random": "#8a8f98"}
SHARES = (0.05, 0.2, 1.0)
Floats = NDArray[np.float64]


def curves(played: Sequence[Mapping[str, Any]], who: str) -> Floats:
    """Return (instances, times) regrets of a contestant, the mean over its runs."""
    return np.array([np.mean(one["regrets"][who], axis=0) for one in played])


def regrets_table(played: Sequence[Mapping[str, Any]]) -> str:
    """Return mean regrets over time and at some shares of the budget."""
    rows = []
    for who, label in LABELS.items():
        found = curves(played, who)
        last = found.shape[1]
        at = [cell(found[:, int(share * last) - 1], 4) for share in SHARES]
        rows.append([label, cell(found.mean(axis=1), 4), *at])
    shares = [f"at {100 * share:.0f} % of the budget" for share in SHARES]
    return table(["regret", "mean over time", *shares], rows)


def differences_table(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return paired differences of mean regrets: policy minus the others."""
    rows = []
    for who, label in list(LABELS.items())[1:]:
        row = [label]
        for played in groups.values():
            apart = (curves(played, "policy") - curves(played, who)).mean(axis=1)
            row.append(f"{cell(apart, 4, sign=True)}, lower on {(apart < 0).sum()} of {len(apart)}")
        rows.append(row)
    return table(["policy minus", *groups], rows)


def per_problem(tests: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return mean regrets over time on every problem."""
    rows = [
        [label, *(f"{curves(played, who).mean():.4f}" for played in tests.values())]
        for who, label in LABELS.items()
    ]
    names = [name.removeprefix("FedHPO-") for name in tests]
    return table(["mean regret", *names], rows)


def write_report(study: Any, results: Mapping[str, Any], out: Path) -> None:
    """Write `report.md` and `trial_policy.png`."""
    tests = results["tests"]
    groups = {
        "unseen problems": [one for name in study.unseen for one in tests[name]],
        "trained problems, test instances": [one for name in study.trained for one in tests[name]],
    }
    seconds = ", ".join(f"{one['cpu_s']:.0f}" for one in results["policies"])
    returns = ", ".join(
        f"{one['returns'][0]:.3f} to {one['returns'][1]:.3f}" for one in results["policies"]
    )
    lines = [
        f"Trained on {', '.join(study.trained)}; unseen: {', '.join(study.unseen)}. "
        f"{study.policies} policies of {study.steps:,} trials each (CPU seconds: {seconds}); mean "
        f"return of the first and the last tenth of their episodes: {returns}. "
        f"The sequence has {len(results['sequence']['actions'])} trials, chosen on "
        f"{results['sequence']['instances']} train instances. An episode has "
        f"{study.budget_s:,.0f} simulated seconds; {study.seeds} seeds of random search and TPE. "
        f"{', '.join(f'{len(played)} instances of {name}' for name, played in groups.items())}. "
        "Mean ± standard error over instances.\n"
    ]
    for name, played in groups.items():
        lines += [f"**{name.capitalize()}**\n", regrets_table(played)]
    lines += ["**Paired differences of mean regrets over time**\n", differences_table(groups)]
    lines += ["**Every problem**\n", per_problem(tests)]
    (out / "report.md").write_text("\n".join(lines), encoding="utf-8")
    draw(study, groups, out / "trial_policy.png")


def draw(study: Any, groups: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw the mean regret over simulated time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), dpi=110)
    FigureCanvasAgg(figure)
    for number, (name, played) in enumerate(groups.items(), start=1):
        axes = figure.add_subplot(1, 2, number)
        for who, label in LABELS.items():
            found = curves(played, who).mean(axis=0)
            axes.plot(study.grid_times / 3600, found, color=COLOURS[who], label=label)
        axes.set_yscale("log")
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("simulated time (h)")
        axes.set_ylabel("regret of the incumbent")
        axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
