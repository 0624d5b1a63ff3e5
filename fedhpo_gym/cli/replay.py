"""`fedhpo-gym replay`: the same actions must bring the same numbers, up to other processors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import parse_pairs, say
from fedhpo_gym.cli.options import Named
from fedhpo_gym.cli.records import whole_records
from fedhpo_gym.studies.replay import replay, where_computed


def main(
    paths: Annotated[Sequence[Path], Arg("records or folders", "FILE")],
    *,
    settings: Named = (),
    exact: Annotated[
        bool, Arg("demand equal bits of records that another processor computed, too")
    ] = False,
) -> int:
    """Replay every record; 1 if one of them differs or is damaged.

    What another processor computed may be rounded otherwise: that is 0, and 1 under `--exact`.
    """
    named = dict(parse_pairs("--set", settings))
    records, damaged = whole_records("replay", paths)
    different = 0
    for path, record in records:
        difference = replay(record, named=named)
        if difference is None:
            say(f"equal      {path} ({len(record.steps)} steps)")
        elif difference.rounding:
            different += exact
            where = where_computed(record.header)
            say(f"equal up to rounding  {path} ({len(record.steps)} steps; {where}; {difference})")
        else:
            different += 1
            say(f"DIFFERENT  {path}: {difference}")
    return 1 if different or damaged else 0
