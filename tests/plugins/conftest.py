"""What a test of this folder registers is forgotten after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from fedhpo_gym import agents, algorithms, objectives, tasks
from fedhpo_gym.core import plugins
from fedhpo_gym.data import catalogue, load_dataset
from fedhpo_gym.fl import models
from fedhpo_gym.tasks.own import ENV_VAR


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the user's task files, which begins empty."""
    folder = tmp_path / "tasks"
    monkeypatch.setenv(ENV_VAR, str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(plugins, "_modules", {})
    monkeypatch.chdir(tmp_path)
    known = {*gym.registry}
    yield folder
    for kind in (agents, algorithms, objectives, tasks, catalogue, models):
        for name in [*kind.REGISTERED]:
            del kind.REGISTERED[name]
    for name in {*gym.registry} - known:
        del gym.registry[name]
    load_dataset.cache_clear()
