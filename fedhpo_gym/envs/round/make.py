"""The ids of round environments: what `gym.make` builds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fedhpo_gym.envs.arguments import changed_system as variant_system
from fedhpo_gym.envs.round.controls import RATE, Controls
from fedhpo_gym.envs.round.env import RoundEnv
from fedhpo_gym.envs.round.process import RoundProcess, RoundSettings
from fedhpo_gym.errors import InvalidArgumentError, MissingDependencyError, suggest
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import get_task, make_instances


def make_round_env(**arguments: Any) -> RoundEnv:
    """Build a round environment; the entry point of every `FedHPO-DAC-*` id.

    See `build_round_process` for the arguments, of which `number` is 1.

    Raises:
        InvalidArgumentError: an argument is unknown or out of its range.
        UnknownNameError: a name does not exist.
        MissingDataError: the data set is not on this machine; says what to do.
        MissingDependencyError: torch is not installed.
    """
    vector_reward = arguments.pop("vector_reward", False)
    render_mode = arguments.pop("render_mode", None)
    check_names(arguments, ("vector_reward", "render_mode"))
    process, fingerprint = build_round_process(**arguments)
    return RoundEnv(process, fingerprint, vector_reward=vector_reward, render_mode=render_mode)


def check_names(arguments: Mapping[str, Any], others: Sequence[str] = ()) -> None:
    """Refuse arguments that `build_round_process` does not know.

    Raises:
        InvalidArgumentError: an argument is unknown.
    """
    known = {*inspect.signature(build_round_process).parameters, *others} - {"number"}
    for name in arguments:
        if name not in known:
            raise InvalidArgumentError(f"unknown argument {name!r}.{suggest(name, known)}")


def build_round_process(
    *,
    task: str,
    algorithm: str = "fedavg",
    alpha: float | None = None,
    preprocessing: str = "label_encoded",
    settings: Mapping[str, float] | None = None,
    system: Mapping[str, Any] | None = None,
    device: str | None = None,
    instances: str | Sequence[Sequence[float]] = "train",
    per_client: bool = False,
    rounds_per_step: int | None = None,
    horizon: int = 100,
    client_sample_rate: float | None = None,
    dynamic: Sequence[str] | None = None,
    configuration: Mapping[str, Value] | None = None,
    history: int = 5,
    potential: str = "log_loss",
    rewards: Sequence[str] = ("improvement", "time"),
    reward_scale: float = 1.0,
    time_price: float = 0.1,
    divergence_penalty: float = 1.0,
    budget_s: float | None = None,
    number: int = 1,
) -> tuple[RoundProcess, str]:
    """Build the decision process of round environments, and the fingerprint of its numbers.

    Args:
        task: name in the catalogue.
        algorithm: name of the FL algorithm.
        alpha: the only concentration of the LDA partition; by default instances have 0.1, 0.5
            and 0.7.
        preprocessing: "label_encoded" (the paper's) or "standardized".
        settings: hyperparameters fixed that are not in the search space.
        system: parameters of the system model that differ from the task's.
        device: torch device.
        instances: "train" (seeds 100 to 131), "test" (1000 to 1015), "all", or a list of
            (alpha, seed) pairs.
        per_client: every client has its own row in an action.
        rounds_per_step: k; 5 by default, 1 in the per-client form.
        horizon: rounds of an episode.
        client_sample_rate: fraction of clients sampled per round, unless it is dynamic; the
            largest of the task by default.
        dynamic: names of the hyperparameters that actions set; by default all client-side ones
            and, unless `per_client`, the algorithm's server-side ones.
        configuration: values of the others; the middle of their ranges by default.
        history: evaluations shown.
        potential: "log_loss", "loss" or "accuracy".
        rewards: entries of the reward vector on `MO-` ids.
        reward_scale: factor of the improvement.
        time_price: what the whole budget costs, in the unit of rewards.
        divergence_penalty: what divergence costs besides the lowest potential.
        budget_s: simulated seconds of an episode; by default as many as the horizon can cost.
        number: episodes that run together.

    Raises:
        InvalidArgumentError: an argument is out of its range.
        UnknownNameError: a name does not exist.
        MissingDataError: the data set is not on this machine; says what to do.
        MissingDependencyError: torch is not installed.
    """
    try:
        from fedhpo_gym.courses.running import RunningCourses, architecture, fingerprint
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            "round environments really train and need torch; install it with "
            "`pip install 'fedhpo_gym[torch]'`"
        ) from error
    variant = get_task(task).variant(algorithm=algorithm, preprocessing=preprocessing)
    chosen = make_instances(variant, instances, alpha)
    if settings:
        variant = variant.fix(settings)
    if system:
        variant = variant.variant(system=variant_system(variant.system, system))
    controls = Controls(
        variant,
        dynamic=dynamic,
        configuration=configuration,
        client_sample_rate=client_sample_rate,
        per_client=per_client,
        frozen=architecture(variant),
    )
    if rounds_per_step is None:
        rounds_per_step = 1 if per_client else 5
    if budget_s is None:
        budget_s = controls.largest_cost(max(horizon, 1)).time_s
    numbers = RoundSettings(
        rounds_per_step=rounds_per_step,
        horizon=horizon,
        budget_s=budget_s,
        history=history,
        potential=potential,
        rewards=tuple(rewards),
        reward_scale=reward_scale,
        time_price=time_price,
        divergence_penalty=divergence_penalty,
    )
    courses = RunningCourses(
        variant,
        chosen,
        number,
        {name: value for name, value in controls.default.items() if name != RATE},
        float(controls.default[RATE]),
        device=device or "cpu",
        horizon=horizon,
        local_metrics=per_client,
    )
    process = RoundProcess(variant, controls, chosen, numbers, courses, number)
    return process, fingerprint(variant)
