"""FEMNIST: handwritten characters by writer, from LEAF's json or a packed copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.data import cache
from fedhpo_gym.data.cache import again, reading
from fedhpo_gym.data.leaf import find_in, integer, read_file
from fedhpo_gym.data.records import Dataset, Source, make_dataset

SIDE = 28
REPAIR = "run LEAF's preprocess.sh for femnist again"


@dataclass(frozen=True, kw_only=True)
class FemnistSource(Source):
    """Images of characters; the users are their writers, numbered in the sorted order of their ids.

    The data folder is searched for `femnist/`, LEAF's output in json, and then for a packed file of
    105 writers. LEAF's own script makes the json from NIST Special Database 19; this package does
    not repeat that step.
    """

    file: str  # arrays `x` (n, 28, 28), `y`, `writer`, `is_test`; writers are complete
    sha256: str  # checksum of `file`

    @property
    def origin(self) -> str:
        """LEAF's repository, whose script makes the data."""
        return "https://github.com/TalwalkarLab/leaf/tree/master/data/femnist"

    def read(self) -> Dataset:
        """Return (n, 28, 28) uint8 images, white = 255; labels are digits, A-Z, a-z."""
        folder = cache.data_folder() / "femnist"
        files = find_in(cache.data_folder(), "femnist")
        packed = cache.find(self.file, f"femnist_leaf/{self.file}")
        if files:
            arrays = cache.derived("femnist", files, lambda: read_json(files), self.repair)
        elif packed is not None:
            cache.verify(packed, self.sha256, self.repair)
            with reading(packed, again(self.repair)):
                arrays = read_packed(packed)
        else:
            raise MissingDataError(
                f"{self.name} is made by LEAF's own script from 1 GB of NIST images. Clone "
                f"https://github.com/TalwalkarLab/leaf, run `./preprocess.sh -s niid --sf 0.05 "
                f"-k 0 -t sample` in its folder data/femnist, copy or link that folder to "
                f"{folder}, and run `{self.repair}` to check it"
            )
        users = np.unique(arrays["writer"], return_inverse=True)[1]
        order = np.argsort(users, kind="stable")
        return make_dataset(
            self.name,
            np.ascontiguousarray(arrays["x"][order]),
            arrays["y"][order].astype(np.int64),
            self.num_classes,
            users[order].astype(np.int64),
        )


def read_packed(path: Path) -> dict[str, NDArray[Any]]:
    """Return the samples of the writers that have training samples: `x`, `y`, `writer`."""
    kinds = {"x": ("uint8", 3), "y": ("int64", 1), "writer": ("str", 1)}
    arrays = cache.columns(cache.load_npz(path), {**kinds, "is_test": ("int64", 1)})
    if arrays["x"].shape[1:] != (SIDE, SIDE):
        raise InvalidArgumentError(f"`x` must be images of {SIDE} x {SIDE} pixels")
    complete = np.isin(arrays["writer"], arrays["writer"][arrays["is_test"] == 0])
    return {name: arrays[name][complete] for name in kinds}


def read_json(files: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """Read LEAF's files: pixels in [0, 1] become uint8; returns `x`, `y`, `writer`."""
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    writers: list[str] = []
    for path in files:
        for user, samples in read_file(path).users.items():
            if not len(samples):
                continue
            with reading(f"{path}: what writer {user} wrote", REPAIR):
                images.append(_images(samples.x))
                labels += map(integer, samples.y)
            writers += [user] * len(samples)
    return {"x": np.concatenate(images), "y": np.array(labels), "writer": np.array(writers)}


def _images(values: Sequence[Any]) -> NDArray[np.uint8]:
    pixels: NDArray[Any] = np.asarray(values)
    numbers = pixels.dtype.kind in "if" and pixels.shape[1:] == (SIDE * SIDE,)
    # What is not a number lies in no interval.
    if not numbers or not ((pixels >= 0) & (pixels <= 1)).all():
        raise InvalidArgumentError(
            f"images must have 784 pixels in [0, 1], got {pixels.dtype} of shape {pixels.shape}"
        )
    rounded: NDArray[np.uint8] = np.rint(pixels * 255).astype(np.uint8)
    return rounded.reshape(-1, SIDE, SIDE)


FEMNIST = FemnistSource(
    name="FEMNIST",
    num_classes=62,
    open_licence=True,
    licence="public domain (NIST Special Database 19); preparation by LEAF, BSD-2-Clause",
    citation="G. Cohen et al.: EMNIST, 2017; S. Caldas et al.: LEAF, 2018",
    file="leaf_femnist.npz",
    sha256="e61f2f0302d4b69394d0ef79bd9eace9315af84b5e98d7cce815f30f33fd5dc5",
)
