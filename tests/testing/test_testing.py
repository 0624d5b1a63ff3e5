"""The conformance kit: real things keep its laws, and each law finds a planted fault."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import Agent, SearchProblem, read_problem
from fedhpo_gym.agents.base import Step
from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.backends import Backend
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import ENTRIES, Evaluation, Evaluations, Fidelity
from fedhpo_gym.objectives import OBJECTIVES, Objective
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing import (
    AgentConformance,
    AlgorithmConformance,
    Analytic,
    BackendConformance,
    ClientAgentConformance,
    MultiFidelityAgentConformance,
    ObjectiveConformance,
    RoundAgentConformance,
    TrialAgentConformance,
    WrapperConformance,
)

# ------------------------------------------------------------------- real things keep the laws


class TestAnalytic(BackendConformance):
    def make(self) -> Backend:
        return Analytic(get_task("LR-CreditG"))


SETTINGS = {"dpfedavg": {"noise_multiplier": 0.0}}
"""At the ends of its ranges four clients are too few to hide each other and learn."""


def plain_reference(name: str) -> Callable[..., Any] | None:
    """Return the plain implementation of an algorithm that `plain_course` has."""
    if ALGORITHMS[name].asynchronous or ALGORITHMS[name].poisson:
        return None  # these have loops of their own, in tests/fl

    def reference(federation: Any, course: Any, rounds: int) -> Any:
        from plain_course import GIVEN, plain_course  # it needs torch

        if name not in GIVEN:
            pytest.skip(f"the reference of {name} is in a test of its own")
        defaults = {n: setting.default for n, setting in ALGORITHMS[name].settings.items()}
        course = replace(course, configuration={**defaults, **course.configuration})
        return np.array(plain_course(federation, [course] * rounds, name, rounds).metrics)[..., 0]

    return reference


for _name in ALGORITHMS:
    _class = "TestAlgorithm" + _name.title()
    _own = {"name": _name, "settings": SETTINGS.get(_name, {}), "__module__": __name__}
    _own["reference"] = plain_reference(_name)
    globals()[_class] = pytest.mark.raw(type(_class, (AlgorithmConformance,), _own))


for _name in OBJECTIVES:
    _class = "TestObjective" + _name.title().replace("_", "")
    globals()[_class] = type(
        _class, (ObjectiveConformance,), {"name": _name, "__module__": __name__}
    )
del _class, _name, _own


# ------------------------------------------------------------------------------ backend faults


class Faulty(Analytic):
    """An analytic backend with one fault."""

    fault: ClassVar[str]
    asked = 0
    store: ClassVar[dict[str, Any]] = {}

    @property
    def fingerprint(self) -> str:
        return "analytic-1"

    def __reduce__(self) -> tuple[Any, ...]:
        forgets = self.fault == "copy of another seed"
        return type(self), (self.task, 3 if forgets else self.seed)

    def evaluate(self, configuration: Mapping[str, object], fidelity: Fidelity) -> Evaluation:
        if self.fault == "accepts anything" and (
            "nonsense" in configuration or fidelity.round == 0 or len(configuration) == 0
        ):
            configuration = self.space.decode(np.zeros(len(self.space)))
            fidelity = Fidelity(1, 1.0)
        return super().evaluate(configuration, fidelity)

    def _answer(self, configuration: Any, fidelity: Fidelity) -> Evaluation:
        answer = super()._answer(configuration, fidelity)
        self.asked += 1
        rounds = fidelity.round
        match self.fault:
            case "drift":
                answer.best[:] += 1e-6 * self.asked
            case "gets worse":
                answer.best[..., 0] *= rounds
            case "best round in the future":
                answer = replace(answer, best_round=answer.best_round + 1)
            case "best is not current":
                answer.best[..., 2] *= 0.999
            case "not finite":
                answer.best[0, 0, 0, 0] = np.nan
            case "ignores the configuration":
                answer.best[:] = answer.best[:1] * 0 + 1.0 / rounds
                answer = replace(answer, current=answer.best.copy())
        return answer

    def look_up(self, columns: Any, reads: Any = ENTRIES) -> Evaluations:
        found = super().look_up(columns, reads)
        if self.fault == "shared array":
            found = self.store.setdefault(str(columns), found)
        return found


FAULTS = {
    "drift": "test_the_same_question_gets_the_same_answer",
    "gets worse": "test_the_best_so_far_never_gets_worse",
    "best round in the future": "test_the_best_round_has_happened",
    "best is not current": "test_the_best_is_what_was_current_in_the_best_round",
    "shared array": "test_an_answer_belongs_to_who_asked",
    "not finite": "test_an_answer_has_every_seed_client_split_and_metric",
    "ignores the configuration": "test_configurations_matter",
    "accepts anything": "test_what_it_cannot_answer_it_refuses",
    "copy of another seed": "test_a_copy_answers_alike",
    "drift ": "test_the_order_of_questions_does_not_matter",
}


@pytest.mark.parametrize(("planted", "law"), FAULTS.items())
def test_a_faulty_backend_breaks_its_law(planted: str, law: str) -> None:
    faulty = type("Planted", (Faulty,), {"fault": planted.strip(), "store": {}})

    class Laws(BackendConformance):
        def make(self) -> Backend:
            made: Backend = faulty(get_task("LR-CreditG"))
            return made

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Laws(), law)()


# ---------------------------------------------------------------------------- objective faults


COUNT = itertools.count()
OBJECTIVE_FAULTS = {
    "test_it_is_registered_under_its_own_name": {"name": "other"},
    "test_values_of_ordinary_models_are_within_its_bounds": {
        "compute": lambda e, _: np.full(len(e), 11.0)
    },
    "test_it_is_a_pure_function": {"compute": lambda e, _: np.full(len(e), next(COUNT))},
    "test_the_order_of_clients_does_not_matter": {"compute": lambda e, _: e.best[:, 0, 0, 1, 0]},
    "test_it_says_something": {"compute": lambda e, _: np.ones(len(e))},
}


@pytest.mark.parametrize(("law", "changes"), OBJECTIVE_FAULTS.items())
def test_a_faulty_objective_breaks_its_law(law: str, changes: dict[str, Any]) -> None:
    planted = replace(OBJECTIVES["val_loss"], **changes)

    class Laws(ObjectiveConformance):
        name = "val_loss"

        @property
        def objective(self) -> Objective:
            return planted

    with pytest.raises(AssertionError):
        getattr(Laws(), law)()


# -------------------------------------------------------------------------------- agent faults


class FaultyAgent(Agent):
    fault = ""

    def __init__(self, problem: SearchProblem) -> None:
        if self.fault == "anything":
            self.problem, self.action_space = problem, problem.action_space  # type: ignore[assignment]
        else:
            super().__init__(problem)
        self._rng = np.random.default_rng(None if self.fault == "no seed" else problem.seed)
        self._lost = False

    def ask(self, observation: Any) -> Any:
        if self.fault == "global":
            np.random.rand()  # noqa: NPY002 - the fault
        if self.fault == "constant":
            return np.zeros(self.action_space.shape, np.float32)
        if self._lost:
            return np.full(self.action_space.shape, 1.5)
        if self.fault == "needs a client" and not observation["sampled"].any():
            return np.zeros(0)
        most = 2 if self.fault == "outside" else 1
        return self._rng.uniform(-most, most, self.action_space.shape)

    def tell(self, step: Step) -> None:
        self._lost = self.fault == "lost" and not np.isfinite(step.info["objectives"]["val_loss"])
        if self.fault == "writes":
            step.observation["trials"][:] = 0


class FaultyClients(FaultyAgent):
    per_client = True


class FaultyRounds(FaultyAgent):
    acts_on = ("round",)


class FaultyScalar(FaultyAgent):
    rewards = "scalar"


class FaultyFidelity(FaultyAgent):
    fidelity = "round"


TRIALS, CLIENTS = TrialAgentConformance, ClientAgentConformance
AGENT_FAULTS = [
    (FaultyAgent, "outside", TRIALS, "test_it_runs_an_episode_with_legal_actions"),
    (FaultyAgent, "no seed", TRIALS, "test_equal_seeds_do_the_same"),
    (FaultyAgent, "another agent", TRIALS, "test_another_process_does_the_same"),
    (FaultyAgent, "constant", TRIALS, "test_the_seed_matters_where_its_class_says_so"),
    (FaultyAgent, "constant", TRIALS, "test_it_never_repeats_one_action_only"),
    (FaultyAgent, "global", TRIALS, "test_it_leaves_global_random_numbers_alone"),
    (FaultyAgent, "writes", TRIALS, "test_it_does_not_write_into_what_it_is_shown"),
    (FaultyAgent, "lost", TRIALS, "test_it_survives_steps_that_diverged"),
    (FaultyAgent, "lost", RoundAgentConformance, "test_it_survives_steps_that_diverged"),
    (FaultyAgent, "anything", TRIALS, "test_it_refuses_a_space_it_cannot_act_in"),
    (FaultyRounds, "anything", RoundAgentConformance, "test_it_refuses_a_process_it_cannot_act_on"),
    (FaultyScalar, "anything", TRIALS, "test_it_refuses_rewards_it_cannot_use"),
    (FaultyRounds, "anything", RoundAgentConformance, "test_it_refuses_the_other_form_of_actions"),
    (FaultyClients, "constant", CLIENTS, "test_clients_try_different_actions"),
    (FaultyClients, "needs a client", CLIENTS, "test_it_acts_where_nobody_trains"),
    (
        FaultyFidelity,
        "constant",
        MultiFidelityAgentConformance,
        "test_it_asks_for_more_than_one_fidelity",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "planted", "laws", "law"), AGENT_FAULTS)
def test_a_faulty_agent_breaks_its_law(
    kind: type[Agent],
    planted: str,
    laws: type[AgentConformance],
    law: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty = type("Planted", (kind,), {"fault": planted})
    monkeypatch.setattr("fedhpo_gym.testing.agent.agent_class", lambda _: faulty)
    # Another process knows only registered agents: there, this one is random search.
    monkeypatch.setattr(laws, "name", "random", raising=False)

    class Laws(laws):  # type: ignore[misc, valid-type]
        def make(self, env: Any, seed: int = 0) -> Agent:
            made: Agent = faulty(read_problem(env, seed))
            return made

    with pytest.raises((AssertionError, InvalidArgumentError, pytest.fail.Exception)):
        getattr(Laws(), law)()


# ---------------------------------------------------------------------------- algorithm faults


@pytest.mark.raw
@pytest.mark.parametrize(
    ("planted", "law"),
    [
        ("order", "test_a_course_is_bitwise_the_same_alone_and_in_any_batch"),
        ("own state", "test_two_trainings_at_once_do_not_share_state"),
        ("own state", "test_advancing_in_parts_equals_advancing_at_once"),
        ("stands still", "test_it_learns"),
    ],
)
def test_a_faulty_algorithm_breaks_its_law(planted: str, law: str) -> None:
    pytest.importorskip("torch")
    from fedhpo_gym.algorithms import FedAvg

    class Planted(FedAvg):
        calls = 0

        def server_update(self, parameters: Any, average: Any, state: Any, _: Any) -> Any:
            self.calls += 1
            if planted == "order":  # courses leak into each other
                average = {k: v + 1e-3 * v.sum(1)[:, None] for k, v in average.items()}
            if planted == "own state":
                average = {k: v + 1e-3 * self.calls for k, v in average.items()}
            return (parameters if planted == "stands still" else average), state

    algorithm = Planted()

    class Laws(AlgorithmConformance):
        name = "fedavg"

        @property
        def algorithm(self) -> Any:
            return algorithm

    with pytest.raises(AssertionError):
        getattr(Laws(), law)()


# ------------------------------------------------------------------------------ wrapper faults


class NoSpec(gym.Wrapper[Any, Any, Any, Any]):
    """Does not record its arguments."""


class Drift(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Its rewards depend on how many wrappers were made before, and steps forget episodes."""

    made = 0

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        Drift.made += 1
        self.number, self.steps = Drift.made, 0

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        return observation, float(reward) - self.number - self.steps, terminated, truncated, info

    def __deepcopy__(self, memo: Any) -> Any:
        return Drift(self.env)


class Escapes(gym.ObservationWrapper[Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Observations leave their space."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)

    def observation(self, observation: Any) -> Any:
        return {**observation, "loss": observation["loss"] - 100}


@pytest.mark.parametrize(
    ("wrapper", "law"),
    [
        (Escapes, "test_gymnasium_accepts_it"),
        (Drift, "test_twins_agree"),
        (Drift, "test_two_episodes_of_one_environment_agree"),
        (Drift, "test_a_copy_made_in_mid_episode_goes_on_alike"),
        (Drift, "test_its_spec_survives_json"),
        (NoSpec, "test_its_spec_survives_json"),
    ],
)
def test_a_faulty_wrapper_breaks_its_law(wrapper: Any, law: str) -> None:
    class Laws(WrapperConformance):
        def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
            wrapped: gym.Env[Any, Any] = wrapper(env)
            return wrapped

    with pytest.raises((AssertionError, ValueError, UserWarning)):
        getattr(Laws(), law)()


def test_the_analytic_backend_is_what_its_formula_says() -> None:
    backend = Analytic(get_task("LR-CreditG"), seed=2)
    middle = backend.space.decode(np.full(len(backend.space), 0.3))
    loss = backend.evaluate(middle, Fidelity(4, 1.0)).clients("val", "loss")
    expected = 0.2 + 0.25 + 0.02 + 0.02 * np.arange(5)
    np.testing.assert_allclose(loss[0], expected, atol=0.02)  # integers are rounded
    with pytest.raises(InvalidArgumentError):
        backend.evaluate({}, Fidelity(4, 1.0))
