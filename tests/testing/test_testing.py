"""The conformance kit: real things keep its laws, and each law finds a planted fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import AGENTS, Agent
from fedhpo_gym.backends import Backend
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Evaluation, Fidelity
from fedhpo_gym.objectives import OBJECTIVES, Objective
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.algorithms import ALGORITHMS
from fedhpo_gym.testing import (
    AgentConformance,
    AlgorithmConformance,
    Analytic,
    BackendConformance,
    ObjectiveConformance,
    WrapperConformance,
    plain,
)

# ------------------------------------------------------------------- real things keep the laws


class TestAnalytic(BackendConformance):
    def make(self) -> Backend:
        return Analytic(get_task("LR-CreditG"))


for _name in ALGORITHMS:
    _class = "TestAlgorithm" + _name.title()
    globals()[_class] = pytest.mark.raw(
        type(_class, (AlgorithmConformance,), {"name": _name, "__module__": __name__})
    )


class TestRandomSearch(AgentConformance):
    name = "random"


class TestOptunaTPE(AgentConformance):
    name = "optuna-tpe"


def test_every_agent_has_joined() -> None:
    assert set(AGENTS) == {TestRandomSearch.name, TestOptunaTPE.name}


for _name in OBJECTIVES:
    _class = "TestObjective" + _name.title().replace("_", "")
    globals()[_class] = type(
        _class, (ObjectiveConformance,), {"name": _name, "__module__": __name__}
    )
del _class, _name


# ------------------------------------------------------------------------------ backend faults


class Faulty(Analytic):
    """An analytic backend with one fault."""

    fault: ClassVar[str]
    queries = 0
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

    def _evaluate(self, configuration: Any, fidelity: Fidelity) -> Evaluation:
        answer = super()._evaluate(configuration, fidelity)
        self.queries += 1
        rounds = fidelity.round
        match self.fault:
            case "drift":
                answer.best[:] += 1e-6 * self.queries
            case "gets worse":
                answer.best[..., 0] *= rounds
            case "best round in the future":
                answer = replace(answer, best_round=answer.best_round + 1)
            case "best is not current":
                answer.best[..., 2] *= 0.999
            case "shared array":
                kept = self.store.setdefault(str(plain([configuration, rounds])), answer)
                answer = kept
            case "not finite":
                answer.best[0, 0, 0, 0] = np.nan
            case "ignores the configuration":
                answer.best[:] = answer.best[:1] * 0 + 1.0 / rounds
                answer = replace(answer, current=answer.best.copy())
        return answer


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


OBJECTIVE_FAULTS = {
    "test_it_is_registered_under_its_own_name": {"name": "other"},
    "test_values_of_ordinary_models_are_within_its_bounds": {"compute": lambda *_: 11.0},
    "test_it_is_a_pure_function": {"compute": lambda e, _: float(e.best.sort(axis=1) is None)},
    "test_the_order_of_clients_does_not_matter": {
        "compute": lambda e, _: float(e.best[0, 0, 1, 0])
    },
    "test_it_says_something": {"compute": lambda *_: 1.0},
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
    count = 0

    def __init__(self, action_space: gym.Space[Any], seed: int) -> None:
        if self.fault == "any space":
            return
        super().__init__(action_space, seed)
        unseeded = self.fault == "no seed"
        self._rng = np.random.default_rng(None if unseeded else seed)

    def ask(self, observation: Any) -> Any:
        if self.fault == "global":
            np.random.rand()  # noqa: NPY002 - the fault
        if self.fault == "constant":
            return np.zeros(self.action_space.shape, np.float32)
        type_ = np.float64 if self.fault == "double" else np.float32
        return self._rng.uniform(-1, 1, self.action_space.shape).astype(type_)

    def tell(
        self, action: Any, reward: float, observation: Any, terminated: bool, info: Any
    ) -> None:
        if self.fault == "writes":
            observation["trials"][:] = 0


AGENT_FAULTS = {
    "double": "test_it_runs_an_episode_with_legal_actions",
    "no seed": "test_equal_seeds_do_the_same",
    "constant": "test_the_seed_matters",
    "constant ": "test_it_never_repeats_one_action_only",
    "global": "test_it_leaves_global_random_numbers_alone",
    "writes": "test_it_does_not_write_into_what_it_is_shown",
    "any space": "test_it_refuses_a_space_it_cannot_act_in",
}


@pytest.mark.parametrize(("planted", "law"), AGENT_FAULTS.items())
def test_a_faulty_agent_breaks_its_law(
    planted: str, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = type("Planted", (FaultyAgent,), {"fault": planted.strip()})
    monkeypatch.setattr("fedhpo_gym.testing.agent.agent_class", lambda _: faulty)

    class Laws(AgentConformance):
        name = "planted"

        def make(self, env: Any, seed: int = 0) -> Agent:
            if planted == "any space":
                return FaultyAgent(env.action_space, seed)
            made: Agent = faulty(env.action_space, seed)
            return made

    with pytest.raises((AssertionError, pytest.fail.Exception)):
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
        ("unknown", "test_tasks_know_it_and_what_it_reads"),
    ],
)
def test_a_faulty_algorithm_breaks_its_law(planted: str, law: str) -> None:
    pytest.importorskip("torch")
    from fedhpo_gym.fl.algorithms import FedAvg

    class Planted(FedAvg):
        calls = 0

        def server_update(self, parameters: Any, average: Any, state: Any, _: Any) -> Any:
            self.calls += 1
            if planted == "order":  # courses of a block leak into each other
                average = {k: v + 1e-3 * v.sum(-1, keepdim=True) for k, v in average.items()}
            if planted == "own state":
                average = {k: v + 1e-3 * self.calls for k, v in average.items()}
            return (parameters if planted == "stands still" else average), state

    algorithm = Planted()

    class Laws(AlgorithmConformance):
        name = "fedopt" if planted == "unknown" else "fedavg"

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
