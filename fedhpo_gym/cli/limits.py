"""What limits of objectives leave: how many configurations keep them, and what the best reaches.

All of it is at full fidelity, of stored numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import make_backend
from fedhpo_gym.cli.words import number, percent
from fedhpo_gym.core.errors import FedHPOError
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.trial.truth import values_of_queries
from fedhpo_gym.objectives import ENERGY
from fedhpo_gym.stored.catalogue import open_table
from fedhpo_gym.stored.health import labels_on
from fedhpo_gym.stored.lattice import Stored, asked_columns
from fedhpo_gym.stored.surrogate import open_preferred
from fedhpo_gym.studies.environments import make_environment, resolve_id
from fedhpo_gym.studies.suites import SUITES, suite
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


def limits_of(task: Task, backend: str) -> dict[str, Any]:
    """Return limits of each objective that varies, as JSON data.

    Objectives on the test split are left out, by which none tunes.

    Args:
        task: the variant.
        backend: "tabular" or "surrogate"; what it does not answer is left out.
    """
    opened = make_backend(backend, task)
    asked = [one for one in task.objectives if one != ENERGY and not one.startswith("test_")]
    names = tuple(name for name in asked if not opened.why_refused(name))
    setup = TrialSetup(task, opened, names, {}).at_full_fidelity
    values, guess = _values(setup)
    found = {}
    for objective, column in zip(setup.objectives[1:], values.T[1:], strict=True):
        sign = 1 if objective.minimize else -1
        if np.ptp(column) > 0:
            at = np.ceil(np.multiply(SHARES, len(column))).astype(int) - 1
            ends = [_outward(end) for end in np.sort(sign * column)[at].tolist()]
            left = [_left(sign * column <= end, values[:, 0], guess) for end in ends]
            rows = [{"limit": sign * end, **one} for end, one in zip(ends, left, strict=True)]
            found[objective.name] = {"minimize": objective.minimize, "limits": rows}
    return {"configurations": len(values), "by_objective": found}


def _values(setup: TrialSetup) -> tuple[NDArray[np.float64], float]:
    """Return (configurations, objectives) values, and the loss of predicting frequencies."""
    labels = labels_on(OPENERS[setup.backend.name](setup.task))
    columns = asked_columns(setup.search_space, DRAWS, "limits")
    size = len(next(iter(columns.values())))
    columns |= {name: np.full(size, value) for name, value in setup.fixed.items()}
    return values_of_queries(setup, columns), np.inf if labels is None else labels["val_loss"]


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
                words = _useless_words(setup.at_full_fidelity)
        except FedHPOError:  # what cannot be made, the run says itself
            continue
        if words:
            yield f"{env_id}: at full fidelity {words}; see `fedhpo-gym show {env_id}`"


def _useless_words(setup: TrialSetup) -> str:
    """Return how little the constraints leave; empty where they leave something of use."""
    values, guess = _values(setup)
    left = _left(setup.violations(values) == 0, values[:, 0], guess)
    if not left["useless"]:
        return ""
    if not left["kept"]:
        return f"none of {len(values):,} configurations keeps the constraints"
    return (
        f"{left['kept']:,} of {len(values):,} configurations keep the constraints, and the best of "
        f"them has a validation loss of {number(left['best'])}, no better than predicting the "
        "label frequencies"
    )
