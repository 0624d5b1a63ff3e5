"""A program that takes FederatedScope's place: it says what was recorded, or misbehaves.

It speaks for the interpreter: `fake_federatedscope.py MODE FILE ...` reads requests and answers as
the real program does. It imports nothing but the standard library, so it starts at once.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 1.0
"""Real seconds after which nothing more is asked."""
HELLO = {"federatedscope": "0.3.0", "layout": "current", "python": "3", "torch": "2", "numpy": "2"}


NUMBERS = {"request": 0, "line": 0}


KEPT: list[Path] = []
"""Where lines are kept before they are said."""


def say(**answer: Any) -> None:
    line = json.dumps({**NUMBERS, **answer}) + "\n"
    for path in KEPT:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
    sys.stdout.write(line)
    sys.stdout.flush()
    NUMBERS["line"] += 1


class Replay:
    """Answers from the recorded rounds of courses, found by their configuration."""

    def __init__(self, path: str) -> None:
        self.recorded = json.loads(Path(path).read_text(encoding="utf-8"))
        self.running: dict[int, dict[str, Any]] = {}
        say(hello=self.recorded["versions"])

    def do(self, request: dict[str, Any]) -> Any:
        number, what = request["course"], request["do"]
        if what == "start":
            found = [c for c in self.recorded["courses"] if c["entries"] == request["entries"]]
            if not found:
                raise LookupError(f"nothing was recorded of {request['entries']}")
            self.running[number] = {**found[0], "done": 0}
            return None
        if what == "drop":
            del self.running[number]
            return None
        course = self.running[number]
        if what == "evaluate":
            return course["first"]
        for message in course["rounds"]:
            if course["done"] < message.get("round", 0) <= request["rounds"]:
                say(course=number, trained=message["round"], clients={})
                say(**{**message, "course": number})
        course["done"] = request["rounds"]
        return None


class Formula:
    """Courses whose losses are a formula of learning rates: no data, no chance, and instant."""

    def __init__(self) -> None:
        self.running: dict[int, dict[str, Any]] = {}
        say(hello=HELLO)

    def do(self, request: dict[str, Any]) -> Any:
        number, what = request["course"], request["do"]
        if what == "start":
            entries = request["entries"]
            rates = [entries["train.optimizer.lr"]] * entries["federate.client_num"]
            course = {"losses": [2.0] * len(rates), "rates": rates, "done": 0, **request}
            self.running[number] = {**course, "size": entries["federate.sample_client_num"]}
            return None
        course = self.running[number]
        if what == "drop":
            return self.running.pop(number) and None
        if what == "configure":
            shared = request["entries"].get("train.optimizer.lr", course["rates"][0])
            own = [request["clients"].get(str(i + 1), {}) for i in range(len(course["rates"]))]
            course["rates"] = [one.get("train.optimizer.lr", shared) for one in own]
            course["size"] = request["sample_client_num"]
        if what == "cohorts":
            return [self.cohort(course, course["done"] + i) for i in range(request["rounds"])]
        if what == "evaluate":
            return self.metrics(course)
        while what == "advance" and course["done"] < request["rounds"]:
            self.train(number, course)
        if what == "advance":
            say(course=number, round=course["done"], clients=self.metrics(course), cpu_s=0.0)
        return None

    @staticmethod
    def cohort(course: dict[str, Any], done: int) -> list[int]:
        clients = len(course["losses"])
        return sorted(
            (course["entries"]["seed"] + done + i) % clients + 1 for i in range(course["size"])
        )

    def metrics(self, course: dict[str, Any]) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for client, loss in enumerate(course["losses"], start=1):
            said = [
                (f"{s}_avg_loss", loss + at / 9) for at, s in enumerate(("train", "val", "test"))
            ]
            said += [
                (f"{s}_{m}", 1 / (1 + loss))
                for s in ("train", "val", "test")
                for m in ("acc", "f1")
            ]
            found[str(client)] = dict(said)
        return found

    def train(self, number: int, course: dict[str, Any]) -> None:
        before = self.metrics(course)
        cohort = self.cohort(course, course["done"])
        for client in cohort:
            rate = course["rates"][client - 1]
            course["losses"][client - 1] *= 0.5 + min(rate, 9.0) / 10
        course["done"] += 1
        after = self.metrics(course)
        told = {c: {"norm": 1.0, "alignment": 0.5} for c in map(str, cohort)}
        if course["measured"]:
            told = {c: {**one, "before": before[c], "after": after[c]} for c, one in told.items()}
        say(course=number, trained=course["done"], clients=told)


def misbehave(mode: str, path: str, course: int) -> None:
    """Do what the mode says when a course shall advance."""
    Path(path).write_text(str(os.getpid()), encoding="utf-8")
    if mode == "crash":
        sys.stderr.write("Fatal: no luck\n")
        sys.exit(3)
    if mode == "hang":
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        Path(path).write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
        time.sleep(600)
    if mode == "garbage":
        sys.stdout.write("\x00\xff Segmentation fault? {'Role': eval('1+1')}\n")
        sys.stdout.flush()
        time.sleep(600)
    if mode == "endless":
        while True:
            sys.stdout.write("x" * 65536)
    if mode == "full":
        with Path("/dev/full").open("w", encoding="utf-8") as disk:
            disk.write("x" * 100_000)
    if mode == "list":
        sys.stdout.write("[1, 2]\n")
        sys.stdout.flush()
    if mode == "unreadable":
        say(course=course, trained=1)
        say(course=course, round=1, clients={"1": {"train_avg_loss": "none"}})


def play(path: str) -> None:
    """Say what a file holds, a part before the first request and one after each.

    It ends where nothing more is asked, as it is where an answer lacks its end.
    """
    for part in json.loads(Path(path).read_text(encoding="utf-8")):
        sys.stdout.buffer.write(part.encode("latin-1"))
        sys.stdout.flush()
        if not select.select([0], [], [], PATIENCE_S)[0] or not os.read(0, 1 << 20):
            return


def made(mode: str, path: str) -> Replay | Formula | None:
    """Say hello, and return what answers; None for what only misbehaves."""
    if mode == "replay":
        return Replay(path)
    if mode == "keep":
        KEPT.append(Path(path))
    if mode in ("formula", "keep"):
        return Formula()
    say(hello=HELLO)
    return None


def main() -> None:
    mode, path = sys.argv[1:3]
    if mode == "play":
        play(path)
        return
    if mode == "mute":
        time.sleep(600)
    if mode == "no-module":
        say(error="ModuleNotFoundError: No module named 'torch'", trace="Traceback: torch")
        return
    talker = made(mode, path)
    for line in sys.stdin:
        request = json.loads(line)
        NUMBERS["request"] = request["request"]
        try:
            if talker is not None:
                say(done=talker.do(request))
            else:
                if request["do"] == "advance":
                    misbehave(mode, path, request["course"])
                say(done=None)
        except Exception as error:  # noqa: BLE001 - as the real program does
            say(error=f"{type(error).__name__}: {error}", trace="")


if __name__ == "__main__":
    main()
