"""The laws of an agent: one class per capability, on environments that are formulas.

`agent_laws` chooses the classes by the attributes of an agent; `laws_of`, `check_plugin` and this
package's own tests run them with pytest. Environments are those of `fedhpo_gym.testing.analytic`,
so that an episode takes milliseconds and needs no data. A class attribute `name` names the agent.
"""
# ruff: noqa: S101 - asserting is what a law does

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import Agent, Step, agent_class, make_agent, read_problem, run_episode
from fedhpo_gym.agents.base import SCALAR
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDependencyError
from fedhpo_gym.testing.analytic import AnalyticRounds, make_env
from fedhpo_gym.testing.rollout import in_another_process, plain
from fedhpo_gym.wrappers import IncumbentReward

STEPS = 8
LOWEST_REWARD = -10.0

OTHER_PROCESS = """
import json, sys
from fedhpo_gym.testing import agent
found = []
for kind, name, options, seed in json.loads(sys.argv[1]):
    own = {"name": name, "options": lambda self, env, options=options: options}
    found.append(type("Laws", (getattr(agent, kind),), own)().actions(seed))
json.dump(found, sys.stdout)
"""
"""Script that prints the actions of episodes, by laws, agent, options and seed."""


class DivergingSteps(gym.Wrapper[Any, Any, Any, Any]):
    """Makes every second step diverge, as agents see it."""

    _count = 0

    def step(self, action: Any) -> Any:
        """Step; a diverged step has the lowest reward and score, and otherwise no finite number."""
        observation, step_reward, terminated, truncated, info = self.env.step(action)
        reward: Any = step_reward
        self._count += 1
        if self._count % 2:
            reward = np.full(np.shape(reward), LOWEST_REWARD) if np.ndim(reward) else LOWEST_REWARD
            score = {"score": LOWEST_REWARD} if "score" in info else {}
            info = {**_without_numbers(info), **score, "diverged": True}
        return observation, reward, terminated, truncated, info


class UnboundedScores(gym.Wrapper[Any, Any, Any, Any]):
    """Makes the scores of two of three steps minus infinity or NaN."""

    _count = 0

    def step(self, action: Any) -> Any:
        """Step; a diverged step has no finite score."""
        observation, step_reward, terminated, truncated, info = self.env.step(action)
        finite_reward: Any = step_reward
        bad_score = (-np.inf, np.nan, None)[self._count % 3]
        self._count += 1
        if bad_score is None:
            return observation, finite_reward, terminated, truncated, info
        reward: Any = (
            np.full(np.shape(finite_reward), bad_score) if np.ndim(finite_reward) else bad_score
        )
        info = {**info, "score": bad_score} if "score" in info else info
        return observation, reward, terminated, truncated, info


class AgentConformance:
    """Laws of every registered agent; join by one of the subclasses.

    They are skipped where its library is not installed; another process finds them by `law_class`.
    """

    name: ClassVar[str]
    law_class: ClassVar[str]

    def env(self) -> gym.Env[Any, Any]:
        """Return a new environment of `STEPS` steps that the agent can act in."""
        raise NotImplementedError

    def options(self, env: gym.Env[Any, Any]) -> dict[str, Any]:
        """Return the options of `make_agent`, as JSON data; none, if the agent needs none."""
        del env
        return {}

    def make(self, env: gym.Env[Any, Any], seed: int = 0) -> Agent:
        """Return a new agent for an environment, or skip the law."""
        try:
            return make_agent(self.name, env, seed, **self.options(env))
        except MissingDependencyError as error:
            pytest.skip(str(error))

    def episode(self, seed: int = 0, env: gym.Env[Any, Any] | None = None) -> list[Step]:
        env = env or self.env()
        return list(run_episode(env, self.make(env, seed), seed=0))

    def actions(self, seed: int) -> list[Any]:
        return [plain(step.action) for step in self.episode(seed)]

    def elsewhere(self, seed: int) -> list[Any]:
        """Return the actions of an episode in another process."""
        episode = (self.law_class, self.name, self.options(self.env()), seed)
        actions: list[Any] = in_another_process(OTHER_PROCESS, [episode])[0]
        return actions

    def test_it_runs_an_episode_with_legal_actions(self) -> None:
        self._check_legal(self.episode())

    def test_equal_seeds_do_the_same(self) -> None:
        assert self.actions(seed=5) == self.actions(seed=5)

    def test_another_process_does_the_same(self) -> None:
        here = self.actions(seed=5)
        assert self.elsewhere(5) == here

    def test_the_seed_matters_where_its_class_says_so(self) -> None:
        differ = self.actions(seed=0) != self.actions(seed=1)
        assert differ == self._registered().seeded

    def test_it_leaves_global_random_numbers_alone(self) -> None:
        before = plain(list(np.random.get_state()))  # noqa: NPY002 - this is what is watched
        self.episode()
        assert plain(list(np.random.get_state())) == before  # noqa: NPY002

    def test_it_does_not_write_into_what_it_is_shown(self) -> None:
        env = self.env()
        agent = self.make(env)
        observation, _ = env.reset(seed=0)
        for _ in range(3):
            expected = plain(observation)
            action = agent.ask(observation)
            assert plain(observation) == expected
            observation, reward, over, _, info = env.step(action)
            before = plain([action, observation, info])
            agent.tell(Step(action, reward, terminated=over, info=info, observation=observation))
            assert plain([action, observation, info]) == before

    def test_a_restored_agent_goes_on_as_the_first_would(self) -> None:
        env = self.env()
        first = self.make(env, seed=5)
        observation, _ = env.reset(seed=0)
        agents = [first]
        for index in range(STEPS):
            if index == STEPS // 2:
                agents.append(self.make(env, seed=5))
                agents[1].load_state_dict(_through_json(first.state_dict()))
            actions = [agent.ask(observation) for agent in agents]
            assert all(np.array_equal(action, actions[0]) for action in actions)
            observation, reward, terminated, _, info = env.step(actions[0])
            for agent, action in zip(agents, actions, strict=True):
                agent.tell(
                    Step(action, reward, terminated=terminated, info=info, observation=observation)
                )
        assert agents[1].state_dict() == first.state_dict()

    def test_it_refuses_the_state_of_another_seed(self) -> None:
        state = self.make(self.env(), seed=5).state_dict()
        with pytest.raises(InvalidArgumentError, match="`state` must be"):
            self.make(self.env(), seed=6).load_state_dict(state)

    def test_it_survives_steps_that_diverged(self) -> None:
        self._check_legal(self.episode(env=DivergingSteps(self.env())))

    def test_it_refuses_a_space_it_cannot_act_in(self) -> None:
        env = self.env()
        self.make(env)
        shape, width = env.action_space.shape or (), len(read_problem(env, 0).search_space)
        for space in (
            gym.spaces.Discrete(3),
            gym.spaces.Box(-np.inf, np.inf, shape),
            gym.spaces.Box(-1.0, 1.0, (*shape[:-1], width + 1)),
            gym.spaces.Box(-1.0, 1.0, (2, *shape)),
            gym.spaces.Box(-1.0, 1.0, shape[1:]),
        ):
            self._check_refused("action_space", action_space=space)

    def test_it_refuses_a_process_it_cannot_act_on(self) -> None:
        for process in {"trial", "round"} - {*self._registered().acts_on}:
            self._check_refused("acts in", process=process)

    def test_it_refuses_rewards_it_cannot_use(self) -> None:
        match self._registered().rewards:
            case "scalar":
                self._check_refused("MO-", objectives=("val_loss", "fairness_std"))
            case "vector":
                self._check_refused("MO-", objectives=SCALAR)

    def test_it_refuses_an_option_it_does_not_have(self) -> None:
        env = self.env()
        self.make(env)
        with pytest.raises(InvalidArgumentError, match="no argument 'nonsense'"):
            make_agent(self.name, env, 0, **self.options(env), nonsense=1)

    def _registered(self) -> type[Agent]:
        try:
            return agent_class(self.name)
        except MissingDependencyError as error:
            pytest.skip(str(error))

    def _check_legal(self, steps: list[Step]) -> None:
        assert len(steps) == STEPS
        space = self.env().action_space
        for step in steps:
            assert step.action in space

    def _check_refused(self, message: str, **changes: Any) -> None:
        """Check that the agent refuses its problem with some changes."""
        env = self.env()
        problem = replace(read_problem(env, 0), **changes)
        with pytest.raises(InvalidArgumentError, match=message):
            self._registered()(problem, **self.options(env))


class TrialAgentConformance(AgentConformance):
    """Laws of an agent whose steps are trials."""

    law_class = "TrialAgentConformance"
    decisive: ClassVar[int] = 30
    """Trials after which an agent that learns acts differently from one that does not."""
    fidelity: ClassVar[Mapping[str, float]] = {}

    def env(self) -> gym.Env[Any, Any]:
        return self._trials(STEPS)

    def _trials(self, num_trials: int, **arguments: Any) -> gym.Env[Any, Any]:
        arguments = {"fidelity": self.fidelity, **arguments}
        vectors = self._registered().rewards == "vector"
        return make_env(budget_trials=num_trials, vector_reward=vectors, **arguments)

    def test_it_decides_by_scores_and_not_by_the_shape_of_the_reward(self) -> None:
        if self._registered().rewards == "vector":
            pytest.skip("its rewards are the scores of all objectives")
        expected = [step.action.tolist() for step in self.episode(3, self._trials(self.decisive))]
        env = IncumbentReward(self._trials(self.decisive))
        assert [step.action.tolist() for step in self.episode(3, env)] == expected

    def test_it_survives_scores_that_are_no_numbers(self) -> None:
        self._check_legal(self.episode(env=UnboundedScores(self.env())))

    def test_trials_may_be_in_flight_together_and_be_told_in_any_order(self) -> None:
        env = self.env()
        agent = self.make(env, seed=5)
        observation, _ = env.reset(seed=0)
        actions = [agent.ask(observation) for _ in range(STEPS)]
        assert all(action in env.action_space for action in actions)
        outcomes = [(action, *env.step(action)) for action in reversed(actions)]
        for action, observed, reward, _, _, info in outcomes[: STEPS // 2]:
            agent.tell(Step(action, reward, info=info, observation=observed))
        again = self.make(env, seed=5)
        again.load_state_dict(_through_json(agent.state_dict()))
        for action, observed, reward, _, _, info in outcomes[STEPS // 2 :]:
            for twin in (agent, again):
                twin.tell(Step(action, reward, info=info, observation=observed))
        assert np.array_equal(agent.ask(observation), again.ask(observation))

    def test_it_never_repeats_one_action_only(self) -> None:
        assert len({str(action) for action in self.actions(seed=0)}) > 1


class MultiFidelityAgentConformance(TrialAgentConformance):
    """Laws of an agent that chooses the fidelity of its trials: how many rounds they have."""

    law_class = "MultiFidelityAgentConformance"
    fidelity: ClassVar[Mapping[str, float]] = {"client_sample_rate": 1.0}
    decisive = 300

    def test_it_asks_for_more_than_one_fidelity(self) -> None:
        env = self._trials(self.decisive)
        name = self._registered().fidelity
        assert len({step.info["fidelity"][name] for step in self.episode(env=env)}) > 1

    @pytest.mark.parametrize("fixed", [{}, {"round": 81}, {"round": 81, "client_sample_rate": 1.0}])
    def test_it_refuses_other_free_fidelities(self, fixed: dict[str, float]) -> None:
        with pytest.raises(InvalidArgumentError, match=r"chooses the fidelity.*make the environ"):
            self.make(self._trials(STEPS, fidelity=fixed))


class RoundAgentConformance(AgentConformance):
    """Laws of an agent whose steps are rounds of one course."""

    law_class = "RoundAgentConformance"
    per_client: ClassVar[bool] = False

    def env(self) -> gym.Env[Any, Any]:
        vectors = self._registered().rewards == "vector"
        return AnalyticRounds(horizon=STEPS, per_client=self.per_client, vector_reward=vectors)

    def test_it_refuses_the_other_form_of_actions(self) -> None:
        other = AnalyticRounds(per_client=not self.per_client)
        self._check_refused("`action_space` must.*per_client", action_space=other.action_space)


class ClientAgentConformance(RoundAgentConformance):
    """Laws of an agent that acts for every client."""

    law_class = "ClientAgentConformance"
    per_client: ClassVar[bool] = True

    def test_clients_try_different_actions(self) -> None:
        assert any(len(np.unique(step.action, axis=0)) > 1 for step in self.episode())

    def test_it_acts_where_nobody_trains(self) -> None:
        env = self.env()
        observation, _ = env.reset(seed=0)
        nobody = {**observation, "sampled": np.zeros_like(observation["sampled"])}
        assert self.make(env).ask(nobody) in env.action_space


class LearnedAgentConformance(AgentConformance):
    """Laws of an agent that needs something learned, besides those of where it acts."""

    law_class = "LearnedAgentConformance"

    def env(self) -> gym.Env[Any, Any]:
        kind = self._registered()
        if "trial" in kind.acts_on:
            return make_env(budget_trials=STEPS)
        return AnalyticRounds(horizon=STEPS, per_client=kind.per_client)

    def test_it_refuses_to_act_without_it(self) -> None:
        with pytest.raises(InvalidArgumentError, match=f"`{self._registered().learned}` must be"):
            make_agent(self.name, self.env(), 0)


@validate_call
def agent_laws(name: str) -> tuple[type[AgentConformance], ...]:
    """Return the classes of laws for an agent, chosen by its attributes."""
    kind = agent_class(name)
    laws: list[type[AgentConformance]] = []
    if "trial" in kind.acts_on:
        laws.append(MultiFidelityAgentConformance if kind.fidelity else TrialAgentConformance)
    if "round" in kind.acts_on:
        laws.append(ClientAgentConformance if kind.per_client else RoundAgentConformance)
    if kind.learned is not None:
        laws.append(LearnedAgentConformance)
    return tuple(laws)


def _through_json(state: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


def _without_numbers(value: Any) -> Any:
    """Return nested data whose floats are all NaN."""
    if isinstance(value, Mapping):
        return {key: _without_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_numbers(item) for item in value]
    return float("nan") if isinstance(value, float) else value
