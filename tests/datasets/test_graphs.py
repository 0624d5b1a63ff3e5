"""Citation graphs: reading, checksums, sparse products, the normalised adjacency."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.data import SOURCES, cache, load_dataset
from fedhpo_gym.data.graphs import (
    NODE_GRAPHS,
    NodeGraph,
    NodeGraphSource,
    from_dense,
    git_blob,
    make_node_graph,
    matmul,
    normalised_adjacency,
    undirected,
)
from fedhpo_gym.testing import DatasetConformance

# Distinct undirected edges without loops, and the largest class, of the published files.
DOCUMENTED = {"Cora": (5278, 818), "CiteSeer": (4536, 701)}
EDGES = np.array([[0, 1, 1, 3, 2, 4], [1, 0, 2, 3, 1, 3]])


@pytest.mark.usefixtures("real_data")
class TestCora(DatasetConformance):
    name = "Cora"


@pytest.mark.usefixtures("real_data")
class TestCiteSeer(DatasetConformance):
    name = "CiteSeer"


def test_all_citation_graphs_of_the_paper_are_in_the_catalogue() -> None:
    assert {"Cora", "CiteSeer", "PubMed"} == {source.name for source in NODE_GRAPHS}
    assert all(SOURCES[source.name] is source for source in NODE_GRAPHS)


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_real_graphs_are_as_documented(name: str) -> None:
    graph = load_dataset(name)
    assert isinstance(graph, NodeGraph)
    assert (graph.edges.shape[1], np.bincount(graph.labels).max()) == DOCUMENTED[name]
    assert np.array_equal(graph.edges, undirected(graph.edges[::-1]))


# ------------------------------------------------------------------------- made-up files


def contents(edges: np.ndarray[Any, Any] = EDGES) -> dict[str, np.ndarray[Any, Any]]:
    """A graph of five nodes, three words and two classes in the published layout."""
    words = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0.5]])
    attr, adj = from_dense(words), np.zeros((5, 5))
    adj[tuple(edges)] = 1
    who = from_dense(adj)
    return {
        "attr_data": attr.values, "attr_indices": attr.indices, "attr_indptr": attr.indptr,
        "attr_shape": np.array([5, 3]), "adj_data": who.values, "adj_indices": who.indices,
        "adj_indptr": who.indptr, "adj_shape": np.array([5, 5]),
        "labels": np.array([0, 1, 1, 0, 1], dtype=np.int8), "class_names": np.array(["a", "b"]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def made_up() -> tuple[NodeGraphSource, bytes]:
    """A source, and the file it describes."""
    buffer = io.BytesIO()
    np.savez(buffer, **contents())
    blob = git_blob(buffer.getvalue())
    cora = NODE_GRAPHS[0]
    source = replace(
        cora, num_rows=5, num_features=3, num_classes=2, file=replace(cora.file, git_blob=blob)
    )
    return source, buffer.getvalue()


MadeUp = tuple[NodeGraphSource, bytes]


@pytest.mark.parametrize("where", ["cora.npz", "gnn_npz/cora.npz", "cora.npz.gz"])
def test_a_file_is_read_as_it_was_written(made_up: MadeUp, data_folder: Path, where: str) -> None:
    source, content = made_up
    path = data_folder / where
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    graph = source.read()
    assert graph.features[np.arange(5)][3].tolist() == [1, 1, 0]
    assert graph.labels.tolist() == [0, 1, 1, 0, 1]
    assert graph.edges.tolist() == [[0, 1, 3], [1, 2, 4]]


def test_the_git_id_is_the_one_git_gives() -> None:
    # `printf hello | git hash-object --stdin`
    assert git_blob(b"hello") == "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"


@pytest.mark.parametrize("wrong", [{"num_rows": 6}, {"num_features": 4}, {"num_classes": 1}])
def test_another_shape_than_documented_is_refused(
    made_up: MadeUp, data_folder: Path, wrong: dict[str, int]
) -> None:
    source, content = made_up
    (data_folder / "cora.npz").write_bytes(content)
    graph = source.read()
    source.check(graph)
    with pytest.raises(DamagedDataError, match="fedhpo-gym download Cora"):
        replace(source, **wrong).check(graph)


@pytest.mark.usefixtures("data_folder")
def test_without_a_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> None:
        raise OSError(f"no route to {url}")

    monkeypatch.setattr(cache, "open_url", refuse)
    with pytest.raises(MissingDataError, match=r"no route.*`fedhpo-gym download PubMed`"):
        load_dataset("PubMed")


@pytest.mark.parametrize(
    ("labels", "edges", "rule"),
    [
        ([0, 1], [[0], [1]], "one entry per node"),
        ([0, 1, 2], [[0], [1]], r"`labels` must lie in 0..1, got 2"),
        ([0, 1, 1], [[0], [3]], r"`edges` must lie in 0..2, got 3"),
        ([0, 1, 1], [[-1], [2]], r"`edges` must lie in 0..2, got -1"),
    ],
)
def test_an_impossible_graph_is_refused(
    labels: list[int], edges: list[list[int]], rule: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=rule):
        make_node_graph("made up", from_dense(np.eye(3)), np.array(labels), np.array(edges), 2)


# ------------------------------------------------------------------------------ arithmetic


@st.composite
def small_edges(draw: st.DrawFn) -> tuple[int, Any]:
    n = draw(st.integers(1, 12))
    shape = (2, draw(st.integers(0, 30)))
    return n, draw(npst.arrays(np.int64, shape, elements=st.integers(0, n - 1)))


@given(small_edges())
def test_undirected_edges_are_those_of_the_dense_matrix(case: tuple[int, Any]) -> None:
    n, edges = case
    matrix = np.zeros((n, n), dtype=bool)
    matrix[edges[0], edges[1]] = matrix[edges[1], edges[0]] = True
    expected = np.argwhere(np.triu(matrix, k=1)).T
    assert np.array_equal(undirected(edges), expected)


@given(small_edges())
def test_the_normalised_adjacency_is_the_dense_formula(case: tuple[int, Any]) -> None:
    n, edges = case
    edges = undirected(edges)
    matrix = np.eye(n)
    matrix[edges[0], edges[1]] = matrix[edges[1], edges[0]] = 1
    scale = np.diag(matrix.sum(1) ** -0.5)
    found = normalised_adjacency(edges, n)[np.arange(n)]
    np.testing.assert_allclose(found, scale @ matrix @ scale, rtol=1e-6)
    assert np.array_equal(found, found.T)


def test_a_path_of_three_nodes_by_hand() -> None:
    found = normalised_adjacency(np.array([[0, 1], [1, 2]]), 3)[np.arange(3)]
    side = 6**-0.5
    expected = [[1 / 2, side, 0], [side, 1 / 3, side], [0, side, 1 / 2]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(
    npst.arrays(np.float32, (4, 5), elements=st.sampled_from([0, 0, 1, -2, 0.5])),
    npst.arrays(np.float32, (5, 3), elements=st.sampled_from([0, 0, 1, 3, 0.25])),
)
def test_the_sparse_product_is_the_dense_one(left: Any, right: Any) -> None:
    product = matmul(from_dense(left), from_dense(right))
    assert product.shape == (4, 3)
    assert np.array_equal(product[np.arange(4)], left @ right)
