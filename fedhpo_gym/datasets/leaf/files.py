"""Reading and writing LEAF's json files."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedhpo_gym.datasets.leaf.records import LeafData, UserSamples, merge
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.files import write_text
from fedhpo_gym.limits import ENV_VAR, load_json, max_bytes, require_bytes

# What LEAF's scripts leave behind, the last step first.
STAGES = (("train", "test"), ("rem_user_data",), ("sampled_data",), ("all_data",), ("",))
PATTERNS = ("*.json", "*.json.gz")
LEAF_FILE_USERS = 100
VALUES_SHARE = 4
"""How many times what may be read the values of a file may take: pixels are short words."""
_PIECE = 1 << 20


def find_files(folder: Path) -> list[Path]:
    """Return the json files of the last preprocessing step found in a folder, sorted.

    The folder may be LEAF's `data/<name>`, the folder `data` below it, or one with json files.
    Training files come before test files.
    """
    for base in (folder / "data", folder):
        for stage in STAGES:
            found = [_json_files(base / name) for name in stage]
            if all(found):
                return [path for files in found for path in files]
    return []


def _json_files(folder: Path) -> list[Path]:
    return sorted(path for pattern in PATTERNS for path in folder.glob(pattern))


def read_file(path: Path) -> LeafData:
    """Read one file, `.json` or `.json.gz`.

    The recorded `num_samples` are not used: LEAF's own Shakespeare split writes wrong ones.

    Raises:
        DamagedDataError: it is no json, lacks a part, or a user has more inputs than targets.
        TooLargeError: unpacked and decoded, it is larger than may be read.
    """
    max_bytes()  # a wrong variable is no damage
    try:
        content = load_json(_content(path), path, share=VALUES_SHARE)
        names, data = content["users"], content["user_data"]
        users = {str(u): UserSamples(tuple(data[u]["x"]), tuple(data[u]["y"])) for u in names}
        groups = content.get("hierarchies")
        hierarchies = dict(zip(map(str, names), groups, strict=True)) if groups else None
    except TooLargeError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise DamagedDataError(
            f"{path} is no LEAF file ({type(error).__name__}: {error}); it must be json with "
            "`users`, `num_samples` and `user_data`. Run LEAF's preprocess.sh again"
        ) from error
    for user, samples in users.items():
        if len(samples.x) != len(samples.y):
            raise DamagedDataError(
                f"{path}: user {user} has {len(samples.x)} inputs and {len(samples.y)} targets; "
                "run LEAF's preprocess.sh again"
            )
    return LeafData(users, hierarchies)


def _content(path: Path) -> bytes:
    """Return the text of a file, unpacked, which is measured before it is held in memory."""
    if path.suffix != ".gz":
        require_bytes(path.stat().st_size, path)
        return path.read_bytes()
    limit, size = max_bytes(), 0
    with gzip.open(path) as handle:
        while size <= limit and (piece := handle.read(_PIECE)):
            size += len(piece)
    if size > limit:
        raise TooLargeError(
            f"{path} holds more than the {limit:,} bytes that may be read; if it is genuine, set "
            f"the environment variable `{ENV_VAR}` to a larger number"
        )
    with gzip.open(path) as handle:
        return handle.read(size)


def read_files(paths: Sequence[Path]) -> LeafData:
    """Read and merge files; a user found in several gets the samples of all of them."""
    return merge(read_file(path) for path in paths)


def write_files(
    folder: Path, stem: str, data: LeafData, max_users: int = LEAF_FILE_USERS
) -> list[Path]:
    """Write a data set as `<stem>_<i>.json`, at most `max_users` users per file.

    Raises:
        InvalidArgumentError: `max_users` is less than 1.
    """
    if max_users < 1:
        raise InvalidArgumentError(f"`max_users` must be at least 1, got {max_users}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for i, content in enumerate(_contents(data, max_users)):
        path = folder / f"{stem}_{i}.json"
        write_text(path, json.dumps(content))
        paths.append(path)
    return paths


def _contents(data: LeafData, max_users: int) -> Iterator[dict[str, Any]]:
    everybody = list(data.users)
    for first in range(0, len(everybody), max_users):
        names = everybody[first : first + max_users]
        content: dict[str, Any] = {
            "users": names,
            "num_samples": [len(data.users[user]) for user in names],
            "user_data": {u: {"x": data.users[u].x, "y": data.users[u].y} for u in names},
        }
        if data.hierarchies is not None:
            content["hierarchies"] = [data.hierarchies[user] for user in names]
        yield content
