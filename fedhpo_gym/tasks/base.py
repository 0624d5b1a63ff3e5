"""The base class of tuning problems, `Problem`, with or without training.

`federated.Task` subclasses it for problems that train; a family of imported results needs no more
than `Problem` itself. Environments and backends read its spaces, metrics, seeds and budget, and
`identity` names the stored files that belong to it. Problems are frozen dataclasses: `variant`
returns a changed copy, which is validated like a new one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

from fedhpo_gym.core.checks import Range, as_integer, coerce
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.core.identity import OMITTED_VALUES, Identity
from fedhpo_gym.evaluation.records import CLASSIFICATION, SPLITS, MetricSpec
from fedhpo_gym.objectives import REGISTERED, Objective, objectives_of
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.systems import CROSS_SILO, System

REWARDS = ("improvement", "anytime", "score", "incumbent", "regret")
"""Kinds of scalar rewards of a trial."""


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """A tuning problem: a search space, metrics, and a budget.

    A family defines in a subclass the names and the search space of its problems; families that
    train nothing, such as imported results, need no more than that. Subclasses are frozen
    dataclasses with keyword fields.

    Attributes:
        fidelity_space: fidelities of an evaluation, as intervals.
        budget_s: simulated seconds of one run of an optimizer.
        citation: source of the problem.
        version: raised when the results of the problem's ids change.
        numbers: the version whose stored numbers it uses; None for its own version. A version
            that changes no number shares files with the one that it names.
        reward: default kind of reward of its trial ids.
        seeds: seeds of the repetitions in an evaluation.
        system: system model of simulated time.
        metrics: metrics of an evaluation, in the order of its last axis.
        splits: splits that metrics are measured on, in the order of the last axis but one.
        seen_splits: splits whose metrics an agent may observe; the others are only recorded.
        tags: families that the catalogue can be filtered by.
    """

    options: ClassVar[tuple[str, ...]] = ()
    """Fields that define a variant: arguments of `gymnasium.make`, and entries of cards."""

    fidelity_space: SearchSpace
    budget_s: float
    citation: str
    version: int = 0
    numbers: int | None = None
    reward: str = "score"
    seeds: tuple[int, ...] = (1, 2, 3)
    system: System = CROSS_SILO
    metrics: tuple[MetricSpec, ...] = CLASSIFICATION
    splits: tuple[str, ...] = SPLITS
    seen_splits: tuple[str, ...] = ("train", "val")
    tags: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Reject values that no backend supports; subclasses also check their fields."""
        coerce("seeds", self.seeds, tuple[int, ...])
        version = coerce("version", self.version, Annotated[int, Range(0)])
        numbers = as_integer(self.numbers_version)
        if numbers is None or not 0 <= numbers <= version:
            raise InvalidArgumentError(
                f"`numbers` must be a version up to {version}, whose numbers are shared, or None, "
                f"got {self.numbers!r}."
            )
        require_known("reward", self.reward, REWARDS)
        if not self.seeds or min(self.seeds) < 0:
            raise InvalidArgumentError(f"`seeds` must be non-negative, got {self.seeds!r}.")
        if not self.metrics or len(set(self.metric_names)) < len(self.metrics):
            raise InvalidArgumentError(
                f"`metrics` must be at least one, with different names, got {self.metric_names!r}."
            )
        if not set(self.seen_splits) <= set(self.splits):
            raise InvalidArgumentError(
                f"`seen_splits` must be among {self.splits!r}, got {self.seen_splits!r}."
            )

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique name in ids, without the version."""

    @property
    @abstractmethod
    def space(self) -> SearchSpace:
        """The configurations."""

    @property
    def key(self) -> str:
        """Name and version, unique in the catalogue."""
        return f"{self.name}-v{self.version}"

    @property
    def id(self) -> str:
        """Environment id."""
        return f"FedHPO-{self.key}"

    @property
    def table_name(self) -> str:
        """Stem of the files that hold this variant; version 0 is left out."""
        numbers = self.numbers_version
        return f"{self.name}-v{numbers}" if numbers else self.name

    @property
    def numbers_version(self) -> int:
        """The version whose stored numbers it uses; it is part of the identity of its files."""
        return self.version if self.numbers is None else self.numbers

    @property
    def all_settings(self) -> Mapping[str, float]:
        """All hyperparameters fixed, by name."""
        return {}

    @property
    def identity(self) -> Identity:
        """The identity of the stored numbers of this variant."""
        pairs = [(name, getattr(self, name)) for name in self.options]
        return Identity(
            name=self.table_name,
            task=self.name,
            version=self.numbers_version,
            options=tuple(
                (name, value) for name, value in pairs if value != OMITTED_VALUES.get(name)
            ),
            settings=tuple(sorted(self.all_settings.items())),
        )

    @property
    def surrogate_identities(self) -> tuple[Identity, ...]:
        """Identities of the surrogates that can serve this variant, the preferred one first.

        A version that shares the stored numbers of another can have a separate surrogate, fitted on
        them by newer rules; otherwise it also shares the surrogate.
        """
        return tuple(dict.fromkeys((replace(self, numbers=None).identity, self.identity)))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics, in the order of their axis."""
        return tuple(metric.name for metric in self.metrics)

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """Objectives and constraints by name; those that users registered come last."""
        built_in = _objectives(self.metrics, self.splits, self.budget_s)
        return {**built_in, **REGISTERED} if REGISTERED else built_in

    def asked_fidelity_space(self) -> SearchSpace:
        """Return the fidelities of its trials, equal for all backends."""
        return self.fidelity_space

    def stored_fidelity_space(self) -> SearchSpace:
        """Return the fidelities of tables: a grid in every dimension."""
        return self.fidelity_space.discretized()

    def variant(self, **changes: Any) -> Self:
        """Return the problem with some fields replaced, validated like a new one."""
        return replace(self, **changes)


@lru_cache(maxsize=64)
def _objectives(
    metrics: tuple[MetricSpec, ...], splits: tuple[str, ...], budget_s: float
) -> Mapping[str, Objective]:
    return MappingProxyType({o.name: o for o in objectives_of(metrics, splits, budget_s)})
