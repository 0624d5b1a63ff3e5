"""`fedhpo-gym compare`: agents on a suite of problems, many runs at a time, and the report."""

from __future__ import annotations

import argparse
import math
from functools import partial

from fedhpo_gym.cli import report
from fedhpo_gym.cli.console import complain, parse_pairs, say
from fedhpo_gym.studies import Means, compare


def main(options: argparse.Namespace) -> int:
    """Do every run whose record is not there yet, and write the report; 1 if a run failed."""
    names: list[str] = options.problems
    out = options.out
    compared = compare(
        names[0] if len(names) == 1 else names,
        [name for name in options.agents.split(",") if name],
        options.seeds,
        out,
        backend=options.backend,
        budget_s=options.budget_s,
        fidelity=dict(parse_pairs("--fidelity", options.fidelity)),
        arguments=dict(parse_pairs("--set", options.settings)),
        noise=dict(parse_pairs("--noise", options.noise)) or None,
        simulated_workers=options.simulated_workers,
        means=Means(
            workers=options.workers,
            executor=options.executor,
            address=options.address,
            timeout_s=math.inf if options.timeout_s is None else options.timeout_s,
            columnar=None if options.records is None else options.records == "parquet",
            track=options.track,
        ),
        warn=partial(complain, "compare"),
        tell=say,
    )
    count = {s: sum(o.status == s for o in compared.outcomes) for s in ("done", "there")}
    say(
        f"{count['done']} runs done, {count['there']} already there, {len(compared.faults)} "
        f"failed, records in {out}"
    )
    if options.report and any(count.values()):
        options.paths, options.tables, options.out, options.tell = [out], [], None, True
        return max(report.main(options), int(bool(compared.faults)))
    return int(bool(compared.faults))
