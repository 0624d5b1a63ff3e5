"""How arguments are read: what counts as a number, and values as their annotations say."""

import inspect
import math
import operator
import reprlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache, wraps
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError, suggest


def as_number(value: object) -> int | float | None:
    """Return the built-in number that a value is, also NaN or infinity; None where it is none.

    Truth values and integers too large for a float are none. A numpy float gives its shortest
    decimal: float32's 0.1 is 0.1.
    """
    if type(value) is float:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, np.floating):
        return float(str(value))
    number = as_integer(value)
    try:
        float(number or 0)
    except OverflowError:
        return None
    return number


def as_integer(value: object) -> int | None:
    """Return the built-in integer that a value is, of any size; None for 3.0 and truth values."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def to_plain(value: Any) -> Any:
    """Return nested arguments as JSON takes them: numpy's numbers and arrays, enums by value."""
    if isinstance(value, Mapping):
        return {key: to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.bool_) or (isinstance(value, np.ndarray) and value.ndim):
        return value.tolist()
    number = as_number(value) if isinstance(value, np.generic | np.ndarray) else None
    return value if number is None else number


FOREIGN_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What foreign objects may raise when they are read; too deep nesting is a RuntimeError."""
INT_END: Final = 2**63
"""Integers of this size and beyond fit into no int64."""
C = TypeVar("C", bound=Callable[..., Any])
R = TypeVar("R")
_UNIONS: Final = (Union, UnionType)
_FLOATS: Final = (np.dtype(np.float32), np.dtype(np.float64))
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 200
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 12


class _WrongTypeError(Exception):
    pass


@dataclass(frozen=True)
class Axes:
    """What an array must be besides numbers, beside its annotation: `Annotated[array, Axes(2)]`.

    Attributes:
        least: how many axes it has at least.
        most: and at most; None for any number.
        empty: whether it may hold nothing.
    """

    least: int = 0
    most: int | None = None
    empty: bool = False
    nan: bool = False

    def fit(self, numbers: ArrayLike) -> bool:
        """Return whether an array of numbers is so."""
        array = np.asarray(numbers)
        if array.ndim < self.least or (self.most is not None and array.ndim > self.most):
            return False
        if not array.size:
            return self.empty
        return self.nan or array.dtype.kind != "f" or not np.isnan(array).any()

    def __str__(self) -> str:
        axes = f" of {self.least} ax{'i' if self.least == 1 else 'e'}s" if self.least else ""
        more = " or more" if self.least and self.most is None else ""
        return (
            f"{axes}{more}{'' if self.nan else ', none NaN'}{'' if self.empty else ', not empty'}"
        )


@dataclass(frozen=True)
class Range:
    """What a number must be besides a number, beside its annotation: `Annotated[int, Range(1)]`.

    `ends` says, as intervals are written, whether the ends belong to it.
    """

    low: float = -math.inf
    high: float = math.inf
    ends: Literal["[]", "(]", "[)", "()"] = "[]"

    def fit(self, number: float | None) -> bool:
        """Return whether a number is so, or there is none."""
        if number is None:
            return True
        above = number > self.low if self.ends[0] == "(" else number >= self.low
        return above and (number < self.high if self.ends[1] == ")" else number <= self.high)

    def __str__(self) -> str:
        low, high = (str(x) if isinstance(x, int) else f"{x:g}" for x in (self.low, self.high))
        if math.isinf(self.high):
            finite = " and finite" * (self.ends[1] == ")")
            return f"{'above' if self.ends[0] == '(' else 'at least'} {low}{finite}"
        if math.isinf(self.low):
            return f"{'below' if self.ends[1] == ')' else 'at most'} {high}"
        return f"in {self.ends[0]}{low}, {high}{self.ends[1]}"


def short_repr(value: object) -> str:
    """Return a value as an error message shows it: never long, and never an error itself."""
    try:
        return _repr.repr(value)
    except FOREIGN_ERRORS:  # such as an integer of more digits than Python writes
        return f"something of type {type(value).__name__}, too large to show"


def coerce(name: str, value: object, hint: Any) -> Any:
    """Return a value as the type that an annotation names; numbers become built-in ones."""
    try:
        return _typed(value, hint)
    except _WrongTypeError as error:
        words = str(error) or _words(hint)
        raise InvalidArgumentError(f"`{name}` must be {words}, got {short_repr(value)}") from None


def check_fields(record: Any, form: str = "{}") -> None:
    """Give every field of a frozen dataclass the type of its annotation, or name it in a form."""
    hints = _hints(type(record))  # type: ignore[arg-type]  # mypy: a type is no Hashable
    for field in fields(record):
        value = coerce(form.format(field.name), getattr(record, field.name), hints[field.name])
        object.__setattr__(record, field.name, value)


class CheckedFields:
    """Base of frozen dataclasses that do nothing but `check_fields` when they are made."""

    def __post_init__(self) -> None:
        check_fields(self)


def coerce_reals(name: str, value: object) -> NDArray[np.floating]:
    """Return an array of real numbers, row by row; float32 stays, all else becomes float64."""
    if type(value) is np.ndarray and value.dtype in _FLOATS:
        return np.asarray(value, order="C")
    try:
        return np.asarray(_as_array(value, np.floating), order="C")
    except _WrongTypeError:
        raise InvalidArgumentError(
            f"`{name}` must be an array of real numbers, got {short_repr(value)}"
        ) from None


def validate_call(call: C) -> C:
    """Make a public function read its arguments as the types that its annotations name.

    What does not fit is refused with the name of the parameter, before the function begins.
    """

    @wraps(call)
    def reading(*given: Any, **by_name: Any) -> Any:
        first, rest = _read(call, given, by_name)
        return call(*first, **rest)

    for name in ("cache_clear", "cache_info"):
        if hasattr(call, name):
            setattr(reading, name, getattr(call, name))
    return cast("C", reading)


def validate_failed_call(call: C) -> C:
    """Make a public function read its arguments as `validate_call` does, once it has failed.

    For pure functions that environments call in every step, with arguments that fit.
    """

    @wraps(call)
    def explaining(*given: Any, **by_name: Any) -> Any:
        try:
            return call(*given, **by_name)
        except FedHPOError:
            raise
        except FOREIGN_ERRORS:
            first, rest = _read(call, given, by_name)
            return call(*first, **rest)

    return cast("C", explaining)


def _read(
    call: Callable[..., Any], given: Sequence[Any], by_name: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call as their types, by position and by name."""
    hints, places = _parameters(call)
    first = [coerce(name, value, hints[name]) for name, value in zip(places, given, strict=False)]
    rest = {name: coerce(name, value, hints.get(name, Any)) for name, value in by_name.items()}
    return [*first, *given[len(first) :]], rest


def coerce_arguments(
    what: str, call: Callable[..., Any], given: Mapping[str, Any], others: Sequence[str] = ()
) -> dict[str, Any]:
    """Return keyword arguments as the types that a signature names; others come besides."""
    hints = {name: hint for name, hint in parameter_types(call).items() if name not in others}
    if unknown := [name for name in given if name not in hints]:
        raise InvalidArgumentError(
            f"{what} takes no argument {unknown[0]!r}.{suggest(unknown[0], hints)}"
        )
    parameters = inspect.signature(call).parameters
    for name in hints:
        if parameters[name].default is inspect.Parameter.empty and name not in given:
            raise InvalidArgumentError(f"{what} must be given {name!r}, got nothing of that name")
    return {name: coerce(name, value, hints[name]) for name, value in given.items()}


def coerce_record(what: str, kind: type[R], given: Mapping[str, Any]) -> R:
    """Return a dataclass of entries by name; one that is missing or unknown is refused by name."""
    return kind(**coerce_arguments(what, kind, given))


@lru_cache(maxsize=512)
def _parameters(call: Callable[..., Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the annotations of the parameters, and the names of those given by position."""
    named = inspect.signature(call).parameters.values()
    return parameter_types(call), [p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD]


def parameter_types(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotated types of the named parameters of a function or a constructor."""
    parameters = inspect.signature(call).parameters.values()
    hints = _hints(call.__init__ if isinstance(call, type) else call)  # type: ignore[misc]
    return {
        one.name: hints.get(one.name, Any if one.annotation is one.empty else one.annotation)
        for one in parameters
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }


@lru_cache(maxsize=256)
def _hints(of: Hashable) -> dict[str, Any]:
    return get_type_hints(of, include_extras=True)


@lru_cache(maxsize=1024)
def _parts(hint: Hashable) -> tuple[Any, tuple[Any, ...]]:
    """Return what an annotation is of, and what stands in its brackets."""
    if isinstance(hint, TypeVar):
        return Any, ()
    if hint == ArrayLike:
        return np.ndarray, ()
    return get_origin(hint) or (NoneType if hint is None else hint), get_args(hint)


def _typed(value: Any, hint: Any) -> Any:
    origin, inner = _parts(hint)
    if origin is Any:
        return value
    if origin in _READERS:
        found = _READERS[origin](value)
        if found is None:
            raise _WrongTypeError
        return found
    if origin in _UNIONS:
        return _first(value, inner)
    if origin is Literal:
        if type(value) in map(type, inner) and value in inner:
            return value
        raise _WrongTypeError
    if origin is np.ndarray:
        return _as_array(value, get_args(inner[1])[0] if inner else None)
    if origin is Annotated:
        found, rule = _typed(value, inner[0]), inner[1]
        if isinstance(rule, Axes | Range) and not rule.fit(found):
            raise _WrongTypeError(str(rule) if isinstance(rule, Range) else "")
        return found
    return _contained(value, origin, inner)


def _contained(value: Any, origin: Any, inner: tuple[Any, ...]) -> Any:
    """Return an instance of a class, a container's contents with their types."""
    try:
        fits = isinstance(value, origin)
    except TypeError:  # a protocol that cannot be asked for
        return value
    if origin is Sequence and isinstance(value, np.ndarray) and value.ndim:
        value, fits = value.tolist(), value.dtype.kind in "biuf"
    if not fits:
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
    if not (issubclass(origin, Sequence) or origin in (Iterable, Iterator, Collection)):
        return value
    if isinstance(value, str | bytes):
        raise _WrongTypeError
    if isinstance(value, Iterator):
        return (coerce("item", one, inner[0]) for one in value)
    if origin is tuple and inner[-1] is not ...:
        if len(value) != len(inner):
            raise _WrongTypeError
        return tuple(map(_typed, value, inner))
    if inner[0] is float and all(type(one) is float for one in value):
        return value
    found = [_typed(one, inner[0]) for one in value]
    return tuple(found) if isinstance(value, tuple) else found


def _as_array(value: Any, kind: Any) -> NDArray[Any]:
    """Return an array of numbers of a kind, such as `np.floating`; whole numbers are real ones."""
    try:
        array = np.asarray(value)
    except FOREIGN_ERRORS:
        raise _WrongTypeError from None
    own = kind if isinstance(kind, type) else object
    kinds = next((found for one, found in _KINDS.items() if issubclass(own, one)), "biuf")
    if array.dtype.kind not in kinds and (array.size or array.dtype.kind not in "biuf"):
        raise _WrongTypeError
    if kinds == "iuf" and array.dtype not in _FLOATS:
        with np.errstate(over="ignore"):  # infinity: the caller's range refuses it
            return array.astype(np.float64)
    return array if array.dtype.kind in kinds else array.astype(np.int64 if kinds == "iu" else bool)


_KINDS: Final = {np.bool_: "b", np.integer: "iu", np.floating: "iuf"}
"""Which numbers an array of each kind may hold, as numpy's letters."""


def _as_int(value: object) -> int | None:
    number = as_integer(value)
    return None if number is None or abs(number) >= INT_END else number


def _as_path(value: object) -> Path | None:
    if not isinstance(value, str | PathLike) or "\0" in str(value):
        return None
    return value if isinstance(value, Path) else Path(value)


_READERS: Final[Mapping[Any, Callable[[object], Any]]] = {
    bool: lambda value: bool(value) if isinstance(value, bool | np.bool_) else None,
    int: _as_int,
    float: as_number,
    str: lambda value: str(value) if isinstance(value, str) else None,
    Path: _as_path,
}


def _words(hint: Any) -> str:
    """Return what an annotation asks for, as people say it."""
    origin, inner = _parts(hint)
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
    if origin is Annotated:
        return f"{_words(inner[0])}{', ' * isinstance(inner[1], Range)}{inner[1]}"
    if origin is np.ndarray:
        return "an array of numbers"
    name = getattr(origin, "__name__", str(origin))
    return _NAMES.get(origin, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


_NAMES: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "an integer that fits into 64 bits",
    float: "a number",
    str: "a string",
    Path: "a path",
    None: "None",
    NoneType: "None",
}
