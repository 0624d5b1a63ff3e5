"""What a run record may decide: numbers, and names of this package; no program and no file.

A record comes from whoever wrote it. Environments are made from one again, so each of their
arguments has a class here, and `SECURITY.md` shows the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import shown

DATA: Final = "data"
"""Numbers, and names that this package knows: checked by their types and ranges."""
PROGRAM: Final = "program"
"""A program, a folder of code, or settings of a foreign program: only the user may name it."""
SYSTEM: Final = "system"
"""Parameters of a clock: data, but for those that name a file."""

TRUST: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("task", "version", "vector_reward", "render_mode", "backend", "algorithm"),
                *("alpha", "preprocessing", "precision", "settings", "tune", "seed", "device"),
                *("time_limit_s", "objectives", "constraints", "fidelity", "grid", "freeze_thaw"),
                *("reward_transform", "budget_s", "budget_rounds", "budget_trials", "max_trials"),
                *("instances", "reward", "reward_discount", "reward_per_cost", "noise"),
                *("per_client", "rounds_per_step", "horizon", "client_sample_rate", "dynamic"),
                *("configuration", "history", "potential", "rewards", "reward_scale"),
                *("time_price", "divergence_penalty", "report_moves"),
            ),
            DATA,
        ),
        **dict.fromkeys(("source", "interpreter", "own_data"), PROGRAM),
        "system": SYSTEM,
    }
)
"""The class of every argument of an environment."""

FILES: Final = ("path", "devices_path", "availability_path")
"""Parameters of a clock that name a file."""

MOST_ENTRIES: Final = 10_000
"""Numbers and names that the arguments in a record may hold altogether."""


def trusted(arguments: Mapping[str, Any], named: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments of a record, with what the user names in place of what it may not say.

    Args:
        arguments: of an environment, as a record holds them.
        named: programs, folders and files that the user names in the same command.

    Raises:
        InvalidArgumentError: the record names a program or a file and the user does not, or its
            arguments are too many; or the user names what is not for a user to name.
    """
    chosen = dict(named or {})
    if (entries := _entries(arguments)) > MOST_ENTRIES:
        raise InvalidArgumentError(
            f"`spec` of the record must hold at most {MOST_ENTRIES:,} numbers and names as "
            f"arguments, got {entries:,} or more; make the environment in Python if you trust it"
        )
    for name in chosen:
        if TRUST.get(name) not in (PROGRAM, SYSTEM):
            raise InvalidArgumentError(
                f"`--set {name}` must be one of the arguments that a record may not decide: "
                "source, interpreter, own_data, or system with the path of a file; all others are "
                "the record's"
            )
    kept = dict(arguments)
    for name, value in arguments.items():
        if value is not None and TRUST.get(name) == PROGRAM and name not in chosen:
            raise _refused(name, value, f"{name}=...")
    kept |= {name: value for name, value in chosen.items() if TRUST[name] == PROGRAM}
    if isinstance(system := arguments.get("system"), Mapping):
        kept["system"] = _trusted_system(system, chosen.get("system"))
    return kept


def _trusted_system(system: Mapping[str, Any], named: Any) -> dict[str, Any]:
    files = dict(named) if isinstance(named, Mapping) else {}
    if set(files) - set(FILES):
        raise InvalidArgumentError(
            f"`--set system=` must name files only, by {FILES}, got {shown(named)}; the rest is "
            "the record's"
        )
    for name in FILES:
        if system.get(name) not in (None, "") and name not in files:
            raise _refused(f"system[{name!r}]", system[name], f'system={{"{name}": "..."}}')
    return {**system, **files}


def _refused(name: str, value: Any, setting: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"`{name}` must be named by you, not by a record, which could choose any program or file; "
        f"the record has {shown(value)}: if you trust it, repeat the command with "
        f"`--set '{setting}'`"
    )


def _entries(value: Any) -> int:
    """Count the leaves of nested lists and mappings, at most a little more than are allowed."""
    waiting, found = [value], 0
    while waiting and found <= MOST_ENTRIES:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one[: MOST_ENTRIES + 1]
            found += max(len(one) - MOST_ENTRIES, 0)
        else:
            found += 1
    return found + len(waiting)
