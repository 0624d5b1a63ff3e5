"""Numbers and pictures of `transfer_study.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.figures import draw_difference
from fedhpo_gym.analysis.transfer import MethodRuns, align_runs
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.tasks.meta import META_SPACES, meta_tasks
from studies import table

AT = (10, 25, 50, 100)
REFERENCE = "gp"
RESAMPLES = 2000
Results = Mapping[str, Mapping[str, Any]]


def surveys_of(found: MethodRuns) -> tuple[list[str], NDArray[np.intp]]:
    """Return the surveys, and (R,) which each run is of: they are drawn again, never runs."""
    known = {(s, one.name): one.survey for s in META_SPACES for one in meta_tasks(s)}
    names, groups = np.unique([known[s, task] for s, task, _ in found.runs], return_inverse=True)
    return names.tolist(), groups


def ratios(
    found: MethodRuns, trial: int, reference: str = REFERENCE
) -> dict[str, tuple[float, ...]]:
    """Return each method's mean regret as a share of the reference's, and how sure that is.

    The two numbers after it are a 95 % interval, and those that follow the shares without each
    survey. Means are over search spaces, of means over their runs, in every resample, too.
    """
    groups, regret = surveys_of(found)[1], found.regret[:, :, trial]
    size = int(groups.max()) + 1
    own = np.array([space for space, _, _ in found.runs])
    counts = stream(0, "transfer_report").multinomial(size, np.full(size, 1 / size), RESAMPLES)
    once = np.ones((1, size), int)  # all of them, then all but one
    counts = np.concatenate([once, once - np.eye(size, dtype=int), counts])
    means = []
    for space in dict.fromkeys(own.tolist()):
        # Sums and numbers by survey: a resample is then a product.
        sums, runs = np.zeros((size, regret.shape[1])), np.zeros(size)
        np.add.at(sums, groups[own == space], regret[own == space])
        np.add.at(runs, groups[own == space], 1)
        means.append(counts @ sums / np.maximum(counts @ runs, 1)[:, None])
    mean = np.mean(means, axis=0)
    share = mean / np.maximum(mean[:, [found.methods.index(reference)]], 1e-12)
    without, drawn = share[1 : size + 1], share[size + 1 :]
    columns = np.array([share[0], *np.quantile(drawn, (0.025, 0.975), axis=0), *without])
    return {name: tuple(columns[:, i].tolist()) for i, name in enumerate(found.methods)}


def report(results: Mapping[str, Results], trials: int) -> str:
    """Return all tables as Markdown."""
    at = [trial for trial in AT if trial <= trials] or [trials]
    lines = []
    for mode, of in results.items():
        if not of:
            continue
        found = align_runs(of, trials)
        regret, ranks = (found.mean(v, "search spaces") for v in (found.regret, found.ranks))
        shares = {trial: ratios(found, trial) for trial in at} if REFERENCE in of else {}
        middle = at[min(1, len(at) - 1)]
        heads = ["agent", *(f"regret @{t}" for t in at), *(f"rank @{t}" for t in at)]
        rows = []
        for i, name in enumerate(found.methods):
            row = [name, *(f"{regret[i, t]:.4f}" for t in at), *(f"{ranks[i, t]:.2f}" for t in at)]
            rows.append(row)
        tasks = len({run[:2] for run in found.runs})
        lines += [f"**{mode}**: {tasks} tasks, {len(found.runs)} runs of each agent\n"]
        lines += [table(heads, rows)]
        if shares:
            words = [
                [name, *("{:.2f} [{:.2f}, {:.2f}]".format(*shares[t][name][:3]) for t in at)]
                for name in found.methods
            ]
            share = f"share of the regret of {REFERENCE}"
            lines += [table([share, *(f"@{t}" for t in at)], words)]
            words = [[n, *(f"{one:.2f}" for one in v[3:])] for n, v in shares[middle].items()]
            lines += [table([f"{share} @{middle} without", *surveys_of(found)[0]], words)]
        spaces = dict.fromkeys(space for space, _, _ in found.runs)
        own = np.array([space for space, _, _ in found.runs])
        rows = [
            [name, *(f"{found.regret[own == s, i, middle].mean():.4f}" for s in spaces)]
            for i, name in enumerate(found.methods)
        ]
        lines += [table([f"regret @{middle} by search space", *spaces], rows)]
    return "\n".join(lines)


def draw(results: Mapping[str, Results], out: Path) -> None:
    """Draw regret and rank over trials, and critical differences, for each mode."""
    import matplotlib.pyplot as plt

    for mode, of in results.items():
        if not of:
            continue
        trials = min(len(v) for sets in of.values() for v in _runs(sets)) - 1
        found = align_runs(of, trials)
        figure, axes = plt.subplots(1, 2, figsize=(10.0, 4.2))
        colors = plt.get_cmap("tab20")(np.arange(len(found.methods)) % 20)
        for axis, values, word in (
            (axes[0], found.regret, "mean normalised regret"),
            (axes[1], found.ranks, "mean rank"),
        ):
            means = found.mean(values, "search spaces")
            for i, name in enumerate(found.methods):
                plain = name in ("random", "optuna-tpe", "bo-rf", "gp")
                style = "--" if plain else "-"
                axis.plot(means[i], style, color=colors[i], label=name, linewidth=1.4)
            axis.set_xlabel("trials after the initial design")
            axis.set_ylabel(word)
            axis.grid(alpha=0.3)
        axes[0].set_yscale("log")
        axes[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        figure.tight_layout()
        figure.savefig(out / f"transfer_{mode}.png", dpi=100)
        plt.close(figure)
        if len(found.methods) > 1 and len(found.runs) > 1:
            at = min(25, trials)
            figure, axis = plt.subplots(figsize=(8.0, 3.2))
            draw_difference(axis, found.critical_difference(at))
            axis.set_title(f"{mode}: ranks after {at} trials", loc="left", fontsize=9)
            figure.tight_layout()
            figure.savefig(out / f"transfer_{mode}_differences.png", dpi=100)
            plt.close(figure)


def _runs(sets: Mapping[str, Any]) -> list[Any]:
    return [
        values for tasks in sets.values() for runs in tasks.values() for values in runs.values()
    ]
