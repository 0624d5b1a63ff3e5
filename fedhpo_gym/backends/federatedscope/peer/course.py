"""One course of FederatedScope that stands still between rounds until it is told to go on.

Its runner runs in a thread of its own. Only one thread runs at a time: the main one waits while a
course trains, and a course that stands still has put FederatedScope's global random generators
away. So courses that take turns give the same numbers as each alone.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedhpo_gym.backends.federatedscope.peer import control, state
from fedhpo_gym.backends.federatedscope.peer.building import Building
from fedhpo_gym.backends.federatedscope.peer.updates import Updates

Say = Callable[..., None]


class Dropped(BaseException):
    """Ends a course from inside; nothing of FederatedScope catches it."""


class Course:
    """A course, from before its first round to its last one."""

    def __init__(
        self, number: int, request: dict[str, Any], federations: Any, folder: Path, say: Say
    ) -> None:
        """Build nothing yet: the first command does."""
        self.number = number
        self._request, self._federations, self._say = request, federations, say
        self._folder = folder / f"course{number}"
        stops = request["evaluated"]
        self._evaluated = None if stops is None else set(stops)  # None: where it stands still
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._command: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._target = 0
        self._over = False
        self._runner: Any = None
        self._updates: Updates | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._resume(None)

    def advance(self, target: int) -> None:
        """Train until so many rounds are finished."""

        def go_on() -> None:
            self._target = target

        self._resume(go_on)

    def evaluate(self) -> dict[str, Any]:
        """Return the metrics of every client for the model as it is; this draws nothing."""
        found: dict[str, Any] = self._resume(lambda: control.evaluate(self._runner))
        return found

    def configure(self, request: dict[str, Any]) -> None:
        """Change hyperparameters from the next round on."""
        self._resume(lambda: control.configure(self._runner, request))

    def cohorts(self, rounds: int) -> Any:
        """Return who will train in each of the next rounds; this draws nothing."""
        return self._resume(lambda: control.cohorts(self._runner.server, rounds))

    def drop(self) -> None:
        """End the course and remove what FederatedScope wrote of it."""

        def end() -> None:
            raise Dropped

        if not self._over:
            self._resume(end)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _resume(self, command: Callable[[], Any] | None) -> Any:
        if self._over:
            raise RuntimeError("the course is over")
        self._command, self._result = command, None
        self._go.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._result

    def _run(self) -> None:
        self._go.acquire()
        building = Building(self._request, self._federations, self._folder)
        try:
            self._runner = building.build(self)
            if self._request["watched"]:
                self._updates = Updates(self._runner.server)
            self._runner.run()
        except Dropped:
            pass
        except BaseException as error:  # noqa: BLE001 - the main thread raises it again
            self._error = error
        finally:
            self._over = True
            building.close()
            self._runner = None
            self._back.release()

    def wants(self, finished: int) -> bool:
        """Return whether the model is evaluated after so many rounds; called after every round."""
        if self._updates is not None:
            self._say(course=self.number, trained=finished, clients=self._updates.take())
        else:
            self._say(course=self.number, trained=finished)
        if self._evaluated is None:
            return finished == self._target
        return finished in self._evaluated

    def hear(self, sender: int, content: Any) -> None:
        """Take note of a client's update before the server does."""
        if self._updates is not None:
            self._updates.add(sender, content)

    def measure(self, sender: int, when: str, metrics: Callable[[], dict[str, Any]]) -> None:
        """Take note of what a client's model is like before or after it trains, if that is asked.

        Measuring draws nothing.
        """
        if self._updates is not None and self._request["measured"]:
            kept = state.save()
            self._updates.measure(sender, when, control.plain(metrics()))
            state.restore(kept)

    def report(self, finished: int, of_clients: dict[int, dict[str, Any]]) -> None:
        """Send the metrics of all clients after so many rounds."""
        clients = {client: control.plain(metrics) for client, metrics in of_clients.items()}
        self._say(course=self.number, round=finished, clients=clients, cpu_s=time.process_time())

    def stand(self, finished: int) -> None:
        """Stand still before a round, until it is asked for."""
        queue = self._runner.shared_comm_queue
        while queue:  # the evaluation of the last round comes first
            self._runner._handle_msg(queue.popleft())
        while finished >= self._target:
            self._stop()
            if self._command is not None:
                try:
                    self._result = self._command()
                except Exception as error:  # noqa: BLE001 - the course goes on
                    self._error = error

    def _stop(self) -> None:
        kept = state.save()
        self._back.release()
        self._go.acquire()
        state.restore(kept)
