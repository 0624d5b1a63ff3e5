"""Molecules as graphs: BACE, BBBP and ClinTox, read from SMILES."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.data import cache
from fedhpo_gym.data.graph_sets import FOLDER, GraphSetSource, pack
from fedhpo_gym.data.graphs import PublicFile, from_entries, read_plain

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

_COMMIT = "dda6708342ffe255ded73c459ad64214a4615542"
_ADDRESS = f"https://raw.githubusercontent.com/OpenDrugAI/AttentiveFP/{_COMMIT}/data"


@dataclass(frozen=True, kw_only=True)
class MoleculeSource(GraphSetSource):
    """One .csv file with a SMILES string and labels per molecule; the edges are the bonds.

    Molecules that RDKit refuses are left out, so the number of samples depends on its version. The
    features of an atom are those of `atom_features`; kinds of bonds are not used.
    """

    smiles: str  # name of the column with the SMILES strings
    label: str  # name of the column that decides the class
    positive: str  # its value in class 1; any other is class 0

    def parse(self, paths: Sequence[Path]) -> Mapping[str, NDArray[Any]]:
        chem: Any = cache.require("rdkit.Chem", "graphs")
        text = io.StringIO(read_plain(paths[0]).decode("utf-8-sig"), newline="")
        offsets, labels, edges, entries = [0], [], [], []
        with cache.require("rdkit.rdBase", "graphs").BlockLogs():
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
        return pack(
            from_entries(rows.astype(np.int64), columns.astype(np.int64), values, shape),
            offsets=np.array(offsets),
            edges=np.array(edges).T,
            labels=np.array(labels),
        )


def atom_features(atom: Any) -> Iterator[tuple[int, float]]:
    """Yield the non-zero features (column, value) of an RDKit atom, 74 columns in all.

    Columns: 43 elements (one-hot; another element has none); number of bonds 0..10 (one-hot, more
    counts as 10); implicit hydrogens 0..6 (one-hot); formal charge; radical electrons;
    hybridisation SP, SP2, SP3, SP3D, SP3D2 (one-hot); aromatic; hydrogens 0..4 (one-hot). These are
    the quantities of the featuriser that FederatedScope uses, in an order of our own.
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


def _listed(
    name: str, file: str, blob: str, smiles: str, label: str, positive: str, citation: str
) -> MoleculeSource:
    return MoleculeSource(
        name=name,
        num_classes=2,
        num_features=NUM_ATOM_FEATURES,
        licence="none stated by the repository; MoleculeNet is MIT (DeepChem)",
        citation=citation,
        files=(PublicFile(f"{_ADDRESS}/{file}", f"{FOLDER}/{file}", blob),),
        smiles=smiles,
        label=label,
        positive=positive,
    )


# FederatedScope takes ClinTox's argmax of (approved, toxic in trials): class 1 is "not approved".
MOLECULES = (
    _listed(
        "BACE", "bace.csv", "cc149ab6b7ee3730046840829a1c63f7690f1792", "mol", "Class", "1",
        "G. Subramanian et al.: Computational Modeling of BACE-1 Inhibitors, 2016",
    ),
    _listed(
        "BBBP", "BBBP.csv", "2a42688eed77085816f439c2ce721235a63620a3", "smiles", "BBBP", "1",
        "I. Martins et al.: A Bayesian approach to in silico BBB penetration, 2012",
    ),
    _listed(
        "ClinTox", "clintox.csv", "92a89ed2189ec788cfdd88d7c3da6e18279f1e90", "smiles",
        "FDA_APPROVED", "0",
        "K. Gayvert et al.: A Data-Driven Approach to Predicting Clinical Trial Toxicity",
    ),
)  # fmt: skip
