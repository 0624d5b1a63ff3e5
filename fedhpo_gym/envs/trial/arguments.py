"""The arguments of trial environments: one record, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedhpo_gym.backends import Backend, default_backend, make_backend
from fedhpo_gym.envs.arguments import chosen_options
from fedhpo_gym.envs.trial.env import DEFAULT_OBJECTIVES
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.space import Value
from fedhpo_gym.systems import NEEDS_SAMPLES, changed_system
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.typed import check_fields


@dataclass(frozen=True, kw_only=True)
class TrialArguments:
    """What `gymnasium.make` takes for `FedHPO-<Model>-<Dataset>` ids, beside rendering.

    Attributes:
        task: name in the catalogue.
        backend: "tabular", "surrogate" or "raw"; None for the first of the former two that has
            numbers.
        algorithm: name of the FL algorithm; the task's by default.
        alpha: concentration of the LDA partition; the task's by default.
        preprocessing: "label_encoded" (the paper's) or "standardized"; the task's by default.
        settings: fixed hyperparameters that are not in the search space, such as `epsilon` of
            NbAFL.
        seed: answer for one seed; None averages over the task's seeds.
        device: torch device of the raw backend.
        system: parameters of the system model that differ from the task's; `model` chooses
            another kind of clock, of `SYSTEM_MODELS`. `compute` may be "constant" or "epochs", and
            anything where `samples_per_client` is given.
        objectives: names of the objectives; the first ranks trials.
        constraints: soft constraints of `ScalarizePenalty`.
        fidelity: fidelity dimensions that are fixed.
        grid: offer only the grid of the task's tables.
        freeze_thaw: more rounds of a configuration already tried cost only the difference.
        reward_transform: how objectives without a worst bound become scores: "clip" cuts them off,
            "squash" orders all of them; see `fedhpo_gym.objectives.transforms`.
        budget_s: simulated seconds; the task's budget if no budget is given.
        budget_rounds: communication rounds.
        budget_trials: number of trials.
        max_trials: trials after which an episode ends in any case: time alone may never pass, as
            when freeze-thaw makes a repetition free. By default `budget_trials`, and 100,000 if
            that is not given; see `BudgetTermination`.
        vector_reward: leave the reward a vector.

    Raises:
        InvalidArgumentError: an argument is out of its range.
        UnknownNameError: a name does not exist.
    """

    task: str
    backend: str | None = None
    algorithm: str | None = None
    alpha: float | None = None
    preprocessing: str | None = None
    settings: Mapping[str, float] | None = None
    seed: int | None = None
    device: str | None = None
    system: Mapping[str, float | str] | None = None
    objectives: Sequence[str] = DEFAULT_OBJECTIVES
    constraints: Mapping[str, float | Mapping[str, float]] | None = None
    fidelity: Mapping[str, Value] | None = None
    grid: bool = False
    freeze_thaw: bool = False
    reward_transform: str = "clip"
    budget_s: float | None = None
    budget_rounds: int | None = None
    budget_trials: int | None = None
    max_trials: int | None = None
    vector_reward: bool = False

    def __post_init__(self) -> None:
        """Check the type of every field, and what concerns several."""
        check_fields(self)
        if self.constraints and self.vector_reward:
            raise InvalidArgumentError("`constraints` need a scalar reward; use the id without MO-")
        if self.device is not None and self.backend != "raw":
            name = self.backend or default_backend(self.variant)
            raise InvalidArgumentError(f'`device` is for backend="raw" only, got backend={name!r}')
        system = self.variant.system
        if (rule := system.compute) in NEEDS_SAMPLES and not system.samples_per_client:
            raise InvalidArgumentError(
                "`system['compute']` must be 'constant' or 'epochs' for trials, whose cost is "
                f"known before anybody counts a client's samples, got {rule!r}; say how many with "
                "`samples_per_client`, or use FedHPO-DAC-* ids, which take all rules"
            )

    @cached_property
    def variant(self) -> Task:
        """The task with what the arguments change."""
        task = get_task(self.task)
        task = task.variant(**chosen_options(self, task.options))
        if self.settings:
            task = task.fix(self.settings)
        return task.variant(system=changed_system(task.system, self.system or {}))

    @property
    def budgets(self) -> dict[str, float | int | None]:
        """The budgets; the task's if none is given."""
        given = {
            "budget_s": self.budget_s,
            "budget_rounds": self.budget_rounds,
            "budget_trials": self.budget_trials,
        }
        if all(value is None for value in given.values()):
            given["budget_s"] = self.variant.budget_s
        return {**given, "max_trials": self.max_trials}

    def open_backend(self) -> Backend:
        """Open what answers.

        Raises:
            MissingDataError: it has nothing to answer from; says what to do.
        """
        name = default_backend(self.variant) if self.backend is None else self.backend
        options = {} if self.device is None else {"device": self.device}
        return make_backend(name, self.variant, seed=self.seed, **options)
