"""Requests on the standard input, answers on what was the standard output: a JSON object a line.

Every line says which request it answers, and its own number: one that is lost, comes twice or comes
late is found out.
Everything else that is printed goes to the standard error output, which is the log.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

LOOK_S = 1.0
"""Seconds after which it is seen that the process that asks is gone."""


class Wire:
    """The connection to the process that asks; its end ends this process and all it started."""

    def __init__(self) -> None:
        """Take the standard output for answers."""
        sys.stdout.flush()
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._requests: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._request = self._lines = 0
        self._asker = os.getppid()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, **answer: Any) -> None:
        """Send a line that belongs to the request that is being answered."""
        numbers = {"request": self._request, "line": self._lines}
        self._lines += 1
        self._out.write(json.dumps({**numbers, **answer}) + "\n")
        self._out.flush()

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield what is asked."""
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
    """End this process and its children, which share its group, whatever they are doing."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
