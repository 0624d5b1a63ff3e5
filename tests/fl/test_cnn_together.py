"""The step of all clients at once computes what the step of each by itself does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_user_federation  # noqa: E402
from fedhpo_gym.fl import shared_matrices  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch  # noqa: E402
from fedhpo_gym.fl.models.cnn import ConvNet  # noqa: E402
from fedhpo_gym.fl.shared_matrices import SharedMatrices  # noqa: E402
from plain_models import course, small_images  # noqa: E402

MORE = {"mu": 0.5, "regularization": 0.5, "server_momentum": 0.9, "server_learning_rate": 0.5}
"""What some algorithm reads."""
COURSES = [
    course(**MORE),
    course(rate=0.3, dropout=0.4, **MORE),
    course(batch=16, epochs=2, sampled=0.5, **MORE),
    course(rate=0.5, decay=0.1, batch=8, **MORE),
    course(batch=8, epochs=2, momentum=0.8, clip_norm=0.5, **MORE),
]


class Together(ConvNet):
    """The network as a graphics processor trains it, on this processor."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.together = True


@pytest.fixture(scope="module")
def federation() -> Federation:
    return make_user_federation(small_images(), seed=1)


def trained(
    federation: Federation, model: type[ConvNet], algorithm: str, precision: str = "float32"
) -> CourseBatch:
    batch = CourseBatch(
        {1: federation}, model, get_algorithm(algorithm), COURSES, precision=precision
    )
    batch.advance(2)
    return batch


@pytest.mark.parametrize(
    ("algorithm", "sharing"),
    [
        ("fedavg", True),
        ("fedavg", False),
        *(
            pytest.param(name, True, marks=pytest.mark.slow)
            for name in ("fedprox", "fedopt", "fedbn")
        ),
        # These never share.
        *(pytest.param(name, False, marks=pytest.mark.slow) for name in ("ditto", "nbafl")),
    ],
)
def test_parameters_are_those_of_single_steps(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, algorithm: str, sharing: bool
) -> None:
    monkeypatch.setattr(
        "fedhpo_gym.fl.shared_matrices.worth_sharing", lambda rank, _: np.full(len(rank), sharing)
    )
    expected = trained(federation, ConvNet, algorithm)
    found = trained(federation, Together, algorithm)
    begun = CourseBatch({1: federation}, ConvNet, get_algorithm(algorithm), COURSES).snapshot()
    for one, other, start in zip(expected.snapshot(), found.snapshot(), begun, strict=True):
        assert one is not None
        assert start is not None
        assert other is not None
        assert one.diverged_at == other.diverged_at
        for name, value in one.parameters.items():
            # Rounding decides ties of a pooled window, otherwise on each kind of processor.
            moved = (value - start.parameters[name]).norm()
            error = (other.parameters[name] - value).norm()
            assert error <= 0.1 * moved + 1e-5 * value.norm(), (name, error, moved)
    np.testing.assert_allclose(found.evaluate(), expected.evaluate(), rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize("sizes", [{}, {"batch_size": 1, "batch_size@0": 16}])
def test_clients_that_train_together_keep_no_more_rows_than_planned(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, float]
) -> None:
    kept: list[tuple[int, int]] = []

    class Seen(SharedMatrices):
        def __init__(self, *arguments: Any) -> None:
            kept.append(arguments[2:])
            super().__init__(*arguments)

    most = 16 * shared_matrices.MORE
    monkeypatch.setattr(shared_matrices, "MAX_KEPT", 16)
    monkeypatch.setattr("fedhpo_gym.fl.torch_trainer.SharedMatrices", Seen)
    monkeypatch.setattr(
        shared_matrices, "worth_sharing", lambda rank, _: np.ones(len(rank), np.bool_)
    )
    usual = course(batch=16, epochs=2)
    asked = Course({**usual.configuration, **sizes}, usual.client_sample_rate, usual.seed)
    CourseBatch({1: federation}, Together, get_algorithm("fedavg"), [asked]).advance(1)
    assert sum(clients for clients, _ in kept) == federation.num_clients
    assert all(clients == 1 or clients * rows <= most for clients, rows in kept)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics processor here")
def test_a_graphics_processor_trains_the_same_courses_and_repeats_itself(
    federation: Federation,
) -> None:
    here = trained(federation, ConvNet, "fedavg").evaluate()
    batches = [
        CourseBatch({1: federation}, ConvNet, get_algorithm("fedavg"), COURSES, device="cuda")
        for _ in range(2)
    ]
    for batch in batches:
        batch.advance(2)
    there, again = (batch.evaluate() for batch in batches)
    np.testing.assert_allclose(there, here, rtol=5e-3, atol=1e-3)
    np.testing.assert_array_equal(there, again)
