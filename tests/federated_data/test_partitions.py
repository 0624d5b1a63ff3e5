"""Communities over clients: a partition of bounded sizes, no edge across, reproducible."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data import cache, load_dataset, make_dataset
from fedhpo_gym.data.federation import lda_partition
from fedhpo_gym.data.graph_federations import (
    DELTA,
    GraphFederation,
    louvain_communities,
    make_graph_federation,
    place_communities,
)
from fedhpo_gym.data.graphs import NodeGraph, from_dense, make_node_graph
from golden import golden


def made_up_graph(num_nodes: int = 230, groups: int = 4) -> NodeGraph:
    """A planted partition: dense inside groups of nodes, sparse between them."""
    rng = stream(3, "made_up_graph")
    group = rng.integers(groups, size=num_nodes)
    chance = np.where(group[:, None] == group, 0.2, 0.01)
    edges = np.argwhere(rng.random(chance.shape) < chance).T
    features = (rng.random((num_nodes, 7)) < 0.3) * rng.integers(1, 4, (num_nodes, 7))
    return make_node_graph("made up", from_dense(features), group, edges, groups)


@pytest.fixture(scope="module")
def graph() -> NodeGraph:
    pytest.importorskip("networkx")
    pytest.importorskip("scipy")
    return made_up_graph()


@pytest.fixture(scope="module")
def federation(graph: NodeGraph) -> GraphFederation:
    return make_graph_federation(graph, seed=1, num_clients=3)


def assert_laws(federation: GraphFederation, graph: NodeGraph, delta: int) -> None:
    n, num_clients = len(graph.labels), federation.num_clients
    rows = np.concatenate([part for client in federation.clients for part in client])
    assert sorted(rows.tolist()) == list(range(n))
    for client, splits in enumerate(federation.clients):
        assert (federation.owner[np.concatenate(splits)] == client).all()
    assert federation.num_samples.sum(axis=1).max() <= n // num_clients + delta
    inside = {
        (a, b) for a, b in graph.edges.T.tolist() if federation.owner[a] == federation.owner[b]
    }
    assert set(map(tuple, federation.edges.T.tolist())) == inside


def test_a_federation_is_a_partition_of_nodes_and_inner_edges(
    federation: GraphFederation, graph: NodeGraph
) -> None:
    assert_laws(federation, graph, DELTA)
    assert 0 < federation.edges.shape[1] < graph.edges.shape[1]


def test_nodes_are_split_60_20_20(federation: GraphFederation) -> None:
    total = federation.num_samples.sum(axis=1, keepdims=True)
    share = federation.num_samples / total
    assert (np.abs(share - [0.6, 0.2, 0.2]) <= 2 / total).all()


@pytest.mark.usefixtures("graph")
def test_the_split_of_ten_nodes_by_hand() -> None:
    graph = made_up_graph(num_nodes=10, groups=2)
    federation = make_graph_federation(graph, seed=1, num_clients=1, delta=1)
    assert federation.num_samples.tolist() == [[6, 2, 2]]


def test_communities_partition_the_nodes_and_find_planted_groups(graph: NodeGraph) -> None:
    communities = louvain_communities(graph, seed=1)
    assert sorted(np.concatenate(communities).tolist()) == list(range(len(graph.labels)))
    purity = [np.bincount(graph.labels[c]).max() / len(c) for c in communities if len(c) > 10]
    assert min(purity) > 0.9


def test_a_seed_gives_one_federation_and_another_seed_another(graph: NodeGraph) -> None:
    first, same, other = (make_graph_federation(graph, seed, num_clients=3) for seed in (1, 1, 2))
    assert np.array_equal(first.owner, same.owner)
    for a, b in zip(first.clients, same.clients, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert any(
        not np.array_equal(x, y)
        for a, b in zip(first.clients, other.clients, strict=True)
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("graph")
def test_another_process_draws_the_same_federation(run_python: Callable[..., str]) -> None:
    code = """
        import numpy as np
        from test_partitions import made_up_graph
        from fedhpo_gym.data.graph_federations import make_graph_federation
        found = make_graph_federation(made_up_graph(), 5, num_clients=3)
        print(found.owner.tolist(), [part.tolist() for c in found.clients for part in c])
    """
    own = str(Path(__file__).parent)
    setup = f"import sys; sys.path[:] = {[own, *sys.path]!r}\n"
    outputs = {run_python(setup + textwrap.dedent(code)) for _ in range(2)}
    assert len(outputs) == 1


def test_a_client_sees_its_rows_of_the_whole_adjacency(federation: GraphFederation) -> None:
    whole = federation.adjacency[np.arange(len(federation.labels))]
    for client in range(federation.num_clients):
        nodes = federation.client_nodes(client)
        own = federation.client_adjacency(client)[np.arange(len(nodes))]
        assert np.array_equal(own, whole[np.ix_(nodes, nodes)])
        assert own.sum() == pytest.approx(whole[nodes].sum())


def test_features_are_propagated_by_the_adjacency(federation: GraphFederation) -> None:
    rows = np.arange(len(federation.labels))
    expected = federation.adjacency[rows].astype(np.float64) @ federation.features
    np.testing.assert_allclose(federation.propagated[rows], expected, rtol=1e-6)


def test_features_are_as_published(graph: NodeGraph) -> None:
    raw = make_graph_federation(graph, 1, 3)
    assert np.array_equal(raw.features, graph.features[np.arange(len(graph.labels))])
    assert raw.features.dtype == np.float32


# ------------------------------------------------------------------------- the placing rule


def pieces(*sizes: int) -> list[np.ndarray]:
    bounds = np.cumsum([0, *sizes])
    return [np.arange(a, b) for a, b in itertools.pairwise(bounds)]


def test_placing_by_hand() -> None:
    # n = 40, K = 2, delta = 4: cut at 16, at most 24. 16 | 4 from the first, 9, 7 and 4.
    found = place_communities(pieces(20, 9, 7, 4), num_clients=2, delta=4)
    # 16 -> first; 9 -> second; 7 -> first (23); 4 (rest of the first) -> second; 4 -> second.
    assert found[0].tolist() == [*range(16), *range(29, 36)]
    assert found[1].tolist() == [*range(16, 29), *range(36, 40)]


def test_a_piece_that_fits_nowhere_is_cut() -> None:
    # n = 39, K = 3, delta = 1: cut at 12, at most 14; 12, 12, 12 then the rest of one each.
    found = place_communities(pieces(13, 13, 13), num_clients=3, delta=1)
    assert [len(nodes) for nodes in found] == [13, 13, 13]
    # n = 41, share 13, at most 14: after 9, 9, 9 no client has room for 7.
    found = place_communities(pieces(9, 9, 9, 7, 7), num_clients=3, delta=1)
    assert sorted(np.concatenate(found).tolist()) == list(range(41))
    assert max(len(nodes) for nodes in found) <= 14


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 6), st.integers(1, 20))
def test_placing_is_a_partition_within_bounds(sizes: list[int], clients: int, delta: int) -> None:
    total = sum(sizes)
    if delta >= total // clients:
        with pytest.raises(InvalidArgumentError, match="delta"):
            place_communities(pieces(*sizes), clients, delta)
        return
    found = place_communities(pieces(*sizes), clients, delta)
    assert len(found) == clients
    assert sorted(np.concatenate(found).tolist()) == list(range(total))
    assert min(map(len, found)) >= 1
    assert max(map(len, found)) <= total // clients + delta


@pytest.mark.parametrize("bad", [{"delta": 0}, {"num_clients": 0}, {"num_clients": 20}])
def test_impossible_arguments_are_refused(graph: NodeGraph, bad: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="delta must be at least 1"):
        make_graph_federation(graph, 1, **bad)


def test_data_that_are_no_graph_are_refused() -> None:
    table = make_dataset("rows", np.eye(2), np.array([0, 1]), 2)
    with pytest.raises(InvalidArgumentError, match="must be a graph, got rows"):
        make_graph_federation(table, 1)


@pytest.mark.usefixtures("graph")
@pytest.mark.parametrize("name", ["Cora", "CiteSeer"])
def test_the_real_graphs_obey_the_laws(
    name: str, shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.ENV_VAR, str(shared_datasets))
    graph = load_dataset(name)
    assert isinstance(graph, NodeGraph)
    federation = make_graph_federation(graph, seed=1)
    assert_laws(federation, graph, DELTA)
    # Communities, not random nodes: five random clients would keep a fifth of the edges.
    assert federation.edges.shape[1] > 0.8 * graph.edges.shape[1]


# ----------- the partition of labels over clients against that of the original code, index by index

KEY = "a653102_min10_balanced"
CASES = 18


@pytest.mark.parametrize("index", range(CASES))
def test_equals_the_original_code(index: int) -> None:
    cases = golden("lda")
    assert len(cases) == CASES
    case = cases[index]
    labels, rng = np.array(case["labels"]), np.random.RandomState(case["seed"])
    clients = lda_partition(labels, case["clients"], case["alpha"], rng)
    assert [client.tolist() for client in clients] == case[KEY]
