"""Read devices and availability from files in the formats of FedScale and FLASH.

`DeviceModel` calls the four `read_...` functions. Files are JSON, or pickles as FedScale publishes
them. Unpickling could execute code, so that `load_plain` interprets only the instructions for
numbers, strings, lists, tuples and dictionaries. The size of decoded data is checked, because a
small file can describe very large ones.
"""

import contextlib
import math
import pickletools
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from fedhpo_gym.core import files
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import as_number
from fedhpo_gym.core.errors import DamagedDataError, MissingDataError
from fedhpo_gym.systems.devices import DAY_S, FLASH_KB_PER_S, Availability, Devices, of_flash

KILOBIT_BYTES: Final = 1024.0 / 8
"""Bytes in a kilobit of FedScale, whose sizes are bytes / 1024 * 8."""
FORWARD_AND_BACKWARD: Final = 3.0
"""FedScale measures times of inference; a training step takes three times as long."""
FLASH_START: Final = datetime(2020, 1, 2)
_READY: Final = {
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "battery_charged_on": ("charged", True),
    "battery_charged_off": ("charged", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("2g", "3g", "4g", "5g", "unknown"), ("wifi", False)),
}
_OTHER_STATES: Final = frozenset({"screen_on", "screen_off"})

T = TypeVar("T")


def read_fedscale_devices(path: str) -> Devices:
    """Read FedScale's capacities: {client: {"computation": ms, "communication": kbit/s}}.

    `computation` is the time of inference of one sample, tripled for training.
    """

    def parse(clients: dict[str, Any]) -> Devices:
        rows = [
            (_checked(client["computation"]), _checked(client["communication"]))
            for client in clients.values()
        ]
        milliseconds, kilobits = np.array(rows, dtype=np.float64).T
        speed = kilobits * KILOBIT_BYTES
        steady = np.zeros(len(rows))
        return Devices(FORWARD_AND_BACKWARD * milliseconds / 1000.0, speed, speed, steady, steady)

    return _read(path, parse)


def read_flash_speeds(path: str = "") -> Devices:
    """Read FLASH's speeds: {phone: {"down_u", "down_sigma", "up_u", "up_sigma"}} in kB/s."""
    if not path:
        return of_flash(FLASH_KB_PER_S)
    names = ("down_u", "down_sigma", "up_u", "up_sigma")
    return _read(
        path,
        lambda phones: of_flash(
            np.array([[_checked(one[name]) for name in names] for one in phones.values()])
        ),
    )


def read_fedscale_availability(path: str) -> Availability:
    """Read FedScale's behaviours: {client: {"active": [s], "inactive": [s], "finish_time": s}}.

    A client is available from `active[i]` to `inactive[i]`; its intervals repeat after
    `finish_time`.
    """

    def one(client: Any) -> tuple[float, Floats]:
        begin, end = _numbers(client, "active"), _numbers(client, "inactive")
        period_s = _checked(client["finish_time"])
        if len(begin) != len(end):
            raise ValueError("`active` and `inactive` have different lengths")
        return period_s, np.stack([begin, end], axis=1)

    return _read(path, lambda clients: _intervals([one(client) for client in clients.values()]))


def read_flash_availability(path: str) -> Availability:
    """Read FLASH's intervals, {phone: {"ready_time": [[s, s]]}}, or the logs they come from.

    A log is {phone: {"messages": text}} with lines of time, tab and state. A phone is available
    while it is locked, charged, and on a wireless network. Phones that are never available are left
    out.
    """

    def one(phone: Any) -> Floats:
        if "messages" in phone:
            return _ready(str(phone["messages"]))
        rows = [(_checked(begin), _checked(end)) for begin, end in phone["ready_time"]]
        return np.array(rows, dtype=np.float64).reshape(-1, 2)

    def parse(phones: dict[str, Any]) -> Availability:
        ready_times = [rows for rows in map(one, phones.values()) if len(rows)]
        period_s = [DAY_S * max(1, math.ceil(rows[-1, 1] / DAY_S)) for rows in ready_times]
        return _intervals(list(zip(period_s, ready_times, strict=True)))

    return _read(path, parse)


def _ready(messages: str) -> Floats:
    """Return the (intervals, 2) seconds in which a phone is locked, charged, and has Wi-Fi."""
    state = {"locked": False, "charged": False, "wifi": False}
    intervals: list[tuple[float, float]] = []
    since = None
    for line in filter(str.strip, messages.split("\n")):
        moment, word = (field.strip() for field in line.strip().split("\t"))
        word = word.lower()
        if word in _READY:
            name, value = _READY[word]
            state[name] = value
        elif word not in _OTHER_STATES and not word.endswith("%"):
            raise ValueError(f"a phone has no state {word[:40]!r}")
        parsed = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S")
        second = (parsed - FLASH_START).total_seconds()
        if all(state.values()) and since is None:
            since = second
        elif not all(state.values()) and since is not None:
            intervals.append((since, second))
            since = None
    return _merged(intervals)


def _merged(intervals: list[tuple[float, float]]) -> Floats:
    """Return (intervals, 2) sorted intervals; those that touch are joined."""
    merged: list[list[float]] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return np.array(merged, dtype=np.float64).reshape(-1, 2)


def _intervals(clients: list[tuple[float, Floats]]) -> Availability:
    """Return the availability of clients, of which there must be at least one."""
    if not clients:
        raise ValueError("no client in it is ever available")
    return Availability.of_intervals(clients)


def _read(path: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """Read a file of a dictionary by client."""
    file = Path(path)
    with _reading(file):
        with file.open("rb") as handle:
            content = handle.read(files.max_bytes() + 1)
        if content[:1] in (b"\x80", b"(", b"}"):
            # Decoded values need several times the memory of the pickle.
            files.require_bytes(16 * len(content), f"{file}, decoded,")
            held = load_plain(content)
        else:
            held = files.load_json(content, file)
        if not isinstance(held, dict) or not held:
            raise ValueError("it must be a non-empty dictionary by client")
        _bound(held, file)
        return parse(held)


def _bound(clients: dict[Any, Any], file: Path) -> None:
    """Reject values that exceed the memory: a pickle may refer to a long list many times."""
    size = 0
    for client in clients.values():
        if not isinstance(client, dict):
            raise TypeError("a client is not a dictionary")
        size += sum(
            len(entry) for entry in client.values() if isinstance(entry, list | tuple | str)
        )
    files.require_bytes(16 * size, f"{file}, decoded,")


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn errors into package errors that name the file and a remedy."""
    again = "get it again from its publisher, or write it as JSON"
    try:
        yield
    except DamagedDataError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(f"there is no file {file}; {again}") from error
    except OSError as error:
        raise MissingDataError(f"{file} cannot be read ({error}); {again}") from error
    except KeyError as error:
        raise DamagedDataError(f"{file} has a client without {error}; {again}") from error
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise DamagedDataError(f"{file} has the wrong format: {error}; {again}") from error


def _numbers(client: Any, name: str) -> Floats:
    return np.array([_checked(entry) for entry in client[name]], dtype=np.float64)


def _checked(value: object) -> float:
    real = as_number(value)
    if real is None or not math.isfinite(real):
        raise ValueError(f"it has {str(value)[:40]!r} where a finite number should be")
    return float(real)


_VALUES: Final = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
})  # fmt: skip
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SKIPPED: Final = frozenset({"PROTO", "FRAME"})


def load_plain(content: bytes) -> Any:
    """Return the content of a pickle without running it.

    An instruction makes at most one object, so that memory is bounded.
    """
    machine = _Machine()
    try:
        for operation, argument, _ in pickletools.genops(content):
            if operation.name == "STOP":
                return machine.stack.pop()
            machine.follow(operation.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"its instructions do not fit together ({error})") from error
    raise ValueError("it ends too early")


class _Machine:
    """The stack machine of pickle: objects since the last mark, those before it, and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._before: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._moves: dict[str, Callable[[Any], object]] = {
            "MARK": lambda _: self._mark(),
            "POP": lambda _: self.stack.pop(),
            "POP_MARK": lambda _: self._since_mark(),
            "DUP": lambda _: self.stack.append(self.stack[-1]),
            "EMPTY_LIST": lambda _: self.stack.append([]),
            "EMPTY_DICT": lambda _: self.stack.append({}),
            "LIST": lambda _: self._push(self._since_mark()),
            "TUPLE": lambda _: self._push(tuple(self._since_mark())),
            "DICT": lambda _: self._push(_pairs(self._since_mark())),
            "APPEND": lambda _: self._append([self.stack.pop()]),
            "APPENDS": lambda _: self._append(self._since_mark()),
            "SETITEM": lambda _: self._set([self.stack.pop(), self.stack.pop()][::-1]),
            "SETITEMS": lambda _: self._set(self._since_mark()),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
            **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), self._remember),
            **dict.fromkeys(
                ("GET", "BINGET", "LONG_BINGET"), lambda at: self.stack.append(self._memo[at])
            ),
        }

    def follow(self, name: str, argument: Any) -> None:
        """Execute one instruction."""
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            parts = [self.stack.pop() for _ in range(_TUPLES[name])]
            self.stack.append(tuple(parts[::-1]))
        elif name in self._moves:
            self._moves[name](argument)
        elif name not in _SKIPPED:
            raise ValueError(
                f"it holds more than numbers, strings, lists and dictionaries (instruction {name})"
            )

    def _mark(self) -> None:
        self._before.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self._before.pop()
        return items

    def _push(self, value: Any) -> None:
        self.stack.append(value)

    def _remember(self, index: int) -> None:
        self._memo[index] = self.stack[-1]

    def _append(self, values: list[Any]) -> None:
        self.stack[-1].extend(values)

    def _set(self, values: list[Any]) -> None:
        self.stack[-1].update(_pairs(values))


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))
