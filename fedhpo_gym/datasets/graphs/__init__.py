"""Graph data: citation graphs, and sets of small graphs."""

from fedhpo_gym.datasets.graphs.graph_sets import GraphSet, make_graph_set
from fedhpo_gym.datasets.graphs.graph_tasks import GraphSets, make_graph_sets
from fedhpo_gym.datasets.graphs.records import NodeGraph, make_node_graph
from fedhpo_gym.datasets.graphs.sparse import matmul, normalised_adjacency, undirected

__all__ = [
    "GraphSet",
    "GraphSets",
    "NodeGraph",
    "make_graph_set",
    "make_graph_sets",
    "make_node_graph",
    "matmul",
    "normalised_adjacency",
    "undirected",
]
