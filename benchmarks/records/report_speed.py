"""What comparing costs: a study of made-up runs, from columnar records to the whole report.

By default 20 problems, 10 agents, 5 seeds and 100,000 trials in each of the 1,000 runs: 10^8
trials. A run is written as a Parquet file and read, as `fedhpo-gym report` reads it, once for each
seed; then its losses are shuffled, so that no two runs are equal. Making, writing and shuffling are
timed apart, and what is read lies in the system's cache. Reading run records as JSON lines costs
more than all that, and is timed on a sample.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
from measuring import number, stopwatch

from fedhpo_gym.analysis import build_report, group
from fedhpo_gym.analysis.comparison import compare_agents as compare
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.records.files import read_record, write_record
from fedhpo_gym.records.incumbents import Study, Trajectory, Trials
from fedhpo_gym.records.parquet import Column, store
from fedhpo_gym.records.parquet import read_judged_columns as read_judged
from fedhpo_gym.records.record import Header, RunRecord, StepRecord
from fedhpo_gym.records.runs import JudgedRun

LEVELS = np.array([9.0, 27.0, 81.0])
SAMPLE = 2000
"""Trials of the run that is written and read as JSON lines."""


def trials(key: tuple[int, int, int], count: int) -> Trials:
    """Return made-up trials: three fidelities, and losses that differ by agent and problem."""
    problem, agent, seed = key
    rng = stream(0, "report_speed", problem, agent, seed)
    value = rng.random(count) ** (1 + agent / 20) + problem
    level = LEVELS[rng.integers(3, size=count)] if agent % 2 else np.full(count, LEVELS[-1])
    return Trials(np.cumsum(rng.random(count)), value, level, value + 0.1 * rng.random(count))


def files(
    shape: tuple[int, int, int], count: int, folder: Path, spent: list[float]
) -> Iterator[tuple[Path, JudgedRun]]:
    """Yield what is compared of all runs; `spent` gets the seconds of making and of reading."""
    path = folder / "run.parquet"
    problems, agents, seeds = shape
    for problem, agent in np.ndindex(problems, agents):
        start = process_time()
        header = Header("0.1.0", f"problem {problem:02}", {"kwargs": {}}, f"{agent:02}", 0, "-")
        made, accuracy = trials((problem, agent, 0), count), np.full(count, 0.5)
        columns = [
            Column(("elapsed_s",), "double", made.time_s),
            Column(("reward",), "double", accuracy),
            Column(("objectives", "val_loss"), "double", made.value),
            Column(("test", "loss"), "double", made.test),
            Column(("test", "accuracy"), "double", accuracy),
            Column(("fidelity", "round"), "int64", made.level.astype(np.int64)),
            Column(("configuration", "learning_rate"), "double", accuracy),
            Column(("incumbent", "trial"), "int64", np.ones(count, dtype=np.int64)),
        ]
        store(path, header, columns, "")
        spent[0] += process_time() - start
        for seed in range(seeds):
            start = process_time()
            judged = read_judged(path)
            middle = process_time()
            value = stream(1, "report_speed", problem, agent, seed).permutation(judged.trials.value)
            run = replace(judged.trials, value=value)
            own = replace(judged, header=replace(judged.header, seed=seed), trials=run)
            spent[0] += process_time() - middle
            spent[1] += middle - start
            yield path, own


def record(count: int) -> RunRecord:
    """Return a run record of made-up trials."""
    made = trials((0, 1, 0), count)
    columns = [made.time_s, made.value, made.level, made.test]
    rows = zip(*(column.tolist() for column in columns if column is not None), strict=True)
    steps, best = [], 0
    for place, (time, loss, level, test) in enumerate(rows):
        best = place if loss < made.value[best] else best
        configuration = {"learning_rate": 0.01, "batch_size": 64}
        steps.append(
            StepRecord(
                [0.1] * 4, -loss, place == count - 1, False, configuration, {"round": level},
                {"val_loss": loss}, {"time_s": 1.0, "rounds": level}, time,
                {"trial": best + 1, "val_loss": float(made.value[best]),
                 "configuration": configuration},
                {"loss": test, "accuracy": 0.5},
            )
        )  # fmt: skip
    return RunRecord(Header("0.1.0", "made-up", {"kwargs": {}}, "agent", 0, "none"), tuple(steps))


def json_seconds() -> float:
    """Return the seconds of reading one trial from JSON lines and following the incumbent."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        write_record(path, record(SAMPLE))
        start = process_time()
        Trajectory.of("p", "a", 0, JudgedRun.of(read_record(path)).trials)
        return (process_time() - start) / SAMPLE


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, and write the report."""
    parser = measuring.Parser(__file__, __doc__)
    for name, default in (("problems", 20), ("agents", 10), ("seeds", 5), ("trials", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default:,})")
    options = parser.parse_args(argv)
    spent, shape = [0.0, 0.0], (options.problems, options.agents, options.seeds)
    with stopwatch() as grouping, tempfile.TemporaryDirectory() as folder:
        problems = group(files(shape, options.trials, Path(folder), spent))
    lines = [r.trajectory for p in problems for runs in p.runs.values() for r in runs]
    with stopwatch() as comparing:
        for study in Study.whole(lines):
            compare(study)
    with stopwatch() as reporting:
        report = build_report(problems, "0.1.0")
    with stopwatch() as papers:
        sizes = [len(c if isinstance(c, str) else c()) for c in report.files.values()]
    memory, count = measuring.peak_rss_mb(), len(lines) * options.trials
    following = grouping.cpu_s - sum(spent)
    each = json_seconds()
    rows = [
        ["making and writing the records (not part of it)", number(spent[0])],
        ["reading and checking the records", number(spent[1])],
        ["incumbents of all runs", number(following)],
        ["all statistics of the comparison, alone", number(comparing.cpu_s)],
        ["the whole page: statistics, figures, tables", number(reporting.cpu_s)],
        ["**reading, incumbents and page**", number(spent[1] + following + reporting.cpu_s)],
        ["figures as PDF, beside the page", number(papers.cpu_s)],
    ]
    return measuring.write_report(
        options,
        "Report speed",
        f"{options.problems} problems, {options.agents} agents, {options.seeds} seeds, "
        f"{options.trials:,} trials a run: {count:,} trials. Seconds of processor time, of all "
        f"threads; peak memory {memory:,.0f} MB. The page has {len(report.html) / 1e6:.1f} MB, its "
        f"{len(sizes)} files {sum(sizes) / 1e6:.1f} MB.",
        measuring.table(["part", "s"], rows),
        f"From run records as JSON lines, reading and checking takes {1e6 * each:.0f} µs a trial "
        f"({SAMPLE} of them measured): {number(each * count / 3600)} core-hours for so many.",
    )


if __name__ == "__main__":
    measuring.run(main)
