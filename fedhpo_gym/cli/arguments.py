"""The words of a command, from the signature of the function that it is.

Parameters by position are words, those by keyword only are options. One that is a dataclass
brings its fields; one without `Arg` is for callers in Python.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

T = TypeVar("T")
Command = Callable[..., int]


@dataclass(frozen=True)
class Arg:
    """How a parameter is given on the command line.

    Attributes:
        metavar: what stands for its value in the help.
        flag: the option, if it is not called as the parameter.
        several: whether several values may follow an option at once.
    """

    help: str | None = None
    metavar: str | None = None
    flag: str | None = None
    several: bool = False


class _Parameter(NamedTuple):
    name: str
    hint: Any
    default: Any
    is_option: bool


def take_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    """Let a parser take the words of a command; its `call` then runs the command on them."""
    parameters = list(_parameters(command))
    for one in parameters:
        inner = _fields(one.hint) if _is_group(one.hint) else [one]
        for parameter in inner:
            _add(parser, parameter)
    parser.set_defaults(call=partial(_call, command, parameters))


def group_of(kind: Callable[..., T], options: argparse.Namespace) -> T:
    """Return a dataclass of options from parsed words."""
    return kind(**{name: getattr(options, name) for name in inspect.signature(kind).parameters})


def _call(command: Command, parameters: Sequence[_Parameter], options: argparse.Namespace) -> int:
    given = {
        one.name: group_of(one.hint, options) if _is_group(one.hint) else getattr(options, one.name)
        for one in parameters
    }
    return command(**given)


def _parameters(command: Command) -> Iterator[_Parameter]:
    hints = hints_of(command, include_extras=True)
    for name, one in inspect.signature(command).parameters.items():
        hint = hints[name]
        if get_origin(hint) is Annotated or _is_group(hint):
            yield _Parameter(name, hint, one.default, one.kind is one.KEYWORD_ONLY)


def _is_group(hint: Any) -> bool:
    return is_dataclass(hint)


def _fields(kind: Any) -> Iterator[_Parameter]:
    hints: Mapping[str, Any] = hints_of(kind, include_extras=True)
    for one in fields(kind):
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        yield _Parameter(one.name, hints[one.name], default, one.default is not MISSING)


def _add(parser: argparse.ArgumentParser, one: _Parameter) -> None:
    hint, arg = get_args(one.hint)
    if get_origin(hint) in (Union, UnionType):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    is_given = one.default is not inspect.Parameter.empty
    how: dict[str, Any] = {"help": arg.help}
    if hint is bool:
        how["action"] = "store_false" if one.default else "store_true"
    else:
        how |= {"metavar": arg.metavar, **_values(hint, one, is_given=is_given, arg=arg)}
    if not one.is_option:
        parser.add_argument(one.name, **how)
        return
    if hint is not bool:
        how |= {"required": not is_given}
        how |= {"default": _fresh(one.default)} if is_given else {}
    flag = arg.flag or f"--{one.name.replace('_', '-')}"
    parser.add_argument(flag, dest=one.name, **how)


def _values(hint: Any, one: _Parameter, *, is_given: bool, arg: Arg) -> dict[str, Any]:
    """Return how many values there are, and of which type."""
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is not Sequence:
        count = {} if one.is_option or not is_given else {"nargs": "?", "default": one.default}
        return {"type": hint, **count}
    of = get_args(hint)[0]
    if not one.is_option:
        return {"type": of, "nargs": "*" if is_given else "+"}
    return {
        "type": of,
        **({"action": "extend", "nargs": "+"} if arg.several else {"action": "append"}),
    }


def _fresh(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default
