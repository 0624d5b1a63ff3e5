"""Numbers, strings, lists and dictionaries in a pickle, without the machine that can run code.

A pickle is a program for a stack machine. `pickletools.genops` only lists its instructions; those
that build plain data are followed here, and a file with any other one is refused: none of them can
name a class or call anything.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, Final

_MARK: Final = object()
_VALUES: Final = frozenset(
    {
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
    }
)
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SKIPPED: Final = frozenset({"PROTO", "FRAME"})


def load_plain(content: bytes) -> Any:
    """Return what a pickle holds.

    Memory is bounded by the length of the text: every instruction makes at most one object, and
    shared ones stay shared.

    Raises:
        ValueError: it is no pickle, or holds something else than plain data.
    """
    machine = _Machine()
    try:
        for operation, argument, _ in pickletools.genops(content):
            if operation.name == "STOP":
                return machine.pop()
            machine.follow(operation.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"its instructions do not fit together ({error})") from error
    raise ValueError("it ends too early")


class _Machine:
    """The stack, and the memo of objects that are used again."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._moves: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self._stack.append(_MARK),
            "POP": lambda _: self._drop(),
            "POP_MARK": lambda _: self._forget(),
            "DUP": lambda _: self._stack.append(self._stack[-1]),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "LIST": lambda _: self._stack.append(self._since_mark()),
            "TUPLE": lambda _: self._stack.append(tuple(self._since_mark())),
            "DICT": lambda _: self._stack.append(_pairs(self._since_mark())),
            "APPEND": lambda _: self._append([self.pop()]),
            "APPENDS": lambda _: self._append(self._since_mark()),
            "SETITEM": lambda _: self._set([self.pop(), self.pop()][::-1]),
            "SETITEMS": lambda _: self._set(self._since_mark()),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
            **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), self._remember),
            **dict.fromkeys(
                ("GET", "BINGET", "LONG_BINGET"), lambda at: self._stack.append(self._memo[at])
            ),
        }

    def follow(self, name: str, argument: Any) -> None:
        """Follow one instruction.

        Raises:
            ValueError: it does not build plain data.
        """
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            parts = [self.pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(parts[::-1]))
        elif name in self._moves:
            self._moves[name](argument)
        elif name not in _SKIPPED:
            raise ValueError(
                f"it holds more than numbers, strings, lists and dictionaries (instruction {name})"
            )

    def pop(self) -> Any:
        """Return and remove the last object."""
        found = self._stack.pop()
        if found is _MARK:
            raise ValueError("its instructions do not fit together (a mark where data should be)")
        return found

    def _drop(self) -> None:
        self._stack.pop()

    def _forget(self) -> None:
        self._since_mark()

    def _since_mark(self) -> list[Any]:
        found = []
        while (one := self._stack.pop()) is not _MARK:
            found.append(one)
        return found[::-1]

    def _remember(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def _append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError("appending to something else than a list")
        target.extend(values)

    def _set(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise TypeError("setting items of something else than a dictionary")
        target.update(_pairs(values))


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))
