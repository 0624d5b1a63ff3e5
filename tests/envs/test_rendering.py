"""Pictures of an episode: pixels, and windows that live as long as their environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.core.errors import MissingDependencyError
from fedhpo_gym.envs.rendering import plot_course, plot_trials
from fedhpo_gym.envs.round.env import Point
from fedhpo_gym.envs.trial.process import Trial
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.testing import make_env

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

EVERY_KIND = (
    "MO-FedHPO-LR-CreditG-v1", "FedHPO-B-LR-v1", "FedHPO-Generated-LR-v1",
    "FedHPO-DAC-Quadratic-v1",
)  # fmt: skip
plt = pytest.importorskip("matplotlib.pyplot", reason="the extra `plot` is not installed")


def trial(number: int, value: float, incumbent: int) -> Trial:
    values = {"val_loss": value}
    return Trial(number, {}, Fidelity(1, 1.0), np.zeros(1, np.float32), values, number, incumbent)


@pytest.mark.parametrize(("worst", "scale"), [(2.0, "linear"), (21.0, "log")])
def test_the_incumbent_is_drawn_over_time_on_a_fitting_scale(worst: float, scale: str) -> None:
    trials = [trial(1, worst, 1), trial(2, 1.5, 2), trial(3, 1.0, 3)]
    figure = Figure()
    plot_trials(figure, trials, "x", "val_loss")
    (axes,) = figure.axes
    assert axes.lines[0].get_ydata().tolist() == [worst, 1.5, 1.0]
    assert axes.get_yscale() == scale


@pytest.fixture
def windows() -> Iterator[Any]:
    """Windows without a display: matplotlib's template backend opens and draws nothing."""
    before = plt.get_backend()
    plt.switch_backend("template")
    yield plt
    plt.close("all")
    plt.switch_backend(before)


def drawn(window: int) -> tuple[str, int]:
    axes = plt.figure(window).axes[0]
    return axes.get_title(loc="left"), len(axes.collections[0].get_offsets())


def test_a_window_follows_its_episode_and_closes_with_its_environment(windows: Any) -> None:
    env = make_env(render_mode="human", budget_trials=99)
    env.reset(seed=0)
    (window,) = windows.get_fignums()
    assert drawn(window) == ("LR-CreditG: 0 trials", 0)
    for count in (1, 2):
        env.step(np.zeros(env.action_space.shape, np.float32))
        assert drawn(window) == (f"LR-CreditG: {count} trials", count)
    env.reset(seed=1)
    assert drawn(window) == ("LR-CreditG: 0 trials", 0)
    assert windows.get_fignums() == [window]
    env.close()
    env.close()
    assert windows.get_fignums() == []
    assert not windows.isinteractive(), "the caller's own figures would pop up"


def test_two_environments_have_a_window_each(windows: Any) -> None:
    first, second = make_env(render_mode="human"), make_env(render_mode="human")
    for env in (first, second):
        env.reset(seed=0)
    kept = windows.get_fignums()[1]
    first.step(np.zeros(first.action_space.shape, np.float32))
    first.close()
    assert windows.get_fignums() == [kept]
    assert drawn(kept) == ("LR-CreditG: 0 trials", 0)
    second.close()


def test_a_window_needs_a_display(windows: Any) -> None:
    windows.switch_backend("agg")
    env = make_env(render_mode="human")
    with pytest.raises(MissingDependencyError, match=r"display.*rgb_array"):
        env.reset(seed=0)
    assert windows.get_fignums() == []


def test_pixels_open_no_window(windows: Any) -> None:
    env = make_env(render_mode="rgb_array")
    env.reset(seed=0)
    empty: Any = env.render()
    env.step(np.zeros(env.action_space.shape, np.float32))
    one: Any = env.render()
    assert empty.shape == one.shape == (400, 640, 3)
    assert (empty != one).any()
    assert windows.get_fignums() == []


@pytest.mark.parametrize("env_id", EVERY_KIND)
def test_all_frames_since_the_last_rendering_come_as_a_list(env_id: str) -> None:
    env = gym.make(env_id, render_mode="rgb_array_list", disable_env_checker=True)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    frames: Any = env.render()
    assert [frame.shape for frame in frames] == [(400, 640, 3)] * 2
    assert env.render() == []


# ---------------------------------------------------------------------------- round environments


def picture(*values: tuple[int, float, float]) -> tuple[Any, Any]:
    """Return the axes of a course: (round, loss, action) after the reset and after every step."""
    trace = tuple(Point(rounds, loss, (action,)) for rounds, loss, action in values)
    figure = Figure()
    FigureCanvasAgg(figure)
    plot_course(figure, trace, "LR-Made", ("learning_rate",), 8, "action")
    return figure.axes  # type: ignore[return-value]


def test_an_action_is_drawn_over_the_rounds_it_ruled() -> None:
    above, below = picture((0, 2.0, 0.0), (2, 1.0, 0.5), (4, 0.5, -0.25))
    assert above.lines[0].get_xydata().tolist() == [[0, 2.0], [2, 1.0], [4, 0.5]]
    (line,) = below.lines
    assert line.get_drawstyle() == "steps-pre"
    assert line.get_xydata().tolist() == [[0, 0.5], [2, 0.5], [4, -0.25]]
    assert above.get_title(loc="left") == "LR-Made: round 4"


def test_the_picture_of_a_course_is_as_wide_as_its_horizon_from_the_start() -> None:
    above, below = picture((0, 2.0, 0.0))
    assert above.get_xlim() == below.get_xlim() == (0.0, 8.0)
    assert all(tick == int(tick) for tick in below.get_xticks())
    figure = below.figure
    figure.tight_layout()
    figure.canvas.draw()
    box = below.get_legend().get_window_extent()
    assert not box.overlaps(below.get_window_extent()), "the legend hides actions"


@pytest.mark.raw
def test_the_window_of_a_course_follows_it(windows: Any) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    env = gym.make(
        "FedHPO-DAC-LR-BreastCancer-v0", render_mode="human", horizon=4, rounds_per_step=2
    )
    env.reset(seed=0)
    (window,) = windows.get_fignums()
    for rounds in (2, 4):
        env.step(np.zeros(env.action_space.shape or (), np.float32))
        above, below = plt.figure(window).axes
        assert above.get_title(loc="left") == f"LR-BreastCancer: round {rounds}"
        assert len(below.lines) == 4
    assert windows.get_fignums() == [window]
    env.close()
    assert windows.get_fignums() == []
