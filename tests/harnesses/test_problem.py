"""The function that all harnesses stand on: it answers what the environment does."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError, UnknownNameError
from fedhpo_gym.harnesses.problem import Problem
from known_optimum import BEST, CONDITIONAL, CREDIT, DIVERGING, OPTIMUM

PROBLEMS: list[tuple[str, dict[str, Any], Any]] = [
    (CREDIT, {}, None),
    (CREDIT, {"noise": {"clients": 0.2}, "budget_trials": 2, "freeze_thaw": True}, None),
    (f"MO-{CREDIT}", {"constraints": {"fairness_p10": 0.5}}, None),
    ("FedHPO-MLP-Car-v1", {"fidelity": {"client_sample_rate": 0.6}}, None),
    (CONDITIONAL, {"choose_fidelity": True}, {"instance": 5}),
]


@pytest.mark.parametrize(("env_id", "arguments", "options"), PROBLEMS)
def test_it_answers_as_a_first_step_whatever_was_asked_before(
    env_id: str, arguments: dict[str, Any], options: dict[str, int] | None
) -> None:
    problem = Problem(env_id, clip=False, options=options, **arguments)
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    rng = np.random.default_rng(0)
    for _ in range(30):
        configuration, fidelity = problem.space.sample(rng), problem.fidelities.sample(rng)
        found = problem.evaluate(configuration, fidelity, noise_seed=0)
        env.reset(seed=0, options=options)
        space = env.get_wrapper_attr("search_space")
        info = env.step(space.encode({**configuration, **fidelity}))[4]
        assert found.values.items() <= info["objectives"].items()
        assert found.time_s == info["cost"]["time_s"]
        excess = [max(one, 0.0) for one in found.excess.values()]
        assert (sum(excess) > 0) == (info.get("violation", 0.0) > 0)
        for one in problem.objectives:
            sign = 1 if one.minimize else -1
            assert found.losses[one.name] == sign * found.values[one.name]


def test_the_known_optimum_comes_out_and_repetitions_are_kept_apart() -> None:
    problem = Problem(CREDIT)
    assert problem.evaluate(BEST).values == {"val_loss": OPTIMUM}
    seeds = problem.describe()["seeds"]
    apart = [problem.evaluate(BEST, seed=seed).values["val_loss"] for seed in seeds]
    assert len({*apart}) == 3
    assert np.mean(apart) == pytest.approx(OPTIMUM)


def test_nothing_is_worse_than_a_trial_that_diverged() -> None:
    problem = Problem(f"MO-{CREDIT}", constraints={"val_loss": 20.0})
    assert not problem.evaluate(BEST).diverged
    failed = problem.evaluate(DIVERGING)
    assert failed.diverged
    assert failed.values["val_loss"] == 10.0
    assert failed.values["fairness_p10"] == 0.0
    assert failed.values["time_s"] == failed.time_s == problem.evaluate(BEST).time_s
    assert failed.excess["val_loss"] > 1e38, "a limit is kept by no trial that diverged"
    assert Problem(CREDIT, clip=False).evaluate(DIVERGING).values["val_loss"] > 1e38
    rng = np.random.default_rng(0)
    found = [problem.evaluate(problem.space.sample(rng)) for _ in range(60)]
    assert 0 < sum(one.diverged for one in found) < len(found)
    for one in found:
        losses = one.losses["val_loss"], one.losses["fairness_p10"]
        assert losses <= (10.0, 0.0)
        assert losses == (10.0, 0.0) or not one.diverged


def test_what_has_no_answer_is_refused() -> None:
    problem = Problem(CREDIT)
    with pytest.raises(OffGridError):
        problem.evaluate({**BEST, "learning_rate": 0.5})
    with pytest.raises(OffGridError):
        problem.evaluate(BEST, {"round": 5})
    with pytest.raises(UnknownNameError, match="Unknown fidelity 'rounds'"):
        problem.evaluate(BEST, {"rounds": 4})
    with pytest.raises(InvalidArgumentError, match=r"`configuration` must leave .*to `fidelity`"):
        problem.evaluate({**BEST, "round": 1})
    with pytest.raises(UnknownNameError, match="Unknown fidelity 'learning_rate'"):
        problem.evaluate(BEST, {"learning_rate": 0.1})
    with pytest.raises(InvalidArgumentError, match="continuous=True"):
        Problem("FedHPO-B-LR-v1")


@pytest.mark.raw
def test_steps_of_rounds_are_refused() -> None:
    pytest.importorskip("numba")
    with pytest.raises(InvalidArgumentError, match="leave out DAC"):
        Problem("FedHPO-DAC-LR-BreastCancer-v1")
