"""Numbers and pictures of `transfer_study.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transfer_tasks import left_by_random, of_shared, regrets

from fedhpo_gym.analysis.figures import draw_difference
from fedhpo_gym.analysis.transfer import MethodRuns, align_runs
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.stored.meta_data import DESIGN_SIZE, open_meta_data
from fedhpo_gym.tasks.meta import META_SPACES, meta_tasks
from studies import table

AT = (10, 25, 50, 100)
REFERENCE = "gp"
UNIFORM = ("uniform over the pool", "uniform over places that no source has")
"""Draws without repetition, of as many places as a run has evaluated, its design included."""
RESAMPLES = 2000
INTERVAL = "{:.2f} [{:.2f}, {:.2f}]"
Results = Mapping[str, Mapping[str, Any]]


def surveys_of(found: MethodRuns) -> tuple[list[str], NDArray[np.intp]]:
    """Return the surveys, and (R,) which each run is of: they are drawn again, never runs."""
    known = {(s, one.name): one.survey for s in META_SPACES for one in meta_tasks(s)}
    names, groups = np.unique([known[s, task] for s, task, _ in found.runs], return_inverse=True)
    return names.tolist(), groups


def with_uniform(runs: MethodRuns) -> MethodRuns:
    """Return runs from pools with two more methods, which leave what `UNIFORM` draws leave."""
    evaluations, drawn = DESIGN_SIZE + np.arange(runs.regret.shape[2]), {}
    for space in dict.fromkeys(space for space, _, _ in runs.runs):
        data = open_meta_data(space)
        pools = regrets(data)
        new = of_shared(data, pools, others=True)
        for task, *values in zip(data.names, pools, new, strict=True):
            drawn[space, task] = [left_by_random(one, evaluations) for one in values]
    added = np.array([drawn[space, task] for space, task, _ in runs.runs])  # (R, 2, T)
    regret = np.concatenate([runs.regret, added], axis=1)
    return MethodRuns((*runs.methods, *UNIFORM), runs.runs, regret)


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
    middle = at[min(1, len(at) - 1)]
    lines = []
    for mode, of in results.items():
        if not of:
            continue
        ranked = align_runs(of, trials)
        found = with_uniform(ranked) if mode == "discrete" else ranked
        regret = found.mean(found.regret, "search spaces")
        ranks = ranked.mean(ranked.ranks, "search spaces").tolist()
        heads = ["agent", *(f"regret @{t}" for t in at), *(f"rank @{t}" for t in at)]
        rows = []
        for i, name in enumerate(found.methods):
            rank = [f"{ranks[i][t]:.2f}" if i < len(ranks) else "" for t in at]  # draws have none
            rows.append([name, *(f"{regret[i, t]:.4f}" for t in at), *rank])
        tasks = len({run[:2] for run in found.runs})
        lines += [f"**{mode}**: {tasks} tasks, {len(found.runs)} runs of each agent\n"]
        lines += [table(heads, rows)]
        if REFERENCE in of:
            lines += _shares(found, at, middle)
        spaces = dict.fromkeys(space for space, _, _ in found.runs)
        own = np.array([space for space, _, _ in found.runs])
        rows = [
            [name, *(f"{found.regret[own == s, i, middle].mean():.4f}" for s in spaces)]
            for i, name in enumerate(found.methods)
        ]
        lines += [table([f"regret @{middle} by search space", *spaces], rows)]
    return "\n".join(lines)


def _shares(found: MethodRuns, at: Sequence[int], middle: int) -> list[str]:
    """Return the tables of regrets as shares of the reference's, and its share of chance."""
    shares = {trial: ratios(found, trial) for trial in at}
    share, heads = f"share of the regret of {REFERENCE}", [f"@{trial}" for trial in at]
    rows = [[name, *(INTERVAL.format(*shares[t][name]) for t in at)] for name in found.methods]
    without = [[n, *(f"{one:.2f}" for one in v[3:])] for n, v in shares[middle].items()]
    surveys = surveys_of(found)[0]
    lines = [table([share, *heads], rows)]
    lines += [table([f"{share} @{middle} without", *surveys], without)]
    if UNIFORM[0] in found.methods:
        chance = (ratios(found, trial, UNIFORM[0])[REFERENCE] for trial in at)
        row = [REFERENCE, *(INTERVAL.format(*one) for one in chance)]
        lines += [table([f"share of the regret of {UNIFORM[0]}", *heads], [row])]
    return lines


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
