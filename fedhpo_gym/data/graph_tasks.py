"""Several sets of graphs as one data set, for clients that solve different problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.graph_sets import TU_SETS, GraphSet
from fedhpo_gym.data.molecules import MOLECULES
from fedhpo_gym.data.records import Dataset, Source, SparseRows, seal


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphSets(Dataset):
    """Sets of graphs, one after the other; `users` says which set a graph is from."""

    sets: tuple[GraphSet, ...]


@checked_types
def make_graph_sets(name: str, sets: Sequence[GraphSet]) -> GraphSets:
    """Lay sets of graphs end to end."""
    if not sets:
        raise InvalidArgumentError(f"`sets` must hold at least one set of graphs, got {sets!r}")
    features = _join([_rows(own) for own in sets])
    labels = np.concatenate([own.labels for own in sets])
    users = np.repeat(np.arange(len(sets)), [len(own.labels) for own in sets])
    digest = seal(*features.arrays, labels, users, *(part for own in sets for part in own.arrays))
    return GraphSets(
        name,
        features,
        labels,
        max(own.num_classes for own in sets),
        digest,
        users,
        sets=tuple(sets),
    )


def _rows(own: GraphSet) -> SparseRows:
    if not isinstance(own.features, SparseRows):
        raise InvalidArgumentError(f"the features of {own.name} must be sparse rows")
    return own.features


def _join(parts: Sequence[SparseRows]) -> SparseRows:
    starts = accumulate((part.indptr[-1] for part in parts), initial=0)
    indptr = [part.indptr[:-1] + start for part, start in zip(parts, starts, strict=False)]
    end = sum(int(part.indptr[-1]) for part in parts)
    return SparseRows(
        np.concatenate([*indptr, [end]]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
        max(part.num_columns for part in parts),
    )


@dataclass(frozen=True, kw_only=True)
class GraphSetsSource(Source):
    """Several sets of graphs of the catalogue as one."""

    sources: tuple[Source, ...]  # where the sets come from, in their order

    @property
    def origin(self) -> str:
        """The names of the sets."""
        return ", ".join(source.name for source in self.sources)

    def read(self) -> GraphSets:
        sets = []
        for source in self.sources:
            own = source.read()
            source.check(own)
            if isinstance(own, GraphSet):
                sets.append(own)
        return make_graph_sets(self.name, sets)


_PARTS: tuple[Source, ...] = (*MOLECULES, *TU_SETS)

GRAPH_DC = GraphSetsSource(
    name="GraphDC",
    num_classes=6,
    licence="; ".join(dict.fromkeys(source.licence for source in _PARTS)),
    citation="; ".join(source.citation for source in _PARTS),
    sources=_PARTS,
)
"""BACE, BBBP, ClinTox, ENZYMES and PROTEINS: the data of the paper's heterogeneous problem."""
