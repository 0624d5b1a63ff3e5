"""How many courses of each model family a core trains per hour, beside FederatedScope and pfl.

Measured in one run, each in a fresh process on one thread, on the same samples:

- our engine on a batch of courses that differ in the learning rate, and on one course alone;
- a plain torch loop for one course, with torch's layers, autograd and optimizer;
- FederatedScope, when `--federatedscope` names its source tree;
- pfl, when `--pfl-python` names an interpreter that has it: training only, in turns with ours;
- the rate at which this core multiplies matrices, in every precision that the model computes in,
  and the share of it that each of them reaches: operations of all products, counted by formula,
  over time and over that rate.

Every evaluation is loss, accuracy and macro-F1 of all clients, on train, validation and test split.
Everybody evaluates equally often: after as many rounds as FedHPO-Bench's script for the task.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
import peer
import turns
from families import FAMILIES, Family
from measuring import number
from plain_module import PlainModuleCourse

from fedhpo_gym.backends.training import make_batch, task_federation
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.torch_trainer import single_torch_thread
from fedhpo_gym.tasks import get_task

SEED = 1


def courses(family: Family, count: int) -> list[Course]:
    """Return courses of a family that differ in the learning rate."""
    rates = (
        np.geomspace(1e-3, 1e-1, count) if count > 1 else [family.configuration["learning_rate"]]
    )
    return [
        Course(
            {**family.configuration, "learning_rate": float(rate)}, family.client_sample_rate, SEED
        )
        for rate in rates
    ]


def time_engine(name: str, count: int, rounds: int, precision: str = "float32") -> float:
    """Return our engine's processor seconds per round and course."""
    family = FAMILIES[name]
    task = get_task(family.task).variant(precision=precision)
    batch = make_batch(task, courses(family, count))
    batch.advance(family.warm_up)
    evaluated = range(family.every, rounds + 1, family.every)
    with measuring.stopwatch() as spent:
        batch.advance(rounds, evaluated=evaluated)
    return spent.cpu_s / rounds / count


def time_plain(name: str, rounds: int) -> float:
    """Return the plain loop's processor seconds per round."""
    family = FAMILIES[name]
    with single_torch_thread():
        course = PlainModuleCourse(family, task_federation(get_task(family.task), SEED))
        course.advance(family.warm_up)
        with measuring.stopwatch() as spent:
            course.advance(rounds)
    return spent.cpu_s / rounds


def time_federatedscope(name: str, options: argparse.Namespace) -> tuple[str, float]:
    """Return FederatedScope's version and processor seconds per round."""
    family = FAMILIES[name]
    every = family.every
    federation = task_federation(get_task(family.task), SEED)
    features = family.compared.inputs(federation.features).numpy()
    answer = peer.run_courses(
        options.federatedscope,
        options.federatedscope_python,
        replace(federation, features=features),
        courses(family, 1),
        family.warm_up + family.measured[3] + every,
        settings={**family.settings, "eval.freq": every},
    )
    times = answer["courses"][0]["cpu_s"][family.warm_up // every :]
    return peer.describe(answer), float(np.mean(times)) / every


def work_per_round(family: Family, federation: Federation) -> float:
    """Return the floating-point operations of a round, in the mean over client samplings."""
    trained = family.client_sample_rate * federation.num_samples[:, 0].sum()
    evaluated = federation.num_samples.sum() / family.every
    return family.work(family.configuration["step_size"] * trained, evaluated)


Row = tuple[str, float, float, str]
"""One way to train: its name, seconds per round, operations per round, precision."""


def measure(name: str, options: argparse.Namespace) -> list[Row]:
    """Return a row per way to train."""
    family = FAMILIES[name]
    in_batch, alone, plain, _ = family.measured
    work = work_per_round(family, task_federation(get_task(family.task), SEED))
    run = measuring.in_fresh_process
    together, _ = run(time_engine, name, family.courses, in_batch)
    single, _ = run(time_engine, name, 1, alone)
    loop, _ = run(time_plain, name, plain)
    rows = [
        (f"our engine, {family.courses} courses", together, work, "float32"),
        ("our engine, one course", single, work, "float32"),
        ("plain torch loop", loop, work, "float32"),
    ]
    for precision in other_precisions(name):
        seconds, _ = run(time_engine, name, 1, alone, precision)
        rows.append((f"our engine, one course, {precision}", seconds, work, precision))
    if options.federatedscope:
        label, seconds = time_federatedscope(name, options)
        rows.append((label, seconds, work, "float32"))
    return rows


def other_precisions(name: str) -> tuple[str, ...]:
    """Return what a family's model computes in, beside float32."""
    return tuple(p for p in get_task(FAMILIES[name].task).precisions if p != "float32")


def training_only(name: str, python: Path) -> list[str]:
    """Return a table of our engine and pfl in turns.

    Args:
        name: of the family.
        python: interpreter that has pfl.
    """
    family = FAMILIES[name]
    asked = get_task(family.task), courses(family, 1)[0], family.compared, python, family.turns
    return [
        f"Training only, the same clients in turns: {family.turns.turns} turns of "
        f"{family.turns.rounds} round(s) after {family.turns.warm_up}; medians of turns, and of "
        "their ratios. pfl never shuffles its minibatches and averages no running statistics.",
        turns.compare(turns.one_course(*asked)),
    ]


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the tables and write them to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    peer.add_arguments(parser)
    turns.add_arguments(parser)
    options = parser.parse_args(argv)
    precisions = {"float32", *(p for name in options.families for p in other_precisions(name))}
    peaks = dict.fromkeys(sorted(precisions, reverse=True), 0.0)
    _raise_peaks(peaks)
    sections = []
    for name in options.families:
        sections.append((name, measure(name, options)))
        _raise_peaks(peaks)
    size = measuring.PEAK_SIZE
    texts = [
        f"Products of {size} x {size} {precision} matrices: {peak / 1e9:.0f} GFLOP/s."
        for precision, peak in peaks.items()
    ]
    for name, rows in sections:
        family = FAMILIES[name]
        texts += [f"## {name}", _describe(family), _table(family, rows, peaks)]
        if options.pfl_python:
            texts += training_only(name, options.pfl_python)
    return measuring.write_report(options, "Speed of model families", *texts)


def _raise_peaks(peaks: dict[str, float]) -> None:
    """Measure once more how fast this core is at best."""
    for precision, before in peaks.items():
        found = measuring.in_fresh_process(measuring.gemm_peak, precision)[0]
        peaks[precision] = max(before, found)


def _describe(family: Family) -> str:
    words = ", ".join(f"{name} {value:g}" for name, value in family.configuration.items())
    batch, alone, plain, _ = family.measured
    return (
        f"{family.task}, {words}, client sample rate {family.client_sample_rate}, evaluation every "
        f"{family.every} round(s). Rounds measured: {batch} in a batch, {alone} alone, {plain} of "
        f"the plain loop, after {family.warm_up}; extrapolated to {family.rounds}."
    )


def _table(family: Family, rows: Sequence[Row], peaks: Mapping[str, float]) -> str:
    lines = [
        [
            label,
            *map(number, (3600 / (seconds * family.rounds), 1e3 * seconds, work / 1e6)),
            f"{100 * work / seconds / peaks[precision]:.1f}%",
            number(seconds / rows[0][1]),
        ]
        for label, seconds, work, precision in rows
    ]
    header = ("", "courses per core-hour", "CPU ms per round", "MFLOP per round")
    header += ("share of the peak", "times slower than the batch")
    return measuring.table(header, lines)


if __name__ == "__main__":
    measuring.run(main)
