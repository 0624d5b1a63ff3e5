"""The laws of a wrapper."""
# ruff: noqa: S101 - asserting is what a law does

from __future__ import annotations

import copy
import warnings
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import PassiveEnvChecker

from fedhpo_gym.testing.rollout import go_on, rollout
from fedhpo_gym.testing.task import HARMLESS

SPEC = EnvSpec("FedHPO-Analytic-v0", "fedhpo_gym.testing.analytic:make_env")


class WrapperConformance:
    """Laws of a wrapper around a trial environment. Override `wrap`."""

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Return the environment inside the wrapper under test."""
        raise NotImplementedError

    def make(self) -> gym.Env[Any, Any]:
        """Return a fresh environment to wrap: by default one whose backend is a formula."""
        return gym.make(copy.deepcopy(SPEC), disable_env_checker=True)

    def test_gymnasium_accepts_it(self) -> None:
        env = self.wrap(self.make())
        with warnings.catch_warnings():
            for message in HARMLESS:
                warnings.filterwarnings("ignore", message)
            check_env(env, skip_render_check=True)

    def test_twins_agree(self) -> None:
        assert rollout(self.wrap(self.make())) == rollout(self.wrap(self.make()))

    def test_two_episodes_of_one_environment_agree(self) -> None:
        env = self.wrap(self.make())
        assert rollout(env, seed=3) == rollout(env, seed=3)

    def test_a_copy_made_in_mid_episode_goes_on_alike(self) -> None:
        env = self.wrap(self.make())
        rollout(env, steps=2)
        twin = copy.deepcopy(env)
        assert go_on(twin, 3) == go_on(env, 3)

    def test_its_spec_survives_json(self) -> None:
        env = self.wrap(self.make())
        assert env.spec is not None
        again = gym.make(EnvSpec.from_json(env.spec.to_json()), disable_env_checker=True)
        assert _layers(again) == _layers(env)
        assert rollout(again) == rollout(env)


def _layers(env: gym.Env[Any, Any]) -> list[type]:
    layers: list[type] = []
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, PassiveEnvChecker):  # a matter of how it was made
            layers.append(type(env))
        env = env.env
    return [*layers, type(env)]
