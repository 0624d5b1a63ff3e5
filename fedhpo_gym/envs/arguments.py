"""Records of arguments that users write by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from fedhpo_gym.errors import InvalidArgumentError, suggest
from fedhpo_gym.systems import SystemModel

R = TypeVar("R")


def from_names(record: type[R], arguments: Mapping[str, Any], others: Sequence[str] = ()) -> R:
    """Make a dataclass of arguments from what a user wrote.

    Args:
        record: the dataclass; it checks its fields, and has one named `task`.
        arguments: values by name.
        others: names that the caller takes itself, for suggestions.

    Raises:
        InvalidArgumentError: an argument is unknown, missing, or out of its range.
        UnknownNameError: a name does not exist.
    """
    known = {field.name for field in fields(record)}  # type: ignore[arg-type]
    for name in arguments:
        if name not in known:
            hint = suggest(name, known | set(others))
            raise InvalidArgumentError(f"unknown argument {name!r}.{hint}")
    if "task" not in arguments:
        raise InvalidArgumentError("`task` must name a problem of the catalogue, got nothing")
    return record(**arguments)


def changed_system(base: SystemModel, changes: Mapping[str, Any]) -> SystemModel:
    """Return a system model with some parameters replaced.

    Raises:
        InvalidArgumentError: a parameter is unknown or out of its range.
    """
    known = {field.name for field in fields(SystemModel)}
    for name in changes:
        if name not in known:
            raise InvalidArgumentError(f"unknown system parameter {name!r}.{suggest(name, known)}")
    return replace(base, **changes)
