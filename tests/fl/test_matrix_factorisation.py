"""Laws of matrix factorisation: ridge solutions, the gradient, metrics, stateless users."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from sklearn.metrics import f1_score  # noqa: E402

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.core.seeding import stream  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_user_federation  # noqa: E402
from fedhpo_gym.data.ratings import make_ratings, ratings_dataset  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch  # noqa: E402
from fedhpo_gym.fl.models.matrix_factorisation import MIDDLE, RANK, RIDGE, MatrixFactorisation  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def federation() -> Federation:
    data = ratings_dataset("made", make_ratings(num_users=40, num_items=30, mean_ratings=12.0))
    return make_user_federation(data, 1, fractions=(0.8, 0.1))


def course(rate: float = 1.0, batch: int = 16, epochs: int = 1, sampled: float = 0.3) -> Course:
    configuration = {"learning_rate": rate, "batch_size": batch, "step_size": epochs}
    return Course(configuration, sampled, 1)


def batch_of(federation: Federation, courses: list[Course]) -> CourseBatch:
    return CourseBatch({1: federation}, MatrixFactorisation, get_algorithm("fedavg"), courses)


def start(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    """Return factors and biases to start from, in float64."""
    drawn = MatrixFactorisation(federation, CPU).init(stream(1, "init"))
    return drawn["factors"][0].astype(float), drawn["bias"][0].astype(float)


def ratings_of(federation: Federation, user: int, split: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rows = federation.clients[user][split]
    return federation.features[rows, 0], federation.labels[rows] + 1.0


def ridge(
    factors: np.ndarray, bias: np.ndarray, items: np.ndarray, stars: np.ndarray
) -> np.ndarray:
    """Return the user's factors and bias by numpy's least squares."""
    wide = np.column_stack([factors[items], np.ones(len(items))])
    rows = np.vstack([wide, np.sqrt(RIDGE) * np.eye(RANK + 1)])
    target = np.concatenate([stars - MIDDLE - bias[items], np.zeros(RANK + 1)])
    return np.linalg.lstsq(rows, target, rcond=None)[0]


def test_users_are_ridge_regressions_on_their_training_ratings(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MatrixFactorisation(federation, CPU)
    factors, bias = start(federation)
    bias = np.linspace(-0.5, 0.5, len(bias))
    given = (torch.from_numpy(x).float() for x in (factors, bias))
    users = torch.tensor([0, 3, 4, 39])
    expected = [ridge(factors, bias, *ratings_of(federation, int(u))) for u in users]
    tensors = list(given)
    found = model.solve(*tensors, users)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    monkeypatch.setattr("fedhpo_gym.fl.models.matrix_factorisation.RATINGS_AT_ONCE", 5)
    np.testing.assert_array_equal(model.solve(*tensors, users), found)


def objective(federation: Federation, user: int, factors: np.ndarray, bias: np.ndarray) -> float:
    """Return a user's mean squared error plus the ridge, at the user's own minimum."""
    items, stars = ratings_of(federation, user)
    own = ridge(factors, bias, items, stars)
    wide = np.column_stack([factors[items], np.ones(len(items))])
    error = MIDDLE + bias[items] + wide @ own - stars
    return float((np.sum(error**2) + RIDGE * own @ own) / len(items))


def test_a_full_batch_is_a_gradient_step_on_the_reduced_objective(federation: Federation) -> None:
    rate = 0.1
    batch = batch_of(federation, [course(rate, batch=10_000, sampled=1.0)])
    batch.advance(1)
    (state,) = batch.snapshot()
    assert state is not None
    factors, bias = start(federation)
    sizes = federation.num_samples[:, 0]
    share = sizes / sizes.sum()
    begun = {"factors": factors, "bias": bias}
    for name, at in [
        *(("factors", at) for at in ((0, 2), (3, 0), (7, 9))),
        ("bias", 0),
        ("bias", 5),
    ]:
        near = []
        for shift in (1e-4, -1e-4):
            moved = {key: value.copy() for key, value in begun.items()}
            moved[name][at] += shift
            near.append(sum(s * objective(federation, u, **moved) for u, s in enumerate(share)))
        found = np.asarray(state.parameters[name])[0][at] - begun[name][at]
        assert found == pytest.approx(-rate * (near[0] - near[1]) / 2e-4, rel=2e-2, abs=2e-6)


def test_metrics_are_squared_errors_and_the_nearest_stars(federation: Federation) -> None:
    batch = batch_of(federation, [course()])
    metrics = batch.advance(2).metrics[0, -1]
    (state,) = batch.snapshot()
    assert state is not None
    factors, bias = (state.parameters[k][0].numpy().astype(float) for k in ("factors", "bias"))
    for user in (0, 7, 20):
        own = ridge(factors, bias, *ratings_of(federation, user))
        for split in range(3):
            items, stars = ratings_of(federation, user, split)
            if not len(items):
                continue
            wide = np.column_stack([factors[items], np.ones(len(items))])
            predicted = MIDDLE + bias[items] + wide @ own
            nearest = np.clip(np.rint(predicted), 1, 5)
            expected = (
                np.mean((predicted - stars) ** 2),
                np.mean(nearest == stars),
                f1_score(stars, nearest, average="macro", zero_division=0),
            )
            np.testing.assert_allclose(metrics[user, split], expected, rtol=1e-3, atol=1e-4)


def test_no_parameter_is_stored_per_user(federation: Federation) -> None:
    batch = batch_of(federation, [course()])
    (state,) = batch.snapshot()
    assert state is not None
    assert not state.personal
    stored = sum(value.numel() for value in state.parameters.values())
    assert stored == MatrixFactorisation(federation, CPU).num_parameters == 30 * (RANK + 1)
