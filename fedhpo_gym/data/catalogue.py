"""The data sets that can be loaded, each with its public source, licence and citation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.data.cifar import CIFAR10
from fedhpo_gym.data.femnist import FEMNIST
from fedhpo_gym.data.graph_sets import TU_SETS
from fedhpo_gym.data.graph_tasks import GRAPH_DC
from fedhpo_gym.data.molecules import MOLECULES
from fedhpo_gym.data.natural import NATURAL_SOURCES
from fedhpo_gym.data.planetoid import NODE_GRAPHS
from fedhpo_gym.data.ratings import FEDNETFLIX, MADE_RATINGS
from fedhpo_gym.data.records import Dataset, Source
from fedhpo_gym.data.sentences import COLA, SST2
from fedhpo_gym.data.shakespeare import SHAKESPEARE
from fedhpo_gym.data.synthetic import SYNTHETIC
from fedhpo_gym.data.tables import TableSource
from fedhpo_gym.data.twitter import TWITTER

_UCI = "CC BY 4.0 (UCI Machine Learning Repository)"

_TABLES = (
    TableSource(
        name="CreditG",
        num_rows=1000,
        num_classes=2,
        licence=_UCI,
        open_licence=True,
        citation="H. Hofmann: Statlog (German Credit Data), UCI, 1994",
        openml_task=31,
        file="credit.g.arff",
        sha256="177171ed80cfc816ef10a76813fa8f97695a6f7abab4d8435eb6ce0a65a37501",
    ),
    TableSource(
        name="Vehicle",
        num_rows=846,
        num_classes=4,
        licence=_UCI,
        open_licence=True,
        citation="P. Mowforth, B. Shepherd: Statlog (Vehicle Silhouettes), UCI, 1987",
        openml_task=53,
        file="vehicle.arff",
        sha256="c815585534f9e8c51c6cbe535770891744f5883081709f3a36a58bd419ce0994",
    ),
    TableSource(
        name="KC1",
        num_rows=2109,
        num_classes=2,
        licence="public (PROMISE Software Engineering Repository)",
        citation="J. Sayyad Shirabad, T. Menzies: The PROMISE Repository, 2005",
        openml_task=3917,
        file="kc1.arff",
        sha256="82fa208e6fc2c3b96072401c11c077897f713d8d93f7ad4cda89b8e4636bb5c0",
    ),
    TableSource(
        name="BloodTransfusion",
        num_rows=748,
        num_classes=2,
        licence=_UCI,
        open_licence=True,
        citation="I-C. Yeh: Blood Transfusion Service Center, UCI, 2008",
        openml_task=10101,
        file="transfusion.data",
        sha256="7e0a23af73bef268cab8f61c2f1992a9304490e48f3847137104ef7a9672f81b",
    ),
    TableSource(
        name="Australian",
        num_rows=690,
        num_classes=2,
        licence=_UCI,
        open_licence=True,
        citation="R. Quinlan: Statlog (Australian Credit Approval), UCI, 1987",
        openml_task=146818,
        file="australian.dat",
        sha256="1175297ee02ec98a7452bd6a0058f8590bcf933f58ada3a29d5c8f41babd0cc5",
    ),
    TableSource(
        name="Car",
        num_rows=1728,
        num_classes=4,
        licence=_UCI,
        open_licence=True,
        citation="M. Bohanec: Car Evaluation, UCI, 1988",
        openml_task=146821,
        file="car.arff",
        sha256="361952e8eadd9abebbfeaca6056228f0bdabb71a2e8cfa0b5ed49d12b6b9c6c7",
    ),
    TableSource(
        name="Segment",
        num_rows=2310,
        num_classes=7,
        licence=_UCI,
        open_licence=True,
        citation="Statlog (Image Segmentation), UCI, 1990",
        openml_task=146822,
        file="segment.arff",
        sha256="fc99b13f74a51f0c2f94954bd3795dd023226f7b9dd18d5fb6d5c9944dec52e4",
    ),
    TableSource(
        name="BreastCancer",
        num_rows=569,
        num_classes=2,
        licence=_UCI,
        open_licence=True,
        citation="W. Wolberg et al.: Breast Cancer Wisconsin (Diagnostic), UCI, 1993",
        sklearn="load_breast_cancer",
    ),
    TableSource(
        name="Digits",
        num_rows=1797,
        num_classes=10,
        licence=_UCI,
        open_licence=True,
        citation="E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI, 1998",
        sklearn="load_digits",
    ),
)

_SOURCES: tuple[Source, ...] = (
    *_TABLES,
    *NODE_GRAPHS,
    *MOLECULES,
    *TU_SETS,
    GRAPH_DC,
    FEMNIST,
    CIFAR10,
    SYNTHETIC,
    TWITTER,
    SST2,
    COLA,
    FEDNETFLIX,
    MADE_RATINGS,
    SHAKESPEARE,
    *NATURAL_SOURCES,
)

SOURCES: Mapping[str, Source] = MappingProxyType({source.name: source for source in _SOURCES})


@checked_types
@lru_cache(maxsize=16)
def load_dataset(name: str) -> Dataset:
    """Load a data set by name.

    The data folder (environment variable `FEDHPO_GYM_DATA`, else the user's cache) is searched
    first; what is not there is downloaded into it once, where the publisher allows that. Data that
    ships with a library or is generated needs neither.

    Raises:
        UnknownNameError: no such data set.
        DamagedDataError: a file does not have its checksum, or the data its documented shape.
        MissingDataError: the data is neither in the data folder nor downloadable.
        MissingDependencyError: an extra (for example `data`) is not installed.
    """
    require_known("data set", name, SOURCES)
    source = SOURCES[name]
    dataset = source.read()
    source.check(dataset)
    return dataset
