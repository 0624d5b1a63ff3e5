"""Sets of small labelled graphs: of TU Dortmund, of molecules, and a union of several sets.

A set is stored as one large graph: nodes of all graphs in order, with `offsets` where each graph
begins. The catalogue lists the sources, and `make_hetero_federation` turns the union into clients.
Sources parse public files into plain arrays, which are cached; `make_graph_set` checks them.
"""

import csv
import io
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Integers
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.core.files import read_unpacked
from fedhpo_gym.data import cache, graphs
from fedhpo_gym.data.records import Dataset, Source, SparseRows, seal

FOLDER = "mini_graph_dc"
LAYOUT = 1
"""Increased when `GraphSetSource.parse` returns other arrays for the same files."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphSet(Dataset):
    """Many graphs as one; the samples are the graphs, and features are sums over their nodes."""

    node_features: SparseRows  # (N, d) of all nodes
    offsets: Integers  # (G + 1,) int64; graph g has the nodes offsets[g]..offsets[g + 1]
    edges: Integers  # (2, m) int64, each undirected edge once, smaller end first, no self loops

    @property
    def graph_of_node(self) -> Integers:
        """(N,) graph of each node."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.offsets))

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        return (*super().arrays, *self.node_features.arrays, self.offsets, self.edges)


@validate_call
def make_graph_set(
    name: str,
    node_features: SparseRows,
    offsets: graphs.Labels,
    edges: graphs.Edges,
    labels: graphs.Labels,
    num_classes: int,
) -> GraphSet:
    """Return a set of edges in any order and direction, with duplicates; arrays are read-only."""
    offsets, labels = np.array(offsets, dtype=np.int64), np.array(labels, dtype=np.int64)
    edges, num_nodes = graphs.undirected_edges(edges), len(node_features)
    bounds = (offsets[0], offsets[-1]) == (0, num_nodes) and len(offsets) == len(labels) + 1
    if not bounds or (np.diff(offsets) < 0).any():
        raise InvalidArgumentError(
            f"`offsets` must ascend from 0 to the {num_nodes} nodes, one more than the "
            f"{len(labels)} labels, got {len(offsets)} from {offsets[0]} to {offsets[-1]}"
        )
    graphs.check_codes("labels", labels, num_classes)
    graphs.check_codes("edges", edges, num_nodes)
    graph = np.repeat(np.arange(len(labels)), np.diff(offsets))
    ends = graph[edges]
    if crossing := np.flatnonzero(ends[0] != ends[1]).tolist():
        raise InvalidArgumentError(
            f"`edges` must stay inside a graph, got {edges[:, crossing[0]].tolist()}"
        )
    features = _sum_rows(node_features, graph, len(labels))
    parts = (*features.arrays, labels, *node_features.arrays, offsets, edges)
    return GraphSet(
        name, features, labels, num_classes, seal(*parts),
        node_features=node_features, offsets=offsets, edges=edges,
    )  # fmt: skip


def _sum_rows(node_features: SparseRows, graph: Integers, num_graphs: int) -> SparseRows:
    """Return the sums of the rows of each graph: (G, d)."""
    width = node_features.num_columns
    rows = np.repeat(graph, np.diff(node_features.indptr))
    cells, cell_of_value = np.unique(rows * width + node_features.indices, return_inverse=True)
    sums = np.bincount(cell_of_value, weights=node_features.values, minlength=len(cells))
    return graphs.from_entries(cells // width, cells % width, sums, (num_graphs, width))


@dataclass(frozen=True, kw_only=True)
class GraphSetSource(Source):
    """A set of graphs, parsed from public files."""

    num_features: int  # width of a node's features
    files: tuple[graphs.PublicFile, ...]  # what it is read from

    @property
    def origin(self) -> str:
        return self.files[0].url

    def read(self) -> GraphSet:
        paths = [file.local_path(self.repair) for file in self.files]
        arrays = cache.derive_arrays(
            f"{self.name}-{LAYOUT}", paths, lambda: self.parse(paths), self.repair
        )
        nodes = SparseRows(arrays["indptr"], arrays["indices"], arrays["values"], self.num_features)
        return make_graph_set(
            self.name, nodes, arrays["offsets"], arrays["edges"], arrays["labels"],
            self.num_classes,
        )  # fmt: skip

    @abstractmethod
    def parse(self, paths: Sequence[Path]) -> Mapping[str, NDArray[Any]]:
        """Read the files, in the order of `files`."""

    def damage_error(self, reason: str) -> DamagedDataError:
        """Return (not raise) the error for inconsistent files."""
        return DamagedDataError(
            f"data set {self.name}: {reason}; delete its files and run `{self.repair}`"
        )


def name_arrays(node_features: SparseRows, **others: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays of `GraphSetSource.parse` by their names."""
    names = ("indptr", "indices", "values")
    return {**dict(zip(names, node_features.arrays, strict=True)), **others}


FILE_PARTS = ("A", "graph_indicator", "graph_labels", "node_labels")
_COMMIT = "9b49b0775e30e49b564ecc918a2ce2ffa86ba014"
_ADDRESS = (
    f"https://raw.githubusercontent.com/alibaba/FederatedScope/{_COMMIT}/"
    "federatedscope/contrib/data/data"
)
_CITATION = "K. Borgwardt et al.: Protein function prediction via graph kernels, 2005; TUDataset"


@dataclass(frozen=True, kw_only=True)
class TUSource(GraphSetSource):
    """Four text files: edges, graph of each node, label of each graph, label of each node, from 1.

    Features are one-hot labels of nodes. Node labels and classes are numbered in ascending order.
    """

    def parse(self, paths: Sequence[Path]) -> Mapping[str, NDArray[Any]]:
        edges, graph, labels, kinds = (
            np.array([line.split(b",") for line in read_unpacked(path).splitlines()], np.int64)
            for path in paths
        )
        graph, kinds = graph.ravel(), np.unique(kinds, return_inverse=True)[1].ravel()
        if len(kinds) != len(graph):
            raise self.damage_error(
                f"{len(graph)} nodes have a graph but {len(kinds)} have a label"
            )
        if (np.diff(graph) < 0).any() or graph[0] < 1 or graph[-1] > len(labels):
            raise self.damage_error(f"the nodes must lie in order in the {len(labels)} graphs")
        if edges.shape[1:] != (2,) or edges.min() < 1 or edges.max() > len(graph):
            raise self.damage_error(f"each edge must join two of the {len(graph)} nodes")
        shape = (len(kinds), self.num_features)
        if kinds.max() >= self.num_features:
            raise self.damage_error(
                f"nodes must have {self.num_features} labels, got {kinds.max() + 1}"
            )
        nodes = graphs.from_entries(np.arange(len(kinds)), kinds, np.ones(len(kinds)), shape)
        return name_arrays(
            nodes,
            offsets=np.searchsorted(graph, np.arange(1, len(labels) + 2)),
            edges=edges.T - 1,
            labels=np.unique(labels, return_inverse=True)[1].ravel(),
        )


def _tu_source(name: str, rows: int, classes: int, folder: str, *blobs: str) -> TUSource:
    """Return a set whose four files, in the order of `PARTS`, have these git ids."""
    files = [f"{folder}_{file_part}.txt" for file_part in FILE_PARTS]
    return TUSource(
        name=name,
        num_rows=rows,
        num_classes=classes,
        num_features=3,
        licence="none stated by the publisher, who asks for the citation",
        citation=_CITATION,
        files=tuple(
            graphs.PublicFile(f"{_ADDRESS}/{folder}/raw/{file}", f"{FOLDER}/{folder}/{file}", blob)
            for file, blob in zip(files, blobs, strict=True)
        ),
    )


TU_SETS = (
    _tu_source(
        "ENZYMES", 600, 6, "ENZYMES",
        "1036978942e8dcfa04a23e811b4d01a49a98699f", "dcc03b2f70b09ffd0902bb56d43093dae6269643",
        "a38377c0bab3c5443a06d34e688b7f3929d54101", "67cf5b47d40d920639a0ab54bd98ca22f8f3f659",
    ),
    _tu_source(
        "PROTEINS", 1113, 2, "PROTEINS_full",
        "ee53ec0da8436f73dd901605817310b5d49e3385", "b57414429ddf0e5e5a455c312215a57cd6240993",
        "06b4e6dd3fb2878d8e9012f1f5427bd5d1c08b61", "4f0beae20f4d5b668eae4a98488e4360b112968d",
    ),
)  # fmt: skip


ELEMENTS = (
    "H", "Li", "B", "C", "N", "O", "F", "Na", "Mg", "Al", "Si", "P", "S", "Cl", "K", "Ca", "Ti",
    "V", "Cr", "Mn", "Fe", "Co", "Ni", "Cu", "Zn", "Ge", "As", "Se", "Br", "Zr", "Pd", "Ag",
    "Cd", "In", "Sn", "Sb", "I", "Yb", "Pt", "Au", "Hg", "Tl", "Pb",
)  # fmt: skip
HYBRIDISATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
MAX_DEGREE, MAX_IMPLICIT, MAX_HYDROGENS = 10, 6, 4
# First column of each group: element, bonds, implicit hydrogens, two numbers, ...
_DEGREE = len(ELEMENTS)
_IMPLICIT = _DEGREE + MAX_DEGREE + 1
_CHARGE = _IMPLICIT + MAX_IMPLICIT + 1
_RADICAL = _CHARGE + 1
_HYBRIDISATION = _RADICAL + 1
_AROMATIC = _HYBRIDISATION + len(HYBRIDISATIONS)
_HYDROGENS = _AROMATIC + 1
NUM_ATOM_FEATURES = _HYDROGENS + MAX_HYDROGENS + 1

_MOLECULES = "dda6708342ffe255ded73c459ad64214a4615542"
_MOLECULE_FILES = f"https://raw.githubusercontent.com/OpenDrugAI/AttentiveFP/{_MOLECULES}/data"


@dataclass(frozen=True, kw_only=True)
class MoleculeSource(GraphSetSource):
    """One .csv file with a SMILES string and labels per molecule; the edges are the bonds.

    Molecules that RDKit rejects are skipped, so the number of samples depends on its version. The
    features of an atom are those of `atom_features`; types of bonds are not used.
    """

    smiles: str  # name of the column with the SMILES strings
    label: str  # name of the column that decides the class
    positive: str  # its value in class 1; any other is class 0

    def parse(self, paths: Sequence[Path]) -> Mapping[str, NDArray[Any]]:
        chem: Any = cache.import_optional("rdkit.Chem", "graphs")
        text = io.StringIO(read_unpacked(paths[0]).decode("utf-8-sig"), newline="")
        offsets, labels, edges, entries = [0], [], [], []
        with cache.import_optional("rdkit.rdBase", "graphs").BlockLogs():
            for row in csv.DictReader(text):
                molecule = chem.MolFromSmiles(row[self.smiles])
                if molecule is None:
                    continue
                first = offsets[-1]
                labels.append(int(row[self.label] == self.positive))
                offsets.append(first + molecule.GetNumAtoms())
                for bond in molecule.GetBonds():
                    edges.append((first + bond.GetBeginAtomIdx(), first + bond.GetEndAtomIdx()))
                for node, atom in enumerate(molecule.GetAtoms(), start=first):
                    entries += [(node, *entry) for entry in atom_features(atom)]
        rows, columns, values = np.array(entries).T
        shape = (offsets[-1], NUM_ATOM_FEATURES)
        return name_arrays(
            graphs.from_entries(rows.astype(np.int64), columns.astype(np.int64), values, shape),
            offsets=np.array(offsets),
            edges=np.array(edges).T,
            labels=np.array(labels),
        )


def atom_features(atom: Any) -> Iterator[tuple[int, float]]:
    """Yield the non-zero features (column, value) of an RDKit atom, 74 columns in all.

    Columns: 43 elements (one-hot; another element has none); number of bonds 0..10 (one-hot, more
    counts as 10); implicit hydrogens 0..6 (one-hot); formal charge; radical electrons;
    hybridisation SP, SP2, SP3, SP3D, SP3D2 (one-hot); aromatic; hydrogens 0..4 (one-hot). These are
    the quantities of the featuriser of FederatedScope, in a different order.
    """
    if atom.GetSymbol() in ELEMENTS:
        yield ELEMENTS.index(atom.GetSymbol()), 1.0
    yield _DEGREE + min(atom.GetDegree(), MAX_DEGREE), 1.0
    yield _IMPLICIT + min(atom.GetNumImplicitHs(), MAX_IMPLICIT), 1.0
    if atom.GetFormalCharge():
        yield _CHARGE, float(atom.GetFormalCharge())
    if atom.GetNumRadicalElectrons():
        yield _RADICAL, float(atom.GetNumRadicalElectrons())
    if str(atom.GetHybridization()) in HYBRIDISATIONS:
        yield _HYBRIDISATION + HYBRIDISATIONS.index(str(atom.GetHybridization())), 1.0
    if atom.GetIsAromatic():
        yield _AROMATIC, 1.0
    yield _HYDROGENS + min(atom.GetTotalNumHs(), MAX_HYDROGENS), 1.0


def _molecule_source(
    name: str, file: str, blob: str, smiles: str, label: str, positive: str, citation: str
) -> MoleculeSource:
    return MoleculeSource(
        name=name,
        num_classes=2,
        num_features=NUM_ATOM_FEATURES,
        licence="none stated by the repository; MoleculeNet is MIT (DeepChem)",
        citation=citation,
        files=(graphs.PublicFile(f"{_MOLECULE_FILES}/{file}", f"{FOLDER}/{file}", blob),),
        smiles=smiles,
        label=label,
        positive=positive,
    )


# FederatedScope takes ClinTox's argmax of (approved, toxic in trials): class 1 is "not approved".
MOLECULES = (
    _molecule_source(
        "BACE", "bace.csv", "cc149ab6b7ee3730046840829a1c63f7690f1792", "mol", "Class", "1",
        "G. Subramanian et al.: Computational Modeling of BACE-1 Inhibitors, 2016",
    ),
    _molecule_source(
        "BBBP", "BBBP.csv", "2a42688eed77085816f439c2ce721235a63620a3", "smiles", "BBBP", "1",
        "I. Martins et al.: A Bayesian approach to in silico BBB penetration, 2012",
    ),
    _molecule_source(
        "ClinTox", "clintox.csv", "92a89ed2189ec788cfdd88d7c3da6e18279f1e90", "smiles",
        "FDA_APPROVED", "0",
        "K. Gayvert et al.: A Data-Driven Approach to Predicting Clinical Trial Toxicity",
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphSets(Dataset):
    """Several sets of graphs in order; `users` is the index of the set of each graph."""

    sets: tuple[GraphSet, ...]


@validate_call
def make_graph_sets(name: str, sets: Sequence[GraphSet]) -> GraphSets:
    """Return the union of sets of graphs, in their order."""
    if not sets:
        raise InvalidArgumentError(f"`sets` must hold at least one set of graphs, got {sets!r}")
    features = _stack_rows([cast("SparseRows", graph_set.features) for graph_set in sets])
    labels = np.concatenate([graph_set.labels for graph_set in sets])
    users = np.repeat(np.arange(len(sets)), [len(graph_set.labels) for graph_set in sets])
    digest = seal(
        *features.arrays,
        labels,
        users,
        *(array for graph_set in sets for array in graph_set.arrays),
    )
    return GraphSets(
        name,
        features,
        labels,
        max(graph_set.num_classes for graph_set in sets),
        digest,
        users,
        sets=tuple(sets),
    )


def _stack_rows(matrices: Sequence[SparseRows]) -> SparseRows:
    starts = accumulate((matrix.indptr[-1] for matrix in matrices), initial=0)
    indptr = [matrix.indptr[:-1] + start for matrix, start in zip(matrices, starts, strict=False)]
    end = sum(int(matrix.indptr[-1]) for matrix in matrices)
    return SparseRows(
        np.concatenate([*indptr, [end]]),
        np.concatenate([matrix.indices for matrix in matrices]),
        np.concatenate([matrix.values for matrix in matrices]),
        max(matrix.num_columns for matrix in matrices),
    )


@dataclass(frozen=True, kw_only=True)
class GraphSetsSource(Source):
    """The union of several sets of graphs of the catalogue."""

    sources: tuple[Source, ...]  # where the sets come from, in their order

    @property
    def origin(self) -> str:
        return ", ".join(source.name for source in self.sources)

    def read(self) -> GraphSets:
        sets = []
        for source in self.sources:
            dataset = source.read()
            source.check(dataset)
            if isinstance(dataset, GraphSet):
                sets.append(dataset)
        return make_graph_sets(self.name, sets)


_DC_SOURCES: tuple[Source, ...] = (*MOLECULES, *TU_SETS)

GRAPH_DC = GraphSetsSource(
    name="GraphDC",
    num_classes=6,
    licence="; ".join(dict.fromkeys(source.licence for source in _DC_SOURCES)),
    citation="; ".join(source.citation for source in _DC_SOURCES),
    sources=_DC_SOURCES,
)
"""BACE, BBBP, ClinTox, ENZYMES and PROTEINS: the data of the paper's heterogeneous problem."""
