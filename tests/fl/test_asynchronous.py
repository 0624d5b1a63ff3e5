"""Laws of asynchronous training: parity with a plain loop, bits in any company, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.algorithms.asynchronous import Asynchronous, FedAsync, FedBuff  # noqa: E402
from fedhpo_gym.algorithms.base import Context, Parameters  # noqa: E402
from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.core.seeding import stream  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_user_federation  # noqa: E402
from fedhpo_gym.data.records import make_dataset  # noqa: E402
from fedhpo_gym.fl.asynchronous import OneSecondEach  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models import LogisticRegression, Model  # noqa: E402
from fedhpo_gym.fl.models.cnn import ConvNet  # noqa: E402
from fedhpo_gym.fl.models.mlp import Perceptron  # noqa: E402
from plain_course import plain_asynchronous  # noqa: E402


@dataclass(frozen=True)
class Uneven:
    """Clients of very different speed, of whom some drop out."""

    slowest: float = 20.0
    dropout: float = 0.2
    server_s: float = 0.25

    def job(self, seed: int, number: int, client: int, start_s: float) -> tuple[float, bool]:
        rng = stream(seed, "uneven", number)
        mean = self.slowest ** (client / 4) * (1.0 + 0.1 * (start_s % 1.0))
        return float(mean * rng.standard_exponential()), bool(rng.random() >= self.dropout)


UNEVEN = Uneven()
GIVEN: list[tuple[str, dict[str, float]]] = [
    ("fedasync", {"mixing": 0.6, "staleness_exponent": 0.0}),
    ("fedasync", {"mixing": 0.9, "staleness_exponent": 0.7, "mu": 0.8}),
    (
        "fedasync",
        {"mixing": 0.9, "staleness_exponent": 0.0, "hinge_slope": 2.0, "hinge_after": 1.0},
    ),
    ("fedbuff", {"buffer_size": 1, "server_learning_rate": 0.5}),
    ("fedbuff", {"buffer_size": 4, "server_learning_rate": 1.0, "staleness_exponent": 1.5}),
    ("fedbuff", {"buffer_size": 7, "server_learning_rate": 0.7, "mu": 0.5, "hinge_slope": 3.0}),
]


def course(at_once: float = 0.6, clock: Any = UNEVEN, **changes: float) -> Course:
    config = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": 8, "step_size": 2}
    return Course({**config, **changes}, at_once, 1, clock)


def batch_of(
    federation: Federation, algorithm: str, *courses: Course, model: type[Model] | None = None
) -> CourseBatch:
    kind = model or LogisticRegression
    chosen = get_algorithm(algorithm)
    return CourseBatch({1: federation}, kind, chosen, courses, observe=True, local_metrics=False)


def same(one: Curves, other: Curves, mine: Any = slice(None), rounds: Any = slice(None)) -> None:
    assert one.feedback is not None
    assert other.feedback is not None
    np.testing.assert_array_equal(one.metrics, other.metrics[mine][:, rounds])
    for name, values in vars(one.feedback).items():
        np.testing.assert_array_equal(
            values, vars(other.feedback)[name][mine][:, rounds], err_msg=name
        )


@pytest.mark.fast(3)
@pytest.mark.parametrize(("algorithm", "given"), GIVEN, ids=str)
def test_it_equals_a_plain_loop(
    federation: Federation, algorithm: str, given: dict[str, float]
) -> None:
    chosen = course(**given)
    metrics, times = plain_asynchronous(federation, chosen, algorithm, 9, UNEVEN)
    other = course(0.8, Uneven(3.0), **given, learning_rate=0.3)
    found = batch_of(federation, algorithm, other, chosen).advance(9)
    np.testing.assert_allclose(found.metrics[1], np.asarray(metrics), rtol=2e-4, atol=2e-5)
    assert found.feedback is not None
    np.testing.assert_allclose(found.feedback.seconds[1].cumsum(), times, rtol=1e-12)


def test_reports_of_one_instant_equal_a_plain_loop(federation: Federation) -> None:
    chosen = course(0.8, None, **GIVEN[4][1] | {"buffer_size": 3})
    metrics, times = plain_asynchronous(federation, chosen, "fedbuff", 6, OneSecondEach())
    found = batch_of(federation, "fedbuff", chosen).advance(6)
    np.testing.assert_allclose(found.metrics[0], np.asarray(metrics), rtol=2e-4, atol=2e-5)
    assert found.feedback is not None
    assert found.feedback.seconds[0].cumsum().tolist() == times


class Doubled:
    """What clients receive is halved, and what they send is doubled."""

    def broadcast(self, parameters: Parameters, context: Context) -> Parameters:
        return {name: 0.5 * value for name, value in parameters.items()}

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        return {name: 2.0 * value for name, value in parameters.items()}


class DoubledFedAsync(Doubled, FedAsync):
    name = "doubled-fedasync"


class DoubledFedBuff(Doubled, FedBuff):
    name = "doubled-fedbuff"


@pytest.mark.parametrize(
    ("kind", "algorithm", "given"),
    [(DoubledFedAsync, *GIVEN[1]), (DoubledFedBuff, *GIVEN[5])],
    ids=str,
)
def test_what_hooks_send_is_what_is_trained_and_aggregated(
    federation: Federation, kind: type[Asynchronous], algorithm: str, given: dict[str, float]
) -> None:
    chosen, federations = course(**given), {1: federation}
    metrics, _ = plain_asynchronous(federation, chosen, algorithm, 6, UNEVEN, 0.5, 2.0)
    batch = CourseBatch(federations, LogisticRegression, kind(), [chosen], observe=True)
    found = batch.advance(6)
    np.testing.assert_allclose(found.metrics[0], np.asarray(metrics), rtol=2e-4, atol=2e-5)


class HalfUpdates(FedBuff):
    name = "half-updates"
    sends_updates = True

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        for value in parameters.values():
            value *= 0.5  # in place, as arrays of either kind may be changed
        return parameters


def test_half_of_every_update_is_half_of_the_rate(federation: Federation) -> None:
    rates = {"buffer_size": 4, "server_learning_rate": 0.5, "staleness_exponent": 0.7}
    half, full = course(**rates), course(**rates | {"server_learning_rate": 1.0})
    chosen = HalfUpdates(), [full]
    batch = CourseBatch(
        {1: federation}, LogisticRegression, *chosen, observe=True, local_metrics=False
    )
    found, expected = batch.advance(6), batch_of(federation, "fedbuff", half).advance(6)
    same(found, expected)


@pytest.mark.parametrize(("algorithm", "given"), [GIVEN[1], GIVEN[5]], ids=str)
def test_a_course_has_the_same_bits_in_any_company(
    federation: Federation, algorithm: str, given: dict[str, float]
) -> None:
    courses = [
        course(**given),
        course(1.0, **given),
        course(0.4, Uneven(2.0, 0.0), **given, step_size=1),
        course(**given, learning_rate=0.02),
        course(0.6, None, **given, batch_size=16),
        course(**given, learning_rate=1e30, weight_decay=1e30),
    ]
    together = batch_of(federation, algorithm, *courses).advance(6)
    assert np.isfinite(together.metrics).all()
    assert (together.diverged_at > 0).tolist() == [False] * 5 + [True]
    backwards = batch_of(federation, algorithm, *courses[::-1]).advance(6)
    same(backwards, together, slice(None, None, -1))
    for index, chosen in enumerate(courses):
        alone = batch_of(federation, algorithm, chosen).advance(6)
        same(alone, together, slice(index, index + 1))


@pytest.mark.parametrize(("algorithm", "given"), [GIVEN[1], GIVEN[5]], ids=str)
def test_a_course_goes_on_from_a_snapshot_with_what_is_in_flight(
    federation: Federation, algorithm: str, given: dict[str, float]
) -> None:
    first, second = course(**given), course(0.8, **given)
    whole = batch_of(federation, algorithm, first, second).advance(7)
    batch = batch_of(federation, algorithm, first, second)
    batch.advance(3)
    snapshot = batch.snapshot()
    for _ in range(2):
        same(batch.advance(4), whole, rounds=slice(3, None))
        batch.restore(snapshot)
    other = batch_of(federation, algorithm, second)
    other.restore([snapshot[1]])
    same(other.advance(4), whole, slice(1, 2), slice(3, None))
    batch.restart([0, 1])
    same(batch.advance(2), whole, rounds=slice(0, 2))


def test_what_is_begun_is_finished_as_it_was_begun(federation: Federation) -> None:
    """All five train at once; what is changed then shows when somebody begins anew."""
    given = {"buffer_size": 1, "server_learning_rate": 0.5}
    calm = [course(1.0, None, **given), course(1.0, None, **given)]
    batch = batch_of(federation, "fedbuff", *calm)
    batch.advance(1)
    batch.configure([calm[0], course(1.0, None, **given, learning_rate=0.01)])
    metrics = batch.advance(6).metrics
    np.testing.assert_array_equal(metrics[0, :4], metrics[1, :4])
    assert not np.array_equal(metrics[0, 5], metrics[1, 5])


def test_a_full_buffer_of_clients_alike_is_a_synchronous_round(federation: Federation) -> None:
    equal = make_user_federation(
        make_dataset(
            "equal", federation.features[:100], federation.labels[:100], 3, np.arange(100) % 5
        ),
        seed=1,
    )
    assert len(set(equal.num_samples[:, 0])) == 1
    full = {"batch_size": 2.0**20, "step_size": 3}
    given = {"buffer_size": 5, "server_learning_rate": 1.0, **full}
    found = batch_of(equal, "fedbuff", course(1.0, None, **given)).advance(5)
    expected = batch_of(equal, "fedavg", course(1.0, None, **full)).advance(5)
    np.testing.assert_allclose(found.metrics, expected.metrics, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def pictures() -> Federation:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (45, 8, 8, 3), dtype=np.uint8)
    users = np.repeat(np.arange(3), (20, 15, 10))
    data = make_dataset("small", pixels, rng.integers(3, size=45), 3, users)
    return make_user_federation(data, seed=1)


@pytest.mark.parametrize(
    ("rate", "of_statistics", "model"),
    [(0.25, 0.25, ConvNet), (1.5, 1.0, ConvNet), (0.25, 0.25, Perceptron), (3.0, 1.0, Perceptron)],
)
def test_a_long_step_of_the_server_takes_running_statistics_no_further_than_reports(
    request: pytest.FixtureRequest, rate: float, of_statistics: float, model: type[Model]
) -> None:
    data = request.getfixturevalue("pictures" if model is ConvNet else "federation")

    def after_one(rate: float) -> tuple[Any, Any]:
        given = {**GIVEN[4][1], "server_learning_rate": rate, "learning_rate": 0.01}
        shape = dict.fromkeys(model.architecture, 3)
        batch = batch_of(
            data, "fedbuff", course(1.0, OneSecondEach(), **given, **shape), model=model
        )
        first = batch.snapshot()[0]
        batch.advance(1)
        return first, batch.snapshot()[0]

    (first, whole), (_, other) = after_one(1.0), after_one(rate)
    # All began from the first model: the reports of both are the same, and so is their mean.
    for name, start in first.parameters.items():
        share = of_statistics if name.startswith(("mean", "variance")) else rate
        found, expected = map(
            torch.as_tensor,
            (other.parameters[name], start + share * (whole.parameters[name] - start)),
        )
        # Float32 holds 24 bits, and a few sums of numbers of this size round.
        tolerance = 1e-5 * float(expected.abs().max() + 1e-3)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize(("algorithm", "given"), [GIVEN[1], GIVEN[4]], ids=str)
def test_running_statistics_follow_the_reports(
    pictures: Federation, algorithm: str, given: dict[str, float]
) -> None:
    chosen = course(0.7, **given, learning_rate=0.01)
    batch = batch_of(pictures, algorithm, chosen, model=ConvNet)
    first: Any = batch.snapshot()[0]
    batch.advance(3)
    state: Any = batch.snapshot()[0]
    assert (state.parameters["variance1"] > 0).all()
    assert not torch.equal(state.parameters["mean1"], first.parameters["mean1"])


def test_who_trains_next_is_refused(federation: Federation) -> None:
    batch = batch_of(federation, "fedbuff", course(**GIVEN[3][1]))
    with pytest.raises(InvalidArgumentError, match="asynchronous"):
        batch.sampled(2)
