"""Drawing an episode of trials."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from fedhpo_gym.envs.trial.history import Trial


def plot_trials(figure: Any, trials: Sequence[Trial], title: str, objective: str) -> None:
    """Draw all trials, and the incumbent over simulated time."""
    axes = figure.add_subplot()
    times = [trial.elapsed_s for trial in trials]
    values = [trial.values[objective] for trial in trials]
    best = [values[trial.incumbent - 1] for trial in trials]
    axes.scatter(times, values, s=14, color="#8a8f98", label="trials")
    axes.step(times, best, where="post", color="#0b5394", linewidth=2, label="incumbent")
    usual = [value for value in values if value < 100 * max(median(values), 1e-12)]
    if 0 < len(usual) < len(values):
        # A course that diverged has a loss of 3.4e38: it is a mark at the rim.
        axes.set_ylim(0.95 * min(usual), 1.05 * max(usual))
        gone = [time for time, value in zip(times, values, strict=True) if value > max(usual)]
        rim = {"transform": axes.get_xaxis_transform(), "clip_on": False, "color": "#8a8f98"}
        axes.plot(gone, [1.0] * len(gone), ls="", marker="^", **rim)
        values = usual
    if values and 0 < 20 * min(values) < max(values):
        axes.set_yscale("log")
    axes.set_xlabel("simulated time (s)")
    axes.set_ylabel(objective)
    axes.set_title(f"{title}: {len(trials)} trials", loc="left")
    # Above the axes: trials lie anywhere inside them.
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False)
