"""What the bridge to FederatedScope costs on top of FederatedScope's own course.

The same course is run in turns: by FederatedScope's own runner alone (`federatedscope_course.py`),
and behind the backend. Both evaluate every client after every round. Processor seconds per round
are compared, those of this process included, so that other work on the machine changes little. What
FederatedScope prints goes to its log file in both; its own course prints to the console as well,
which the bridge spares it, and is measured with and without.

Claims: at most 5 % on top of FederatedScope's own course without its console; imports are paid
once, however many courses follow.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
import peer
from measuring import number

from fedhpo_gym.backends.federatedscope.backend import FederatedScope, RemoteCourse
from fedhpo_gym.backends.federatedscope.process import Message
from fedhpo_gym.backends.training import task_federation
from fedhpo_gym.core.errors import MissingDataError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import Course
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import get_task

WARM_UP = 5
SEED = 1
LOCAL = {"learning_rate": 0.05, "weight_decay": 0.001, "batch_size": 32, "step_size": 1}
NETWORK = {"model_depth": 1, "model_width": 64}
# Its models are evaluated after every round, as FederatedScope's own course does it.
CASES: dict[str, tuple[str, dict[str, Value], dict[str, object]]] = {
    "LR": ("LR-CreditG-v0", {**LOCAL}, {}),
    "MLP": (
        "MLP-CreditG-v0",
        {**LOCAL, **NETWORK},
        {"model.type": "mlp", "model.hidden": 64, "model.layer": 2, "model.dropout": 0.0},
    ),
}
HEADER = ("problem", "alone, ms", "without console, ms", "bridged, ms", "on top, %")


def alone(case: str, rounds: int, arguments: argparse.Namespace, *, console: bool) -> float:
    """Return processor seconds per round of FederatedScope's own course."""
    name, configuration, settings = CASES[case]
    course = Course(configuration, 1.0, SEED)
    federation = task_federation(get_task(name), SEED)
    where = (arguments.federatedscope, arguments.federatedscope_python)
    answer = peer.run_courses(
        *where, federation, [course], rounds, settings=settings, console=console
    )
    return float(np.mean(answer["courses"][0]["cpu_s"][WARM_UP:]))


def bridged(backend: FederatedScope, case: str, rounds: int, turn: int) -> float:
    """Return the same of a course behind the backend, with what it costs here."""
    # Another weight decay each turn: the same course would not be trained again.
    configuration = {**CASES[case][1], "weight_decay": 0.0005 + 1e-6 * turn}
    clock: list[float] = []

    class Watched(RemoteCourse):
        """A course whose messages are looked at on their way."""

        def advance(self, rounds: int, hear: object, deadline: float | None = None) -> None:
            def listen(message: Message) -> None:
                if "round" in message:
                    clock.append(float(message["cpu_s"]) + time.process_time())
                hear(message)  # type: ignore[operator]

            super().advance(rounds, listen, deadline)

    from fedhpo_gym.backends.federatedscope import backend as module

    plain, module.RemoteCourse = module.RemoteCourse, Watched  # type: ignore[misc]
    try:
        backend.evaluate(configuration, Fidelity(rounds, 1.0))
    finally:
        module.RemoteCourse = plain  # type: ignore[misc]
    return float(np.mean(np.diff(clock)[WARM_UP:]))


def start_up(backend: FederatedScope, case: str, courses: int) -> list[float]:
    """Return real seconds until some courses are through their first round, one after another."""
    spent = []
    for index in range(courses):
        begun = time.perf_counter()
        configuration = {**CASES[case][1], "weight_decay": 0.0009 + 1e-6 * index}
        backend.evaluate(configuration, Fidelity(1, 1.0))
        spent.append(time.perf_counter() - begun)
    return spent


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print and write the tables."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    peer.add_arguments(parser)
    options = parser.parse_args(argv)
    if not options.federatedscope:
        raise MissingDataError("the bridge is measured with --federatedscope PATH only")
    rows, starts, rounds = [], [], options.rounds
    where: list[Path] = [options.federatedscope, options.federatedscope_python]
    for case in options.cases:
        begun = time.perf_counter()
        backend = FederatedScope(get_task(CASES[case][0]), SEED, *map(str, where))
        opened = time.perf_counter() - begun
        times = np.array(
            [
                [
                    *(alone(case, rounds, options, console=console) for console in (True, False)),
                    bridged(backend, case, rounds, turn),
                ]
                for turn in range(options.turns)
            ]
        )
        on_top = 100 * (times[:, 2] / times[:, 1] - 1)
        middle = 1e3 * np.median(times, axis=0)
        spread = f"{np.median(on_top):+.1f} ({on_top.min():+.1f} to {on_top.max():+.1f})"
        rows.append([case, *(number(float(value)) for value in middle), spread])
        first, *others = start_up(backend, case, 4)
        starts.append([case, number(opened), number(first), number(float(np.mean(others)))])
        versions = ", ".join(f"{key} {value}" for key, value in backend.versions.items())
        backend.close()
    return measuring.write_report(
        options,
        "The bridge to FederatedScope",
        f"{rounds} rounds, the first {WARM_UP} left out; medians of {options.turns} turns, and the "
        f"smallest and largest ratio within a turn ({versions}).",
        measuring.table(HEADER, rows),
        "Real seconds until it can be asked, and until a course is through its first round:",
        measuring.table(("problem", "imports, s", "first course, s", "each other, s"), starts),
    )


if __name__ == "__main__":
    measuring.run(main)
