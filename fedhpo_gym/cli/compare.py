"""`fedhpo-gym compare`: agents on a suite of problems, many runs at a time, and the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from fedhpo_gym.analysis.comparison import counted
from fedhpo_gym.cli import report as reporting
from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import complain, parse_pairs, say
from fedhpo_gym.cli.limits import useless_limits
from fedhpo_gym.cli.options import Asked, Cluster, Rule, Runs
from fedhpo_gym.studies import Means, compare


def main(
    problems: Annotated[
        Sequence[str],
        Arg(
            "a suite, such as lr, paper, small or natural (docs/comparing.md), or environment ids",
            "SUITE",
        ),
    ],
    *,
    agents: Annotated[str, Arg("names of agents, or `module:Class` of your own", "A,B,C")],
    seeds: Annotated[int, Arg("runs per agent (30)", "N")] = 30,
    workers: Annotated[int, Arg("processes here (1)", "N")] = 1,
    cluster: Cluster,
    timeout_s: Annotated[float | None, Arg("real seconds that a run may take", "X")] = None,
    records: Annotated[
        Literal["parquet", "jsonl"] | None,
        Arg("kind of record files (parquet where pyarrow is installed)"),
    ] = None,
    out: Runs = Path("runs"),
    report: Annotated[bool, Arg("only run", flag="--no-report")] = True,
    noise: Annotated[
        Sequence[str],
        Arg(
            "what evaluations lack, for example `clients=0.01`: clients, bias, iid, epsilon",
            "NAME=VALUE",
            several=True,
        ),
    ] = (),
    rule: Rule = "recommended",
    asked: Asked,
) -> int:
    """Do every run whose record is not there yet, and write the report; 1 if a run failed."""
    arguments = dict(parse_pairs("--set", asked.settings))
    chosen = {} if asked.backend is None else {"backend": asked.backend}
    for words in useless_limits(problems, {**arguments, **chosen}):
        complain("compare", words)
    if report and not find_spec("matplotlib"):
        complain("compare", "the page at the end will have to wait for the extra `plot`")
    compared = compare(
        problems[0] if len(problems) == 1 else problems,
        [name for name in agents.split(",") if name],
        seeds,
        out,
        backend=asked.backend,
        budget_s=asked.budget_s,
        fidelity=dict(parse_pairs("--fidelity", asked.fidelity)),
        arguments=arguments,
        noise=dict(parse_pairs("--noise", noise)) or None,
        simulated_workers=asked.simulated_workers,
        shared_start=asked.shared_start,
        means=Means(
            workers=workers,
            executor=cluster.executor,
            address=cluster.address,
            timeout_s=math.inf if timeout_s is None else timeout_s,
            columnar=None if records is None else records == "parquet",
            track=asked.track,
        ),
        warn=partial(complain, "compare"),
        tell=say,
    )
    count = {s: sum(o.status == s for o in compared.outcomes) for s in ("done", "there")}
    say(
        f"{counted(count['done'], 'run')} done, {count['there']} already there, "
        f"{len(compared.faults)} failed, records in {out}"
    )
    failed = int(bool(compared.faults))
    if report and any(count.values()):
        return max(reporting.main([out], rule=rule, tell=True), failed)
    return failed
