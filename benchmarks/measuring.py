"""What all benchmarks share: clocks, fresh processes, and reports that say where they were made."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
RESULTS = Path(__file__).resolve().parent / "results"
PEAK_SIZE, PEAK_REPEATS = 1536, 10
"""Rows of the matrices whose product is the fastest arithmetic here, and how often it is tried."""
PACKAGES = ("numpy", "torch", "gymnasium", "scikit-learn")


@dataclass
class Spent:
    """Processor seconds of all threads of this process."""

    cpu_s: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Spent]:
    """Measure the time spent in a `with` block; the result is complete when the block ends."""
    spent, start = Spent(), time.process_time()
    try:
        yield spent
    finally:
        spent.cpu_s = time.process_time() - start


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


def fastest(jobs: Mapping[Key, tuple[Callable[[], object], int]], turns: int) -> dict[Key, float]:
    """Return processor seconds per call of each job, of its fastest turn.

    Args:
        jobs: what is called, and how often in a turn; each is called once before the first turn.
        turns: of all jobs, one after the other.
    """
    for job, _ in jobs.values():
        job()
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(turns):
        for key, (job, calls) in jobs.items():
            with stopwatch() as spent:
                for _ in range(calls):
                    job()
            best[key] = min(best[key], spent.cpu_s / calls)
    return best


def gemm_peak(precision: str = "float32") -> float:
    """Return the FLOP/s of a large product of matrices on one thread, at best."""
    # Here, because importing torch is part of what other benchmarks measure.
    import torch

    from fedhpo_gym.fl.torch_trainer import single_torch_thread

    generator = torch.Generator().manual_seed(0)
    matrices = torch.rand((2, PEAK_SIZE, PEAK_SIZE), generator=generator)
    a, b = matrices.to(getattr(torch, precision))
    best = float("inf")
    with single_torch_thread():
        for _ in range(PEAK_REPEATS):
            with stopwatch() as spent:
                torch.mm(a, b)
            best = min(best, spent.cpu_s)
    return 2.0 * PEAK_SIZE**3 / best


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a markdown table; the first column is text, the others are numbers."""
    # Not above: a benchmark may measure a process without the package.
    from fedhpo_gym.core.markdown import markdown_table

    return markdown_table(header, rows, numbers=True)


def number(value: float, digits: int = 3) -> str:
    """Return a number with a few significant digits and no exponent."""
    if not value:
        return "0"
    text = f"{float(f'{value:.{digits}g}'):,.10f}"
    return text.rstrip("0").rstrip(".")


class Parser(argparse.ArgumentParser):
    """The options of a benchmark: where the report goes, and those that are added.

    What it parses also has `command`, the words without places on this machine, and `load`, the
    load average at the start.
    """

    def __init__(self, program: str, description: str | None) -> None:
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self._program = Path(program).resolve()
        default = RESULTS / f"{self._program.stem}.md"
        self.add_argument("--out", type=Path, default=default, help="file the report is written to")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the options; see the class."""
        found = super().parse_args(args, namespace)
        name = self._program.relative_to(RESULTS.parents[1]).as_posix()
        found.command = f"python {name} {_shown(sys.argv[1:] if args is None else args)}".strip()
        found.load = load_average()
        return found


def _shown(words: Sequence[str]) -> str:
    shown, skip = [], False
    for word in words:
        if not skip and word.partition("=")[0] != "--out":
            name, equals, value = word.rpartition("=")
            shown.append(f"{name}{equals}PATH" if os.sep in value else word)
        skip = word == "--out"
    return shlex.join(shown)


def run(main: Callable[[], object]) -> None:
    """Run a benchmark; where what it needs is not on this machine, say so instead."""
    # Here, because importing the package is part of what benchmarks measure.
    from fedhpo_gym.core.errors import MissingDataError, MissingDependencyError

    try:
        main()
    except (MissingDataError, MissingDependencyError) as error:
        print(f"skipped: {error}")


def write_report(options: Any, title: str, *sections: str) -> str:
    """Write a report, print it and return its text.

    Args:
        options: what `Parser` parsed.
        title: its first heading.
        sections: paragraphs and tables.
    """
    text = "\n\n".join([f"# {title}", _origin(options), *sections]) + "\n"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text, encoding="utf-8")
    print(text)
    return text


def load_average() -> float:
    """Return the mean number of busy processes during the last minute."""
    return os.getloadavg()[0]


def _origin(options: Any) -> str:
    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"
    load = f"{options.load:.2f} at the start, {load_average():.2f} at the end"
    lines = [
        f"- command: `{options.command}`",
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
