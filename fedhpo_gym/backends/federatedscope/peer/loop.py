"""Answering requests, one after the other, until there are no more."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedhpo_gym.backends.federatedscope.peer.course import Course
from fedhpo_gym.backends.federatedscope.peer.data import Federations
from fedhpo_gym.backends.federatedscope.peer.importing import prepare
from fedhpo_gym.backends.federatedscope.peer.wire import Wire


def serve() -> None:
    """Say hello with the versions, then answer."""
    wire = Wire()
    try:
        versions = prepare()
        desk = Desk(wire)
    except Exception as error:  # noqa: BLE001 - whoever asks shows it
        wire.say(error=_words(error), trace=traceback.format_exc())
        return
    wire.say(hello=versions)
    for request in wire.requests():
        try:
            wire.say(done=desk.do(request))
        except Exception as error:  # noqa: BLE001 - likewise
            wire.say(error=_words(error), trace=traceback.format_exc())


class Desk:
    """The courses that stand still, and what is asked of them."""

    def __init__(self, wire: Wire) -> None:
        """Have no course yet."""
        self._wire = wire
        self._federations = Federations()
        self._courses: dict[int, Course] = {}

    def do(self, request: dict[str, Any]) -> Any:
        """Do what is asked and return the answer."""
        number, what = request["course"], request["do"]
        if what == "start":
            folder = Path.cwd()
            self._courses[number] = Course(
                number, request, self._federations, folder, self._wire.say
            )
            return None
        if what == "drop":
            self._courses.pop(number).drop()
            return None
        course = self._courses[number]
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
