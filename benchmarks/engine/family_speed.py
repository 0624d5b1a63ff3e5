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
The first table of a family evaluates equally often for everybody. A second one compares one course
as each system really runs the task: ours with the task's evaluated rounds, FederatedScope with the
`eval.freq` of FedHPO-Bench's script for the task and with its default, every round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import attainable
import measuring
import numpy as np
import peer
import turns
from families import FAMILIES, Family
from measuring import number
from plain_module import PlainModuleCourse

from fedhpo_gym.courses.training import make_batch, task_federation
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.lockstep_batch import one_thread
from fedhpo_gym.fl.packing import Course
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


def time_parts(name: str, rounds: int) -> tuple[float, float]:
    """Return our engine's processor seconds per round of training, and per evaluation."""
    family = FAMILIES[name]
    batch = make_batch(get_task(family.task), courses(family, 1))
    batch.advance(family.warm_up, evaluated=())
    with measuring.stopwatch() as training:
        batch.advance(rounds, evaluated=())
    with measuring.stopwatch() as evaluating:
        for _ in range(-(-rounds // family.every)):
            batch.evaluate()
    return training.cpu_s / rounds, evaluating.cpu_s / -(-rounds // family.every)


def time_plain(name: str, rounds: int) -> float:
    """Return the plain loop's processor seconds per round."""
    family = FAMILIES[name]
    with one_thread():
        course = PlainModuleCourse(family, task_federation(get_task(family.task), SEED))
        course.advance(family.warm_up)
        with measuring.stopwatch() as spent:
            course.advance(rounds)
    return spent.cpu_s / rounds


def time_federatedscope(name: str, arguments: argparse.Namespace, every: int) -> tuple[str, float]:
    """Return FederatedScope's version and processor seconds per round, evaluated now and then."""
    family = FAMILIES[name]
    federation = task_federation(get_task(family.task), SEED)
    features = family.compared.inputs(federation.features).numpy()
    answer = peer.run_courses(
        arguments.federatedscope,
        arguments.federatedscope_python,
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


def measure(name: str, arguments: argparse.Namespace) -> list[Row]:
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
    if arguments.federatedscope:
        label, seconds = time_federatedscope(name, arguments, family.every)
        rows.append((label, seconds, work, "float32"))
    return rows


def other_precisions(name: str) -> tuple[str, ...]:
    """Return what a family's model computes in, beside float32."""
    return tuple(p for p in get_task(FAMILIES[name].task).precisions if p != "float32")


OwnCourse = tuple[str, int, float]
"""One course as a system runs it: what runs it, evaluations, processor seconds."""


def measure_own(name: str, rows: Sequence[Row], arguments: argparse.Namespace) -> list[OwnCourse]:
    """Return a course of every system with evaluations of its own; ours first.

    Args:
        name: of the family.
        rows: of the equal comparison; the last is FederatedScope's, if it was measured.
        arguments: of the command line.
    """
    family = FAMILIES[name]
    evaluations = len(get_task(family.task).evaluated_rounds)
    (training, evaluating), _ = measuring.in_fresh_process(time_parts, name, family.measured[1])
    ours = family.rounds * training + evaluations * evaluating
    found = [("our engine, one course", evaluations, ours)]
    if not arguments.federatedscope:
        return found
    label, seconds, *_ = rows[-1]
    script = (f"{label}, as its script", family.rounds // family.every, family.rounds * seconds)
    found.append(script)
    if family.every > 1:
        label, seconds = time_federatedscope(name, arguments, 1)
        found.append((f"{label}, its default", family.rounds, family.rounds * seconds))
    return found


def training_only(
    name: str, python: Path, peaks: Mapping[str, float], convolutions: Mapping[str, float]
) -> list[str]:
    """Return a table of our engine and pfl in turns, and what share of the attainable we reach.

    Args:
        name: of the family.
        python: interpreter that has pfl.
        peaks: FLOP/s of matrix products by precision.
        convolutions: likewise of convolutions.
    """
    family = FAMILIES[name]
    task, course = get_task(family.task), courses(family, 1)[0]
    found = turns.one_course(task, course, family.compared, python, family.turns)
    federation = task_federation(task, SEED)
    cohorts = turns.cohorts(federation, course, family.turns.total)[family.turns.warm_up :]
    samples = [float(federation.num_samples[cohort, 0].sum()) for cohort in cohorts]
    trained = float(np.median(samples)) * family.configuration["step_size"]
    texts = [
        f"Training only, the same clients in turns: {family.turns.turns} turns of "
        f"{family.turns.rounds} round(s) after {family.turns.warm_up}; medians of turns, and of "
        "their ratios. pfl never shuffles its minibatches and averages no running statistics.",
        turns.compare(found),
    ]
    for precision, peak in peaks.items():
        own = found.get(f"our engine, {precision}")
        if own:
            least = attainable.least_seconds(family, trained, peak, convolutions[precision])
            texts.append(attainable.describe(family, precision, least, float(np.median(own))))
    return texts


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the tables and write them to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    peer.add_arguments(parser)
    turns.add_arguments(parser)
    arguments = parser.parse_args(argv)
    load = measuring.load_average()
    precisions = {"float32", *(p for name in arguments.families for p in other_precisions(name))}
    peaks = dict.fromkeys(sorted(precisions, reverse=True), 0.0)
    _raise_peaks(peaks)
    sections = []
    for name in arguments.families:
        rows = measure(name, arguments)
        sections.append((name, rows, measure_own(name, rows, arguments)))
        _raise_peaks(peaks)
    size = measuring.PEAK_SIZE
    fresh = measuring.in_fresh_process
    convolutions = {precision: fresh(attainable.conv_peak, precision)[0] for precision in peaks}
    texts = [
        f"Products of {size} x {size} {precision} matrices: {peak / 1e9:.0f} GFLOP/s; the second "
        f"convolution of CNN-FEMNIST with its gradients: {convolutions[precision] / 1e9:.0f}."
        for precision, peak in peaks.items()
    ]
    for name, rows, own in sections:
        family = FAMILIES[name]
        texts += [f"## {name}", _describe(family), _table(family, rows, peaks)]
        texts += [_describe_own(family), _table_own(own)]
        if arguments.pfl_python:
            texts += training_only(name, arguments.pfl_python, peaks, convolutions)
    command = ["python", "benchmarks/family_speed.py", "--families", *arguments.families]
    if arguments.federatedscope:
        command += ["--federatedscope PATH", "--federatedscope-python PATH"]
    if arguments.pfl_python:
        command += ["--pfl-python PATH"]
    return measuring.write_report(arguments.out, "Speed of model families", command, load, texts)


def _raise_peaks(peaks: dict[str, float]) -> None:
    """Measure once more how fast this core is at best."""
    for precision, before in peaks.items():
        found = measuring.in_fresh_process(measuring.gemm_peak, precision)[0]
        peaks[precision] = max(before, found)


def _describe(family: Family) -> str:
    settings: Mapping[str, float] = family.configuration
    words = ", ".join(f"{name} {value:g}" for name, value in settings.items())
    batch, alone, plain, _ = family.measured
    return (
        f"{family.task}, {words}, client sample rate {family.client_sample_rate}, evaluation every "
        f"{family.every} round(s). Rounds measured: {batch} in a batch, {alone} alone, {plain} of "
        f"the plain loop, after {family.warm_up}; extrapolated to {family.rounds}."
    )


def _table(family: Family, rows: Sequence[Row], peaks: Mapping[str, float]) -> str:
    header = (
        "",
        "courses per core-hour",
        "CPU ms per round",
        "MFLOP per round",
        "share of the peak",
        "times slower than the batch",
    )
    lines = [
        [
            label,
            number(3600 / (seconds * family.rounds)),
            number(1e3 * seconds),
            number(work / 1e6),
            f"{100 * work / seconds / peaks[precision]:.1f}%",
            number(seconds / rows[0][1]),
        ]
        for label, seconds, work, precision in rows
    ]
    return measuring.table(header, lines)


def _describe_own(family: Family) -> str:
    return (
        f"One course of {family.rounds} rounds as each system runs this task. Ours evaluates after "
        f"the task's evaluated rounds; FedHPO-Bench's script after every {family.every} round(s), "
        "FederatedScope by default after every round. Assumed: all rounds cost as much as those "
        "measured; nobody stops early; start-up is left out. Fewer evaluations are a choice of the "
        "task, not arithmetic saved: best rounds are known less finely."
    )


def _table_own(rows: Sequence[OwnCourse]) -> str:
    header = ("", "evaluations", "CPU s per course", "courses per core-hour", "times ours")
    lines = [
        [
            label,
            number(evaluations),
            number(seconds),
            number(3600 / seconds),
            number(seconds / rows[0][2]),
        ]
        for label, evaluations, seconds in rows
    ]
    return measuring.table(header, lines)


if __name__ == "__main__":
    main()
