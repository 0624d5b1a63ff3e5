"""Laws of a batch whose courses are changed on the way: configurations, rounds, feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import ALGORITHMS, get_algorithm  # noqa: E402
from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.data.federation import Federation  # noqa: E402
from fedhpo_gym.evaluation.client_feedback import ClientFeedback  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.group import Group  # noqa: E402
from fedhpo_gym.fl.models import LogisticRegression  # noqa: E402
from fedhpo_gym.fl.self_check import make_case  # noqa: E402
from plain_course import GIVEN, LINEAR, State, evaluate, plain_course, settings_of  # noqa: E402
from plain_course import linear_course as course  # noqa: E402

HORIZON = 20
KNOWN = [name for name, one in ALGORITHMS.items() if not one.asynchronous]
PLAIN = [name for name in KNOWN if name in GIVEN and not ALGORITHMS[name].poisson]
"""The others are compared with loops of their own, as in `test_updates.py`."""


def make(
    federations: dict[int, Federation],
    courses: Sequence[Course],
    algorithm: str = "fedavg",
    observe: bool = False,
) -> CourseBatch:
    return CourseBatch(
        federations,
        LogisticRegression,
        get_algorithm(algorithm),
        courses,
        horizon=HORIZON,
        observe=observe,
    )


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=2e-4, atol=2e-5)


CHANGES: list[dict[str, float]] = [
    {"learning_rate": 0.02},
    {"learning_rate": 0.3, "batch_size": 5, "step_size": 1},
    {"weight_decay": 0.0, "learning_rate@1": 0.5, "step_size@3": 4},
    {"weight_decay": 0.4, "learning_rate": 0.4},  # the same clients go on
]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", PLAIN)
def test_a_configuration_can_change_on_the_way(
    federations: dict[int, Federation], algorithm: str
) -> None:
    given = settings_of(algorithm)
    before = [course(share, **given) for share in (0.6, 1.0, 0.6, 1.0)]
    after = [
        course(share, **given, **change)
        for share, change in zip((0.6, 0.4, 1.0, 1.0), CHANGES, strict=True)
    ]
    batch = make(federations, before, algorithm)
    parts = [batch.advance(2).metrics]
    batch.configure(after)
    assert batch.courses == tuple(after)
    parts.append(batch.advance(2).metrics)
    found = np.concatenate(parts, axis=1)
    first = PLAIN.index(algorithm) % 2  # every change is tried with half of the algorithms
    for index in (first, first + 2):
        history = [before[index]] * 2 + [after[index]] * 2
        close(found[index], plain_course(federations[1], history, algorithm, HORIZON).metrics)


OWN: dict[str, float] = {"learning_rate@1": 0.5, "batch_size@2": 3, "step_size@0": 4}
COMPANY = [  # how courses begin, and what they become
    (course(), course(learning_rate=0.02)),
    (course(seed=2, learning_rate=0.3), course(seed=2, learning_rate=0.3)),
    (course(1.0, seed=2), course(0.4, seed=2)),
    (course(0.4, seed=2, learning_rate=1e30, weight_decay=1e30), course(0.4, seed=2)),
    (course(step_size=1), course(step_size=3)),
    (course(1.0, **OWN), course(1.0)),
    (course(batch_size=64), course(seed=2)),
]
RESTARTED = (2, 5)


@pytest.mark.parametrize("family", ["LR", pytest.param("GNN", marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", KNOWN)
def test_no_course_notices_which_others_are_trained_beside_it(algorithm: str, family: str) -> None:
    case = make_case(family)
    federations = {seed: replace(case.federation, seed=seed) for seed in (1, 2)}

    def run(chosen: Sequence[int]) -> list[Curves]:
        """Train some courses, start two of them again, change them all, and train on."""
        first, then = (
            [
                replace(c, configuration={**c.configuration, **settings_of(algorithm)})
                for c in courses
            ]
            for courses in zip(*(COMPANY[i] for i in chosen), strict=True)
        )
        batch = CourseBatch(
            federations, case.model, get_algorithm(algorithm), first, horizon=9, observe=True
        )
        curves = [batch.advance(2)]
        batch.restart([place for place, index in enumerate(chosen) if index in RESTARTED])
        curves.append(batch.advance(1))
        batch.configure(then, federations)
        return [*curves, batch.advance(2, evaluated=[2])]

    together = run(range(len(COMPANY)))
    assert all(np.isfinite(curves.metrics).all() for curves in together)
    assert algorithm == "local" or together[0].diverged_at.tolist() == [0, 0, 0, 1, 0, 0, 0]
    for index in range(len(COMPANY)):
        for found, expected in zip(run([index]), together, strict=True):
            np.testing.assert_array_equal(found.metrics[0], expected.metrics[index])
            assert found.diverged_at[0] == expected.diverged_at[index]
            for field in fields(ClientFeedback):
                one, other = (getattr(curves.feedback, field.name) for curves in (found, expected))
                np.testing.assert_array_equal(one[0], other[index], err_msg=field.name)


@pytest.mark.parametrize(("family", "algorithm"), [*product(["LR"], KNOWN), ("MLP", "fedavg")])
def test_rounds_of_one_call_are_those_taken_one_by_one(
    family: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(family)
    shape = {name: case.courses[0].configuration[name] for name in case.model.architecture}
    given = {**settings_of(algorithm), **shape}
    first, then = (
        [replace(c, configuration={**c.configuration, **given}) for c in courses]
        for courses in zip(*COMPANY, strict=True)
    )

    def run() -> tuple[int, list[Any]]:
        batch = CourseBatch(
            {seed: replace(case.federation, seed=seed) for seed in (1, 2)},
            case.model,
            get_algorithm(algorithm),
            first,
            horizon=9,
            observe=True,
            local_metrics=False,
        )
        curves = [batch.advance(3)]
        batch.configure(then)
        curves.append(batch.advance(5, evaluated=[2, 5]))
        kept = [state for state in batch.snapshot() if state is not None]
        return batch._groups[0].at_once(False), [
            *((c.metrics, c.diverged_at, *vars(c.feedback).values()) for c in curves),
            *((*state.parameters.values(), state.last) for state in kept),
        ]

    number, found = run()
    assert (number > 1) is (algorithm in ("fedavg", "fedprox", "fedbn"))
    monkeypatch.setattr(Group, "at_once", lambda *_: 0)
    for one, other in zip(found, run()[1], strict=True):
        for value, expected in zip(one, other, strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("algorithm", KNOWN)
def test_courses_of_one_batch_may_be_at_different_rounds(
    federations: dict[int, Federation], algorithm: str
) -> None:
    given = settings_of(algorithm)
    courses = [course(**given), course(**given, learning_rate=0.2), course(**given, seed=2)]
    expected = make(federations, courses, algorithm).advance(6).metrics
    batch = make(federations, courses, algorithm)
    batch.advance(3)
    batch.restart([1])
    found = batch.advance(2).metrics
    np.testing.assert_array_equal(found[[0, 2]], expected[[0, 2], 3:5])
    np.testing.assert_array_equal(found[1], expected[1, :2])
    again = batch.advance(1).metrics[:, 0]
    np.testing.assert_array_equal(again, expected[[0, 1, 2], [5, 2, 5]])


@pytest.mark.parametrize("algorithm", KNOWN)
def test_a_snapshot_outlives_what_follows(
    federations: dict[int, Federation], algorithm: str
) -> None:
    given = settings_of(algorithm)
    courses = [course(**given), course(1.0, **given, batch_size=3)]
    batch = make(federations, courses, algorithm)
    batch.advance(2)
    snapshot = batch.snapshot()
    expected = batch.advance(2).metrics
    batch.configure([course(**given, learning_rate=1e30, weight_decay=1e30)] * 2)
    batch.advance(1)
    batch.configure(courses)
    batch.restore(snapshot)
    np.testing.assert_array_equal(batch.advance(2).metrics, expected)


def test_another_seed_is_another_course(federations: dict[int, Federation]) -> None:
    batch = make(federations, [course(), course(seed=2)])
    batch.advance(2)
    batch.configure([course(seed=2), course(seed=2)])
    found = batch.advance(2).metrics
    expected = make(federations, [course(seed=2)]).advance(4).metrics[0]
    np.testing.assert_array_equal(found[0], expected[:2])
    np.testing.assert_array_equal(found[1], expected[2:])


def test_a_course_that_diverges_after_a_change_keeps_its_last_metrics(
    federations: dict[int, Federation],
) -> None:
    batch = make(federations, [course(), course()])
    before = batch.advance(2).metrics[:, -1]
    # Two steps of this length leave finite parameters, whose logits overflow.
    vast = {"learning_rate": 3e38, "weight_decay": 0.0, "batch_size": 64, "step_size": 2}
    batch.configure([course(**vast), course()])
    curves = batch.advance(2)
    assert curves.diverged_at.tolist() == [3, 0]
    np.testing.assert_array_equal(curves.metrics[0, 0], before[0])
    np.testing.assert_array_equal(curves.metrics[0, 1], before[0])
    assert not np.array_equal(curves.metrics[1, 0], before[1])


def test_a_change_needs_as_many_courses(federations: dict[int, Federation]) -> None:
    batch = make(federations, [course()])
    with pytest.raises(InvalidArgumentError, match="1 courses, got 2"):
        batch.configure([course(), course()])


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "local"])
def test_a_client_may_have_settings_of_its_own(
    federations: dict[int, Federation], algorithm: str
) -> None:
    own = {"learning_rate@2": 0.01, "weight_decay@0": 0.3, "batch_size@3": 3, "step_size@1": 3}
    mu = {"mu": 0.2, "mu@1": 3.0} if algorithm == "fedprox" else {}
    chosen = course(1.0, **own, **mu)
    found = make(federations, [course(1.0, mu=0.2), chosen], algorithm).advance(3).metrics
    close(found[1], plain_course(federations[1], [chosen] * 3, algorithm).metrics)
    np.testing.assert_array_equal(
        make(federations, [chosen], algorithm).advance(3).metrics[0], found[1]
    )


def _flat(state: State) -> Any:
    return torch.cat([value.double().flatten() for value in state.values()]).numpy()


@pytest.mark.parametrize("algorithm", ["fedavg", "nbafl", "local", "ditto"])
def test_feedback_is_what_clients_could_compute(
    federations: dict[int, Federation], algorithm: str
) -> None:
    federation = federations[1]
    chosen = course(**settings_of(algorithm))
    courses = [course(1.0, **settings_of(algorithm)), chosen]
    curves = make(federations, courses, algorithm, observe=True).advance(3)
    feedback = curves.feedback
    assert feedback is not None
    trace = plain_course(federation, [chosen] * 3, algorithm, HORIZON)
    close(curves.metrics[1], trace.metrics)
    module = LINEAR.make(federation)
    size = federation.num_samples[:, 0]
    for index, updates in enumerate(trace.updates):
        clients = sorted(updates)
        assert np.flatnonzero(feedback.sampled[1, index]).tolist() == clients
        moves = {i: _flat(after) - _flat(before) for i, (before, after) in updates.items()}
        mean = sum(moves[i] * size[i] for i in clients) / size[clients].sum()
        for i, (before, after) in updates.items():
            close(feedback.before[1, index, i], evaluate(LINEAR, module, before, federation, i))
            close(feedback.after[1, index, i], evaluate(LINEAR, module, after, federation, i))
            length = np.linalg.norm(moves[i])
            assert feedback.update_norm[1, index, i] == pytest.approx(length, rel=1e-3)
            cosine = moves[i] @ mean / length / np.linalg.norm(mean)
            assert feedback.alignment[1, index, i] == pytest.approx(cosine, abs=1e-3)


@pytest.mark.parametrize("algorithm", KNOWN)
def test_observing_changes_nothing(federations: dict[int, Federation], algorithm: str) -> None:
    seen, unseen = (
        make(federations, [course(**settings_of(algorithm))], algorithm, observe).advance(2).metrics
        for observe in (True, False)
    )
    np.testing.assert_array_equal(seen, unseen)


def test_feedback_of_clients_that_did_not_train_is_zero(federations: dict[int, Federation]) -> None:
    wild = course(learning_rate=1e30, weight_decay=1e30)
    feedback = make(federations, [course(0.4), wild], observe=True).advance(3).feedback
    assert isinstance(feedback, ClientFeedback)
    for values in (feedback.before, feedback.after, feedback.update_norm, feedback.alignment):
        assert np.isfinite(values[0]).all()
        assert (values[0][~feedback.sampled[0]] == 0).all()
    assert (np.abs(feedback.alignment) <= 1).all()
    assert np.isfinite(feedback.update_norm).all()
    assert feedback.sampled[0].sum(axis=1).tolist() == [2, 2, 2]


def test_trainers_are_kept_for_data_that_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a bound, and never for other data of the same seed."""
    case = make_case("LR")
    data = {seed: replace(case.federation, seed=seed) for seed in (1, 2)}
    batch = make(data, [course(seed=1)])
    first = batch._groups[0]._trainer

    def back(again: Federation) -> bool:
        """Train on other data, and say whether the trainer of seed 1 is the first one again."""
        batch.configure([course(seed=2)], data)
        batch.configure([course(seed=1)], {1: again})
        return batch._groups[0]._trainer is first

    assert back(data[1])
    other = replace(data[1])
    assert not back(other)
    batch.configure([course(seed=1)], {1: replace(other)})  # at once, with no other seed between
    assert batch._groups[0]._trainer.federation is not other
    assert not back(other)
    first = batch._groups[0]._trainer
    monkeypatch.setattr("fedhpo_gym.fl.engine.KEPT_BYTES", first.data_bytes - 1)
    assert not back(other)
