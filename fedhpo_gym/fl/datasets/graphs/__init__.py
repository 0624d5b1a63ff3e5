"""Graph data: citation graphs, and sets of small graphs."""

from fedhpo_gym.fl.datasets.graphs.records import NodeGraph, make_node_graph
from fedhpo_gym.fl.datasets.graphs.sparse import normalised_adjacency, undirected

__all__ = ["NodeGraph", "make_node_graph", "normalised_adjacency", "undirected"]
