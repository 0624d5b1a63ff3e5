"""Drawing an episode; the only file of this folder that knows matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.trial.process import Trial
from fedhpo_gym.errors import MissingDependencyError, needing

Plot = Callable[[Any], None]
"""Draws into a matplotlib figure."""


def draw(plot: Plot) -> NDArray[np.uint8]:
    """Return (height, width, 3) pixels of what `plot` draws into a figure."""
    _require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=100)
    canvas: Any = FigureCanvasAgg(figure)
    plot(figure)
    figure.tight_layout()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def show(plot: Plot, window: int | None) -> int:
    """Draw into a window that stays open between calls."""
    _require()
    import matplotlib.pyplot as plt

    # What matplotlib falls back to without a display or a toolkit: it would draw to nowhere.
    if plt.get_backend().lower() == "agg":
        raise MissingDependencyError(
            "`render_mode` 'human' needs a display and a window toolkit that matplotlib can use, "
            "found backend 'agg' only; install one (tkinter or PySide6), or use 'rgb_array'"
        )
    with plt.ion():
        figure = plt.figure(window, clear=True)
        plot(figure)
        figure.tight_layout()
        figure.canvas.draw_idle()
        figure.canvas.flush_events()
    return int(figure.number)


def close(window: int) -> None:
    """Close a window of `show`; nothing happens when the user closed it before."""
    import matplotlib.pyplot as plt

    plt.close(window)


def _require() -> None:
    with needing("rendering", "matplotlib", "plot", "matplotlib"):
        import matplotlib  # noqa: F401


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


class _Point(Protocol):
    @property
    def round(self) -> int: ...
    @property
    def val_loss(self) -> float: ...
    @property
    def action(self) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class Drawing:
    """An episode to draw.

    Attributes:
        title: name of the task.
        trace: the untrained model, and then every step.
        names: what the coordinates of an action are.
        horizon: rounds of an episode.
        action: what is drawn of actions.
    """

    title: str
    trace: tuple[_Point, ...]
    names: tuple[str, ...]
    horizon: int
    action: str

    def plot(self, figure: Any) -> None:
        """Draw the validation loss, and below it the actions, against the rounds they ruled."""
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        rounds = [point.round for point in self.trace]
        above.plot(rounds, [point.val_loss for point in self.trace], color="#0b5394", marker=".")
        above.set_ylabel("validation loss")
        above.set_title(f"{self.title}: round {rounds[-1]}", loc="left")
        losses = [point.val_loss for point in self.trace]
        usual = [loss for loss in losses if loss < 100 * max(median(losses), 1e-12)]
        if 0 < len(usual) < len(losses):
            # A course that diverged has a loss of 3.4e38: it ends at the rim.
            above.set_ylim(0.95 * min(usual), 1.05 * max(usual))
            gone = [r for r, loss in zip(rounds, losses, strict=True) if loss > max(usual)]
            rim = {"transform": above.get_xaxis_transform(), "clip_on": False}
            above.plot(gone, [1.0] * len(gone), ls="", marker="^", color="#0b5394", **rim)
            losses = usual
        if 0 < 20 * min(losses) < max(losses):
            above.set_yscale("log")
        for column, name in enumerate(self.names):
            values = [point.action[column] for point in self.trace[1:]]
            # An action rules the rounds before the point that it led to.
            drawn = [*values[:1], *values]
            below.step(rounds[: len(drawn)], drawn, where="pre", label=name)
        below.set_xlim(0, self.horizon)
        below.xaxis.get_major_locator().set_params(integer=True)
        below.set_ylim(-1.05, 1.05)
        below.set_ylabel(self.action)
        below.set_xlabel("round")
        # Beside the axes: actions lie anywhere inside them.
        below.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="x-small", frameon=False)
