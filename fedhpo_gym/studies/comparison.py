"""Running a study: every agent on every problem of a suite with every seed.

`fedhpo-gym compare` and users call `compare`, which runs all cells without a record; comparisons of
the results are in `fedhpo_gym.analysis`. A study can be interrupted at any time, since each cell is
a record of its own, whose numbers depend on neither executor, workers nor order. Progress and
estimates of time come from the study's log.
"""

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
from fedhpo_gym.analysis.comparison import count_noun
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
from fedhpo_gym.studies.plan import Request, RunPlan, make_plans
from fedhpo_gym.studies.run import (
    GOOD,
    CellOutcome,
    CellWork,
    failed_cells,
    log_outcome,
    on_dask,
    read_log,
)
from fedhpo_gym.studies.suites import SUITES, suite
from fedhpo_gym.studies.tracking import TRACKERS
from fedhpo_gym.tasks import get_task

STUDY: Final = "study.json"
CHOSEN: Final = "choosing the fidelity of each trial"
FIXED: Final = "with all trials at one fidelity, full rounds unless asked otherwise"
INSTALL_TABLES: Final = "pip install ./data"
EVERY_S: Final = 30.0
"""Real seconds between two lines where no terminal shows a bar."""


@dataclass(frozen=True)
class StudyResult:
    """Where the records of a study are, how its cells ended, and why problems were left out."""

    folder: Path
    outcomes: tuple[CellOutcome, ...]
    left_out: Mapping[str, str]

    @property
    def faults(self) -> list[CellOutcome]:
        """The cells without a record."""
        return failed_cells(self.outcomes)


@dataclass(frozen=True)
class Execution:
    """How a study is computed; no setting changes a number.

    Attributes:
        workers: worker processes on this machine.
        executor: "processes" of this machine, or "dask".
        address: of the scheduler of a cluster.
        timeout_s: real seconds that a cell may take.
        columnar: whether records are Parquet files; None where pyarrow is installed.
        track: names of trackers that follow the runs.
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
        if self.columnar and not parquet.has_pyarrow():
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
        noise: settings of noisy evaluations; None for none.
        simulated_workers: how many run trials side by side on the simulated clock.
        shared_start: how many configurations all agents try first, the same under a seed; pairs by
            seed are then pairs by initial design.
        execution: how it is computed.
        warn: called with each problem that is left out and each cell that fails, as it happens.
        tell: called with the number of runs to do and, where no terminal shows a bar, progress.

    Raises:
        InvalidArgumentError: an argument is malformed, or an agent cannot act on a problem.
        UnknownNameError: no such suite, environment, agent or fidelity.
        MissingDataError: an id that was named itself has no numbers here.
        MissingDependencyError: something asked for is not installed.
    """
    execution, folder, env_arguments = execution or Execution(), Path(out), dict(arguments or {})
    if noise is not None and "noise" in env_arguments:
        raise InvalidArgumentError("`noise` is given twice, the second time among `arguments`")
    if noise is not None:
        env_arguments["noise"] = dict(noise)
    request = Request(
        _resolve_ids(problems),
        [agent_name(agent) for agent in agents],
        seeds,
        backend,
        budget_s,
        fidelity or {},
        env_arguments,
        simulated_workers,
        shared_start,
    )
    plans, left_out = _plan_cells(
        request, is_suite=isinstance(problems, str) and problems in SUITES
    )
    for env_id, reason in left_out.items():
        warn(f"{env_id} is left out: {reason}")
    require_writable(folder, "`--out`")
    _write_study(folder, problems, request, left_out)
    columnar = parquet.has_pyarrow() if execution.columnar is None else execution.columnar
    work = CellWork(folder.resolve(), columnar, tuple(execution.track), tuple(sys.path))
    order = {_plan_key(plan): index for index, plan in enumerate(plans)}
    ended: dict[int, CellOutcome] = {}
    tell(_describe_effort(plans, folder, execution.workers))
    start_s = last_report_s = monotonic()
    with (
        closing(_run_cells(plans, work, execution)) as outcomes,
        tqdm(total=len(plans), unit="run", disable=None) as bar,
    ):
        for outcome in outcomes:
            log_outcome(folder, outcome)
            if outcome.words:
                warn(f"{outcome.plan}: {outcome.status}: {outcome.words}")
            ended[order[_plan_key(outcome.plan)]] = outcome
            failed = len(failed_cells(ended.values()))
            bar.set_postfix_str(f"{outcome.plan}, {failed} failed")
            bar.update()
            if bar.disable and (monotonic() - last_report_s > EVERY_S or len(ended) == len(plans)):
                last_report_s = monotonic()
                remaining_s = (last_report_s - start_s) / len(ended) * (len(plans) - len(ended))
                tell(
                    f"{len(ended)} of {len(plans)} runs, {failed} failed, "
                    f"{_format_duration(remaining_s)} left"
                )
    return StudyResult(folder, tuple(ended[index] for index in sorted(ended)), left_out)


def _describe_effort(plans: Sequence[RunPlan], folder: Path, workers: int) -> str:
    """Return the number of runs and, from the log of former ones, an estimate of their time."""
    by_agent, cells = dict[str, list[float]](), read_log(folder)
    finished = {json.dumps(c["plan"], sort_keys=True) for c in cells if c["status"] in GOOD}
    for cell in cells:
        if cell["status"] == "done":
            by_agent.setdefault(cell["plan"]["agent"], []).append(float(cell["seconds"]))
    sizes = [
        count_noun(
            len({(plan.id, str(plan.kwargs.get("instances"))) for plan in plans}), "problem"
        ),
        count_noun(len({plan.agent for plan in plans}), "agent"),
        count_noun(len({plan.seed for plan in plans}), "seed"),
    ]
    counts = f"{count_noun(len(plans), 'run')}: {' x '.join(sizes)}"
    counts += "".join(
        f"; {', '.join(who)} {fidelity}" for fidelity, who in _group_by_fidelity(plans).items()
    )
    remaining = [plan for plan in plans if _plan_key(plan) not in finished]
    if not remaining:
        return f"{counts}; by the log here, all are done"
    if not by_agent:
        return f"{counts}; how long they take is known after the first ones"
    mean = sum(map(sum, by_agent.values())) / sum(map(len, by_agent.values()))
    durations = [
        sum(seconds) / len(seconds) if (seconds := by_agent.get(p.agent)) else mean
        for p in remaining
    ]
    return f"{counts}; about {_format_duration(sum(durations) / workers)} by former runs here"


def _group_by_fidelity(plans: Sequence[RunPlan]) -> dict[str, list[str]]:
    """Return agents by a text that says how the fidelities of their trials are set."""
    agents_by_text: dict[str, dict[str, None]] = {}
    for plan in plans:
        kind = kind_of_id(plan.id)
        if kind != "round":
            both = ("round", "client_sample_rate") if plan.kwargs.get("choose_fidelity") else ()
            names = both if kind in MANY_TASK_KINDS else get_task(plan.id).fidelity_space.names
            free = {*names} - {*plan.kwargs.get("fidelity", ())}
            agents_by_text.setdefault(CHOSEN if free else FIXED, {})[plan.agent] = None
    return {text: [*agents] for text, agents in agents_by_text.items()}


def _format_duration(seconds: float) -> str:
    """Return real time as text."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _resolve_ids(problems: str | Sequence[str]) -> Sequence[str]:
    if not isinstance(problems, str):
        return [env_id for name in problems for env_id in _resolve_ids(name)]
    return suite(problems) if problems in SUITES else [resolve_id(problems, SUITES)]


def _plan_cells(request: Request, *, is_suite: bool) -> tuple[list[RunPlan], dict[str, str]]:
    """Return the cells, and the problems of a suite without numbers here, with the reason."""
    if not (request.ids and request.agents):
        raise InvalidArgumentError("there must be at least one problem and one agent")
    plans, left_out = [], {}
    for env_id in dict.fromkeys(request.ids):
        try:
            plans += make_plans(replace(request, ids=[env_id]))
        except (MissingDataError, DamagedDataError) as error:
            if not is_suite:  # a suite may be incomplete here, an id that was named may not
                raise
            left_out[env_id] = f"{error}{_download_hint(env_id)}"
    if not plans:
        raise InvalidArgumentError(
            f"`problems` must be some that are answered here, got {len(left_out)} that are not: "
            f"{_describe_missing(left_out)}"
        )
    return plans, left_out


def _download_hint(env_id: str) -> str:
    """Return where the data of a problem comes from, where training needs a download."""
    has_many_tasks = kind_of_id(env_id) in MANY_TASK_KINDS
    command = "" if has_many_tasks else download_command(get_task(env_id).dataset)
    return f" (its data: `{command}`)" if command else ""


def _describe_missing(left_out: Mapping[str, str]) -> str:
    """Return how many problems lack numbers for the same reason, and what to do."""
    others = [env_id for env_id, reason in left_out.items() if INSTALL_TABLES not in reason]
    n = len(left_out) - len(others)
    parts = [f"{n} need `{INSTALL_TABLES}` in a checkout of fedhpo_gym"] * bool(n)
    if len(others) == 1:
        parts.append(left_out[others[0]])
    elif others:
        parts.append(
            f"{len(others)} lack other numbers or data, {others[0]} the first "
            f"({left_out[others[0]].partition(';')[0]}; `fedhpo-gym show {others[0]}` says more)"
        )
    return "; ".join(parts)


def _run_cells(
    plans: Sequence[RunPlan], work: CellWork, execution: Execution
) -> Generator[CellOutcome, None, None]:
    if execution.address is not None:
        yield from on_dask(plans, work, execution.address, execution.timeout_s)
        return
    with _one_thread(), WorkerPool[RunPlan](execution.workers, work) as pool:
        for cell in pool.run_each(plans, lambda: None, execution.timeout_s):
            yield cell.result if cell.error is None else CellOutcome.of_error(cell.job, cell.error)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start in the body use one thread each, as there are many of them."""
    name = "OMP_NUM_THREADS"
    former = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if former is None:
            del os.environ[name]
        else:
            os.environ[name] = former


def _write_study(
    folder: Path, problems: str | Sequence[str], request: Request, left_out: Mapping[str, str]
) -> None:
    settings = asdict(request)
    content = {
        "problems": problems if isinstance(problems, str) else list(problems),
        "simulated_workers": settings.pop("workers"),
        **settings,
        "left_out": left_out,
        "fedhpo_gym": __version__,
    }
    write_text(folder / STUDY, json.dumps(content, indent=1, default=list) + "\n")


def _plan_key(plan: RunPlan) -> str:
    return json.dumps(asdict(plan), sort_keys=True, default=str)
