"""LEAF data in memory: the samples of named users, in LEAF's order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedhpo_gym.errors import InvalidArgumentError


@dataclass(frozen=True)
class UserSamples:
    """The samples of one user: inputs and targets, whatever json holds for this data set.

    Attributes:
        x: inputs; 784 floats (FEMNIST), 60 floats (Synthetic), a file name (CelebA), a tweet with
            its columns (Sent140), 80 characters (Shakespeare), lists of tokens (Reddit).
        y: targets, as many.
    """

    x: tuple[Any, ...]
    y: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Iterable[int]) -> UserSamples:
        """Return some of the samples, in the order given."""
        chosen = list(rows)
        return UserSamples(tuple(self.x[i] for i in chosen), tuple(self.y[i] for i in chosen))


@dataclass(frozen=True)
class LeafData:
    """A federated data set in LEAF's format.

    Attributes:
        users: samples by user, in the order of the files.
        hierarchies: group by user (Shakespeare: the play), or None when the files have none.
    """

    users: Mapping[str, UserSamples]
    hierarchies: Mapping[str, str] | None = None

    @property
    def num_samples(self) -> int:
        """Number of samples of all users."""
        return sum(map(len, self.users.values()))

    def select(self, users: Mapping[str, UserSamples]) -> LeafData:
        """Return a data set with these users; they keep their hierarchies."""
        if self.hierarchies is None:
            return LeafData(users)
        return LeafData(users, {user: self.hierarchies[user] for user in users})


def merge(parts: Iterable[LeafData]) -> LeafData:
    """Join data sets; a user found in several gets the samples of all, in their order.

    Raises:
        InvalidArgumentError: some parts have hierarchies and others have none.
    """
    users: dict[str, UserSamples] = {}
    hierarchies: dict[str, str] = {}
    for part in parts:
        for user, samples in part.users.items():
            had = users.get(user, UserSamples((), ()))
            users[user] = UserSamples(had.x + samples.x, had.y + samples.y)
        hierarchies.update(part.hierarchies or {})
    if hierarchies and hierarchies.keys() != users.keys():
        raise InvalidArgumentError(
            "`parts` must all have hierarchies or none, got hierarchies of "
            f"{len(hierarchies)} of {len(users)} users"
        )
    return LeafData(users, hierarchies or None)
