"""The laws of an FL algorithm."""
# ruff: noqa: S101 - asserting is what a law does

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.algorithms import Algorithm, get_algorithm
from fedhpo_gym.datasets import Dataset
from fedhpo_gym.tasks import get_task

if TYPE_CHECKING:
    from fedhpo_gym.fl.engine import CourseBatch

ROUNDS = 4


class AlgorithmConformance:
    """Laws of a registered algorithm, on data made for the purpose. They need torch.

    Attributes:
        name: key in `ALGORITHMS` of `fedhpo_gym.algorithms`.
        settings: what it is trained with, besides the highest values of what is searched.
    """

    name: ClassVar[str]
    settings: ClassVar[Mapping[str, float]] = MappingProxyType({})

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm in the registry."""
        return get_algorithm(self.name)

    def test_a_course_is_bitwise_the_same_alone_and_in_any_batch(self) -> None:
        courses = self._courses()
        together = self._train(courses)
        np.testing.assert_array_equal(self._train(courses[::-1]), together[::-1])
        for index, course in enumerate(courses):
            np.testing.assert_array_equal(self._train([course])[0], together[index])

    def test_advancing_in_parts_equals_advancing_at_once(self) -> None:
        whole = self._train(self._courses())
        batch = self._batch(self._courses())
        parts = [batch.advance(rounds).metrics for rounds in (1, ROUNDS - 1)]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)

    def test_two_trainings_at_once_do_not_share_state(self) -> None:
        courses = self._courses()
        one, two = self._batch(courses), self._batch(courses)
        turns = [(one.advance(1).metrics, two.advance(1).metrics) for _ in range(ROUNDS)]
        expected = self._train(courses)
        for curves in zip(*turns, strict=True):
            np.testing.assert_array_equal(np.concatenate(curves, axis=1), expected)

    def test_it_learns(self) -> None:
        losses = self._train(self._courses(), rounds=30).mean(axis=2)[:, :, 0, 0]
        assert (losses.min(axis=1) < losses[:, 0]).all()

    def _courses(self) -> list[Any]:
        from fedhpo_gym.fl.course import Course

        space = get_task("LR-CreditG").variant(algorithm=self.name).space
        # The first two train on the same minibatches.
        rows = (
            (0.01, 16, 1, 1.0, 1),
            (0.02, 16, 1, 1.0, 1),
            (0.03, 16, 2, 0.4, 1),
            (0.02, 64, 2, 1.0, 2),
        )
        found = []
        for rate, batch, epochs, share, seed in rows:
            values = {d.name: d.high for d in space.dimensions}
            values |= {"learning_rate": rate, "weight_decay": 0.001}
            values |= {"batch_size": batch, "step_size": epochs, **self.settings}
            found.append(Course(values, share, seed))
        return found

    def _batch(self, courses: list[Any]) -> CourseBatch:
        from fedhpo_gym.federations.federation import make_federation
        from fedhpo_gym.fl.engine import CourseBatch
        from fedhpo_gym.fl.models import get_model

        federations = {seed: make_federation(made_table(), seed) for seed in (1, 2)}
        return CourseBatch(federations, get_model("LR"), self.algorithm, courses)

    def _train(self, courses: list[Any], rounds: int = ROUNDS) -> NDArray[np.float32]:
        return self._batch(courses).advance(rounds).metrics


def made_table() -> Dataset:
    """Return 900 samples of two classes that are easy to tell apart."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=900)
    features = rng.normal(size=(900, 5)) + labels[:, None]
    return Dataset("made", features, labels, 2, "made")
