"""Instances of trial environments: what is drawn, what is shown, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, UnknownNameError
from fedhpo_gym.data import SOURCES, load_dataset
from fedhpo_gym.envs.trial.instances import NAMES, TrialInstance
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.federated import LABEL_ENTROPY
from fedhpo_gym.testing.rollout import plain

ID = "FedHPO-LR-Vehicle-v1"
SHORT = {"backend": "surrogate", "fidelity": {"client_sample_rate": 0.6}, "budget_trials": 3}


def named(arguments: dict[str, Any], number: int = 60) -> list[TrialInstance]:
    """Return the instances of some episodes."""
    env = gym.make(ID, disable_env_checker=True, **arguments)
    found = [env.reset(seed=seed)[1]["instance"] for seed in range(number)]
    return [TrialInstance(*(one[key] for key in list(one)[1:])) for one in found]


def ordered(shown: Mapping[str, Any]) -> Any:
    """Return an observation as plain data, whatever the order of its entries."""
    return plain(dict(sorted(shown.items())))


def test_train_and_test_share_no_seed() -> None:
    for backend, alphas in (("tabular", {0.5}), ("surrogate", {0.1, 0.5})):
        train, test = (
            set(named({"instances": one, "backend": backend})) for one in ("train", "test")
        )
        assert {one.seed for one in train} == {1, 2}
        assert {one.seed for one in test} == {3}
        assert {one.alpha for one in train} == {one.alpha for one in test} == alphas
        assert len(train) == 2 * len(test) == 2 * len(alphas)
        fixed = named({"instances": "train", "backend": backend, "alpha": 0.5}, 20)
        assert {one.alpha for one in fixed} == {0.5}


def test_draws_are_those_of_the_seed_and_go_on_without_one() -> None:
    def drawn(env: gym.Env[Any, Any]) -> list[int]:
        first = env.reset(seed=4)[1]["instance"]["index"]
        return [first, *(env.reset()[1]["instance"]["index"] for _ in range(12))]

    arguments = {"instances": "train", **SHORT}
    env = gym.make(ID, disable_env_checker=True, **arguments)
    assert drawn(env) == drawn(env) == drawn(gym.make(ID, **arguments))
    assert len(set(drawn(env))) > 2
    assert env.reset(options={"instance": 2})[1]["instance"]["index"] == 2
    with pytest.raises(InvalidArgumentError, match=r"`options\['instance'\]`.*\[0, 4\).*got 4"):
        env.reset(options={"instance": 4})


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tabular", "surrogate"])
def test_an_instance_answers_as_the_variant_under_its_seed(backend: str) -> None:
    env = gym.make(ID, instances="train", backend=backend, disable_env_checker=True)
    for seed in range(4):
        shown, info = env.reset(seed=seed)
        drawn = {name: info["instance"][name] for name in ("alpha", "preprocessing", "seed")}
        alone = gym.make(ID, backend=backend, disable_env_checker=True, **drawn)
        expected, same = alone.reset(seed=0)
        assert ordered({**expected, "instance": shown["instance"]}) == ordered(shown)
        assert {**same, "instance": info["instance"]} == info
        env.action_space.seed(seed)
        for _ in range(3):
            action = env.action_space.sample()
            (shown, *mine), (expected, *other) = env.step(action), alone.step(action)
            assert ordered({**expected, "instance": shown["instance"]}) == ordered(shown)
            assert mine[-1].pop("instance") == info["instance"]
            assert plain(mine) == plain(other)


def test_the_observation_says_what_is_known_of_an_instance_and_not_its_name() -> None:
    env = gym.make(ID, instances="train", **SHORT)
    assert "instance" not in gym.make(ID, **SHORT).observation_space.spaces  # type: ignore[attr-defined]
    seen = {}
    for number in range(4):
        shown, info = env.reset(options={"instance": number})
        said = dict(zip(NAMES, shown["instance"].tolist(), strict=True))
        assert shown in env.observation_space
        assert said["clients"] == pytest.approx(np.log10(5) / 6)
        assert said["samples"] == pytest.approx(np.log10(846) / 6)
        assert said["label_entropy"] == pytest.approx(
            LABEL_ENTROPY["Vehicle"] / np.log(4), rel=1e-5
        )
        seen[tuple(shown["instance"].tolist())] = info["instance"]
        later = env.step(env.action_space.sample())[0]["instance"]
        assert later.tolist() == shown["instance"].tolist()
    assert len(seen) == 4, "clients of other sizes are other statistics"


def test_a_vector_starts_on_the_instances_that_it_is_told() -> None:
    envs = gym.make_vec(ID, num_envs=3, instances="train", **SHORT)
    info = envs.reset(options={"instance": [3, 0, 2]})[1]
    assert [one["index"] for one in info["instance"]] == [3, 0, 2]
    with pytest.raises(InvalidArgumentError, match=r"one for each of 3 environments"):
        envs.reset(options={"instance": [1, 2]})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"instances": "trian"}, UnknownNameError, "instance set 'trian'.*'train'"),
        ({"instances": "train", "seed": 1}, InvalidArgumentError, "`seed` must be None"),
        ({"instances": "train", "backend": "raw"}, InvalidArgumentError, "stored numbers.*'raw'"),
        ({"instances": "train", "alpha": 0.123}, InvalidArgumentError, "0 stored variants"),
        ({"instances": []}, InvalidArgumentError, "at least one instance, got none"),
        ({"instances": [{"alpha": 0.5}]}, InvalidArgumentError, "a whole `seed`"),
        ({"instances": [{"sed": 1}]}, UnknownNameError, "field of an instance 'sed'.*'seed'"),
        ({"instances": [{"seed": 9}]}, InvalidArgumentError, "9"),
        ({"instances": [{"seed": 1, "alpha": 0.123}]}, MissingDataError, "fedhpo-gym build"),
        ({"instances": [{"seed": 1}], "alpha": 0.5}, InvalidArgumentError, "`alpha`.*must be None"),
        ({"instances": 3}, InvalidArgumentError, "`instances`"),
    ],
)
def test_instances_that_cannot_be_are_refused(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        gym.make(ID, **arguments)


def test_a_problem_with_numbers_of_one_seed_has_no_instances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lonely = get_task(ID).variant(seeds=(1,))
    monkeypatch.setattr("fedhpo_gym.envs.trial.arguments.get_task", lambda _: lonely)
    with pytest.raises(InvalidArgumentError, match=r"several seeds.*fedhpo-gym build.*leave"):
        gym.make(ID, instances="test")


@pytest.mark.data
@pytest.mark.parametrize("name", [n for n in LABEL_ENTROPY if n not in ("CIFAR10", "SST2")])
def test_the_entropy_of_labels_is_that_of_the_data(
    name: str, shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    assert name in SOURCES
    counts = np.bincount(load_dataset(name).labels)
    shares = counts[counts > 0] / counts.sum()
    assert LABEL_ENTROPY[name] == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-6)
