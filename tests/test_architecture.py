"""Imports point downwards, heavy packages have one door each, and nothing can run foreign code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import import_contract as contract

REPOSITORY = Path(__file__).resolve().parents[1]
HEAVY = (
    "torch",
    "numba",
    "sklearn",
    "pandas",
    "matplotlib",
    "optuna",
    "stable_baselines3",
    "openml",
)
CHECKS = (
    contract.layering_faults,
    contract.third_party_faults,
    contract.unsafe_faults,
    contract.assert_faults,
    contract.size_faults,
)
Check = Callable[[str, str], Iterator[str]]


def modules(folder: str) -> dict[str, str]:
    """Return the source of every module below a folder, by dotted name."""
    found = {}
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return found


PACKAGE = modules(contract.PACKAGE)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_package_keeps_the_contract(check: Check) -> None:
    assert len(PACKAGE) > 5, "the package was not found"
    faults = [fault for name, source in PACKAGE.items() for fault in check(name, source)]
    assert not faults, "\n".join(faults)


def test_every_part_imports_all_that_it_may() -> None:
    used: dict[str, set[str]] = {part: set() for part in contract.LAYERS}
    for name, source in PACKAGE.items():
        for found in contract.imports_of(source):
            if found.module.partition(".")[0] == contract.PACKAGE:
                used[contract.part_of(name)].add(contract.part_of(found.module))
    idle = {part: allowed - used[part] for part, allowed in contract.LAYERS.items()}
    assert {part for part, names in idle.items() if names - contract.EVERYTHING} == set()


@pytest.mark.parametrize("folder", ["tests", "examples", "docs/studies", "benchmarks"])
def test_files_outside_the_package_are_small_too(folder: str) -> None:
    named = modules(folder).items()
    faults = [fault for name, source in named for fault in contract.size_faults(name, source)]
    assert not faults, "\n".join(faults)


LAYERING = contract.layering_faults
THIRD_PARTY = contract.third_party_faults
UNSAFE = contract.unsafe_faults

PLANTED: list[tuple[Check, str, str, str]] = [
    (
        LAYERING,
        "space.space",
        "from fedhpo_gym.tasks import get_task",
        "layer 0 must not import tasks",
    ),
    (LAYERING, "objectives.base", "import fedhpo_gym.systems", "objectives must not import sys"),
    (LAYERING, "stored.table", "from fedhpo_gym import fl", "stored must not import fl"),
    (
        LAYERING,
        "fl.engine",
        "from fedhpo_gym.stored.table import Table",
        "fl must not import stored",
    ),
    (LAYERING, "analysis.report", "from fedhpo_gym.envs import TrialEnv", "must not import envs"),
    (LAYERING, "tasks.lr", "from fedhpo_gym.backends import base", "tasks must not import back"),
    (LAYERING, "backends.raw", "from fedhpo_gym.envs import x", "backends must not import envs"),
    (LAYERING, "backends.raw", "from fedhpo_gym.fl import x", "backends must not import fl"),
    (LAYERING, "envs.trial", "from fedhpo_gym.agents import x", "envs must not import agents"),
    (LAYERING, "envs.trial", "from fedhpo_gym.stored import x", "envs must not import stored"),
    (LAYERING, "wrappers.budget", "from fedhpo_gym.backends import x", "must not import backends"),
    (LAYERING, "agents.random", "from fedhpo_gym.backends import x", "must not import backends"),
    (LAYERING, "agents.random", "import fedhpo_gym", "agents must not import root"),
    (LAYERING, "agents.a", "def f() -> None:\n    import fedhpo_gym.envs.trial.env", "import envs"),
    (LAYERING, "agents.a", "import_module('fedhpo_gym.tasks')", "agents must not import tasks"),
    (LAYERING, "fl.engine", "if TYPE_CHECKING:\n    import fedhpo_gym.tasks", "import tasks"),
    (LAYERING, "agents.a", "from ..backends import x", "relative import"),
    (LAYERING, "helpers.a", "", "'helpers' has no place in the layers"),
    (THIRD_PARTY, "stored.table", "import torch", "torch may only be imported by fl"),
    (THIRD_PARTY, "flavours", "import torch.nn", "torch may only be imported by fl"),
    (THIRD_PARTY, "backends.raw", "def f() -> None:\n    import torch", "torch may only be"),
    (THIRD_PARTY, "fl.engine", "import sklearn", "sklearn may only be imported by data"),
    (THIRD_PARTY, "agents.tpe", "import optuna", "optuna may only be"),
    (THIRD_PARTY, "agents.ppo", "from stable_baselines3 import PPO", "stable_baselines3 may only"),
    (THIRD_PARTY, "agents.ppo", "require('stable_baselines3', 'rl')", "stable_baselines3 may only"),
    (THIRD_PARTY, "analysis.plot", "import matplotlib.pyplot as plt", "inside a function"),
    (THIRD_PARTY, "space.space", "import gymnasium", "gymnasium may only be"),
    (THIRD_PARTY, "objectives.base", "from sympy import gamma", "is no dependency"),
    (UNSAFE, "stored.table", "import pickle", "can run code from a file"),
    (UNSAFE, "stored.table", "from joblib import load", "can run code from a file"),
    (UNSAFE, "stored.table", "eval('1 + 1')", "runs code from a string"),
    (UNSAFE, "stored.table", "builtins.exec(text)", "runs code from a string"),
    (UNSAFE, "stored.table", "np.load(path, allow_pickle=True)", "allow_pickle"),
    (UNSAFE, "stored.table", "np.load(path, allow_pickle=flag)", "allow_pickle"),
    (UNSAFE, "stored.table", "numpy.load(path, None, True)", "allow_pickle"),
    (UNSAFE, "fl.engine", "torch.load(path)", "a pickle"),
    (UNSAFE, "data.x", "pd.read_pickle(path)", "a pickle"),
    (contract.assert_faults, "space.space", "assert x is not None", "1 asserts, more than"),
    (contract.assert_faults, "fl.self_check", "assert x > 0", "does more than narrow a type"),
    (contract.size_faults, "space.space", "x = 1\n" * 601, "601 lines, more than 600"),
]


@pytest.mark.parametrize(("check", "module", "source", "message"), PLANTED)
def test_a_planted_fault_is_found(check: Check, module: str, source: str, message: str) -> None:
    faults = list(check(f"{contract.PACKAGE}.{module}", source))
    assert len(faults) == 1, faults
    assert message in faults[0]


LEGAL: list[tuple[str, str]] = [
    ("", "from fedhpo_gym.envs.trial.arguments import register_all"),
    (
        "evaluation.records",
        "import numpy as np\nimport zlib\nfrom fedhpo_gym.core.errors import FedHPOError",
    ),
    ("tasks.lr", "from fedhpo_gym.systems import SystemModel\nfrom fedhpo_gym.tasks.base import T"),
    ("backends.training", "def f() -> None:\n    from fedhpo_gym.fl import engine"),
    ("envs.trial.arguments", "from fedhpo_gym.wrappers import ScalarizePenalty"),
    ("agents.sb3", "import stable_baselines3"),
    ("agents.optuna_agents", "import optuna\nfrom fedhpo_gym.agents.base import Agent"),
    ("fl.models.cnn", "import torch\nimport torch.nn as nn\nmodel.eval()\ntorch.compile(model)"),
    ("data.tables", "require('openml', 'data')"),
    ("analysis.plot", "def f() -> None:\n    import matplotlib.pyplot as plt"),
    (
        "stored.table",
        "import re\nre.compile('a')\nnp.load(path, allow_pickle=False)\nnp.load(path)",
    ),
    ("cli", "from fedhpo_gym import __version__, agents\nfrom fedhpo_gym.fl import engine"),
    ("space.space", "x = 1\n" * 600),
]


@pytest.mark.parametrize(("module", "source"), LEGAL)
def test_legal_code_is_left_alone(module: str, source: str) -> None:
    name = f"{contract.PACKAGE}.{module}".rstrip(".")
    assert not [fault for check in CHECKS for fault in check(name, source)]


HEAVY_LOADED = "{imports}\nimport sys; print(*sorted(set({heavy!r}) & set(sys.modules)))"


def test_no_part_but_the_engine_loads_anything_heavy(run_python: Callable[..., str]) -> None:
    # The front door of every part: a tabular environment and its agents need none of these.
    doors = {
        ".".join(name.split(".")[:2])
        for name in PACKAGE
        if contract.part_of(name) not in {"fl", "building"}
    }
    code = f"import gymnasium, {', '.join(sorted(doors))}\n"
    code += "gymnasium.make('FedHPO-LR-CreditG-v1', backend='tabular').reset(seed=0)\n"
    assert run_python(HEAVY_LOADED.format(imports=code, heavy=HEAVY)).split() == []


def test_a_heavy_import_would_be_noticed(run_python: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    (tmp_path / "light.py").write_text("import torch", encoding="utf-8")
    code = HEAVY_LOADED.format(imports="import light", heavy=HEAVY)
    assert run_python(code, env={"PYTHONPATH": str(tmp_path)}).split() == ["torch"]
