"""Record what FederatedScope says of some courses, for tests that run without it.

    python tests/support/record_federatedscope.py SOURCE PYTHON NAME

runs the courses of `RECORDINGS[NAME]` and writes `tests/data/federatedscope/NAME.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fedhpo_gym.backends.federatedscope.installation import find
from fedhpo_gym.backends.federatedscope.process import Peer
from fedhpo_gym.backends.federatedscope.running import CourseRequest, RemoteCourse
from fedhpo_gym.tasks import Task, get_task

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
FOLDER = Path(__file__).parents[1] / "data" / "federatedscope"


def record(source: str, interpreter: str, name: str) -> None:
    peer = Peer(find(source, interpreter))
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
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(*sys.argv[1:4])
