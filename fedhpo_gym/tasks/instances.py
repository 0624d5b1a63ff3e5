"""Instances of a problem: the same query on other partitions and initialisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedhpo_gym.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.tasks.base import Task

TRAIN_SEEDS = tuple(range(100, 132))
TEST_SEEDS = tuple(range(1000, 1016))
"""Seeds held out: no train instance shares one, nor do the tables (1, 2, 3)."""

SETS = {"train": TRAIN_SEEDS, "test": TEST_SEEDS, "all": TRAIN_SEEDS + TEST_SEEDS}


@dataclass(frozen=True)
class Instance:
    """One federated course before anybody has chosen a hyperparameter.

    Attributes:
        alpha: concentration of the label distribution over clients.
        seed: draws split, partition, initialisation, client sampling and minibatches, each from a
            stream of its own.
    """

    alpha: float
    seed: int


def make_instances(
    task: Task, wanted: str | Sequence[Sequence[float]] = "train", alpha: float | None = None
) -> tuple[Instance, ...]:
    """Return instances of a task, in a fixed order.

    Args:
        task: the task; only partitions by LDA differ in `alpha`, the others keep the task's.
        wanted: "train", "test", "all", or a list of (alpha, seed) pairs.
        alpha: the only concentration of a named set; by default it has all `instance_alphas`.

    Raises:
        UnknownNameError: no such set.
        InvalidArgumentError: the list is empty, a pair is malformed, or `alpha` comes with a list.
    """
    if isinstance(wanted, str):
        if wanted not in SETS:
            raise unknown_name("instance set", wanted, SETS)
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
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidArgumentError(
            f"`instances` must hold (alpha, seed) pairs with non-negative whole seeds, got {pair!r}"
        )
    return Instance(_alpha(alpha), seed)


def _alpha(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        raise InvalidArgumentError(f"`alpha` must be a positive, finite number, got {value!r}")
    return float(value)  # type: ignore[arg-type]
