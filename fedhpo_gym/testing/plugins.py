"""The laws of any plugin of a user, by one call."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from fedhpo_gym.agents import AGENTS, Agent
from fedhpo_gym.agents import REGISTERED as OWN_AGENTS
from fedhpo_gym.algorithms import ALGORITHMS, Algorithm, algorithm_name
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.plugins import import_named, plugin_modules
from fedhpo_gym.objectives import OBJECTIVES, get_objective
from fedhpo_gym.objectives import REGISTERED as OWN_OBJECTIVES
from fedhpo_gym.studies.environments import resolve_id
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing.agent import agent_laws
from fedhpo_gym.testing.conformance import (
    AlgorithmConformance,
    ModelConformance,
    ObjectiveConformance,
)
from fedhpo_gym.testing.task import RoundConformance, TaskConformance


@validate_call
def laws_of(name: str, settings: Mapping[str, float] = MappingProxyType({})) -> Mapping[str, type]:
    """Return classes of laws for pytest, by their names: put them into a test module's globals.

    Args:
        name: an environment id, the name of an agent, an algorithm, an objective or a model, or
            `module:name`.
        settings: hyperparameters that shape a model, or that an algorithm is trained with, by name.

    Raises:
        UnknownNameError: nothing has that name.
        InvalidArgumentError: `module:name` cannot be imported, or is nothing of the kind.
    """
    title = "".join(letter for letter in name.title() if letter.isalnum())
    laws, attributes = _laws_and_attributes(name, settings)
    return {f"Test{title}{law.__name__}": type(law.__name__, (law,), attributes) for law in laws}


def _laws_and_attributes(
    name: str, settings: Mapping[str, float]
) -> tuple[tuple[type, ...], dict[str, Any]]:
    """Return the classes of laws for a name, and the attributes of their subclasses."""
    if "FedHPO-" in name:
        task = get_task(resolve_id(name))
        laws = (TaskConformance, RoundConformance) if task.has_data else (TaskConformance,)
        return laws, {"task_id": task.id, "backend": task.unstored}
    imported = import_named("name", "what is checked", name) if ":" in name else None
    if name in {*AGENTS, *OWN_AGENTS} or (
        isinstance(imported, type) and issubclass(imported, Agent)
    ):
        return agent_laws(name), {"name": name}
    if name in ALGORITHMS or (isinstance(imported, type) and issubclass(imported, Algorithm)):
        return (AlgorithmConformance,), {"name": algorithm_name(name), "settings": dict(settings)}
    if ":" in name or name in {*OBJECTIVES, *OWN_OBJECTIVES}:
        get_objective(name)
        return (ObjectiveConformance,), {"name": name}
    from fedhpo_gym.fl.models import get_model

    get_model(name)
    return (ModelConformance,), {"model": name, "settings": dict(settings)}


CODE = """
from fedhpo_gym.core.plugins import import_plugins
from fedhpo_gym.testing import laws_of
import_plugins({modules!r})
globals().update(laws_of({name!r}, {settings!r}))
"""


@validate_call
def check_plugin(
    name: str,
    settings: Mapping[str, float] = MappingProxyType({}),
    options: Sequence[str] = ("-q", "-rs", "-p", "no:cacheprovider"),
) -> bool:
    """Run all laws of a plugin with pytest; return whether all hold.

    Args:
        name: as of `laws_of`, and so are the errors.
        settings: as there.
        options: of pytest.

    Raises:
        UnknownNameError: nothing has that name.
        InvalidArgumentError: `module:name` cannot be imported, or no law could be tried.
    """
    laws_of(name, settings)  # raises errors of the name
    with tempfile.TemporaryDirectory() as folder:
        # pytest keeps a module by its name: each call has a file of its own name
        path = Path(folder) / f"test_{Path(folder).name}.py"
        values = {"modules": plugin_modules(), "name": name, "settings": dict(settings)}
        path.write_text(CODE.format(**values), encoding="utf-8")
        ini_file = Path(folder) / "pytest.ini"  # no file above the folder is read
        ini_file.write_text("[pytest]\n", encoding="utf-8")
        isolation = [
            "-c",
            str(ini_file),
            "--rootdir",
            folder,
            "--confcutdir",
            folder,
            "--noconftest",
        ]
        isolation.append("--import-mode=importlib")  # `sys.path` stays as it is
        status = pytest.main([*options, *isolation, str(path)])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise InvalidArgumentError(f"`name` must have laws that can be tried, got {name!r}")
    return status == pytest.ExitCode.OK
