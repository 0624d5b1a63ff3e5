"""The checkers of Gymnasium, stable-baselines3, MO-Gymnasium and PettingZoo, on any id.

`fedhpo-gym check ID ...` prints their verdicts. Environments are made as cheap as their arguments
allow, so that checking a large network takes minutes.
"""

import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.passive_env_checker import env_render_passive_checker

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, MissingDependencyError
from fedhpo_gym.evaluation.records import FIDELITIES
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.tasks.meta import MANY_TASKS
from fedhpo_gym.testing.task import HARMLESS, OUT_OF_DATE, WRAPPED

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

LARGE = 100_000
"""Parameters from which a model is trained with one local epoch in large batches."""

STEPS = 2
"""Steps of an episode: the checkers see it end."""


@dataclass(frozen=True)
class CheckVerdict:
    """The outcome of one checker of `CHECKS` on an id; `words` say why it failed or was skipped."""

    env_id: str
    check: str
    outcome: str
    words: str
    cpu_s: float


Make = Callable[..., gym.Env[Any, Any]]


def check_id(env_id: str) -> Iterator[CheckVerdict]:
    """Yield the verdict of every checker of an id; one without its library or data is skipped."""
    task = None if env_id.removeprefix("MO-") in MANY_TASKS else get_task(env_id)
    if task is not None and env_id not in ids(task):
        raise InvalidArgumentError(f"an id of {task.name} must be one of {ids(task)}, got {env_id}")
    make = partial(gym.make, env_id, disable_env_checker=True)
    arguments: Mapping[str, Any] | None = None
    for name, check in CHECKS.items():
        if not _concerns(name, env_id, task):
            continue
        began, outcome, reason = time.process_time(), PASSED, ""
        try:
            if arguments is None:
                arguments = cheap_arguments(task, env_id) if task else {"trials": STEPS}
            with _strict(env_id), redirect_stdout(io.StringIO()):
                check(partial(make, **arguments))
        except (MissingDataError, MissingDependencyError, ModuleNotFoundError) as error:
            is_ours = (getattr(error, "name", None) or "").split(".")[0] == "fedhpo_gym"
            outcome, reason = FAILED if is_ours else SKIPPED, str(error)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the verdict
            outcome, reason = FAILED, f"{type(error).__name__}: {error}"
        yield CheckVerdict(env_id, name, outcome, reason, time.process_time() - began)


def ids(task: Task) -> tuple[str, ...]:
    """Return all ids of a task."""
    return tuple(f"{mo}{name}" for name in (task.id, task.round_id) for mo in ("", "MO-"))


def cheap_arguments(task: Task, env_id: str) -> dict[str, Any]:
    """Return arguments that make the steps of an id's environment cheap.

    Episodes have two steps; nothing is downloaded, and large models train one local epoch.
    """
    fixed = {name: 0.0 for name, _ in task.model_settings if name == "pretrained"}
    settings = {"settings": fixed} if fixed else {}
    if env_id.endswith(task.id):
        if not fixed and _has_numbers(env_id):
            return {"budget_trials": STEPS}
        fidelity = {name: task.fidelity_space[name].low for name in FIDELITIES}
        trials = {"seed": task.seeds[0], "fidelity": fidelity, "budget_trials": STEPS}
        return {"backend": "raw", **trials, **settings}
    large = task.num_parameters > LARGE
    return {
        "rounds_per_step": 1,
        "horizon": STEPS,
        "client_sample_rate": task.fidelity_space["client_sample_rate"].low,
        "instances": [[task.alpha, seed] for seed in ((100,) if large else (100, 101))],
        **(_held_still(task) if large else {}),
        **settings,
    }


def _held_still(task: Task) -> dict[str, Any]:
    space = task.client_space
    cheapest = {"step_size": space["step_size"].low}
    if "batch_size" in space.names:
        cheapest["batch_size"] = space["batch_size"].high
    fixed = (*cheapest, *task.architecture)
    client_names = [
        d.name for d in task.space.dimensions if d.scope == "client"
    ]  # clients act alone, too
    free = [name for name in client_names if name not in fixed]
    return {"configuration": cheapest, "dynamic": free}


def _has_numbers(env_id: str) -> bool:
    try:
        gym.make(env_id).close()
    except MissingDataError:
        return False
    return True


def _concerns(check: str, env_id: str, task: Task | None) -> bool:
    if check == "pettingzoo":
        return task is not None and env_id == task.round_id
    vector = env_id.startswith("MO-")
    return check == "gymnasium" or vector == (check == "mo-gymnasium")


@contextmanager
def _strict(env_id: str) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for message in (OUT_OF_DATE, *(HARMLESS if env_id.startswith("MO-") else (WRAPPED,))):
            warnings.filterwarnings("ignore", message)
        yield


def _gymnasium(make: Make) -> None:
    env = make(render_mode="rgb_array")
    check_env(env, skip_render_check=True)
    env_render_passive_checker(env)
    env.close()


def _stable_baselines3(make: Make) -> None:
    from stable_baselines3.common.env_checker import check_env as check

    env = make()
    check(env, skip_render_check=True)
    env.close()


def _mo_gymnasium(make: Make) -> None:
    """Repeat the tests of MO-Gymnasium's own environments, and compare two twins."""
    from mo_gymnasium.wrappers.wrappers import LinearReward, MORecordEpisodeStatistics

    env, twin = make(), make()
    space = env.get_wrapper_attr("reward_space")
    _demand(isinstance(space, gym.spaces.Box) and space.is_bounded(), "rewards have no bounds")
    weights = np.linspace(1.0, 0.5, space.shape[0])
    linear = _OwnWeights(LinearReward(env, weight=weights))
    check_env(linear, skip_render_check=True)
    recorded: gym.Env[Any, Any] = MORecordEpisodeStatistics(twin)
    for wrapped in (linear, recorded):
        wrapped.reset(seed=0)
    linear.action_space.seed(0)
    total, over = np.zeros(space.shape), False
    while not over:
        action = linear.action_space.sample()
        reward = linear.step(action)[1]
        outcome: Any = recorded.step(action)
        _, scores, terminated, truncated, info = outcome
        _demand(scores in space, f"reward {scores} is outside {space}")
        expected = float(np.dot(scores, weights))
        _demand(np.isclose(expected, reward), f"{scores} weighted is {expected}, got {reward}")
        total, over = total + scores, terminated or truncated
    _demand(np.allclose(info["episode"]["r"], total), "the episode is not the sum of its rewards")
    env.close()
    twin.close()


class _OwnWeights(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """`LinearReward` shows its own array of weights in every info, which `check_env` refuses."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action: Any) -> Any:
        *outcome, info = self.env.step(action)
        return *outcome, {**info, "reward_weights": info["reward_weights"].copy()}


def _pettingzoo(make: Make) -> None:
    with warnings.catch_warnings():  # its tests import a game in a way that it deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        from pettingzoo.test import parallel_api_test, parallel_seed_test

    assert isinstance(make, partial)  # noqa: S101 - our own callers
    parallel = partial(fedhpo_gym.parallel_env, *make.args, **make.keywords)
    parallel_api_test(parallel(), num_cycles=STEPS)
    parallel_seed_test(parallel, num_cycles=STEPS)


def _demand(holds: object, message: str) -> None:
    if not holds:
        raise AssertionError(message)


CHECKS: Mapping[str, Callable[[Make], None]] = {
    "gymnasium": _gymnasium,
    "stable-baselines3": _stable_baselines3,
    "mo-gymnasium": _mo_gymnasium,
    "pettingzoo": _pettingzoo,
}
"""By the name of the library."""
