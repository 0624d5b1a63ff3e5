"""LEAF's preprocessing: sampling, small users, and splits, as pure functions.

Options are those of LEAF's `preprocess.sh`. Different on purpose: draws come from named streams,
hierarchies survive every step that keeps users, and `num_samples` is what is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedhpo_gym.core.checks import Range, check_fields, checked_types
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.leaf import LeafData, UserSamples


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `preprocess` does; a step whose option is None is left out."""

    sampling: Literal["iid", "niid"] | None = None  # -s
    fraction: Annotated[float, Range(0, 1, "(]")] = 0.1  # share of the samples to keep (--sf)
    iid_users: float | None = None  # users made by iid sampling (--iu), below 1 a share; None: 0.01
    min_samples: Annotated[int, Range(0)] | None = None  # fewest samples a user must have (-k)
    split: Literal["user", "sample"] | None = None  # -t
    train_fraction: Annotated[float, Range(0, 1, "()")] = 0.9  # share of the training data (--tf)
    gap: Annotated[int, Range(0)] | None = (
        None  # samples left out between training and test, in order (Shakespeare: 79)
    )
    sampling_seed: int = 0  # seed of the sampling (--smplseed)
    split_seed: int = 0  # seed of the split (--spltseed)

    def __post_init__(self) -> None:
        check_fields(self)
        _check_iid_users(self.iid_users, self.sampling)


def _check_iid_users(wanted: float | None, sampling: str | None) -> None:
    if wanted is None:
        return
    if wanted <= 0 or (wanted > 1 and wanted % 1):
        raise InvalidArgumentError(
            f"`iid_users` must be a share in (0, 1) or a number of users, got {wanted}"
        )
    if sampling != "iid":
        raise InvalidArgumentError(
            f"`iid_users` must be left out unless `sampling` is 'iid' (-s), got {wanted} beside "
            f"{sampling!r}"
        )


@checked_types
def preprocess(data: LeafData, options: Options) -> dict[str, LeafData]:
    """Take the steps that the options name, in LEAF's order."""
    if options.sampling == "niid":
        data = sample_niid(data, options.fraction, options.sampling_seed)
    elif options.sampling == "iid":
        data = sample_iid(data, options.fraction, options.iid_users or 0.01, options.sampling_seed)
    if options.min_samples is not None:
        data = remove_small(data, options.min_samples)
    if not data.users:
        raise InvalidArgumentError(
            f"`min_samples` (-k) and `fraction` (--sf) must leave users, got {options.min_samples} "
            f"and {options.fraction}, which leave none; lower -k or raise --sf"
        )
    if options.split is None:
        return {"data": data}
    if options.split == "user":
        train, test = split_by_user(data, options.train_fraction, options.split_seed)
    else:
        train, test = split_by_sample(data, options.train_fraction, options.split_seed, options.gap)
    return {"train": train, "test": test}


def sample_niid(data: LeafData, fraction: float, seed: int) -> LeafData:
    """Keep whole users, in random order, until int(fraction * samples); the last is cut."""
    left = int(fraction * data.num_samples)
    names = list(data.users)
    chosen: dict[str, UserSamples] = {}
    for i in stream(seed, "leaf_sampling").permutation(len(names)):
        if not left:
            break
        samples = data.users[names[i]]
        chosen[names[i]] = samples.take(range(min(left, len(samples))))
        left -= len(chosen[names[i]])
    return data.select(chosen)


def sample_iid(data: LeafData, fraction: float, num_users: float, seed: int) -> LeafData:
    """Draw int(fraction * samples) of all samples and deal them to new users "0", "1", ...

    Shares differ by at most one sample, the smaller ones first. The new users have no hierarchies:
    their samples come from all groups.
    """
    x = [value for samples in data.users.values() for value in samples.x]
    y = [value for samples in data.users.values() for value in samples.y]
    drawn = stream(seed, "leaf_sampling").permutation(len(y))[: int(fraction * len(y))]
    groups = int(num_users if num_users >= 1 else max(1, round(num_users * len(data.users))))
    if groups > len(drawn):
        raise InvalidArgumentError(
            f"`num_users` must not exceed the {len(drawn)} drawn samples, got {groups} users"
        )
    size, larger = divmod(len(drawn), groups)
    sizes = [size] * (groups - larger) + [size + 1] * larger
    everybody = UserSamples(tuple(x), tuple(y))
    parts = np.split(drawn, np.cumsum(sizes)[:-1])
    return LeafData({str(i): everybody.take(part.tolist()) for i, part in enumerate(parts)})


def remove_small(data: LeafData, min_samples: int) -> LeafData:
    """Keep the users with at least `min_samples` samples."""
    return data.select({u: s for u, s in data.users.items() if len(s) >= min_samples})


def split_by_user(data: LeafData, fraction: float, seed: int) -> tuple[LeafData, LeafData]:
    """Draw int(fraction * users) users for training; the others are for testing."""
    names = list(data.users)
    order = stream(seed, "leaf_split").permutation(len(names))
    training = {names[i] for i in order[: int(fraction * len(names))]}
    train = {u: s for u, s in data.users.items() if u in training}
    test = {u: s for u, s in data.users.items() if u not in training}
    return data.select(train), data.select(test)


def split_by_sample(
    data: LeafData, fraction: float, seed: int, gap: int | None = None
) -> tuple[LeafData, LeafData]:
    """Split the samples of every user; users with less than two samples are dropped.

    A user with n samples gives max(1, int(fraction * n)) of them to training and the others to
    testing (n = 2: one each), in their order. With a gap, training samples are the first ones, and
    `gap` samples after them are left out; a user left without test samples is in training only.
    """
    train: dict[str, UserSamples] = {}
    test: dict[str, UserSamples] = {}
    rng = stream(seed, "leaf_split")
    for user, samples in data.users.items():
        n = len(samples)
        if n < 2:
            continue
        count = max(1, int(fraction * n))
        order = rng.permutation(n) if gap is None else np.arange(n)
        train[user] = samples.take(sorted(order[:count].tolist()))
        held_out = sorted(order[count + (gap or 0) :].tolist())
        if held_out:
            test[user] = samples.take(held_out)
    return data.select(train), data.select(test)
