"""Laws of the convolutional network: parity with autograd, batch invariance, dropout."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.core.seeding import stream  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_user_federation  # noqa: E402
from fedhpo_gym.fl import torch_trainer  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models import cnn_step  # noqa: E402
from fedhpo_gym.fl.models.cnn import ConvNet  # noqa: E402
from plain_course import client_order, draw_round  # noqa: E402
from plain_models import course, images, plain_network, small_images, train  # noqa: E402


@pytest.fixture(scope="module")
def federation() -> Federation:
    return make_user_federation(small_images(), seed=1)


def run(federation: Federation, courses: list[Course], rounds: int = 2) -> Curves:
    batch = CourseBatch({1: federation}, ConvNet, get_algorithm("fedavg"), courses)
    return batch.advance(rounds)


def plain_course(federation: Federation, chosen: Course, rounds: int) -> torch.nn.Sequential:
    """Return the global network after some rounds of FedAvg, with autograd."""
    model = ConvNet.for_federation(federation, torch.device("cpu"))
    network = plain_network(model.init(stream(1, "init")), 1)
    configuration = chosen.configuration
    sizes = federation.num_samples[:, 0]
    for index in range(rounds):
        order = client_order(1, index, federation.num_clients)
        clients = np.sort(order[: int(chosen.client_sample_rate * federation.num_clients)])
        total = {name: torch.zeros_like(v) for name, v in network.state_dict().items()}
        for client in clients:
            local = plain_network(model.init(stream(1, "init")), 1)
            local.load_state_dict(network.state_dict())
            size = chosen.value("batch_size", 0)
            drawn = draw_round(
                federation, index, np.array([client]), size, int(configuration["step_size"])
            )
            for rows, count in zip(drawn.rows[:, 0], drawn.sizes[:, 0], strict=True):
                used = rows[:count]
                x, y = images(federation.features[used]), torch.from_numpy(federation.labels[used])
                train(local, x, y, configuration["learning_rate"], configuration["weight_decay"])
            share = sizes[client] / sizes[clients].sum()
            for name, value in local.state_dict().items():
                total[name] = total[name] + value * share
        network.load_state_dict(total)
    return network


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
    network = plain_course(federation, chosen, 2).eval()
    for client, splits in enumerate(federation.clients):
        for split, rows in enumerate(splits):
            with torch.no_grad():
                logits = network(images(federation.features[rows]))
            labels = torch.from_numpy(federation.labels[rows])
            loss = torch.nn.functional.cross_entropy(logits, labels)
            accuracy = (logits.argmax(1) == labels).float().mean()
            assert found[client, split, 0] == pytest.approx(float(loss), rel=tolerance)
            assert found[client, split, 1] == pytest.approx(float(accuracy), abs=1e-6)


MIXED = [
    course(),
    course(rate=0.3, dropout=0.4),
    course(batch=16, epochs=2, sampled=0.5),
    course(dropout=0.2, epochs=2),
]


def test_portions_of_clients_give_the_same_numbers(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(federation, MIXED).metrics
    monkeypatch.setattr("fedhpo_gym.fl.records.MAX_LOCAL_BYTES", 1)
    monkeypatch.setattr("fedhpo_gym.fl.local_training.MAX_LAID_OUT", 1)
    monkeypatch.setattr("fedhpo_gym.fl.torch_trainer.PIECE", 1)
    np.testing.assert_array_equal(run(federation, MIXED).metrics, whole)


def test_gathering_items_first_gives_the_same_numbers(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(federation, MIXED).metrics
    monkeypatch.setattr("fedhpo_gym.fl.torch_trainer.MIN_ALONE", 2**40)
    np.testing.assert_array_equal(run(federation, MIXED).metrics, whole)


@pytest.mark.parametrize("few", [1, 5])
def test_evaluation_in_portions_of_rows_gives_the_same_numbers(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    whole = run(federation, MIXED[:1]).metrics
    monkeypatch.setattr("fedhpo_gym.fl.models.cnn.FEW_ROWS", few)
    np.testing.assert_array_equal(run(federation, MIXED[:1]).metrics, whole)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_one_odd_number_marks_its_item(odd: float) -> None:
    values = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    assert torch_trainer._finite(values).tolist() == [True, True, True]
    values[1, 2, 4, 1] = odd
    assert torch_trainer._finite(values).tolist() == [True, True, False]


def test_pooling_is_that_of_torch() -> None:
    maps = torch.randn(3, 4, 7, 6, generator=torch.Generator().manual_seed(0))
    maps = maps.contiguous(memory_format=torch.channels_last)
    assert torch.equal(cnn_step.pool(maps), torch.nn.functional.max_pool2d(maps, 2))


def test_dropout_changes_training_and_not_the_evaluation(federation: Federation) -> None:
    none, some = run(federation, [course(), course(dropout=0.5)], rounds=1).metrics
    assert not np.array_equal(none, some)
    still = [course(rate=0.0, decay=0.0), course(rate=0.0, decay=0.0, dropout=0.5)]
    # Statistics of the first layers move in both alike: they come before any dropout.
    np.testing.assert_array_equal(*run(federation, still, rounds=1).metrics)


def test_a_diverged_course_touches_no_neighbour(federation: Federation) -> None:
    curves = run(federation, [MIXED[0], course(rate=1e30, decay=1e30)], rounds=3)
    assert curves.diverged_at[1] >= 1
    assert curves.diverged_at[0] == 0
    assert np.isfinite(curves.metrics).all()
    np.testing.assert_array_equal(curves.metrics[0], run(federation, MIXED[:1], 3).metrics[0])


def test_color_images_train() -> None:
    colored = make_user_federation(small_images((8, 8, 3)), seed=1)
    metrics = run(colored, [course(rate=0.1, epochs=4)], rounds=6).metrics[0]
    assert metrics[-1, :, 0, 0].mean() < metrics[0, :, 0, 0].mean()


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
