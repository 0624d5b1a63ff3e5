"""`fedhpo-gym surrogate`: fitting the surrogate of one problem, or of everything that is stored."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedhpo_gym.cli.console import complain, say
from fedhpo_gym.cli.data import asked_task
from fedhpo_gym.cli.listing import newest_id
from fedhpo_gym.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.identity import Identity
from fedhpo_gym.surrogates.surrogate import SUFFIX, Surrogate
from fedhpo_gym.tables import list_samples, list_tables, open_sample, open_table, table_folder
from fedhpo_gym.tables.stored import StoredCurves
from fedhpo_gym.tasks import get_task

ALL = "all"


def main(options: argparse.Namespace) -> int:
    """Fit one surrogate, or all."""
    from fedhpo_gym.fitting.fit import fit_surrogate

    if options.id == ALL:
        return fit_all(options)
    task = asked_task(options)
    belongs_to = task.surrogate_identities[0]
    chosen = {"candidate": options.candidate, "keep": options.keep, "identity": belongs_to}
    say(str(fit_surrogate(task.identity, options.out, **chosen)))
    return 0


def fit_all(options: argparse.Namespace) -> int:
    """Fit the surrogates of all stored tables and samples, for the newest version of each problem.

    What the folder already holds is skipped, if it was fitted on the same numbers: an interrupted
    command resumes.
    """
    from fedhpo_gym.fitting.fit import fit_surrogate

    if options.settings or any((options.alpha, options.preprocessing, options.candidate)):
        raise InvalidArgumentError(
            "`all` must come without a variant or a candidate: all stored ones are fitted"
        )
    folder = options.out or table_folder()
    failed = 0
    for source in _sources():
        identity = newest_identity(source.identity)
        card = folder / f"{identity.name}{SUFFIX}.json"
        try:
            if not _is_fitted(card, source):
                fit_surrogate(source.name, folder, keep=options.keep, identity=identity)
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
