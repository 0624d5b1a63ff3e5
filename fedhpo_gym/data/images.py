"""Image data: FEMNIST (characters by writer, from LEAF's JSON or a packed copy) and CIFAR-10.

The catalogue lists both sources. Images are (n, height, width[, 3]) uint8; models normalise them.
Slow formats are read once, and the arrays are cached by `derive_arrays`.
"""

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.data import cache
from fedhpo_gym.data.cache import fetch_file, repair_advice, reporting_damage
from fedhpo_gym.data.leaf import find_dataset_files, read_file, require_integer
from fedhpo_gym.data.records import TEST, UNASSIGNED, Dataset, PublishedSource, Source, make_dataset

SIDE = 28
REPAIR = "run LEAF's preprocess.sh for femnist again"


@dataclass(frozen=True, kw_only=True)
class FemnistSource(Source):
    """Images of characters; users are their writers, numbered in the sorted order of their ids.

    The data folder is searched for `femnist/`, the JSON output of LEAF, and then for a packed file
    of 105 writers. LEAF's script creates the JSON from NIST Special Database 19; this package does
    not repeat that step.
    """

    file: str  # arrays `x` (n, 28, 28), `y`, `writer`, `is_test`; writers are complete
    sha256: str  # checksum of `file`

    origin: ClassVar[str] = "https://github.com/TalwalkarLab/leaf/tree/master/data/femnist"

    def read(self) -> Dataset:
        """Return (n, 28, 28) uint8 images, white = 255; labels are digits, A-Z, a-z."""
        folder = cache.data_folder() / "femnist"
        files = find_dataset_files(cache.data_folder(), "femnist")
        packed = cache.find_data(self.file, f"femnist_leaf/{self.file}")
        if files:
            arrays = cache.derive_arrays(
                "femnist", files, lambda: read_femnist_json(files), self.repair
            )
        elif packed is not None:
            cache.verify(packed, self.sha256, self.repair)
            with reporting_damage(packed, repair_advice(self.repair)):
                arrays = read_femnist_packed(packed)
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


def read_femnist_packed(path: Path) -> dict[str, NDArray[Any]]:
    """Return the samples of the writers that have training samples: `x`, `y`, `writer`."""
    kinds = {"x": ("uint8", 3), "y": ("int64", 1), "writer": ("str", 1)}
    arrays = cache.check_columns(cache.load_npz(path), {**kinds, "is_test": ("int64", 1)})
    if arrays["x"].shape[1:] != (SIDE, SIDE):
        raise InvalidArgumentError(f"`x` must be images of {SIDE} x {SIDE} pixels")
    complete = np.isin(arrays["writer"], arrays["writer"][arrays["is_test"] == 0])
    return {name: arrays[name][complete] for name in kinds}


def read_femnist_json(files: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """Return `x`, `y` and `writer` of LEAF's files; pixels in [0, 1] become uint8."""
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    writers: list[str] = []
    for path in files:
        for user, samples in read_file(path).users.items():
            if not len(samples):
                continue
            with reporting_damage(f"{path}: what writer {user} wrote", REPAIR):
                images.append(_check_images(samples.x))
                labels += map(require_integer, samples.y)
            writers += [user] * len(samples)
    return {"x": np.concatenate(images), "y": np.array(labels), "writer": np.array(writers)}


def _check_images(values: Sequence[Any]) -> NDArray[np.uint8]:
    pixels: NDArray[Any] = np.asarray(values)
    has_shape = pixels.dtype.kind in "if" and pixels.shape[1:] == (SIDE * SIDE,)
    # NaN fails both comparisons.
    if not has_shape or not ((pixels >= 0) & (pixels <= 1)).all():
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


PIXELS = 32
RECORD = 1 + 3 * PIXELS * PIXELS
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
FOLDERS = ("cifar10/", "")
BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


@dataclass(frozen=True, kw_only=True)
class CifarSource(PublishedSource):
    """Colour images of ten classes; the test split is the published one.

    Archives of jpg files in the data folder are preferred to a download. They are lossy and in
    another order, so their fingerprint differs from that of the published archive.
    """

    sha256: str  # checksum of the archive, which is in the binary layout
    # of each jpg archive, train, test; members are `<split>/<class>/<number>.jpg`.
    jpg: Mapping[str, str]

    def read(self) -> Dataset:
        """Return (n, 32, 32, 3) uint8 images in the order red, green, blue."""
        archive = cache.find_data(*(f"{folder}{self.url.rpartition('/')[2]}" for folder in FOLDERS))
        jpgs = [cache.find_data(*(f"{folder}{name}" for folder in FOLDERS)) for name in self.jpg]
        archives = [path for path in jpgs if path is not None]
        if archive is None and len(archives) == len(self.jpg):
            for path, sha256 in zip(archives, self.jpg.values(), strict=True):
                cache.verify(path, sha256, self.repair)
            arrays = cache.derive_arrays(
                "cifar10-jpg", archives, lambda: read_jpgs(archives), self.repair
            )
        else:
            target = archive or cache.data_folder() / "cifar10" / self.url.rpartition("/")[2]
            fetch_file(self.url, target, self.sha256, self.repair)
            with reporting_damage(target, repair_advice(self.repair)):
                arrays = read_binary(target)
        split = np.where(arrays["is_test"], TEST, UNASSIGNED).astype(np.int8)
        return make_dataset(
            self.name, arrays["x"], arrays["y"], self.num_classes, fixed_split=split
        )


def read_binary(path: Path) -> dict[str, NDArray[Any]]:
    """Read binary records: a label byte and 1,024 bytes each of red, green and blue."""
    records: dict[str, NDArray[np.uint8]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = Path(member.name).name
            handle = archive.extractfile(member)
            if name in BATCHES and handle is not None:
                content = np.frombuffer(handle.read(), np.uint8)
                if len(content) == 0 or len(content) % RECORD:
                    raise DamagedDataError(
                        f"{path}: {name} must hold records of {RECORD} bytes, got {len(content)} "
                        "bytes; delete it and run `fedhpo-gym download CIFAR10`"
                    )
                records[name] = content.reshape(-1, RECORD)
    if missing := set(BATCHES) - set(records):
        raise DamagedDataError(
            f"{path} lacks {', '.join(sorted(missing))}; delete it and run "
            "`fedhpo-gym download CIFAR10`"
        )
    rows = np.concatenate([records[name] for name in BATCHES])
    images = rows[:, 1:].reshape(-1, 3, PIXELS, PIXELS).transpose(0, 2, 3, 1)
    is_test = np.arange(len(rows)) >= len(rows) - len(records[BATCHES[-1]])
    return {"x": np.ascontiguousarray(images), "y": rows[:, 0].astype(np.int64), "is_test": is_test}


def read_jpgs(paths: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """Decode jpg archives, in the order of the paths of their members; arrays as `read_binary`."""
    images = [
        pixels for path in paths for pixels in sorted(_decode_images(path), key=lambda f: f[0])
    ]
    folders = [PurePosixPath(name).parts[-3:-1] for name, _ in images]
    return {
        "x": np.stack([pixels for _, pixels in images]),
        "y": np.array([CLASSES.index(kind) for _, kind in folders], dtype=np.int64),
        "is_test": np.array([split == "test" for split, _ in folders]),
    }


def _decode_images(path: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    pillow: Any = cache.import_optional("PIL.Image", "images")
    with tarfile.open(path) as archive:
        for member in archive:
            handle = archive.extractfile(member) if member.isfile() else None
            if handle is not None and member.name.endswith(".jpg"):
                image = pillow.open(io.BytesIO(handle.read()))
                if image.size != (PIXELS, PIXELS):
                    raise InvalidArgumentError(
                        f"images must have {PIXELS} x {PIXELS} pixels, got {image.size}"
                    )
                yield member.name, np.asarray(image.convert("RGB"), dtype=np.uint8)


CIFAR10 = CifarSource(
    name="CIFAR10",
    num_rows=60_000,
    num_classes=10,
    licence="none stated by the publisher, who asks for the citation",
    citation="A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    jpg={
        "cifar10_jpg_train.tar.xz": (
            "ca2880616a18c2faf0522d3396bba8ebb9e8131b84de110c3710f43b70a7df09"
        ),
        "cifar10_jpg_test.tar.xz": (
            "2a3717f26fd8c2d282ebc9dec9397e3cc1879abcc0def2cdfb89fc6ee99ea581"
        ),
    },
)
