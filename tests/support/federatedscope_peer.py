"""FederatedScope for tests without it: what it said is recorded, and a program pretends to be it.

    python tests/support/federatedscope_peer.py SOURCE PYTHON NAME

runs the courses of `RECORDINGS[NAME]` and writes `tests/data/federatedscope/NAME.json`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedhpo_gym.backends.federatedscope import process
from fedhpo_gym.backends.federatedscope.backend import CourseRequest, RemoteCourse
from fedhpo_gym.backends.federatedscope.courses import FederatedScopeCourses
from fedhpo_gym.backends.federatedscope.installation import RUNNER, find_installation
from fedhpo_gym.backends.federatedscope.process import Peer
from fedhpo_gym.tasks import Instance, Task, get_task

LR = get_task("LR-BreastCancer-v0")
SMALL = {"learning_rate": 0.01, "weight_decay": 0.001, "batch_size": 256, "step_size": 1}
LARGE = {**SMALL, "learning_rate": 1.0, "batch_size": 4, "step_size": 4}
SERVER = {"server_momentum": 0.0, "server_learning_rate": 0.7}
LAST = 6

RECORDINGS: dict[str, list[tuple[Task, dict[str, float], float]]] = {
    "current": [
        (LR, SMALL, 1.0),
        (LR, {**SMALL, "learning_rate": 0.02}, 1.0),
        (LR.variant(algorithm="fedopt"), {**SMALL, **SERVER}, 0.4),
        (LR.variant(algorithm="fedprox"), {**LARGE, "mu": 5.0}, 1.0),
    ],
    "v0.1": [(LR, SMALL, 1.0), (LR, {**SMALL, "learning_rate": 0.02}, 1.0)],
}
FAKE = Path(__file__).with_name("fake_federatedscope.py")
RECORDED = Path(__file__).parents[1] / "data" / "federatedscope"


STEPS, ROUNDS = 3, 2


def pretend(folder: Path, mode: str, path: Path) -> dict[str, str]:
    """Return `source` and `interpreter` whose program behaves in a mode of the fake one."""
    source = folder / "tree"
    (source / RUNNER).parent.mkdir(parents=True, exist_ok=True)
    (source / RUNNER).touch()
    interpreter = folder / f"python-{mode}"
    words = f'exec "{sys.executable}" -S "{FAKE}" {mode} "{path}" "$@"'
    interpreter.write_text(f"#!/bin/sh\n{words}\n", encoding="utf-8")
    interpreter.chmod(0o755)
    return {"source": str(source), "interpreter": str(interpreter)}


def talk(arguments: dict[str, str]) -> list[Any]:
    """Take some rounds, and return all that was understood."""
    process.close_all()
    process._numbers = itertools.count()  # the numbers of courses are part of what is said
    words: Any = {"horizon": 9, "local_metrics": True, "time_limit_s": 20.0, **arguments}
    courses = FederatedScopeCourses(LR, (Instance(seed=1, alpha=LR.alpha),), 1, SMALL, 0.4, **words)
    try:
        found: list[Any] = [courses.first_metrics([0])]
        for _ in range(STEPS):
            found.append(courses.sampled(ROUNDS))
            report = courses.advance(ROUNDS)
            found += [report.metrics, report.diverged, *vars(report.feedback).values()]
    finally:
        courses.close()
        process.close_all()
    return found


def conversation(folder: Path) -> list[list[str]]:
    """Return what a program of courses by formula says, line by line, before and after requests.

    Args:
        folder: an empty folder.
    """
    kept = folder / "kept.jsonl"
    talk(pretend(folder, "keep", kept))
    lines = kept.read_text(encoding="utf-8").splitlines(keepends=True)
    grouped = itertools.groupby(lines, lambda line: json.loads(line)["request"])
    return [list(part) for _, part in grouped]


def pretend_saying(folder: Path, said: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return `source` and `interpreter` of a program that says just this, as in `conversation`."""
    path = folder / "said.json"
    path.write_text(json.dumps(["".join(part) for part in said]), encoding="utf-8")
    return pretend(folder, "play", path)


def record(source: str, interpreter: str, name: str) -> None:
    peer = Peer(find_installation(source, interpreter))
    courses = []
    for task, configuration, rate in RECORDINGS[name]:
        request = CourseRequest(task, configuration, rate, 1, task.max_round, task.evaluated_rounds)
        course = RemoteCourse(peer, request, 600.0)
        first: Any = course.evaluate()
        rounds: list[dict[str, Any]] = []
        course.advance(LAST, rounds.append)
        course.drop()
        entries = request.message(0, peer)["entries"]
        said = [
            {key: value for key, value in message.items() if key in ("round", "clients")}
            for message in rounds
            if "round" in message
        ]
        courses.append({"entries": entries, "first": first, "rounds": said})
    recorded = {"versions": peer.versions, "courses": courses}
    peer.close()
    text = json.dumps(recorded, sort_keys=True).replace('}, {"', '},\n{"')
    (RECORDED / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(*sys.argv[1:4])
