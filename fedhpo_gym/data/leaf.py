"""LEAF's JSON format for its six data sets (Caldas et al., 2018, https://leaf.cmu.edu).

It reads and writes these files, and repeats the sampling and splitting of LEAF's `preprocess.sh`
with named random streams (`fedhpo-gym leaf-preprocess`). The sources of FEMNIST, Shakespeare and
Twitter read their samples through `read_file`. A folder that this package wrote has a manifest with
the hash of each file, which is verified at each read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import numpy as np

from fedhpo_gym.core.checks import INT_END, Range, check_fields, short_repr, validate_call
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.core.files import (
    load_json,
    matching_files,
    max_bytes,
    read_json,
    read_unpacked,
    require_bytes,
    write_text,
)
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.cache import file_sha256, reporting_damage

# Output folders of LEAF's scripts, the last step first; one part of a split only as a last resort.
COMPLETE_STAGES = (("train", "test"), ("rem_user_data",), ("sampled_data",), ("all_data",), ("",))
STAGES = (*COMPLETE_STAGES, ("train",), ("test",))
PATTERNS = ("*.json", "*.json.gz")
LEAF_FILE_USERS = 100
VALUES_SHARE = 4
"""Ratio of the limits for decoded values and for text: pixels are short numbers."""
SHAKESPEARE_GAP = 79
"""Samples that LEAF's split of Shakespeare omits from a test part, but counts."""
REPAIR = (
    "it must be json with `users`, `num_samples` and `user_data`. Run LEAF's preprocess.sh again"
)


@validate_call
def find_files(folder: Path) -> list[Path]:
    """Return the JSON files of the last preprocessing step in a folder, train before test."""
    for base in (folder / "data", folder):
        for stage in STAGES:
            files_by_part = [
                sorted(path for p in PATTERNS for path in matching_files(base / name, p))
                for name in stage
            ]
            if all(files_by_part):
                for files in files_by_part:
                    check_names(files)
                return [path for files in files_by_part for path in files]
    return []


@validate_call
def find_dataset_files(root: Path, *names: str) -> list[Path]:
    """Return `find_files` of the first existing data set in a data folder or a clone of LEAF."""
    for name in names:
        for base in (root / name, root / "data" / name, *[root] * (root.name == name)):
            if files := find_files(base):
                return files
    return []


@validate_call
def read_file(path: Path) -> LeafData:
    """Read one file, `.json` or `.json.gz`, whose `num_samples` must count its samples.

    LEAF's split of Shakespeare records 79 more for users of test parts; texts may have these.
    """
    max_bytes()  # an invalid environment variable must not be reported as damage
    if not path.is_file():
        raise MissingDataError(f"`path` must be a file of LEAF's format, and {path} is none")
    with reporting_damage(path, REPAIR):
        require_bytes(path.stat().st_size, path)
        parsed = load_json(read_unpacked(path, max_bytes()), path, VALUES_SHARE, _refuse_constant)
        data = _parse(parsed)
    check_file(path, has_manifest_key=MANIFEST_KEY in parsed)
    return data


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _parse(content: Mapping[str, Any]) -> LeafData:
    names, data = [str(user) for user in _require_list(content["users"])], content["user_data"]
    users = {
        u: UserSamples(tuple(_require_list(data[u]["x"])), tuple(_require_list(data[u]["y"])))
        for u in names
    }
    # LEAF's split keeps the names of users without samples.
    unnamed = [entry for user, entry in data.items() if user not in users]
    if len(users) < len(names) or any(entry["y"] for entry in unnamed):
        raise InvalidArgumentError("`users` must name everybody in `user_data` with samples, once")
    for user, samples in users.items():
        if len(samples.x) != len(samples.y):
            raise InvalidArgumentError(
                f"user {user} must have a target per input, got {len(samples.x)} inputs and "
                f"{len(samples.y)} targets"
            )
    _check_counts([*map(require_integer, _require_list(content["num_samples"]))], users)
    groups = content.get("hierarchies")
    return LeafData(users, dict(zip(names, _require_list(groups), strict=True)) if groups else None)


def _check_counts(recorded: Sequence[int], users: Mapping[str, UserSamples]) -> None:
    counts = [len(samples) for samples in users.values()]
    with_gap = [max(0, count - SHAKESPEARE_GAP) for count in recorded]
    texts = all(isinstance(x, str) for samples in users.values() for x in samples.x)
    if counts == list(recorded) or (texts and counts == with_gap):
        return
    raise InvalidArgumentError(
        f"`num_samples` must count the samples of {len(users)} users, {sum(counts)} in all, got "
        f"{len(recorded)} counts of {sum(recorded)} in all"
    )


def _require_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidArgumentError(f"a list is needed, got {type(value).__name__}")
    return value


@validate_call
def require_integer(value: Any) -> int:
    """Check that a value of JSON is an integer of 64 bits, and return it."""
    if type(value) is not int or abs(value) >= INT_END:
        raise InvalidArgumentError(f"an integer of 64 bits is needed, got {short_repr(value)}")
    return value


@validate_call
def read_files(paths: Sequence[Path]) -> LeafData:
    """Read and merge files; a user in several files gets the samples of all."""
    with reporting_damage(paths[0] if paths else "no file", REPAIR):
        return merge(read_file(path) for path in paths)


@validate_call
def write_files(
    folder: Path,
    stem: str,
    data: LeafData,
    max_users: Annotated[int, Range(1)] = LEAF_FILE_USERS,
    marks: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a data set as `<stem>_<i>.json`, with further keys that LEAF ignores."""
    folder.mkdir(parents=True, exist_ok=True)
    all_users = list(data.users)
    paths: list[Path] = []
    for first in range(0, len(all_users), max_users):
        names = all_users[first : first + max_users]
        content = {
            **(marks or {}),
            "users": names,
            "num_samples": [len(data.users[user]) for user in names],
            "user_data": {u: {"x": data.users[u].x, "y": data.users[u].y} for u in names},
        }
        if data.hierarchies is not None:
            content["hierarchies"] = [data.hierarchies[user] for user in names]
        try:
            text = json.dumps(content, allow_nan=False)
        except ValueError as error:
            raise InvalidArgumentError(f"`data` must hold finite numbers: {error}") from error
        paths.append(folder / f"{stem}_{len(paths)}.json")
        write_text(paths[-1], text)
    return paths


MANIFEST_KEY = "fedhpo_gym_manifest"
"""Key of a file with the path of its manifest; LEAF ignores it."""
MANIFEST = "meta/manifest.json"
MANIFEST_REPAIR = "delete the folder and run `fedhpo-gym leaf-preprocess` again"


def write_manifest(folder: Path, options: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Write the manifest of a folder: options, and the hash, users and samples of each file."""
    files = {}
    for path in paths:
        content = path.read_bytes()
        counts, digest = json.loads(content)["num_samples"], hashlib.sha256(content).hexdigest()
        entry = {"sha256": digest, "users": len(counts), "samples": sum(counts)}
        files[path.relative_to(folder).as_posix()] = entry
    path = folder / MANIFEST
    path.parent.mkdir()
    write_text(path, json.dumps({"options": options, "files": files}, indent=1) + "\n")


def check_names(files: Sequence[Path]) -> None:
    """Check that a folder has the files of the manifest beside it, if there is one."""
    folder = files[0].parent
    listed = _read_manifest(folder.parent / MANIFEST)
    if listed is None:
        return
    expected = {name for name in listed if name.partition("/")[0] == folder.name}
    names = {f"{folder.name}/{path.name}" for path in files}
    if expected and names != expected:
        raise DamagedDataError(
            f"{folder} must hold the {len(expected)} files that its manifest names, got "
            f"{len(names & expected)} of them and {len(names - expected)} others; {MANIFEST_REPAIR}"
        )


def check_file(path: Path, has_manifest_key: bool) -> None:
    """Check a file against the manifest of its folder."""
    manifest = path.parent.parent / MANIFEST
    entry = (_read_manifest(manifest) or {}).get(f"{path.parent.name}/{path.name}")
    if entry is None and has_manifest_key:
        raise DamagedDataError(
            f"{path} must be named by {manifest}, which the preprocessing writes last: it was "
            f"interrupted, or the folder was not copied completely; {MANIFEST_REPAIR}"
        )
    if entry is not None and entry != file_sha256(path):
        raise DamagedDataError(f"{path} is not the file that {manifest} names; {MANIFEST_REPAIR}")


def _read_manifest(path: Path) -> dict[str, str] | None:
    """Return the hashes of files in a manifest, or None if there is no manifest."""
    if not path.is_file():
        return None
    with reporting_damage(path, MANIFEST_REPAIR):
        files = read_json(path)["files"]
        hashes = {str(name): entry["sha256"] for name, entry in files.items()}
        if not all(isinstance(value, str) for value in hashes.values()):
            raise InvalidArgumentError("`sha256` must be text")
        return hashes


@dataclass(frozen=True)
class UserSamples:
    """The samples of one user: inputs and targets, as in the JSON of the data set."""

    # inputs: numbers, a file name, a tweet with its columns, characters or tokens.
    x: tuple[Any, ...]
    y: tuple[Any, ...]  # targets, as many

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Iterable[int]) -> UserSamples:
        """Return the samples of some indices, in their order."""
        indices = list(rows)
        return UserSamples(tuple(self.x[i] for i in indices), tuple(self.y[i] for i in indices))


@dataclass(frozen=True)
class LeafData:
    """A federated data set in LEAF's format."""

    users: Mapping[str, UserSamples]  # samples by user, in the order of the files
    hierarchies: Mapping[str, str] | None = None  # group by user, of Shakespeare the play

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
    """Return the union of data sets; a user in several gets the samples of all, in order."""
    users: dict[str, UserSamples] = {}
    hierarchies: dict[str, str] = {}
    for data in parts:
        for user, samples in data.users.items():
            previous = users.get(user, UserSamples((), ()))
            users[user] = UserSamples(previous.x + samples.x, previous.y + samples.y)
        hierarchies.update(data.hierarchies or {})
    if hierarchies and hierarchies.keys() != users.keys():
        raise InvalidArgumentError(
            "`parts` must all have hierarchies or none, got hierarchies of "
            f"{len(hierarchies)} of {len(users)} users"
        )
    return LeafData(users, hierarchies or None)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of LEAF's `preprocess.sh`; a step whose option is None is skipped.

    Two deliberate differences: named random streams, and hierarchies are kept with their users.
    """

    sampling: Literal["iid", "niid"] | None = None  # -s
    fraction: Annotated[float, Range(0, 1, "(]")] = 0.1  # share of the samples to keep (--sf)
    iid_users: float | None = None  # users made by iid sampling (--iu), below 1 a share; None: 0.01
    min_samples: Annotated[int, Range(0)] | None = None  # fewest samples a user must have (-k)
    split: Literal["user", "sample"] | None = None  # -t
    train_fraction: Annotated[float, Range(0, 1, "()")] = 0.9  # share of the training data (--tf)
    # samples left out between training and test, in order (Shakespeare: 79)
    gap: Annotated[int, Range(0)] | None = None
    sampling_seed: int = 0  # seed of the sampling (--smplseed)
    split_seed: int = 0  # seed of the split (--spltseed)

    def __post_init__(self) -> None:
        check_fields(self)
        num_users = self.iid_users
        if num_users is None:
            return
        if num_users <= 0 or (num_users > 1 and num_users % 1):
            raise InvalidArgumentError(
                f"`iid_users` must be a share in (0, 1) or a number of users, got {num_users}"
            )
        if self.sampling != "iid":
            raise InvalidArgumentError(
                f"`iid_users` must be left out unless `sampling` is 'iid' (-s), got {num_users} "
                f"beside {self.sampling!r}"
            )


@validate_call
def preprocess(data: LeafData, options: Options) -> dict[str, LeafData]:
    """Apply the steps of the options, in LEAF's order."""
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
    """Keep all samples of users in random order, up to int(fraction * samples); the last is cut."""
    remaining = int(fraction * data.num_samples)
    names = list(data.users)
    sampled: dict[str, UserSamples] = {}
    for i in stream(seed, "leaf_sampling").permutation(len(names)):
        if not remaining:
            break
        samples = data.users[names[i]]
        sampled[names[i]] = samples.take(range(min(remaining, len(samples))))
        remaining -= len(sampled[names[i]])
    return data.select(sampled)


def sample_iid(data: LeafData, fraction: float, num_users: float, seed: int) -> LeafData:
    """Sample int(fraction * samples) samples and distribute them to new users "0", "1", ...

    Shares differ by at most one sample, the smaller ones first. The new users have no hierarchies:
    their samples come from all groups.
    """
    x = [value for samples in data.users.values() for value in samples.x]
    y = [value for samples in data.users.values() for value in samples.y]
    sample_order = stream(seed, "leaf_sampling").permutation(len(y))[: int(fraction * len(y))]
    groups = int(num_users if num_users >= 1 else max(1, round(num_users * len(data.users))))
    if groups > len(sample_order):
        raise InvalidArgumentError(
            f"`num_users` must not exceed the {len(sample_order)} drawn samples, got {groups} users"
        )
    size, larger = divmod(len(sample_order), groups)
    sizes = [size] * (groups - larger) + [size + 1] * larger
    pool = UserSamples(tuple(x), tuple(y))
    parts = np.split(sample_order, np.cumsum(sizes)[:-1])
    return LeafData({str(i): pool.take(indices.tolist()) for i, indices in enumerate(parts)})


def remove_small(data: LeafData, min_samples: int) -> LeafData:
    """Keep the users with at least `min_samples` samples."""
    return data.select({u: s for u, s in data.users.items() if len(s) >= min_samples})


def split_by_user(data: LeafData, fraction: float, seed: int) -> tuple[LeafData, LeafData]:
    """Sample int(fraction * users) users for training; the others are for testing."""
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
    the next `gap` samples are omitted; a user without test samples is in the training part only.
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
