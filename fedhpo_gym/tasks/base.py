"""What any tuning problem has, whether anything is trained for it or not."""

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
"""How a trial can be rewarded with one number."""


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """A tuning problem: what may be chosen, what is measured, and the budget to solve it.

    A family says in a subclass what its problems are called and what is searched; families that
    train nothing, such as the stored results of others, need no more than that. Subclasses are
    frozen dataclasses with keyword fields: a problem is a literal.

    Attributes:
        fidelity_space: what an evaluation may be asked at, as intervals.
        budget_s: simulated seconds of one run of an optimizer.
        citation: source of the problem.
        version: raised when what the problem's ids return changes.
        numbers: the version whose stored numbers it answers from; None stands for its own. A
            version that changes no number shares files with the one it names.
        reward: how its trial ids reward by default.
        seeds: seeds of the repetitions that an answer holds.
        system: where simulated time comes from.
        metrics: what an evaluation holds, in the order of its last axis.
        splits: parts of the data that metrics are measured on, in the order of the axis before.
        seen_splits: the splits whose metrics an agent may see; the others are for the record.
        tags: families that the catalogue can be filtered by.
    """

    options: ClassVar[tuple[str, ...]] = ()
    """Fields that make a variant: arguments of `gymnasium.make`, and words on cards."""

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
        """Refuse what no backend could honour; subclasses check their own fields, too."""
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
        """What the problem is called in ids, without its version: no two problems share it."""

    @property
    @abstractmethod
    def space(self) -> SearchSpace:
        """The configurations."""

    @property
    def key(self) -> str:
        """Name and version: a catalogue holds it once."""
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
        """The version whose stored numbers it answers from: it and its files have one identity."""
        return self.version if self.numbers is None else self.numbers

    @property
    def all_settings(self) -> Mapping[str, float]:
        """All hyperparameters fixed, by name."""
        return {}

    @property
    def identity(self) -> Identity:
        """What stored numbers of this variant belong to."""
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
        """What a surrogate that answers this variant may belong to, the preferred first.

        A version that shares the stored numbers of another may have a surrogate of its own, fitted
        on them by newer rules; else it shares that of the other, too.
        """
        return tuple(dict.fromkeys((replace(self, numbers=None).identity, self.identity)))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics, in the order of their axis."""
        return tuple(metric.name for metric in self.metrics)

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """What can be optimised or constrained, by name; what users have registered comes last."""
        built_in = _objectives(self.metrics, self.splits, self.budget_s)
        return {**built_in, **REGISTERED} if REGISTERED else built_in

    def asked_fidelity_space(self) -> SearchSpace:
        """Return the fidelities that its trials may ask for, whatever answers them."""
        return self.fidelity_space

    def stored_fidelity_space(self) -> SearchSpace:
        """Return the fidelities that tables hold: a grid of every dimension."""
        return self.fidelity_space.discretized()

    def variant(self, **changes: Any) -> Self:
        """Return the problem with some fields replaced, checked as a new one is."""
        return replace(self, **changes)


@lru_cache(maxsize=64)
def _objectives(
    metrics: tuple[MetricSpec, ...], splits: tuple[str, ...], budget_s: float
) -> Mapping[str, Objective]:
    return MappingProxyType({o.name: o for o in objectives_of(metrics, splits, budget_s)})
