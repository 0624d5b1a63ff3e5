"""`fedhpo-gym run | compare | replay`: making run records, and replaying them.

The functions are subcommands (`fedhpo_gym.cli.COMMANDS`) and return the exit status. `run` does one
run after the other; `compare` starts a study with worker processes and ends with the report;
`replay` repeats records and compares all numbers.
"""

import math
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from tqdm import tqdm

from fedhpo_gym import studies
from fedhpo_gym.analysis.comparison import count_noun
from fedhpo_gym.backends.federatedscope.process import shared_processes
from fedhpo_gym.cli import report as reports
from fedhpo_gym.cli.console import (
    Arg,
    Cluster,
    Named,
    Rule,
    RunOptions,
    Runs,
    echo,
    echo_error,
    parse_pairs,
)
from fedhpo_gym.cli.problems import useless_limits
from fedhpo_gym.cli.report import whole_records
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.core.errors import FedHPOError
from fedhpo_gym.core.plugins import import_module
from fedhpo_gym.studies import Execution
from fedhpo_gym.studies.environments import undecided_arguments
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.replay import replay as replay_record
from fedhpo_gym.studies.replay import where_computed
from fedhpo_gym.studies.run import do_run


def run(
    ids: Annotated[Sequence[str], Arg("environment ids, version optional", "ID")],
    *,
    agents: Annotated[
        Sequence[str],
        Arg("an agent such as `random`; may be given several times", "NAME", "--agent"),
    ],
    seeds: Annotated[int, Arg("runs per agent (5)", "N")] = 5,
    out: Runs = Path("runs"),
    asked: RunOptions,
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
    with shared_processes():  # processes of other frameworks start once, not for every run
        plans, done = make_plans(request), 0
        require_writable(out, "`--out`")
        with tqdm(total=len(plans), unit="run", disable=None) as bar:
            for plan in plans:
                bar.set_postfix_str(str(plan))
                warn = partial(echo_error, "run")
                done += do_run(plan, out, bar.set_postfix_str, warn, track=asked.track)
                bar.update()
    echo(f"{count_noun(done, 'run')} done, {len(plans) - done} already there, records in {out}")
    # Nobody knows the regret of a course of rounds.
    has_regret = not all("DAC-" in name for name in ids)
    table = f", `fedhpo-gym regret {out}` for a table" if has_regret else ""
    echo(f"Next: `fedhpo-gym report {out}` for a page{table}.")
    if done < len(plans) and any(":" in name for name in agents):
        echo(
            "Records know an agent by its name alone: another version needs another --out or name."
        )
    return 0


def run_study(
    problems: Annotated[
        Sequence[str], Arg("a suite (docs/comparing.md), or environment ids", "SUITE")
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
            "what evaluations lack: clients, bias, iid or epsilon, such as `clients=0.01`",
            "NAME=VALUE",
            several=True,
        ),
    ] = (),
    rule: Rule = "recommended",
    asked: RunOptions,
) -> int:
    """Do every run whose record is not there yet, and write the report; 1 if a run failed."""
    arguments = dict(parse_pairs("--set", asked.settings))
    backend = {} if asked.backend is None else {"backend": asked.backend}
    for warning in useless_limits(problems, {**arguments, **backend}):
        echo_error("compare", warning)
    if report and not find_spec("matplotlib"):
        echo_error("compare", "the page at the end will have to wait for the extra `plot`")
    result = studies.compare(
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
        execution=Execution(
            workers=workers,
            executor=cluster.executor,
            address=cluster.address,
            timeout_s=math.inf if timeout_s is None else timeout_s,
            columnar=None if records is None else records == "parquet",
            track=asked.track,
        ),
        warn=partial(echo_error, "compare"),
        tell=echo,
    )
    count = {s: sum(o.status == s for o in result.outcomes) for s in ("done", "there")}
    echo(
        f"{count_noun(count['done'], 'run')} done, {count['there']} already there, "
        f"{len(result.faults)} failed, records in {out}"
    )
    failed = int(bool(result.faults))
    if report and any(count.values()):
        user_arguments = undecided_arguments(arguments)
        return max(reports.report([out], rule=rule, named=user_arguments, tell=True), failed)
    return failed


def replay_records(
    paths: Annotated[Sequence[Path], Arg("records or folders", "FILE")],
    *,
    settings: Named = (),
    exact: Annotated[bool, Arg("demand equal bits of other processors' records, too")] = False,
    plugins: Annotated[
        Sequence[str],
        Arg("modules of yours that registered what records name", "MODULE", several=True),
    ] = (),
) -> int:
    """Replay every record; 1 if one differs or is damaged, 2 if one cannot be made again.

    Records of another processor may differ by rounding: the status is then 0, and 1 under
    `--exact`.
    """
    for module in plugins:
        import_module(f"`--plugins` must name modules, got {module!r}", module)
    named = dict(parse_pairs("--set", settings))
    records, damaged = whole_records("replay", paths)
    different, refused = 0, False
    for path, record in records:
        try:
            difference = replay_record(record, named=named)
        except FedHPOError as error:
            echo_error("replay", f"{path}: {error}")
            refused = True
            continue
        if difference is None:
            echo(f"equal      {path} ({len(record.steps)} steps)")
        elif difference.rounding:
            different += exact
            platform_text = where_computed(record.header)
            echo(
                f"equal up to rounding  {path} ({len(record.steps)} steps; {platform_text}; "
                f"{difference})"
            )
        else:
            different += 1
            echo(f"DIFFERENT  {path}: {difference}")
    if refused:
        return 2
    return 1 if different or damaged else 0
