"""Ways to train one course, in turns: ratios that a busy machine does not change.

Every way trains the same rounds of the same clients and evaluates nothing. They take turns of a few
rounds each, in one run, and what is reported are medians of the turns: of processor seconds, and of
the ratio of one way's seconds to another's in the same turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
from measuring import number

from fedhpo_gym.backends.training import make_batch, task_federation
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.participants import client_orders
from fedhpo_gym.tasks import Task

SCRIPT = Path(__file__).with_name("pfl_course.py")
Turn = Callable[[int], float]
"""Trains some more rounds and returns the processor seconds."""


@dataclass(frozen=True)
class Schedule:
    """How turns are taken.

    Attributes:
        warm_up: rounds of everybody before the first turn.
        rounds: of a turn.
        turns: of everybody.
    """

    warm_up: int
    rounds: int
    turns: int

    @property
    def total(self) -> int:
        """Rounds that everybody trains."""
        return self.warm_up + self.rounds * self.turns


@dataclass(frozen=True)
class Compared:
    """A course as pfl trains it.

    Attributes:
        network: its name in `networks.NETWORKS`.
        inputs: (n, ...) features of a federation as the network takes them.
        max_norm: length to which gradients are shortened; None for any length.
    """

    network: str
    inputs: Callable[[Any], Any]
    max_norm: float | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where pfl is."""
    parser.add_argument(
        "--pfl-python", type=Path, help="interpreter that has pfl 0.6; without it, no such peer"
    )


def take_turns(ways: Mapping[str, Turn], schedule: Schedule) -> dict[str, list[float]]:
    """Return the processor seconds per round of every turn of each way."""
    for turn in ways.values():
        turn(schedule.warm_up)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for index in range(schedule.turns):
        # Every other time in the opposite order, so that nobody always follows the same one.
        for name in list(ways)[:: 1 if index % 2 == 0 else -1]:
            found[name].append(ways[name](schedule.rounds) / schedule.rounds)
    return found


def engine(task: Task, courses: Sequence[Course]) -> Turn:
    """Return our engine on a batch of courses, per course."""
    batch = make_batch(task, courses)

    def turn(rounds: int) -> float:
        with measuring.stopwatch() as spent:
            batch.advance(rounds, evaluated=())
        return spent.cpu_s / len(courses)

    return turn


@contextmanager
def pfl(
    python: Path,
    federation: Federation,
    course: Course,
    compared: Compared,
    rounds: int,
    precision: str = "float32",
) -> Iterator[tuple[str, Turn]]:
    """Start pfl on a course, in an interpreter of its own.

    Args:
        python: interpreter that has pfl.
        federation: the data of every client.
        course: what to train; clients are sampled as our engine samples them.
        compared: how.
        rounds: that will be asked for in all.
        precision: float32, or the type that torch's autocast computes in.

    Yields:
        What runs, and a turn of it.
    """
    with tempfile.TemporaryDirectory() as name:
        request = Path(name) / "request.json"
        data = Path(name) / "data.npz"
        np.savez(data, **_samples(federation, compared))
        features = compared.inputs(federation.features[:1])
        content = {
            "data": str(data),
            "settings": dict(course.configuration),
            "cohorts": cohorts(federation, course, rounds),
            "clients": federation.num_clients,
            "network": compared.network,
            "inputs": int(features.shape[1]),
            "classes": federation.num_classes,
            "max_norm": compared.max_norm,
            "precision": precision,
            "seed": course.seed,
        }
        request.write_text(json.dumps(content), encoding="utf-8")
        with _program(python, request) as process:
            yield _describe(_answer(process)["versions"]), lambda asked: _ask(process, asked)


def cohorts(federation: Federation, course: Course, rounds: int) -> list[list[int]]:
    """Return the clients that our engine samples in every round of a course."""
    count = Fidelity(0, course.client_sample_rate).sampled_clients(federation.num_clients)
    names = [(federation.seed, index) for index in range(rounds)]
    orders = client_orders(names, federation.num_clients)
    found: list[list[int]] = [order[:count].tolist() for order in orders]
    return found


def one_course(
    task: Task, course: Course, compared: Compared, python: Path, schedule: Schedule
) -> dict[str, list[float]]:
    """Return the turns of our engine and of pfl on one course, in every precision; pfl's last.

    The task's precision is taken for all that its model computes in.
    """
    federation = task_federation(task, course.seed)
    precisions = sorted(task.precisions, reverse=True)
    with ExitStack() as stack:
        ways = {
            f"our engine, {precision}": engine(task.variant(precision=precision), [course])
            for precision in precisions
        }
        for precision in reversed(precisions):
            asked = (python, federation, course, compared, schedule.total, precision)
            label, turn = stack.enter_context(pfl(*asked))
            ways[label if precision == "float32" else f"{label}, autocast to {precision}"] = turn
        return take_turns(ways, schedule)


def compare(found: Mapping[str, Sequence[float]]) -> str:
    """Return a table of the turns of several ways; all are compared with the last one."""
    against = np.array(list(found.values())[-1])
    lines = []
    for name, seconds in found.items():
        ratios = against / np.array(seconds)
        values = (1e3 * np.median(seconds), np.median(ratios), ratios.min(), ratios.max())
        lines.append([name, *(number(float(value)) for value in values)])
    header = ("", "CPU ms per round", "times as fast as the last row", "least", "most")
    return measuring.table(header, lines)


def _samples(federation: Federation, compared: Compared) -> dict[str, Any]:
    arrays = {}
    for index, client in enumerate(federation.clients):
        arrays[f"x_{index}"] = np.asarray(compared.inputs(federation.features[client[0]]))
        arrays[f"y_{index}"] = federation.labels[client[0]].astype(np.int64)
    return arrays


@contextmanager
def _program(python: Path, request: Path) -> Iterator[subprocess.Popen[str]]:
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # Its own packages only: a path of ours would put our versions before its own.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | threads
    command = [str(python), str(SCRIPT), str(request)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()


def _ask(process: subprocess.Popen[str], rounds: int) -> float:
    assert process.stdin is not None  # noqa: S101 - it was asked for
    process.stdin.write(f"{rounds}\n")
    process.stdin.flush()
    return float(_answer(process)["cpu_s"])


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"pfl ended with {process.wait()}; what it said stands above")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _describe(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
