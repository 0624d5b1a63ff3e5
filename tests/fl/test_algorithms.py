"""Laws of the algorithms: parity with plain implementations, and the limits of their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import ALGORITHMS, get_algorithm  # noqa: E402
from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_federation, make_user_federation  # noqa: E402
from fedhpo_gym.data.records import SparseRows, make_dataset  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models import LogisticRegression, Model  # noqa: E402
from fedhpo_gym.fl.models.cnn import ConvNet  # noqa: E402
from fedhpo_gym.fl.models.logistic import LeafLogisticRegression  # noqa: E402
from plain_course import GIVEN, LINEAR, Network, plain_course, settings_of  # noqa: E402
from plain_course import linear_course as course  # noqa: E402
from plain_models import CONVOLUTIONAL  # noqa: E402

ROUNDS, HORIZON = 4, 20
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "engine"
PLAIN = [name for name in GIVEN if not (one := get_algorithm(name)).asynchronous | one.poisson]
"""The others are compared with loops of their own: `test_asynchronous.py`, `test_updates.py`, and
what comes as the `reference` of an `AlgorithmConformance`."""


def run(
    federation: Federation,
    algorithm: str,
    *courses: Course,
    rounds: int = ROUNDS,
    horizon: int = HORIZON,
    model: type[Model] = LogisticRegression,
) -> Curves:
    batch = CourseBatch({1: federation}, model, get_algorithm(algorithm), courses, horizon=horizon)
    return batch.advance(rounds)


def close(found: NDArray[np.generic], expected: Any) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", PLAIN)
def test_it_equals_a_plain_implementation(federation: Federation, algorithm: str) -> None:
    chosen = course(**GIVEN[algorithm])
    expected = plain_course(federation, [chosen] * ROUNDS, algorithm, HORIZON).metrics
    other = course(**{**GIVEN[algorithm], "learning_rate": 0.3, "weight_decay": 0.0})
    close(run(federation, algorithm, other, chosen).metrics[1], expected)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    ("sampled", "given"),
    [
        (0.2, {"learning_rate": 0.01, "batch_size": 4, "step_size": 1, "weight_decay": 0.0}),
        (0.6, {"learning_rate": 0.3, "batch_size": 16, "step_size": 3}),
        (1.0, {"learning_rate": 0.3, "batch_size": 256}),
    ],
)
def test_fedavg_equals_a_plain_one_whatever_is_asked(
    classes: int, sampled: float, given: dict[str, float]
) -> None:
    rng = np.random.default_rng(classes)
    labels = rng.integers(classes, size=700)
    features = rng.normal(size=(700, 7)) * 3 + labels[:, None]
    made = make_federation(make_dataset("made", features, labels, classes), 1)
    chosen = course(sampled, **given)
    expected = plain_course(made, [chosen] * ROUNDS).metrics
    close(run(made, "fedavg", course(), chosen).metrics[1], expected)


@pytest.mark.parametrize("sampled", [0.5, 1.0])
@pytest.mark.parametrize(
    ("algorithm", "given"),
    [
        ("fednova", {"momentum": 0.9, "rate_decay": 0.1, "learning_rate": 0.03}),
        ("scaffold", {"server_learning_rate": 0.6, "rate_decay": 0.2}),
        ("scaffold", {"momentum": 0.6, "learning_rate": 0.03, "weight_decay": 0.0}),
    ],
)
def test_updates_are_scaled_by_what_momentum_and_decay_make_of_steps(
    federation: Federation, algorithm: str, given: dict[str, float], sampled: float
) -> None:
    chosen = course(sampled, **{**GIVEN[algorithm], **given})
    expected = plain_course(federation, [chosen] * ROUNDS, algorithm, ROUNDS).metrics
    other = course(**{**GIVEN[algorithm], "step_size": 1})
    close(run(federation, algorithm, other, chosen, horizon=ROUNDS).metrics[1], expected)


def test_nbafl_without_downlink_noise_equals_a_plain_one(federation: Federation) -> None:
    chosen = course(1.0, **GIVEN["nbafl"])
    short = 11  # sqrt(5) * 5 is 11.2
    expected = plain_course(federation, [chosen] * 2, "nbafl", short).metrics
    close(run(federation, "nbafl", chosen, rounds=2, horizon=short).metrics[0], expected)


@pytest.fixture(scope="module")
def pictures() -> Federation:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=45)
    pixels = rng.integers(0, 120, (45, 8, 8, 3), dtype=np.uint8)
    pixels[np.arange(45), labels * 2] += 100
    users = np.repeat(np.arange(3), (20, 15, 10))
    return make_user_federation(make_dataset("small", pixels, labels, 3, users), seed=1)


@pytest.mark.parametrize(
    "algorithm", ["fedbn", "ditto", "fedprox", "fedadam", "local", "fednova", "scaffold"]
)
def test_it_equals_a_plain_implementation_where_layers_are_normalised(
    pictures: Federation, algorithm: str
) -> None:
    chosen = course(0.7, **{**GIVEN[algorithm], "learning_rate": 0.05, "step_size": 1})
    expected = plain_course(pictures, [chosen] * 2, algorithm, 2, CONVOLUTIONAL).metrics
    found = run(pictures, algorithm, chosen, rounds=2, model=ConvNet).metrics[0]
    np.testing.assert_allclose(found[..., 0], np.array(expected)[..., 0], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("sampled", [0.4, 1.0])
@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_dpfedavg_equals_a_plain_implementation_of_networks(
    pictures: Federation, clip: float, sampled: float
) -> None:
    """Rates of 0.4 expect one of three clients: the first round is one of nobody."""
    given = {"server_momentum": 0.3, "server_learning_rate": 0.9, "noise_multiplier": 0.0}
    chosen = course(sampled, **given, update_clip=clip, learning_rate=0.05)
    expected = plain_course(pictures, [chosen] * 3, "dpfedavg", 3, CONVOLUTIONAL).metrics
    other = course(1.0, **given, update_clip=1.0)
    found = run(pictures, "dpfedavg", other, chosen, rounds=3, model=ConvNet).metrics[1]
    np.testing.assert_allclose(found[..., 0], np.array(expected)[..., 0], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("algorithm", "given"),
    [
        ("fedprox", {"mu": 0.0}),
        ("fedbn", {}),
        ("fedopt", {"server_momentum": 0.0, "server_learning_rate": 1.0}),
        ("nbafl", {"epsilon": 1e12, "w_clip": 1e6}),
    ],
)
def test_some_settings_are_fedavg(
    federation: Federation, algorithm: str, given: dict[str, float]
) -> None:
    expected = run(federation, "fedavg", course())
    close(run(federation, algorithm, course(**given)).metrics, expected.metrics)


@pytest.mark.fast(4)
@pytest.mark.parametrize(
    ("kind", "given", "algorithm", "theirs"),
    [
        (0, {}, "fedavg", {}),
        (0, {"mu": 1.5}, "fedprox", {"mu": 1.5}),
        (1, {"server_momentum": 0.9}, "fedopt", {"server_momentum": 0.9}),
        (2, {"server_momentum": 0.8, "adaptivity": 0.01}, "fedadam", {"first_decay": 0.8}),
        (3, {"server_momentum": 0.8, "adaptivity": 0.01}, "fedyogi", {"first_decay": 0.8}),
    ],
)
@pytest.mark.parametrize("model", [LogisticRegression, ConvNet])
def test_others_are_cases_of_serveropt_bit_for_bit(
    federation: Federation,
    pictures: Federation,
    kind: int,
    given: dict[str, float],
    algorithm: str,
    theirs: dict[str, float],
    model: type[Model],
) -> None:
    data = pictures if model is ConvNet else federation
    shared = {"server_learning_rate": 0.3, "adaptivity": 0.01} if kind else {}
    expected = run(data, algorithm, course(**shared, **theirs), model=model).metrics
    asked = course(**{"mu": 0.0, "server_optimizer": kind, **shared, **given})
    others = [course(mu=0.5, server_optimizer=one, server_momentum=0.5) for one in range(4)]
    found = run(data, "serveropt", asked, *others, model=model).metrics
    np.testing.assert_array_equal(found[:1], expected)


LOCAL: list[dict[str, float]] = [
    {"momentum": 0.9},
    {"clip_norm": 0.05},
    {"rate_decay": 0.01},
    {"momentum": 0.5, "clip_norm": 0.2, "rate_decay": 0.1, "mu": 0.5},
]


@pytest.mark.fast(3)
@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("given", LOCAL)
def test_settings_of_local_training_equal_a_plain_implementation_of_networks(
    pictures: Federation, monkeypatch: pytest.MonkeyPatch, given: dict[str, float], sharing: bool
) -> None:
    monkeypatch.setattr(
        "fedhpo_gym.fl.shared_matrices.worth_sharing", lambda rank, _: np.full(len(rank), sharing)
    )
    chosen = course(0.7, **{"mu": 0.0, "learning_rate": 0.05, **given})
    expected = plain_course(pictures, [chosen] * 3, "fedprox", 3, CONVOLUTIONAL).metrics
    others = [course(0.7, mu=0.0), course(0.7, mu=0.5, momentum=0.7)]
    found = run(pictures, "fedprox", chosen, *others, rounds=3, horizon=3, model=ConvNet).metrics
    np.testing.assert_allclose(found[0, ..., 0], np.array(expected)[..., 0], rtol=2e-3, atol=2e-4)
    without = run(pictures, "fedprox", others[0], rounds=3, horizon=3, model=ConvNet).metrics
    np.testing.assert_array_equal(found[1], without[0])
    assert not np.allclose(found[0], without[0], rtol=0.02)


@pytest.mark.parametrize("given", [one for one in LOCAL if "clip_norm" not in one])
def test_settings_of_local_training_equal_a_plain_implementation(
    federation: Federation, given: dict[str, float]
) -> None:
    chosen = course(**given)
    expected = plain_course(federation, [chosen] * ROUNDS, "fedavg", ROUNDS).metrics
    found = run(federation, "fedavg", chosen, course(), horizon=ROUNDS).metrics
    close(found[0], expected)
    np.testing.assert_array_equal(found[1:], run(federation, "fedavg", course()).metrics)


def test_ditto_without_pull_is_isolated_training(federation: Federation) -> None:
    ditto = run(federation, "ditto", course(regularization=0.0))
    np.testing.assert_array_equal(ditto.metrics, run(federation, "local", course()).metrics)


def test_isolated_clients_never_influence_each_other(federation: Federation) -> None:
    clients = list(federation.clients)
    clients[2] = tuple(rows[:2] for rows in clients[3])
    changed = Federation(federation.features, federation.labels, 3, tuple(clients), 1)
    wild = course(1.0, **{"learning_rate@4": 1e30})
    for chosen in (course(1.0), wild):
        before = run(federation, "local", course(1.0)).metrics[0]
        after = run(changed, "local", chosen).metrics[0]
        np.testing.assert_array_equal(after[:, [0, 1, 3]], before[:, [0, 1, 3]])
        assert not np.array_equal(after[:, 2], before[:, 2])
    assert np.isfinite(after).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_portions_of_clients_give_the_same_numbers(
    federation: Federation, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = course(**settings_of(algorithm))
    whole = run(federation, algorithm, chosen).metrics
    monkeypatch.setattr("fedhpo_gym.fl.course.MAX_LOCAL_BYTES", 1)
    np.testing.assert_array_equal(run(federation, algorithm, chosen).metrics, whole)


# ------------------------------------------------------------- LEAF's model of its Synthetic data


class Squashed(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(super().forward(x))


def _squashed(federation: Federation) -> torch.nn.Module:
    linear = LINEAR.make(federation)
    module = Squashed(linear.in_features, linear.out_features)
    module.load_state_dict(linear.state_dict())
    return module


SQUASHED = Network(_squashed, torch.from_numpy)


@pytest.mark.parametrize(
    "given", [{}, {"learning_rate": 20.0, "batch_size": 64}], ids=["small", "steep"]
)
def test_leafs_model_equals_autograd(federation: Federation, given: dict[str, float]) -> None:
    chosen = course(1.0 if given else 0.6, **given)
    expected = plain_course(federation, [chosen] * ROUNDS, network=SQUASHED).metrics
    close(
        run(federation, "fedavg", course(), chosen, model=LeafLogisticRegression).metrics[1],
        expected,
    )


def test_probabilities_stay_below_what_a_sigmoid_allows(federation: Federation) -> None:
    steep = course(1.0, learning_rate=1000.0)
    metrics = run(federation, "fedavg", steep, rounds=8, model=LeafLogisticRegression).metrics
    assert metrics[..., 0].min() >= -np.log(np.e / (np.e + 2)) - 1e-6
    assert np.isfinite(metrics).all()


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
