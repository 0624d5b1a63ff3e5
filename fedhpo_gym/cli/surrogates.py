"""`fedhpo-gym surrogate`: fitting the surrogate of one problem, or of everything that is stored.

`fit_surrogates` calls `fit_surrogate` of `building/surrogate_fit.py`. Where a problem can be
trained here, `train_claimed` trains the configuration that a new surrogate claims to be best, and
the figure goes onto its card. `fit_all` skips what is already fitted on the same numbers, and
prints why the others were not written. `measure_stored` measures a stored surrogate again.
"""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np

from fedhpo_gym.cli.console import Arg, OwnTables, Variant, echo, echo_error, parse_task
from fedhpo_gym.cli.listing import missing_requirement, newest_id
from fedhpo_gym.core.errors import (
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    require_optional,
)
from fedhpo_gym.core.identity import BUILT_TABLE
from fedhpo_gym.data import load_dataset
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.models import COMPILED
from fedhpo_gym.stored.catalogue import (
    find_stored,
    list_samples,
    list_tables,
    open_sample,
    open_table,
    table_folder,
)
from fedhpo_gym.stored.surrogate import SUFFIX, Surrogate, list_surrogates, open_preferred
from fedhpo_gym.stored.table import StoredCurves
from fedhpo_gym.tasks import Task, get_task, task_of

ALL = "all"


def fit_surrogates(
    variant: Variant,
    *,
    candidate: Annotated[str | None, Arg("write this one, whatever its error", "NAME")] = None,
    keep: Annotated[bool, Arg("write it even if its errors are not accepted")] = False,
    measure: Annotated[
        bool, Arg("fit nothing: write onto cards how far each objective is off")
    ] = False,
    out: OwnTables = None,
) -> int:
    """Fit one surrogate, or all; with `--measure`, measure the objectives of stored ones."""
    from fedhpo_gym.building.surrogate_fit import fit_surrogate

    if measure:
        return measure_stored(variant)
    if variant.id == ALL:
        if candidate or variant.settings or variant.alpha or variant.preprocessing:
            raise InvalidArgumentError(
                "`all` must come without a variant or a candidate: all stored ones are fitted"
            )
        return fit_all(out or table_folder(), keep=keep)
    task = parse_task(variant)
    card = fit_surrogate(
        task.identity,
        out,
        candidate=candidate,
        keep=keep,
        identity=task.surrogate_identities[0],
        train=None if keep or not can_train(task) else train_claimed,
    )
    echo(str(card))
    return 0


def fit_all(folder: Path, *, keep: bool) -> int:
    """Fit the surrogates of all stored tables and samples, for the newest version of each problem.

    Surrogates that the folder already holds are skipped, if they were fitted on the same numbers.
    """
    from fedhpo_gym.building.surrogate_fit import fit_surrogate

    failed = 0
    tables = list_tables()
    samples = [name for name in list_samples() if name not in tables]
    for source in (*map(open_sample, samples), *map(open_table, tables)):  # the quick ones first
        stored = source.identity  # of it, the newest task that answers has the surrogate
        task = get_task(newest_id(stored)).variant(**dict(stored.options))
        identity = task.fix(dict(stored.settings)).surrogate_identities[0]
        card = folder / f"{identity.name}{SUFFIX}.json"
        try:
            if not _is_fitted(card, source):
                train = None if keep or not can_train(task_of(identity)) else train_claimed
                fit_surrogate(source.name, folder, keep=keep, identity=identity, train=train)
            echo(str(card))
        except FedHPOError as error:
            echo_error("surrogate", error)
            failed += 1
    return 1 if failed else 0


def can_train(task: Task) -> bool:
    """Return whether the claimed optimum of a surrogate can be trained in minutes."""
    if task.table != BUILT_TABLE or task.model not in COMPILED or missing_requirement(task):
        return False
    try:
        load_dataset(task.dataset)
    except FedHPOError as error:
        echo_error("surrogate", f"the claimed best is not trained: {error}")
        return False
    return True


def train_claimed(surrogate: Surrogate) -> float:
    """Return the validation loss, averaged over seeds, of training the claimed optimum."""
    with require_optional("training a claimed best", "numba", "compiled", "numba"):
        from fedhpo_gym.backends.raw import Raw
    best = surrogate.card["health"]["optimum"]
    fidelity = Fidelity(int(best["round"]), float(best["client_sample_rate"]))
    task, losses = task_of(surrogate.identity), []
    for seed in surrogate.seeds:
        evaluation = Raw(task, seed).evaluate(best["configuration"], fidelity)
        losses.append(evaluation.mean("val", "loss"))
        sys.stderr.write(f"{surrogate.name}, seed {seed}: trained to {losses[-1]:.4f}\n")
    return float(np.mean(losses))


def measure_stored(variant: Variant) -> int:
    """Write the errors of each objective onto the cards of stored surrogates.

    With `all`, surrogates whose courses or recipe are gone are left as they are, and named.
    """
    from fedhpo_gym.building.surrogate_verdicts import write_verdicts

    if variant.id != ALL:
        name = open_preferred(parse_task(variant).surrogate_identities).name
        echo(str(write_verdicts(_card(name))))
        return 0
    for name in list_surrogates():
        try:
            echo(str(write_verdicts(_card(name))))
        except (MissingDataError, InvalidArgumentError) as error:
            echo_error("surrogate", error)
    return 0


def _card(name: str) -> Path:
    card = find_stored(name, f"{SUFFIX}.json")
    if card is None:  # listed a moment ago
        raise MissingDataError(f"the card of the surrogate {name!r} is gone; fit it again")
    return card


def _is_fitted(card: Path, source: StoredCurves) -> bool:
    if not card.exists():
        return False
    content = Surrogate(card).card
    is_fitted = not {*source.former}.isdisjoint(map(content.get, ("table_sha256", "sample_sha256")))
    if is_fitted:
        sys.stderr.write(f"{card.name} is there already\n")
    return is_fitted
