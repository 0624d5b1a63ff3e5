"""FedNetflix: ratings of items by users, from the Netflix Prize's text files or synthetic.

The catalogue lists both sources. A sample is one rating: its feature is the index of the item, its
label the stars minus 1, and its user the client. Ratings are sorted by user, then item.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import DamagedDataError, MissingDataError
from fedhpo_gym.core.files import matching_files
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data import cache
from fedhpo_gym.data.records import Dataset, Source, make_dataset

STARS = 5
PATTERNS = ("combined_data_*.txt", "training_set/mv_*.txt", "mv_*.txt")


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings of items by users, sorted by user, then item."""

    user: NDArray[np.int64]  # (n,) int64 in 0..users-1; every user has ratings
    item: NDArray[np.int32]  # (n,) int32 in 0..items-1; every item has ratings
    rating: NDArray[np.int64]  # (n,) int64, 1 to 5 stars


def number_ids(
    users: NDArray[np.int64], items: NDArray[np.int64], stars: NDArray[np.int64]
) -> Ratings:
    """Return ratings with consecutive indices of users and items, in the order of their ids."""
    user = np.unique(users, return_inverse=True)[1]
    item = np.unique(items, return_inverse=True)[1]
    order = np.lexsort((item, user))
    return Ratings(user[order].astype(np.int64), item[order].astype(np.int32), stars[order])


def read_ratings(files: Sequence[Path], repair: str) -> Ratings:
    """Read the Netflix Prize's files: a line `item:`, then lines `user,stars,date`."""
    users, items, stars = array("q"), array("q"), array("q")
    for path in files:
        item = None
        with path.open("rb") as handle:
            for line_number, line in enumerate(handle, 1):
                try:
                    if line.rstrip().endswith(b":"):
                        item = int(line.rstrip()[:-1])
                    elif line.strip():
                        user, star_text, _ = line.split(b",")
                        users.append(int(user))
                        stars.append(_check_stars(int(star_text), item))
                        items.append(item or 0)
                except (ValueError, OverflowError) as error:
                    raise DamagedDataError(
                        f"{path}, line {line_number}: must be `item:` or `user,stars,date` with 1 "
                        f"to 5 stars, got {line[:80]!r}; get the file again and run `{repair}`"
                    ) from error
    columns = (np.array(column, dtype=np.int64) for column in (users, items, stars))
    return number_ids(*columns)


def _check_stars(stars: int, item: int | None) -> int:
    if item is None or not 1 <= stars <= STARS:
        raise ValueError(stars)
    return stars


@validate_call
def make_ratings(
    num_users: Annotated[int, Range(1)] = 500,
    num_items: Annotated[int, Range(1)] = 200,
    rank: Annotated[int, Range(1)] = 4,
    mean_ratings: Annotated[float, Range(1)] = 20.0,
    noise: Annotated[float, Range(0)] = 0.3,
    seed: int = 0,
) -> Ratings:
    """Return synthetic ratings like Netflix: few per user, popular items, a planted low rank.

    The latent rating is 3.6 + a + b + u·v + noise, with biases of users and items (standard
    deviation 0.4) and vectors of `rank` numbers with E[(u·v)²] = 1; stars are the latent rating
    rounded and clipped to 1..5. The number of ratings of a user is geometric; items are drawn with
    probabilities 1/1, 1/2, 1/3, ... and never twice by one user.
    """
    rng = stream(seed, "made_ratings")
    user_vectors = rng.normal(size=(num_users, rank)) / np.sqrt(rank)
    item_vectors = rng.normal(size=(num_items, rank))
    wishes = 3.6 + user_vectors @ item_vectors.T
    wishes += rng.normal(0.0, 0.4, (num_users, 1)) + rng.normal(0.0, 0.4, (1, num_items))
    popularity = 1.0 / np.arange(1, num_items + 1)
    counts = np.minimum(rng.geometric(1.0 / mean_ratings, num_users), num_items)
    items = [
        rng.choice(num_items, count, replace=False, p=popularity / popularity.sum())
        for count in counts
    ]
    item, user = np.concatenate(items), np.repeat(np.arange(num_users), counts)
    noisy_wishes = wishes[user, item] + rng.normal(0.0, noise, len(user))
    return number_ids(user, item, np.clip(np.rint(noisy_wishes), 1, STARS).astype(np.int64))


def ratings_dataset(name: str, ratings: Ratings) -> Dataset:
    """Return ratings as samples with (n, 1) int32 items as features, and stars - 1 as labels."""
    return make_dataset(name, ratings.item.reshape(-1, 1), ratings.rating - 1, STARS, ratings.user)


@dataclass(frozen=True, kw_only=True)
class NetflixSource(Source):
    """The Netflix Prize data in the folder `netflix` of the data folder, provided by the user."""

    origin: ClassVar[str] = "the Netflix Prize's files combined_data_1.txt to combined_data_4.txt"

    def read(self) -> Dataset:
        """Return (n, 1) int32 item numbers; labels are stars - 1."""
        folder = cache.data_folder() / "netflix"
        matches = (matching_files(folder, pattern) for pattern in PATTERNS)
        files = next(filter(None, matches), None)
        if files is None:
            raise MissingDataError(
                f"{self.name} needs {self.origin} (or mv_*.txt); Netflix no longer publishes "
                f"them. Put your copy into {folder} and run `{self.repair}` to check it"
            )
        arrays = cache.derive_arrays(
            "netflix", files, lambda: vars(read_ratings(files, self.repair)), self.repair
        )
        return ratings_dataset(self.name, Ratings(**arrays))


@dataclass(frozen=True, kw_only=True)
class MadeRatingsSource(Source):
    """Synthetic ratings with a planted structure."""

    origin: ClassVar[str] = "generated by fedhpo_gym.data.ratings.make_ratings"
    offline: ClassVar[bool] = True

    def read(self) -> Dataset:
        """Return the ratings of `make_ratings` with default arguments."""
        return ratings_dataset(self.name, make_ratings())


FEDNETFLIX = NetflixSource(
    name="FedNetflix",
    num_rows=100_480_507,
    num_classes=STARS,
    licence="for research only, no redistribution (Netflix Prize rules)",
    citation="J. Bennett, S. Lanning: The Netflix Prize, KDD Cup and Workshop, 2007",
)

MADE_RATINGS = MadeRatingsSource(
    name="MadeRatings",
    num_classes=STARS,
    open_licence=True,
    licence="Apache-2.0 (generated by this package)",
    citation="fedhpo_gym, made_ratings",
)
