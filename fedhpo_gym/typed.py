"""Arguments have the types that signatures promise, or the error says which one is meant."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.checks import as_integer, as_number
from fedhpo_gym.errors import InvalidArgumentError, suggest

FAULTS: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What foreign objects may raise when they are read; too deep nesting is a RuntimeError."""
INT_END: Final = 2**63
"""Integers of this size and beyond fit into no int64."""
_UNIONS: Final = (Union, UnionType)
_FLOATS: Final = (np.dtype(np.float32), np.dtype(np.float64))
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 200
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 12


class _WrongTypeError(Exception):
    pass


def shown(value: object) -> str:
    """Return a value as an error message shows it: never long, and never an error itself."""
    try:
        return _repr.repr(value)
    except FAULTS:  # such as an integer of more digits than Python writes
        return f"something of type {type(value).__name__}, too large to show"


def as_typed(name: str, value: object, hint: Any) -> Any:
    """Return a value as the type that an annotation names; numbers become built-in ones.

    Args:
        name: what the argument is called, for the message.
        value: what was given.
        hint: a class, None, `Any`, a `Literal`, a union, or a `Mapping` or `Sequence` of such. A
            `float` may be whole. A sequence comes back as a list or a tuple, a mapping as a
            dictionary.

    Raises:
        InvalidArgumentError: it has another type.
    """
    try:
        return _typed(value, hint)
    except _WrongTypeError:
        raise InvalidArgumentError(f"`{name}` must be {_words(hint)}, got {shown(value)}") from None


def check_fields(record: Any) -> None:
    """Give every field of a frozen dataclass the type of its annotation.

    Raises:
        InvalidArgumentError: a field has another type.
    """
    hints = _hints(type(record))  # type: ignore[arg-type]  # mypy: a type is no Hashable
    for field in fields(record):
        value = as_typed(field.name, getattr(record, field.name), hints[field.name])
        object.__setattr__(record, field.name, value)


def as_reals(name: str, value: object) -> NDArray[np.floating]:
    """Return an array of real numbers; float32 stays, all else becomes float64.

    Raises:
        InvalidArgumentError: it holds something else, such as complex numbers, truth values or
            strings, or its rows have different lengths.
    """
    try:
        array = np.asarray(value)
    except FAULTS:
        array = np.asarray(None)
    if array.dtype.kind not in "fiu":
        raise InvalidArgumentError(f"`{name}` must be an array of real numbers, got {shown(value)}")
    if array.dtype in _FLOATS:
        return array
    with np.errstate(over="ignore"):  # infinity: the caller's range refuses it
        return array.astype(np.float64)


def as_arguments(
    what: str, call: Callable[..., Any], given: Mapping[str, Any], others: Sequence[str] = ()
) -> dict[str, Any]:
    """Return keyword arguments as the types that a signature names.

    Args:
        what: what takes them, for the message.
        call: what will be called.
        given: values by name.
        others: names that cannot be given.

    Raises:
        InvalidArgumentError: there is no such argument, or it has another type.
    """
    hints = {name: hint for name, hint in parameter_types(call).items() if name not in others}
    if unknown := [name for name in given if name not in hints]:
        raise InvalidArgumentError(
            f"{what} takes no argument {unknown[0]!r}.{suggest(unknown[0], hints)}"
        )
    return {name: as_typed(name, value, hints[name]) for name, value in given.items()}


def parameter_types(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotated types of the named parameters of a function or a constructor."""
    parameters = inspect.signature(call).parameters.values()
    hints = _hints(call.__init__ if isinstance(call, type) else call)  # type: ignore[misc]
    return {
        one.name: hints.get(one.name, one.annotation)
        for one in parameters
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }


@lru_cache(maxsize=256)
def _hints(of: Hashable) -> dict[str, Any]:
    return get_type_hints(of)


def _typed(value: Any, hint: Any) -> Any:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Any:
        return value
    if origin in _UNIONS:
        return _first(value, inner)
    if origin is Literal:
        inner_types = {type(one) for one in inner}
        if type(value) in inner_types and value in inner:
            return value
        raise _WrongTypeError
    if origin in _READERS:
        found = _READERS[origin](value)
        if found is None:
            raise _WrongTypeError
        return found
    if not isinstance(value, NoneType if origin is None else origin):
        raise _WrongTypeError
    return _filled(value, origin, inner) if inner else value


def _first(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return _typed(value, hint)
        except _WrongTypeError:
            continue
    raise _WrongTypeError


def _filled(value: Any, origin: Any, inner: tuple[Any, ...]) -> Any:
    """Return a container whose contents have their types."""
    if issubclass(origin, Mapping):
        return {_typed(key, inner[0]): _typed(one, inner[1]) for key, one in value.items()}
    if issubclass(origin, Sequence):
        if isinstance(value, str | bytes):
            raise _WrongTypeError
        found = [_typed(one, inner[0]) for one in value]
        return tuple(found) if isinstance(value, tuple) else found
    return value


def _as_bool(value: object) -> bool | None:
    return bool(value) if isinstance(value, bool | np.bool_) else None


def _as_int(value: object) -> int | None:
    number = as_integer(value)
    return None if number is None or abs(number) >= INT_END else number


def _as_str(value: object) -> str | None:
    return str(value) if isinstance(value, str) else None


_READERS: Final[Mapping[Any, Callable[[object], Any]]] = {
    bool: _as_bool,
    int: _as_int,
    float: as_number,
    str: _as_str,
}


def _words(hint: Any) -> str:
    """Return what an annotation asks for, as people say it."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in _UNIONS:
        return " or ".join(dict.fromkeys(map(_words, inner)))
    if origin is Literal:
        return f"one of {list(inner)}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        values = f", each with {_words(inner[1])}" if inner and inner[1] is not Any else ""
        return f"a mapping from names{values}"
    if isinstance(origin, type) and issubclass(origin, Sequence) and origin is not str:
        items = f", each {_words(inner[0])}" if inner else ""
        return f"a list{items}"
    name = getattr(origin, "__name__", str(origin))
    return _NAMES.get(origin, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


_NAMES: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "an integer that fits into 64 bits",
    float: "a number",
    str: "a string",
    None: "None",
    NoneType: "None",
}
