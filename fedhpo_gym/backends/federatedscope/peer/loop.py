"""The loop of the process that runs FederatedScope: it answers requests until its input ends.

`peer/__main__` calls `serve` under FederatedScope's interpreter; `process.Peer` is the other end.
The module may import only the standard library and what FederatedScope itself needs, and it must
run on the oldest Python that FederatedScope supports. Standard output carries the protocol, so that
`Channel` redirects whatever FederatedScope prints to standard error.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import queue
import select
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedhpo_gym.backends.federatedscope.peer.course import PeerCourse


def serve() -> None:
    """Send the versions, then answer requests one after the other."""
    wire = Channel()
    try:
        versions = prepare_course()
        desk = Worker(wire)
    except Exception as error:  # noqa: BLE001 - the parent process raises it
        wire.say(error=_words(error), trace=traceback.format_exc())
        return
    wire.say(hello=versions)
    for request in wire.requests():
        try:
            wire.say(done=desk.do(request))
        except Exception as error:  # noqa: BLE001 - likewise
            wire.say(error=_words(error), trace=traceback.format_exc())


class Worker:
    """The courses of this process, and the requests that they answer."""

    def __init__(self, wire: Channel) -> None:
        self._wire = wire
        self._federations = Federations()
        self._courses: dict[int, PeerCourse] = {}

    def do(self, request: dict[str, Any]) -> Any:
        """Execute a request and return the answer."""
        course_number, what = request["course"], request["do"]
        if what == "start":
            folder = Path.cwd()
            self._courses[course_number] = PeerCourse(
                course_number, request, self._federations, folder, self._wire.say
            )
            return None
        if what == "drop":
            self._courses.pop(course_number).drop()
            return None
        course = self._courses[course_number]
        answers: dict[str, Callable[[], Any]] = {
            "advance": lambda: course.advance(request["rounds"]),
            "evaluate": course.evaluate,
            "configure": lambda: course.configure(request),
            "cohorts": lambda: course.cohorts(request["rounds"]),
        }
        return answers[what]()


def _words(error: BaseException) -> str:
    text = error.args[0] if isinstance(error, KeyError) and error.args else str(error)
    return f"{type(error).__name__}: {text}"


def stand_in(name: str, **attributes: Any) -> None:
    """Insert an empty module for one that FederatedScope imports but these courses never use."""
    if name in sys.modules or _exists(name):
        return
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def prepare_course() -> dict[str, str]:
    """Import the modules that courses need, and return the versions."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    stand_in("torchvision", datasets=types.ModuleType("torchvision.datasets"))
    sparse = importlib.import_module("scipy.sparse")
    stand_in("scipy.sparse.csc", csc_matrix=sparse.csc_matrix)
    config = importlib.import_module("federatedscope.core.configs.config").global_cfg
    importlib.import_module("federatedscope.core.auxiliaries.worker_builder")
    importlib.import_module("federatedscope.core.fed_runner")
    return {
        "federatedscope": importlib.import_module("federatedscope").__version__,
        "layout": "current" if hasattr(config, "train") else "v0.1",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": importlib.import_module("numpy").__version__,
    }


LOOK_S = 1.0
"""Seconds between checks whether the parent process still runs."""


class Channel:
    """The connection to the parent process; when it closes, this process and its children end."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._requests: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._request = self._lines = 0
        self._asker = os.getppid()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, **answer: Any) -> None:
        """Send a line that belongs to the current request."""
        numbers = {"request": self._request, "line": self._lines}
        self._lines += 1
        self._out.write(json.dumps({**numbers, **answer}) + "\n")
        self._out.flush()

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield requests in order."""
        while True:
            request = self._requests.get()
            if request is None:
                return
            self._request = request["request"]
            yield request

    def _listen(self) -> None:
        pending = b""
        while os.getppid() == self._asker:
            if not select.select([0], [], [], LOOK_S)[0]:
                continue
            read = os.read(0, 1 << 16)
            if not read:
                break
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                self._requests.put(json.loads(line.decode("utf-8")))
        _end()


def _end() -> None:
    """End this process and its children, which share its process group, at once."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


SPLITS = ("train", "val", "test")
KIND = "fedhpo_gym"
"""`data.type` of a federation of this package."""


class Federations:
    """The federations that were handed over, by the path of their file."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._current: Any = None
        importlib.import_module("federatedscope.register").register_data(KIND, self._load)

    def use(self, path: str | None) -> None:
        """Select the federation of the courses that start from now on."""
        numpy = importlib.import_module("numpy")
        if path is not None and path not in self._known:
            with numpy.load(path, allow_pickle=False) as archive:
                self._known[path] = {name: archive[name] for name in archive.files}
        self._current = None if path is None else self._known[path]

    def _load(self, config: Any, _of_clients: Any = None) -> tuple[dict[int, Any], Any] | None:
        """Return the data of every client; FederatedScope calls it as a registered loader."""
        data = self._current
        if config.data.type != KIND or data is None:
            return None
        clients = range(1, int(data["num_clients"]) + 1)
        recent = hasattr(config, "train")
        if "edges_1" in data:
            return {i: _graphs(data, i, recent) for i in clients}, config
        make = _client_data if recent else _loaders
        return {i: make(data, i, config) for i in clients}, config


def _samples(data: Any, client: int, split: str) -> Any:
    x, y = data[f"x_{client}_{split}"], data[f"y_{client}_{split}"]
    return list(zip(x, y))  # noqa: B905 - `strict` needs Python 3.10


def _client_data(data: Any, client: int, config: Any) -> Any:
    kind = importlib.import_module("federatedscope.core.data").ClientData
    return kind(config, **{split: _samples(data, client, split) for split in SPLITS})


def _loaders(data: Any, client: int, config: Any) -> Any:
    loader = importlib.import_module("torch.utils.data").DataLoader
    size, loaders = config.data.batch_size, {}
    for split in SPLITS:
        if samples := _samples(data, client, split):
            loaders[split] = loader(samples, batch_size=size, shuffle=split == "train")
    return loaders


def _graphs(data: Any, client: int, recent: bool) -> Any:
    torch = importlib.import_module("torch")
    masks = {f"{split}_mask": torch.from_numpy(data[f"{split}_{client}"]) for split in SPLITS}
    graph = importlib.import_module("torch_geometric.data").Data(
        x=torch.from_numpy(data[f"x_{client}"]),
        edge_index=torch.from_numpy(data[f"edges_{client}"]),
        y=torch.from_numpy(data[f"y_{client}"]),
        **masks,
    )
    if not recent:
        return graph
    loader = importlib.import_module("torch_geometric.loader").DataLoader
    return {"data": graph, **{split: loader([graph]) for split in SPLITS}}
