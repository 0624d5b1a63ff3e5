"""The process that runs FederatedScope, and the protocol of its messages.

`backend` and `courses` get a `Peer` from a `ProcessHandle`; all handles of one installation share
one process, because its start takes seconds. A request is a JSON line on its standard input. The
answers are JSON lines on its standard output, with the numbers of the request and of the line, so
that a lost, doubled or late line is noticed. An error of the protocol ends the process group and
keeps the folder with the log.
"""

import atexit
import fcntl
import itertools
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedhpo_gym.backends.federatedscope.installation import Installation
from fedhpo_gym.core.checks import short_repr
from fedhpo_gym.core.errors import (
    InvalidArgumentError,
    MissingDependencyError,
    PeerError,
    WorkerLostError,
    WorkerTimeoutError,
)

PROGRAM = Path(__file__).with_name("peer") / "__main__.py"
STARTING, START_S = "starting", 180.0
"""Limit of the imports in real seconds; they take 3 to 10 s on an idle machine."""
LONGEST = 2**26
"""Largest length of a line in bytes; a round of 3,550 clients takes 4 MB."""
DEEPEST = 8
"""Largest depth of nested objects and lists in a line; metrics before a round have four."""
SHOWN = 1500
"""Characters of the log in an error message."""

Message = dict[str, Any]


class Peer:
    """A process with FederatedScope in its own process group; any protocol error ends the group.

    Its folder is deleted when the process is closed, and kept after a failure. If the parent
    process is killed, the next process that starts FederatedScope deletes the folder.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.leases = 0
        self._working = WorkingFolder()
        self.folder = self._working.path
        # Of FederatedScope, its layout of keys, Python, torch and numpy.
        self.versions: dict[str, str] = {}
        self._owner = os.getpid()
        self._pending = bytearray()
        self._asked = self._heard = 0
        self._failed = self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = self._start()
            self.versions = self._hello()
        except BaseException:
            self._fail(kept=self._process is not None)
            raise

    @property
    def alive(self) -> bool:
        """Whether it still runs and belongs to this process, not to a parent before a fork."""
        process = self._process
        ours = self._owner == os.getpid() and not self._closed
        return ours and process is not None and process.poll() is None

    def ask(
        self, request: Mapping[str, Any], limit_s: float, hear: Callable[[Message], None]
    ) -> Any:
        """Send a request and return its answer; `hear` gets the messages that precede it."""
        deadline, what = time.monotonic() + limit_s, str(request.get("do"))
        try:
            self._asked += 1
            self._send({**request, "request": self._asked})
            while True:
                message = self._receive(deadline, what)
                if "done" in message:
                    return message["done"]
                self._require("course", message.get("course"), request.get("course"))
                hear(message)
        except PeerError:
            self._failed = True
            self._working.keep()  # for debugging
            raise
        except BaseException:  # an interrupt as well: the rest of the answer would stay unread
            self._fail(kept=True)
            raise

    def close(self) -> None:
        """End the process and its children; delete its folder unless something failed."""
        self._fail(kept=self._failed)

    def _start(self) -> subprocess.Popen[bytes]:
        inside = {
            **os.environ,
            "PYTHONPATH": str(self.installation.source),
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        }
        command = [str(self.installation.interpreter), str(PROGRAM)]
        with (self.folder / "log.txt").open("wb") as log:
            try:
                return subprocess.Popen(  # noqa: S603 - the user names the interpreter
                    command,
                    env=inside,
                    cwd=self.folder,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise InvalidArgumentError(
                    f"`interpreter` must be a program that starts, got "
                    f"{str(self.installation.interpreter)!r} ({error.strerror or error})"
                ) from error

    def _send(self, request: Mapping[str, Any]) -> None:
        process = self._running()
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            process.stdin.write(json.dumps(request).encode("utf-8") + b"\n")
            process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._ended() from error

    def _hello(self) -> dict[str, str]:
        hello = self._receive(time.monotonic() + START_S, STARTING).get("hello")
        if not isinstance(hello, dict) or not all(
            isinstance(version, str) and version.isprintable() for version in hello.values()
        ):
            raise self._no_answer(f"`hello` must hold versions, got {short_repr(hello)}")
        return hello

    def _receive(self, deadline: float, what: str) -> Message:
        line = self._line(deadline, what)
        try:
            message = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise self._no_answer(short_repr(line)) from error
        if not isinstance(message, dict) or _depth(message) > DEEPEST:
            raise self._no_answer(short_repr(line))
        self._require("request", message.pop("request", None), self._asked)
        self._require("line", message.pop("line", None), self._heard)
        self._heard += 1
        if "error" in message:
            words, trace = str(message["error"])[:SHOWN], str(message.get("trace", ""))
            if words.startswith("ModuleNotFoundError") and "'federatedscope" not in words:
                raise MissingDependencyError(
                    "`interpreter` must be a Python that has FederatedScope's dependencies, got "
                    f"{self.installation.interpreter} ({words}); install what is missing there, or "
                    "make one by `fedhpo-gym federatedscope install DIR --source TREE`"
                )
            raise PeerError(
                f"FederatedScope failed: {words}\n{trace[-SHOWN:].strip()}\n"
                f"Its log is in {self.folder}, which is kept"
            )
        return message

    def _require(self, name: str, value: object, due: object) -> None:
        if type(value) is not int or value != due:
            raise self._no_answer(
                f"`{name}` must be {due}, got {short_repr(value)}: a line was lost, came twice or "
                "late"
            )

    def _line(self, deadline: float, what: str) -> bytes:
        process = self._running()
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        searched = 0
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while (end := self._pending.find(b"\n", searched)) < 0:
                searched = len(self._pending)
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0 or not selector.select(remaining_s):
                    advice = "" if what == STARTING else "raise `time_limit_s`, or "
                    raise WorkerTimeoutError(
                        f"FederatedScope exceeded its time limit ({what}) and was ended; {advice}"
                        f"see its log in {self.folder}, which is kept"
                    )
                read = os.read(process.stdout.fileno(), 1 << 16)
                if not read:
                    raise self._ended()
                self._pending += read
                if len(self._pending) > LONGEST:
                    raise self._no_answer(f"a line of more than {LONGEST:,} bytes")
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._closed or self._owner != os.getpid():
            raise WorkerLostError(
                "FederatedScope's process has ended; call again to start a new one"
            )
        return self._process

    def _ended(self) -> WorkerLostError:
        assert self._process is not None  # noqa: S101 - it was started
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)
        return WorkerLostError(
            f"FederatedScope's process ended with status {self._process.returncode}:\n"
            f"{self._log()}\nIts folder {self.folder} is kept"
        )

    def _no_answer(self, reason: str) -> WorkerLostError:
        return WorkerLostError(
            f"FederatedScope's process sent what is no answer: {reason}. It was ended; see its log "
            f"in {self.folder}, which is kept. Is `interpreter` a plain Python?"
        )

    def _log(self) -> str:
        try:
            text = (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return text[-SHOWN:].strip()

    def _fail(self, *, kept: bool) -> None:
        if self._closed or self._owner != os.getpid():  # a fork must not end its parent's process
            return
        self._closed, self._failed = True, kept
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        if kept:
            self._working.keep()
        else:
            self._working.remove()


def _depth(value: Any) -> int:
    """Return the depth of nested objects and lists, at most one above `DEEPEST`."""
    depth, level = 0, [value]
    while level and depth <= DEEPEST:
        held = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for each in held for item in each if isinstance(item, dict | list)]
        depth += 1
    return depth


PREFIX = "fedhpo-federatedscope-"
OWNED = "owned"
"""Name of the file that is locked while a folder is in use."""


class WorkingFolder:
    """A new temporary folder, with a lock that marks it as in use."""

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock_path = self.path / f"{OWNED}.part"
        self._lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # without file locks, abandoned folders are not deleted
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock_path.rename(self.path / OWNED)

    def keep(self) -> None:
        """Keep the folder for debugging: `remove_abandoned` deletes only folders with the file."""
        with suppress(OSError):
            (self.path / OWNED).unlink(missing_ok=True)
        self._release()

    def remove(self) -> None:
        """Delete the folder with its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned() -> None:
    """Delete the folders of this user whose processes have ended; safe in concurrent processes."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                _remove_if_free(path)


def _remove_if_free(path: Path) -> None:
    lock = os.open(path / OWNED, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


_shared: dict[Installation, Peer] = {}
_lock = threading.RLock()
_numbers = itertools.count()
_keeping = 0


class ProcessHandle:
    """A share in the process of an installation; closing the last handle ends the process."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._end: weakref.finalize[[Peer], ProcessHandle] | None = None
        self._peer: Peer | None = None

    def peer(self) -> Peer:
        """Return the process; a new one if the last one has ended."""
        with _lock:
            if self._peer is not None and self._peer.alive:
                return self._peer
            self.close()
            peer = _shared.get(self._installation)
            if peer is None or not peer.alive:
                peer = _shared[self._installation] = Peer(self._installation)
            peer.leases += 1
            self._peer = peer
            self._end = weakref.finalize(self, _release, peer)
            return peer

    def close(self) -> None:
        """Release the process; `peer` acquires it again."""
        if self._end is not None:
            self._end()
        self._end = self._peer = None


@contextmanager
def shared_processes() -> Iterator[None]:
    """Keep processes until the body ends, so that environments made one by one share them."""
    global _keeping
    with _lock:
        _keeping += 1
    try:
        yield
    finally:
        with _lock:
            _keeping -= 1
            for peer in list(_shared.values()):
                _close_unused(peer)


def next_number() -> int:
    """Return a new course number, unique in this process."""
    return next(_numbers)


def _release(peer: Peer) -> None:
    with _lock:
        if _shared.get(peer.installation) is not peer:
            peer.close()
            return
        peer.leases -= 1
        _close_unused(peer)


def _close_unused(peer: Peer) -> None:
    if peer.leases <= 0 and not _keeping:
        del _shared[peer.installation]
        peer.close()


def close_all() -> None:
    """End every process; `ProcessHandle.peer` starts new ones."""
    with _lock:
        for peer in list(_shared.values()):
            peer.close()
        _shared.clear()


atexit.register(close_all)
# A fork shares its parent's pipes and must never use them.
os.register_at_fork(after_in_child=_shared.clear)
