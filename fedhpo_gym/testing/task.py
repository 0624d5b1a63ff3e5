"""The laws of a task: its environments behave, whatever backend they use.

A subclass of `TaskConformance` or `RoundConformance` names a task, and pytest runs every law;
`laws_of` makes such subclasses for custom tasks. The laws make environments by id with `gym.make`,
and compare rollouts (`fedhpo_gym.testing.rollout`) of equal seeds, copies and other processes.
"""
# ruff: noqa: S101 - asserting is what a law does

import copy
import json
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from fedhpo_gym.core.errors import MissingDataError, MissingDependencyError
from fedhpo_gym.core.plugins import plugin_modules
from fedhpo_gym.evaluation.records import FIDELITIES
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.testing.rollout import go_on, in_another_process, plain, rollout

# Warnings of check_env about every wrapped environment, and about every vector of rewards.
WRAPPED = r".*different from the unwrapped version"
OUT_OF_DATE = r".*The environment \S+ is out of date"
"""Warning of Gymnasium at every `make` of an older version, which exists on purpose."""
HARMLESS = (WRAPPED, r".*must be a float, int, np.integer")

PLUGINS = """
from fedhpo_gym.core.plugins import import_plugins
import_plugins({!r})
"""
OTHER_PROCESS = """
import json, sys
import gymnasium as gym
import fedhpo_gym
from fedhpo_gym.testing.rollout import rollout
wanted = json.loads(sys.argv[1])
json.dump({id: rollout(gym.make(id, **wanted[id])) for id in wanted}, sys.stdout)
"""


def rollouts_in_fresh_process(arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return rollouts of environments, by id with their arguments, in a fresh interpreter."""
    traces: dict[str, Any] = in_another_process(
        PLUGINS.format(plugin_modules()) + OTHER_PROCESS, arguments
    )
    return traces


class TaskConformance:
    """Laws of both environments of a task by `task_id`, with or without its version.

    They are skipped where the `backend` has no data.
    """

    task_id: ClassVar[str]
    backend: ClassVar[str] = "tabular"

    @property
    def task(self) -> Task:
        return get_task(self.task_id)

    @property
    def env_id(self) -> str:
        return self.task.id

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of every environment of the laws; they make training short."""
        if self.backend != "raw":
            return {"backend": self.backend}
        return {
            "backend": "raw",
            "seed": self.task.seeds[0],
            "fidelity": {name: self.task.fidelity_space[name].low for name in FIDELITIES},
        }

    def make(self, prefix: str = "", **arguments: Any) -> gym.Env[Any, Any]:
        """Make an environment of the task, or skip the law."""
        try:
            return gym.make(
                prefix + self.env_id,
                disable_env_checker=bool(prefix),  # it warns of vectors, as for mo_gymnasium
                **{**self.arguments(), **arguments},
            )
        except (MissingDataError, MissingDependencyError) as error:
            pytest.skip(f"backend {self.backend}: {error}")

    def test_it_is_in_the_catalogue_with_its_source(self) -> None:
        task = self.task
        assert {self.env_id, f"MO-{self.env_id}"} <= set(gym.registry)
        assert task.citation
        assert task.budget_s > 0
        assert task.num_parameters > 0
        assert set(FIDELITIES) == set(task.fidelity_space.names)

    @pytest.mark.parametrize("prefix", ["", "MO-"])
    def test_gymnasium_accepts_it(self, prefix: str) -> None:
        env = self.make(prefix)
        with warnings.catch_warnings():
            for message in HARMLESS:
                warnings.filterwarnings("ignore", message)
            check_env(env, skip_render_check=True)

    @pytest.mark.parametrize("prefix", ["", "MO-"])
    def test_twins_agree(self, prefix: str) -> None:
        assert rollout(self.make(prefix)) == rollout(self.make(prefix))

    def test_actions_matter(self) -> None:
        assert rollout(self.make(), seed=0) != rollout(self.make(), seed=1)

    def test_everything_it_says_is_plain_and_finite(self) -> None:
        for observation, *_, info in self._steps(self.make()):
            json.dumps(info, allow_nan=False)
            assert all(np.isfinite(value).all() for value in observation.values())

    def test_its_spec_survives_json(self) -> None:
        env = self.make()
        assert env.spec is not None
        again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert rollout(again) == rollout(env)

    def test_a_copy_made_in_mid_episode_goes_on_alike(self) -> None:
        env = self.make()
        rollout(env, steps=2)
        twin = copy.deepcopy(env)
        assert go_on(twin, 3) == go_on(env, 3)

    def test_another_process_with_another_hash_seed_agrees(self) -> None:
        expected = rollout(self.make())
        assert self.rollout_elsewhere() == json.loads(json.dumps(expected))

    def rollout_elsewhere(self) -> Any:
        """Return `rollout` of the task's environment in a fresh interpreter."""
        return rollouts_in_fresh_process({self.env_id: self.arguments()})[self.env_id]

    def test_both_rewards_are_the_scores_of_the_objectives(self) -> None:
        clock = {"compute": "epochs"}  # it can vary where the fidelity is fixed
        vector = self.make("MO-", system=clock)
        objectives = vector.get_wrapper_attr("objectives")
        names = [objective.name for objective in objectives]
        scalar = self.make(reward="score", objectives=names, system=clock)
        space: gym.spaces.Box = vector.get_wrapper_attr("reward_space")
        pairs = zip(self._steps(vector), self._steps(scalar), strict=True)
        for (_, scores, _, _, info), (_, reward, _, _, same) in pairs:
            assert plain(info["objectives"]) == plain(same["objectives"])
            assert scores in space
            values = info["objectives"].values()
            expected = [o.score(v) for o, v in zip(objectives, values, strict=True)]
            np.testing.assert_array_equal(scores, np.array(expected, dtype=np.float32))
            assert type(reward) is float
            assert reward == scores[0] == same["score"]

    def test_the_return_is_how_good_the_incumbent_is(self) -> None:
        envs = [self.make(reward=kind) for kind in ("improvement", "incumbent", "score")]
        total = 0.0
        for gained, best, score in zip(*map(self._steps, envs), strict=True):
            total += gained[1]
            assert total == pytest.approx(best[1], rel=1e-12)
            assert 0.0 <= best[1] <= 1.0
            assert gained[1] >= 0.0
            assert gained[-1] == best[-1] == score[-1]
            for name, value in score[0].items():
                np.testing.assert_array_equal(gained[0][name], value)

    def test_it_draws_its_episodes(self) -> None:
        env = self.make(render_mode="rgb_array")
        rollout(env, steps=2)
        try:
            frame = env.render()
        except MissingDependencyError as error:
            pytest.skip(str(error))
        assert isinstance(frame, np.ndarray)
        assert frame.ndim == 3
        assert (frame.shape[2], str(frame.dtype)) == (3, "uint8")
        assert len(np.unique(frame)) > 1, "the frame is blank"

    def _steps(self, env: gym.Env[Any, Any]) -> list[tuple[Mapping[str, Any], Any, Any, Any, Any]]:
        env.reset(seed=0)
        env.action_space.seed(0)
        steps: list[Any] = []
        while len(steps) < 4 and not (steps and steps[-1][2]):
            steps.append(env.step(env.action_space.sample()))
        return steps


class RoundConformance(TaskConformance):
    """Laws of `FedHPO-DAC-*` and `MO-FedHPO-DAC-*` of a task: those of a task, and their own."""

    @property
    def env_id(self) -> str:
        return self.task.round_id

    def arguments(self) -> dict[str, Any]:
        return {
            "rounds_per_step": 1,
            "horizon": 5,
            "client_sample_rate": self.task.fidelity_space["client_sample_rate"].low,
            "instances": [[self.task.alpha, seed] for seed in (100, 101)],
        }

    # A law of trials: the incumbent of a course is its best step, and its reward another one.
    test_the_return_is_how_good_the_incumbent_is = None  # type: ignore[assignment]

    def test_both_rewards_are_the_scores_of_the_objectives(self) -> None:
        vector, scalar = self.make("MO-"), self.make(time_price=0.25)
        space: gym.spaces.Box = vector.get_wrapper_attr("reward_space")
        for (_, scores, *_, info), (_, reward, *_, same) in zip(
            self._episode(vector), self._episode(scalar), strict=True
        ):
            assert plain(info) == plain(same)
            assert scores in space
            assert type(reward) is float
            np.testing.assert_allclose(scores[0] + 0.25 * scores[1], reward, rtol=1e-5, atol=1e-6)

    def test_an_episode_ends_with_its_horizon(self) -> None:
        steps = self._episode(self.make())
        assert [step[2] for step in steps[:-1]] == [False] * (len(steps) - 1)
        observation, _, terminated, truncated, info = steps[-1]
        assert terminated
        assert not truncated
        assert info["diverged"] or info["fidelity"]["round"] == 5
        assert info["diverged"] or observation["remaining_rounds"] == 0.0

    def test_a_snapshot_is_gone_back_to_any_number_of_times(self) -> None:
        env = self.make()
        course: Any = env.unwrapped
        rollout(env, steps=1)
        snapshot = course.snapshot()
        observation = plain(course.restore(snapshot))
        first = self._replayed(env, snapshot)
        assert plain(course.restore(snapshot)) == observation
        assert self._replayed(env, snapshot) == first
        fresh = self.make()
        fresh.reset(seed=11)
        assert self._replayed(fresh, snapshot) == first

    def test_an_instance_can_be_chosen(self) -> None:
        env = self.make()
        index = len(env.get_wrapper_attr("instances")) - 1
        first = plain(env.reset(seed=0, options={"instance": index}))
        _, info = env.reset(seed=1, options={"instance": index})
        assert info["instance"]["index"] == index
        assert plain(env.reset(seed=2, options={"instance": index})) == first

    def _replayed(self, env: gym.Env[Any, Any], snapshot: Any) -> list[Any]:
        course: Any = env.unwrapped
        course.restore(snapshot)
        env.action_space.seed(3)
        return go_on(env, 1)

    def _episode(self, env: gym.Env[Any, Any]) -> list[Any]:
        env.reset(seed=0)
        env.action_space.seed(0)
        steps: list[Any] = []
        while not (steps and steps[-1][2]):
            action: NDArray[np.float32] = env.action_space.sample()
            steps.append(env.step(action))
        return steps
