"""Federations of quadratics: rounds by hand, and the schedules that are said to be the best."""

from __future__ import annotations

import copy
import pickle
from itertools import combinations
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import fedhpo_gym  # noqa: F401 - registers the id
from fedhpo_gym.backends import quadratic_schedules as schedules
from fedhpo_gym.backends.quadratic import QuadraticCourses, Quadratics
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks import Instance, make_instances
from fedhpo_gym.tasks.quadratic import QUADRATIC, QuadraticTask
from fedhpo_gym.testing import RoundConformance, plain
from fedhpo_gym.testing.rollout import go_on, rollout

ID = "FedHPO-DAC-Quadratic-v1"
INSTANCES = (Instance(0.1, 3), Instance(0.5, 4), Instance(5.0, 5))


class TestRounds(RoundConformance):
    task_id = ID

    def test_a_pickle_made_in_mid_episode_goes_on_alike(self) -> None:
        env = self.make()
        rollout(env, steps=2)
        twin = pickle.loads(pickle.dumps(env))
        assert go_on(twin, 2) == go_on(env, 2)


def with_steps(low: float, high: float, steps: int, **changes: Any) -> QuadraticTask:
    """Return the problem with other ranges."""
    dimensions = (
        Dimension("learning_rate", low, high, "float", log=True),
        Dimension("step_size", 1, steps, "int"),
    )
    return QUADRATIC.variant(client_space=SearchSpace(dimensions), **changes)


def small_task() -> QuadraticTask:
    """Return six clients in three dimensions, of which three train."""
    rate = Dimension("client_sample_rate", 0.1, 0.5, "float", scope="fidelity")
    space = SearchSpace((QUADRATIC.fidelity_space["round"], rate))
    return QUADRATIC.variant(num_clients=6, num_parameters=3, fidelity_space=space)


# ----------------------------------------------------------------------------------- a round


@pytest.mark.parametrize(("local", "number"), [(False, 2), (True, 2), (False, 1)])
def test_a_round_is_local_steps_and_a_mean(local: bool, number: int) -> None:
    task = QUADRATIC.variant(noise=(1e-12, 2e-12))
    given = {"learning_rate": 0.05, "step_size": 3}
    courses = QuadraticCourses(task, INSTANCES, 1, given, 0.1, horizon=9, local_metrics=local)
    rates = 0.02 * (1 + np.arange(task.num_clients)) if local else np.full(task.num_clients, 0.05)
    if local:
        given |= {f"learning_rate@{i}": rate for i, rate in enumerate(rates)}
    courses.start([0], [1])
    courses.configure([given], [number / task.num_clients])
    report = courses.advance(1)
    chosen = np.flatnonzero(report.feedback.sampled[0, 0])
    assert len(chosen) == number
    own = Quadratics.of(task, INSTANCES[1])
    ends = []
    for client in chosen:
        model = own.first
        for _ in range(3):
            gradient = own.curvature[client] * (model - own.optima[client])
            model = model - rates[client] * gradient
        ends.append(model)
    moves = np.array(ends) - own.first
    after, mean = np.mean(ends, axis=0), moves.mean(axis=0)
    losses = own.curvature / 2 * (after @ after)
    np.testing.assert_allclose(report.metrics[0, :, 1, 0], losses, rtol=1e-6)
    norms = np.linalg.norm(moves, axis=1)
    np.testing.assert_allclose(report.feedback.update_norm[0, 0, chosen], norms, rtol=1e-6)
    cosines = moves @ mean / norms / np.linalg.norm(mean)
    np.testing.assert_allclose(report.feedback.alignment[0, 0, chosen], cosines, rtol=1e-5)
    if local:
        for told, models in (
            (report.feedback.before, [own.first] * number),
            (report.feedback.after, ends),
        ):
            found = [own.curvature[c] / 2 * (m @ m) for c, m in zip(chosen, models, strict=True)]
            np.testing.assert_allclose(told[0, 0, chosen, 1, 0], found, rtol=1e-6)
        assert np.count_nonzero(report.feedback.before[0, 0, :, 1, 0]) == number


def test_who_will_train_is_known_before() -> None:
    given = {"learning_rate": 0.05, "step_size": 1}
    courses = QuadraticCourses(QUADRATIC, INSTANCES, 3, given, 0.1, horizon=9)
    courses.start([0, 1, 2], [0, 1, 2])
    ahead = [courses.sampled(rounds) for rounds in (1, 3)]
    sampled = courses.advance(3).feedback.sampled
    np.testing.assert_array_equal(ahead[0], sampled[:, 0])
    np.testing.assert_array_equal(ahead[1], sampled.any(axis=1))
    assert ahead[1].sum() > 9


def test_the_loss_is_how_far_the_mean_of_the_clients_is_above_its_minimum() -> None:
    own = Quadratics.of(QUADRATIC, INSTANCES[0])

    def mean(x: NDArray[np.float64]) -> float:
        return float((own.curvature / 2 * ((x - own.optima) ** 2).sum(axis=1)).mean())

    excess = mean(own.first) - mean(0 * own.first)
    assert excess == pytest.approx(1.0)
    for direction in np.eye(len(own.first)):
        assert mean(1e-3 * direction) > mean(0 * direction) < mean(-1e-3 * direction)
    _, info = gym.make(ID, instances=[[0.1, 3]]).reset(seed=0)
    assert info["instance"]["alpha"] == 0.1


def test_moves_are_told() -> None:
    env: Any = gym.make(ID, report_moves=True).unwrapped
    env.reset(seed=0)
    models = [env.process.courses.snapshot(0).state.model]
    for rate in (0.1, -0.1, 0.2):
        *_, info = env.step(np.array([rate, 0.0], np.float32))
        models.append(env.process.courses.snapshot(0).state.model)
        moves = np.diff(models, axis=0)
        expected = moves[-1] @ moves[-2] if len(moves) > 1 else 0.0
        assert info["move_product"] == pytest.approx(expected)


FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "clients": {"per_client": True, "client_sample_rate": 0.05},
    "cohorts": {"dynamic": ["learning_rate", "step_size", "client_sample_rate"]},
    "many rounds": {"rounds_per_step": 2, "report_moves": True},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", [5, 40])  # many streams begin otherwise than few
def test_an_episode_has_the_bits_that_it_has_alone(form: str, number: int) -> None:
    mode: Any = "vector_entry_point"
    vector = gym.make_vec(ID, number, vectorization_mode=mode, **FORMS[form])
    vector.reset(seed=7, options={"instance": list(range(number))})
    alone = [gym.make(ID, **FORMS[form]) for _ in range(5)]
    for index, env in enumerate(alone):
        env.reset(options={"instance": index})
    vector.action_space.seed(0)
    for _ in range(4):
        actions = 0.7 * vector.action_space.sample()
        seen, rewards, over, *_ = vector.step(actions)
        for index, env in enumerate(alone):
            one = env.step(actions[index])
            mine = {name: values[index] for name, values in seen.items()}
            assert plain([mine, float(rewards[index]), bool(over[index])]) == plain(
                [dict(one[0]), one[1], one[2]]
            )


def test_a_course_can_diverge() -> None:
    env = gym.make(ID, instances=[[0.1, seed] for seed in range(100, 132)])
    ends = []
    for index in range(32):
        env.reset(options={"instance": index})
        over, total = False, 0.0
        while not over:
            _, reward, over, _, info = env.step(np.ones(2, np.float32))
            total += float(reward)
        ends.append(info["diverged"])
        assert total >= -9.0 - 1e-6
        assert (total == pytest.approx(-9.0)) or not info["diverged"]
    assert 0 < sum(ends) < 8


# --------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("env_id", "given", "words"),
    [
        (ID, {"algorithm": "fedopt"}, "`algorithm` must be left out"),
        (ID, {"preprocessing": "standardized"}, "`preprocessing` must be left out"),
        (ID, {"backend": "raw"}, "Unknown model 'Quadratic'"),
        ("FedHPO-DAC-LR-BreastCancer-v1", {"backend": "quadratic"}, "must not be 'quadratic'"),
    ],
)
def test_what_it_is_not_is_refused(env_id: str, given: dict[str, Any], words: str) -> None:
    if given.get("backend") == "raw":
        pytest.importorskip("torch")
    with pytest.raises(FedHPOError, match=words):
        gym.make(env_id, **given)


def test_there_is_no_trial() -> None:
    assert "FedHPO-Quadratic-v1" not in gym.registry


# ------------------------------------------------------------------- expectations and schedules


@pytest.mark.parametrize(("rate", "steps"), [(0.05, 1), (0.3, 4), (0.9, 3)])
def test_moments_are_means_over_all_cohorts(rate: float, steps: int) -> None:
    task = small_task()
    own = Quadratics.of(task, INSTANCES[0])
    factor = 1.0 - rate * own.curvature
    noise = (rate * own.noise) ** 2 * (1.0 - factor ** (2 * steps)) / (1.0 - factor**2)
    kept, added = schedules.moments(task, own, np.array(rate), np.array(steps))
    for x in (own.first, own.optima[1], np.zeros(3)):
        found = []
        for cohort in map(list, combinations(range(6), 3)):
            power = factor[cohort, None] ** steps
            model = (power * x + (1.0 - power) * own.optima[cohort]).mean(axis=0)
            found.append(model @ model + 3 * noise[cohort].sum() / 3**2)
        expected = own.scale * np.mean(found)
        assert kept * own.scale * (x @ x) + added == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_episodes_have_the_expected_loss() -> None:
    number = 1_500
    wanted = [(0.5, seed) for seed in range(number)]
    rounds = [(0.2, 1), (0.05, 8), (0.08, 3), (0.04, 2), (0.02, 5), (0.03, 4)]
    schedule = [{"learning_rate": rate, "step_size": steps} for rate, steps in rounds]
    budget = {"budget_s": 123.0}
    mode: Any = "vector_entry_point"
    vector: Any = gym.make_vec(ID, number, vectorization_mode=mode, instances=wanted, **budget)
    vector.reset(seed=0, options={"instance": list(range(number))})
    returns = np.zeros(number)
    for chosen in schedule:
        action = vector.process.controls.space.encode(chosen)
        _, rewards, over, _, info = vector.step(np.tile(action, (number, 1)))
        returns += rewards
    assert over.all()
    np.testing.assert_allclose(returns, 1.0 - info["val_loss"], atol=1e-6)
    task = QUADRATIC.variant(**budget)
    expected = [schedules.expected_loss(Instance(*one), schedule, task) for one in wanted]
    apart = info["val_loss"] / np.array(expected) - 1.0
    error = apart.std() / np.sqrt(number)
    assert error < 0.012
    assert abs(apart.mean()) < 3.5 * error


def every_loss(task: QuadraticTask, instance: Instance, rates: NDArray[np.float64]) -> float:
    """Return the least expected loss of all schedules of some step sizes, each tried."""
    own, last = Quadratics.of(task, instance), int(task.space["step_size"].high)
    known = {n: schedules.moments(task, own, rates, np.array(n)) for n in range(1, last + 1)}

    def least(losses: NDArray[np.float64], elapsed_s: float) -> float:
        if elapsed_s >= task.budget_s:
            return float(losses.min())
        found = []
        for steps, (kept, added) in known.items():
            after = (np.multiply.outer(losses, kept) + added).ravel()
            found.append(least(after, elapsed_s + 9.0 + 3.0 * steps))  # as the task says
        return min(found)

    return least(np.ones(1), 0.0)


@pytest.mark.parametrize("instance", INSTANCES)
@pytest.mark.parametrize("budget_s", [30.0, 37.0])
def test_the_best_schedule_is_the_best_of_all(instance: Instance, budget_s: float) -> None:
    task = with_steps(0.02, 0.5, 3, budget_s=budget_s)
    schedule, loss = schedules.best_schedule(instance, task)
    assert loss == pytest.approx(schedules.expected_loss(instance, schedule, task), rel=1e-12)
    tried = every_loss(task, instance, np.geomspace(0.02, 0.5, 25))
    assert loss <= tried
    assert loss == pytest.approx(tried, rel=0.02)


def test_no_other_step_size_is_better() -> None:
    schedule, loss = schedules.best_schedule(INSTANCES[1])
    for index, one in enumerate(schedule):
        for factor in (0.999, 1.001):
            other = [*map(dict, schedule)]
            other[index] = {**one, "learning_rate": one["learning_rate"] * factor}
            assert schedules.expected_loss(INSTANCES[1], other) > loss


def test_the_best_static_configuration_is_the_best() -> None:
    static, mean = schedules.best_static(INSTANCES)

    def mean_of(one: schedules.Round) -> float:
        return float(np.mean([schedules.expected_loss(i, [one]) for i in INSTANCES]))

    assert mean == pytest.approx(mean_of(static), rel=1e-12)
    for steps in range(1, 9):
        for rate in static["learning_rate"] * np.array([0.3, 0.7, 0.99, 1.01, 1.4, 3.0]):
            assert mean_of({"learning_rate": rate, "step_size": steps}) > mean


@pytest.mark.slow
def test_schedules_are_worth_finding() -> None:
    """Where the default scores 0 and an instance's best static configuration 1."""
    instances = make_instances(QUADRATIC, "train")
    middle = gym.make(ID).unwrapped.process.controls.default  # type: ignore[attr-defined]
    scores = []
    for one in instances[::4]:
        default = schedules.expected_loss(one, [middle])
        static, best = schedules.best_static([one])[1], schedules.best_schedule(one)[1]
        scores.append((default - best) / (default - static))
    assert np.mean(scores) > 1.7
    assert min(scores) > 1.3


@pytest.mark.parametrize("instance", INSTANCES)
def test_schedules_end_when_episodes_do(instance: Instance) -> None:
    schedule, loss = schedules.best_schedule(instance)
    env: Any = gym.make(ID, instances=[(instance.alpha, instance.seed)])
    env.reset(seed=0)
    over = [env.step(env.unwrapped.search_space.encode(one))[2] for one in schedule]
    assert over == [False] * (len(schedule) - 1) + [True]
    more = [*schedule, {"learning_rate": 1.0, "step_size": 8}]
    assert schedules.expected_loss(instance, more) == loss
    assert schedules.expected_loss(instance, [*schedule[:-1], more[-1]]) > loss


def test_a_budget_that_rounds_do_not_reach_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="reached within its rounds"):
        schedules.best_schedule(INSTANCES[0], QUADRATIC.variant(budget_s=481.0))


def test_instances_of_a_seed_differ_by_how_far_their_optima_lie_apart() -> None:
    near, far = (Quadratics.of(QUADRATIC, Instance(alpha, 8)) for alpha in (5.0, 0.1))
    np.testing.assert_array_equal(near.curvature, far.curvature)
    np.testing.assert_allclose(far.optima / near.optima, np.sqrt(11.0 / 1.2))
    ours = copy.deepcopy(far)
    np.testing.assert_array_equal(ours.optima[:10], -ours.optima[10:])


def test_every_number_that_answers_depend_on_is_in_the_fingerprint() -> None:
    low, high = QUADRATIC.noise
    changes: list[dict[str, Any]] = [{}, {"noise": (low, high + 1.0)}, {"num_clients": 22}]
    changes += [{"curvature": 9.0}, {"distance": 9.0}, {"spreads": (1.0, 1.0)}]
    tasks = [QUADRATIC.variant(**change) for change in changes]
    configuration = {"learning_rate": 0.1, "step_size": 1}
    courses = [
        QuadraticCourses(task, make_instances(task)[:1], 1, configuration, 1.0, horizon=1)
        for task in tasks
    ]
    assert len({one.fingerprint for one in courses}) == len(tasks)
