"""The vector form of the trial environments equals N single environments, bit for bit."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.envs import TrialEnv
from fedhpo_gym.envs.trial.env import TrialVectorEnv
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.evaluation.records import Evaluation, Fidelity
from fedhpo_gym.space import ACTION_SLACK
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing import Analytic
from fedhpo_gym.testing.rollout import plain
from fedhpo_gym.wrappers import (
    BudgetTermination,
    EpsilonConstraint,
    IncumbentReward,
    ScalarizePenalty,
)
from fedhpo_gym.wrappers.budget import Budget
from fedhpo_gym.wrappers.rewards import Penalty

ID = "FedHPO-LR-CreditG-v0"
FITTED: dict[str, Any] = {"name": "FedHPO-LR-CreditG-v1", "backend": "surrogate"}
N = 4
STEPS = 80

PHONES: dict[str, Any] = {"model": "devices", "devices": "flash", "availability": "sine"}
PHONES |= {"over_selection": 0.3, "deadline_s": 60.0}

KINDS: list[dict[str, Any]] = [
    {},
    {"objectives": ["val_f1", "fairness_jain", "delta"], "budget_s": 900.0},
    {
        "objectives": ["fairness_std", "val_loss", "test_error"],
        "constraints": {"val_loss": {"limit": 0.7, "weight": 0.3}, "test_error": 0.1},
        "budget_trials": 7,
    },
    {"fidelity": {"round": 81}, "budget_rounds": 400},
    {"fidelity": {"client_sample_rate": 0.4}, "budget_s": 500, "budget_trials": 3},
    {"freeze_thaw": True, "budget_s": 2500.0},
    {"freeze_thaw": True, "fidelity": {"round": 81, "client_sample_rate": 1.0}, "budget_s": 1500.0},
    {"grid": True, "budget_s": 500.0},
    {"reward": "improvement", "constraints": {"fairness_std": 0.02}, "budget_s": 900.0},
    {"reward": "improvement", "reward_discount": 0.9, "reward_per_cost": True, "budget_s": 900.0},
    {"reward": "anytime", "budget_s": 900.0},
    {"reward": "incumbent", "reward_transform": "squash", "freeze_thaw": True, "budget_trials": 9},
    {"reward": "regret", "fidelity": {"round": 81}, "budget_trials": 7},
    {"seed": 1, "system": {"server_compute_s": 3.0}, "budget_s": 1200.0},
    {"system": {"model": "devices", "dropout": 0.1, "compute": "epochs"}, "freeze_thaw": True},
    {
        # Of few rounds: the clock lives through all of them for each of the grid's 110 works.
        "system": {**PHONES, "compute": "steps", "samples_per_client": 200},
        "grid": True,
        "fidelity": {"round": 9},
    },
]
NOISY: dict[str, Any] = {"name": "FedHPO-LR-Synthetic-v1", "noise": {"clients": 0.3, "epsilon": 50}}
NO_COST: dict[str, Any] = {
    "client_upload_bytes_per_s": 1e300,
    "client_download_bytes_per_s": 1e300,
    "server_upload_bytes_per_s": 1e300,
    "client_compute_mean_s": 0,
}
PRIVATE: dict[str, Any] = {"name": "FedHPO-GNN-Cora-v1", "algorithm": "nbafl", "budget_trials": 2}
DRAWN: dict[str, Any] = {"name": "FedHPO-LR-Vehicle-v1", "instances": "train"}
SHORT: dict[str, Any] = {"backend": "surrogate", "fidelity": {"client_sample_rate": 0.6}}
SOME = [{"seed": 3, "alpha": 0.1}, {"seed": 1}, {"seed": 2, "alpha": 0.1}]
FLYING: dict[str, Any] = {
    "name": "FedHPO-LR-BreastCancer-v1",
    "backend": "raw",
    "seed": 1,
    "fidelity": {"round": 6, "client_sample_rate": 0.6},
    "system": {"model": "devices", "compute": "epochs"},
}
OTHERS: list[dict[str, Any]] = [
    FITTED,
    {**FITTED, "grid": True, "freeze_thaw": True},
    {**FITTED, "reward": "improvement", "system": PHONES},
    {"noise": {"clients": 0.5, "bias": 1.0}},
    {"noise": {"clients": 0.3, "epsilon": 50}, "budget_trials": 7},
    {"noise": {"clients": 0.5, "epsilon": 50}, "objectives": ["val_error", "epsilon"]},
    {"noise": {"clients": 0.4}, "freeze_thaw": True, "reward": "incumbent"},
    {"noise": {"iid": 0.5, "clients": 0.5}, "objectives": ["val_error"]},
    NOISY,
    {**NOISY, "noise": {"clients": 0.4}, "freeze_thaw": True, "reward": "incumbent"},
    {"constraints": {"fairness_std": 0.02, "val_loss": 0.55}, "reward": "improvement"},
    {"freeze_thaw": True, "max_trials": 5, "budget_trials": None},
    {"system": NO_COST, "max_trials": 5, "budget_trials": None},
    {"budget_s": 1e300, "max_trials": 5, "budget_trials": None},
    PRIVATE,
    {**PRIVATE, "tune": {"epsilon": [1, 100]}},
    {**DRAWN, "reward": "regret"},
    {**DRAWN, "budget_s": 900.0, "freeze_thaw": True},
    {**DRAWN, "reward": "improvement", **SHORT},
    {**DRAWN, "instances": SOME, **SHORT},
    {**FLYING, "algorithm": "fedasync"},
    {**FLYING, "algorithm": "fedbuff"},
]
"""Of few steps."""


def make(num_envs: int = N, name: str = ID, **arguments: Any) -> TrialVectorEnv:
    env = gym.make_vec(
        name, num_envs=num_envs, vectorization_mode="vector_entry_point", **arguments
    )
    assert isinstance(env, TrialVectorEnv)
    return env


def test_many_environments_say_what_one_says_of_itself() -> None:
    one = gym.make(ID).unwrapped
    assert isinstance(one, TrialEnv)
    assert make().search_space.names == one.search_space.names
    assert make().objectives == one.objectives


def singles(mode: str = "NextStep", name: str = ID, **arguments: Any) -> SyncVectorEnv:
    """Gymnasium's own vector environment of N environments that `gym.make` built."""
    return SyncVectorEnv([lambda: gym.make(name, **arguments)] * N, autoreset_mode=mode)


def ordered(value: Any) -> Any:
    """Return plain data; the order of a single environment's dictionary is not its space's."""
    return plain(dict(sorted(value.items())) if isinstance(value, Mapping) else value)


def rows(entry: Any) -> Any:
    """Return what each environment said; Gymnasium makes columns of dictionaries."""
    if not isinstance(entry, Mapping):
        return entry
    columns = {key: column.tolist() for key, column in entry.items() if key[0] != "_"}
    return np.array([{key: of[n] for key, of in columns.items()} for n in range(N)])


def assert_same_info(ours: Mapping[str, Any], theirs: Mapping[str, Any], asked: Any = True) -> None:
    """What we say, they say: the same masks, and under the masks the same numbers."""
    for key in ours:
        if key.startswith("_"):
            continue
        mask = ours[f"_{key}"]
        # Of an episode that begins by itself, only they say the instance.
        told = mask if key == "instance" else asked
        np.testing.assert_array_equal(mask, told & theirs.get(f"_{key}", np.zeros(N, bool)), key)
        if not mask.any():
            continue
        if isinstance(ours[key], Mapping):
            assert_same_info(ours[key], theirs[key], told)
        else:
            pairs = zip(ours[key][mask], rows(theirs[key])[mask], strict=True)
            assert all(ordered(mine) == ordered(other) for mine, other in pairs), key


def assert_same(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    """All of what `reset` or `step` returned; the bits of observations and rewards."""
    assert list(ours[0]) == list(theirs[0])
    for key, array in ours[0].items():
        assert plain(array) == plain(theirs[0][key]), key
    for mine, other in zip(ours[1:-1], theirs[1:-1], strict=True):
        assert plain(mine) == plain(other)
    assert_same_info(ours[-1], theirs[-1])


def run_both(ours: Any, theirs: Any, steps: int = STEPS) -> int:
    """Compare two vector environments under random actions; return the number of episodes."""
    seeds = [3, 5, 7, 11][: ours.num_envs]
    first, other = ours.reset(seed=seeds), theirs.reset(seed=seeds)
    assert first[1].keys() == other[1].keys()
    assert_same(first, other)
    ours.action_space.seed(0)
    episodes = 0
    for _ in range(steps):
        actions = ours.action_space.sample()
        mine, other = ours.step(actions), theirs.step(actions)
        assert_same(mine, other)
        done = mine[2] | mine[3]
        episodes += int(done.sum())
        if done.any() and ours.autoreset_mode is AutoresetMode.DISABLED:
            masks = [{"reset_mask": done.copy()} for _ in range(2)]
            assert_same(ours.reset(options=masks[0]), theirs.reset(options=masks[1]))
    return episodes


# ---------------------------------------------------------------------------------- the law


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(kind, id=str(kind), marks=pytest.mark.slow if n % 4 else [])
        for n, kind in enumerate(KINDS)
    ],
)
def test_it_equals_single_environments(arguments: dict[str, Any]) -> None:
    episodes = run_both(make(**arguments), singles(**arguments))
    assert episodes >= N or arguments == {}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", OTHERS, ids=str)
def test_it_equals_single_environments_of_every_kind(arguments: dict[str, Any]) -> None:
    if arguments.get("backend") == "raw":
        pytest.importorskip("torch")
        pytest.importorskip("sklearn")
    arguments = {"budget_trials": 5, **arguments}
    assert run_both(make(**arguments), singles(**arguments), 14) >= N


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("SameStep", {"reward": "score"}),
        ("SameStep", {**DRAWN, "reward": "regret"}),
        ("Disabled", {"reward": "improvement"}),
    ],
)
def test_every_autoreset_mode_equals_gymnasiums(mode: str, given: dict[str, Any]) -> None:
    arguments = {"budget_s": 900.0, "freeze_thaw": True, **given}
    ours = make(autoreset_mode=mode, **arguments)
    assert ours.metadata["autoreset_mode"] is AutoresetMode(mode)
    assert run_both(ours, singles(mode, **arguments), 60) >= 2 * N


COSTS = ("val_loss", "time_s", "upload_bytes", "download_bytes", "flops")
POWERED = {"model": "devices", "devices": "alike", "client_compute_w": 2.0, "compute": "epochs"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget_s": 900.0, "objectives": ["val_loss", "val_f1"]},
        {"objectives": COSTS},
        {"objectives": COSTS, "system": {"compute": "epochs"}},
        {"objectives": COSTS, "backend": "surrogate"},
        {"objectives": COSTS, "backend": "surrogate", "freeze_thaw": True},
        {"objectives": ("val_loss", "energy_j"), "system": POWERED},
        {"objectives": ("val_loss", "energy_j"), "system": POWERED, "backend": "surrogate"},
    ],
    ids=str,
)
def test_vector_rewards_follow_mo_gymnasium(arguments: dict[str, Any]) -> None:
    wrappers = pytest.importorskip("mo_gymnasium.wrappers.vector")
    name, arguments = "MO-FedHPO-LR-CreditG-v1", {"budget_trials": 4, **arguments}
    ours = make(name=name, **arguments)
    theirs = wrappers.MOSyncVectorEnv([lambda: gym.make(name, **arguments)] * N)
    assert ours.reward_space == theirs.reward_space
    assert run_both(ours, theirs, 12) >= N


def test_statistics_of_mo_gymnasium_add_up_our_rewards() -> None:
    wrappers = pytest.importorskip("mo_gymnasium.wrappers.vector")
    envs = wrappers.MORecordEpisodeStatistics(make(2, f"MO-{ID}", budget_trials=3))
    envs.reset(seed=0)
    steps = [envs.step(envs.action_space.sample()) for _ in range(3)]
    assert steps[-1][2].all()
    assert np.allclose(steps[-1][4]["episode"]["r"], sum(step[1] for step in steps))


def test_all_that_a_single_environment_says_can_be_asked_for() -> None:
    arguments = {"freeze_thaw": True, "budget_s": 2e5, "fidelity": {"client_sample_rate": 0.6}}
    stored = ({**FITTED, "backend": name, **arguments} for name in ("tabular", "surrogate"))
    for given in (*stored, {**PRIVATE, "budget_trials": 9}):
        ours = make(2, **given)
        others = [
            gym.make(given["name"], **{k: v for k, v in given.items() if k != "name"})
            for _ in range(2)
        ]
        ours.reset(seed=0)
        for env in others:
            env.reset(seed=0)
        ours.action_space.seed(0)
        for _ in range(8):
            actions = ours.action_space.sample()
            ours.step(actions)
            for index, env in enumerate(others):
                assert plain(ours.trial_info(index)) == plain(env.step(actions[index])[-1])


class OftenNotFinite(Analytic):
    """Loses its mind for some configurations."""

    def _answer(self, configuration: Any, fidelity: Fidelity) -> Evaluation:
        answer = super()._answer(configuration, fidelity)
        if fidelity.round > 200:
            answer.best[:, :, :, 0] = math.inf
        return answer


def test_errors_that_are_not_finite_rank_last() -> None:
    def single() -> gym.Env[Any, Any]:
        task = get_task("LR-CreditG")
        env = TrialEnv(TrialSetup.of(task, OftenNotFinite(task)))
        return ScalarizePenalty(BudgetTermination(env, budget_trials=6))

    setup: Any = single().unwrapped
    many = TrialVectorEnv(N, setup.setup, Budget(budget_trials=6), Penalty(setup.objectives, None))
    assert run_both(many, SyncVectorEnv([single] * N)) > N


def test_float64_actions_are_decoded_as_they_are() -> None:
    ours, theirs = make(), singles()
    ours.reset(seed=0)
    theirs.reset(seed=0)
    ours.action_space.seed(0)
    for sign in (-1.0, 1.0):
        edge = np.nextafter(np.zeros(ours.action_space.shape), sign)  # float32 would say 0
        assert_same(ours.step(edge), theirs.step(edge))


def test_what_one_environment_computed_serves_no_other_query() -> None:
    fixed = {"fidelity": {"round": 81, "client_sample_rate": 0.4}}
    for other in (
        {},
        {"fidelity": {"round": 27, "client_sample_rate": 0.4}},
        {"seed": 2},
        {"algorithm": "fedavg", "system": {"server_compute_s": 9.0}},
        {"constraints": {"fairness_std": 0.01}},
        {"constraints": {"fairness_std": 0.02}},
        {"constraints": {"fairness_std": {"limit": 0.02, "weight": 5.0}}},
        {"objectives": ["fairness_std", "val_loss"]},
    ):
        arguments = {**fixed, **other}
        run_both(make(**arguments), singles(**arguments), 3)


# ------------------------------------------------------------------------------- what it is


def test_spaces_are_batched_and_hold_what_it_returns() -> None:
    env = make()
    one = gym.make(ID)
    assert env.single_action_space == one.action_space
    assert env.single_observation_space == one.observation_space
    assert env.action_space.shape == (N, *one.action_space.shape)  # type: ignore[misc]
    observations, _ = env.reset(seed=0)
    assert observations in env.observation_space
    observations, rewards, terminated, truncated, _ = env.step(env.action_space.sample())
    assert observations in env.observation_space
    assert (rewards.dtype, rewards.shape) == (np.float64, (N,))
    assert terminated.dtype == truncated.dtype == np.bool_


def test_an_observation_lies_in_memory_as_gymnasium_flattens_it() -> None:
    env = make()
    env.reset(seed=0)
    observations, *_ = env.step(env.action_space.sample())
    row = next(iter(observations.values())).base[2]
    one = {key: array[2] for key, array in observations.items()}
    flat = gym.spaces.flatten(env.single_observation_space, one)
    np.testing.assert_array_equal(row, flat)


def test_its_spec_survives_json() -> None:
    env = make(fidelity={"round": 9}, autoreset_mode="SameStep")
    spec = EnvSpec.from_json(env.spec.to_json())  # type: ignore[union-attr]
    twin = gym.make_vec(spec)
    assert isinstance(twin, TrialVectorEnv)
    assert twin.metadata == env.metadata
    run_both(twin, env, 20)


def numpys(value: Any) -> Any:
    """Return arguments whose numbers are numpy's; float32's 0.9 is 0.9."""
    kinds: dict[type, Any] = {int: np.int64, float: np.float32, bool: np.bool_}
    if isinstance(value, Mapping):
        return {name: numpys(one) for name, one in value.items()}
    return kinds.get(type(value), lambda same: same)(value)


@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("FedHPO-LR-CreditG-v1", {"budget_trials": 5, "reward_discount": 0.9}),
        (
            "FedHPO-LR-CreditG-v1",
            {
                "freeze_thaw": True,
                "fidelity": {"round": 27},
                "constraints": {"fairness_std": {"limit": 0.1, "weight": 2.0}},
            },
        ),
        ("FedHPO-B-LR-v1", {"trials": 5}),
        ("FedHPO-DAC-Quadratic-v1", {"horizon": 20, "reward_scale": 0.5}),
    ],
)
def test_a_spec_of_numpys_numbers_is_that_of_plain_ones(
    make: Any, env_id: str, arguments: dict[str, Any]
) -> None:
    spec = make(env_id, **numpys(arguments)).spec
    assert spec.to_json() == make(env_id, **arguments).spec.to_json()


@pytest.mark.parametrize(
    ("wrapper", "arguments"),
    [
        (ScalarizePenalty, {"constraints": {"fairness_std": 0.1}}),
        (EpsilonConstraint, {"limits": {"fairness_std": 0.1}}),
        (IncumbentReward, {"discount": 0.9}),
        (BudgetTermination, {"budget_trials": 5}),
    ],
)
def test_a_spec_holds_plain_arguments_of_wrappers(wrapper: Any, arguments: dict[str, Any]) -> None:
    scores = wrapper is IncumbentReward
    inner = gym.make(ID, reward="score") if scores else gym.make(f"MO-{ID}")
    spec = EnvSpec.from_json(wrapper(inner, **numpys(arguments)).spec.to_json())
    assert arguments.items() <= spec.additional_wrappers[-1].kwargs.items()  # type: ignore[union-attr]


def test_a_spec_names_the_mode_of_autoreset() -> None:
    env = make(autoreset_mode=AutoresetMode.SAME_STEP)
    twin = gym.make_vec(EnvSpec.from_json(env.spec.to_json()))  # type: ignore[union-attr]
    assert twin.metadata == env.metadata


@pytest.mark.parametrize(
    "arguments", [{"freeze_thaw": True}, FITTED, {**DRAWN, "reward": "regret"}], ids=str
)
def test_a_copy_made_in_mid_episode_goes_on_alike(arguments: dict[str, Any]) -> None:
    env = make(budget_trials=5, **arguments)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        env.step(env.action_space.sample())
    twins = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    assert len(pickle.dumps(make())) < 100_000, "the rows of all cells were pickled"
    for _ in range(6):
        actions = env.action_space.sample()
        expected = plain(env.step(actions))
        for twin in twins:
            assert plain(twin.step(actions)) == expected


@pytest.mark.parametrize("share", [True, False])
def test_who_owns_the_observations(share: bool) -> None:
    env = make(copy=not share)
    first, _ = env.reset(seed=0)
    before = plain(first)
    env.step(env.action_space.sample())
    assert (plain(first) == before) is not share


def test_what_it_returns_belongs_to_who_asked() -> None:
    def spoil(value: Any) -> None:
        if isinstance(value, Mapping):
            for item in value.values():
                spoil(item)
        elif value.dtype != object:
            value[...] = 1

    traces = []
    for spoiled in (False, True):
        env = make(budget_s=900.0)
        env.reset(seed=0)
        env.action_space.seed(0)
        trace = []
        for _ in range(20):
            outcome = env.step(env.action_space.sample())
            trace.append(plain(outcome))
            for part in outcome if spoiled else ():
                spoil(part)
        traces.append(trace)
    assert traces[0] == traces[1]


# ------------------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_envs": 0}, ["`num_envs`", "in [1, ", "0"]),
        ({"autoreset_mode": "Never"}, ["`autoreset_mode`", "SameStep", "'Never'"]),
        ({"render_mode": "rgb_array"}, ["`render_mode`", "None", "gymnasium.make"]),
        ({"budget": 3}, ["unknown argument", "'budget'"]),
        ({"budget_s": -1.0}, ["`budget_s`", "positive", "-1.0"]),
        ({"objectives": ["val_los"]}, ["Unknown objective", "val_los"]),
    ],
)
def test_it_refuses_what_cannot_be_made(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FedHPOError) as caught:
        make(**arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("value", [1.5, np.nan])
def test_an_action_outside_the_space_is_refused_and_changes_nothing(value: float) -> None:
    env = make()
    env.reset(seed=0)
    bad = np.zeros((N, 6), np.float32)
    bad[2] = value
    with pytest.raises(InvalidArgumentError, match=rf"`actions\[2\]`.*{value}"):
        env.step(bad)
    with pytest.raises(InvalidArgumentError, match=r"`actions`.*\(4, 6\).*\(6,\)"):
        env.step(np.zeros(6))
    *_, infos = env.step(np.zeros((N, 6), np.float32))
    assert infos["trial"].tolist() == [1] * N


def test_the_action_of_a_resetting_environment_is_ignored() -> None:
    env = make(budget_trials=1)
    env.reset(seed=0)
    env.step(np.zeros((N, 6)))
    _, rewards, terminated, _, infos = env.step(np.full((N, 6), np.nan))
    assert not rewards.any()
    assert not terminated.any()
    assert not infos["_trial"].any()


def test_it_must_be_reset_first() -> None:
    env = make(budget_trials=1, autoreset_mode="Disabled")
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(env.action_space.sample())
    env.reset(options={"reset_mask": np.array([True, True, False, True])})
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(env.action_space.sample())
    env.reset()
    env.step(env.action_space.sample())
    with pytest.raises(gym.error.ResetNeeded, match="reset_mask"):
        env.step(env.action_space.sample())


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": [1, 2]},
        {"seed": -1},
        {"seed": [1, 2, 3, -4]},
        {"options": {"reset_mask": [True] * N}},
        {"options": {"reset_mask": np.zeros(N, bool)}},
        {"options": {"reset_mask": np.ones(N + 1, bool)}},
    ],
    ids=str,
)
def test_reset_refuses_bad_seeds_and_masks(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`seed`|`options\['reset_mask'\]`"):
        make().reset(**arguments)


def test_there_is_no_trial_to_describe_before_the_first() -> None:
    env = make()
    env.reset(seed=0)
    for index in (0, N):
        with pytest.raises(InvalidArgumentError, match="`index`"):
            env.trial_info(index)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_an_action_may_leave_the_box_by_the_slack_and_no_more(sign: float) -> None:
    env = gym.make_vec(ID, num_envs=2)
    env.reset(seed=0)
    shape = env.action_space.shape
    env.step(np.full(shape, sign * (1.0 + ACTION_SLACK)))
    with pytest.raises(InvalidArgumentError, match=r"must be in \[-1, 1\]"):
        env.step(np.full(shape, sign * (1.0 + 2 * ACTION_SLACK)))
