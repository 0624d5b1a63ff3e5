"""How many courses a core trains per hour: our engine, a plain torch loop, FederatedScope.

Measured in one run, each in a fresh process on one thread, on the same samples:

- our engine on whole units of the grid of a task (Table 8 of FedHPO-Bench): all 480 courses of
  one batch size and one seed together, for every batch size;
- our engine on one single course;
- a plain torch loop for one course (`plain_loop.py`), with torch's autograd and with the gradient
  written by hand;
- FederatedScope, when `--federatedscope` names its source tree;
- pfl, when `--pfl-python` names an interpreter that has it: training only, in turns with ours.

Every round is trained and then evaluated: loss, accuracy and macro-F1 of every client, on train,
validation and test split. Single courses are run at the corners of the grid.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
import peer
import torch
import turns
from measuring import number
from plain_loop import STEPS, PlainCourse, TorchDraws

from fedhpo_gym.backends.training import make_batch, task_federation
from fedhpo_gym.building.design import GridDesign
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.torch_trainer import single_torch_thread
from fedhpo_gym.tasks import Task, get_task

WARM_UP, MANY = 2, 24
CONFIGURATION = {"learning_rate": 0.01, "weight_decay": 0.0}
TASK = "LR-CreditG-v0"
SINGLE = {"easiest": (64, 1), "hardest": (8, 4)}
COMPARED = turns.Compared("logistic", torch.from_numpy)
SCHEDULE = turns.Schedule(warm_up=5, rounds=20, turns=9)


Peer = tuple[str, list[float], float]
"""A way to train courses one by one: its name, (corners,) processor seconds per round, peak MB."""


def corners(task: Task) -> list[Course]:
    """Return the corners of a task's grid: every batch size, fewest and most epochs and clients.

    Learning rate and weight decay do not change what a round costs.
    """
    space, rates = task.space, task.fidelity_space["client_sample_rate"].grid
    sizes, epochs = space["batch_size"].grid, space["step_size"].grid
    fixed = {dimension.name: dimension.grid[0] for dimension in space.dimensions}
    return [
        Course({**fixed, **CONFIGURATION, "batch_size": b, "step_size": e}, r, task.seeds[0])
        for b, e, r in itertools.product(sizes, (epochs[0], epochs[-1]), (rates[0], rates[-1]))
    ]


def time_grid(task: Task, rounds: int) -> list[tuple[int, int, float, float]]:
    """Time whole units of the grid, one per batch size, under the first seed.

    Returns:
        For each unit its batch size, number of courses, processor seconds of creating the batch,
        and per round after the warm-up.
    """
    measured = []
    task_federation(task, task.seeds[0])
    design = GridDesign(task)
    for unit in design.units():
        if unit.seed != task.seeds[0]:
            continue
        courses = design.courses(unit)
        with measuring.stopwatch() as setup:
            batch = make_batch(task, courses)
        size = int(courses[0].configuration["batch_size"])
        measured.append((size, len(courses), setup.cpu_s, per_round(batch.advance, rounds)))
    return measured


def per_round(advance: Callable[[int], object], rounds: int) -> float:
    """Return processor seconds per round, after the warm-up."""
    advance(WARM_UP)
    with measuring.stopwatch() as spent:
        advance(rounds)
    return spent.cpu_s / rounds


def time_engine_alone(task: Task, rounds: int) -> list[float]:
    """Time every corner as a batch of one course."""
    return [per_round(make_batch(task, [course]).advance, rounds) for course in corners(task)]


def time_plain(task: Task, rounds: int, step: str) -> list[float]:
    """Time every corner with the plain loop."""
    seconds = []
    federation = task_federation(task, task.seeds[0])
    with single_torch_thread():
        for course in corners(task):
            draws = TorchDraws(course.seed)
            arguments = (course.configuration, course.client_sample_rate, draws, STEPS[step])
            seconds.append(per_round(PlainCourse(federation, *arguments).advance, rounds))
    return seconds


def time_federatedscope(task: Task, rounds: int, source: Path, python: Path) -> Peer:
    """Time every corner with FederatedScope; setting a course up is not counted."""
    federation = task_federation(task, task.seeds[0])
    answer = peer.run_courses(source, python, federation, corners(task), WARM_UP + rounds)
    # Intervals go from one round's evaluation to the next one's: there is one less than rounds.
    seconds = [float(np.mean(course["cpu_s"][WARM_UP - 1 :])) for course in answer["courses"]]
    return peer.describe(answer), seconds, answer["peak_rss_mb"]


def measure_peers(task: Task, options: argparse.Namespace) -> list[Peer]:
    """Measure everything that trains one course at a time."""
    asked = (task, options.single_rounds)
    alone = measuring.in_fresh_process(time_engine_alone, *asked)
    peers: list[Peer] = [("our engine, one course at a time", *alone)]
    for step in STEPS:
        found = measuring.in_fresh_process(time_plain, *asked, step)
        peers.append((f"plain torch loop, {step}", *found))
    if options.federatedscope:
        where = options.federatedscope, options.federatedscope_python
        peers.append(time_federatedscope(task, options.federatedscope_rounds, *where))
    return peers


def training_only(task: Task, python: Path, schedule: turns.Schedule = SCHEDULE) -> list[str]:
    """Return tables of a course alone, of many together, and pfl, in turns."""
    texts = [
        "## Training only, beside pfl",
        f"The same clients, all of them in every round, in turns: {schedule.turns} turns of "
        f"{schedule.rounds} rounds after {schedule.warm_up}, nothing evaluated; medians of turns, "
        "and of their ratios. pfl never shuffles its minibatches.",
    ]
    federation = task_federation(task, task.seeds[0])
    most = task.fidelity_space["client_sample_rate"].grid[-1]
    for name, (size, epochs) in SINGLE.items():
        settings = {**CONFIGURATION, "batch_size": size, "step_size": epochs}
        course = Course(settings, most, task.seeds[0])
        asked = (python, federation, course, COMPARED, schedule.total)
        many = [course] * MANY
        with turns.pfl(*asked) as (label, turn):
            ways = {
                "our engine, one course": turns.engine(task, [course]),
                f"our engine, each of {MANY} courses": turns.engine(task, many),
                label: turn,
            }
            table = turns.compare(turns.take_turns(ways, schedule))
        texts += [f"{name}: batch size {size}, local epochs {epochs}.", table]
    return texts


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the tables and write them to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--task", default=TASK, help=f"with {SINGLE} on its grid ({TASK})")
    parser.add_argument("--rounds", type=int, default=500, help="rounds of a course")
    parser.add_argument("--grid-rounds", type=int, default=50, help="measured rounds of a unit")
    parser.add_argument("--single-rounds", type=int, default=30, help="... of a single course")
    parser.add_argument("--federatedscope-rounds", type=int, default=10, help="... of the peer's")
    peer.add_arguments(parser)
    turns.add_arguments(parser)
    options = parser.parse_args(argv)
    task = get_task(options.task)
    corner = {(c.configuration["batch_size"], c.configuration["step_size"]) for c in corners(task)}
    if missing := [point for point in SINGLE.values() if point not in corner]:
        parser.error(f"`--task` must have batch size and epochs {missing[0]}; {options.task} not")
    grid, peak = measuring.in_fresh_process(time_grid, task, options.grid_rounds)
    peers = measure_peers(task, options)
    sections = [
        _method(task, options),
        *_grid_tables(task, options.rounds, grid, peak, peers),
        *_single_table(task, peers),
    ]
    if options.pfl_python:
        sections += training_only(task, options.pfl_python)
    return measuring.write_report(options, "Engine speed", *sections)


def _method(task: Task, options: argparse.Namespace) -> str:
    return (
        f"Table {task.table_name}, {options.rounds} rounds per course, processor time of one "
        f"thread. The grid: one unit per batch size, all its courses together, {WARM_UP} rounds to "
        f"warm up and {options.grid_rounds} measured. One course at a time: {len(corners(task))} "
        "courses, every batch size with fewest and most local epochs and fewest and most clients, "
        "whose mean stands for that of the grid (a little low for our engine alone, whose clients "
        f"train in lockstep); {options.single_rounds} rounds measured "
        f"({options.federatedscope_rounds} for FederatedScope), set-up not counted. All are "
        f"extrapolated linearly to {options.rounds} rounds. FederatedScope runs with the settings "
        "of FedHPO-Bench's scripts/lr and without early stopping."
    )


def _grid_tables(
    task: Task,
    rounds: int,
    grid: Sequence[tuple[int, int, float, float]],
    peak: float,
    peers: Sequence[Peer],
) -> list[str]:
    courses = sum(count for _, count, *_ in grid)
    ours = sum(setup + rounds * seconds for *_, setup, seconds in grid) / courses
    ways = [("our engine, the grid as batches", ours, peak)]
    ways += [(name, rounds * float(np.mean(each)), most) for name, each, most in peers]
    rows = [
        [name, f"{3600 / cpu:,.0f}", number(cpu), f"{most:.0f}", number(cpu / ours)]
        for name, cpu, most in ways
    ]
    header = ("", "courses per core-hour", "CPU s per course", "peak RSS MB")
    total = len(GridDesign(task).units()) / len(grid) * courses
    units = [
        [f"batch size {size}", count, number(1e3 * seconds)] for size, count, _, seconds in grid
    ]
    return [
        f"## The whole grid: {total:,.0f} courses",
        measuring.table((*header, "times slower than ours"), rows),
        f"Our engine trains the whole grid in {number(ours * total / 60)} core-minutes.",
        "## Units of our engine",
        measuring.table(("unit", "courses", "CPU ms per round"), units),
    ]


def _single_table(task: Task, peers: Sequence[Peer]) -> list[str]:
    most = task.fidelity_space["client_sample_rate"].grid[-1]
    places = {
        (c.configuration["batch_size"], c.configuration["step_size"]): place
        for place, c in enumerate(corners(task))
        if c.client_sample_rate == most
    }
    rows = [
        [name, *(number(1e3 * seconds[places[key]]) for key in SINGLE.values())]
        for name, seconds, _ in peers
    ]
    words = (f"{name}: batch size {b}, local epochs {e}" for name, (b, e) in SINGLE.items())
    return [
        "## One single course",
        f"All clients in every round. {', '.join(words)}.",
        measuring.table(["CPU ms per round", *SINGLE], rows),
    ]


if __name__ == "__main__":
    measuring.run(main)
