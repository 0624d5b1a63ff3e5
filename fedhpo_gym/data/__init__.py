"""Training data behind one checksummed cache, and clients of it; names are imported when asked."""

from typing import TYPE_CHECKING

from fedhpo_gym.core import lazy_names

if TYPE_CHECKING:
    from fedhpo_gym.data.catalogue import SOURCES, load_dataset
    from fedhpo_gym.data.federation import Federation
    from fedhpo_gym.data.graph_sets import GraphSet, GraphSets, make_graph_set, make_graph_sets
    from fedhpo_gym.data.graphs import NodeGraph, make_node_graph
    from fedhpo_gym.data.leaf import (
        LeafData,
        Options,
        UserSamples,
        find_files,
        find_in,
        integer,
        preprocess,
        read_file,
        read_files,
        write_files,
    )
    from fedhpo_gym.data.partitions import get_partition
    from fedhpo_gym.data.records import Dataset, Source, SparseRows, make_dataset
    from fedhpo_gym.data.tables import TableSource

__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": "SOURCES, load_dataset",
        "federation": "Federation",
        "graph_sets": "GraphSet, GraphSets, make_graph_set, make_graph_sets",
        "graphs": "NodeGraph, make_node_graph",
        "leaf": "LeafData, Options, UserSamples, find_files, find_in, "
        "integer, preprocess, read_file, read_files, write_files",
        "partitions": "get_partition",
        "records": "Dataset, Source, SparseRows, make_dataset",
        "tables": "TableSource",
    },
)

__all__ = [
    "SOURCES",
    "Dataset",
    "Federation",
    "GraphSet",
    "GraphSets",
    "LeafData",
    "NodeGraph",
    "Options",
    "Source",
    "SparseRows",
    "TableSource",
    "UserSamples",
    "find_files",
    "find_in",
    "get_partition",
    "integer",
    "load_dataset",
    "make_dataset",
    "make_graph_set",
    "make_graph_sets",
    "make_node_graph",
    "preprocess",
    "read_file",
    "read_files",
    "write_files",
]
