"""Runs are followed as they go on, by libraries that are asked for only then."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fake_study import fake_environments, make_record
from fedhpo_gym.core.errors import MissingDependencyError, UnknownNameError
from fedhpo_gym.studies.tracking import scalars, track_run

__all__ = ["fake_environments"]


def follow(names: list[str], folder: Path) -> None:
    record = make_record()
    with track_run(names, folder, "run", record.header) as told:
        for step in record.steps:
            told(step)


def test_tensorboard_gets_every_number_of_every_trial(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    follow(["tensorboard"], tmp_path)
    record = make_record()
    (events,) = (tmp_path / "tensorboard" / record.header.id / "run").iterdir()
    content = events.read_bytes()
    for name in scalars(record.steps[0]):
        assert content.count(name.encode()) == len(record.steps), name


class Session:
    """What `wandb.init` returns, as far as it is used."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.logged: list[dict[str, float]] = []
        self.over = False

    def init(self, **asked: Any) -> Session:
        self.asked = asked
        return self

    def log(self, numbers: dict[str, float]) -> None:
        assert not self.over
        self.logged.append(numbers)

    def finish(self) -> None:
        self.over = True


def test_weights_and_biases_stays_offline_and_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, module = Session(), ModuleType("wandb")
    module.init = session.init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    follow(["wandb"], tmp_path)
    steps = make_record().steps
    assert session.asked["mode"] == "offline"
    assert [one["elapsed_s"] for one in session.logged] == [step.elapsed_s for step in steps]
    assert session.logged[0]["objectives/val_loss"] == steps[0].objectives["val_loss"]
    assert session.over


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_library_names_the_extra(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match="track"):
        follow([name], tmp_path)


def test_a_wrong_name_is_told_the_right_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="tensorboard"):
        follow(["tensorbord"], tmp_path)
