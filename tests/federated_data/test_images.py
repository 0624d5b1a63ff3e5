"""FEMNIST and CIFAR-10: made-up archives of the right shape, then the real ones."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.data import load_dataset
from fedhpo_gym.data.images import BATCHES, CIFAR10, CLASSES, FEMNIST, read_femnist_json, read_jpgs
from fedhpo_gym.data.leaf import LeafData, UserSamples, write_files
from fedhpo_gym.testing import DatasetConformance
from stored_files import tar

RNG = np.random.default_rng(0)

# ------------------------------------------------------------------------------------ FEMNIST


@pytest.mark.usefixtures("real_data")
class TestFEMNIST(DatasetConformance):
    name = "FEMNIST"


@pytest.mark.usefixtures("real_data")
def test_the_real_writers_are_those_with_training_samples() -> None:
    dataset = load_dataset("FEMNIST")
    assert dataset.users is not None
    sizes = np.bincount(dataset.users)
    assert dataset.features.shape == (16_393, 28, 28)
    assert len(sizes) == 105
    assert (sizes.min(), sizes.max(), (sizes >= 100).sum()) == (5, 184, 99)
    assert (np.diff(dataset.users) >= 0).all()
    assert len(np.unique(dataset.labels)) == 62


def test_packed_images_equal_leafs_json(real_data: Path, tmp_path: Path) -> None:
    name = "leaf_femnist_json_test.tar.xz"
    with tarfile.open(real_data / "femnist_leaf" / name) as archive:
        members = [one for one in archive if "/data/test/" in one.name and one.isfile()]
        files = [tmp_path / Path(one.name).name for one in members]
        for file, member in zip(files, members, strict=True):
            content = archive.extractfile(member)
            assert content is not None
            file.write_bytes(content.read())
    files = sorted(files)[:3]
    arrays = read_femnist_json(files)
    with np.load(real_data / "femnist_leaf" / FEMNIST.file) as packed:
        for writer in np.unique(arrays["writer"]):
            ours = arrays["writer"] == writer
            theirs = (packed["writer"] == writer) & (packed["is_test"] == 1)
            np.testing.assert_array_equal(arrays["x"][ours], packed["x"][theirs])
            np.testing.assert_array_equal(arrays["y"][ours], packed["y"][theirs])


def images(count: int) -> NDArray[np.uint8]:
    return RNG.integers(256, size=(count, 28, 28), dtype=np.uint8)


def as_leaf(pixels: NDArray[np.uint8], labels: tuple[int, ...]) -> UserSamples:
    """Four decimals are enough to tell 256 levels apart."""
    return UserSamples(tuple((pixels / 255).round(4).reshape(-1, 784).tolist()), labels)


def test_leafs_folder_is_read_sorted_by_writer(data_folder: Path) -> None:
    b, a = images(3), images(2)
    train = LeafData({"b": as_leaf(b[:2], (61, 0)), "a": as_leaf(a, (10, 35))})
    write_files(data_folder / "femnist" / "data" / "train", "x", train, max_users=1)
    test = LeafData({"b": as_leaf(b[2:], (7,))})
    write_files(data_folder / "femnist" / "data" / "test", "x", test)
    for _ in range(2):  # the second time from the cache
        dataset = load_dataset("FEMNIST")
        np.testing.assert_array_equal(dataset.features, np.concatenate([a, b]))
        assert dataset.labels.tolist() == [10, 35, 61, 0, 7]
        assert dataset.users is not None
        assert dataset.users.tolist() == [0, 0, 1, 1, 1]
        load_dataset.cache_clear()


# ----------------------------------------------------------------------------------- CIFAR-10


def records() -> dict[str, NDArray[np.uint8]]:
    rows = {name: RNG.integers(256, size=(4, 3073), dtype=np.uint8) for name in BATCHES}
    for content in rows.values():
        content[:, 0] = RNG.integers(10, size=4)
    return {"batches.meta.txt": np.zeros(9, np.uint8), **rows}


def test_the_publishers_archive_is_downloaded_and_read(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch, publisher: Any
) -> None:
    rows = records()
    members = {f"cifar-10-batches-bin/{name}": rows[name].tobytes() for name in rows}
    publisher.content = tar(members, "gz")
    source = replace(CIFAR10, num_rows=24, sha256=hashlib.sha256(publisher.content).hexdigest())
    monkeypatch.setattr("fedhpo_gym.data.catalogue.SOURCES", {"CIFAR10": source})
    dataset = load_dataset("CIFAR10")
    assert publisher.asked == ["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"]
    assert (data_folder / "cifar10" / "cifar-10-binary.tar.gz").exists()
    stacked = np.concatenate([rows[name] for name in BATCHES])
    assert dataset.labels.tolist() == stacked[:, 0].tolist()
    for channel in range(3):
        plane = stacked[:, 1 + channel * 1024 : 1 + (channel + 1) * 1024].reshape(-1, 32, 32)
        np.testing.assert_array_equal(dataset.features[np.arange(24)][..., channel], plane)
    assert dataset.fixed_split is not None
    assert dataset.fixed_split.tolist() == [-1] * 20 + [2] * 4


def jpg(colour: tuple[int, int, int]) -> bytes:
    body = io.BytesIO()
    pytest.importorskip("PIL.Image").new("RGB", (32, 32), colour).save(body, "jpeg", quality=95)
    return body.getvalue()


def test_jpg_archives_are_decoded_once(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = data_folder / "cifar10"
    folder.mkdir()
    train = {"train/truck/0001.jpg": jpg((200, 10, 10)), "train/truck/0000.jpg": jpg((10, 200, 10))}
    sums = {}
    for split, images in (("train", train), ("test", {"test/cat/0000.jpg": jpg((10, 10, 200))})):
        path = folder / f"cifar10_jpg_{split}.tar.xz"
        path.write_bytes(tar(images, "xz"))
        sums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    source = replace(CIFAR10, num_rows=3, jpg=sums)
    monkeypatch.setattr("fedhpo_gym.data.catalogue.SOURCES", {"CIFAR10": source})
    first = load_dataset("CIFAR10")
    assert first.labels.tolist() == [CLASSES.index("truck")] * 2 + [CLASSES.index("cat")]
    assert first.fixed_split is not None
    assert first.fixed_split.tolist() == [-1, -1, 2]
    means = first.features[np.arange(3)].mean(axis=(1, 2))
    expected = [[10, 200, 10], [200, 10, 10], [10, 10, 200]]
    np.testing.assert_allclose(means, expected, atol=4)
    load_dataset.cache_clear()
    monkeypatch.setattr("fedhpo_gym.data.images.read_jpgs", None)
    assert load_dataset("CIFAR10").fingerprint == first.fingerprint


def test_the_real_test_images(real_data: Path) -> None:
    pytest.importorskip("PIL")
    arrays = read_jpgs([real_data / "cifar10" / "cifar10_jpg_test.tar.xz"])
    assert arrays["x"].shape == (10_000, 32, 32, 3)
    assert np.bincount(arrays["y"]).tolist() == [1000] * 10
    assert arrays["is_test"].all()
    # The published channel means of the training images, in 0..255, are 125.3, 123.0 and 113.9.
    means = arrays["x"].reshape(-1, 3).mean(axis=0)
    np.testing.assert_allclose(means, [125.3, 123.0, 113.9], atol=2.0)
