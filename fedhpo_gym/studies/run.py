"""Running plans, one record each."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from fedhpo_gym.agents import make_agent, run_crew, run_episode
from fedhpo_gym.analysis.files import read_record, record_path, set_aside, write_record
from fedhpo_gym.analysis.records import Header, RunRecord, StepRecord
from fedhpo_gym.errors import DamagedDataError
from fedhpo_gym.studies.environments import make_environment
from fedhpo_gym.studies.plan import Plan
from fedhpo_gym.version import __version__
from fedhpo_gym.wrappers.parallel_trials import ParallelTrials


def do_run(
    plan: Plan, folder: Path, show: Callable[[str], None], warn: Callable[[str], None]
) -> bool:
    """Do one run and write its record, unless a complete one is there.

    Args:
        plan: the run.
        folder: where records go.
        show: shows how far the run is.
        warn: is told of a damaged record, which is set aside and made again.

    Returns:
        Whether the run was done now.
    """
    with closing(make_environment(plan.id, plan.kwargs)) as env:
        _, info = env.reset(seed=plan.seed)
        header = Header(
            package_version=__version__,
            id=plan.id,
            spec=json.loads(env.spec.to_json()) if env.spec else {},
            agent=plan.agent,
            seed=plan.seed,
            fingerprint=info["fingerprint"],
            workers=plan.workers,
        )
        path = record_path(folder, header)
        if _is_done(path, warn):
            return False
        agent = make_agent(plan.agent, env, plan.seed)
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
            trials, elapsed = len(steps), steps[-1].elapsed_s
            show(f"{plan.id} {plan.agent} seed {plan.seed}: {trials} trials, {elapsed:.0f} s")
        write_record(path, RunRecord(header, tuple(steps)))
    return True


def _is_done(path: Path, warn: Callable[[str], None]) -> bool:
    if not path.exists():
        return False
    try:
        read_record(path)
    except DamagedDataError as error:
        warn(set_aside(path, error))
        return False
    return True
