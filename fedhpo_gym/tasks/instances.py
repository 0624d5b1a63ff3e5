"""Instances of a problem: other partitions, splits and initialisations of the same task.

The seeds of train and test instances have none in common, so all that seeds draw is drawn anew. It
does not follow that test instances hold other data: every instance has the samples of the one data
set, and a test sample of one can be a training sample of another. What the seed draws differs with
the partition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fedhpo_gym.core.checks import as_integer, explained_types
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.tasks.federated import Task, checked_alpha

TRAIN_SEEDS = tuple(range(100, 132))
TEST_SEEDS = tuple(range(1000, 1016))
"""Seeds held out: no train instance shares one, nor do the tables (1, 2, 3)."""

SETS = {"train": TRAIN_SEEDS, "test": TEST_SEEDS, "all": TRAIN_SEEDS + TEST_SEEDS}

DRAWN_ANEW: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "lda": frozenset({"clients", "split"}),
        "community": frozenset({"clients", "split"}),
        "user": frozenset({"split"}),
        "user-80-10-10": frozenset({"split"}),
        "skewed": frozenset({"clients", "split"}),
        "unseen": frozenset({"clients", "split"}),
        "task": frozenset({"split"}),
    }
)
"""What an instance's seed draws of the data, by partition: which samples a client has ("clients"),
and which of them are training, validation and test samples ("split").

Where users or tasks are the clients, they are the same in train and test instances: a problem is
about its population (the paper's rows name it), and half of the users would be another problem,
with other costs. What is learned there transfers to other splits and initialisations, not to other
users. Initialisation, client sampling and minibatches are drawn anew for every partition. Test data
that a data set publishes are the same in all instances."""


@dataclass(frozen=True)
class Instance:
    """One federated course before anybody has chosen a hyperparameter."""

    alpha: float  # concentration of the label distribution over clients
    seed: int  # of split, partition, initialisation, client sampling and minibatches


@explained_types
def make_instances(
    task: Task, wanted: str | Sequence[Sequence[float]] = "train", alpha: float | None = None
) -> tuple[Instance, ...]:
    """Return the instances of "train", "test" or "all", or of (alpha, seed) pairs, in order."""
    if isinstance(wanted, str):
        require_known("instance set", wanted, SETS)
        drawn = task.instance_alphas if task.partition == "lda" else (task.alpha,)
        alphas = drawn if alpha is None else (_alpha(alpha),)
        return tuple(Instance(float(a), seed) for a in alphas for seed in SETS[wanted])
    if alpha is not None:
        raise InvalidArgumentError(
            f"`alpha` must be None where `instances` lists pairs, got {alpha!r}"
        )
    if not wanted:
        raise InvalidArgumentError("`instances` must hold at least one pair, got none")
    return tuple(_instance(pair) for pair in wanted)


def _instance(pair: Sequence[float]) -> Instance:
    try:
        alpha, seed = pair
    except (TypeError, ValueError):
        alpha, seed = math.nan, -1
    number = as_integer(seed)
    if number is None or number < 0:
        raise InvalidArgumentError(
            f"`instances` must hold (alpha, seed) pairs with non-negative whole seeds, got {pair!r}"
        )
    return Instance(_alpha(alpha), number)


def _alpha(value: object) -> float:
    return float(checked_alpha(value))
