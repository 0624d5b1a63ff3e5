"""LEAF's json format and preprocessing, for all of its six data sets.

S. Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018, https://leaf.cmu.edu.
"""

from fedhpo_gym.datasets.leaf.files import (
    find_files,
    find_in,
    integer,
    read_file,
    read_files,
    write_files,
)
from fedhpo_gym.datasets.leaf.preprocess import Options, preprocess
from fedhpo_gym.datasets.leaf.records import LeafData, UserSamples

__all__ = [
    "LeafData",
    "Options",
    "UserSamples",
    "find_files",
    "find_in",
    "integer",
    "preprocess",
    "read_file",
    "read_files",
    "write_files",
]
