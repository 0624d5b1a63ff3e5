"""Real training: the laws of every backend, and the numbers of a table, bit by bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedhpo_gym.backends import Backend
from fedhpo_gym.backends.tabular import Tabular
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity
from fedhpo_gym.objectives import NO_PRIVACY, OBJECTIVES
from fedhpo_gym.space import Value
from fedhpo_gym.stored import codec
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.testing import BackendConformance, plain
from stored_files import tiny  # noqa: F401 - a fixture

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends import raw as raw_module
from fedhpo_gym.backends.raw import MAX_KEPT, Raw

pytestmark = pytest.mark.raw

SMALL = {"learning_rate": 0.01, "weight_decay": 0.001, "batch_size": 256, "step_size": 1}
TASK = get_task("LR-BreastCancer-v0")


def coarse(values: np.ndarray, num_samples: np.ndarray) -> np.ndarray:
    """Return (seeds, clients, splits, metrics) values as a table would have stored them."""
    out = np.empty_like(values)
    for (s, _), (m, metric) in itertools.product(enumerate(SPLITS), enumerate(METRICS)):
        codes = codec.encode(metric, values[:, :, s, m], num_samples[:, :, s])
        out[:, :, s, m] = codec.decode(metric, codes, num_samples[:, :, s])
    return out


class TestRaw(BackendConformance):
    def make(self) -> Backend:
        return Raw(TASK, seed=1)

    def configurations(self, backend: Backend) -> list[dict[str, Value]]:
        return [SMALL, {**SMALL, "learning_rate": 0.02}]


class TestRawAllSeedsFedOpt(BackendConformance):
    rounds = (1, 2, 3)
    rate = 0.4

    def make(self) -> Backend:
        return Raw(TASK.variant(algorithm="fedopt", preprocessing="standardized"))

    def configurations(self, backend: Backend) -> list[dict[str, Value]]:
        server = {"server_momentum": 0.5, "server_learning_rate": 0.7}
        return [{**SMALL, **server}, {**SMALL, **server, "server_momentum": 0.0}]


def test_it_reproduces_the_cells_of_a_table(tiny: Task) -> None:  # noqa: F811
    raw, tabular = Raw(tiny), Tabular(tiny)
    grid = [d.grid for d in tabular.space.dimensions]
    every = list(itertools.product(*grid))
    for values in every[:: max(1, len(every) // 5)]:
        configuration = dict(zip(tabular.space.names, values, strict=True))
        for rate, rounds in itertools.product((0.2, 1.0), (3, 9)):
            trained = raw.evaluate(configuration, Fidelity(rounds, rate))
            stored = tabular.evaluate(configuration, Fidelity(rounds, rate))
            assert trained.current is not None
            assert stored.current is not None
            for one, two in ((trained.best, stored.best), (trained.current, stored.current)):
                np.testing.assert_array_equal(coarse(one, trained.num_samples), two)
            np.testing.assert_array_equal(trained.best_round, stored.best_round)
            np.testing.assert_array_equal(trained.diverged, stored.diverged)
            np.testing.assert_array_equal(trained.num_samples, stored.num_samples)


def test_going_on_trains_only_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = watch(monkeypatch)
    backend = Raw(TASK, seed=1)
    for rounds in (3, 9, 6):
        backend.evaluate(SMALL, Fidelity(rounds, 1.0))
    assert trained == [(1, 3), (1, 6)]


def watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return where the (courses, rounds) of every batch that trains from here on will appear."""
    from fedhpo_gym.fl.engine import CourseBatch

    trained: list[tuple[int, int]] = []
    advance = CourseBatch.advance

    def watched(self: CourseBatch, rounds: int, **options: object) -> object:
        trained.append((len(self.courses), rounds))
        return advance(self, rounds, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(CourseBatch, "advance", watched)
    return trained


QUESTIONS = [
    ({**SMALL, "learning_rate": 0.01 * (1 + index % 9), "batch_size": size}, Fidelity(rounds, rate))
    for index, (size, rounds, rate) in enumerate(
        itertools.product((16, 256), (1, 4, 9), (0.4, 1.0))
    )
] + [(SMALL, Fidelity(2, 1.0)), (SMALL, Fidelity(6, 1.0)), (SMALL, Fidelity(2, 1.0))]


@pytest.mark.parametrize("preprocessing", ["standardized", "label_encoded"])
def test_questions_asked_together_get_the_answers_they_get_alone(preprocessing: str) -> None:
    """Rounds, rates and batch sizes differ, one is asked twice; raw features make some diverge."""
    task = TASK.variant(preprocessing=preprocessing)
    wild = [({**SMALL, "learning_rate": 1.0, "step_size": 4}, Fidelity(9, 1.0))]
    together, alone = Raw(task), [Raw(task).evaluate(*one) for one in (*QUESTIONS, *wild)]
    together.evaluate(QUESTIONS[5][0], Fidelity(3, 1.0))  # it has begun before the others
    answers = together.evaluate_many([*QUESTIONS, *wild])
    for best, expected in zip(answers.best, alone, strict=True):
        np.testing.assert_array_equal(best, expected.best)
    for one, expected in zip((*QUESTIONS, *wild), alone, strict=True):
        again = together.evaluate(*one)
        for name in ("best", "current", "best_round", "diverged"):
            np.testing.assert_array_equal(getattr(again, name), getattr(expected, name))


def test_courses_that_diverge_say_so_together_and_alone() -> None:
    task = TASK.variant(algorithm="fedprox", preprocessing="label_encoded")
    wild = {"learning_rate": 1.0, "weight_decay": 0.0, "batch_size": 4, "step_size": 4, "mu": 5.0}
    queries = [({**wild, "mu": mu}, Fidelity(2, 1.0)) for mu in (5.0, 0.1)]
    alone = [Raw(task).evaluate(*query) for query in queries]
    assert [one.has_diverged for one in alone] == [True, False]
    together = Raw(task).evaluate_many(queries)
    np.testing.assert_array_equal(together.diverged, [one.diverged for one in alone])
    # What is left of the course that diverged is a model that learned nothing, whose loss is the
    # lower of the two: a score must not be read off it.
    assert alone[0].mean("val", "loss") < alone[1].mean("val", "loss")
    values = OBJECTIVES["val_loss"].compute(together, NO_PRIVACY)
    assert values[0] == OBJECTIVES["val_loss"].worst > values[1]


def test_questions_asked_together_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [0.001 * (1 + index) for index in range(MAX_KEPT + 8)]
    queries = [({**SMALL, "learning_rate": rate}, Fidelity(3, 1.0)) for rate in rates]
    backend, trained = Raw(TASK, seed=1), watch(monkeypatch)
    answers = backend.evaluate_many(queries)
    assert trained == [(len(rates), 3)]
    backend.evaluate_many([(one, Fidelity(6, 1.0)) for one, _ in queries[-4:]])
    assert trained[1:] == [(4, 3)], "they go on from round 3"
    backend.evaluate_many(queries[-4:])
    assert len(trained) == 2, "nothing is trained twice"
    assert len({str(best) for best in answers.best}) == len(rates)


def test_batches_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_module, "MAX_TOGETHER", 4)
    backend, trained = Raw(TASK, seed=1), watch(monkeypatch)
    queries = [({**SMALL, "learning_rate": 0.001 * n}, Fidelity(1, 0.2)) for n in range(1, 11)]
    backend.evaluate_many(queries)
    assert trained == [(4, 1), (4, 1), (2, 1)]


def test_large_models_train_in_portions_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    size = TASK.parameters_of(SMALL)
    queries = [({**SMALL, "learning_rate": 0.001 * n}, Fidelity(1, 0.2)) for n in range(1, 8)]
    expected = Raw(TASK, seed=1).evaluate_many(queries)
    trained = watch(monkeypatch)
    for room, batches, kept in ((3 * size, [3, 3, 1], 3), (size - 1, [1] * 7, 1)):
        monkeypatch.setattr(raw_module, "MAX_NUMBERS", room)
        backend = Raw(TASK, seed=1)
        trained.clear()
        found = backend.evaluate_many(queries)
        assert [courses for courses, _ in trained] == batches
        np.testing.assert_array_equal(found.best, expected.best)
        backend.evaluate_many(queries[-kept:])
        assert len(trained) == len(batches), "the latest are still there"
        backend.evaluate(*queries[-kept - 1])
        assert len(trained) == len(batches) + 1, "and no others"


def test_a_forgotten_course_gets_the_same_answer() -> None:
    backend = Raw(TASK, seed=1)
    first = backend.evaluate(SMALL, Fidelity(2, 0.2))
    for step in range(MAX_KEPT + 1):
        other = {**SMALL, "learning_rate": 0.011 + step / 1000}
        backend.evaluate(other, Fidelity(1, 0.2))
    assert plain(backend.evaluate(SMALL, Fidelity(2, 0.2)).best) == plain(first.best)


def test_seeds_are_kept_apart_and_do_not_touch() -> None:
    fidelity = Fidelity(3, 1.0)
    together = Raw(TASK).evaluate(SMALL, fidelity)
    for row, seed in enumerate(TASK.seeds):
        alone = Raw(TASK, seed=seed).evaluate(SMALL, fidelity)
        np.testing.assert_array_equal(alone.best[0], together.best[row])
    assert plain(together.best[0]) != plain(together.best[1])


def test_a_seed_beyond_the_tables_is_answered() -> None:
    answer = Raw(TASK, seed=7).evaluate(SMALL, Fidelity(1, 0.2))
    assert answer.seeds == (7,)


def test_its_fingerprint_tells_variants_apart() -> None:
    variants = [{}, {"alpha": 1.0}, {"algorithm": "fedopt"}, {"preprocessing": "standardized"}]
    prints = {Raw(TASK.variant(**changes), seed=1).fingerprint for changes in variants}
    assert len(prints) == len(variants)


def test_a_device_that_is_not_there_is_refused_when_it_is_made() -> None:
    with pytest.raises(InvalidArgumentError, match=r"`device`.*'abacus'"):
        Raw(TASK, seed=1, device="abacus")
