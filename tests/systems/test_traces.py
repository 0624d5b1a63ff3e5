"""Devices and hours from files: what they say, and that nothing in them is run."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import DamagedDataError, MissingDataError, TooLargeError
from fedhpo_gym.systems import DeviceModel, traces
from fedhpo_gym.systems.traces import load_plain

CAPACITIES = {
    1: {"computation": 20.0, "communication": 8000.0},
    2: {"computation": 35, "communication": 512.5},
}
BEHAVIOURS = {
    1: {"duration": 5, "active": [10, 50], "inactive": [20, 60], "finish_time": 100, "model": "A"},
    2: {"duration": 9, "active": [0], "inactive": [5], "finish_time": 40, "model": "B"},
}
SPEEDS = {
    "a": {"down_u": 4000.0, "down_sigma": 400.0, "up_u": 1000.0, "up_sigma": 500.0},
    "b": {"down_u": 8000, "down_sigma": 0, "up_u": 2000, "up_sigma": 0},
}
LOG = """2020-01-02 00:00:00\tscreen_lock
2020-01-02 00:00:10\tWIFI
2020-01-02 00:01:00\tbattery_charged_on
2020-01-02 00:01:30\t87.0%
2020-01-02 00:02:00\tscreen_unlock

2020-01-02 23:00:00\tscreen_lock
2020-01-03 01:00:00\t4G
"""
READERS: dict[str, tuple[Callable[[str], Any], Any]] = {
    "devices": (traces.read_fedscale_devices, CAPACITIES),
    "behaviours": (traces.read_fedscale_availability, BEHAVIOURS),
    "speeds": (traces.read_flash_speeds, SPEEDS),
    "logs": (traces.read_flash_availability, {"u": {"model": "m", "guid": "g", "messages": LOG}}),
    "ready": (
        traces.read_flash_availability,
        {"u": {"isSuccess": True, "ready_time": [[60.0, 120.0]]}},
    ),
}


def written(folder: Path, content: bytes | object) -> str:
    path = folder / "trace"
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(raw)
    return str(path)


@pytest.mark.parametrize("protocol", [None, *range(pickle.HIGHEST_PROTOCOL + 1)])
def test_capacities_of_fedscale_by_hand(tmp_path: Path, protocol: int | None) -> None:
    content = CAPACITIES if protocol is None else pickle.dumps(CAPACITIES, protocol)
    found = traces.read_fedscale_devices(written(tmp_path, content))
    # 20 ms of inference are 60 ms of training; 8000 kbit/s are 8000 * 1024 / 8 B/s.
    assert found.compute.tolist() == pytest.approx([0.06, 0.105])
    assert found.upload.tolist() == found.download.tolist() == [1_024_000.0, 65_600.0]


@pytest.mark.parametrize("protocol", [None, *range(pickle.HIGHEST_PROTOCOL + 1)])
def test_behaviours_of_fedscale_by_hand(tmp_path: Path, protocol: int | None) -> None:
    content = BEHAVIOURS if protocol is None else pickle.dumps(BEHAVIOURS, protocol)
    found = traces.read_fedscale_availability(written(tmp_path, content))
    assert found.wait_s(np.array([0, 1]), 30.0).tolist() == [20.0, 10.0]


def test_speeds_of_flash_by_hand(tmp_path: Path) -> None:
    found = traces.read_flash_speeds(written(tmp_path, SPEEDS))
    assert found.download.tolist() == [4000 * 1024, 8000 * 1024]
    assert found.upload.tolist() == [1000 * 1024, 2000 * 1024]
    assert found.upload_variation.tolist() == [0.5, 0.0]
    assert len(traces.read_flash_speeds()) == 19


def test_states_of_flash_by_hand(tmp_path: Path) -> None:
    # Locked from 0 s, on Wi-Fi from 10 s, charged from 60 s to the end; unlocked at 120 s; locked
    # again from 23 h to the next day's 1 h, when the network changes. Repeats after two days.
    found = traces.read_flash_availability(written(tmp_path, READERS["logs"][1]))
    assert found.start_s.tolist() == [60.0, 23 * 3600.0]
    assert found.end_s.tolist() == [120.0, 25 * 3600.0]
    assert found.period_s.tolist() == [2 * 86_400.0]


def test_phones_that_are_never_ready_are_left_out(tmp_path: Path) -> None:
    phones = {"u": {"ready_time": [[60, 120]]}, "v": {"ready_time": []}, "w": {"messages": ""}}
    assert len(traces.read_flash_availability(written(tmp_path, phones))) == 1


def test_a_clock_of_files(tmp_path: Path) -> None:
    (tmp_path / "devices").write_bytes(pickle.dumps(CAPACITIES))
    (tmp_path / "hours").write_bytes(pickle.dumps(BEHAVIOURS))
    model = DeviceModel(
        devices="fedscale",
        devices_path=str(tmp_path / "devices"),
        availability="fedscale",
        availability_path=str(tmp_path / "hours"),
        compute="samples",
    )
    assert set(model.population(50).compute.tolist()) == {0.06, 0.105}
    hours = model.hours(50)
    assert hours is not None
    assert len(hours) == 2
    assert pickle.loads(pickle.dumps(model)) == model


class Trap:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    evil = {1: {"computation": Trap(tmp_path / "trapped"), "communication": 1.0}}
    content = pickle.dumps(evil, protocol)
    with pytest.raises(DamagedDataError, match="more than numbers, strings, lists"):
        traces.read_fedscale_devices(written(tmp_path, content))
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_are_read_as_they_are(protocol: int) -> None:
    shared = [1, 2.5, "ä", None]
    value = {
        "a": [shared, shared, ()],
        2: {"x": -(2**70), "y": (1, 2, 3, 4), "z": (1,), "w": (1, 2), "v": (1, 2, 3)},
        "t": [True, False, 2**40, 300, "long" * 100, 10**2000],
        "e": [[], {}],
    }
    assert load_plain(pickle.dumps(value, protocol)) == value


DAMAGED = [
    b"",
    b"[]",
    b"{}",
    b"{",
    b'{"a": 3}',
    b'{"a": {}}',
    b'{"a": null}',
    b"\x80\x04.",
    b"\x80\x04]q\x00",
    b"\x80\x04K\x01K\x02s.",
    b"\x80\x04](K\x01u.",
    b"(.",
    b"\x80\x04h\x07.",
    b"\x80\x04}(K\x01K\x02K\x03u.",
    b'{"a": {"computation": "1", "communication": 1}}',
    b'{"a": {"computation": 1, "communication": 0}}',
    b'{"a": {"computation": 1, "communication": NaN}}',
    b'{"a": {"down_u": 0, "down_sigma": 0, "up_u": 1, "up_sigma": 0}}',
    b'{"a": {"active": [1], "inactive": [], "finish_time": 3}}',
    b'{"a": {"active": [1], "inactive": [0], "finish_time": 3}}',
    b'{"a": {"active": [1], "inactive": [2], "finish_time": 0}}',
    b'{"a": {"ready_time": [[1, 2, 3]]}}',
    b'{"a": {"ready_time": [[1], [2]]}}',
    b'{"a": {"ready_time": 3}}',
    b'{"a": {"ready_time": []}}',
    b'{"a": {"messages": "2020-01-02 00:00:00 no tab"}}',
    b'{"a": {"messages": "2020-01-02\\tscreen_on"}}',
    b'{"a": {"messages": "2020-01-02 00:00:00\\tasleep"}}',
]


@pytest.mark.parametrize("content", DAMAGED)
@pytest.mark.parametrize("reader", READERS)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, reader: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DamagedDataError, match=r"trace.*(again|genuine)"):
        READERS[reader][0](path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("as_pickle", [False, True])
def test_mutants_are_read_or_refused(tmp_path: Path, reader: str, as_pickle: bool) -> None:
    read, good = READERS[reader]
    whole = pickle.dumps(good) if as_pickle else json.dumps(good).encode()
    rng = np.random.default_rng(len(whole))
    for _ in range(25):
        mutant = bytearray(whole)
        for at in rng.integers(len(mutant), size=rng.integers(1, 4)):
            mutant[at] = rng.integers(256)
        cut = bytes(mutant[: rng.choice([len(mutant), rng.integers(len(mutant))])])
        path = written(tmp_path, cut)
        with contextlib.suppress(DamagedDataError):  # any other error fails
            read(path)


def test_files_that_are_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = list(range(1000))
    one = {"active": seconds, "inactive": seconds, "finish_time": 1000}
    content = pickle.dumps(dict.fromkeys(range(500), one))  # the same lists 500 times
    path = written(tmp_path, content)
    monkeypatch.setenv("FEDHPO_GYM_MAX_BYTES", "4000000")
    with pytest.raises(TooLargeError, match="FEDHPO_GYM_MAX_BYTES"):
        traces.read_fedscale_availability(path)
    monkeypatch.setenv("FEDHPO_GYM_MAX_BYTES", "100")
    with pytest.raises(TooLargeError):
        traces.read_fedscale_devices(written(tmp_path, CAPACITIES))


@pytest.mark.parametrize("name", ["nowhere", "folder", "file/below"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(MissingDataError, match=name):
        traces.read_flash_speeds(str(tmp_path / name))
