"""What users register is found by its name: here, in worker processes, and in entry points."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest

import fedhpo_gym
from fedhpo_gym.agents import AGENTS, register_agent
from fedhpo_gym.agents.black_box import RandomSearch
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.core.plugins import plugin_modules
from fedhpo_gym.objectives import Objective, get_objective, register_objective
from fedhpo_gym.studies.environments import remake_environment, spec_of
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.run import CellWork, run_alone
from fedhpo_gym.tasks import get_task

RunPython = Callable[..., str]
MINE = """
import numpy as np
import fedhpo_gym
from fedhpo_gym.agents import register_agent
from fedhpo_gym.agents.black_box import RandomSearch
from fedhpo_gym.data import make_dataset, register_source
from fedhpo_gym.data.records import Source
from fedhpo_gym.objectives import Objective, register_objective
from fedhpo_gym.tasks import get_task

class Greedy(RandomSearch):
    def ask(self, observation):
        return 0.5 * super().ask(observation)

class Made(Source):
    origin = "made up"
    def read(self):
        rng = np.random.default_rng(0)
        labels = rng.integers(2, size=900)
        features = rng.normal(size=(900, 3)) + labels[:, None]
        return make_dataset("Mine", features, labels, 2)

worst = Objective.of(lambda e: e.clients("val", "loss").max(), name="worst", unit="nats",
                     minimize=True, bounds=(0.0, 10.0))
register_objective(worst)
register_agent("greedy", Greedy)
register_source(Made(name="Mine", num_classes=2, licence="mine", citation="me"))
like = get_task("LR-CreditG-v1")
task = like.variant(dataset="Mine", num_features=3, num_parameters=8, version=3, numbers=None,
                    unstored="raw", citation="mine")
ID = fedhpo_gym.register_task(task)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a module that registers one of each kind."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.usefixtures("folder")
def test_a_task_of_a_module_is_trained_with_its_agent_and_objective() -> None:
    out = ["--seeds", "1", "--fidelity", "round=1", "--fidelity", "client_sample_rate=1.0"]
    out += ["--set", "budget_trials=2", "--set", 'objectives=["val_loss", "worst"]']
    words = ["run", "mine:FedHPO-LR-Mine", "--agent", "greedy", *out, "--out", "here"]
    assert main(words) == 0
    assert "mine" in plugin_modules()
    frame = fedhpo_gym.load_runs("here")
    assert set(frame["id"]) == {"FedHPO-LR-Mine-v3"}
    assert (frame["heard.worst"] >= frame["heard.val_loss"]).all()
    assert main(["replay", "here"]) == 0
    assert main(["show", "mine:FedHPO-LR-Mine"]) == 0


@pytest.mark.slow
def test_a_record_of_ones_own_is_replayed_once_its_module_is_named(
    folder: Path, run_python: RunPython
) -> None:
    out = ["--seeds", "1", "--fidelity", "round=1", "--set", "budget_trials=1", "--out", "here"]
    assert main(["run", "mine:FedHPO-LR-Mine", "--agent", "random", *out]) == 0
    code = f"""
import os, sys
os.chdir({str(folder)!r})
from fedhpo_gym.cli import main
first = main(["replay", "here"]), "mine" in sys.modules
print(*first, main(["replay", "here", "--plugins", "mine"]))
"""
    assert run_python(code).splitlines()[-1] == "2 False 0"


@pytest.mark.slow
def test_another_process_finds_what_the_module_registers(folder: Path) -> None:
    importlib.import_module("mine")
    fast = {"round": 1, "client_sample_rate": 1.0}
    asked = Request(
        ["FedHPO-LR-Mine-v3"], ["greedy"], 1, fidelity=fast, arguments={"budget_trials": 2}
    )
    (plan,) = make_plans(asked)
    work = CellWork(folder, columnar=False, places=(str(folder),))
    assert work.plugins == plugin_modules()
    outcome = run_alone(work, plan)
    assert (outcome.status, outcome.words) == ("done", "")


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_an_objective_by_module_and_name_is_a_function_that_no_record_holds() -> None:
    env = gym.make("FedHPO-LR-CreditG-v1", objectives=["val_loss", "mine:worst"])
    env.reset(seed=0)
    env.action_space.seed(0)
    info = env.step(env.action_space.sample())[-1]
    assert info["objectives"]["worst"] >= info["objectives"]["val_loss"]
    spec = spec_of(env)
    assert spec["kwargs"]["objectives"][1]["own_objective"] == "worst"
    spec["kwargs"]["objectives"][1] = "mine:worst"
    with pytest.raises(InvalidArgumentError, match="must name no module, which would be run"):
        remake_environment("FedHPO-LR-CreditG-v1", spec)


def test_names_of_this_package_are_not_replaced_and_ones_own_are() -> None:
    own = Objective.of(lambda _: 1.0, name="constant", unit="1", minimize=True, bounds=(0, 1))
    again = Objective.of(lambda _: 0.0, name="constant", unit="1", minimize=True, bounds=(0, 1))
    register_objective(own)
    register_objective(again)
    assert get_objective("constant") is again
    known = partial(fedhpo_gym.truth, "FedHPO-LR-CreditG-v1", objectives=["constant"])
    assert known().best == 0.0
    register_objective(own)
    assert known().best == 1.0
    with pytest.raises(InvalidArgumentError, match="must be none of this package, got 'val_loss'"):
        register_objective(get_objective("val_loss"))
    with pytest.raises(InvalidArgumentError, match="must be none of this package"):
        register_agent("random", RandomSearch)
    with pytest.raises(InvalidArgumentError, match="must be none of this package"):
        fedhpo_gym.register_task(get_task("LR-CreditG-v1"))
    with pytest.raises(InvalidArgumentError, match="letters, digits"):
        register_agent("mine:x", RandomSearch)
    assert "constant" not in AGENTS


def test_an_unknown_module_before_an_id_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "no_such_module:FedHPO-LR-Mine", "--agents", "random"]) == ERROR
    said = capsys.readouterr().err
    assert re.search("must name a module that registers the id; there is no module", said)
    with pytest.raises(UnknownNameError):
        get_task("LR-NoSuch")


def test_installed_packages_add_theirs_by_an_entry_point(
    tmp_path: Path, run_python: RunPython
) -> None:
    """A broken one is named in a warning, and the others are there."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "ends.py").write_text("import sys; sys.exit(3)", encoding="utf-8")
    (tmp_path / "base.py").write_text("class B(BaseException): pass\nraise B", encoding="utf-8")
    silent = "class E(Exception):\n def __repr__(self): 1 / 0\nraise E"
    (tmp_path / "silent.py").write_text(silent, encoding="utf-8")
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[fedhpo_gym]\na = broken\nb = mine\nc = ends\nd = base\ne = silent\n"
    )
    code = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import fedhpo_gym
print(*[str(one.message) for one in told])
import gymnasium
print(gymnasium.spec("FedHPO-DAC-LR-Mine-v3").id, "greedy" in fedhpo_gym.agents.REGISTERED)
"""
    said = run_python(code, {"PYTHONPATH": str(tmp_path)})
    for module, name in zip(("broken", "ends", "base", "silent"), "acde", strict=True):
        assert f"{module} of the entry point {name!r} cannot be imported and is left out" in said
    assert said.splitlines()[-1] == "FedHPO-DAC-LR-Mine-v3 True"


def test_a_list_of_entry_points_that_cannot_be_read_hides_no_other(
    tmp_path: Path, run_python: RunPython
) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    for name, line in (("mine", "b = mine"), ("odd", "nonsense")):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[fedhpo_gym]\n{line}\n")
    code = """
import warnings
import gymnasium
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from fedhpo_gym.core.plugins import load_entry_points
    load_entry_points()
print(*[str(one.message) for one in told])
print("mine" in __import__("sys").modules)
"""
    said = run_python(code, {"PYTHONPATH": str(tmp_path)})
    assert "what an `entry_points.txt` lists in" in said
    assert said.splitlines()[-1] == "True"
