"""Where FederatedScope is: its source tree, and an interpreter with what it needs."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from fedhpo_gym.core.errors import InvalidArgumentError, MissingDependencyError

VARIABLE = "FEDHPO_GYM_FEDERATEDSCOPE"
"""Environment variable: the folder that `fedhpo-gym federatedscope install` made."""
CARD = "installation.json"
"""File in that folder that says where source and interpreter are."""


@dataclass(frozen=True)
class Installation:
    """FederatedScope on this machine.

    Attributes:
        source: its source tree, which holds the folder `federatedscope`.
        interpreter: Python that has its dependencies.
    """

    source: Path
    interpreter: Path

    def check(self) -> Installation:
        """Return the installation, with absolute paths, if both are there.

        Raises:
            InvalidArgumentError: one is not; says what to do.
        """
        if not (self.source / "federatedscope" / "__init__.py").is_file():
            raise InvalidArgumentError(
                "`source` must be FederatedScope's source tree, with the folder `federatedscope` "
                f"in it, got {str(self.source)!r}; `git clone` it from "
                "github.com/alibaba/FederatedScope"
            )
        if not (self.interpreter.is_file() and os.access(self.interpreter, os.X_OK)):
            raise InvalidArgumentError(
                "`interpreter` must be a Python program that has FederatedScope's dependencies, "
                f"got {str(self.interpreter)!r}, which is none; `fedhpo-gym federatedscope install "
                "DIR` makes one"
            )
        # Not resolved: what a virtual environment has is decided by the link's own place.
        return Installation(self.source.absolute(), self.interpreter.absolute())


def find(source: str | None = None, interpreter: str | None = None) -> Installation:
    """Return the installation that arguments name, else the one that the environment names.

    Args:
        source: source tree; by default that of the folder in `VARIABLE`.
        interpreter: Python; by default that of the same folder, and this one where a source is
            given.

    Raises:
        MissingDependencyError: nothing is named.
        InvalidArgumentError: what is named is not there, or the folder's card is damaged.
    """
    if source is not None:
        return Installation(Path(source), Path(interpreter or sys.executable)).check()
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise MissingDependencyError(
            'backend="federatedscope" needs FederatedScope: give `source` (its source tree) and '
            f"`interpreter`, or set {VARIABLE} to a folder made by `fedhpo-gym federatedscope "
            "install DIR --source TREE`"
        )
    installed = read_card(Path(folder))
    chosen = Path(interpreter) if interpreter else installed.interpreter
    return Installation(installed.source, chosen).check()


def read_card(folder: Path) -> Installation:
    """Return what `fedhpo-gym federatedscope install` made in a folder.

    Raises:
        InvalidArgumentError: it made nothing there, or the card is damaged.
    """
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        return Installation(Path(card["source"]), Path(card["interpreter"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidArgumentError(
            f"{VARIABLE} must name a folder made by `fedhpo-gym federatedscope install DIR`, got "
            f"{str(folder)!r} ({error}); install again"
        ) from error
