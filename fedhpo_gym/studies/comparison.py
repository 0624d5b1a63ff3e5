"""Comparing agents: every agent on every problem of a suite with every seed, then judged."""

import json
import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final

from tqdm import tqdm

from fedhpo_gym.agents import Agent, agent_name
from fedhpo_gym.analysis.comparison import counted
from fedhpo_gym.core import __version__
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.core.checks import Range, coerce, validate_call
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    MissingDataError,
    missing_dependency,
    require_known,
)
from fedhpo_gym.core.files import write_text
from fedhpo_gym.core.processes import WorkerPool, check_executor
from fedhpo_gym.data.catalogue import download_command
from fedhpo_gym.records import parquet
from fedhpo_gym.studies.environments import MANY_TASK_KINDS, kind_of_id, resolve_id
from fedhpo_gym.studies.plan import Plan, Request, make_plans
from fedhpo_gym.studies.run import GOOD, CellWork, Outcome, faults, log, on_dask, read_log
from fedhpo_gym.studies.suites import SUITES, suite
from fedhpo_gym.studies.tracking import TRACKERS
from fedhpo_gym.tasks import get_task

STUDY: Final = "study.json"
CHOSEN: Final = "choosing the fidelity of each trial"
FIXED: Final = "with all trials at one fidelity, full rounds unless asked otherwise"
HERE: Final = "pip install ./data"
EVERY_S: Final = 30.0
"""Real seconds between two lines where no terminal shows a bar."""


@dataclass(frozen=True)
class StudyResult:
    """Where the records of a study are, how its cells ended, and why problems were left out."""

    folder: Path
    outcomes: tuple[Outcome, ...]
    left_out: Mapping[str, str]

    @property
    def faults(self) -> list[Outcome]:
        """The cells without a record."""
        return faults(self.outcomes)


@dataclass(frozen=True)
class Execution:
    """How a study is computed; none of it changes a number.

    Attributes:
        workers: worker processes on this machine.
        executor: "processes" of this machine, or "dask".
        address: of the scheduler of a cluster.
        timeout_s: real seconds that a cell may take.
        columnar: whether records are Parquet files; None where pyarrow is installed.
        track: what follows the runs.
    """

    workers: int = 1
    executor: str = "processes"
    address: str | None = None
    timeout_s: float = math.inf
    columnar: bool | None = None
    track: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        check_executor(self.executor, self.address)
        for name in self.track:
            require_known("tracker", name, TRACKERS)
        coerce("--workers", self.workers, Annotated[int, Range(1)])
        coerce("--timeout-s", self.timeout_s, Annotated[float, Range(0, ends="(]")])
        if self.columnar and not parquet.is_installed():
            raise missing_dependency("columnar records", "pyarrow", "columnar")


@validate_call
def compare(
    problems: str | Sequence[str],
    agents: Sequence[str | type[Agent]],
    seeds: int = 30,
    out: str | Path = "runs",
    *,
    backend: str | None = None,
    budget_s: float | None = None,
    fidelity: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    noise: Mapping[str, float] | None = None,
    simulated_workers: int = 1,
    shared_start: int = 0,
    execution: Execution | None = None,
    warn: Callable[[str], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> StudyResult:
    """Do every run of a study whose record is not there yet.

    A cell is a problem, an agent and a seed. Its record is the same bit for bit whatever executor,
    number of workers and order; a study that was interrupted goes on where it was. A cell that
    crashes or takes too long is logged, and tried again when the study is called again.

    Args:
        problems: name of a suite (`fedhpo_gym.studies.suites`), or environment ids.
        agents: names of agents, `module:Class` of one's own, or such classes themselves.
        seeds: runs per agent and problem.
        out: folder of the study; another study with the same numbers may share it.
        backend: as in `Request`, as for the next three.
        budget_s: simulated seconds of a run.
        fidelity: fidelity of every trial, by name.
        arguments: further arguments of `gymnasium.make`.
        noise: what evaluations lack; None for nothing.
        simulated_workers: how many run trials side by side on the simulated clock.
        shared_start: how many configurations all agents try first, the same under a seed; pairs by
            seed are then pairs by initial design.
        execution: how it is computed.
        warn: is told what was left out and what failed, as it happens.
        tell: is told how much there is to do, and where no terminal shows it, how far it is.

    Raises:
        InvalidArgumentError: an argument is malformed, or an agent cannot act on a problem.
        UnknownNameError: no such suite, environment, agent or fidelity.
        MissingDataError: an id that was named itself has no numbers here.
        MissingDependencyError: something asked for is not installed.
    """
    execution, folder, given = execution or Execution(), Path(out), dict(arguments or {})
    if noise is not None and "noise" in given:
        raise InvalidArgumentError("`noise` is given twice, the second time among `arguments`")
    if noise is not None:
        given["noise"] = dict(noise)
    request = Request(
        _ids(problems),
        [agent_name(one) for one in agents],
        seeds,
        backend,
        budget_s,
        fidelity or {},
        given,
        simulated_workers,
        shared_start,
    )
    plans, left_out = _plans(request, is_suite=isinstance(problems, str) and problems in SUITES)
    for env_id, reason in left_out.items():
        warn(f"{env_id} is left out: {reason}")
    require_writable(folder, "`--out`")
    _write_study(folder, problems, request, left_out)
    columnar = parquet.is_installed() if execution.columnar is None else execution.columnar
    work = CellWork(folder.resolve(), columnar, tuple(execution.track), tuple(sys.path))
    order = {_key(plan): place for place, plan in enumerate(plans)}
    found: dict[int, Outcome] = {}
    tell(_beforehand(plans, folder, execution.workers))
    begun = told = monotonic()
    with (
        closing(_executed(plans, work, execution)) as outcomes,
        tqdm(total=len(plans), unit="run", disable=None) as bar,
    ):
        for outcome in outcomes:
            log(folder, outcome)
            if outcome.words:
                warn(f"{outcome.plan}: {outcome.status}: {outcome.words}")
            found[order[_key(outcome.plan)]] = outcome
            failed = len(faults(found.values()))
            bar.set_postfix_str(f"{outcome.plan}, {failed} failed")
            bar.update()
            if bar.disable and (monotonic() - told > EVERY_S or len(found) == len(plans)):
                told = monotonic()
                left = (told - begun) / len(found) * (len(plans) - len(found))
                tell(f"{len(found)} of {len(plans)} runs, {failed} failed, {_lasting(left)} left")
    return StudyResult(folder, tuple(found[place] for place in sorted(found)), left_out)


def _beforehand(plans: Sequence[Plan], folder: Path, workers: int) -> str:
    """Return how many runs there are and, by the log of former ones, about how long they take."""
    by_agent, logged = dict[str, list[float]](), read_log(folder)
    there = {json.dumps(c["plan"], sort_keys=True) for c in logged if c["status"] in GOOD}
    for cell in logged:
        if cell["status"] == "done":
            by_agent.setdefault(cell["plan"]["agent"], []).append(float(cell["seconds"]))
    sizes = [
        counted(len({(plan.id, str(plan.kwargs.get("instances"))) for plan in plans}), "problem"),
        counted(len({plan.agent for plan in plans}), "agent"),
        counted(len({plan.seed for plan in plans}), "seed"),
    ]
    counts = f"{counted(len(plans), 'run')}: {' x '.join(sizes)}"
    counts += "".join(f"; {', '.join(who)} {words}" for words, who in _fidelities(plans).items())
    left = [plan for plan in plans if _key(plan) not in there]
    if not left:
        return f"{counts}; by the log here, all are done"
    if not by_agent:
        return f"{counts}; how long they take is known after the first ones"
    mean = sum(map(sum, by_agent.values())) / sum(map(len, by_agent.values()))
    each = [sum(of) / len(of) if (of := by_agent.get(p.agent)) else mean for p in left]
    return f"{counts}; about {_lasting(sum(each) / workers)} by former runs here"


def _fidelities(plans: Sequence[Plan]) -> dict[str, list[str]]:
    """Return agents by how the fidelities of their trials come about, in words."""
    found: dict[str, dict[str, None]] = {}
    for plan in plans:
        kind = kind_of_id(plan.id)
        if kind != "round":
            many = ("round", "client_sample_rate") if plan.kwargs.get("choose_fidelity") else ()
            known = many if kind in MANY_TASK_KINDS else get_task(plan.id).fidelity_space.names
            free = {*known} - {*plan.kwargs.get("fidelity", ())}
            found.setdefault(CHOSEN if free else FIXED, {})[plan.agent] = None
    return {words: [*agents] for words, agents in found.items()}


def _lasting(seconds: float) -> str:
    """Return real time in words."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _ids(problems: str | Sequence[str]) -> Sequence[str]:
    if not isinstance(problems, str):
        return [one for name in problems for one in _ids(name)]
    return suite(problems) if problems in SUITES else [resolve_id(problems, SUITES)]


def _plans(request: Request, *, is_suite: bool) -> tuple[list[Plan], dict[str, str]]:
    """Return the cells, and the problems of a suite that nothing here can answer."""
    if not (request.ids and request.agents):
        raise InvalidArgumentError("there must be at least one problem and one agent")
    plans, left_out = [], {}
    for env_id in dict.fromkeys(request.ids):
        try:
            plans += make_plans(replace(request, ids=[env_id]))
        except (MissingDataError, DamagedDataError) as error:
            if not is_suite:  # a fact about the suite; whoever names an id means it
                raise
            left_out[env_id] = f"{error}{_where_from(env_id)}"
    if not plans:
        raise InvalidArgumentError(
            f"`problems` must be some that are answered here, got {len(left_out)} that are not: "
            f"{_lacking(left_out)}"
        )
    return plans, left_out


def _where_from(env_id: str) -> str:
    """Return where the data of a problem comes from, where training needs a download."""
    many = kind_of_id(env_id) in MANY_TASK_KINDS
    command = "" if many else download_command(get_task(env_id).dataset)
    return f" (its data: `{command}`)" if command else ""


def _lacking(left_out: Mapping[str, str]) -> str:
    """Return how many problems lack the same, and what to do."""
    others = [env_id for env_id, reason in left_out.items() if HERE not in reason]
    n = len(left_out) - len(others)
    parts = [f"{n} need `{HERE}` in a checkout of fedhpo_gym"] * bool(n)
    if len(others) == 1:
        parts.append(left_out[others[0]])
    elif others:
        parts.append(
            f"{len(others)} lack other numbers or data, {others[0]} the first "
            f"({left_out[others[0]].partition(';')[0]}; `fedhpo-gym show {others[0]}` says more)"
        )
    return "; ".join(parts)


def _executed(
    plans: Sequence[Plan], work: CellWork, execution: Execution
) -> Generator[Outcome, None, None]:
    if execution.address is not None:
        yield from on_dask(plans, work, execution.address, execution.timeout_s)
        return
    with _one_thread(), WorkerPool[Plan](execution.workers, work) as crew:
        for done in crew.run_each(plans, lambda: None, execution.timeout_s):
            yield done.result if done.error is None else Outcome.of_error(done.job, done.error)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start in the body use one thread each: they are the parallelism."""
    name = "OMP_NUM_THREADS"
    old = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if old is None:
            del os.environ[name]
        else:
            os.environ[name] = old


def _write_study(
    folder: Path, problems: str | Sequence[str], request: Request, left_out: Mapping[str, str]
) -> None:
    asked = asdict(request)
    content = {
        "problems": problems if isinstance(problems, str) else list(problems),
        "simulated_workers": asked.pop("workers"),
        **asked,
        "left_out": left_out,
        "fedhpo_gym": __version__,
    }
    write_text(folder / STUDY, json.dumps(content, indent=1, default=list) + "\n")


def _key(plan: Plan) -> str:
    return json.dumps(asdict(plan), sort_keys=True, default=str)
