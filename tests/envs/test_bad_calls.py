"""Every bad call ends in a documented error, never in one from inside; seeded bad values."""

from __future__ import annotations

import random
from collections import UserDict, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import AGENTS, agent_class, make_agent
from fedhpo_gym.core.checks import parameter_types, short_repr
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.envs import make_trial_env
from fedhpo_gym.envs.round.arguments import RoundArguments
from fedhpo_gym.testing import make_env, plain
from fedhpo_gym.wrappers import (
    BudgetTermination,
    NamedAction,
    RawBackend,
    ScalarizePenalty,
    SurrogateBackend,
    TabularBackend,
)

ID = "FedHPO-LR-CreditG-v0"
LONG = 5000
"""No message is longer, whatever it is about."""
HUGE = 1000
"""Numbers of environments from here on are legal, and take their memory."""


class Hostile:
    """An object whose every reading fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no name")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")

    def __index__(self) -> int:
        raise TypeError("no index")


def deep(levels: int = 20_000) -> list[Any]:
    """Return lists in lists, deeper than any recursion goes."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def circle() -> list[Any]:
    """Return a list that holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 2**31, 2**62, 2**63, -(2**63) - 1, 10**400, 10**5000, 0.0, -0.0, 0.5, 1.5, -2.5,
    1e-300, 5e-324, 1e300, 1e308, float("inf"), float("-inf"), float("nan"), 1j, 0.5 + 0j,
    np.float16(0.1), np.float32("nan"), np.float64(1e308), np.longdouble("1e400"), np.int8(-3),
    np.uint64(2**64 - 1), np.complex64(1), True, False, np.True_, np.False_,
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", " ", "no", "False", "true", "5", "nan", "os:system", "cpu", "cuda:99", "meta", "raw",
    "train", "val_loss", "clip", "../../x", "\0", "é" * 3, "x" * 10_000, b"raw", np.str_("raw"),
    Path("raw"),
)  # fmt: skip
CONTAINERS: tuple[Any, ...] = (
    [], (), {}, set(), [1], ["val_loss", "val_loss"], ["val_loss", 3], [None], [[0.5, 1]], [[0.5]],
    [["a", "b"]], [[1e-300, 0]], [[0.5, 2**70]], {1: 1}, {"round": 1}, {"round": [1]},
    {"round": 10**400}, {"round": None}, {"mode": "x"}, {"compute": 3}, {"epsilon": "x"},
    {"epsilon": 1e308}, {"val_loss": {"limit": 1, "weight": 1e308}}, {"val_loss": -1e308},
    {"val_loss": {}}, {"val_loss": {"limit": {"limit": 1}}}, {"learning_rate": 1j}, {None: 1},
    {"client_upload_bytes_per_s": 1e-320}, {"max_connections": -5}, UserDict(round=1), deque([1]),
    range(3), np.zeros(0), np.zeros(2), np.zeros((2, 2), complex), np.array(["a"]), np.array(None),
    np.array([10**400], object), deep(), circle(), {"round": deep()}, {"epsilon": circle()},
)  # fmt: skip
OBJECTS: tuple[Any, ...] = (None, object(), Hostile(), int, len, ..., NotImplemented, iter([1]))


def bad_values(seed: int, number: int = 200) -> list[Any]:
    """Return all of the above, and mixtures of them, as many as asked for."""
    found = [*NUMBERS, *TEXTS, *CONTAINERS, *OBJECTS]
    rng = random.Random(seed)  # noqa: S311 - nothing secret
    single = [*NUMBERS, *TEXTS, *OBJECTS]
    names = ["round", "val_loss", "limit", "weight", "mode", "learning_rate", "epsilon", "mu", ""]
    while len(found) < number:
        parts = [rng.choice(single) for _ in range(rng.randrange(1, 4))]
        kind = rng.randrange(3)
        if kind == 0:
            found.append(parts)
        elif kind == 1:
            found.append({rng.choice(names): part for part in parts})
        else:
            found.append({rng.choice(names): {rng.choice(names): part} for part in parts})
    return found


VALUES = bad_values(seed=0)


def check(call: Callable[[Any], object]) -> int:
    """Call with every bad value; return how many were taken."""
    taken, lengths = 0, [1]
    for value in VALUES:
        try:
            call(value)
            taken += 1
        except FedHPOError as error:
            lengths.append(len(str(error)))
        except Exception as error:  # noqa: BLE001 - exactly these are what is looked for
            pytest.fail(f"{short_repr(value)} brought {type(error).__name__}: {str(error)[:500]}")
    assert 0 < min(lengths) <= max(lengths) < LONG
    return taken


def stepped(env: gym.Env[Any, Any]) -> None:
    """Make one step; what it brings is finite."""
    with closing(env):
        env.reset(seed=0)
        observation, reward, *_ = env.step(np.zeros(env.action_space.shape or (), np.float32))
        assert np.isfinite(reward).all()
        assert all(np.isfinite(values).all() for values in observation.values())


@pytest.mark.parametrize("name", [*parameter_types(make_trial_env), "colour"])
@pytest.mark.filterwarnings("ignore:.*The reward returned by `step")
def test_arguments_of_trial_environments(name: str) -> None:
    if name == "task":
        check(lambda value: make_trial_env(task=value))
    elif name == "render_mode":  # `gymnasium.make` reads it first
        check(lambda value: stepped(make_trial_env(task="LR-CreditG-v1", render_mode=value)))
    else:
        check(lambda value: stepped(gym.make(ID, disable_env_checker=True, **{name: value})))


@pytest.mark.parametrize("name", [*parameter_types(RoundArguments), "colour"])
def test_arguments_of_round_environments(name: str) -> None:
    named: dict[str, Any] = {"task": "LR-BreastCancer"}
    if name == "colour":
        with pytest.raises(InvalidArgumentError, match="unknown argument 'colour'"):
            gym.make("FedHPO-DAC-LR-BreastCancer-v0", colour="red")
    else:
        check(lambda value: RoundArguments(**{**named, name: value}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["num_envs", "autoreset_mode", "copy", "info_keys"])
def test_arguments_of_vector_environments(name: str) -> None:
    def make(value: Any) -> None:
        small = not isinstance(value, int | np.integer) or value < HUGE or value >= 2**31
        if small or name != "num_envs":
            gym.make_vec("FedHPO-MLP-Car-v1", **{name: value}).close()

    check(make)


@pytest.fixture(scope="module")
def trial() -> Iterator[gym.Env[Any, Any]]:
    with closing(make_env(budget_trials=10_000)) as env:
        yield env


def test_actions(trial: gym.Env[Any, Any]) -> None:
    trial.reset(seed=0)
    (width,) = trial.action_space.shape or ()
    check(lambda value: trial.step(value))
    assert check(lambda value: trial.step([value] * width)) < 20
    with pytest.raises(InvalidArgumentError, match="array of real numbers"):
        trial.step(np.zeros(width, complex))
    outside = np.full(width, 1.5), np.full(width, np.nan), np.zeros(width - 1), np.zeros((1, width))
    for action in outside:
        with pytest.raises(InvalidArgumentError, match="`action`"):
            trial.step(action)
    named = NamedAction(trial)
    legal = named.action_space.sample()
    check(lambda value: named.step(value))
    check(lambda value: named.step({**legal, next(iter(legal)): value}))


def test_actions_seeds_and_options_of_vector_environments() -> None:
    with closing(gym.make_vec(ID, num_envs=2)) as env:
        env.reset(seed=0)
        check(lambda value: env.step(value))
        check(lambda value: env.step([value, value]))
        check(lambda value: env.reset(seed=value))
        check(lambda value: env.reset(options=value))
        check(lambda value: env.reset(options={"reset_mask": value}))
        check(lambda value: env.unwrapped.trial_info(value))  # type: ignore[attr-defined]
        with pytest.raises(InvalidArgumentError, match=r"`seed` must be an integer, .* got 3.0"):
            env.reset(seed=3.0)  # type: ignore[arg-type]


WRAPPERS: list[tuple[Any, dict[str, Any]]] = [
    (BudgetTermination, {"budget_s": 1.0}),
    (ScalarizePenalty, {}),
    (NamedAction, {}),
    (TabularBackend, {}),
    (SurrogateBackend, {}),
    (RawBackend, {}),
]


@pytest.mark.parametrize(("wrapper", "legal"), WRAPPERS)
def test_constructors_of_wrappers(wrapper: Any, legal: dict[str, Any]) -> None:
    assert check(lambda value: wrapper(value, **legal)) == 0
    with pytest.raises(InvalidArgumentError, match="`env` must"):
        wrapper(gym.make("CartPole-v1"), **legal)
    names = [name for name in parameter_types(wrapper) if name != "env"]
    bare = gym.make(ID, disable_env_checker=True).unwrapped
    for name in names if wrapper is not RawBackend else []:
        check(lambda value, name=name: wrapper(bare, **{name: value}))  # type: ignore[misc]


@pytest.mark.parametrize("value", ["os:system", "cuda:99999999999", ""])
def test_devices(value: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    with pytest.raises(InvalidArgumentError, match="`device`"):
        gym.make("FedHPO-LR-BreastCancer-v0", backend="raw", device=value)


def test_make_agent(trial: gym.Env[Any, Any]) -> None:
    check(lambda value: make_agent(value, trial, 0))
    assert check(lambda value: make_agent("random", value, 0)) == 0
    check(lambda value: make_agent("random", trial, value))


@pytest.mark.parametrize("name", AGENTS)
def test_options_of_agents(name: str) -> None:
    kind = agent_class(name)
    fidelity = {} if kind.fidelity is None else {"fidelity": {"client_sample_rate": 1.0}}
    if "trial" not in kind.acts_on:
        pytest.skip("its environments train")
    env = gym.make(ID, disable_env_checker=True, **fidelity)
    for option in [*parameter_types(kind), "colour"]:
        check(lambda value, option=option: make_agent(name, env, 0, **{option: value}))  # type: ignore[misc]


def test_none_means_what_the_task_says() -> None:
    default = gym.make(ID).unwrapped.task  # type: ignore[attr-defined]
    given = {"algorithm": None, "alpha": None, "preprocessing": None}
    assert gym.make(ID, **given).unwrapped.task == default  # type: ignore[attr-defined]


# ------------------------------------------------------------- legal, and no more than it says


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tabular", "surrogate"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_how_actions_lie_in_memory_does_not_matter(backend: str, kind: Any) -> None:
    name = "FedHPO-LR-CreditG-v1"
    envs = [gym.make_vec(name, num_envs=3, backend=backend) for _ in range(3)]
    rows = [np.linspace(-1, 1, 3 * env.single_action_space.shape[0]) for env in envs]  # type: ignore[index]
    actions = [row.reshape(3, -1).astype(kind) for row in rows]
    wide = np.zeros((6, 2 * actions[2].shape[1]), kind)
    wide[::2, ::2] = actions[2]
    given = (actions[0], np.asfortranarray(actions[1]), wide[::2, ::2])
    seen = []
    for env, action in zip(envs, given, strict=True):
        with closing(env):
            env.reset(seed=0)
            assert action.astype(np.float32) in env.action_space
            seen.append(plain(env.step(action)))
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]


def test_how_an_action_of_clients_lies_in_memory_does_not_matter() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    made = {"per_client": True, "instances": [[0.5, 1]], "horizon": 2}
    seen = []
    for order in ("C", "F"):
        with closing(gym.make("FedHPO-DAC-LR-BreastCancer-v0", **made)) as env:
            env.reset(seed=0)
            env.action_space.seed(0)
            seen.append(plain(env.step(np.array(env.action_space.sample(), order=order))))  # type: ignore[call-overload]
    assert seen[0] == seen[1]


OPTIONS = ["x", 5, ["instance"], {"instances": 1}, {"instance": 0, "colour": 1}, {1: 2}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("together", [False, True])
def test_options_of_a_reset_are_those_that_it_knows(options: Any, together: bool) -> None:
    for arguments in ({}, {"instances": "train"}):
        make = gym.make_vec if together else gym.make
        with closing(make(ID, **arguments)) as env:
            with pytest.raises(InvalidArgumentError, match="`options` must"):
                env.reset(seed=0, options=options)
            env.reset(seed=0, options={})
            if not arguments:
                with pytest.raises(InvalidArgumentError, match="`options` must hold nothing but"):
                    env.reset(options={"instance": 0})


@pytest.mark.parametrize("name", ["reward_scale", "time_price", "divergence_penalty"])
def test_a_whole_number_beyond_64_bits_is_a_number(name: str) -> None:
    made = RoundArguments(task="LR-BreastCancer", **{name: 2**63})
    assert made._round_settings(1.0) == RoundArguments(
        task="LR-BreastCancer", **{name: 2.0**63}
    )._round_settings(1.0)
    assert type(getattr(made._round_settings(1.0), name)) is float
