"""The backend of a function of the user: f(configuration, fidelity) -> metrics.

`fedhpo_gym.register_function` makes a `FunctionTask` of a function, and `make_backend` opens
`FunctionBackend` for it. The function may train with any framework; the package only checks what it
returns. Answers are cached, because the same query must have the same answer in every trial.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.base import Backend
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Range, coerce_reals, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.core.plugins import qualified_source
from fedhpo_gym.evaluation.records import (
    ENTRIES,
    METRICS,
    SPLITS,
    Entries,
    Evaluation,
    Evaluations,
    Fidelity,
)
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.tasks import Task
from fedhpo_gym.tasks.federated import Rates, Rounds, fidelity_grid

KEYS = tuple(f"{split}_{metric}" for split in SPLITS for metric in METRICS)
"""Metrics that a function may return, such as "val_loss"."""
MOST_KEPT = 10_000
"""Answers in the cache, so that the same query has the same answer."""


@dataclass(frozen=True, kw_only=True)
class FunctionTask(Task):
    """A task whose trials a function evaluates; it has no data here.

    Attributes:
        function: takes a configuration and a fidelity, mappings from names, and perhaps a `seed`;
            returns a number for each of `told`, or one per client.
        told: the metrics that it returns, of `KEYS`; "val_loss" is one of them.
        by_client: whether it returns metrics of every client.
    """

    function: Callable[..., Any] = field(compare=False)
    told: tuple[str, ...]
    by_client: bool

    @classmethod
    def of(
        cls,
        name: str,
        function: Callable[..., Any],
        space: SearchSpace,
        *,
        rounds: Rounds,
        rates: Rates = (1.0,),
        told: Sequence[str] = ("val_loss",),
        clients: Annotated[int, Range(1)] = 1,
        by_client: bool = False,
        num_parameters: Annotated[int, Range(1)] = 1_000,
        num_classes: Annotated[int, Range(2)] = 2,
        budget_s: Annotated[float, Range(0, ends="(]")] = 86_400.0,
        seeds: Sequence[Annotated[int, Range(0)]] = (1,),
        version: Annotated[int, Range(1)] = 1,
    ) -> "FunctionTask":
        """Return the task of a function; `name` is `<Method>-<Problem>`."""
        if not len({*seeds}) == len(seeds) > 0:
            raise InvalidArgumentError(
                f"`seeds` must be different numbers, at least one, got {short_repr(seeds)}"
            )
        if not len(space):
            raise InvalidArgumentError("`space` must have a dimension, got none")
        if not hasattr(function, "__qualname__"):
            raise InvalidArgumentError(
                f"`function` must be a function with a name, got {short_repr(function)}; write a "
                "`def`"
            )
        model, dash, problem = name.partition("-")
        if not (dash and model.isalnum() and problem.replace("-", "").isalnum()):
            raise InvalidArgumentError(
                f"`name` must be two words with '-' between, such as 'Flower-Digits', got {name!r}"
            )
        for key in told:
            require_known("metric", key, KEYS)
        if "val_loss" not in told:
            raise InvalidArgumentError(
                f"`told` must hold 'val_loss', which ranks trials, got {short_repr(told)}"
            )
        return cls(
            model=model,
            dataset=problem,
            num_features=1,
            num_classes=num_classes,
            num_parameters=num_parameters,
            client_space=space.with_grid(),
            fidelity_space=fidelity_grid(rounds, rates),
            stored_rounds=tuple(rounds),
            num_clients=clients,
            budget_s=budget_s,
            partition="user",
            reward="improvement",
            unstored="function",
            citation=f"function {function.__module__}.{function.__qualname__}",
            tags=frozenset({"own"}),
            function=function,
            told=tuple(told),
            by_client=by_client,
            seeds=tuple(seeds),
            version=version,
        )


class FunctionBackend(Backend):
    """Evaluates the function of a task, and caches its answers."""

    name = "function"

    def __init__(self, task: Task, seed: int | None = None) -> None:
        if not isinstance(task, FunctionTask):
            raise InvalidArgumentError(
                f"`backend` must not be 'function' for {task.name}, which has none; "
                "`fedhpo_gym.register_function` makes a problem of one"
            )
        super().__init__(task, seed, task.space, task.fidelity_space)
        self._own = task
        self._seeded = "seed" in inspect.signature(task.function).parameters
        self._kept: dict[tuple[object, ...], Floats] = {}

    @property
    def fingerprint(self) -> str:
        """Digest of the source of the function and of the spaces of its arguments.

        Functions that it calls are not included: raise `version` when they change.
        """
        task = self._own
        spaces = task.space.to_dict(), task.fidelity_space.to_dict()
        text = repr((task.id, qualified_source(task.function), *spaces))
        return f"function-sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @cached_property
    def lacks(self) -> Mapping[str, str]:
        function = self._own.citation
        reasons = {
            key: f"the {function} does not return {key}" for key in {*KEYS} - {*self._own.told}
        }
        reasons |= dict.fromkeys(("samples", "privacy"), f"the {function} does not return them")
        if not self._own.by_client:
            reasons["clients"] = f"the {function} returns no metrics of clients"
        return reasons

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        return Evaluations.stack([self._answer(*query) for query in self.queries(columns)])

    def _answer(self, configuration: Mapping[str, Value], fidelity: Fidelity) -> Evaluation:
        metrics = np.stack([self._told(configuration, fidelity, seed) for seed in self.seeds])
        # `metrics` is (seeds, clients, splits, metrics).
        loss = metrics[:, :, SPLITS.index("val"), METRICS.index("loss")]
        diverged = np.asarray(~np.isfinite(loss).all(axis=1))
        worst = np.array([metric.worst for metric in self._own.metrics])
        best = np.where(np.isfinite(metrics), metrics, worst)  # a score needs finite values
        return Evaluation(
            best=best,
            current=best.copy(),
            num_samples=np.ones((len(self.seeds), self._own.num_clients, len(SPLITS)), np.int64),
            best_round=np.full(len(self.seeds), fidelity.round),
            diverged=diverged,
            seeds=self.seeds,
            fidelity=fidelity,
        )

    def _told(self, configuration: Mapping[str, Value], fidelity: Fidelity, seed: int) -> Floats:
        """Return the (clients, splits, metrics) of the function; NaN where it returns none."""
        key = (*configuration.items(), fidelity, seed)
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = self._called(configuration, fidelity, seed)
        return self._kept[key]

    def _called(self, configuration: Mapping[str, Value], fidelity: Fidelity, seed: int) -> Floats:
        task, seeded = self._own, {"seed": seed} if self._seeded else {}
        returned = task.function(dict(configuration), dict(vars(fidelity)), **seeded)
        found = returned if isinstance(returned, Mapping) else {"val_loss": returned}
        if {*found} != {*task.told}:
            raise InvalidArgumentError(
                f"the {task.citation} must return {sorted(task.told)}, as it was registered with, "
                f"got {sorted(map(str, found))}"
            )
        metrics = np.full((task.num_clients, len(SPLITS), len(METRICS)), np.nan)
        for name, value in found.items():
            values = coerce_reals(name, value)
            if values.shape not in ((), (task.num_clients,)):
                raise InvalidArgumentError(
                    f"the {task.citation} must return one {name!r}, or one of each of "
                    f"{task.num_clients} clients, got the shape {values.shape}"
                )
            split, _, metric = name.partition("_")
            checked, most = values[np.isfinite(values)], math.inf if metric == "loss" else 1.0
            if checked.size and not (checked.min() >= 0 and checked.max() <= most):
                raise InvalidArgumentError(
                    f"the {task.citation} must return {name!r} in [0, {most}], got "
                    f"{short_repr(values)}"
                )
            metrics[:, SPLITS.index(split), METRICS.index(metric)] = values
        return metrics
