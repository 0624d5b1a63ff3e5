"""The manifest of a folder that this package's own preprocessing wrote: what must be there.

`fedhpo-gym leaf-preprocess` writes `<folder>/meta/manifest.json` last, and a key into each of its
files that says so. A file with this key is read only where a manifest names it, with its hash, and
a folder with a manifest only when it holds all the files named there and no others. Folders that
LEAF's scripts wrote have neither the key nor a manifest, and are read as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhpo_gym.datasets.reading import reading
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.files import write_text

KEY = "fedhpo_gym_manifest"
"""In a file: where its manifest lies. LEAF looks at no such key."""
PLACE = "meta/manifest.json"
REPAIR = "delete the folder and run `fedhpo-gym leaf-preprocess` again"


def write(folder: Path, options: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Write the manifest of a folder: options, and hash, users and samples of each file.

    Args:
        folder: the folder.
        options: what the preprocessing was asked for.
        paths: its files.
    """
    files = {path.relative_to(folder).as_posix(): _entry(path.read_bytes()) for path in paths}
    path = folder / PLACE
    path.parent.mkdir()
    write_text(path, json.dumps({"options": options, "files": files}, indent=1) + "\n")


def _entry(content: bytes) -> dict[str, Any]:
    counts = json.loads(content)["num_samples"]
    digest = hashlib.sha256(content).hexdigest()
    return {"sha256": digest, "users": len(counts), "samples": sum(counts)}


def check_names(files: Sequence[Path]) -> None:
    """Compare the files found in one folder with the manifest beside it, if there is one.

    Raises:
        DamagedDataError: some are missing, or some are not in it.
    """
    folder = files[0].parent
    listed = _read(folder.parent / PLACE)
    if listed is None:
        return
    expected = {name for name in listed if name.partition("/")[0] == folder.name}
    found = {f"{folder.name}/{path.name}" for path in files}
    if expected and found != expected:
        raise DamagedDataError(
            f"{folder} must hold the {len(expected)} files that its manifest names, got "
            f"{len(found & expected)} of them and {len(found - expected)} others; {REPAIR}"
        )


def check_file(path: Path, content: bytes, own: bool) -> None:
    """Compare a file with the manifest of its folder.

    Args:
        path: the file.
        content: its bytes.
        own: whether it has the key of files that need a manifest.

    Raises:
        DamagedDataError: it has the key and is in no manifest, or it has another hash there.
    """
    place = path.parent.parent / PLACE
    entry = (_read(place) or {}).get(f"{path.parent.name}/{path.name}")
    if entry is None and own:
        raise DamagedDataError(
            f"{path} must be named by {place}, which the preprocessing writes last: it did not "
            f"come to its end, or the folder was not copied as a whole; {REPAIR}"
        )
    if entry is not None and entry != hashlib.sha256(content).hexdigest():
        raise DamagedDataError(f"{path} is not the file that {place} names; {REPAIR}")


def _read(place: Path) -> dict[str, str] | None:
    """Return the hash of each file that a manifest names, or None where there is none."""
    if not place.is_file():
        return None
    with reading(place, REPAIR):
        files = json.loads(place.read_bytes())["files"]
        hashes = {str(name): entry["sha256"] for name, entry in files.items()}
        if not all(isinstance(value, str) for value in hashes.values()):
            raise InvalidArgumentError("`sha256` must be text")
        return hashes
