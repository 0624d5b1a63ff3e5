"""Named lists of problems, so that studies of several groups are about the same ones.

`small` is computed, by a rule and from published numbers only:

1. Candidates are the newest version of every problem whose default variant has numbers stored in
   the package; a table goes before a surrogate.
2. What tells them apart is on their cards (`docs/problems.md`): the noise of seeds over the spread
   of configurations, Kendall's τ between rounds and between client sample rates, the shares of
   configurations that are near the optimum and that lose to the label frequencies; and the numbers
   of hyperparameters and of clients. Each is replaced by its rank, from 0 to 1; what a card does
   not say is 0.5.
3. The first chosen is the one with the least sum of distances to all others. Each further one is
   that farthest from all chosen so far (Gonzalez, 1985). Of equals, the first by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.archive import EMBEDDED
from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import unknown_name
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.tasks import TASKS, Task, get_task
from fedhpo_gym.tasks.cross_device import CROSS_DEVICE_TASKS
from fedhpo_gym.tasks.logistic_regression import LR_TASKS
from fedhpo_gym.tasks.natural import REGIMES

SMALL: Final = 5
"""Problems of the suite `small`."""
_OPENML: Final = (
    "CreditG", "Vehicle", "KC1", "BloodTransfusion", "Australian", "Car", "Segment",
)  # fmt: skip
_OTHERS: Final = (
    "CNN-FEMNIST", "BERT-SST2", "BERT-CoLA", "GNN-Cora", "GNN-CiteSeer", "GNN-PubMed",
)  # fmt: skip
_QUICK: Final = frozenset({"ExamLondon", "HotelMarket", "BirdStrikes", "GuatemalaPrenatal"})
"""Tables of the suite `natural-small`."""
_CONTEST: Final = {
    "JointFew": (
        "Cracker", "Ess9gb", "Hsb82", "InterviewerRating", "Kershaw", "LoansGrade", "MplsForce",
        "Scorecard", "ScotsSecondary", "Yogurt",
    ),
    "JointPrivate": ("ExamLondon", "MlbDivision", "Tuna", "VietnamH"),
}  # fmt: skip
"""Tables of the suite `contest`, chosen by the columns of docs/natural.md: at most 10,000 rows, so
that trials are quick; of 60 configurations random search leaves at least 1.9 standard errors of
seeds after 25 trials, and tuning gains ten. Sixty are few and tell the first too small, so it is
half of what `difficulty` asks. A table stands in one regime, the private one if that leaves an
error more or is the only one that fits."""
_ENDINGS: Final = (".table.json", ".surrogate.json")


@checked_types
def suite(name: str) -> tuple[str, ...]:
    """Return the environment ids of a suite, versions included.

    Raises:
        UnknownNameError: no such suite.
    """
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    return SUITES[name]()


def _lr() -> tuple[str, ...]:
    """Logistic regression on nine tables of data, newest version."""
    return _newest(task.name for task in LR_TASKS)


def _paper() -> tuple[str, ...]:
    """The twenty problems of Wang et al. (2022), table 13, as version 0 has them."""
    tables = [f"{model}-{data}" for model in ("LR", "MLP") for data in _OPENML]
    return tuple(get_task(f"{name}-v0").id for name in (*_OTHERS, *tables))


def _cross_device() -> tuple[str, ...]:
    """Many clients, few of whom take part in a round: newest version."""
    return _newest(["CNN-FEMNIST", *(task.name for task in CROSS_DEVICE_TASKS)])


def _multi_objective() -> tuple[str, ...]:
    """Vector rewards, where numbers are stored: tables, graphs and writers."""
    names = [*(task.name for task in LR_TASKS), "GNN-Cora", "GNN-CiteSeer", "CNN-FEMNIST"]
    return tuple(f"MO-{name}" for name in _newest(names))


def _natural() -> tuple[str, ...]:
    """Natural federations, split within clients: logistic regression and perceptrons."""
    return tuple(f"FedHPO-{model}-{t.name}-v1" for t in NATURAL for model in ("LR", "MLP"))


def _joint() -> tuple[str, ...]:
    """The joint space on all natural federations: forty rounds, five, and ten private ones."""
    return tuple(f"FedHPO-{regime}-{t.name}-v1" for t in NATURAL for regime in REGIMES)


def _natural_small() -> tuple[str, ...]:
    """Eight of them, of four tables in which tuning matters and courses are quick."""
    return tuple(name for name in _natural() if name.split("-")[2] in _QUICK)


def _newest(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(get_task(name).id for name in names))


def _contest() -> tuple[str, ...]:
    """The joint space where optimizers have something to do: fourteen tables, really trained."""
    return tuple(f"FedHPO-{r}-{table}-v1" for r, tables in _CONTEST.items() for table in tables)


@lru_cache(maxsize=1)
def small() -> tuple[str, ...]:
    """A few problems that are unlike each other; the rule is in the docstring of this module."""
    candidates = _candidates()
    names = sorted(candidates)
    return representative(names, np.array([candidates[name] for name in names]), SMALL)


SUITES: Mapping[str, Callable[[], tuple[str, ...]]] = MappingProxyType(
    {
        "lr": _lr,
        "paper": _paper,
        "cross-device": _cross_device,
        "multi-objective": _multi_objective,
        "natural": _natural,
        "natural-small": _natural_small,
        "joint": _joint,
        "contest": _contest,
        "small": small,
    }
)
"""Suites by name; the docstring of each says what is in it."""


def representative(
    names: Sequence[str], features: NDArray[np.float64], count: int
) -> tuple[str, ...]:
    """Return some names that are far from each other, the most central one first."""
    places = np.stack([_ranked(column) for column in features.T], axis=1)
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    chosen = [int(np.argmin(distances.sum(axis=1).round(9)))]
    while len(chosen) < min(count, len(names)):
        chosen.append(int(np.argmax(distances[:, chosen].min(axis=1).round(9))))
    return tuple(names[place] for place in chosen)


def _ranked(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 0 to 1, means of them where values are equal; 0.5 for what is unknown."""
    known = column[~np.isnan(column)]
    below = (known[None] < column[:, None]).sum(axis=1)
    equal = (known[None] == column[:, None]).sum(axis=1)
    ranks = (below + (equal - 1) / 2) / max(len(known) - 1, 1)
    return np.where(np.isnan(column), 0.5, ranks)


def _candidates() -> dict[str, list[float]]:
    """Return the features of every candidate, by id."""
    newest = {task.name: task for task in sorted(TASKS.values(), key=lambda task: task.version)}
    cards = [_card(ending) for ending in _ENDINGS]
    found = {}
    for task in newest.values():
        own = [card[one] for card in cards for one in _identities(task) if one in card]
        if own:
            found[task.id] = _features(task, own[0])
    return found


def _identities(task: Task) -> tuple[Identity, ...]:
    return (task.identity, *task.surrogate_identities)


def _card(ending: str) -> dict[Identity, Mapping[str, Any]]:
    """Return the health on the package's own cards, by what they belong to."""
    found = {}
    for path in sorted(EMBEDDED.glob(f"*{ending}")):
        content = json.loads(path.read_text(encoding="utf-8"))
        found[Identity.from_card(content)] = content["health"]
    return found


def _features(task: Task, health: Mapping[str, Any]) -> list[float]:
    noise, spread = health["seed_noise"], health["spread"]
    losing = health["losing"]
    values = (
        noise / spread if noise is not None and spread else None,
        health["kendall"]["rounds"]["tau"],
        health["kendall"]["client_sample_rates"]["tau"],
        health["near_optimum"]["full_fidelity"],
        None if losing is None else losing["full_fidelity"],
        len(task.space),
        task.num_clients,
    )
    return [np.nan if value is None else float(value) for value in values]
