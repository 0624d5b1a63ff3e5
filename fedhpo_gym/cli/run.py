"""`fedhpo-gym run`: every agent on every problem with every seed, one record each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from tqdm import tqdm

from fedhpo_gym.analysis.comparison import counted
from fedhpo_gym.backends.federatedscope.sharing import kept
from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import complain, parse_pairs, say
from fedhpo_gym.cli.options import Asked, Runs
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.run import do_run


def main(
    ids: Annotated[Sequence[str], Arg("environment ids, version optional", "ID")],
    *,
    agents: Annotated[
        Sequence[str],
        Arg(
            "an agent, for example `random` or `optuna-tpe`; may be given several times",
            "NAME",
            "--agent",
        ),
    ],
    seeds: Annotated[int, Arg("runs per agent (5)", "N")] = 5,
    out: Runs = Path("runs"),
    asked: Asked,
) -> int:
    """Do every run whose complete record is not there yet."""
    request = Request(
        ids=ids,
        agents=agents,
        seeds=seeds,
        backend=asked.backend,
        budget_s=asked.budget_s,
        fidelity=dict(parse_pairs("--fidelity", asked.fidelity)),
        arguments=dict(parse_pairs("--set", asked.settings)),
        workers=asked.simulated_workers,
        shared_start=asked.shared_start,
    )
    with kept():  # processes of other frameworks start once, not for every run
        plans, done = make_plans(request), 0
        require_writable(out, "`--out`")
        with tqdm(total=len(plans), unit="run", disable=None) as bar:
            for plan in plans:
                bar.set_postfix_str(f"{plan.id} {plan.agent} seed {plan.seed}")
                warn = partial(complain, "run")
                done += do_run(plan, out, bar.set_postfix_str, warn, track=asked.track)
                bar.update()
    say(f"{counted(done, 'run')} done, {len(plans) - done} already there, records in {out}")
    if done < len(plans) and any(":" in name for name in agents):
        say("Records know an agent by its name alone: another version needs another --out or name.")
    return 0
