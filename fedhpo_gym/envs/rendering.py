"""Base classes of single environments, and the drawing of episodes with matplotlib.

`DrawnEnv` is the base of `RoundEnv`, and with `SetupEnv` of `TrialEnv` and `MetaEnv`. It implements
`reset`, `render` and `close` for an environment whose episode is row 0 of a process; vector
environments use the same processes with N rows. Matplotlib is imported only to draw.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDependencyError, require_optional
from fedhpo_gym.envs.arguments import RENDERING, PlainSpec
from fedhpo_gym.envs.vector import EpisodeDraws, ObservationLayout, Observations
from fedhpo_gym.objectives import Objective
from fedhpo_gym.space import SearchSpace

if TYPE_CHECKING:
    from fedhpo_gym.envs.meta.setup import MetaSetup
    from fedhpo_gym.envs.trial.process import Trial
    from fedhpo_gym.envs.trial.setup import TrialSetup

Plot = Callable[[Any], None]
"""Draws into a matplotlib figure."""
BLUE, GREY = "#0b5394", "#8a8f98"


class DrawnEnv(PlainSpec, gym.Env[Observations, NDArray[np.float32]]):
    """One episode of a process, which can be drawn into a window or as pixels."""

    _process: Any
    _draws: EpisodeDraws

    metadata = RENDERING

    def __init__(self, render_mode: str | None) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise InvalidArgumentError(
                f"`render_mode` must be one of {self.metadata['render_modes']}, "
                f"got {short_repr(render_mode)}"
            )
        self.render_mode = render_mode
        self._window: int | None = None

    @abstractmethod
    def _begin(self) -> None:
        """Clear the state of the previous episode; the process has begun a new one."""

    @abstractmethod
    def _observation(self) -> Observations:
        """Return the current observation."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: seed of the draws of instances, and of the noise of evaluations.
            options: `{"instance": i}` selects the i-th of `instances`, if there are any.

        Raises:
            InvalidArgumentError: there is no such instance.
        """
        super().reset(seed=seed, options=options)
        alone = np.array([0])
        self._process.restart(alone, *self._draws.draw(alone, [seed], [options]))
        self._begin()
        if self.render_mode == "human":
            self.render()
        return self._observation(), self.describe()

    def describe(self) -> dict[str, Any]:
        """Return the `info` of `reset`: the episode, and the source of its numbers."""
        return dict(self._process.describe(0))

    @abstractmethod
    def _plot(self, figure: Any) -> None:
        """Draw the episode into a matplotlib figure."""

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the episode: trials over simulated time, or losses and actions over rounds."""
        if self.render_mode is None:
            return None
        with require_optional("rendering", "matplotlib", "plot", "matplotlib"):
            import matplotlib  # noqa: F401
        if self.render_mode == "rgb_array":
            return _pixels(self._plot)
        self._window = _show(self._plot, self._window)
        return None

    def close(self) -> None:
        """Close the window, if it is open."""
        if self._window is not None:
            import matplotlib.pyplot as plt

            plt.close(self._window)
            self._window = None


class SetupEnv(DrawnEnv):
    """An environment of trials, which a setup describes."""

    step_kind = "trial"
    setup: TrialSetup | MetaSetup

    def _follow(self, setup: TrialSetup | MetaSetup) -> None:
        """Use a setup from the next `reset` on."""
        self.setup = setup
        self.action_space = setup.action_space  # type: ignore[assignment]
        self.observation_space = setup.observation_space  # type: ignore[assignment]
        self.reward_space = setup.reward_space
        self._layout = ObservationLayout(setup.observation_space)
        self._frame = np.zeros((1, self._layout.size), dtype=np.float32)
        self._ready = False

    @property
    def search_space(self) -> SearchSpace:
        """Dimensions of an action: configuration, then free fidelity dimensions."""
        return self.setup.search_space

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives, in the order of the reward vector."""
        return self.setup.objectives

    @property
    def reward_dim(self) -> int:
        """Number of objectives, under the name that algorithms for MO-Gymnasium read."""
        return len(self.objectives)

    def _observation(self) -> Observations:
        return self._layout.views(self._frame[0].copy())


def _pixels(plot: Plot) -> NDArray[np.uint8]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=100)
    canvas: Any = FigureCanvasAgg(figure)
    plot(figure)
    figure.tight_layout()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _show(plot: Plot, window: int | None) -> int:
    """Draw into a window that stays open between calls, and return its number."""
    import matplotlib.pyplot as plt

    # Without a display or toolkit, matplotlib falls back to agg, which shows nothing.
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


def plot_trials(figure: Any, trials: Sequence[Trial], title: str, objective: str) -> None:
    """Draw all trials and the incumbent over simulated time."""
    times = [trial.elapsed_s for trial in trials]
    values = [trial.values[objective] for trial in trials]
    best = [values[trial.incumbent - 1] for trial in trials]
    axes = _points(figure, times, values, best, title)
    _scale(axes, times, values, GREY)
    axes.set_xlabel("simulated time (s)")
    axes.set_ylabel(objective)


def plot_scores(figure: Any, scores: Sequence[float], title: str) -> None:
    """Draw the scores of trials, and the best so far."""
    numbers = range(1, len(scores) + 1)
    axes = _points(figure, numbers, scores, [max(scores[:n]) for n in numbers], title)
    axes.set_xlabel("trial")
    axes.set_ylabel("share of the labels' entropy explained")


def _points(
    figure: Any,
    positions: Sequence[float],
    values: Sequence[float],
    best: Sequence[float],
    title: str,
) -> Any:
    """Draw trials and the incumbents, and return the axes."""
    axes = figure.add_subplot()
    axes.scatter(positions, values, s=14, color=GREY, label="trials")
    axes.step(positions, best, where="post", color=BLUE, linewidth=2, label="incumbent")
    axes.set_title(f"{title}: {len(values)} trials", loc="left")
    # Above the axes, because trials may be anywhere inside them.
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False)
    return axes


@dataclass(frozen=True)
class Point:
    """One step of an episode, for drawing."""

    round: int
    val_loss: float
    action: ArrayLike  # coordinates, of one client after the other


def plot_course(
    figure: Any, trace: Sequence[Point], title: str, names: Sequence[str], horizon: int, action: str
) -> None:
    """Draw the validation loss, and below it the actions, over rounds."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    rounds, losses = [point.round for point in trace], [point.val_loss for point in trace]
    above.plot(rounds, losses, color=BLUE, marker=".")
    above.set_ylabel("validation loss")
    above.set_title(f"{title}: round {rounds[-1]}", loc="left")
    _scale(above, rounds, losses, BLUE)
    means = [np.reshape(point.action, (-1, len(names))).mean(axis=0) for point in trace[1:]]
    for column, name in enumerate(names):
        values = [mean[column] for mean in means]
        # An action applies to the rounds before its point.
        steps = [*values[:1], *values]
        below.step(rounds[: len(steps)], steps, where="pre", label=name)
    below.set_xlim(0, horizon)
    below.xaxis.get_major_locator().set_params(integer=True)
    below.set_ylim(-1.05, 1.05)
    below.set_ylabel(action)
    below.set_xlabel("round")
    # Beside the axes, because actions may be anywhere inside them.
    below.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="x-small", frameon=False)


def _scale(axes: Any, positions: Sequence[float], values: Sequence[float], color: str) -> None:
    """Fit the vertical axis to typical values; outliers become marks at the upper edge."""
    usual = [value for value in values if value < 100 * max(median(values), 1e-12)]
    if 0 < len(usual) < len(values):
        axes.set_ylim(0.95 * min(usual), 1.05 * max(usual))
        outliers = [
            position
            for position, value in zip(positions, values, strict=True)
            if value > max(usual)
        ]
        rim = {"transform": axes.get_xaxis_transform(), "clip_on": False, "color": color}
        axes.plot(outliers, [1.0] * len(outliers), ls="", marker="^", **rim)
        values = usual
    if values and 0 < 20 * min(values) < max(values):
        axes.set_yscale("log")
