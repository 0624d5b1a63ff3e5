"""Running plans, one record each."""

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
from fedhpo_gym.studies.plan import Plan, problem_words
from fedhpo_gym.studies.tracking import tracked
from fedhpo_gym.wrappers.parallel_trials import ParallelTrials


def do_run(
    plan: Plan,
    folder: Path,
    show: Callable[[str], None],
    warn: Callable[[str], None],
    columnar: bool = False,
    track: Sequence[str] = (),
) -> bool:
    """Do one run and write its record, unless it is there; return whether it was done now."""
    place = folder, plan.id, plan.agent, plan.seed
    if plan.key is not None and _is_done(files.keyed_path(*place, plan.key), warn):
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
        grown = path.with_name(f"{path.name}{files.OPEN}")
        if _is_done(path, warn):
            return False
        growth = stack.enter_context(files.growing(path, warn))
        if _is_done(path, warn):  # another process has done it meanwhile
            grown.unlink(missing_ok=True)
            return False
        follow = stack.enter_context(tracked(track, folder, path.stem, header))
        growth.add(header)
        own_seed = agent_seed(problem_words(plan.id, plan.kwargs), plan.seed)
        agent = make_agent(plan.agent, env, own_seed, shared_start=plan.shared_start)
        steps = []
        if plan.workers > 1:
            episode = run_crew(ParallelTrials(env, plan.workers), agent, plan.seed)
        else:
            episode = run_episode(env, agent, plan.seed)
        for step in episode:
            outcome = (step.reward, step.terminated, step.truncated, step.info)
            steps.append(StepRecord.from_step(step.action, *outcome, step.worker))
            growth.add(steps[-1])
            follow(steps[-1])
            show(f"{plan}: {len(steps)} trials, {steps[-1].elapsed_s:.0f} s")
        growth.sync()
        record = RunRecord(header, tuple(steps))
        if columnar:
            files.write_record(path.with_suffix(parquet.SUFFIX), record)
            grown.unlink(missing_ok=True)
        else:
            grown.replace(path)
    return True


def agent_seed(problem: str, seed: int) -> int:
    """Return the seed of an agent in a run, another on every problem: luck counts once."""
    return int(stream(seed, "agent", crc32(problem.encode("utf-8"))).integers(2**31))


def _is_done(path: Path, warn: Callable[[str], None]) -> bool:
    for known in (path, path.with_suffix(parquet.SUFFIX)):
        if not known.exists():
            continue
        try:
            files.read_record(known)
        except files.INTACT:  # a run here would take its place
            raise
        except DamagedDataError as error:
            warn(files.set_aside(known, error))
            continue
        return True
    return False


Status = Literal["done", "there", "failed", "timeout", "lost"]
GOOD: Final = ("done", "there")
LOG: Final = "cells.ndjson"


@dataclass(frozen=True)
class Outcome:
    """How a cell ended; `words` say what went wrong, `seconds` are real ones and judge nothing."""

    plan: Plan
    status: Status
    seconds: Annotated[float, Range(0)] = 0.0
    words: str = ""

    @classmethod
    def of_error(cls, plan: Plan, error: Exception, seconds: float = 0.0) -> "Outcome":
        lost: Status = "lost" if isinstance(error, WorkerLostError) else "failed"
        status: Status = "timeout" if isinstance(error, WorkerTimeoutError) else lost
        frames = [] if isinstance(error, FedHPOError) else extract_tb(error.__traceback__)
        places = [f" ({Path(one.filename).name}, line {one.lineno})" for one in frames]
        return cls(plan, status, seconds, f"{type(error).__name__}: {error}{''.join(places[-1:])}")


@dataclass(frozen=True)
class CellWork:
    """What a worker does with a cell.

    Attributes:
        places: folders where modules of the user are looked for.
        plugins: modules that have registered something in the process that began.
    """

    folder: Path
    columnar: bool = True
    track: tuple[str, ...] = field(default=())
    places: tuple[str, ...] = field(default=())
    plugins: tuple[str, ...] = field(default_factory=plugin_modules)

    def __call__(self, plan: Plan, advance: Callable[[], None]) -> Outcome:
        """Do a run unless its record is there; what it raises is an outcome, too."""
        begun, told = monotonic(), list[str]()
        try:
            done = do_run(plan, self.folder, lambda _: None, told.append, self.columnar, self.track)
        except Exception as error:  # noqa: BLE001 - one cell must not end the others
            return Outcome.of_error(plan, error, monotonic() - begun)
        return Outcome(plan, "done" if done else "there", monotonic() - begun, "; ".join(told))


def log(folder: Path, outcome: Outcome) -> None:
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
            outcome = _logged(line)
            cell = asdict(replace(outcome.plan, key=None))
            text = json.dumps(cell, sort_keys=True, ensure_ascii=False)
            last[text.encode("utf-8")] = asdict(outcome)
        except FOREIGN_ERRORS:
            continue
    return list(last.values())


def _logged(line: bytes) -> Outcome:
    content = json.loads(line.decode("utf-8"))
    plan = Plan(**content["plan"])
    check_fields(plan)
    outcome = Outcome(**{**content, "plan": plan})
    check_fields(outcome)
    # Names of files in an error message may be no text.
    return replace(outcome, words=outcome.words.encode("utf-8", "backslashreplace").decode())


def faults(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes of cells that left no record."""
    return [one for one in outcomes if one.status not in GOOD]


def on_dask(
    cells: Sequence[Plan], work: CellWork, address: str, timeout_s: float = math.inf
) -> Iterator[Outcome]:
    """Do cells on a cluster, and yield how each ended, as it does."""
    seconds = None if timeout_s == math.inf else timeout_s
    for done in run_on_cluster(partial(run_alone, work, timeout_s=seconds), cells, address):
        if done.error is None:
            yield done.result
            continue
        words = f"the cluster lost it: {type(done.error).__name__}: {done.error}"
        yield Outcome.of_error(done.job, WorkerLostError(words))


_SHOWN = 500
"""Characters of what a crashed process said last."""


def run_alone(work: CellWork, plan: Plan, timeout_s: float | None = None) -> Outcome:
    """Do a cell in a process of its own, and return how it ended."""
    begun = monotonic()
    content = {"work": {**asdict(work), "folder": str(work.folder)}, "plan": asdict(plan)}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "fedhpo_gym.studies.run"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, on this module
            words, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment
        )
        assert process.stdin is not None  # noqa: S101 - it was asked for
        try:
            process.stdin.write(json.dumps(content).encode("utf-8") + b"\n")
            process.stdin.flush()
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            error = WorkerTimeoutError(f"it took more than {timeout_s:g} s, and was ended")
            return Outcome.of_error(plan, error, monotonic() - begun)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
        out.seek(0)
        err.seek(0)
        said, complained = out.read().decode(), err.read().decode(errors="replace")
    if process.returncode:
        told = complained.strip()[-_SHOWN:]
        lost = WorkerLostError(f"its process ended with status {process.returncode}: {told}")
        return Outcome.of_error(plan, lost, monotonic() - begun)
    answer = json.loads(said.splitlines()[-1])
    return replace(Outcome(**{**answer, "plan": plan}), seconds=monotonic() - begun)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Do the cell that standard input names, and say on standard output how it ended."""
    content = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asked = content["work"]
    sys.path += [place for place in asked["places"] if place not in sys.path]
    import_plugins(asked["plugins"])
    work = CellWork(Path(asked["folder"]), asked["columnar"], tuple(asked["track"]))
    outcome = work(Plan(**content["plan"]), lambda: None)
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the thread holds standard input, which a usual end would wait for


if __name__ == "__main__":
    main()
