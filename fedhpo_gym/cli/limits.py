"""What limits of objectives leave: how many configurations keep them, and what the best reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import make_backend
from fedhpo_gym.cli.words import number, percent
from fedhpo_gym.envs.trial.asked import Columns
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.trial.truth import values_of
from fedhpo_gym.errors import FedHPOError
from fedhpo_gym.evaluation.constraints import Constraints
from fedhpo_gym.landscape import labels_on
from fedhpo_gym.landscape.lattice import Stored
from fedhpo_gym.objectives import ENERGY
from fedhpo_gym.seeding import stream
from fedhpo_gym.studies.environments import make_environment, resolve_id
from fedhpo_gym.studies.suites import SUITES, suite
from fedhpo_gym.surrogates import open_preferred
from fedhpo_gym.tables import open_table
from fedhpo_gym.tasks import Task

OPENERS: Final[Mapping[str, Callable[[Task], Stored]]] = {
    "tabular": lambda task: open_table(task.identity),
    "surrogate": lambda task: open_preferred(task.surrogate_identities),
}
SHARES: Final = (0.05, 0.2, 0.5)
"""Of the configurations, how many keep the limits that are listed."""
DRAWS: Final = 512
"""Random configurations that a surrogate is asked."""
HEADS: Final = ("limit", *(word for one in SHARES for word in (f"{percent(one)} keep", "best")))


def setup_of(task: Task, backend: str, chosen: Constraints) -> TrialSetup:
    """Return a setup of all objectives of a task but those on the test split, by which none tunes.

    Args:
        task: the variant.
        backend: "tabular" or "surrogate"; what it does not answer is left out.
        chosen: constraints as of `gymnasium.make`.

    Raises:
        UnknownNameError: the task has no such objective.
        InvalidArgumentError: a limit is malformed.
    """
    opened = make_backend(backend, task)
    left_out = {ENERGY, *(name for name in task.objectives if name.startswith("test_"))} - {*chosen}
    asked = (name for name in task.objectives if name not in left_out)
    names = tuple(name for name in asked if not opened.why_refused(name))
    return TrialSetup(task, opened, names, {}, constraints=chosen)


def limits_of(given: TrialSetup) -> dict[str, Any]:
    """Return limits of each objective that varies, and what the constraints leave, as JSON data.

    All of it is at full fidelity, of stored numbers.
    """
    setup = given.at_full_fidelity
    labels = labels_on(OPENERS[setup.backend.name](setup.task))
    guess = np.inf if labels is None else labels["val_loss"]
    values = values_of(setup, _columns(setup))
    found = {}
    for objective, column in zip(setup.objectives[1:], values.T[1:], strict=True):
        sign = 1 if objective.minimize else -1
        if np.ptp(column) > 0:
            at = np.ceil(np.multiply(SHARES, len(column))).astype(int) - 1
            ends = [_outward(end) for end in np.sort(sign * column)[at].tolist()]
            left = [_left(sign * column <= end, values[:, 0], guess) for end in ends]
            rows = [{"limit": sign * end, **one} for end, one in zip(ends, left, strict=True)]
            found[objective.name] = {"minimize": objective.minimize, "limits": rows}
    kept = _left(setup.violations(values) == 0, values[:, 0], guess) if setup.constraints else None
    return {"configurations": len(values), "by_objective": found, "chosen": kept}


def _columns(setup: TrialSetup) -> Columns:
    """Return the grid of a table, or random configurations of a surrogate."""
    space, rng = setup.search_space, stream(0, "limits")
    if setup.is_grid:
        grids = np.meshgrid(*(np.array(one.grid) for one in space.dimensions), indexing="ij")
        columns = {name: one.ravel() for name, one in zip(space.names, grids, strict=True)}
    else:
        columns = {**space.decode_columns(rng.uniform(-1.0, 1.0, (DRAWS, len(space))))}
    size = len(next(iter(columns.values())))
    return {**columns, **{name: np.full(size, value) for name, value in setup.fixed.items()}}


def _outward(end: float) -> float:
    """Return four digits of a limit on what is to be low, rounded to where as many keep it."""
    scale = 10.0 ** (3 - np.floor(np.log10(abs(end)))) if end else 1.0
    return float(f"{np.ceil(end * scale) / scale:.12g}")


def _left(kept: NDArray[np.bool_], losses: NDArray[np.float64], guess: float) -> dict[str, Any]:
    best = float(losses[kept].min()) if kept.any() else None
    return {"kept": int(kept.sum()), "best": best, "useless": best is None or best >= guess}


def rows_of(found: Mapping[str, Any]) -> list[list[str]]:
    """Return what `limits_of` found by objective as the rows of a table with the heads `HEADS`."""
    rows = []
    for name, one in found["by_objective"].items():
        pairs = [(e["limit"], number(e["best"]) + "*" * e["useless"]) for e in one["limits"]]
        sign = "at most" if one["minimize"] else "at least"
        rows.append([f"{name} {sign}", *(w for end, best in pairs for w in (number(end), best))])
    return rows


def chosen_words(found: Mapping[str, Any]) -> str:
    """Return what the constraints leave, in a sentence without its end."""
    size, left = found["configurations"], found["chosen"]
    if left["best"] is None:
        return f"at full fidelity none of {size:,} configurations keeps the constraints"
    useless = ", no better than predicting the label frequencies" if left["useless"] else ""
    return (
        f"at full fidelity {left['kept']:,} of {size:,} configurations keep the constraints, and "
        f"the best of them has a validation loss of {number(left['best'])}{useless}"
    )


def useless_limits(problems: Sequence[str], arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence per problem on which constraints leave nothing of use, as far as is stored.

    Args:
        problems: suites, or ids of environments.
        arguments: of `gymnasium.make`.
    """
    names = [one for name in problems for one in (suite(name) if name in SUITES else [name])]
    for name in names if arguments.get("constraints") else ():
        try:
            env_id = resolve_id(name)
            with closing(make_environment(env_id, arguments)) as env:
                setup = env.get_wrapper_attr("setup")
                if "DAC-" in env_id or setup.backend.name not in OPENERS:
                    continue
                found = limits_of(setup)
        except FedHPOError:  # what cannot be made, the run says itself
            continue
        if found["chosen"]["useless"]:
            yield f"{env_id}: {chosen_words(found)}; see `fedhpo-gym show {env_id}`"
