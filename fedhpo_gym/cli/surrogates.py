"""`fedhpo-gym surrogate`: fitting the surrogate of one problem, or of everything that is stored."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import complain, say
from fedhpo_gym.cli.listing import newest_id
from fedhpo_gym.cli.options import OwnTables, Variant, asked_task
from fedhpo_gym.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.identity import Identity
from fedhpo_gym.surrogates.surrogate import SUFFIX, Surrogate
from fedhpo_gym.tables import list_samples, list_tables, open_sample, open_table, table_folder
from fedhpo_gym.tables.stored import StoredCurves
from fedhpo_gym.tasks import get_task

ALL = "all"


def main(
    variant: Variant,
    *,
    candidate: Annotated[str | None, Arg("write this one, whatever its error", "NAME")] = None,
    keep: Annotated[
        bool, Arg("write it even if its errors are not accepted; its card says so")
    ] = False,
    out: OwnTables = None,
) -> int:
    """Fit one surrogate, or all."""
    from fedhpo_gym.fitting.fit import fit_surrogate

    if variant.id == ALL:
        if candidate or variant.settings or variant.alpha or variant.preprocessing:
            raise InvalidArgumentError(
                "`all` must come without a variant or a candidate: all stored ones are fitted"
            )
        return fit_all(out or table_folder(), keep=keep)
    task = asked_task(variant)
    belongs_to = task.surrogate_identities[0]
    card = fit_surrogate(task.identity, out, candidate=candidate, keep=keep, identity=belongs_to)
    say(str(card))
    return 0


def fit_all(folder: Path, *, keep: bool) -> int:
    """Fit the surrogates of all stored tables and samples, for the newest version of each problem.

    What the folder already holds is skipped, if it was fitted on the same numbers: an interrupted
    command resumes.
    """
    from fedhpo_gym.fitting.fit import fit_surrogate

    failed = 0
    for source in _sources():
        identity = newest_identity(source.identity)
        card = folder / f"{identity.name}{SUFFIX}.json"
        try:
            if not _is_fitted(card, source):
                fit_surrogate(source.name, folder, keep=keep, identity=identity)
            say(str(card))
        except FedHPOError as error:
            complain("surrogate", error)
            failed += 1
    return 1 if failed else 0


def newest_identity(stored: Identity) -> Identity:
    """Return what a surrogate of stored numbers belongs to: the newest that answers from it."""
    options = dict(stored.options)
    task = get_task(newest_id(stored)).variant(**options).fix(dict(stored.settings))
    return task.surrogate_identities[0]


def _sources() -> list[StoredCurves]:
    tables = list_tables()
    samples = [name for name in list_samples() if name not in tables]
    return [*map(open_sample, samples), *map(open_table, tables)]  # the quick ones first


def _is_fitted(card: Path, source: StoredCurves) -> bool:
    if not card.exists():
        return False
    content = Surrogate(card).card
    same = not {*source.former}.isdisjoint(map(content.get, ("table_sha256", "sample_sha256")))
    if same:
        sys.stderr.write(f"{card.name} is there already\n")
    return same
