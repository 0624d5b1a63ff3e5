"""Real training: the laws of every backend, and the numbers of a table, bit by bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedhpo_gym.backends import Backend
from fedhpo_gym.backends.tabular import Tabular
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.schema import METRICS, SPLITS, Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.tables import codec
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.testing import BackendConformance, plain
from tiny_table import tiny  # noqa: F401 - a fixture

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends.raw import MAX_COURSES_KEPT, Raw

pytestmark = pytest.mark.raw

SMALL = {"learning_rate": 0.01, "weight_decay": 0.001, "batch_size": 256, "step_size": 1}
TASK = get_task("LR-BreastCancer")


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


def test_asking_in_parts_equals_asking_at_once() -> None:
    parts, whole = Raw(TASK, seed=1), Raw(TASK, seed=1)
    for rounds in (3, 9):
        last = parts.evaluate(SMALL, Fidelity(rounds, 0.4))
    at_once = whole.evaluate(SMALL, Fidelity(9, 0.4))
    assert plain([last.best, last.current]) == plain([at_once.best, at_once.current])


def test_going_on_trains_only_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedhpo_gym.fl.engine import CourseBatch

    trained: list[int] = []
    advance = CourseBatch.advance

    def watched(self: CourseBatch, rounds: int, **options: object) -> object:
        trained.append(rounds)
        return advance(self, rounds, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(CourseBatch, "advance", watched)
    backend = Raw(TASK, seed=1)
    for rounds in (3, 9, 5):
        backend.evaluate(SMALL, Fidelity(rounds, 1.0))
    assert sum(trained) == 9


def test_a_forgotten_course_gets_the_same_answer() -> None:
    backend = Raw(TASK, seed=1)
    first = backend.evaluate(SMALL, Fidelity(2, 0.2))
    for step in range(MAX_COURSES_KEPT + 1):
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
