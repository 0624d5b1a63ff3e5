"""The arguments of trial environments: one record, checked when it is made.

`make_trial_env` and `make_trial_vector_env` are the entry points of all `FedHPO-<Model>-<Dataset>`
ids. They parse keyword arguments into `TrialArguments`, whose `open` opens the backend and returns
the setup of the episodes. Single environments get their budget and scalar reward from wrappers; the
vector form computes the same inside `TrialVectorEnv`, because wrappers would need a call per
environment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from fedhpo_gym.backends import (
    OPTIONS,
    STORED,
    Backend,
    check_options,
    default_backend,
    make_backend,
)
from fedhpo_gym.core.checks import check_fields, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.identity import IMPORTED
from fedhpo_gym.envs.arguments import (
    check_own,
    chosen_options,
    parse_arguments,
    refuse_render_mode,
    with_signature_of,
)
from fedhpo_gym.envs.trial.env import TrialEnv, TrialVectorEnv
from fedhpo_gym.envs.trial.instances import open_instances
from fedhpo_gym.envs.trial.ledger import constant_costs
from fedhpo_gym.envs.trial.setup import DEFAULT_OBJECTIVES, LIVE_OBJECTIVES, TrialSetup
from fedhpo_gym.envs.vector import checked_number
from fedhpo_gym.evaluation.noise import DEFAULT_EVALUATIONS, Noise
from fedhpo_gym.objectives import Objective
from fedhpo_gym.objectives.performance import COST_NAMES
from fedhpo_gym.space import Value
from fedhpo_gym.systems import NEEDS_SAMPLES, changed_system
from fedhpo_gym.tasks import REWARDS, Task, get_task
from fedhpo_gym.tasks.privacy import is_private
from fedhpo_gym.wrappers import BudgetTermination, IncumbentReward, ScalarizePenalty
from fedhpo_gym.wrappers.budget import Budget
from fedhpo_gym.wrappers.rewards import IncumbentValue, Penalty, check_reward


@dataclass(frozen=True, kw_only=True)
class TrialArguments:
    """Arguments of `gymnasium.make` for `FedHPO-<Model>-<Dataset>` ids, besides rendering.

    Attributes:
        task: name in the catalogue.
        backend: "tabular", "surrogate", "raw" or "federatedscope"; None for the first of table,
            surrogate and pool that is stored.
        algorithm: name of the FL algorithm; the task's by default.
        alpha: concentration of the LDA partition; the task's by default.
        preprocessing: "label_encoded" (the paper's) or "standardized"; the task's by default.
        precision: number type of training: "float32" or, if the model supports it, "bfloat16". By
            default float32 for backends that train, and the task's for stored numbers.
        table: "fedhpo-bench" for a table that FedHPO-Bench published, after `fedhpo-gym import`;
            by default "fedhpo-gym", the numbers of this package.
        settings: fixed hyperparameters that are not in the search space, such as `epsilon` of
            NbAFL.
        tune: settings of the algorithm that are part of the action, with the lowest and the
            highest value: {"epsilon": [1, 100]}. With stored numbers only stored values are legal;
            "raw" trains any value.
        seed: evaluate one seed; None averages over the task's seeds.
        device: torch device of the raw backend.
        source: source tree of FederatedScope, for backend="federatedscope"; by default that of the
            folder that the environment variable `FEDHPO_GYM_FEDERATEDSCOPE` names.
        interpreter: Python that has FederatedScope's dependencies; by default that of the same
            folder. It must be given with a `source`.
        time_limit_s: limit of the rounds of a trial of one of its courses in real seconds (3,600
            by default).
        own_data: entries `data.*` of its configuration by which it loads other data; by default it
            trains on the federation of the task.
        system: parameters of the system model that differ from the task's; `model` chooses
            another system model, of `SYSTEM_MODELS`. `compute` may be "constant" or "epochs", or
            any rule if `samples_per_client` is given.
        objectives: names of the objectives, or custom ones by `Objective.of`; the first ranks
            trials. By default "val_loss", "fairness_std" and "epsilon"; on `MO-` ids of version 1
            "val_loss", "fairness_p10", "time_s" and, for private algorithms, "epsilon". Defaults
            that a surrogate does not support are left out (`fedhpo_gym.stored.surrogate`), and
            "fairness_std" or "fairness_jain" replaces "fairness_p10". An objective that you name
            and the backend does not support is an error.
        constraints: by objective, a limit, or `{"limit": limit, "weight": weight}`. The incumbent
            is the best trial that satisfies all limits. The weight, from 1e-6 to 1e6 and 1 by
            default, is the cost of exceeding a limit: in rewards of the incumbent while it violates
            a limit (`IncumbentReward`), and in the score of every trial (`ScalarizePenalty`).
        fidelity: values of fixed fidelity dimensions.
        grid: allow only the grid of the task's tables.
        freeze_thaw: more rounds of a configuration already tried cost only the difference.
        reward_transform: how objectives without a worst bound become scores: "clip" clips them,
            "squash" keeps their order (`fedhpo_gym.objectives.base`).
        budget_s: simulated seconds; the task's budget if no budget is given.
        budget_rounds: communication rounds.
        budget_trials: number of trials.
        max_trials: trials after which an episode ends in any case, because freeze-thaw can make
            repetitions free. By default `budget_trials`, and 100,000 if that is not given
            (`BudgetTermination`).
        vector_reward: return the reward as a vector.
        instances: "train" or "test": each reset draws one of the variants (alpha, preprocessing)
            and seeds with stored numbers; or a list of mappings such as {"alpha": 0.1, "seed": 2}
            (`envs.trial.instances.open_instances`).
        reward: "improvement" of the incumbent, "anytime", which weights it by the remaining time,
            "score" of the trial, "incumbent" or "regret", which needs a known optimum; the task's
            by default (`IncumbentReward`).
        reward_discount: discount of the improvement, in (0, 1].
        reward_per_cost: divide an improvement by the simulated time of its trial.
        noise: noise of evaluations: any of `clients`, `bias`, `iid`, `epsilon` and `evaluations`;
            see `fedhpo_gym.evaluation.noise.Noise`. None by default. Trials share an `epsilon`,
            and an episode ends when it is spent.
    """

    task: str
    backend: str | None = None
    algorithm: str | None = None
    alpha: float | None = None
    preprocessing: str | None = None
    precision: str | None = None
    table: str | None = None
    settings: Mapping[str, float] | None = None
    tune: Mapping[str, Sequence[float]] | None = None
    seed: int | None = None
    device: str | None = None
    source: str | None = None
    interpreter: str | None = None
    time_limit_s: float | None = None
    own_data: Mapping[str, Any] | None = None
    system: Mapping[str, float | str] | None = None
    objectives: Sequence[str | Objective] | None = None
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
    instances: str | Sequence[Mapping[str, float | str]] | None = None
    reward: str | None = None
    reward_discount: float = 1.0
    reward_per_cost: bool = False
    noise: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        """Check the type of every field, and rules between fields."""
        check_fields(self)
        self._check_reward()
        self._check_instances()
        self.evaluation_noise  # noqa: B018 - wrong noise is an error now
        check_options(self.backend_name, self.backend_options)
        system = self.variant.system
        if (rule := system.compute) in NEEDS_SAMPLES and not system.samples_per_client:
            raise InvalidArgumentError(
                "`system['compute']` must be 'constant' or 'epochs' for trials, whose cost cannot "
                f"depend on the samples of clients, got {rule!r}; set `samples_per_client`, or use "
                "FedHPO-DAC-* ids, which support all rules"
            )

    def _check_reward(self) -> None:
        arguments = self.reward, self.reward_discount, self.reward_per_cost
        if self.vector_reward:
            if arguments != (None, 1.0, False):
                raise InvalidArgumentError(
                    "`reward` must not be given where the reward is a vector, got "
                    f"{short_repr(self.reward)}; use the id without MO-"
                )
        else:
            check_reward(self.reward_kind, *arguments[1:], known=REWARDS)

    def _check_instances(self) -> None:
        if self.instances is None:
            return
        if self.seed is not None:
            raise InvalidArgumentError(
                f"`seed` must be None where `instances` draws it, got {short_repr(self.seed)}; "
                "name it in a list of instances"
            )
        if self.backend_name not in STORED:
            raise InvalidArgumentError(
                "`instances` of trials are variants with stored numbers: `backend` must be one of "
                f"{sorted(STORED)}, got {self.backend_name!r}; FedHPO-DAC-* ids train instances"
            )
        if not isinstance(self.instances, str) and (self.alpha, self.preprocessing) != (None, None):
            raise InvalidArgumentError(
                "`alpha` and `preprocessing` must be None where `instances` lists them, got "
                f"{short_repr((self.alpha, self.preprocessing))}"
            )

    @property
    def backend_name(self) -> str:
        return default_backend(self.variant) if self.backend is None else self.backend

    @property
    def backend_options(self) -> dict[str, Any]:
        return chosen_options(self, OPTIONS)

    @property
    def chosen_objectives(self) -> tuple[str | Objective, ...]:
        """The objectives of the argument, else the defaults of the id."""
        if self.objectives is not None:
            return tuple(self.objectives)
        as_published = self.variant.version == 0 and self.variant.table != IMPORTED
        if not self.vector_reward or as_published:
            return DEFAULT_OBJECTIVES
        protects = is_private(self.variant.algorithm)
        return (*LIVE_OBJECTIVES, "epsilon") if protects else LIVE_OBJECTIVES

    @property
    def reward_kind(self) -> str:
        """The kind of scalar reward: that of the argument, else the default of the task."""
        return get_task(self.task).reward if self.reward is None else self.reward

    @cached_property
    def variant(self) -> Task:
        task = get_task(self.task)
        trains = self.backend is not None and self.backend not in STORED
        trained = {"precision": "float32"} if trains else {}
        task = task.variant(**{**trained, **chosen_options(self, task.options)})
        if self.settings:
            task = task.fix(self.settings)
        if self.tune:
            task = task.tune(self.tune)
        return task.variant(system=changed_system(task.system, self.system or {}))

    @cached_property
    def evaluation_noise(self) -> Noise | None:
        """The noise of evaluations, and how many of them share an epsilon."""
        if self.noise is None:
            return None
        noise = Noise.of(self.noise)
        if not noise.private or noise.evaluations is not None:
            return noise
        limits = [n for n in (self.budget_trials, self.max_trials) if n is not None]
        return replace(noise, evaluations=min(limits, default=DEFAULT_EVALUATIONS))

    @property
    def budgets(self) -> dict[str, float | int | None]:
        """The budgets; the task's if none is given."""
        names = ("budget_s", "budget_rounds", "budget_trials")
        arguments: dict[str, Any] = {name: getattr(self, name) for name in names}
        if all(value is None for value in arguments.values()):
            arguments["budget_s"] = self.variant.budget_s
        max_trials = self.max_trials
        if self.evaluation_noise is not None and self.evaluation_noise.evaluations is not None:
            # More trials would spend more than epsilon.
            limits = (max_trials, self.budget_trials, self.evaluation_noise.evaluations)
            max_trials = min(limit for limit in limits if limit is not None)
        return {**arguments, "max_trials": max_trials}

    @property
    def incumbent_reward(self) -> dict[str, Any]:
        return {
            "kind": self.reward_kind,
            "discount": self.reward_discount,
            "per_cost": self.reward_per_cost,
            "budget_s": self.budget_s,
        }

    def open(self) -> TrialSetup:
        """Open the backend, and return the setup of the episodes."""
        name, options, instances = self.backend_name, self.backend_options, tuple[Backend, ...]()
        if self.instances is None:
            backend = make_backend(name, self.variant, seed=self.seed, **options)
        else:
            fixed = chosen_options(self, ("alpha", "preprocessing"))
            instances = open_instances(self.variant, name, self.instances, fixed)
            backend = instances[0]
        setup = TrialSetup.of(
            backend.task,
            backend,
            objectives=self.chosen_objectives,
            fidelity=self.fidelity,
            transform=self.reward_transform,
            grid=self.grid,
            freeze_thaw=self.freeze_thaw,
            instances=instances,
            noise=self.evaluation_noise,
            constraints=self.constraints,
            leave_out=self.objectives is None,
        )
        if self.objectives is not None:
            _refuse_constants(setup)
        return setup


def _refuse_constants(setup: TrialSetup) -> None:
    """Reject cost objectives that have the same value for all actions."""
    names = constant_costs(setup) if len(setup.objective_names) > 1 else ()
    for name in names:
        if name in ("flops", *COST_NAMES):
            raise InvalidArgumentError(
                f"`objectives` must be able to vary, but {name!r} is the same for all actions "
                f"where `fidelity` is {short_repr(dict(setup.fixed))} and `system['compute']` is "
                f"{setup.task.system.compute!r}; leave the fidelity free, choose "
                "system={'compute': 'epochs'}, or leave the objective out"
            )


@with_signature_of(TrialArguments)
def make_trial_env(*, render_mode: str | None = None, **arguments: Any) -> gym.Env[Any, Any]:
    """Build a trial environment with its budget and, unless `vector_reward`, a scalar reward."""
    check_own(make_trial_env, {"render_mode": render_mode})
    record = parse_arguments(TrialArguments, arguments, ("render_mode",))
    env: gym.Env[Any, Any] = TrialEnv(record.open(), render_mode=render_mode)
    env = BudgetTermination(env, **record.budgets)  # type: ignore[arg-type]
    if record.vector_reward:
        return env
    env = ScalarizePenalty(env, constraints=record.constraints)
    if record.reward_kind == "score":
        return env
    return IncumbentReward(env, **record.incumbent_reward)


@with_signature_of(TrialArguments)
def make_trial_vector_env(
    num_envs: int = 1,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    info_keys: Sequence[str] = (),
    render_mode: str | None = None,
    **arguments: Any,
) -> TrialVectorEnv:
    """Build N trial environments as one; the vector entry point of every `FedHPO-*` id."""
    refuse_render_mode(render_mode)
    checked_number(num_envs)
    record = parse_arguments(TrialArguments, arguments, ("render_mode",))
    setup, reward = record.open(), not record.vector_reward
    return TrialVectorEnv(
        num_envs,
        setup,
        Budget(**record.budgets),  # type: ignore[arg-type]
        Penalty(setup.objectives, record.constraints) if reward else None,
        IncumbentValue(setup, **record.incumbent_reward)
        if reward and record.reward_kind != "score"
        else None,
        autoreset_mode=autoreset_mode,
        copy=copy,
        info_keys=info_keys,
    )
