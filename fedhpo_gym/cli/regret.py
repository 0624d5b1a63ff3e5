"""`fedhpo-gym regret`: how far recorded runs are from the best that stored numbers know."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from fedhpo_gym.analysis import RunRecord
from fedhpo_gym.analysis.comparison import counted
from fedhpo_gym.analysis.runs import problem_arguments
from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import complain, parse_pairs, say, say_table
from fedhpo_gym.cli.options import Named, Records
from fedhpo_gym.cli.records import whole_records
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.core.files import write_text
from fedhpo_gym.studies.regret import hypervolume_regret_of, regret_of
from fedhpo_gym.studies.replay import from_stored_numbers

HEADS = ("id", "agent", "seed", "trials", "regret", "relative", "of the hypervolume")
COLUMNS = (
    *("problem", "variant", "agent", "seed", "trial", "time"),
    *("regret", "relative_regret", "hypervolume_regret"),
)


def main(
    paths: Records,
    *,
    out: Annotated[Path | None, Arg("a CSV file of the regret after every trial", "FILE")] = None,
    settings: Named = (),
) -> int:
    """Print the final regret of every record; 1 if one is damaged or cannot be judged.

    Runs of courses that are trained have none that anybody knows: they are counted and left out.
    """
    named = dict(parse_pairs("--set", settings))
    if out is not None:
        require_writable(out.parent, "`--out`, without its last part,")
        if out.is_dir():
            raise InvalidArgumentError(
                f"`--out` must be a file, got the folder {out}; name a file in it, such as "
                f"{out / 'regret.csv'}"
            )
    records, damaged = whole_records("regret", paths)
    table, rows, failed, trained = io.StringIO(), [], 0, 0
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for path, record in records:
        if not from_stored_numbers(record.header):
            trained += 1
            continue
        try:
            lines = list(_lines(record, named))
        except FedHPOError as error:
            complain("regret", f"{path}: {error}")
            failed += 1
            continue
        writer.writerows(lines)
        env_id, variant, *who, number, _, regret, relative, missing = lines[-1]
        numbers = [f"{one:.4g}" if one != "" else "–" for one in (regret, relative, missing)]
        rows.append([env_id, *map(str, who), str(number), *numbers, variant])
    if rows or not trained:
        # Runs of one id under other arguments are runs of other problems.
        several = len({(row[0], row[-1]) for row in rows}) > len({row[0] for row in rows})
        heads = (*HEADS, "arguments") if several else HEADS
        say_table(heads, [row[: len(heads)] for row in rows])
    if trained:
        say(
            f"left out: {counted(trained, 'run')} of courses that were trained; what those can "
            "reach, nobody knows"
        )
    if out is not None:
        write_text(out, table.getvalue())
        say(str(out))
    return 1 if damaged or failed else 0


def _lines(record: RunRecord, named: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield a row of `COLUMNS` per trial; of one objective no hypervolume is told."""
    header, found = record.header, regret_of(record, named=named)
    variant = json.dumps(problem_arguments(header.kwargs), sort_keys=True)
    missing: list[Any] = [""] * len(record.steps)
    if isinstance(record.final.reward, list | tuple):
        missing = hypervolume_regret_of(record, named=named)[1].tolist()
    columns = (found.elapsed_s.tolist(), found.regret.tolist(), found.relative.tolist(), missing)
    for trial, row in enumerate(zip(*columns, strict=True), start=1):
        yield (header.id, variant, header.agent, header.seed, trial, *row)
