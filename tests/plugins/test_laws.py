"""What was added passes the kit by one call, and a planted fault is found by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.testing import laws_of

MINE = """
import numpy as np, fedhpo_gym
from fedhpo_gym.agents.black_box import RandomSearch
from fedhpo_gym.objectives import Objective, register_objective
from fedhpo_gym.space import Dimension, SearchSpace

class Greedy(RandomSearch): pass
class Unseeded(RandomSearch):
    def ask(self, observation):
        return np.random.uniform(-1, 1, self.action_space.shape).astype(np.float32)

def leaf(configuration, fidelity): return {"val_loss": configuration["x"] / fidelity["round"]}

def kept(evaluation): return evaluation.mean("val", "accuracy")
def outside(evaluation): return evaluation.mean("val", "loss") * np.random.random()

good = Objective.of(kept, name="good", unit="1", minimize=False, bounds=(0, 1))
odd = Objective.of(outside, name="odd", unit="nats", minimize=True, bounds=(0, 10))
SPACE = SearchSpace((Dimension("x", 0.1, 2.0, "float"),))
fedhpo_gym.register_function("Own-Leaf", leaf, SPACE, rounds=[1, 2, 4])
register_objective(good)
"""

MODEL = """
import torch, fedhpo_gym

def net(shape, classes): return torch.nn.Linear(*shape, classes)

fedhpo_gym.register_model("Line", net)
"""
"""Not among the others: every process that tries one of them would import torch."""


def check(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    (folder / "models.py").write_text(MODEL, encoding="utf-8")
    modules = "mine, models" if "Line" in names else "mine"
    code = f"import {modules}, sys\nfrom fedhpo_gym.cli import main\nsys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "check", "--laws", *names]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.raw
def test_one_of_each_kind_passes_by_one_call(tmp_path: Path) -> None:
    """Each kind imports torch or runs a whole kit."""
    done = check(tmp_path, "mine:Greedy", "mine:good", "good", "Line", "FedHPO-Own-Leaf")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert done.stdout.count(" passed") == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mine:Unseeded", "mine:odd"])
def test_a_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    done = check(tmp_path, name)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-2000:]
    assert " failed" in done.stdout


def test_what_has_no_laws_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Unknown model 'nonsense'"):
        laws_of("nonsense")
    with pytest.raises(InvalidArgumentError, match="there is no module 'no_such'"):
        laws_of("no_such:Thing")
    assert [*laws_of("random")] == [
        "TestRandomTrialAgentConformance",
        "TestRandomRoundAgentConformance",
    ]
