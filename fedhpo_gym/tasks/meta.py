"""The tasks of FedHPO-B: one data set under one regime each, in three search spaces.

Splits are by data set and were drawn once, before anything was computed: no data set is in two of
them, nor are two tables of one survey (`meta.csv` beside this file). Natural tables have their own
clients. Others are dealt to 5, 20 or 50 clients: "label" makes classes uneven, "quantity" amounts.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.data.tables import TABLES
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.tasks.federated import Task, fidelity_grid
from fedhpo_gym.tasks.natural import CLIENT_SPACE, JointTask, joint_problems, shared_fields

META_SPLITS: Final = ("train", "validation", "test")
META_SPACES: Final = ("LR", "Joint", "Private")
"""Logistic regression; models and optimizers in five rounds; the same in ten, and private."""
META_IDS: Mapping[str, str] = {f"FedHPO-B-{s}-v1": s for s in META_SPACES}
"""Environment ids -> their search spaces."""
GENERATED_SPACES: Final = ("LR", "Joint")
GENERATED_IDS: Mapping[str, str] = {f"FedHPO-Generated-{s}-v1": s for s in GENERATED_SPACES}
"""Environment ids of generated tasks -> their search spaces."""
MANY_TASKS = (*META_IDS, *GENERATED_IDS)
"""Ids of which every episode may have another task."""


def meta_space(env_id: str) -> str | None:
    """Return the search space of an id of FedHPO-B, version optional; None of any other id."""
    return _space_of(env_id, META_IDS)


def generated_space(env_id: str) -> str | None:
    """Return the search space of an id of generated tasks; None of any other id."""
    return _space_of(env_id, GENERATED_IDS)


def _space_of(env_id: str, ids: Mapping[str, str]) -> str | None:
    name = env_id.removeprefix("MO-")
    return ids.get(name) or ids.get(f"{name}-v1")


LR_ROUNDS = (1, 2, 3, 4)
RATES = (0.2, 1.0)
DEALT: Mapping[str, tuple[int, ...]] = {"LR": (5, 20, 50), "Joint": (20,), "Private": (50,)}
"""Numbers of clients that tables are dealt to, by search space."""
SKEWS: Mapping[str, float] = {"label": 0.1, "quantity": 1000.0}
"""Concentrations of the partition "skewed": with the latter, clients differ in size alone."""
LEAST_ROWS = 10
"""Rows that a client of a dealt table has on average, at least."""
LEAST_PRIVATE = 28
"""Clients below which the noise of DP-FedAvg drowns what a round learns."""

UNSOLVED = frozenset(
    {
        ("LR", "BloodTransfusion-20-label"),
        ("Joint", "BloodTransfusion-20-label"),
        ("Private", "MplsForce"),
    }
)
"""Where no configuration of a pool is better than the frequencies of labels; left out."""


class MetaTask(NamedTuple):
    """One problem of a meta-data set."""

    name: str  # such as `CreditG-20-label`; a natural federation has the name of its table
    split: str  # one of `META_SPLITS`
    survey: str  # whose data it is made of
    task: Task  # what is trained


@dataclass(frozen=True, kw_only=True)
class LinearTask(JointTask):
    """Logistic regression whose configurations choose the server's optimizer, too."""

    @property
    def models(self) -> tuple[str, ...]:
        return ("LR",)

    def parameters_of(self, configuration: Mapping[str, Value]) -> int:
        del configuration
        return self.num_parameters


LINEAR_SPACE = SearchSpace(
    tuple(
        replace(d, low=0.01, high=30.0) if d.name == "learning_rate" else d
        for d in CLIENT_SPACE.dimensions
        if not d.name.startswith("model")
    )
)


@validate_call
@lru_cache
def meta_tasks(space: str) -> tuple[MetaTask, ...]:
    """Return all tasks of a search space, in a fixed order.

    Raises:
        UnknownNameError: `space` is none of `META_SPACES`.
    """
    require_known("search space", space, META_SPACES)
    return tuple(
        MetaTask(name, _rows()[dataset]["split"], survey_of(dataset), _task(space, shared))
        for name, shared in _federations(space)
        for dataset in [shared["dataset"]]
        if (space, name) not in UNSOLVED
    )


@validate_call
def survey_of(dataset: str) -> str:
    """Return whose data a data set is made of; one that is no table of ours is its own survey."""
    return _rows().get(dataset, {}).get("survey") or dataset


@validate_call
def in_space(task: Task, space: str) -> Task:
    """Return a search space's problem on the federation of another task.

    Raises:
        UnknownNameError: `space` is none of `META_SPACES`.
        InvalidArgumentError: the data are no table.
    """
    require_known("search space", space, META_SPACES)
    if not task.tags & {"tabular-data", "natural"}:
        raise InvalidArgumentError(
            f"`task` must be of a table, whose samples are rows of numbers, got {task.name}"
        )
    names = ("dataset", "num_features", "num_classes", "num_clients", "partition", "alpha")
    values = {name: getattr(task, name) for name in (*names, "citation")}
    return _task(space, {**shared_fields(NATURAL[0]), **values})


@lru_cache
def _rows() -> Mapping[str, Mapping[str, str]]:
    """Return the rows of `meta.csv`, by data set."""
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as handle:
        return {row["dataset"]: row for row in csv.DictReader(handle)}


def _federations(space: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names, and the fields of a task that say who the clients are."""
    rows = _rows()
    for table in NATURAL:
        if space != "Private" or table.clients >= LEAST_PRIVATE:
            yield table.name, shared_fields(table)
    like_natural = shared_fields(NATURAL[0])
    for source in (candidate for candidate in TABLES if candidate.name in rows):
        for clients in DEALT[space]:
            if clients * LEAST_ROWS > (source.num_rows or 0):
                continue
            for skew, alpha in SKEWS.items():
                values = {
                    "dataset": source.name,
                    "num_features": int(rows[source.name]["features"]),
                    "num_classes": source.num_classes,
                    "num_clients": clients,
                    "partition": "skewed",
                    "alpha": alpha,
                    "citation": f"problem of this suite on {source.citation}",
                }
                yield f"{source.name}-{clients}-{skew}", {**like_natural, **values}


def _task(space: str, shared: Mapping[str, Any]) -> Task:
    joint = tuple(joint_problems(shared))[META_SPACES.index(space)]
    if space == "LR":
        joint_fields = {field.name: getattr(joint, field.name) for field in fields(joint)}
        linear = {
            "model": "LR",
            "num_parameters": (joint.num_features + 1) * joint.num_classes,
            "client_space": LINEAR_SPACE,
            "architecture": (),
            "stored_rounds": LR_ROUNDS,
        }
        joint = LinearTask(**{**joint_fields, **linear})
    # Else the configurations of logistic regression would all cost the same.
    system = replace(joint.system, compute="epochs")
    space_of_trials = fidelity_grid(joint.stored_rounds, RATES)
    return replace(joint, fidelity_space=space_of_trials, system=system)
