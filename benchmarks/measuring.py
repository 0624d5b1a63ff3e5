"""What all benchmarks share: clocks, fresh processes, and reports that say where they were made."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PEAK_SIZE, PEAK_REPEATS = 1536, 10
"""Rows of the matrices whose product is the fastest arithmetic here, and how often it is tried."""
PACKAGES = ("numpy", "torch", "gymnasium", "scikit-learn")


@dataclass
class Spent:
    """Time spent by this process.

    Attributes:
        cpu_s: processor seconds of all threads; what ratios are made of.
        wall_s: seconds on the clock; more than `cpu_s` where something else had the core.
    """

    cpu_s: float = 0.0
    wall_s: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Spent]:
    """Measure the time spent in a `with` block; the result is complete when the block ends."""
    spent = Spent()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield spent
    finally:
        spent.cpu_s = time.process_time() - cpu
        spent.wall_s = time.perf_counter() - wall


def peak_rss_mb() -> float:
    """Return the largest resident set of this process so far, in MB of 10^6 bytes.

    Where the system tells it, the figure since the program started: `ru_maxrss` would include the
    process this one was started from.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Call a function of a module in a new interpreter.

    Returns:
        What it returned, and the peak resident set of that interpreter in MB.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_call, function, arguments).result()


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    result = function(*arguments)
    return result, peak_rss_mb()


def gemm_peak(precision: str = "float32") -> float:
    """Return the FLOP/s of a large product of matrices on one thread, at best."""
    # Here, because importing torch is part of what other benchmarks measure.
    import torch

    from fedhpo_gym.fl.lockstep_batch import one_thread

    generator = torch.Generator().manual_seed(0)
    matrices = torch.rand((2, PEAK_SIZE, PEAK_SIZE), generator=generator)
    a, b = matrices.to(getattr(torch, precision))
    best = float("inf")
    with one_thread():
        for _ in range(PEAK_REPEATS):
            with stopwatch() as spent:
                torch.mm(a, b)
            best = min(best, spent.cpu_s)
    return 2.0 * PEAK_SIZE**3 / best


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a markdown table; the first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def number(value: float, digits: int = 3) -> str:
    """Return a number with a few significant digits and no exponent."""
    if not value:
        return "0"
    text = f"{float(f'{value:.{digits}g}'):,.10f}"
    return text.rstrip("0").rstrip(".")


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return an argument parser with the option every benchmark has: where the report goes."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = RESULTS / f"{Path(module).stem}.md"
    made.add_argument("--out", type=Path, default=default, help="file the report is written to")
    return made


def write_report(
    path: Path, title: str, command: Sequence[str], load_before: float, sections: Sequence[str]
) -> str:
    """Write a report and print it.

    Args:
        path: the file.
        title: its first heading.
        command: the command line that made it, without paths of this machine.
        load_before: load average when the command started.
        sections: paragraphs and tables.

    Returns:
        The text.
    """
    text = "\n\n".join([f"# {title}", _origin(command, load_before), *sections]) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(text)
    return text


def load_average() -> float:
    """Return the mean number of busy processes during the last minute."""
    return os.getloadavg()[0]


def _origin(command: Sequence[str], load_before: float) -> str:
    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"
    load = f"{load_before:.2f} at the start, {load_average():.2f} at the end"
    lines = [
        f"- command: `{' '.join(command)}`",
        f"- date: {date}",
        f"- machine: {machine}",
        f"- versions: {', '.join(versions)}",
        f"- load average: {load}",
    ]
    return "\n".join(lines)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
