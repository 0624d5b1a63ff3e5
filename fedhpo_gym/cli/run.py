"""`fedhpo-gym run`: every agent on every problem with every seed, one record each."""

from __future__ import annotations

import argparse
from functools import partial

from fedhpo_gym.archive import require_writable
from fedhpo_gym.backends.federatedscope.sharing import kept
from fedhpo_gym.cli.console import complain, parse_pairs, say
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.run import do_run


def main(options: argparse.Namespace) -> int:
    """Do every run whose complete record is not there yet."""
    with kept():  # processes of other frameworks start once, not for every run
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    plans = make_plans(
        Request(
            ids=options.ids,
            agents=options.agents,
            seeds=options.seeds,
            backend=options.backend,
            budget_s=options.budget_s,
            fidelity=dict(parse_pairs("--fidelity", options.fidelity)),
            arguments=dict(parse_pairs("--set", options.settings)),
            workers=options.simulated_workers,
        )
    )
    require_writable(options.out, "`--out`")
    done = 0
    with options.progress(total=len(plans), unit="run", disable=None) as bar:
        for plan in plans:
            bar.set_postfix_str(f"{plan.id} {plan.agent} seed {plan.seed}")
            warn = partial(complain, "run")
            done += do_run(plan, options.out, bar.set_postfix_str, warn, track=options.track)
            bar.update()
    kept = len(plans) - done
    say(f"{done} runs done, {kept} already there, records in {options.out}")
    return 0
