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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
import peer
import torch
import turns
from measuring import number
from plain_loop import STEPS, PlainCourse, TorchDraws

from fedhpo_gym.building.grid import GridDesign
from fedhpo_gym.courses.training import make_batch, task_federation
from fedhpo_gym.fl.lockstep_batch import one_thread
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.tasks import Task, get_task

WARM_UP = 2
CONFIGURATION = {"learning_rate": 0.01, "weight_decay": 0.0}
TASK = "LR-CreditG-v0"
SINGLE = {"easiest": (64, 1), "hardest": (8, 4)}
COMPARED = turns.Compared("logistic", torch.from_numpy)
SCHEDULE = turns.Schedule(warm_up=5, rounds=20, turns=9)


@dataclass(frozen=True)
class Peer:
    """One way to train courses one by one.

    Attributes:
        name: what it is.
        cpu_s: (corners,) processor seconds per round.
        wall_s: (corners,) seconds per round.
        peak_rss_mb: peak resident set of its process.
    """

    name: str
    cpu_s: list[float]
    wall_s: list[float]
    peak_rss_mb: float


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


def time_grid(task: Task, rounds: int) -> list[dict[str, float]]:
    """Time whole units of the grid, one per batch size, under the first seed.

    Returns:
        For each unit its `batch_size`, number of `courses`, `setup_cpu_s` (creating the batch), and
        `cpu_s` and `wall_s` per round after the warm-up.
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
        batch.advance(WARM_UP)
        with measuring.stopwatch() as spent:
            batch.advance(rounds)
        measured.append(
            {
                "batch_size": courses[0].configuration["batch_size"],
                "courses": len(courses),
                "setup_cpu_s": setup.cpu_s,
                "cpu_s": spent.cpu_s / rounds,
                "wall_s": spent.wall_s / rounds,
            }
        )
    return measured


def time_engine_alone(task: Task, rounds: int) -> tuple[list[float], list[float]]:
    """Time every corner as a batch of one course: processor and wall seconds per round."""
    cpu, wall = [], []
    for course in corners(task):
        batch = make_batch(task, [course])
        batch.advance(WARM_UP)
        with measuring.stopwatch() as spent:
            batch.advance(rounds)
        cpu.append(spent.cpu_s / rounds)
        wall.append(spent.wall_s / rounds)
    return cpu, wall


def time_plain(task: Task, rounds: int, step: str) -> tuple[list[float], list[float]]:
    """Time every corner with the plain loop: processor and wall seconds per round."""
    cpu, wall = [], []
    federation = task_federation(task, task.seeds[0])
    with one_thread():
        for course in corners(task):
            draws = TorchDraws(course.seed)
            arguments = (course.configuration, course.client_sample_rate, draws, STEPS[step])
            plain = PlainCourse(federation, *arguments)
            plain.advance(WARM_UP)
            with measuring.stopwatch() as spent:
                plain.advance(rounds)
            cpu.append(spent.cpu_s / rounds)
            wall.append(spent.wall_s / rounds)
    return cpu, wall


def time_federatedscope(task: Task, rounds: int, source: Path, python: Path) -> Peer:
    """Time every corner with FederatedScope; setting a course up is not counted."""
    federation = task_federation(task, task.seeds[0])
    answer = peer.run_courses(source, python, federation, corners(task), WARM_UP + rounds)
    # Intervals go from one round's evaluation to the next one's: there is one less than rounds.
    rows = {
        clock: [float(np.mean(course[clock][WARM_UP - 1 :])) for course in answer["courses"]]
        for clock in ("cpu_s", "wall_s")
    }
    name = peer.describe(answer)
    return Peer(name, rows["cpu_s"], rows["wall_s"], answer["peak_rss_mb"])


def measure_peers(task: Task, arguments: argparse.Namespace) -> list[Peer]:
    """Measure everything that trains one course at a time."""
    rounds = arguments.single_rounds
    peers = []
    (cpu, wall), peak = measuring.in_fresh_process(time_engine_alone, task, rounds)
    peers.append(Peer("our engine, one course at a time", cpu, wall, peak))
    for step in STEPS:
        (cpu, wall), peak = measuring.in_fresh_process(time_plain, task, rounds, step)
        peers.append(Peer(f"plain torch loop, {step}", cpu, wall, peak))
    if arguments.federatedscope:
        source, python = arguments.federatedscope, arguments.federatedscope_python
        peers.append(time_federatedscope(task, arguments.federatedscope_rounds, source, python))
    return peers


def training_only(task: Task, python: Path, schedule: turns.Schedule = SCHEDULE) -> list[str]:
    """Return tables of a course alone, a full block of courses, and pfl, in turns."""
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
        block = [course] * get_model(task.model).slots
        with turns.pfl(*asked) as (label, turn):
            ways = {
                "our engine, one course": turns.engine(task, [course]),
                f"our engine, each of {len(block)} courses": turns.engine(task, block),
                label: turn,
            }
            table = turns.compare(turns.take_turns(ways, schedule))
        texts += [f"{name}: batch size {size}, local epochs {epochs}.", table]
    return texts


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the tables and write them to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--task", default=TASK, help=f"with {SINGLE} on its grid ({TASK})")
    parser.add_argument("--rounds", type=int, default=500, help="rounds of a course")
    parser.add_argument("--grid-rounds", type=int, default=50, help="measured rounds of a unit")
    parser.add_argument("--single-rounds", type=int, default=30, help="... of a single course")
    parser.add_argument("--federatedscope-rounds", type=int, default=10, help="... of the peer's")
    peer.add_arguments(parser)
    turns.add_arguments(parser)
    arguments = parser.parse_args(argv)
    load = measuring.load_average()
    task = get_task(arguments.task)
    corner = {(c.configuration["batch_size"], c.configuration["step_size"]) for c in corners(task)}
    if missing := [point for point in SINGLE.values() if point not in corner]:
        parser.error(f"`--task` must have batch size and epochs {missing[0]}; {arguments.task} not")
    grid, peak = measuring.in_fresh_process(time_grid, task, arguments.grid_rounds)
    peers = measure_peers(task, arguments)
    sections = [
        _method(task, arguments),
        *_grid_tables(task, arguments.rounds, grid, peak, peers),
        _single_table(task, peers),
    ]
    if arguments.pfl_python:
        sections += training_only(task, arguments.pfl_python)
    command = ["python", "benchmarks/engine_speed.py", *_shown(arguments)]
    return measuring.write_report(arguments.out, "Engine speed", command, load, sections)


def _shown(arguments: argparse.Namespace) -> list[str]:
    shown = [f"--task {arguments.task}", f"--rounds {arguments.rounds}"]
    shown += [
        f"--grid-rounds {arguments.grid_rounds}",
        f"--single-rounds {arguments.single_rounds}",
    ]
    if arguments.federatedscope:
        shown += ["--federatedscope PATH", "--federatedscope-python PATH"]
        shown += [f"--federatedscope-rounds {arguments.federatedscope_rounds}"]
    if arguments.pfl_python:
        shown += ["--pfl-python PATH"]
    return shown


def _method(task: Task, arguments: argparse.Namespace) -> str:
    units = len(task.space["batch_size"].grid)
    return (
        f"Table {task.table_name}, {arguments.rounds} rounds per course, one thread. "
        f"The grid: {units} units, one per batch size, all their courses together, "
        f"{WARM_UP} rounds to warm up and {arguments.grid_rounds} measured, extrapolated linearly "
        f"to {arguments.rounds} rounds plus the set-up of the batch, and to the "
        f"{len(task.seeds)} seeds. "
        f"One course at a time: {len(corners(task))} courses, every batch size with fewest and "
        "most local epochs and fewest and most clients; the number of SGD steps is affine in both, "
        "so the mean of the corners stands for the mean of the grid (a little low for our engine "
        f"alone, whose clients train in lockstep). {WARM_UP} rounds to warm up, "
        f"{arguments.single_rounds} measured ({arguments.federatedscope_rounds} for "
        f"FederatedScope), extrapolated linearly; set-up is not counted. FederatedScope runs "
        "with the settings of FedHPO-Bench's scripts/lr (evaluation of all clients and splits in "
        "every round, log at INFO, to a file) and without early stopping. Ratios are ratios of "
        "the processor time of the whole grid on one core."
    )


def _grid_tables(
    task: Task, rounds: int, grid: Sequence[dict[str, float]], peak: float, peers: Sequence[Peer]
) -> list[str]:
    courses = sum(int(unit["courses"]) for unit in grid)
    ours = sum(unit["setup_cpu_s"] + rounds * unit["cpu_s"] for unit in grid) / courses
    wall = sum(unit["setup_cpu_s"] + rounds * unit["wall_s"] for unit in grid) / courses
    rows = [_row("our engine, the grid as batches", ours, wall, peak, ours)]
    for other in peers:
        cpu, clock = rounds * np.mean(other.cpu_s), rounds * np.mean(other.wall_s)
        rows.append(_row(other.name, float(cpu), float(clock), other.peak_rss_mb, ours))
    header = (
        "",
        "courses per core-hour",
        "CPU s per course",
        "wall s per course",
        "peak RSS MB",
        "times slower than ours",
    )
    total = len(GridDesign(task).units()) / len(grid) * courses
    units = [
        [
            f"batch size {int(unit['batch_size'])}",
            int(unit["courses"]),
            number(1e3 * unit["cpu_s"]),
            number(1e3 * unit["wall_s"]),
        ]
        for unit in grid
    ]
    return [
        f"## The whole grid: {total:,.0f} courses",
        measuring.table(header, rows),
        f"Our engine trains the whole grid in {number(ours * total / 60)} core-minutes.",
        "## Units of our engine",
        measuring.table(("unit", "courses", "CPU ms per round", "wall ms per round"), units),
    ]


def _row(name: str, cpu: float, wall: float, peak: float, ours: float) -> list[str]:
    ratio = number(cpu / ours) if cpu != ours else "1"
    return [name, f"{3600 / cpu:,.0f}", number(cpu), number(wall), f"{peak:.0f}", ratio]


def _single_table(task: Task, peers: Sequence[Peer]) -> str:
    header = ["CPU ms per round", *SINGLE]
    most = task.fidelity_space["client_sample_rate"].grid[-1]
    keys = [
        (c.configuration["batch_size"], c.configuration["step_size"])
        if c.client_sample_rate == most
        else None
        for c in corners(task)
    ]
    rows = [
        [other.name, *(number(1e3 * other.cpu_s[keys.index(key)]) for key in SINGLE.values())]
        for other in peers
    ]
    text = ", ".join(
        f"{name}: batch size {size}, local epochs {epochs}"
        for name, (size, epochs) in SINGLE.items()
    )
    lines = ["## One single course", f"All clients in every round. {text}."]
    return "\n\n".join([*lines, measuring.table(header, rows)])


if __name__ == "__main__":
    main()
