"""`fedhpo-gym references`: what is reached in round environments, with and without hindsight."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from tqdm import tqdm

from fedhpo_gym.cli.console import Arg, echo_error, say_table
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


def main(
    ids: Annotated[Sequence[str], Arg("round ids, suites, or `all`; by default `dac`", "ID")] = (),
    *,
    seconds: Annotated[float, Arg("of each id, about: what is slow is searched less")] = 120.0,
    effort: Annotated[
        str | None, Arg(f"the same of all: {', '.join(SEARCH_BUDGETS)}", "NAME")
    ] = None,
    again: Annotated[bool, Arg("also what is known already, with no less effort")] = False,
    out: Annotated[Path, Arg("read and written; by default what the package knows", "FILE")] = PATH,
) -> int:
    """Find the references of round environments that are not known yet, and print all asked for."""
    if effort is not None:
        require_known("effort", effort, SEARCH_BUDGETS)
    read.cache_clear()
    known, failed = read(out), 0
    asked = round_ids(ids)
    for env_id in asked:
        asked_for = SEARCH_BUDGETS[effort].episodes if effort else 0
        held = _effort(known[env_id], out).episodes if env_id in known else 0
        if held and not again and asked_for <= held:
            continue
        require_writable_file(out, "`--out`")
        try:
            chosen = SEARCH_BUDGETS[effort or _affordable(env_id, seconds)]
            if chosen.episodes < held:
                raise InvalidArgumentError(
                    f"`--effort` must not be less than what is known of {env_id} in {out}, whose "
                    f"search took {held:,} courses, got {chosen.episodes:,}; name another --out"
                )
            with tqdm(total=chosen.episodes, desc=env_id, unit="course", disable=None) as bar:
                found = find_references(env_id, chosen, progress=bar.update)
        except FedHPOError as error:
            failed += not isinstance(error, MissingDataError)
            echo_error("references", error)
            continue
        read.cache_clear()  # others may have written meanwhile
        known = {**read(out), env_id: found}
        write_text(out, dumped(list(known.values())))
        read.cache_clear()
    say_table(HEADS, [_row(known[env_id]) for env_id in asked if env_id in known])
    return int(failed > 0)


def _effort(entry: References, out: Path) -> SearchBudget:
    """Return how much was searched, as a file says it."""
    try:
        return SearchBudget(**entry.effort)
    except TypeError as error:
        raise DamagedDataError(
            f"{out} must hold references whose `effort` is that of this version, got "
            f"{short_repr(dict(entry.effort))} of {entry.id} ({error}). Name another `--out`."
        ) from error


def _affordable(env_id: str, seconds: float) -> str:
    """Return the greatest effort that takes about so many seconds, by a few courses of default."""
    player = Player(env_id, "train", 8)
    player.warm_up()
    begin = time.process_time()
    player.warm_up()
    each = (time.process_time() - begin) / 8
    player.close()
    fitting = (name for name, one in SEARCH_BUDGETS.items() if one.episodes * each <= seconds)
    return next(fitting, list(SEARCH_BUDGETS)[-1])


def _row(one: References) -> list[str]:
    mean, low, high = one.headroom
    named = ["default", "static", one.best_schedule or "static", "hindsight"]
    returns = [f"{np.mean(one.returns[name]):.3f}" for name in named]
    if np.isnan(mean):  # the best static action is the default
        return [one.id, *returns, "–", "–"]
    return [one.id, *returns, f"{mean:.2f}", f"{low:.2f} to {high:.2f}"]
