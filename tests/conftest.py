"""What a test may ask for (real data, a fresh interpreter) and may not use (the network)."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from workers import wait_for

REPOSITORY = Path(__file__).resolve().parent.parent
DATA_VARIABLE = "FEDHPO_GYM_DATA"
LOCAL_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})

RunPython = Callable[..., str]

# A shell that runs the suite in the background makes its processes ignore interrupts; those that
# tests start and interrupt must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every machine and no time limit per example: a loaded machine is no bug.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("suite")


def find_datasets(environ: Mapping[str, str], repository: Path) -> tuple[Path | None, str]:
    """Return the folder with real data, or None, and a sentence that says which and why."""
    if environ.get(DATA_VARIABLE):
        folder = Path(environ[DATA_VARIABLE]).expanduser()
        if not folder.is_dir():
            raise pytest.UsageError(f"{DATA_VARIABLE}={folder} is no folder; correct or unset it")
        return folder, f"{folder} (from {DATA_VARIABLE})"
    folder = repository.parent / "shared" / "datasets"
    if folder.is_dir():
        return folder, f"{folder} (found beside the repository)"
    return None, f"none, tests marked 'data' are skipped; set {DATA_VARIABLE} to a folder with them"


def pytest_configure() -> None:
    """Let the processes that tests start read the same real data, and share compiled code.

    Tests with a cache folder of their own would compile all kernels anew, each for half a minute.
    """
    folder, _ = find_datasets(os.environ, REPOSITORY)
    if folder is not None:
        os.environ[DATA_VARIABLE] = str(folder)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache / "fedhpo_gym"))


def pytest_report_header() -> str:
    return f"real data: {find_datasets(os.environ, REPOSITORY)[1]}"


LONG = {"test_readme.py", "test_digests.py", "test_compiled.py"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases = Counter[str]()
    for item in items:
        if "shared_datasets" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)
        if (fast := item.get_closest_marker("fast")) is not None:
            cases[name := item.nodeid.partition("[")[0]] += 1
            if cases[name] > fast.args[0]:
                item.add_marker(pytest.mark.slow)
    # What takes a minute begins first: nothing long is left to one worker at the end.
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(scope="session")
def shared_datasets() -> Path:
    """The folder with real data sets; the test is skipped where there is none."""
    folder, reason = find_datasets(os.environ, REPOSITORY)
    if folder is None:
        pytest.skip(f"real data: {reason}")
    return folder


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run code in a fresh interpreter: ``run_python(code, env=None) -> stdout``.

    The hash seed of this process is not inherited: it is random unless `env` sets PYTHONHASHSEED,
    so a result that depends on it shows. `env` is added to the environment and wins.
    """

    def run(code: str, env: Mapping[str, str] | None = None) -> str:
        inherited = os.environ.get("PYTHONPATH", "")
        environ = {
            **os.environ,
            "PYTHONHASHSEED": "random",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), inherited])),
            **(env or {}),
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environ,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"python -c ended with {done.returncode}:\n{code}\n--\n{done.stderr}")
        return done.stdout

    return run


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the suite in a narrow terminal sees the same tables."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages hold empty pictures: to draw one takes a third of a second."""
    figure = pytest.importorskip("matplotlib.figure")

    def savefig(_: object, buffer: io.StringIO | io.BytesIO, **__: object) -> None:
        buffer.write("<svg></svg>" if isinstance(buffer, io.StringIO) else b"%PDF")  # type: ignore[arg-type]

    monkeypatch.setattr(figure.Figure, "savefig", savefig)


@pytest.fixture
def few_meta_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a split of FedHPO-B have ten tasks, and agents learn from six: they model each."""
    from fedhpo_gym.agents.transfer.base import TransferSearch  # not for those that need none
    from fedhpo_gym.stored.meta_data import MetaData

    tasks, sources = MetaData.where, TransferSearch.sources.func
    monkeypatch.setattr(MetaData, "where", lambda data, split: tasks(data, split)[:10])
    few = cached_property(lambda agent: sources(agent)[:6])
    few.__set_name__(TransferSearch, "sources")
    monkeypatch.setattr(TransferSearch, "sources", few)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """Let files of tests be lost with the power: only then does a synchronized one differ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Any:
    """Refuse connections that leave this machine: the suite must pass offline."""
    with pytest.MonkeyPatch.context() as patch:
        connect = socket.socket.connect

        def guarded(self: socket.socket, address: Any) -> None:
            if isinstance(address, tuple) and address[0] not in LOCAL_HOSTS:
                raise RuntimeError(f"a test tried to connect to {address}; tests run offline")
            connect(self, address)

        patch.setattr(socket.socket, "connect", guarded)
        yield


def address_in(place: Path) -> str | None:
    """Return the scheduler's address; None while it is still writing its file."""
    try:
        return str(json.loads(place.read_text(encoding="utf-8"))["address"])
    except json.JSONDecodeError:
        return None


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A dask scheduler here and two worker processes, which have a thread each."""
    pytest.importorskip("distributed")
    paths = REPOSITORY, REPOSITORY / "tests" / "support"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    place = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    own = ["--host", "127.0.0.1", "--no-dashboard"]
    started = [
        subprocess.Popen(
            [*dask, "scheduler", *own, "--port", "0", "--scheduler-file", str(place)],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
    ]
    try:
        wait_for(lambda: place.exists() and address_in(place) is not None, started[0])
        address = address_in(place)
        assert address is not None
        for number in range(2):
            folder = ["--local-directory", str(tmp_path / str(number))]
            started.append(
                subprocess.Popen(
                    [*dask, "worker", address, *own, "--no-nanny", "--nthreads", "1", *folder],
                    env=environment,
                    stderr=subprocess.DEVNULL,
                )
            )
        yield address, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def only_made_meta_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the miniature be all results of FedHPO-B that are here."""
    from made_meta_data import write_made  # not for those that need none of it

    folder = tmp_path_factory.mktemp("meta") / "tables"
    write_made(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHPO_GYM_TABLES", str(folder))
        patch.setattr("fedhpo_gym.stored.catalogue.EMBEDDED_FOLDER", folder)
        yield
