"""Whatever goes wrong is said, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federatedscope_peer import LR, RECORDED, SMALL, pretend
from fedhpo_gym.backends.federatedscope import process
from fedhpo_gym.backends.federatedscope.installation import Installation, find_installation
from fedhpo_gym.backends.federatedscope.process import Peer, WorkingFolder
from fedhpo_gym.core.errors import (
    InvalidArgumentError,
    MissingDependencyError,
    PeerError,
    WorkerLostError,
    WorkerTimeoutError,
)
from fedhpo_gym.evaluation.records import Fidelity

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends import training
from fedhpo_gym.backends.federatedscope.backend import FederatedScope

Answer = Callable[..., Any]
PATIENCE_S = 20.0


@pytest.fixture
def ask(tmp_path: Path) -> Answer:
    """Asks a backend whose program misbehaves in some way for three rounds."""

    def answer(mode: str, time_limit_s: float = 60.0) -> Any:
        arguments = pretend(tmp_path, mode, tmp_path / "pids")
        backend = FederatedScope(LR, seed=1, time_limit_s=time_limit_s, **arguments)  # type: ignore[arg-type]
        return backend.evaluate(SMALL, Fidelity(3, 1.0))

    return answer


def pids(tmp_path: Path) -> list[int]:
    return [int(word) for word in (tmp_path / "pids").read_text(encoding="utf-8").split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def require_ended(found: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(map(is_running, found)):
        assert time.monotonic() < deadline, f"still running: {found}"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("mode", "error", "told"),
    [
        ("crash", WorkerLostError, "(?s)status 3.*Fatal: no luck.*is kept"),
        ("garbage", WorkerLostError, "no answer"),
        ("list", WorkerLostError, "no answer"),
        ("endless", WorkerLostError, "no answer"),  # and it does not fill the memory
        ("unreadable", WorkerLostError, "unreadable"),
        ("full", PeerError, "No space left"),
        ("no-module", MissingDependencyError, "No module named 'torch'"),
    ],
)
def test_a_misfortune_is_told(
    mode: str,
    error: type[Exception],
    told: str,
    ask: Answer,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "LONGEST", 2**18)
    with pytest.raises(error, match=told):
        ask(mode)
    if error is WorkerLostError:
        require_ended(pids(tmp_path))
        [folder] = home.iterdir()  # for whoever looks into it
        log = (folder / "log.txt").read_text(encoding="utf-8")
        assert log == ("Fatal: no luck\n" if mode == "crash" else "")


@pytest.mark.slow
def test_a_hang_ends_at_the_time_limit_with_all_it_started(ask: Answer, tmp_path: Path) -> None:
    with pytest.raises(WorkerTimeoutError, match="time_limit_s"):
        ask("hang", time_limit_s=1.0)
    both = pids(tmp_path)
    assert len(both) == 2
    require_ended(both)


def test_one_that_never_says_hello(ask: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_S", 0.5)
    with pytest.raises(WorkerTimeoutError, match="starting"):
        ask("mute")


def test_a_full_disk_here_is_told_and_leaves_no_half_file(
    ask: Answer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: Any, **_: Any) -> None:
        handle.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="No space left"):
        ask("crash")
    process.close_all()
    assert not [path for path in home.rglob("*") if "npz" in path.name]


def test_an_interrupt_ends_it(ask: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send = Peer._send

    def interrupted(self: Peer, request: Any) -> None:
        send(self, request)
        if request["do"] == "advance":
            while not (tmp_path / "pids").exists() or len(pids(tmp_path)) < 2:
                time.sleep(0.01)
            raise KeyboardInterrupt

    monkeypatch.setattr(Peer, "_send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask("hang")
    require_ended(pids(tmp_path))


def test_after_a_killed_process_the_next_question_starts_another(tmp_path: Path) -> None:
    arguments = pretend(tmp_path, "replay", RECORDED / "current.json")
    backend = FederatedScope(LR, seed=1, **arguments)
    before = backend.evaluate(SMALL, Fidelity(2, 1.0))
    process_ = backend._lease.peer()._process
    assert process_ is not None
    os.killpg(process_.pid, signal.SIGKILL)
    process_.wait()
    again = backend.evaluate(SMALL, Fidelity(2, 1.0))  # from its curve
    np.testing.assert_array_equal(before.best, again.best)
    more = backend.evaluate(SMALL, Fidelity(4, 1.0))  # from the start
    np.testing.assert_array_equal(more.fidelity.round, 4)
    backend.close()


PARENT = """
import sys, time
from fedhpo_gym.backends.federatedscope.installation import find_installation
from fedhpo_gym.backends.federatedscope.process import Peer
peer = Peer(find_installation({source!r}, {interpreter!r}))
print(peer._process.pid, peer.folder, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """The real program, without FederatedScope: it listens before it imports anything."""
    source = tmp_path / "tree" / "federatedscope"
    (source / "core").mkdir(parents=True)
    (source / "core" / "fed_runner.py").touch()
    (source / "__init__.py").write_text(
        "import json, os, sys, time\n"
        "os.write(int(os.environ['FOUND']), str(os.getpid()).encode())\n"
        "time.sleep(600)\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "FOUND": "9"}
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "$@" 9> "{tmp_path / "pids"}"\n', encoding="utf-8"
    )
    script.chmod(0o755)
    code = PARENT.format(source=str(tmp_path / "tree"), interpreter=str(script))
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "pids").exists() or not pids(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    require_ended(pids(tmp_path))


def test_the_folder_of_a_killed_process_goes_with_the_next_start_and_others_stay(
    home: Path,
) -> None:
    code = (
        "import sys, tempfile, time\n"
        f"tempfile.tempdir = {str(home)!r}\n"
        "from fedhpo_gym.backends.federatedscope.process import WorkingFolder\n"
        "kept, mine = WorkingFolder(), WorkingFolder()\n"
        "kept.keep()\n"
        "print(kept.path, mine.path, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    named = [[Path(word) for word in one.stdout.readline().split()] for one in both if one.stdout]
    (named[0][1] / "log.txt").write_text("half a course", encoding="utf-8")
    for one in both:
        if one is both[1]:
            own = WorkingFolder()
            # Only the killed one's is gone: not what is kept, nor what a process uses.
            assert {*home.iterdir()} == {named[0][0], *named[1], own.path}
            own.remove()
        one.kill()
        one.communicate()
    WorkingFolder().remove()
    assert {*home.iterdir()} == {named[0][0], named[1][0]}


def test_a_fork_leaves_its_parents_process_alone(tmp_path: Path) -> None:
    arguments = pretend(tmp_path, "replay", RECORDED / "current.json")
    backend = FederatedScope(LR, seed=1, **arguments)
    process_ = backend._lease.peer()._process
    assert process_ is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are none of ours
        pid = os.fork()
    if pid == 0:
        backend.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert process_.poll() is None
    assert backend.evaluate(SMALL, Fidelity(1, 1.0)).best.shape[0] == 1
    backend.close()


def test_where_it_is_must_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDHPO_GYM_FEDERATEDSCOPE", raising=False)
    monkeypatch.setattr(training, "task_federation", lambda *_: pytest.fail("it reads data"))
    with pytest.raises(MissingDependencyError, match="federatedscope install"):
        FederatedScope(LR, seed=1)
    good = pretend(tmp_path, "crash", tmp_path / "pids")
    with pytest.raises(InvalidArgumentError, match=r"`source` must be .*no-such-tree"):
        find_installation(str(tmp_path / "no-such-tree"), good["interpreter"])
    with pytest.raises(InvalidArgumentError, match=r"`interpreter` must be .*no-python"):
        find_installation(good["source"], str(tmp_path / "no-python"))
    with pytest.raises(InvalidArgumentError, match=r"`interpreter` must be given with `source`"):
        find_installation(good["source"])
    (empty := tmp_path / "empty" / "federatedscope").mkdir(parents=True)
    (empty / "__init__.py").touch()
    with pytest.raises(InvalidArgumentError, match=r"`source` must be .*fed_runner.py in it"):
        find_installation(str(empty.parent), good["interpreter"])
    monkeypatch.setenv("FEDHPO_GYM_FEDERATEDSCOPE", str(tmp_path))
    with pytest.raises(InvalidArgumentError, match="must name a folder made by"):
        find_installation()


def test_an_interpreter_without_a_package_is_one_line_of_advice(tmp_path: Path) -> None:
    """The real program, in a Python without the packages of its environment."""
    good = pretend(tmp_path, "crash", tmp_path / "pids")
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    with pytest.raises(MissingDependencyError, match=r"bare \(.*'torch'\); install") as caught:
        Peer(find_installation(good["source"], str(bare)))
    assert "\n" not in str(caught.value)


def test_an_interpreter_that_does_not_start(tmp_path: Path, home: Path) -> None:
    good = pretend(tmp_path, "crash", tmp_path / "pids")
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF no program")
    broken.chmod(0o755)
    with pytest.raises(InvalidArgumentError, match=r"`interpreter` must be a program that starts"):
        Peer(Installation(Path(good["source"]), broken))
    assert not list(home.iterdir())
