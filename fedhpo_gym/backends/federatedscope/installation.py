"""Find or install FederatedScope: its source tree, and an interpreter with its dependencies.

`fedhpo-gym federatedscope install` calls `install`, which makes a virtual environment with fixed
versions; the backend and the courses call `find_installation`. The environment is separate from
that of this package, because FederatedScope pins versions of its dependencies. Its source tree is
used as it is and never changed.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fedhpo_gym.backends.federatedscope.configuration import unsupported
from fedhpo_gym.core.errors import (
    FedHPOError,
    InvalidArgumentError,
    MissingDependencyError,
    PeerError,
)
from fedhpo_gym.core.files import write_text
from fedhpo_gym.tasks import Task

VARIABLE = "FEDHPO_GYM_FEDERATEDSCOPE"
"""Environment variable: the folder that `fedhpo-gym federatedscope install` made."""
RUNNER = "federatedscope/core/fed_runner.py"
"""File that every version of FederatedScope has."""
CARD = "installation.json"
"""File in that folder with the paths of source and interpreter."""


@dataclass(frozen=True)
class Installation:
    """FederatedScope on this machine."""

    source: Path  # its source tree, which holds the folder `federatedscope`
    interpreter: Path  # Python that has its dependencies

    def check(self) -> "Installation":
        """Return the installation with absolute paths, or raise if one of them is missing."""
        if not (self.source / RUNNER).is_file():
            raise InvalidArgumentError(
                f"`source` must be FederatedScope's source tree, with {RUNNER} in it, got "
                f"{str(self.source)!r}; `git clone` it from github.com/alibaba/FederatedScope"
            )
        if not (self.interpreter.is_file() and os.access(self.interpreter, os.X_OK)):
            raise InvalidArgumentError(
                "`interpreter` must be a Python program that has FederatedScope's dependencies, "
                f"got {str(self.interpreter)!r}, which cannot be run; `fedhpo-gym federatedscope "
                "install DIR` makes one"
            )
        # Not resolved: Python finds its virtual environment by the folder of the link.
        return Installation(self.source.absolute(), self.interpreter.absolute())


def find_installation(source: str | None = None, interpreter: str | None = None) -> Installation:
    """Return the installation of the arguments, else that of the environment variable."""
    if source is not None:
        if interpreter is None:
            raise InvalidArgumentError(
                "`interpreter` must be given with `source`, got None; name a Python that has "
                "FederatedScope's dependencies, such as one that `fedhpo-gym federatedscope "
                f"install DIR` makes, or this one, {sys.executable}"
            )
        return Installation(Path(source), Path(interpreter)).check()
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise MissingDependencyError(
            'backend="federatedscope" needs FederatedScope: give `source` (its source tree) and '
            f"`interpreter`, or set {VARIABLE} to a folder made by `fedhpo-gym federatedscope "
            "install DIR --source TREE`"
        )
    installed = read_card(Path(folder))
    python = Path(interpreter) if interpreter else installed.interpreter
    return Installation(installed.source, python).check()


def read_card(folder: Path) -> Installation:
    """Return the installation that `fedhpo-gym federatedscope install` made in a folder."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        return Installation(Path(card["source"]), Path(card["interpreter"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidArgumentError(
            f"{VARIABLE} must name a folder made by `fedhpo-gym federatedscope install DIR`, got "
            f"{str(folder)!r} ({error}); install again"
        ) from error


PYTHON = (3, 11)
"""Oldest Python that the versions below support."""
NEEDED_MB = 1500
"""Disk space in MB with the CPU build of torch; its GPU builds take five times as much. Downloads
are a third of it."""

DIRECT, BEHIND = (
    Path(__file__).with_name(name).read_text(encoding="utf-8").split()
    for name in ("direct.txt", "behind.txt")
)
"""Requirements that FederatedScope imports for the courses of this package, and their requirements.
FederatedScope pins older versions, which newer Pythons do not support; these versions were tested
with FederatedScope 0.1 (a653102) and 0.3 (480b67d). GPU builds of torch need more packages."""


def describe_requirements(folder: Path, source: Path) -> str:
    """Return the text that describes an installation before it is made."""
    Installation(source, Path(sys.executable)).check()
    names = ", ".join(word.partition("==")[0] for word in DIRECT)
    return (
        f"This makes a virtual environment of Python {sys.version_info.major}."
        f"{sys.version_info.minor} in {folder} with {len(DIRECT)} packages ({names}) and what "
        f"they need, at fixed versions, by pip and the index that it is set up for. It takes "
        f"{NEEDED_MB / 1000:g} GB of disk with the CPU build of torch, a third of it to download, "
        f"and some minutes. FederatedScope itself is used where it is, in {source}; nothing there "
        "is changed."
    )


def install(folder: Path, source: Path, say: Callable[[str], None]) -> Installation:
    """Make the environment in a new or empty folder; after a failure, it is removed again."""
    source = Installation(source, Path(sys.executable)).check().source
    _require_room(folder)
    environment = folder.absolute() / "environment"
    installation = Installation(source, environment / "bin" / "python")
    constraints = folder / "constraints.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(constraints, "\n".join((*DIRECT, *BEHIND)) + "\n")
        say(f"Making {environment}")
        _run([sys.executable, "-m", "venv", str(environment)])
        say("Installing packages; this takes some minutes")
        pip = [str(installation.interpreter), "-m", "pip", "install", "--no-input", "--quiet"]
        _run([*pip, "--constraint", str(constraints), *DIRECT])
        card = {"source": str(installation.source), "interpreter": str(installation.interpreter)}
        write_text(folder / CARD, json.dumps(card, indent=1) + "\n")
    except BaseException:
        shutil.rmtree(environment, ignore_errors=True)
        constraints.unlink(missing_ok=True)
        raise
    return installation


def _require_room(folder: Path) -> None:
    if sys.version_info < PYTHON:
        raise InvalidArgumentError(
            f"Python must be {'.'.join(map(str, PYTHON))} or newer to install, got "
            f"{sys.version.split()[0]}"
        )
    if folder.exists() and any(folder.iterdir()):
        raise InvalidArgumentError(
            f"`DIR` must be a new or an empty folder, got {str(folder)!r}; remove what is in it, "
            "or name another one"
        )
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    free = shutil.disk_usage(above).free / 1e6
    if free < NEEDED_MB:
        raise InvalidArgumentError(
            f"`DIR` must be where {NEEDED_MB:,} MB are free, got {str(folder)!r} with {free:,.0f}"
        )


def _run(command: Iterable[str]) -> None:
    arguments = list(command)
    inside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(  # noqa: S603 - Python and pip
        arguments, capture_output=True, text=True, check=False, env=inside
    )
    if done.returncode:
        end = (done.stdout + done.stderr)[-2000:].strip()
        raise PeerError(f"`{' '.join(arguments[:4])} ...` ended with {done.returncode}: {end}")


def why_not(task: Task) -> str:
    """Return why FederatedScope cannot train a task here, or ""; no process is started."""
    if reason := unsupported(task.variant(precision="float32")):  # as environments train it
        return reason
    if not os.environ.get(VARIABLE):
        return "no `fedhpo-gym federatedscope install` yet, or it is not named"
    try:
        find_installation()
    except FedHPOError as error:
        return str(error)
    return ""
