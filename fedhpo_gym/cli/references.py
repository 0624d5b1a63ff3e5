"""`fedhpo-gym references`: returns of references in round environments, including hindsight."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from tqdm import tqdm

from fedhpo_gym.cli.console import Arg, echo_error, echo_table
from fedhpo_gym.core.archive import require_writable_file
from fedhpo_gym.core.checks import short_repr
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    require_known,
)
from fedhpo_gym.core.files import write_text
from fedhpo_gym.stored.references import PATH, References, dumped, read
from fedhpo_gym.studies.references import (
    SEARCH_BUDGETS,
    Player,
    SearchBudget,
    find_references,
    round_ids,
)

HEADS = ("id", "default", "static", "schedule", "hindsight", "headroom", "95 %")


def update_references(
    ids: Annotated[Sequence[str], Arg("round ids, suites, or `all`; by default `dac`", "ID")] = (),
    *,
    seconds: Annotated[float, Arg("of each id, about: what is slow is searched less")] = 120.0,
    effort: Annotated[
        str | None, Arg(f"the same of all: {', '.join(SEARCH_BUDGETS)}", "NAME")
    ] = None,
    again: Annotated[bool, Arg("also what is known already, with no less effort")] = False,
    out: Annotated[Path, Arg("read and written; by default what the package knows", "FILE")] = PATH,
) -> int:
    """Find missing references of round environments, and print all that were requested."""
    if effort is not None:
        require_known("effort", effort, SEARCH_BUDGETS)
    read.cache_clear()
    references, failed = read(out), 0
    env_ids = round_ids(ids)
    for env_id in env_ids:
        requested = SEARCH_BUDGETS[effort].episodes if effort else 0
        former = _former_budget(references[env_id], out).episodes if env_id in references else 0
        if former and not again and requested <= former:
            continue
        require_writable_file(out, "`--out`")
        try:
            budget = SEARCH_BUDGETS[effort or _affordable_budget(env_id, seconds)]
            if budget.episodes < former:
                raise InvalidArgumentError(
                    f"`--effort` must not be less than what is known of {env_id} in {out}, whose "
                    f"search took {former:,} courses, got {budget.episodes:,}; name another --out"
                )
            with tqdm(total=budget.episodes, desc=env_id, unit="course", disable=None) as bar:
                result = find_references(env_id, budget, progress=bar.update)
        except FedHPOError as error:
            failed += not isinstance(error, MissingDataError)
            echo_error("references", error)
            continue
        read.cache_clear()  # others may have written meanwhile
        references = {**read(out), env_id: result}
        write_text(out, dumped(list(references.values())))
        read.cache_clear()
    echo_table(
        HEADS, [_reference_row(references[env_id]) for env_id in env_ids if env_id in references]
    )
    return int(failed > 0)


def _former_budget(entry: References, out: Path) -> SearchBudget:
    """Return the search budget that a file records."""
    try:
        return SearchBudget(**entry.effort)
    except TypeError as error:
        raise DamagedDataError(
            f"{out} must hold references whose `effort` is that of this version, got "
            f"{short_repr(dict(entry.effort))} of {entry.id} ({error}). Name another `--out`."
        ) from error


def _affordable_budget(env_id: str, seconds: float) -> str:
    """Return the largest budget that takes about so many seconds, from a few timed courses."""
    player = Player(env_id, "train", 8)
    player.warm_up()
    start = time.process_time()
    player.warm_up()
    seconds_each = (time.process_time() - start) / 8
    player.close()
    fitting = (
        name for name, budget in SEARCH_BUDGETS.items() if budget.episodes * seconds_each <= seconds
    )
    return next(fitting, list(SEARCH_BUDGETS)[-1])


def _reference_row(entry: References) -> list[str]:
    mean, low, high = entry.headroom
    names = ["default", "static", entry.best_schedule or "static", "hindsight"]
    returns = [f"{np.mean(entry.returns[name]):.3f}" for name in names]
    if np.isnan(mean):  # the best static action is the default
        return [entry.id, *returns, "–", "–"]
    return [entry.id, *returns, f"{mean:.2f}", f"{low:.2f} to {high:.2f}"]
