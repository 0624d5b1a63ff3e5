"""The catalogue of data sets, each with its public source, licence and citation."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.core.plugins import Registry
from fedhpo_gym.data.graph_sets import GRAPH_DC, MOLECULES, TU_SETS
from fedhpo_gym.data.graphs import NODE_GRAPHS
from fedhpo_gym.data.images import CIFAR10, FEMNIST
from fedhpo_gym.data.natural import NATURAL_SOURCES
from fedhpo_gym.data.ratings import FEDNETFLIX, MADE_RATINGS
from fedhpo_gym.data.records import Dataset, Source
from fedhpo_gym.data.sentences import COLA, SST2
from fedhpo_gym.data.shakespeare import SHAKESPEARE
from fedhpo_gym.data.synthetic import SYNTHETIC
from fedhpo_gym.data.tables import TABLES
from fedhpo_gym.data.twitter import TWITTER

_SOURCES: tuple[Source, ...] = (
    *TABLES,
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

REGISTERED: Registry[Source] = Registry("data set", lambda: SOURCES)
"""Sources of data that users have added, by name."""


@validate_call
def get_source(name: str) -> Source:
    """Return the source of a data set, by its name."""
    catalogue = REGISTERED if name in REGISTERED else SOURCES
    require_known("data set", name, [*SOURCES, *REGISTERED])
    return catalogue[name]


def download_command(name: str) -> str:
    """Return the command that downloads a data set; empty if no download is needed."""
    source = get_source(name)
    return source.repair if not source.offline and "download" in source.repair else ""


@validate_call
def register_source(source: Source) -> None:
    """Add your own data set, which tasks can then use by its name.

    Raises:
        InvalidArgumentError: this package has a data set of that name.
    """
    REGISTERED.add(source.name, lambda: source)
    load_dataset.cache_clear()


@validate_call
@lru_cache(maxsize=16)
def load_dataset(name: str) -> Dataset:
    """Load a data set by name.

    The data folder (environment variable `FEDHPO_GYM_DATA`, else the user's cache) is searched
    first; missing data is downloaded into it once, if the publisher allows that. Data that is part
    of a library, or generated, needs neither.

    Raises:
        UnknownNameError: no such data set.
        DamagedDataError: a file does not have its checksum, or the data its documented shape.
        MissingDataError: the data is neither in the data folder nor downloadable.
        MissingDependencyError: an extra (for example `data`) is not installed.
    """
    source = get_source(name)
    dataset = source.read()
    source.check(dataset)
    return dataset
