"""Running plans, one record each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from zlib import crc32

from fedhpo_gym.agents import make_agent, run_crew, run_episode
from fedhpo_gym.analysis import parquet
from fedhpo_gym.analysis.files import (
    OPEN,
    growing,
    keyed_path,
    read_record,
    record_path,
    set_aside,
    write_record,
)
from fedhpo_gym.analysis.records import Header, RunRecord, StepRecord
from fedhpo_gym.core import __version__
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.core.processor import this_platform
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.studies.environments import make_environment, spec_of
from fedhpo_gym.studies.plan import Plan
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
    """Do one run and write its record, unless it is there; return whether it was done now.

    While it runs, its trials are in a file of their own (`fedhpo_gym.analysis.files`).
    """
    place = folder, plan.id, plan.agent, plan.seed
    if plan.key is not None and _is_done(keyed_path(*place, plan.key), warn):
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
            platform=this_platform(),
            shared_start=plan.shared_start,
        )
        path = record_path(folder, header)
        if _is_done(path, warn):
            return False
        growth = stack.enter_context(growing(path, warn))
        if _is_done(path, warn):  # another process has done it meanwhile
            path.with_name(f"{path.name}{OPEN}").unlink(missing_ok=True)
            return False
        follow = stack.enter_context(tracked(track, folder, path.stem, header))
        growth.add(header)
        own_seed = agent_seed(plan.id, plan.seed)
        agent = make_agent(plan.agent, env, own_seed, shared_start=plan.shared_start)
        steps = []
        if plan.workers > 1:
            episode = run_crew(ParallelTrials(env, plan.workers), agent, plan.seed)
        else:
            episode = run_episode(env, agent, plan.seed)
        for step in episode:
            steps.append(
                StepRecord.from_step(
                    step.action,
                    step.reward,
                    step.terminated,
                    step.truncated,
                    step.info,
                    step.worker,
                )
            )
            growth.add(steps[-1])
            follow(steps[-1])
            trials, elapsed = len(steps), steps[-1].elapsed_s
            show(f"{plan.id} {plan.agent} seed {plan.seed}: {trials} trials, {elapsed:.0f} s")
        growth.sync()
        _finish(path, RunRecord(header, tuple(steps)), columnar)
    return True


def agent_seed(env_id: str, seed: int) -> int:
    """Return the seed of an agent in a run of a study: another one on every problem.

    Did one seed draw the same configurations everywhere, one lucky draw would count once for every
    problem, and tests over problems would find winners among equals.
    """
    return int(stream(seed, "agent", crc32(env_id.encode("utf-8"))).integers(2**31))


def _finish(path: Path, record: RunRecord, columnar: bool) -> None:
    """Put the record in its place; the file of the run that grew goes away with it."""
    grown = path.with_name(f"{path.name}{OPEN}")
    if columnar:
        write_record(path.with_suffix(parquet.SUFFIX), record)
        grown.unlink(missing_ok=True)
    else:
        grown.replace(path)


def _is_done(path: Path, warn: Callable[[str], None]) -> bool:
    for known in (path, path.with_suffix(parquet.SUFFIX)):
        if not known.exists():
            continue
        try:
            read_record(known)
        except DamagedDataError as error:
            warn(set_aside(known, error))
            continue
        return True
    return False
