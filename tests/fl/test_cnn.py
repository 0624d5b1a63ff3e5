"""Laws of the convolutional network: parity with autograd, batch invariance, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.core.seeding import stream  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_user_federation  # noqa: E402
from fedhpo_gym.fl import shared_matrices, torch_trainer  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models.cnn import ConvNet  # noqa: E402
from fedhpo_gym.fl.models.torch_model import sum_classes  # noqa: E402
from fedhpo_gym.fl.shared_matrices import SharedMatrices  # noqa: E402
from plain_course import plain_course  # noqa: E402
from plain_models import CONVOLUTIONAL, course, small_images  # noqa: E402


@pytest.fixture(scope="module")
def federation() -> Federation:
    return make_user_federation(small_images(), seed=1)


def run(federation: Federation, courses: list[Course], rounds: int = 2) -> Curves:
    batch = CourseBatch({1: federation}, ConvNet, get_algorithm("fedavg"), courses)
    return batch.advance(rounds)


@pytest.mark.parametrize(
    ("chosen", "tolerance"),
    [
        (course(batch=16, decay=0.1, sampled=0.5), 1e-5),
        (course(batch=16, rate=0.8, epochs=2), 1e-3),
        # Somewhere in these steps two numbers of a pooled window are equal but for rounding: torch
        # itself then differs as much between its two layouts of the same image.
        (course(), 1e-2),
    ],
    ids=["half", "clipped", "small batches"],
)
def test_a_course_equals_autograd(federation: Federation, chosen: Course, tolerance: float) -> None:
    found = run(federation, [chosen]).metrics[0, -1]
    expected = np.array(plain_course(federation, [chosen] * 2, network=CONVOLUTIONAL).metrics[-1])
    np.testing.assert_allclose(found[..., 0], expected[..., 0], rtol=tolerance)
    np.testing.assert_allclose(found[..., 1], expected[..., 1], atol=1e-6)


MIXED = [
    course(),
    course(rate=0.3, dropout=0.4),
    course(batch=16, epochs=2, sampled=0.5),
    course(dropout=0.2, epochs=2),
]
PORTIONS: list[dict[str, int]] = [
    {"course.MAX_LOCAL_BYTES": 1, "local_training.MAX_LAID_OUT": 1, "torch_trainer.PIECE": 1},
    {"torch_trainer.MIN_ALONE": 2**40},
    {"models.cnn.FEW_ROWS": 1},
    {"models.cnn.FEW_ROWS": 5},
]


@pytest.mark.slow
@pytest.mark.parametrize("portions", PORTIONS, ids=str)
def test_portions_of_clients_and_rows_give_the_same_numbers(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, portions: dict[str, int]
) -> None:
    whole = run(federation, MIXED).metrics
    for name, size in portions.items():
        monkeypatch.setattr(f"fedhpo_gym.fl.{name}", size)
    np.testing.assert_array_equal(run(federation, MIXED).metrics, whole)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_one_odd_number_marks_its_item(odd: float) -> None:
    values = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    assert torch_trainer._finite(values).tolist() == [True, True, True]
    values[1, 2, 4, 1] = odd
    assert torch_trainer._finite(values).tolist() == [True, True, False]


def test_dropout_changes_training_and_not_the_evaluation(federation: Federation) -> None:
    none, some = run(federation, [course(), course(dropout=0.5)], rounds=1).metrics
    assert not np.array_equal(none, some)
    still = [course(rate=0.0, decay=0.0), course(rate=0.0, decay=0.0, dropout=0.5)]
    # Statistics of the first layers move in both alike: they come before any dropout.
    np.testing.assert_array_equal(*run(federation, still, rounds=1).metrics)


def test_only_asked_rounds_are_evaluated(federation: Federation) -> None:
    whole = run(federation, MIXED[:1], rounds=3).metrics
    batch = CourseBatch({1: federation}, ConvNet, get_algorithm("fedavg"), MIXED[:1])
    curves = batch.advance(3, evaluated=(1, 3))
    assert curves.rounds.tolist() == [1, 3]
    np.testing.assert_array_equal(curves.metrics, whole[:, [0, 2]])


@pytest.mark.parametrize(("height", "width"), [(3, 8), (8, 3), (1, 1)])
def test_images_that_two_layers_cannot_halve_are_refused(height: int, width: int) -> None:
    cpu = torch.device("cpu")
    ConvNet((4, 4, 1), 3, 8, cpu).init(stream(1, "init"))
    with pytest.raises(InvalidArgumentError, match=f"at least 4 x 4 .* got {height} x {width};"):
        ConvNet((height, width, 1), 3, 8, cpu)


@pytest.mark.parametrize("classes", [1, 2, 4, 5, 7, 10, 15, 16, 62])
@pytest.mark.parametrize("columns", [1, 5, 16, 48, 64, 97, 320, 2708])
def test_classes_are_summed_one_after_the_other(classes: int, columns: int) -> None:
    values = torch.rand((classes, 3, columns), generator=torch.Generator().manual_seed(0))
    alone = torch.cat([sum_classes(values[:, i : i + 1].contiguous()) for i in range(3)])
    assert torch.equal(sum_classes(values), alone)
    expected = np.add.accumulate(values.numpy(), axis=0)[-1]
    np.testing.assert_array_equal(alone.numpy(), expected)


# ------------------------------------------------------------- all clients at once, as on a GPU

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


def trained(
    federation: Federation, model: type[ConvNet], algorithm: str, precision: str = "float32"
) -> CourseBatch:
    batch = CourseBatch(
        {1: federation}, model, get_algorithm(algorithm), COURSES, precision=precision
    )
    batch.advance(2)
    return batch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "sharing"),
    [("fedavg", True), ("fedavg", False), ("fedprox", True), ("ditto", False)],
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
