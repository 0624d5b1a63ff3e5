"""What a hook may do with what it is called with: whatever it changes counts, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("numba")

from fedhpo_gym.algorithms.asynchronous import FedBuff
from fedhpo_gym.algorithms.base import VARIATE, Algorithm, copies, fit
from fedhpo_gym.algorithms.fedavg import FedAvg
from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation, make_user_federation
from fedhpo_gym.data.records import make_dataset
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import LogisticRegression, Model
from fedhpo_gym.fl.models.cnn import ConvNet
from fedhpo_gym.testing import AlgorithmConformance

CONFIGURATION = {"learning_rate": 0.05, "batch_size": 8, "step_size": 1, "mu": 0.0}
CONFIGURATION |= {"server_learning_rate": 0.5, "staleness_exponent": 0.5, "buffer_size": 2}
MODELS = LogisticRegression, ConvNet


@pytest.fixture(scope="module", params=MODELS, ids=["compiled", "torch"])
def trained(request: pytest.FixtureRequest) -> tuple[type[Model], Federation]:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=45)
    pixels = rng.integers(0, 120, (45, 8, 8, 3), dtype=np.uint8)
    pixels[np.arange(45), labels * 2] += 100
    features = pixels if request.param is ConvNet else pixels.reshape(45, -1) / 255.0
    users = np.repeat(np.arange(3), (20, 15, 10))
    data = make_dataset("small", features, labels, 3, users)
    return request.param, make_user_federation(data, seed=1)


def run(
    trained: tuple[type[Model], Federation],
    hooks: Mapping[str, Any],
    kind: type[Algorithm] = FedAvg,
    rounds: int = 3,
    **changes: float,
) -> Any:
    """Return (rounds, clients, splits, metrics)."""
    return batch_of(trained, hooks, kind, **changes).advance(rounds).metrics[0]


def batch_of(
    trained: Any, hooks: Mapping[str, Any], kind: type[Algorithm] = FedAvg, **changes: float
) -> CourseBatch:
    model, federation = trained
    algorithm = type("Mine", (kind,), {"name": "mine", **hooks})()
    course = Course({**CONFIGURATION, **changes}, 1.0, 1)
    return CourseBatch({1: federation}, model, algorithm, [course], horizon=3)


def new_half(_: Algorithm, parameters: Any, __: object) -> Any:
    return {name: 0.5 * value for name, value in parameters.items()}


def assigned_half(_: Algorithm, parameters: Any, __: object) -> Any:
    for name in parameters:
        parameters[name] = 0.5 * parameters[name]
    return parameters


def half_in_place(_: Algorithm, parameters: Any, __: object) -> Any:
    for value in parameters.values():
        value *= 0.5
    return parameters


def new_mean(_: Algorithm, parameters: Any, average: Any, state: Any, __: object) -> Any:
    return {n: 0.5 * (value + average[n]) for n, value in parameters.items()}, state


def assigned_mean(_: Algorithm, parameters: Any, average: Any, state: Any, __: object) -> Any:
    for name, value in parameters.items():
        average[name] = 0.5 * (value + average[name])
    return average, state


def mean_in_place(_: Algorithm, parameters: Any, average: Any, state: Any, __: object) -> Any:
    for name, value in parameters.items():
        average[name] += value
        average[name] *= 0.5
    return average, state


def mean_in_parameters(_: Algorithm, parameters: Any, average: Any, state: Any, __: object) -> Any:
    for name, value in average.items():
        parameters[name] += value
        parameters[name] *= 0.5
    return parameters, state


@pytest.mark.parametrize("kind", [FedAvg, FedBuff])
@pytest.mark.parametrize("sends_updates", [False, True])
@pytest.mark.parametrize("hook", ["upload", "broadcast"])
def test_what_a_client_or_server_sends_may_be_assigned_or_changed_in_place(
    trained: Any, kind: type[Algorithm], hook: str, sends_updates: bool
) -> None:
    base: dict[str, Any] = {"sends_updates": sends_updates}
    if sends_updates and kind is FedAvg:
        base["server_update"] = lambda _, p, average, s, __: ({n: p[n] + average[n] for n in p}, s)
    new = run(trained, {**base, hook: new_half}, kind)
    assert not np.array_equal(new, run(trained, base, kind))
    for other in (assigned_half, half_in_place):
        np.testing.assert_array_equal(run(trained, {**base, hook: other}, kind), new)


@pytest.mark.parametrize("kind", [FedAvg, FedBuff])
def test_what_a_server_makes_may_be_assigned_or_changed_in_place(
    trained: Any, kind: type[Algorithm]
) -> None:
    new = run(trained, {"server_update": new_mean}, kind)
    assert not np.array_equal(new, run(trained, {}, kind))
    for hook in (assigned_mean, mean_in_place, mean_in_parameters):
        np.testing.assert_array_equal(run(trained, {"server_update": hook}, kind), new)


def test_a_law_finds_a_hook_that_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Laws(AlgorithmConformance):
        name = "fedavg"
        algorithm = type("Mine", (FedAvg,), {"name": "mine", "server_update": assigned_mean})()

        def _courses(self) -> list[Any]:
            return [Course(CONFIGURATION, 1.0, 1)]

    Laws().test_what_a_hook_changes_in_its_arguments_counts_as_what_it_returns()
    # An engine that hands out its own mapping, and looks for another one alone, sees no change.
    monkeypatch.setattr("fedhpo_gym.fl.group.dict", lambda mapping: mapping, raising=False)
    monkeypatch.setattr("fedhpo_gym.fl.group.same_arrays", lambda one, other: one is other)
    with pytest.raises(AssertionError):
        Laws().test_what_a_hook_changes_in_its_arguments_counts_as_what_it_returns()


def test_a_course_that_diverges_keeps_its_last_finite_model_whatever_is_changed(
    trained: Any,
) -> None:
    def grown(in_place: bool) -> Any:
        def server_update(_: Algorithm, parameters: Any, __: Any, state: Any, ___: object) -> Any:
            if not in_place:
                return {n: 1e9 * v for n, v in parameters.items()}, {"s": 2.0 * state["s"]}
            state["s"] *= 2.0
            for value in parameters.values():
                value *= 1e9
            return parameters, state

        def init_state(_: Algorithm, __: Any, context: Any) -> Any:
            return {"s": 1.0 * context.num_sampled[None]}

        hooks = {"server_update": server_update, "init_state": init_state}
        batch = batch_of(trained, hooks)
        batch.advance(8)
        [state] = batch.snapshot()
        assert state is not None
        assert 0 < state.diverged_at < 8
        return {**state.parameters, **state.server}

    in_place = grown(True)
    for name, value in grown(False).items():
        np.testing.assert_array_equal(in_place[name], value)


def zeros(_: Algorithm, parameters: Any, __: object) -> Any:
    return {f"h {name}": value - value for name, value in parameters.items()}


def zeros_in_place(_: Algorithm, parameters: Any, __: object) -> Any:
    for value in parameters.values():
        value *= 0.0
    return {f"h {name}": value for name, value in parameters.items()}


def test_zeros_may_be_made_of_what_a_hook_is_called_with(trained: Any) -> None:
    def upload(_: Algorithm, parameters: Any, __: object) -> Any:
        return {**parameters, **{f"h {name}": value for name, value in parameters.items()}}

    for more in ({"init_state": zeros}, {"reports": zeros, "upload": upload}):
        in_place = {name: zeros_in_place if hook is zeros else hook for name, hook in more.items()}
        np.testing.assert_array_equal(run(trained, in_place), run(trained, more))


def test_control_variates_may_be_what_a_client_sends(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(copy: Callable[[Any], Any]) -> Any:
        def upload(_: Algorithm, parameters: Any, __: object) -> Any:
            return {**parameters, **{VARIATE + n: v for n, v in copy(parameters).items()}}

        def correction(_: Algorithm, context: Any) -> Any:
            return {name: 0.01 * value for name, value in context.variates().items()}

        hooks = {"upload": upload, "correction": correction, "keeps_variates": True}
        return run(trained, hooks)

    expected = sent(copies)
    monkeypatch.setattr("fedhpo_gym.fl.course.MAX_LOCAL_BYTES", 1)  # one client after the other
    np.testing.assert_array_equal(sent(copies), expected)
    np.testing.assert_array_equal(sent(dict), expected)


def test_arrays_of_the_context_may_be_changed_in_place(trained: Any) -> None:
    def step(change: Callable[[Any], Any]) -> Any:
        def server_update(_: Algorithm, p: Any, average: Any, s: Any, context: Any) -> Any:
            rate = change(context.hyperparameters["share"]) * change(context.num_sampled) / 3.0
            rate = rate * change(context.num_samples) / 10.0
            moved = change(context.state()["moved"])
            after = {n: v + fit(rate + moved[0], v) * (average[n] - v) for n, v in p.items()}
            return after, s

        def init_state(_: Algorithm, __: object, context: Any) -> Any:
            return {"moved": context.num_sampled[None] * 0.01}

        hooks = {"settings": {"share": Setting(0.5, 0.0, 1.0)}, "init_state": init_state}
        return run(trained, {**hooks, "server_update": server_update}, share=0.9)

    def in_place(array: Any) -> Any:
        array /= 2.0
        return array

    np.testing.assert_array_equal(step(in_place), step(lambda array: array / 2.0))


def test_no_setting_is_that_of_the_model_and_of_the_algorithm(trained: Any) -> None:
    hooks = {"settings": {"clip_norm": Setting(1.0, 0.0, 10.0)}}
    if trained[0] is LogisticRegression:
        assert np.isfinite(run(trained, hooks)).all()
        return
    with pytest.raises(InvalidArgumentError, match=r"got \['clip_norm'\]; rename them, as in 'se"):
        run(trained, hooks)
