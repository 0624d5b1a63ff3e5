"""Running plans, one record each.

`fedhpo-gym run` calls `do_run`; `compare` runs many plans as cells, in worker processes of this
machine or on a Dask cluster (`CellWork`, `on_dask`). A run is done once: its record's name follows
from its settings, and a complete record is never overwritten. The outcome of every cell, failed
ones included, is a line of the study's log, so that a study can be continued.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from traceback import extract_tb
from typing import Annotated, Any, Final, Literal
from zlib import crc32

from fedhpo_gym.agents import make_agent, run_crew, run_episode
from fedhpo_gym.core import __version__
from fedhpo_gym.core.checks import FOREIGN_ERRORS, Range, check_fields
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    WorkerLostError,
    WorkerTimeoutError,
)
from fedhpo_gym.core.plugins import import_plugins, plugin_modules
from fedhpo_gym.core.processes import run_on_cluster
from fedhpo_gym.core.processor import rounding_platform
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.records import files, parquet
from fedhpo_gym.records.record import Header, RunRecord, StepRecord
from fedhpo_gym.studies.environments import make_environment, spec_of
from fedhpo_gym.studies.plan import RunPlan, problem_name
from fedhpo_gym.studies.tracking import track_run
from fedhpo_gym.wrappers.parallel_trials import ParallelTrials


def do_run(
    plan: RunPlan,
    folder: Path,
    show: Callable[[str], None],
    warn: Callable[[str], None],
    columnar: bool = False,
    track: Sequence[str] = (),
) -> bool:
    """Do one run and write its record, unless it is there; return whether it was done now."""
    record_args = folder, plan.id, plan.agent, plan.seed
    if plan.key is not None and _is_done(files.keyed_path(*record_args, plan.key), warn):
        return False
    with closing(make_environment(plan.id, plan.kwargs)) as env, ExitStack() as stack:
        _, info = env.reset(seed=plan.seed)
        header = Header(
            package_version=__version__,
            id=plan.id,
            spec=spec_of(env),
            agent=plan.agent,
            seed=plan.seed,
            fingerprint=info["fingerprint"],
            workers=plan.workers,
            platform=rounding_platform(),
            shared_start=plan.shared_start,
        )
        path = files.record_path(folder, header)
        open_path = path.with_name(f"{path.name}{files.OPEN}")
        if _is_done(path, warn):
            return False
        growing = stack.enter_context(files.open_growing(path, warn))
        if _is_done(path, warn):  # another process has done it meanwhile
            open_path.unlink(missing_ok=True)
            return False
        follow = stack.enter_context(track_run(track, folder, path.stem, header))
        growing.add(header)
        seed_of_agent = agent_seed(problem_name(plan.id, plan.kwargs), plan.seed)
        agent = make_agent(plan.agent, env, seed_of_agent, shared_start=plan.shared_start)
        steps = []
        if plan.workers > 1:
            episode = run_crew(ParallelTrials(env, plan.workers), agent, plan.seed)
        else:
            episode = run_episode(env, agent, plan.seed)
        for step in episode:
            outcome = (step.reward, step.terminated, step.truncated, step.info)
            steps.append(StepRecord.from_step(step.action, *outcome, step.worker))
            growing.add(steps[-1])
            follow(steps[-1])
            show(f"{plan}: {len(steps)} trials, {steps[-1].elapsed_s:.0f} s")
        growing.sync()
        record = RunRecord(header, tuple(steps))
        if columnar:
            files.write_record(path.with_suffix(parquet.SUFFIX), record)
            open_path.unlink(missing_ok=True)
        else:
            open_path.replace(path)
    return True


def agent_seed(problem: str, seed: int) -> int:
    """Return the seed of an agent in a run; it differs by problem, so that luck is independent."""
    return int(stream(seed, "agent", crc32(problem.encode("utf-8"))).integers(2**31))


def _is_done(path: Path, warn: Callable[[str], None]) -> bool:
    for file in (path, path.with_suffix(parquet.SUFFIX)):
        if not file.exists():
            continue
        try:
            files.read_record(file)
        except files.INTACT:  # a run here would overwrite it
            raise
        except DamagedDataError as error:
            warn(files.set_aside(file, error))
            continue
        return True
    return False


Status = Literal["done", "there", "failed", "timeout", "lost"]
GOOD: Final = ("done", "there")
LOG: Final = "cells.ndjson"


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended; `words` are warnings or the error, `seconds` are real time, for the log."""

    plan: RunPlan
    status: Status
    seconds: Annotated[float, Range(0)] = 0.0
    words: str = ""

    @classmethod
    def of_error(cls, plan: RunPlan, error: Exception, seconds: float = 0.0) -> "CellOutcome":
        other: Status = "lost" if isinstance(error, WorkerLostError) else "failed"
        status: Status = "timeout" if isinstance(error, WorkerTimeoutError) else other
        frames = [] if isinstance(error, FedHPOError) else extract_tb(error.__traceback__)
        locations = [f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in frames]
        return cls(
            plan, status, seconds, f"{type(error).__name__}: {error}{''.join(locations[-1:])}"
        )


@dataclass(frozen=True)
class CellWork:
    """What a worker does with a cell.

    Attributes:
        places: folders on the import path, for modules of the user.
        plugins: modules that registered something in the main process.
    """

    folder: Path
    columnar: bool = True
    track: tuple[str, ...] = field(default=())
    places: tuple[str, ...] = field(default=())
    plugins: tuple[str, ...] = field(default_factory=plugin_modules)

    def __call__(self, plan: RunPlan, advance: Callable[[], None]) -> CellOutcome:
        """Do a run unless its record is there; an exception becomes an outcome, too."""
        start, warnings = monotonic(), list[str]()
        try:
            is_new = do_run(
                plan, self.folder, lambda _: None, warnings.append, self.columnar, self.track
            )
        except Exception as error:  # noqa: BLE001 - one cell must not end the others
            return CellOutcome.of_error(plan, error, monotonic() - start)
        return CellOutcome(
            plan, "done" if is_new else "there", monotonic() - start, "; ".join(warnings)
        )


def log_outcome(folder: Path, outcome: CellOutcome) -> None:
    """Append an outcome to the log of a study."""
    line = json.dumps(asdict(outcome), allow_nan=False)
    with (folder / LOG).open("a", encoding="utf-8") as handle:
        handle.write(f"{line}\n")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the last outcome of every cell of a study, in the order of the first.

    Lines that are no outcomes are left out.
    """
    path, last = folder / LOG, dict[bytes, dict[str, Any]]()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            outcome = _parse_logged(line)
            cell = asdict(replace(outcome.plan, key=None))
            text = json.dumps(cell, sort_keys=True, ensure_ascii=False)
            last[text.encode("utf-8")] = asdict(outcome)
        except FOREIGN_ERRORS:
            continue
    return list(last.values())


def _parse_logged(line: bytes) -> CellOutcome:
    content = json.loads(line.decode("utf-8"))
    plan = RunPlan(**content["plan"])
    check_fields(plan)
    outcome = CellOutcome(**{**content, "plan": plan})
    check_fields(outcome)
    # Names of files in an error message may be no text.
    return replace(outcome, words=outcome.words.encode("utf-8", "backslashreplace").decode())


def failed_cells(outcomes: Iterable[CellOutcome]) -> list[CellOutcome]:
    """Return the outcomes of cells that left no record."""
    return [outcome for outcome in outcomes if outcome.status not in GOOD]


def on_dask(
    cells: Sequence[RunPlan], work: CellWork, address: str, timeout_s: float = math.inf
) -> Iterator[CellOutcome]:
    """Do cells on a cluster, and yield how each ended, as it does."""
    seconds = None if timeout_s == math.inf else timeout_s
    for done in run_on_cluster(partial(run_alone, work, timeout_s=seconds), cells, address):
        if done.error is None:
            yield done.result
            continue
        reason = f"the cluster lost it: {type(done.error).__name__}: {done.error}"
        yield CellOutcome.of_error(done.job, WorkerLostError(reason))


_SHOWN = 500
"""Characters of a crashed process's last messages that an error quotes."""


def run_alone(work: CellWork, plan: RunPlan, timeout_s: float | None = None) -> CellOutcome:
    """Do a cell in a process of its own, and return how it ended."""
    start = monotonic()
    content = {"work": {**asdict(work), "folder": str(work.folder)}, "plan": asdict(plan)}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedhpo_gym.studies.run"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, on this module
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment
        )
        assert process.stdin is not None  # noqa: S101 - it was asked for
        try:
            process.stdin.write(json.dumps(content).encode("utf-8") + b"\n")
            process.stdin.flush()
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            error = WorkerTimeoutError(f"it took more than {timeout_s:g} s, and was ended")
            return CellOutcome.of_error(plan, error, monotonic() - start)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
        out.seek(0)
        err.seek(0)
        answer_text, messages = out.read().decode(), err.read().decode(errors="replace")
    if process.returncode:
        last_messages = messages.strip()[-_SHOWN:]
        lost = WorkerLostError(
            f"its process ended with status {process.returncode}: {last_messages}"
        )
        return CellOutcome.of_error(plan, lost, monotonic() - start)
    answer = json.loads(answer_text.splitlines()[-1])
    return replace(CellOutcome(**{**answer, "plan": plan}), seconds=monotonic() - start)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Do the cell that standard input describes, and write its outcome to standard output."""
    content = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings = content["work"]
    sys.path += [folder for folder in settings["places"] if folder not in sys.path]
    import_plugins(settings["plugins"])
    work = CellWork(Path(settings["folder"]), settings["columnar"], tuple(settings["track"]))
    outcome = work(RunPlan(**content["plan"]), lambda: None)
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the thread holds standard input, which a normal exit would wait for


if __name__ == "__main__":
    main()
