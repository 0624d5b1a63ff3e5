"""Imports point downwards, heavy packages have one door each, and nothing can run foreign code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import import_contract as contract
from fedhpo_gym.data import SOURCES

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


def imported_names(source: str) -> Iterator[str]:
    """Yield all names that a module imports at any depth, as dotted names."""
    for node in ast.walk(contract.parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def circle_of(sources: Mapping[str, str]) -> list[str]:
    """Return the modules of a circle of imports; nothing where there is none."""
    graph = {
        name: {other for other in imported_names(source) if other in sources} - {name}
        for name, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_modules_import_each_other_in_no_circle() -> None:
    # A package imports its modules, which may import its other modules.
    files = {name: source for name, source in PACKAGE.items() if not is_package(name)}
    assert circle_of(files) == []
    planted = {"a": "def f():\n    import b", "b": "from c import x", "c": "import a\nimport d"}
    assert set(circle_of(planted)) == {"a", "b", "c"}


def is_package(name: str) -> bool:
    """Return whether a dotted name is that of a folder."""
    return (REPOSITORY / name.replace(".", "/")).is_dir()


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
    (LAYERING, "envs.trial", "from fedhpo_gym.building import x", "envs must not import building"),
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


# ------------------------------------------------------------------------------ names in docstrings

DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)`")
PEER = ".federatedscope.peer"  # of another interpreter: names there are its own


def _defined(nodes: Iterator[ast.AST]) -> set[str]:
    """Return what some code defines, imports, assigns, or takes as an argument."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(node.value.split(", "))  # names that are imported when they are asked for
    return found


def unresolved(modules: Mapping[str, str]) -> list[str]:
    """Return the dotted names in docstrings that name nothing of some modules."""
    trees = {name: contract.parsed(source) for name, source in modules.items()}
    rooms = {name.split(".")[1] for name in trees if "." in name}
    names = {name: _defined(ast.walk(tree)) for name, tree in trees.items()}
    classes = [n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    members: dict[str, set[str]] = {}
    for one in classes:
        members.setdefault(one.name, set()).update(_defined(ast.walk(one)))
    for one in classes * 3:  # bases of bases
        for base in (ast.unparse(base).partition("[")[0] for base in one.bases):
            members[one.name] |= members.get(base.rpartition(".")[2], {"*"})

    def is_known(word: str) -> bool:
        first, *rest = word.split(".")
        if first in members:
            return rest[0] in members[first] or "*" in members[first] - {"Protocol"}
        if first in rooms:
            first, rest = "fedhpo_gym", [first, *rest]
        if first != "fedhpo_gym":
            return True
        module = first
        while rest and f"{module}.{rest[0]}" in names:
            module, rest = f"{module}.{rest[0]}", rest[1:]
        return not rest or rest[0] in names[module]

    return [
        f"{name}:{node.lineno}: {word}"
        for name, tree in trees.items()
        if PEER not in name
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for word in DOTTED.findall(node.value.value)
        if not is_known(word)
    ]


def test_names_in_docstrings_resolve() -> None:
    assert not unresolved(PACKAGE)


def test_a_name_of_yesterday_is_found() -> None:
    base = 'class Best:\n    """`objectives.base.Best`."""\n    score = 1'
    words = "'`objectives.costs.COST_NAMES`, `Best.worst`, `Best.score`.'"
    package = "fedhpo_gym"
    planted = {package: "", f"{package}.objectives": words, f"{package}.objectives.base": base}
    found = [line.rpartition(" ")[2] for line in unresolved(planted)]
    assert found == ["objectives.costs.COST_NAMES", "Best.worst"]


def test_every_extra_that_is_named_exists() -> None:
    known = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extras = known["project"]["optional-dependencies"]
    calls = [
        node
        for source in PACKAGE.values()
        for node in ast.walk(contract.parsed(source))
        if isinstance(node, ast.Call)
    ]
    called = [getattr(node.func, "attr", getattr(node.func, "id", "")) for node in calls]
    # positions of the extra in the arguments of each call
    place = {"missing_dependency": 2, "require_optional": 2, "import_optional": 1}
    arguments = [
        node.args[place[name]]
        for node, name in zip(calls, called, strict=True)
        if len(node.args) > place.get(name, len(node.args))  # a starred argument hides it
    ]
    named = {one.value for one in arguments if isinstance(one, ast.Constant)}
    named |= {source.library[1] for source in SOURCES.values() if source.library}
    assert {"raw", "plot", "data", "natural"} <= named <= set(extras)
