"""The federation whose clients have data sets of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.fl.datasets import load_dataset, make_dataset
from fedhpo_gym.fl.datasets.graphs import GraphSet, make_graph_set
from fedhpo_gym.fl.datasets.graphs.sparse import from_dense
from fedhpo_gym.fl.hetero import MINI_GRAPH_DC, HeteroFederation, make_hetero_federation
from fedhpo_gym.seeding import stream


def made_up_set(num_graphs: int, width: int, num_classes: int) -> GraphSet:
    """Paths of three nodes with random features."""
    rng = stream(num_graphs, "made_up_set")
    first = 3 * np.arange(num_graphs)
    edges = np.stack([np.concatenate([first, first + 1]), np.concatenate([first + 1, first + 2])])
    nodes = from_dense(rng.integers(0, 2, (3 * num_graphs, width)))
    offsets = 3 * np.arange(num_graphs + 1)
    labels = np.arange(num_graphs) % num_classes
    return make_graph_set(f"set of {num_graphs}", nodes, offsets, edges, labels, num_classes)


SETS = [made_up_set(20, 4, 2), made_up_set(35, 7, 3)]


@pytest.fixture(scope="module")
def federation() -> HeteroFederation:
    return make_hetero_federation(SETS, seed=1)


def test_each_client_has_its_own_set_split_80_10_10(federation: HeteroFederation) -> None:
    assert federation.num_clients == 2
    assert federation.num_samples.tolist() == [[16, 2, 2], [28, 3, 4]]
    assert federation.num_classes == (2, 3)
    assert federation.num_features == (4, 7)
    for own, splits in zip(federation.sets, federation.clients, strict=True):
        assert sorted(np.concatenate(splits).tolist()) == list(range(len(own.labels)))


def test_a_seed_and_a_client_decide_a_split() -> None:
    first, same, other = (make_hetero_federation(SETS, seed) for seed in (1, 1, 2))
    longer = make_hetero_federation([*SETS, SETS[0]], 1)
    for client in range(2):
        assert all(map(np.array_equal, first.clients[client], same.clients[client]))
        assert all(map(np.array_equal, first.clients[client], longer.clients[client]))
        assert not all(map(np.array_equal, first.clients[client], other.clients[client]))
    assert not all(map(np.array_equal, longer.clients[0], longer.clients[2]))


def test_node_features_are_propagated_inside_graphs(federation: HeteroFederation) -> None:
    pytest.importorskip("scipy")
    side = 6**-0.5
    path = np.array([[1 / 2, side, 0], [side, 1 / 3, side], [0, side, 1 / 2]])
    for own, found in zip(federation.sets, federation.propagated, strict=True):
        rows = np.arange(len(own.node_features))
        expected = path @ own.node_features[rows].reshape(-1, 3, own.node_features.num_columns)
        np.testing.assert_allclose(found[rows], expected.reshape(len(rows), -1), rtol=1e-6)


def test_only_sets_of_graphs_are_accepted() -> None:
    table = make_dataset("rows", np.eye(2), np.array([0, 1]), 2)
    for datasets in ([], [SETS[0], table]):
        with pytest.raises(InvalidArgumentError, match="must be sets of graphs"):
            make_hetero_federation(datasets, 1)


def test_the_real_sets_make_the_federation_of_the_paper(
    shared_datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rdkit")
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    federation = make_hetero_federation([load_dataset(name) for name in MINI_GRAPH_DC], seed=1)
    assert federation.num_features == (74, 74, 74, 3, 3)
    assert federation.num_classes == (2, 2, 2, 6, 2)
    assert federation.num_samples[3].tolist() == [480, 60, 60]
