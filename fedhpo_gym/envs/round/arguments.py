"""The arguments of round environments: one record, checked when it is made.

`make_round_env` and `make_round_vector_env` are the entry points of all `FedHPO-DAC-*` ids. They
parse keyword arguments into `RoundArguments`, which checks everything that needs no training data;
`open` then creates the courses and the process of the episodes. Derived values are cached
properties, so that a wrong argument is reported before any data are loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final

from gymnasium.vector import AutoresetMode

from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.backends import OPTIONS, check_options, open_courses
from fedhpo_gym.backends.base import Courses
from fedhpo_gym.core.checks import check_fields
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.arguments import (
    check_own,
    chosen_options,
    parse_arguments,
    refuse_render_mode,
    with_signature_of,
)
from fedhpo_gym.envs.round.env import INFO_KEYS, RoundEnv, RoundVectorEnv
from fedhpo_gym.envs.round.process import RoundProcess
from fedhpo_gym.envs.round.settings import RATE, Controls, RoundSettings, measured_objectives
from fedhpo_gym.envs.vector import checked_keys, checked_number
from fedhpo_gym.evaluation.noise import Noise, check_noise
from fedhpo_gym.objectives import Objective, named_objective
from fedhpo_gym.space import Value
from fedhpo_gym.systems import NEEDS_SAMPLES, changed_system
from fedhpo_gym.tasks import Instance, Task, get_task, make_instances, round_system
from fedhpo_gym.tasks.privacy import is_private


@dataclass(frozen=True, kw_only=True)
class RoundArguments:
    """Arguments of `gymnasium.make` for `FedHPO-DAC-*` ids, besides reward form and rendering.

    Attributes:
        task: name in the catalogue.
        algorithm: name of the FL algorithm; the task's by default.
        alpha: the only concentration of the LDA partition; by default instances have 0.1, 0.5
            and 0.7.
        preprocessing: "label_encoded" (the paper's) or "standardized"; by default that of the id
            (`Task.round_preprocessing`).
        precision: number type of training: "float32" or, if the model supports it, "bfloat16".
        settings: fixed hyperparameters that are not in the search space.
        tune: settings of the algorithm that are searched, with their ranges, as for trials.
        system: parameters of the system model that differ from the task's; `compute` is "epochs"
            by default, and `model` chooses another system model, of `SYSTEM_MODELS`.
        backend: the training code: "raw", the engine of this package, "federatedscope", or
            "quadratic" where it belongs to the id.
        device: torch device of the engine of this package.
        source: source tree of FederatedScope; as for trials (`TrialArguments`).
        interpreter: Python that has its dependencies, likewise.
        time_limit_s: limit of a step of one of its courses in real seconds (3,600 by default).
        instances: "train" (seeds 100 to 131), "val" (500 to 515, to choose by), "test" (1000 to
            1015), "all" (train and test), or a list of (alpha, seed) pairs (`make_instances`).
        per_client: an action has a row for each client.
        rounds_per_step: rounds of a step; 5 by default, 1 in the per-client form.
        horizon: rounds of an episode.
        client_sample_rate: fraction of clients sampled per round, unless it is dynamic; the
            largest of the task by default.
        dynamic: names of the hyperparameters that actions set; by default all client-side ones
            and, unless `per_client`, the algorithm's server-side ones.
        configuration: values of the other hyperparameters; the middle of the range by default.
        history: number of evaluations in an observation.
        potential: "log_loss", "loss" or "accuracy".
        rewards: entries of the reward vector on `MO-` ids: of "improvement", "time", "upload",
            "download", "flops", "energy" and "fairness"; names of objectives of the model, such as
            "fairness_p10"; or custom ones by `Objective.of`. `info["objectives"]` has the values
            of the objectives.
        reward_scale: factor of the improvement.
        time_price: cost of the full budget, in the unit of rewards.
        divergence_penalty: cost of divergence in addition to the lowest potential.
        budget_s: simulated seconds of an episode; by default the largest possible cost of the
            horizon, or, with single devices, a time that it hardly ever exceeds.
        epsilon: privacy budget of an episode of a private algorithm, at a delta of 1e-5. The
            episode ends with the step that would exceed it, whose rounds are not released: they
            change, cost and spend nothing. Noise is rounded down to a grid of 64 values per octave.
            Observations of evaluations, and of updates before clipping, are not counted: a policy
            that reads them is not private.
        noise: noise of evaluations: any of `clients`, `bias`, `iid` and `epsilon`; see
            `fedhpo_gym.evaluation.noise.Noise`. None by default. All evaluations of an episode
            share an `epsilon`.
        report_moves: report in `info["move_product"]` the inner product of the moves of the global
            model in this step and in the one before. Agents with hyper-gradients need it.
    """

    task: str
    algorithm: str | None = None
    alpha: float | None = None
    preprocessing: str | None = None
    precision: str = "float32"
    settings: Mapping[str, float] | None = None
    tune: Mapping[str, Sequence[float]] | None = None
    system: Mapping[str, float | str] | None = None
    backend: str = "raw"
    device: str | None = None
    source: str | None = None
    interpreter: str | None = None
    time_limit_s: float | None = None
    instances: str | Sequence[Sequence[float]] = "train"
    per_client: bool = False
    rounds_per_step: int | None = None
    horizon: int = 100
    client_sample_rate: float | None = None
    dynamic: Sequence[str] | None = None
    configuration: Mapping[str, Value] | None = None
    history: int = 5
    potential: str = "log_loss"
    rewards: Sequence[str | Objective] = ("improvement", "time")
    reward_scale: float = 1.0
    time_price: float = 0.1
    divergence_penalty: float = 1.0
    budget_s: float | None = None
    epsilon: float | None = None
    noise: Mapping[str, float] | None = None
    report_moves: bool = False

    def __post_init__(self) -> None:
        """Check every field by computing all derived values that need no training data."""
        check_fields(self)
        object.__setattr__(self, "rewards", tuple(map(named_objective, self.rewards)))
        check_options(self.backend, self.backend_options)
        if self.per_client and self.variant.asynchronous:
            raise InvalidArgumentError(
                f"`per_client` must be False for {self.variant.algorithm!r}: an action has a row "
                "for every client of the next rounds, and it is unknown which clients will begin "
                "in them; use a synchronous algorithm"
            )
        if self.epsilon is not None and not is_private(self.variant.algorithm):
            private = sorted(name for name in ALGORITHMS if is_private(name))
            raise InvalidArgumentError(
                f"`epsilon` must be None for {self.variant.algorithm!r}, which protects nothing, "
                f"got {self.epsilon!r}; choose one of {private} as `algorithm`"
            )
        if self.epsilon is not None and self.per_client:
            raise InvalidArgumentError(
                f"`epsilon` must be None with per_client=True, got {self.epsilon!r}: observations "
                "show which clients take part, and clients may differ in noise, which no bound "
                "covers"
            )
        derived = (self.variant, self.chosen_instances, self.controls)
        del derived  # the properties stay cached
        measured_objectives(self.variant, self.rewards)
        self._round_settings(1.0 if self.budget_s is None else self.budget_s)

    @cached_property
    def variant(self) -> Task:
        """The task with what the arguments change."""
        task = get_task(self.task)
        task = task.variant(**chosen_options(self, ("algorithm", "preprocessing", "precision")))
        if self.settings:
            task = task.fix(self.settings)
        if self.tune:
            task = task.tune(self.tune)
        return task.variant(system=changed_system(round_system(task), self.system or {}))

    @cached_property
    def chosen_instances(self) -> tuple[Instance, ...]:
        return make_instances(self.variant, self.instances, self.alpha)

    @cached_property
    def controls(self) -> Controls:
        return Controls(
            self.variant,
            dynamic=self.dynamic,
            configuration=self.configuration,
            client_sample_rate=self.client_sample_rate,
            per_client=self.per_client,
        )

    def open(self, num_envs: int = 1) -> RoundProcess:
        """Return the process of `num_envs` episodes, which train together."""
        default = self.controls.default
        courses = open_courses(
            self.backend,
            self.variant,
            self.chosen_instances,
            num_envs,
            {name: value for name, value in default.items() if name != RATE},
            float(default[RATE]),
            horizon=self.horizon,
            local_metrics=self.per_client,
            report_moves=self.report_moves,
            **self.backend_options,
        )
        return self.process(courses, num_envs)

    @property
    def backend_options(self) -> dict[str, Any]:
        return chosen_options(self, OPTIONS)

    def process(self, courses: Courses, num_envs: int = 1) -> RoundProcess:
        """Return the process of `num_envs` episodes on courses of these instances."""
        system, budget_s = self.variant.system, self.budget_s
        if budget_s is None:
            samples = courses.most_samples if system.compute in NEEDS_SAMPLES else None
            budget_s = system.ample_s(self.controls.largest_work(self.horizon, samples))
        settings, instances = self._round_settings(budget_s), self.chosen_instances
        return RoundProcess(self.variant, self.controls, instances, settings, courses, num_envs)

    def _round_settings(self, budget_s: float) -> RoundSettings:
        default_rounds = 1 if self.per_client else 5
        rounds = default_rounds if self.rounds_per_step is None else self.rounds_per_step
        settings: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(RoundSettings)
        }
        settings.update(budget_s=budget_s, rounds_per_step=rounds, rewards=tuple(self.rewards))
        return RoundSettings(**{**settings, "noise": self.evaluation_noise})

    @cached_property
    def evaluation_noise(self) -> Noise | None:
        if self.noise is None:
            return None
        noise = Noise.of(self.noise)
        if noise.evaluations is not None:
            raise InvalidArgumentError(
                "`noise['evaluations']` is for trials, got "
                f"{noise.evaluations}; a course is evaluated at first and after every step, which "
                "`horizon` and `rounds_per_step` decide. Leave it out"
            )
        if noise.withholds and self.per_client:
            raise InvalidArgumentError(
                "`noise` must have neither 'epsilon' nor 'iid' with per_client=True, whose "
                f"observations contain the losses of single clients, got {dict(self.noise)}"
            )
        check_noise(noise, measured_objectives(self.variant, self.rewards), "raw")
        return noise


OF_FORM: Final = ("vector_reward", "render_mode")
"""Arguments of the form of an environment, not of its problem."""
OF_VECTORS: Final = ("autoreset_mode", "copy", "info_keys", "num_envs")
"""Arguments of the vector form only, for suggestions."""


@with_signature_of(RoundArguments)
def make_round_env(
    *, vector_reward: bool = False, render_mode: str | None = None, **arguments: Any
) -> RoundEnv:
    """Build a round environment; the entry point of every `FedHPO-DAC-*` id."""
    check_own(make_round_env, {"vector_reward": vector_reward, "render_mode": render_mode})
    process = parse_arguments(RoundArguments, arguments, OF_FORM).open()
    return RoundEnv(process, vector_reward=vector_reward, render_mode=render_mode)


@with_signature_of(RoundArguments)
def make_round_vector_env(
    num_envs: int = 1,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    info_keys: Sequence[str] = (),
    vector_reward: bool = False,
    render_mode: str | None = None,
    **arguments: Any,
) -> RoundVectorEnv:
    """Build N round environments as one; the vector entry point of every `FedHPO-DAC-*` id."""
    refuse_render_mode(render_mode)
    count = checked_number(num_envs)
    check_own(
        make_round_vector_env,
        {"copy": copy, "info_keys": info_keys, "vector_reward": vector_reward},
    )
    checked_keys(info_keys, INFO_KEYS)
    record = parse_arguments(RoundArguments, arguments, (*OF_FORM, *OF_VECTORS))
    return RoundVectorEnv(
        record.open(count),
        info_keys=info_keys,
        vector_reward=vector_reward,
        autoreset_mode=autoreset_mode,
        copy=copy,
    )
