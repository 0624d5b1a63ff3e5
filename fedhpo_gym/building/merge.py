"""Taking over the finished units of a build on another machine."""

from __future__ import annotations

from pathlib import Path

from fedhpo_gym.building.workers import read_unit
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.files import new_file


def merge_parts(source: Path, parts: Path) -> None:
    """Copy the units that are not there yet; each is read before, and appears whole or not at all.

    Units of another plan have another folder, so they are never taken for these.

    Args:
        source: the folder of the other build (what was its `--out`), its `parts` folder, or the
            folder of the units itself.
        parts: where the units go.

    Raises:
        InvalidArgumentError: there are no units of this plan in `source`.
        DamagedDataError: a unit cannot be read; names the file.
    """
    candidates = (source / "parts" / parts.name, source / parts.name, source)
    known = [folder for folder in candidates if folder.name == parts.name and folder.is_dir()]
    units = [path for folder in known for path in sorted(folder.glob("*.npz"))]
    if not units:
        raise InvalidArgumentError(
            f"`merge` must name folders with finished units of the same build, got {source}; "
            f"there is no unit in {candidates[0]}: same task, rounds, rates, data and engine?"
        )
    for path in units:
        target = parts / path.name
        if not target.exists():
            read_unit(path.parent, path.stem)
            with new_file(target) as handle:
                handle.write(path.read_bytes())
