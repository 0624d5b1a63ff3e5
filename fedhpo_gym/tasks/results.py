"""Problems of which somebody else's results are all there is: task files of the kind "results"."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from fedhpo_gym.core.checks import Range, check_fields, coerce, coerce_record
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.core.identity import IMPORTED
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks.federated import Rates, Rounds, Task, fidelity_grid
from fedhpo_gym.tasks.natural import RESULTS
from fedhpo_gym.tasks.work import BATCH_SIZE, EPOCHS

MOST_DIMENSIONS: Final = 500


@dataclass(frozen=True, kw_only=True)
class ResultsTask(Task):
    """A problem of imported results.

    Attributes:
        numbers_sha256: digest of the card of its numbers; those of another import are refused.
            "" in task files that are older than this entry, which take any.
    """

    numbers_sha256: str = ""


@dataclass(frozen=True)
class ResultsFile:
    """The description of results in a task file.

    Attributes:
        name: what ids call them: `FedHPO-Results-<name>-v0`.
        parameters: numbers of the model, all of which travel in a round.
        clients: of the federation.
        classes: how many are told apart; the loss of guessing follows.
        rounds: after which models were evaluated.
        space: hyperparameters, each with `values`, or with `low` and `high` where they are many,
            and `log` where the scale is logarithmic.
        numbers_sha256: see `ResultsTask`.
    """

    name: str
    parameters: Annotated[int, Range(1)]
    clients: Annotated[int, Range(1)]
    classes: Annotated[int, Range(2)]
    rounds: Rounds
    client_sample_rates: Rates
    seeds: Sequence[int]
    space: Mapping[str, Mapping[str, Any]]
    version: Annotated[int, Range(0)] = 0
    budget_s: Annotated[float, Range(0, ends="()")] = 21_600.0
    citation: str = "results of your own"
    numbers_sha256: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.name.isascii() or not self.name.isalnum():
            raise InvalidArgumentError(f"`name` must be letters and digits, got {self.name!r:.80}")
        if not 1 <= len(self.space) <= MOST_DIMENSIONS:
            raise InvalidArgumentError(
                f"`space` must hold 1 to {MOST_DIMENSIONS} hyperparameters, got {len(self.space)}"
            )

    @property
    def _space(self) -> SearchSpace:
        return SearchSpace(tuple(_dimension(*entry) for entry in self.space.items())).with_grid()

    @property
    def task(self) -> ResultsTask:
        """The problem."""
        return ResultsTask(
            model=RESULTS,
            dataset=self.name,
            num_features=1,
            num_classes=self.classes,
            num_parameters=self.parameters,
            client_space=self._space,
            fidelity_space=fidelity_grid(self.rounds, self.client_sample_rates),
            stored_rounds=tuple(self.rounds),
            budget_s=self.budget_s,
            citation=self.citation,
            version=self.version,
            seeds=tuple(self.seeds),
            num_clients=self.clients,
            partition="user",
            table=IMPORTED,
            reward="improvement",
            numbers_sha256=self.numbers_sha256,
        )


LOWEST: Final = {EPOCHS: 0, BATCH_SIZE: 1}
"""Hyperparameters that the clock counts -> the lowest value that it can count."""


def _dimension(name: str, entries: Mapping[str, Any]) -> Dimension:
    for entry in entries:
        require_known(f"entry of {name}", entry, ("values", "low", "high", "log"))
    values = coerce(f"values of {name}", entries.get("values", []), list)
    if name in LOWEST:
        for value in (*values, entries.get("low", math.inf)):
            coerce(f"space.{name}", value, Annotated[float, Range(LOWEST[name])])
    log = coerce("log", entries.get("log", False), bool)
    if values and all(isinstance(value, str) for value in values):
        return Dimension.of_categories(name, values)
    ends = [entries[entry] for entry in ("low", "high") if entry in entries]
    points = coerce(f"values of {name}", values or ends, Sequence[float])
    if not values and len(ends) < 2:
        raise InvalidArgumentError(f"`space` must give {name!r} `values`, or `low` and `high`")
    kind: Any = "int" if all(isinstance(value, int) for value in points) else "float"
    return Dimension(name, points[0], points[-1], kind, log=log, values=tuple(values) or None)


def results_problems(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what makes the problem of a task file, by `<name>-v<version>`."""
    del path
    task = coerce_record("a task file of results", ResultsFile, content).task
    return {task.key: lambda: task}
