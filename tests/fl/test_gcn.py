"""The graph convolutional network: parity with autograd, batch invariance, sparse products."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("networkx")
pytest.importorskip("scipy")

from federated_data.test_partitions import made_up_graph  # noqa: E402
from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.data.federation import make_federation  # noqa: E402
from fedhpo_gym.data.graph_federations import GraphFederation, make_graph_federation  # noqa: E402
from fedhpo_gym.data.graphs import from_dense  # noqa: E402
from fedhpo_gym.data.records import make_dataset  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models.gcn import GCN, SparseMatrix, take_sparse_rows, transpose, with_ones  # noqa: E402
from plain_models import plain_gcn  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def federations() -> dict[int, GraphFederation]:
    return {seed: make_graph_federation(made_up_graph(groups=7), seed, 3) for seed in (1, 2)}


def course(
    lr: float = 0.3,
    wd: float = 0.001,
    dropout: float = 0.0,
    steps: int = 3,
    rate: float = 1.0,
    seed: int = 1,
    **more: float,
) -> Course:
    config = {"learning_rate": lr, "weight_decay": wd, "dropout": dropout, "step_size": steps}
    return Course({**config, **more}, rate, seed)


def run(
    federations: dict[int, GraphFederation],
    courses: list[Course],
    rounds: int = 5,
    algorithm: str = "fedavg",
) -> Curves:
    batch = CourseBatch(federations, GCN, get_algorithm(algorithm), courses, horizon=rounds)
    return batch.advance(rounds)


MIXED = [
    course(0.3, 0.001, 0.0, 3, 1.0, 1),
    course(0.01, 0.0, 0.5, 1, 0.7, 1),
    # A rate of 1 would be chaos here: the last bit of one step is a tenth of the loss in the end.
    course(0.3, 0.0, 0.25, 8, 0.4, 2),
    course(0.5, 0.01, 0.5, 2, 1.0, 1),
    course(0.5, 0.01, 0.5, 2, 1.0, 2),
    course(0.2, 0.001, 0.0, 2, 1.0, 1, batch_size=16),
    course(0.2, 0.001, 0.4, 2, 1.0, 1, batch_size=16),
    course(0.05, 0.01, 0.4, 4, 1.0, 1, batch_size=8, momentum=0.9),
    course(0.5, 0.01, 0.0, 3, 0.7, 2, momentum=0.5, clip_norm=0.05, rate_decay=0.1),
]


@pytest.mark.fast(3)
@pytest.mark.parametrize("index", range(len(MIXED)))
def test_the_engine_equals_autograd_on_dense_matrices(
    federations: dict[int, GraphFederation], index: int
) -> None:
    chosen = MIXED[index]
    expected = plain_gcn(federations[chosen.seed], chosen, 5)
    found = run(federations, MIXED).metrics[index]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_fedprox_pulls_as_in_its_objective(federations: dict[int, GraphFederation]) -> None:
    chosen = course(mu=1.5)
    expected = plain_gcn(federations[1], chosen, 5, mu=1.5)
    found = run(federations, [chosen], algorithm="fedprox").metrics[0]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert not np.allclose(found, run(federations, [chosen]).metrics[0], rtol=1e-3)


def test_parameters_are_counted(federations: dict[int, GraphFederation]) -> None:
    model = GCN.for_federation(federations[1], CPU)
    drawn = model.init(np.random.default_rng(0))
    assert sum(value.size for value in drawn.values()) == model.num_parameters
    assert model.num_parameters == (7 + 1) * 64 + (64 + 1) * 7


def test_other_federations_are_refused() -> None:
    table = make_dataset("rows", np.eye(400), np.arange(400) % 2, 2)
    with pytest.raises(InvalidArgumentError, match="got a Federation"):
        GCN.for_federation(make_federation(table, 1, num_clients=2), CPU)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31))
def test_sparse_matrices_are_the_dense_ones(height: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense = (rng.normal(size=(height, width)) * (rng.random((height, width)) < 0.4)).astype("f")
    rows = from_dense(dense)
    every = np.arange
    np.testing.assert_array_equal(transpose(rows)[every(width)], dense.T)
    np.testing.assert_array_equal(
        with_ones(rows)[every(height)], np.hstack([dense, np.ones((height, 1))])
    )
    some = rng.permutation(height)[: rng.integers(height + 1)]
    columns = np.flatnonzero(rng.random(width) < 0.5)
    np.testing.assert_array_equal(take_sparse_rows(rows, some)[every(len(some))], dense[some])
    np.testing.assert_array_equal(
        take_sparse_rows(rows, some, columns)[every(len(some))], dense[some][:, columns]
    )
    other = rng.normal(size=(width, 5)).astype("f")
    product = SparseMatrix(rows, CPU) @ torch.from_numpy(other)
    np.testing.assert_allclose(product.numpy(), dense @ other, rtol=1e-5, atol=1e-6)
