"""Federated problems: `Task` adds data, model, algorithm and clients to a `Problem`.

The modules of `tasks/` define the tasks of the catalogue as literals, and `get_task` returns them.
Backends read a task to know what to train, and its `table_name` names its stored files. The name
therefore contains every option that changes numbers, without those at their defaults. The end of
the module defines `Instance`, a task's federation under a seed, for round environments.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from fedhpo_gym import data  # its names are imported lazily
from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.algorithms.settings import TRAINING, Setting, check_settings
from fedhpo_gym.core.checks import (
    Range,
    as_integer,
    as_number,
    coerce,
    short_repr,
    validate_failed_call,
)
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.core.identity import BUILT_TABLE, FEDHPO_BENCH, IMPORTED, OPTIONS, Identity
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.tasks.base import Problem

PREPROCESSINGS = ("label_encoded", "standardized")
TABLES = (BUILT_TABLE, FEDHPO_BENCH, IMPORTED)
OF_GRAPHS = ("community", "task")
"""Partitions of graphs, whose features are never preprocessed."""
OWN_TASKS = ("task",)
"""Partitions in which every client has a separate problem with separate labels."""

# fmt: off
STORED_ROUNDS = (
    1, 2, 3, 4, 6, 9, 13, 19, 27, 38, 56, 81, 100, 125, 167, 200, 250, 320, 400, 500,
)
# fmt: on
"""Rounds of tables: steps grow, and the rungs of common multi-fidelity ladders are included (81 and
500 divided by powers of 3, 500 by 2 and 4)."""

SILO_RATE = Dimension("client_sample_rate", 0.2, 1.0, "float", bins=5, scope="fidelity")


def fidelities(rounds: Sequence[int], rate: Dimension = SILO_RATE) -> SearchSpace:
    """Return the fidelities of courses that are evaluated after some rounds, ascending."""
    ends, values = (rounds[0], rounds[-1]), tuple(rounds)
    of_course = Dimension("round", *ends, "int", values=values, unit="rounds", scope="fidelity")
    return SearchSpace((of_course, rate))


Rounds = Sequence[Annotated[int, Range(1, 65_535)]]
Rates = Sequence[Annotated[float, Range(0, 1, "(]")]]


def fidelity_grid(rounds: Rounds, rates: Rates) -> SearchSpace:
    """Return the grid of some rounds and client sample rates, both ascending."""
    if not rounds or not rates:
        raise InvalidArgumentError(
            f"`rounds` and `client_sample_rates` must not be empty, got {rounds!r} and {rates!r}"
        )
    rate = replace(SILO_RATE, low=rates[0], high=rates[-1], values=tuple(rates), bins=None)
    return fidelities(rounds, rate)


SPARSE_ROUNDS = (1, 3, 6, 9, 13, 19, 27, 38, 56, 81, 125, 200, 320, 500)
"""Rounds after which models are evaluated where an evaluation costs as much as training."""


TUNED_BINS = 5
"""Points on the grid of a setting that is tuned."""
ALPHAS = (1e-6, 1e30)
"""Range of concentrations: outside, draws or file names fail, and partitions hardly change."""


def checked_alpha(alpha: object) -> int | float:
    """Return the concentration of an LDA partition."""
    real = as_number(alpha)
    if real is None or not ALPHAS[0] <= real <= ALPHAS[1]:
        raise InvalidArgumentError(
            f"`alpha` must be a positive, finite number in [{ALPHAS[0]:g}, {ALPHAS[1]:g}], got "
            f"{short_repr(alpha)}."
        )
    return real


@dataclass(frozen=True, kw_only=True)
class Task(Problem):
    """A federated problem; its fidelities are `round` and `client_sample_rate`.

    Attributes:
        model: name of the model family.
        dataset: name of the data set.
        num_features: inputs per sample.
        num_classes: number of classes.
        num_parameters: size of the model that clients and server exchange; of the largest model if
            configurations shape it.
        client_space: client-side hyperparameters, as intervals.
        num_clients: clients of the federation.
        partition: rule that splits the data over clients, one of `data.partitions`.
        algorithm: FL algorithm.
        alpha: concentration of the LDA partition.
        instance_alphas: concentrations of instances: the paper's, if they give a valid partition,
            in which every client has at least ten samples in every split.
        preprocessing: "label_encoded" (the paper's) or "standardized".
        precision: number type of training, one of `precisions`.
        precisions: number types that the model supports.
        table: source of stored numbers, one of `TABLES`.
        settings: fixed hyperparameters, as (name, value) pairs, without those at their defaults.
        tuned: settings of the algorithm that are searched instead.
        model_settings: settings that the model reads, by name.
        architecture: hyperparameters that shape the model.
        guess_loss: loss of a constant prediction, if the loss is not the cross-entropy; see
            `chance_loss`.
        stored_rounds: rounds of tables, of those after which models are evaluated; the last round
            is always stored.
        unstored: default backend if no numbers are stored. "tabular" raises an error that describes
            how to get them; "raw" trains.
    """

    options: ClassVar[tuple[str, ...]] = OPTIONS

    model: str
    dataset: str
    num_features: int
    num_classes: int
    num_parameters: int
    client_space: SearchSpace
    num_clients: int = 5
    partition: str = "lda"
    algorithm: str = "fedavg"
    alpha: float = 0.5
    instance_alphas: tuple[float, ...] = (0.1, 0.5, 0.7)
    preprocessing: str = "label_encoded"
    precision: str = "float32"
    precisions: tuple[str, ...] = ("float32",)
    table: str = BUILT_TABLE
    settings: tuple[tuple[str, float], ...] = ()
    tuned: tuple[Dimension, ...] = ()
    model_settings: tuple[tuple[str, Setting], ...] = ()
    architecture: tuple[str, ...] = ()
    guess_loss: float | None = None
    stored_rounds: tuple[int, ...] = STORED_ROUNDS
    unstored: str = "tabular"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("algorithm", "preprocessing", "precision", "table"):
            coerce(name, getattr(self, name), str)
        require_known("algorithm", self.algorithm, ALGORITHMS)
        require_known("preprocessing", self.preprocessing, PREPROCESSINGS)
        require_known("table", self.table, TABLES)
        if self.precision not in self.precisions:
            allowed = " or ".join(map(repr, self.precisions))
            raise InvalidArgumentError(
                f"`precision` must be {allowed} for {self.name}, which is what its model computes "
                f"in, got {short_repr(self.precision)}."
            )
        if self.partition in OF_GRAPHS and self.preprocessing != PREPROCESSINGS[0]:
            raise InvalidArgumentError(
                f"`preprocessing` must be {PREPROCESSINGS[0]!r} for {self.name}, whose graphs are "
                f"used as published, got {self.preprocessing!r}."
            )
        object.__setattr__(self, "alpha", checked_alpha(self.alpha))
        self._checked(dict(self.settings))
        for name in {*dict(self.settings), *(d.name for d in self.tuned)} & {*self.silent}:
            raise InvalidArgumentError(
                f"`{name}` must be left out where `{self.silent[name]}` decides in its place, as "
                f"in {self.name}; or set `settings={{'{self.silent[name]}': 0}}`."
            )

    @property
    def silent(self) -> dict[str, str]:
        """Settings without effect -> the settings that replace them."""
        deciding = {d.name for d in self.tuned} | {n for n, v in self.all_settings.items() if v}
        settings = self._own_settings.items()
        return {
            setting.instead: name
            for name, setting in settings
            if setting.instead and name in deciding
        }

    def variant(self, **changes: Any) -> Self:
        """Replace some fields; settings that a new algorithm does not have are dropped."""
        algorithm = changes.get("algorithm", self.algorithm)
        is_other = isinstance(algorithm, str) and algorithm != self.algorithm
        if is_other and algorithm in ALGORITHMS:
            allowed = {*TRAINING, *ALGORITHMS[algorithm].settings, *dict(self.model_settings)}
            settings = tuple((name, value) for name, value in self.settings if name in allowed)
            changes = {"settings": settings, **changes}
        return super().variant(**changes)

    @property
    def name(self) -> str:
        """Model and data set, as in environment ids."""
        return f"{self.model}-{self.dataset}"

    @property
    def round_id(self) -> str:
        """Id of the round environment, in which a step is some rounds of one course."""
        return f"FedHPO-DAC-{self.key}"

    @property
    def round_preprocessing(self) -> str:
        """Default preprocessing of round environments."""
        return "standardized" if "tabular-data" in self.tags else self.preprocessing

    @property
    def round_arguments(self) -> Mapping[str, Any]:
        """Arguments of `gymnasium.make` that belong to its round id."""
        return {"task": self.key, "preprocessing": self.round_preprocessing}

    @property
    def chance_loss(self) -> float:
        """Loss of the best constant prediction if all classes are equally frequent."""
        return math.log(self.num_classes) if self.guess_loss is None else self.guess_loss

    @property
    def has_data(self) -> bool:
        """Whether it has a data set to train on, even if that is not on this machine."""
        return self.dataset in data.SOURCES or self.dataset in data.REGISTERED

    @property
    def label_entropy(self) -> float:
        """Entropy of the labels in nats; if it is unknown, that of equally frequent labels."""
        if self.dataset not in LABEL_ENTROPY and self.dataset in data.REGISTERED:
            counts = np.bincount(data.load_dataset(self.dataset).labels)
            shares = counts[counts > 0] / counts.sum()
            return float(-(shares * np.log(shares)).sum())
        return LABEL_ENTROPY.get(self.dataset, math.log(self.num_classes))

    @cached_property
    def space(self) -> SearchSpace:
        """Search space: client-side dimensions, then the algorithm's, then settings tuned."""
        added = ALGORITHMS[self.algorithm].dimensions
        return SearchSpace((*self.client_space.dimensions, *added, *self.tuned))

    @property
    def asynchronous(self) -> bool:
        """Whether clients report independently, so that a round is one aggregation."""
        return ALGORITHMS[self.algorithm].asynchronous

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models of courses in the engine."""
        return (self.model,)

    def parameters_of(self, configuration: Mapping[str, Value]) -> int:
        """Return the number of parameters of a configuration's model, the size of a message."""
        del configuration
        return self.num_parameters

    @property
    def all_settings(self) -> dict[str, float]:
        """All fixed hyperparameters: defaults, replaced by `settings`."""
        searched = {dimension.name for dimension in self.tuned}
        defaults = {
            n: setting.default for n, setting in self._own_settings.items() if n not in searched
        }
        return {**defaults, **dict(self.settings)}

    def _checked(self, settings: Mapping[str, object]) -> dict[str, float]:
        problem = f"{self.algorithm} on {self.name}"
        return check_settings(problem, self._own_settings, self.space.names, settings)

    @property
    def _own_settings(self) -> dict[str, Setting]:
        """The settings that the algorithm or the model reads."""
        return {**ALGORITHMS[self.algorithm].settings, **dict(self.model_settings)}

    @property
    def max_round(self) -> int:
        """Rounds of a full-fidelity evaluation."""
        return int(self.fidelity_space["round"].high)

    @property
    def evaluated_rounds(self) -> tuple[int, ...]:
        """Rounds after which models are evaluated; the best round is one of them."""
        return tuple(int(r) for r in self.fidelity_space["round"].grid)

    def asked_fidelity_space(self) -> SearchSpace:
        """Return the rounds of tables, so that an action means the same for every backend."""
        round_ = self.stored_fidelity_space()["round"]
        return SearchSpace((round_, self.fidelity_space["client_sample_rate"]))

    def stored_fidelity_space(self) -> SearchSpace:
        """Return the fidelities of tables: some rounds, and all client sample rates."""
        full = self.fidelity_space["round"]
        last = self.max_round
        rounds = tuple(r for r in self.evaluated_rounds if r in self.stored_rounds or r == last)
        stored = replace(full, low=rounds[0], high=rounds[-1], values=rounds, bins=None)
        return SearchSpace((stored, self.fidelity_space["client_sample_rate"].discretized()))

    @property
    def identity(self) -> Identity:
        """The identity of the stored numbers of this variant, with the settings that are tuned."""
        tuned = tuple((d.name, float(d.low), float(d.high)) for d in self.tuned)
        return replace(super().identity, tuned=tuned)

    @property
    def table_name(self) -> str:
        """Stem of the files of this variant; options at their defaults are left out."""
        parts = [super().table_name, self.algorithm]
        if self.alpha != 0.5:
            parts.append(f"alpha{_digits(self.alpha)}")
        if self.preprocessing != "label_encoded":
            parts.append(self.preprocessing)
        if self.precision != "float32":
            parts.append(self.precision)
        if self.table != BUILT_TABLE:
            parts.append(self.table)
        parts += [f"{name}{_digits(value)}" for name, value in self.settings]
        parts += [f"{d.name}{_digits(d.low)}to{_digits(d.high)}" for d in self.tuned]
        return "-".join(parts)

    def fix(self, settings: Mapping[str, float]) -> Self:
        """Return the task with more hyperparameters fixed."""
        defaults = {name: setting.default for name, setting in self._own_settings.items()}
        merged = {**dict(self.settings), **self._checked(settings)}
        changed = {name: value for name, value in merged.items() if value != defaults.get(name)}
        return self.variant(settings=tuple(sorted(changed.items())))

    def tune(self, ranges: Mapping[str, Sequence[float]]) -> Self:
        """Return the task with settings of its algorithm searched, on a logarithmic scale."""
        settings_of_algorithm, searched = (
            ALGORITHMS[self.algorithm].settings,
            self.variant(tuned=()).space.names,
        )
        for name, ends in ranges.items():
            if name not in settings_of_algorithm or name in searched:
                free = [other for other in sorted(settings_of_algorithm) if other not in searched]
                others = [repr(other) for other in ALGORITHMS if name in ALGORITHMS[other].settings]
                hint = f"; it is a setting of algorithm={' or '.join(others)}" if others else ""
                raise InvalidArgumentError(
                    f"`tune` must name settings of algorithm={self.algorithm!r} that {self.name} "
                    f"does not search already, {free or 'of which there are none'}, got "
                    f"{name!r}{hint}"
                )
            checked = [settings_of_algorithm[name].validate(name, end) for end in ends]
            if settings_of_algorithm[name].instead and checked and checked[0] == 0:
                raise InvalidArgumentError(
                    f"`tune` must give {name!r} a range above 0, where "
                    f"{settings_of_algorithm[name].instead!r} decides in its place, got "
                    f"{short_repr(ends)}"
                )
            if len(checked) != 2 or not checked[0] < checked[1]:
                raise InvalidArgumentError(
                    f"`tune` must give the lowest and the highest {name!r}, such as [1, 100], got "
                    f"{short_repr(ends)}"
                )
        tuned = tuple(
            Dimension(name, float(low), float(high), "float", log=low > 0, bins=TUNED_BINS)
            for name, (low, high) in ranges.items()
        )
        settings = tuple((name, value) for name, value in self.settings if name not in ranges)
        return self.variant(settings=settings, tuned=tuned)


def _digits(value: float) -> str:
    """Return all digits without an exponent: names differ if values do, and "-" only separates."""
    return np.format_float_positional(value, trim="-")


_ENTROPIES = (Path(__file__).parents[1] / "data" / "label_entropy.csv").read_text(encoding="utf-8")
LABEL_ENTROPY: Mapping[str, float] = {
    **{row["name"]: float(row["entropy"]) for row in csv.DictReader(_ENTROPIES.splitlines())},
    **{table.name: table.entropy for table in NATURAL},
}
"""Entropy of the labels of a data set in nats, by its name: the loss of their frequencies."""


TRAIN_SEEDS = tuple(range(100, 132))
VAL_SEEDS = tuple(range(500, 516))
TEST_SEEDS = tuple(range(1000, 1016))
"""Seeds held out: no train instance shares one, nor do the tables (1, 2, 3)."""

SETS = {"train": TRAIN_SEEDS, "val": VAL_SEEDS, "test": TEST_SEEDS, "all": TRAIN_SEEDS + TEST_SEEDS}
"""Seeds of instances. Published test data are the same in all instances, and so are users or tasks
as clients: half of the clients of a problem would be another problem, with other costs."""


@dataclass(frozen=True)
class Instance:
    """The part of a course that does not depend on hyperparameters."""

    alpha: float  # concentration of the label distribution over clients
    seed: int  # of split, partition, initialisation, client sampling and minibatches


@validate_failed_call
def make_instances(
    task: Task, instances: str | Sequence[Sequence[float]] = "train", alpha: float | None = None
) -> tuple[Instance, ...]:
    """Return the instances of a set in `SETS`, or of (alpha, seed) pairs, in order."""
    if isinstance(instances, str):
        require_known("instance set", instances, SETS)
        task_alphas = task.instance_alphas if task.partition == "lda" else (task.alpha,)
        alphas = task_alphas if alpha is None else (checked_alpha(alpha),)
        return tuple(Instance(float(a), seed) for a in alphas for seed in SETS[instances])
    if alpha is not None:
        raise InvalidArgumentError(
            f"`alpha` must be None where `instances` lists pairs, got {alpha!r}"
        )
    if not instances:
        raise InvalidArgumentError("`instances` must hold at least one pair, got none")
    return tuple(_instance(pair) for pair in instances)


def _instance(pair: Sequence[float]) -> Instance:
    try:
        alpha, seed = pair
    except (TypeError, ValueError):
        alpha, seed = math.nan, -1
    checked_seed = as_integer(seed)
    if checked_seed is None or checked_seed < 0:
        raise InvalidArgumentError(
            f"`instances` must hold (alpha, seed) pairs with non-negative whole seeds, got {pair!r}"
        )
    return Instance(float(checked_alpha(alpha)), checked_seed)
