"""Calls of public functions made from their signatures: one argument has another type."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import gymnasium as gym
import numpy as np

import fedhpo_gym
from fedhpo_gym.errors import FedHPOError
from fedhpo_gym.tasks import get_task

WRONG: tuple[Any, ...] = (
    object(), None, 5, -1, 0.5, float("nan"), 1j, "x", "", b"x", [], ["x"], [None], {}, {"x": 1},
    {1: 2}, {"x"}, np.zeros(0), np.array([1.0, np.nan]), np.zeros((2, 2), complex), len, int,
    iter([1]), np.array(["a"]), Path("nowhere"),
)  # fmt: skip
"""What most parameters do not take."""

Public = Callable[..., Any]


def public_functions() -> dict[str, Public]:
    """Return all functions that a package lists in `__all__`, by the name they are found at."""
    found: dict[int, tuple[str, Public]] = {}
    names = [one.name for one in pkgutil.walk_packages(fedhpo_gym.__path__, "fedhpo_gym.")]
    for name in ["fedhpo_gym", *(one for one in names if "__main__" not in one)]:
        if ".federatedscope.peer" in name:  # of another interpreter
            continue
        module = importlib.import_module(name)
        for listed in getattr(module, "__all__", ()):
            one = getattr(module, listed)
            if callable(one) and not isinstance(one, type) and hasattr(one, "__qualname__"):
                found.setdefault(id(one), (f"{name}.{listed}", one))
    return dict(found.values())


def fitting(hint: Any) -> Any:
    """Return some value of the type that an annotation names, such that nothing is written."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return fitting(next(one for one in inner if one is not NoneType))
    if origin is Literal:
        return inner[0]
    if origin is Annotated:
        axes = max(getattr(inner[1], "least", 1), 1)
        return np.ones((2,) * axes, int if "int" in str(inner[0]) else float)
    if origin in _FITTING:
        return _FITTING[origin]
    if isinstance(origin, type) and origin not in (str, bytes):
        if origin is tuple and ... not in inner:
            return tuple(map(fitting, inner))
        if issubclass(origin, tuple | list | Sequence) or origin.__name__ in ("Iterable", "Set"):
            return [fitting(inner[0])] if inner else []
        if issubclass(origin, Mapping):
            return {fitting(inner[0]): fitting(inner[1])} if inner else {}
    return _made(origin)


_FITTING: dict[Any, Any] = {
    bool: False, int: 2, float: 0.5, str: "x", Any: None, NoneType: None, type: dict,
    Path: Path("nowhere"), np.ndarray: np.array([1.0, 2.0]), Callable: len, AbstractSet: {"x"},
}  # fmt: skip
_FITTING[get_origin(Callable[[int], int])] = len


def _made(kind: Any) -> Any:
    name = getattr(kind, "__name__", "")
    if name == "Task":
        return get_task("LR-CreditG")
    if name == "Env":
        return gym.make("FedHPO-LR-CreditG-v0", disable_env_checker=True)
    try:
        hints = get_type_hints(kind.__init__)
        needed = [one.name for one in _named(kind) if one.default is one.empty]
        return kind(**{name: fitting(hints[name]) for name in needed})
    except Exception:  # noqa: BLE001 - then the function is called with the wrong one alone
        return None


def _named(call: Public) -> list[inspect.Parameter]:
    found = inspect.signature(call).parameters.values()
    return [one for one in found if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def wrong_calls(call: Public) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield the parameter that is wrong, its value, and all arguments."""
    hints = get_type_hints(call, include_extras=True)
    parameters = _named(call)
    needed = [one.name for one in parameters if one.default is one.empty]
    for wrong in (one.name for one in parameters):
        for value in WRONG:
            given = {name: fitting(hints.get(name, Any)) for name in needed if name != wrong}
            yield wrong, value, {**given, wrong: value}


def bare(call: Public, arguments: Mapping[str, Any]) -> Exception | None:
    """Return the undocumented error that a call ends in, if it does."""
    try:
        found = call(**arguments)
        if isinstance(found, Iterator):
            next(found, None)
    except FedHPOError:
        return None
    except Exception as error:  # noqa: BLE001 - what is looked for
        return error
    return None
