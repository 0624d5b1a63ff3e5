"""The laws of a backend."""
# ruff: noqa: S101 - asserting is what a law does

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.backends import Backend
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Evaluation, Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.testing.rollout import plain


class BackendConformance:
    """Laws of a backend that answers `rounds`, and those below the first. Override `make`."""

    rounds: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 6)
    rate: ClassVar[float] = 1.0

    def make(self) -> Backend:
        """Return a new backend."""
        raise NotImplementedError

    def configurations(self, backend: Backend) -> list[dict[str, Value]]:
        rng = stream(0, "conformance")
        return [backend.space.sample(rng) for _ in range(2)]

    def test_an_answer_has_every_seed_client_split_and_metric(self) -> None:
        backend = self.make()
        for answer in self._curve(backend):
            shape = (len(backend.seeds), backend.task.num_clients, len(SPLITS), len(METRICS))
            assert answer.best.shape == shape
            assert answer.seeds == backend.seeds
            assert np.isfinite(answer.best).all()
            assert (answer.best >= 0).all()
            assert (answer.best[..., 1:] <= 1 + 1e-6).all()
            assert (answer.num_samples > 0).any(axis=1).all()

    def test_the_same_question_gets_the_same_answer(self) -> None:
        backend, other = self.make(), self.make()
        first = _plain(self._curve(backend))
        assert _plain(self._curve(backend)) == first
        assert _plain(self._curve(other)) == first
        assert backend.fingerprint == other.fingerprint

    def test_the_order_of_questions_does_not_matter(self) -> None:
        upwards = _plain(self._curve(self.make()))
        downwards = _plain(self._curve(self.make(), self.rounds[::-1]))
        assert downwards[::-1] == upwards

    def test_many_answers_are_bit_for_bit_each_alone(self) -> None:
        backend = self.make()
        some = self.configurations(backend)
        queries = [(c, self._fidelity(rounds)) for rounds in self.rounds for c in some]
        alone = [backend.evaluate(*query) for query in queries]
        assert _plain(list(backend.evaluate_many(queries))) == _plain(alone)

    def test_an_answer_belongs_to_who_asked(self) -> None:
        backend = self.make()
        (configuration, *_), asked = self.configurations(backend), self._fidelity(self.rounds[-1])
        answer = backend.evaluate(configuration, asked)
        before = plain(answer.best)
        for array in (answer.best, answer.current):
            if array is not None and array.flags.writeable:
                array[:] = -1.0
        assert plain(backend.evaluate(configuration, asked).best) == before

    def test_the_best_so_far_never_gets_worse(self) -> None:
        losses = np.stack([_val_loss(answer) for answer in self._curve(self.make())])
        assert (np.diff(losses, axis=0) <= 1e-9 * np.abs(losses[:-1])).all()

    def test_the_best_round_has_happened(self) -> None:
        for answer in self._curve(self.make()):
            assert (answer.best_round >= 1).all()
            assert (answer.best_round <= answer.fidelity.round).all()

    def test_the_best_is_what_was_current_in_the_best_round(self) -> None:
        by_round = {answer.fidelity.round: answer for answer in self._curve(self.make())}
        for answer in by_round.values():
            for row, best_round in enumerate(answer.best_round.tolist()):
                then = by_round.get(best_round)
                if then is not None and then.current is not None:
                    np.testing.assert_array_equal(answer.best[row], then.current[row])

    def test_configurations_matter(self) -> None:
        backend = self.make()
        fidelity = self._fidelity(self.rounds[-1])
        one, two = (backend.evaluate(c, fidelity) for c in self.configurations(backend))
        assert plain(one.best) != plain(two.best)

    def test_a_copy_answers_alike(self) -> None:
        backend = self.make()
        twin = copy.deepcopy(backend)
        assert (twin.seed, twin.fingerprint) == (backend.seed, backend.fingerprint)
        assert _plain(self._curve(twin)) == _plain(self._curve(backend))

    def test_what_it_cannot_answer_it_refuses(self) -> None:
        backend = self.make()
        (configuration, *_), fidelity = self.configurations(backend), self._fidelity(self.rounds[0])
        name = backend.space.names[0]
        too_high = {**configuration, name: backend.space[name].high * 2 + 1}
        for wrong in (too_high, {**configuration, "nonsense": 1}, {}):
            with pytest.raises(InvalidArgumentError, match="configuration"):
                backend.evaluate(wrong, fidelity)
        for beyond in (0, int(backend.fidelity_space["round"].high) + 1):
            with pytest.raises(InvalidArgumentError, match=r"fidelity.*round"):
                backend.evaluate(configuration, self._fidelity(beyond))

    def _fidelity(self, rounds: int) -> Fidelity:
        return Fidelity(rounds, self.rate)

    def _curve(self, backend: Backend, rounds: tuple[int, ...] | None = None) -> list[Evaluation]:
        configuration = self.configurations(backend)[0]
        asked = self.rounds if rounds is None else rounds
        return [backend.evaluate(configuration, self._fidelity(r)) for r in asked]


def _plain(answers: list[Evaluation]) -> list[Any]:
    return [plain(asdict(answer)) for answer in answers]


def _val_loss(answer: Evaluation) -> NDArray[np.float64]:
    """Return the (S,) sample-weighted validation losses of the best rounds."""
    weights = answer.num_samples[:, :, SPLITS.index("val")]
    losses = answer.clients("val", "loss") * weights
    return np.asarray(losses.sum(axis=1) / weights.sum(axis=1))
