"""Bad calls, made from the signatures of public functions: one or two arguments do not belong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.random import Generator

from attacks.damage import ODD
from attacks.verdicts import Tally, judged, run_cases
from fedhpo_gym.agents import make_agent
from fedhpo_gym.backends import engine_courses  # noqa: F401 - loading torch takes more than a case may
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.leaf import Options
from fedhpo_gym.envs.round.arguments import RoundArguments
from fedhpo_gym.envs.trial.arguments import TrialArguments
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.systems import DeviceModel, SystemModel
from fedhpo_gym.tasks import get_task

TRIAL, ROUNDS = "FedHPO-LR-CreditG-v0", "FedHPO-DAC-LR-BreastCancer-v0"
MORE: tuple[Any, ...] = (
    2 + 3j, object(), b"x", np.nan, np.array([1.0, 2.0]), np.array(1j), np.zeros((3, 3)), ("a",),
    {"a": {"limit": "x"}}, {"epsilon": None}, ["val_loss", "val_loss"], {1: 2}, range(3), 5, 0.5,
    {"round": 10**9}, {"learning_rate": float("nan")}, print, gym.spaces.Box(-1, 1), -0.0, 2**31,
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A public call, and arguments with which it succeeds.

    Attributes:
        name: what is called.
        call: what takes them, by keyword.
        good: arguments that are always given.
        names: other arguments that it takes.
    """

    name: str
    call: Callable[..., Any]
    good: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def _names(call: Callable[..., Any], *without: str) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(call).parameters if name not in without)


def _made(env_id: str) -> Callable[..., None]:
    def make(**arguments: Any) -> None:
        with gym.make(env_id, disable_env_checker=True, **arguments) as env:
            env.reset(seed=0)
            env.step(env.unwrapped.action_space.sample() * 0)

    return make


def _made_vector(num_envs: Any = 2, **arguments: Any) -> None:
    envs = gym.make_vec(TRIAL, num_envs=num_envs, **arguments)
    envs.close()


@cache
def _env(env_id: str) -> Any:
    long = {"budget_trials": 10**6} if env_id == TRIAL else {"horizon": 10, "rounds_per_step": 1}
    return gym.make(env_id, disable_env_checker=True, **long)


def _step(env_id: str) -> Callable[[Any], None]:
    def step(action: Any) -> None:
        env = _env(env_id)
        env.reset(seed=0)
        env.step(action)

    return step


def _reset(seed: Any = 0, options: Any = None) -> None:
    _env(TRIAL).reset(seed=seed, options=options)


def _agent(name: Any = "random", seed: Any = 0) -> None:
    make_agent(name, _env(TRIAL), seed)


def _decode(action: Any) -> None:
    get_task("LR-CreditG").space.decode(action)


def _validate(configuration: Any) -> None:
    get_task("LR-CreditG").space.validate(configuration)


@cache
def targets() -> tuple[Target, ...]:
    """Return what is called; made when first asked for, since some of it opens environments."""
    task = get_task("LR-CreditG")
    box = {"name": "x", "low": 0.1, "high": 1.0, "kind": "float"}
    return (
        Target("gymnasium.make, trials", _made(TRIAL), {}, _names(TrialArguments, "task")),
        Target("gymnasium.make, rounds", _made(ROUNDS), {"horizon": 3, "rounds_per_step": 1},
               _names(RoundArguments, "task")),
        Target("gymnasium.make_vec", _made_vector, {},
               ("num_envs", "copy", "autoreset_mode", *_names(TrialArguments, "task"))),
        Target("step, trials", _step(TRIAL), {"action": np.zeros(1)}),
        Target("step, rounds", _step(ROUNDS), {"action": np.zeros(1)}),
        Target("reset", _reset, {}, ("seed", "options")),
        Target("make_agent", _agent, {}, ("name", "seed")),
        Target("get_task", get_task, {"name": "LR-CreditG"}),
        Target("Task.variant", task.variant, {}, ("algorithm", "alpha", "preprocessing", "seeds")),
        Target("Task.fix", task.fix, {"settings": {}}),
        Target("SystemModel", SystemModel, {}, _names(SystemModel)),
        Target("DeviceModel", DeviceModel, {}, _names(DeviceModel)),
        Target("Dimension", Dimension, box, _names(Dimension)),
        Target("SearchSpace", SearchSpace, {"dimensions": (Dimension(**box),)}),
        Target("SearchSpace.from_dict", SearchSpace.from_dict, {"content": task.space.to_dict()}),
        Target("SearchSpace.decode", _decode, {"action": np.zeros(4)}),
        Target("SearchSpace.validate", _validate, {"configuration": {}}),
        Target("leaf.Options", Options, {}, _names(Options)),
    )  # fmt: skip


def bad_calls(count: int, seed: int) -> list[Tally]:
    """Call everything with arguments that do not belong; an error of ours, or none, is right."""
    share = -(-count // len(targets()))
    return [_attack(number, share, seed) for number in range(len(targets()))]


def _attack(number: int, count: int, seed: int) -> Tally:
    target = targets()[number]
    parameters = inspect.signature(target.call).parameters
    takes = {p for p in target.good if p in parameters} | set(target.names)
    # A parameter may be named otherwise than here; then the first one is meant.
    names = sorted(takes) or [next(iter(parameters))]

    def case(index: int) -> tuple[str, str]:
        rng = stream(seed, "calls", number, index)
        arguments = {name: value for name, value in target.good.items() if name in names}
        for _ in range(1 + int(rng.random() < 0.3)):
            arguments[names[int(rng.integers(len(names)))]] = _odd(rng)
        verdict, said = judged(lambda: _fine(target.call(**arguments)))
        return verdict, f"{said} [{ {k: _short(v) for k, v in arguments.items()} }]"

    return run_cases(f"bad calls: {target.name}", count, case)


def _fine(_result: Any) -> str:
    return "fine"


def _odd(rng: Generator) -> Any:
    return (*ODD, *MORE)[int(rng.integers(len(ODD) + len(MORE)))]


def _short(value: Any) -> str:
    return "10**400" if type(value) is int and value > 1 << 999 else repr(value)[:40]
