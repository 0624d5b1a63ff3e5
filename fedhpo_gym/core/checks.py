"""Validation of arguments: each value is checked against, and converted to, its annotated type.

Public functions use it through the decorator `validate_call`, frozen dataclasses through
`check_fields` or `CheckedFields`, and everything that is read from files or options through
`coerce`. Numbers of numpy become built-in ones, and a value that does not fit raises
`InvalidArgumentError` with the name of the argument. `Range` and `Axes` stand beside an annotation
and restrict a number or an array further.
"""

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
    """Return a value as a built-in number, NaN and infinity included; None if it is no number.

    Truth values and integers too large for a float do not count as numbers. A numpy float is
    converted by its shortest decimal: float32's 0.1 becomes 0.1.
    """
    if type(value) is float:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, np.floating):
        return float(str(value))
    integer = as_integer(value)
    try:
        float(integer or 0)
    except OverflowError:
        return None
    return integer


def as_integer(value: object) -> int | None:
    """Return a value as a built-in integer of any size; None if it is none, as 3.0 and True."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def to_json_data(value: Any) -> Any:
    """Return nested arguments as JSON data, without numpy's numbers and arrays, or enums."""
    if isinstance(value, Mapping):
        return {key: to_json_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_data(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.bool_) or (isinstance(value, np.ndarray) and value.ndim):
        return value.tolist()
    plain = as_number(value) if isinstance(value, np.generic | np.ndarray) else None
    return value if plain is None else plain


FOREIGN_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that foreign objects may raise when they are read; deep nesting is a RuntimeError."""
INT_END: Final = 2**63
"""Integers from here on do not fit into int64."""
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
    """A condition on the axes of an array, beside its annotation: `Annotated[array, Axes(2)]`.

    Attributes:
        least: smallest number of axes.
        most: largest number of axes; None for no limit.
        empty: whether it may be empty.
        nan: whether it may hold NaN.
    """

    least: int = 0
    most: int | None = None
    empty: bool = False
    nan: bool = False

    def accepts(self, values: ArrayLike) -> bool:
        """Return whether an array of numbers meets the condition."""
        array = np.asarray(values)
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
    """An interval for a number, beside its annotation: `Annotated[int, Range(1)]`.

    `ends` are the brackets of the interval: "(" and ")" exclude an end.
    """

    low: float = -math.inf
    high: float = math.inf
    ends: Literal["[]", "(]", "[)", "()"] = "[]"

    def accepts(self, value: float | None) -> bool:
        """Return whether a number lies in the interval; None always does."""
        if value is None:
            return True
        above = value > self.low if self.ends[0] == "(" else value >= self.low
        return above and (value < self.high if self.ends[1] == ")" else value <= self.high)

    def __str__(self) -> str:
        low, high = (str(x) if isinstance(x, int) else f"{x:g}" for x in (self.low, self.high))
        if math.isinf(self.high):
            finite = " and finite" * (self.ends[1] == ")")
            return f"{'above' if self.ends[0] == '(' else 'at least'} {low}{finite}"
        if math.isinf(self.low):
            return f"{'below' if self.ends[1] == ')' else 'at most'} {high}"
        return f"in {self.ends[0]}{low}, {high}{self.ends[1]}"


def short_repr(value: object) -> str:
    """Return the text of a value for an error message: short, and without raising an error."""
    try:
        return _repr.repr(value)
    except FOREIGN_ERRORS:  # such as an integer of more digits than Python writes
        return f"something of type {type(value).__name__}, too large to show"


def coerce(name: str, value: object, hint: Any) -> Any:
    """Return a value converted to the type of an annotation; numbers become built-in ones."""
    try:
        return _coerce(value, hint)
    except _WrongTypeError as error:
        rule = str(error) or _describe(hint)
        raise InvalidArgumentError(f"`{name}` must be {rule}, got {short_repr(value)}") from None


def check_fields(record: Any, form: str = "{}") -> None:
    """Convert each field of a frozen dataclass to its annotated type; `form` names it in errors."""
    hints = _resolve_hints(type(record))  # type: ignore[arg-type]  # mypy: a type is no Hashable
    for field in fields(record):
        value = coerce(form.format(field.name), getattr(record, field.name), hints[field.name])
        object.__setattr__(record, field.name, value)


class CheckedFields:
    """Base of frozen dataclasses whose fields are checked by `check_fields` only."""

    def __post_init__(self) -> None:
        check_fields(self)


def coerce_reals(name: str, value: object) -> NDArray[np.floating]:
    """Return a C-ordered array of real numbers; float32 stays, all else becomes float64."""
    if type(value) is np.ndarray and value.dtype in _FLOATS:
        return np.asarray(value, order="C")
    try:
        return np.asarray(_coerce_array(value, np.floating), order="C")
    except _WrongTypeError:
        raise InvalidArgumentError(
            f"`{name}` must be an array of real numbers, got {short_repr(value)}"
        ) from None


def validate_call(call: C) -> C:
    """Decorate a public function so that its arguments are converted to their annotated types.

    An argument that does not fit raises an error with its name before the function runs.
    """

    @wraps(call)
    def validated(*args: Any, **kwargs: Any) -> Any:
        positional, keywords = _coerce_call(call, args, kwargs)
        return call(*positional, **keywords)

    for name in ("cache_clear", "cache_info"):
        if hasattr(call, name):
            setattr(validated, name, getattr(call, name))
    return cast("C", validated)


def validate_failed_call(call: C) -> C:
    """Decorate a public function so that its arguments are converted only after it has failed.

    Otherwise it works as `validate_call`. It is for pure functions that environments call in every
    step with valid arguments, because it costs no time there.
    """

    @wraps(call)
    def validated(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except FedHPOError:
            raise
        except FOREIGN_ERRORS:
            positional, keywords = _coerce_call(call, args, kwargs)
            return call(*positional, **keywords)

    return cast("C", validated)


def _coerce_call(
    call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, converted to their annotated types."""
    hints, names = _inspect_parameters(call)
    positional = [
        coerce(name, value, hints[name]) for name, value in zip(names, args, strict=False)
    ]
    keywords = {name: coerce(name, value, hints.get(name, Any)) for name, value in kwargs.items()}
    return [*positional, *args[len(positional) :]], keywords


def coerce_arguments(
    label: str, call: Callable[..., Any], arguments: Mapping[str, Any], ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """Return keyword arguments, converted to the types of a signature without `ignored`."""
    hints = {name: hint for name, hint in parameter_types(call).items() if name not in ignored}
    if unknown := [name for name in arguments if name not in hints]:
        raise InvalidArgumentError(
            f"{label} takes no argument {unknown[0]!r}.{suggest(unknown[0], hints)}"
        )
    parameters = inspect.signature(call).parameters
    for name in hints:
        if parameters[name].default is inspect.Parameter.empty and name not in arguments:
            raise InvalidArgumentError(f"{label} must be given {name!r}, got nothing of that name")
    return {name: coerce(name, value, hints[name]) for name, value in arguments.items()}


def coerce_record(label: str, record: type[R], entries: Mapping[str, Any]) -> R:
    """Return a dataclass of the entries of a mapping; the error names a missing or unknown one."""
    return record(**coerce_arguments(label, record, entries))


@lru_cache(maxsize=512)
def _inspect_parameters(call: Callable[..., Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the annotations of all parameters, and the names of the positional ones."""
    parameters = inspect.signature(call).parameters.values()
    return parameter_types(call), [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def parameter_types(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotated types of the named parameters of a function or a constructor."""
    parameters = inspect.signature(call).parameters.values()
    hints = _resolve_hints(call.__init__ if isinstance(call, type) else call)  # type: ignore[misc]
    return {
        p.name: hints.get(p.name, Any if p.annotation is p.empty else p.annotation)
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


@lru_cache(maxsize=256)
def _resolve_hints(of: Hashable) -> dict[str, Any]:
    return get_type_hints(of, include_extras=True)


@lru_cache(maxsize=1024)
def _split_hint(hint: Hashable) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin of an annotation, and the arguments in its brackets."""
    if isinstance(hint, TypeVar):
        return Any, ()
    if hint == ArrayLike:
        return np.ndarray, ()
    return get_origin(hint) or (NoneType if hint is None else hint), get_args(hint)


def _coerce(value: Any, hint: Any) -> Any:
    origin, inner = _split_hint(hint)
    if origin is Any:
        return value
    if origin in _CONVERTERS:
        result = _CONVERTERS[origin](value)
        if result is None:
            raise _WrongTypeError
        return result
    if origin in _UNIONS:
        return _coerce_union(value, inner)
    if origin is Literal:
        if type(value) in map(type, inner) and value in inner:
            return value
        raise _WrongTypeError
    if origin is np.ndarray:
        return _coerce_array(value, get_args(inner[1])[0] if inner else None)
    if origin is Annotated:
        result, rule = _coerce(value, inner[0]), inner[1]
        if isinstance(rule, Axes | Range) and not rule.accepts(result):
            raise _WrongTypeError(str(rule) if isinstance(rule, Range) else "")
        return result
    return _coerce_instance(value, origin, inner)


def _coerce_instance(value: Any, origin: Any, inner: tuple[Any, ...]) -> Any:
    """Return an instance of a class; the contents of a container are converted, too."""
    try:
        fits = isinstance(value, origin)
    except TypeError:  # a protocol that does not support `isinstance`
        return value
    if origin is Sequence and isinstance(value, np.ndarray) and value.ndim:
        value, fits = value.tolist(), value.dtype.kind in "biuf"
    if not fits:
        raise _WrongTypeError
    return _coerce_contents(value, origin, inner) if inner else value


def _coerce_union(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return _coerce(value, hint)
        except _WrongTypeError:
            continue
    raise _WrongTypeError


def _coerce_contents(value: Any, origin: Any, inner: tuple[Any, ...]) -> Any:
    """Return a container whose contents are converted to their types."""
    if issubclass(origin, Mapping):
        return {_coerce(key, inner[0]): _coerce(item, inner[1]) for key, item in value.items()}
    if not (issubclass(origin, Sequence) or origin in (Iterable, Iterator, Collection)):
        return value
    if isinstance(value, str | bytes):
        raise _WrongTypeError
    if isinstance(value, Iterator):
        return (coerce("item", item, inner[0]) for item in value)
    if origin is tuple and inner[-1] is not ...:
        if len(value) != len(inner):
            raise _WrongTypeError
        return tuple(map(_coerce, value, inner))
    if inner[0] is float and all(type(item) is float for item in value):
        return value
    items = [_coerce(item, inner[0]) for item in value]
    return tuple(items) if isinstance(value, tuple) else items


def _coerce_array(value: Any, kind: Any) -> NDArray[Any]:
    """Return an array of an abstract scalar type, such as `np.floating`, which admits integers."""
    try:
        array = np.asarray(value)
    except FOREIGN_ERRORS:
        raise _WrongTypeError from None
    scalar_type = kind if isinstance(kind, type) else object
    kinds = next((k for base, k in _ARRAY_KINDS.items() if issubclass(scalar_type, base)), "biuf")
    if array.dtype.kind not in kinds and (array.size or array.dtype.kind not in "biuf"):
        raise _WrongTypeError
    if kinds == "iuf" and array.dtype not in _FLOATS:
        with np.errstate(over="ignore"):  # infinity: the caller's range refuses it
            return array.astype(np.float64)
    return array if array.dtype.kind in kinds else array.astype(np.int64 if kinds == "iu" else bool)


_ARRAY_KINDS: Final = {np.bool_: "b", np.integer: "iu", np.floating: "iuf"}
"""Letters of numpy for the dtypes that an array of each abstract type may have."""


def _as_int(value: object) -> int | None:
    integer = as_integer(value)
    return None if integer is None or abs(integer) >= INT_END else integer


def _as_path(value: object) -> Path | None:
    if not isinstance(value, str | PathLike) or "\0" in str(value):
        return None
    return value if isinstance(value, Path) else Path(value)


_CONVERTERS: Final[Mapping[Any, Callable[[object], Any]]] = {
    bool: lambda value: bool(value) if isinstance(value, bool | np.bool_) else None,
    int: _as_int,
    float: as_number,
    str: lambda value: str(value) if isinstance(value, str) else None,
    Path: _as_path,
}


def _describe(hint: Any) -> str:
    """Return the description of an annotation in an error message."""
    origin, inner = _split_hint(hint)
    if origin in _UNIONS:
        return " or ".join(dict.fromkeys(map(_describe, inner)))
    if origin is Literal:
        return f"one of {list(inner)}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        values = f", each with {_describe(inner[1])}" if inner and inner[1] is not Any else ""
        return f"a mapping from names{values}"
    if isinstance(origin, type) and issubclass(origin, Sequence) and origin is not str:
        items = f", each {_describe(inner[0])}" if inner else ""
        return f"a list{items}"
    if origin is Annotated:
        return f"{_describe(inner[0])}{', ' * isinstance(inner[1], Range)}{inner[1]}"
    if origin is np.ndarray:
        return "an array of numbers"
    name = getattr(origin, "__name__", str(origin))
    return _TYPE_NAMES.get(origin, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


_TYPE_NAMES: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "an integer that fits into 64 bits",
    float: "a number",
    str: "a string",
    Path: "a path",
    None: "None",
    NoneType: "None",
}
