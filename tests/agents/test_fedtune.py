"""FedTune's rule against its formulas written out, its monotone laws, and the agent around it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.agents import SearchProblem
from fedhpo_gym.agents.base import Step
from fedhpo_gym.agents.fedtune import FedTune, FedTuneController, Preferences, round_costs
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.space import Dimension, SearchSpace

LIMITS: dict[str, Any] = {"participant_limits": (1, 50), "pass_limits": (1, 40)}


def controller(*weights: float) -> FedTuneController:
    return FedTuneController(Preferences(*weights), 20, 20, **LIMITS)


def run(tuner: FedTuneController, rounds: list[tuple[float, list[float]]]) -> list[tuple[int, int]]:
    settings = []
    for accuracy, costs in rounds:
        tuner.update(accuracy, np.array(costs))
        settings.append((tuner.stage.participants, tuner.stage.passes))
    return settings


ROUNDS: list[tuple[float, list[float]]] = [
    (0.10, [9.0, 1.0, 70.0, 20.0]),
    (0.14, [8.0, 1.0, 65.0, 19.0]),
    (0.145, [8.0, 1.0, 66.0, 18.0]),  # too small a gain: this stage goes on
    (0.19, [9.0, 1.2, 60.0, 18.0]),
    (0.22, [7.0, 1.1, 66.0, 21.0]),
    (0.27, [7.0, 1.3, 50.0, 17.0]),
    (0.33, [6.5, 1.0, 58.0, 19.0]),
    (0.36, [6.0, 1.6, 59.0, 12.0]),
]


def written_out(a: float, b: float, g: float, d: float) -> list[tuple[int, int]]:
    """The paper's formulas, one line per term: a reference without vectors."""
    m = e = 20
    m1 = e1 = 0
    cur, prv, old = [0.0] * 4, [0.0] * 4, [0.0] * 4
    eta_t = eta_q = eta_z = eta_v = zeta_t = zeta_q = zeta_z = zeta_v = 1e9
    last, stage, settings = 0.0, 0, []
    for accuracy, costs in ROUNDS:
        cur = [c + x for c, x in zip(cur, costs, strict=True)]
        if accuracy - last > 0.01:
            t, q, z, v = (c / (accuracy - last) for c in cur)
            m0, e0 = m, e
            if stage:
                dt, dq, dz, dv = (abs(c - p) for c, p in zip((t, q, z, v), prv, strict=True))
                ot, oq, oz, ov = (abs(p - o) for p, o in zip(prv, old, strict=True))
                worse = (
                    a * (t - prv[0]) / t
                    + b * (q - prv[1]) / q
                    + g * (z - prv[2]) / z
                    + d * (v - prv[3]) / v
                )
                factor = 10.0 if worse > 0 else 1.0
                if m > m1:
                    eta_t, eta_q = dt / ot, dq / oq
                    eta_z, eta_v = eta_z * factor, eta_v * factor
                else:
                    eta_z, eta_v = dz / oz, dv / ov
                    eta_t, eta_q = eta_t * factor, eta_q * factor
                if e > e1:
                    zeta_q, zeta_v = dq / oq, dv / ov
                    zeta_t, zeta_z = zeta_t * factor, zeta_z * factor
                else:
                    zeta_t, zeta_z = dt / ot, dz / oz
                    zeta_q, zeta_v = zeta_q * factor, zeta_v * factor
                up_m = a * eta_t * dt / t + b * eta_q * dq / q
                up_m -= g * eta_z * dz / z + d * eta_v * dv / v
                up_e = b * zeta_q * dq / q + d * zeta_v * dv / v
                up_e -= a * zeta_t * dt / t + g * zeta_z * dz / z
                m0, e0 = m + (1 if up_m > 0 else -1), e + (1 if up_e > 0 else -1)
            old, prv, cur = prv, [t, q, z, v], [0.0] * 4
            m1, e1, m, e, last, stage = m, e, m0, e0, accuracy, stage + 1
        settings.append((m, e))
    return settings


@given(weights=st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda w: sum(w) > 0.01))
def test_decisions_are_those_of_the_formulas(weights: list[float]) -> None:
    assert run(controller(*weights), ROUNDS) == written_out(*weights)


@pytest.mark.parametrize(
    ("weights", "participants", "passes"),
    [
        ((1, 0, 0, 0), +1, -1),
        ((0, 1, 0, 0), +1, +1),
        ((0, 0, 1, 0), -1, -1),
        ((0, 0, 0, 1), -1, +1),
    ],
    ids=["computation time", "transmission time", "computation load", "transmission load"],
)
def test_one_cost_alone_pulls_its_own_way(
    weights: tuple[float, ...], participants: int, passes: int
) -> None:
    tuner = controller(*weights)
    final = run(tuner, ROUNDS)[-1]
    moves = tuner.decisions - 1
    assert moves == 6
    assert final == (20 + moves * participants, 20 + moves * passes)


def test_nothing_moves_before_the_second_stage_or_without_a_gain() -> None:
    tuner = controller()
    costs = [5.0, 1.0, 40.0, 10.0]
    assert run(tuner, [(0.3, costs)] + [(0.305, costs)] * 5) == [(20, 20)] * 6
    assert tuner.decisions == 1
    assert run(tuner, [(0.4, costs)]) != [(20, 20)]


def test_it_stays_within_its_limits() -> None:
    tuner = FedTuneController(
        Preferences(1, 0, 0, 0), 3, 2, participant_limits=(1, 4), pass_limits=(1, 3)
    )
    rounds = [(0.05 * (i + 1), [5.0 + i, 1.0, 40.0, 3.0]) for i in range(10)]
    assert run(tuner, rounds)[-1] == (4, 1)


def test_equal_costs_keep_the_slopes_finite() -> None:
    tuner = controller()
    run(tuner, [(0.5 - 0.5**i, [8.0, 4.0, 2.0, 1.0]) for i in range(1, 6)])
    run(tuner, [(0.9, [1.0, 1.0, 1.0, 1.0])])
    assert np.isfinite(tuner._slopes).all()


def test_the_costs_of_a_round_by_hand() -> None:
    np.testing.assert_array_equal(round_costs(np.array([10.0, 40.0]), 3), [120, 1, 150, 2])


SPACE = SearchSpace(
    (
        Dimension("learning_rate", 0.01, 1.0, "float", log=True),
        Dimension("step_size", 1, 4, "int"),
        Dimension("rate", 0.2, 1.0, "float", bins=5),
    )
)
PROBLEM = SearchProblem(gym.spaces.Box(-1, 1, (3,)), SPACE, process="round")
START = {"learning_rate": 0.1, "step_size": 2, "rate": 0.6}


def agent(*weights: float, participants: str | None = "rate") -> FedTune:
    preferences = Preferences(*weights)
    return FedTune(PROBLEM, start=START, preferences=preferences, participants=participants)


def play(tuner: FedTune, rounds: int) -> list[dict[str, Any]]:
    configurations = []
    for i in range(rounds):
        action = tuner.ask({})
        configurations.append(SPACE.decode(action))
        samples = np.array([30.0, 0.0, 50.0 + i])
        info = {"val_accuracy": 0.1 * (i + 1), "num_train_samples": samples}
        tuner.tell(Step(action, 0.0, info=info))
    return configurations


def test_the_agent_moves_along_the_space_and_keeps_the_rest() -> None:
    first, *_, last = play(agent(1, 0, 0, 0), 8)
    assert first == pytest.approx(START)
    assert last == pytest.approx({"learning_rate": 0.1, "step_size": 1, "rate": 1.0})
    only_passes = play(agent(0, 0, 0, 1, participants=None), 8)
    assert {round(c["rate"], 5) for c in only_passes} == {0.6}


def test_by_default_it_starts_in_the_middle() -> None:
    [middle] = play(FedTune(PROBLEM, participants="rate"), 1)
    assert middle == pytest.approx({"learning_rate": 0.1, "step_size": 3, "rate": 0.6})


def test_rounds_without_a_finite_accuracy_teach_nothing() -> None:
    tuner = agent()
    info = {"val_accuracy": np.nan, "num_train_samples": np.ones(3)}
    tuner.tell(Step(tuner.ask({}), 0.0, info=info))
    tuner.tell(Step(tuner.ask({}), 0.0, info={"val_accuracy": 1.0, "num_train_samples": [0.0]}))
    assert tuner.controller.decisions == 0


def test_clients_that_did_not_take_part_cost_nothing() -> None:
    listed, padded = agent(1, 1, 1, 1), agent(1, 1, 1, 1)
    for i in range(8):
        samples = np.array([30.0, 50.0 + i, 20.0][: 2 + i % 2])
        for tuner, absent in ((listed, 0), (padded, 3 - len(samples))):
            info = {
                "val_accuracy": 0.1 * (i + 1),
                "num_train_samples": np.append(samples, np.zeros(absent)),
            }
            tuner.tell(Step(tuner.ask({}), 0.0, info=info))
    np.testing.assert_array_equal(listed.controller._slopes, padded.controller._slopes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Preferences(0, 0, 0, 0), "`preferences`"),
        (lambda: Preferences(-1, 1, 1, 1), "`preferences`"),
        (lambda: FedTuneController(Preferences(), 60, 20, **LIMITS), "`participants`"),
        (lambda: FedTuneController(Preferences(), 20, 0, **LIMITS), "`passes`"),
        (lambda: FedTuneController(Preferences(), 9, 9, penalty=0.5, **LIMITS), "`penalty`"),
        (lambda: controller().update(0.5, np.array([1.0, 0.0, 1.0, 1.0])), "`costs`"),
        (lambda: controller().update(np.nan, np.ones(4)), "`accuracy`"),
        (lambda: agent().tell(Step(np.zeros(3), 0.0)), "`info` must have"),
        (lambda: FedTune(PROBLEM, start={**START, "rate": 0.5}, participants="rate"), "'rate'"),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_an_unknown_dimension_is_named() -> None:
    with pytest.raises(UnknownNameError, match="step_size"):
        FedTune(PROBLEM, start=START, passes="step_sizes")
