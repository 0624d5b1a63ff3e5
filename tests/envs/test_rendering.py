"""Pictures of an episode: pixels, and windows that live as long as their environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.errors import MissingDependencyError
from fedhpo_gym.testing import make_env

plt = pytest.importorskip("matplotlib.pyplot", reason="the extra `plot` is not installed")


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
