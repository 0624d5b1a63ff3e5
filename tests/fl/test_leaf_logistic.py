"""LEAF's Synthetic problem: its model and its published numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from torch import Tensor, nn  # noqa: E402

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_user_federation  # noqa: E402
from fedhpo_gym.data.records import SparseRows, make_dataset  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models import LeafLogisticRegression, LogisticRegression  # noqa: E402
from plain_course import LINEAR, Network, plain_course  # noqa: E402

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "engine"


class Squashed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(super().forward(x))


def _squashed(federation: Federation) -> nn.Module:
    linear = LINEAR.make(federation)
    module = Squashed(linear.in_features, linear.out_features)
    module.load_state_dict(linear.state_dict())
    return module


SQUASHED = Network(_squashed, torch.from_numpy)


@pytest.fixture(scope="module")
def federation() -> Federation:
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(5), (40, 33, 25, 17, 12))
    labels = rng.integers(3, size=len(users))
    features = rng.normal(size=(len(users), 4)) * 2 + labels[:, None]
    return make_user_federation(make_dataset("made", features, labels, 3, users), seed=1)


def course(rate: float = 0.5, batch: int = 5, sampled: float = 0.6, epochs: int = 1) -> Course:
    config = {"learning_rate": rate, "weight_decay": 0.01, "batch_size": batch}
    return Course({**config, "step_size": epochs}, sampled, 1)


def run(federation: Federation, *courses: Course, rounds: int = 4) -> Curves:
    algorithm = get_algorithm("fedavg")
    return CourseBatch({1: federation}, LeafLogisticRegression, algorithm, courses).advance(rounds)


@pytest.mark.parametrize("chosen", [course(), course(20.0, 64, 1.0, 2)], ids=["small", "steep"])
def test_it_equals_autograd(federation: Federation, chosen: Course) -> None:
    expected = plain_course(federation, [chosen] * 4, network=SQUASHED).metrics
    found = run(federation, course(0.1), chosen).metrics[1]
    np.testing.assert_allclose(found, np.array(expected), rtol=2e-4, atol=2e-5)


def test_probabilities_stay_below_what_a_sigmoid_allows(federation: Federation) -> None:
    loss = run(federation, course(1000.0, sampled=1.0), rounds=8).metrics[0, ..., 0]
    surest = np.e / (np.e + 2)
    assert loss.min() >= -np.log(surest) - 1e-6
    assert np.isfinite(loss).all()


def test_sparse_features_are_refused() -> None:
    words = SparseRows(
        np.arange(5, dtype=np.int64), np.zeros(4, np.int32), np.ones(4, np.float32), 3
    )
    sparse = Federation(words, np.array([0, 1, 0, 1]), 2, ((np.arange(4),) * 3,), 1)
    with pytest.raises(InvalidArgumentError, match="dense features"):
        LeafLogisticRegression.for_federation(sparse)
    LogisticRegression.for_federation(sparse)


@pytest.mark.slow
@pytest.mark.raw
def test_the_numbers_of_leaf_are_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import leaf_synthetic as leaf

    averaged = leaf.fedavg_accuracy("LeafLR", 1)
    assert leaf.FEDAVG_BAND[0] <= averaged <= leaf.FEDAVG_BAND[1], averaged
    local = leaf.local_accuracy("LeafLR", 1)
    assert leaf.LOCAL_BAND[0] <= local <= leaf.LOCAL_BAND[1], local
