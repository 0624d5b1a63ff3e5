"""Taking over the finished units of another build, and setting damaged ones aside."""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

from fedhpo_gym.building.design import Design, U
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.files import new_file


def merge_parts(design: Design[U], source: Path, parts: Path) -> None:
    """Copy the units that are not there yet; each is read before, and appears whole or not at all.

    Units of another plan have another folder, so they are never taken for these.

    Args:
        design: what the units belong to.
        source: the folder of the other build (what was its `--out`), its `parts` folder, or the
            folder of the units itself.
        parts: where the units go.

    Raises:
        InvalidArgumentError: there are no units of this plan in `source`.
        DamagedDataError: a unit cannot be read; names the file.
    """
    candidates = (source / "parts" / parts.name, source / parts.name, source)
    known = [folder for folder in candidates if folder.name == parts.name and folder.is_dir()]
    units = [
        (folder, name, courses)
        for folder in known
        for name, courses in design.stored(folder).items()
    ]
    if not units:
        raise InvalidArgumentError(
            f"`merge` must name folders with finished units of the same build, got {source}; "
            f"there is no unit in {candidates[0]}: same task, rounds, rates, data and engine?"
        )
    for folder, name, courses in units:
        target = parts / f"{name}.npz"
        if not target.exists():
            design.read(folder, name, courses)
            with new_file(target) as handle:
                handle.write((folder / target.name).read_bytes())


def set_damaged_aside(design: Design[U], parts: Path) -> None:
    """Read all stored units; damaged ones are named and get another name, so they are missing.

    Args:
        design: what the units belong to.
        parts: where the units are.

    Raises:
        TooLargeError: a unit is larger than may be read.
    """
    for name, courses in design.stored(parts).items():
        path = parts / f"{name}.npz"
        try:
            design.read(parts, name, courses)
        except TooLargeError:
            raise
        except DamagedDataError as error:
            aside = path.with_suffix(".npz.damaged")
            path.replace(aside)
            reason = error.__cause__ or error
            tqdm.write(f"{path} is damaged ({reason}); it is {aside.name} now", file=sys.stderr)
