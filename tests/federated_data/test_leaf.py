"""LEAF's format and preprocessing: what each step keeps, and that nothing gets lost between."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.leaf import (
    LeafData,
    Options,
    UserSamples,
    find_dataset_files,
    find_files,
    preprocess,
    read_file,
    read_files,
    remove_small,
    sample_iid,
    sample_niid,
    split_by_sample,
    split_by_user,
    write_files,
)

SIZES = (5, 1, 2, 9, 4, 7)
# One sample of each of LEAF's data sets, as its json holds it.
SAMPLES = {
    "femnist": ([0.0, 0.5, 1.0], 61),
    "celeba": ("000001.jpg", 1),
    "sent140": (["1", "Mon", "NO_QUERY", "me", "so happy :-)", "so happy"], 1),
    "shakespeare": ("To be, or not to be", ","),
    "reddit": ([["<BOS>", "hello"], ["<PAD>"]], {"target_tokens": [["hello"]], "count_tokens": 2}),
    "synthetic": ([0.25, -3.0], 4),
}


def made(sizes: tuple[int, ...] = SIZES, grouped: bool = False) -> LeafData:
    """Every sample is told from all others by its target."""
    starts = np.cumsum([0, *sizes]).tolist()
    users = {
        f"u{i}": UserSamples(
            tuple([float(s)] for s in range(starts[i], starts[i] + n)),
            tuple(range(starts[i], starts[i] + n)),
        )
        for i, n in enumerate(sizes)
    }
    return LeafData(users, {user: f"group of {user}" for user in users} if grouped else None)


def targets(data: LeafData) -> list[int]:
    for samples in data.users.values():
        assert [x[0] for x in samples.x] == list(samples.y), "inputs and targets belong together"
    return [y for samples in data.users.values() for y in samples.y]


# ------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("name", SAMPLES)
def test_all_six_kinds_of_samples_survive_writing_and_reading(name: str, tmp_path: Path) -> None:
    x, y = SAMPLES[name]
    data = LeafData(
        {"a": UserSamples((x, x), (y, y)), "b": UserSamples((x,), (y,))}, {"a": "g", "b": "h"}
    )
    paths = write_files(tmp_path, name, data)
    assert [path.name for path in paths] == [f"{name}_0.json"]
    assert read_files(paths) == data
    content = json.loads(paths[0].read_text(encoding="utf-8"))
    assert content["num_samples"] == [2, 1]
    assert content["hierarchies"] == ["g", "h"]


def test_files_hold_no_more_users_than_asked_for(tmp_path: Path) -> None:
    paths = write_files(tmp_path, "x", made(), max_users=4)
    assert [len(read_file(path).users) for path in paths] == [4, 2]
    assert read_files(paths) == made()


def test_a_user_in_two_files_has_the_samples_of_both(tmp_path: Path) -> None:
    train, test = split_by_sample(made(), 0.5, 1)
    both = [
        *write_files(tmp_path / "train", "x", train),
        *write_files(tmp_path / "test", "x", test),
    ]
    assert find_files(tmp_path) == both
    assert sorted(targets(read_files(both))) == sorted(targets(remove_small(made(), 2)))


def test_the_last_step_found_is_read(tmp_path: Path) -> None:
    half = write_files(tmp_path / "half" / "data" / "train", "x", made())
    assert find_files(tmp_path / "half") == half
    for folder in ("data/all_data", "data/rem_user_data", "data/train", "data/test"):
        assert find_files(tmp_path) != [tmp_path / folder / "x_0.json"]
        write_files(tmp_path / folder, "x", made())
        expected = {"data/test": ["train", "test"], "data/train": ["rem_user_data"]}
        names = expected.get(folder, [folder[5:]])
        assert [path.parent.name for path in find_files(tmp_path)] == names
    assert find_files(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("layout", ["femnist", "clone/data/femnist"])
def test_the_data_folder_may_be_a_clone_of_leaf(layout: str, tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_files(tmp_path / layout / "data" / part, "x", made())
    own = tmp_path / layout
    for root in {own, own.parent, own.parents[1]} - {tmp_path.parent}:
        assert [path.parent.name for path in find_dataset_files(root, "femnist")] == [
            "train",
            "test",
        ]
        assert find_dataset_files(root, "sent140") == []


def test_compressed_files_are_read(tmp_path: Path) -> None:
    (path,) = write_files(tmp_path, "x", made())
    packed = tmp_path / "y.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read_files(find_files(tmp_path)) == made()


def test_names_without_samples_are_leafs_own(tmp_path: Path) -> None:
    """LEAF's split by sample keeps an empty entry for users with less than two samples."""
    (path,) = write_files(tmp_path, "x", made((2, 1)))
    content = json.loads(path.read_text(encoding="utf-8"))
    content["user_data"]["empty"] = {"x": [], "y": []}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert read_file(path) == made((2, 1))


# ------------------------------------------------------------------------------------- steps


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=8).map(tuple),
    st.floats(0.01, 1.0),
    st.integers(0, 5),
)
def test_niid_sampling_keeps_whole_users_but_one(
    sizes: tuple[int, ...], fraction: float, seed: int
) -> None:
    data = made(sizes, grouped=True)
    kept = sample_niid(data, fraction, seed)
    assert kept.num_samples == int(fraction * data.num_samples)
    cut = [user for user, samples in kept.users.items() if samples != data.users[user]]
    assert len(cut) <= 1
    assert all(kept.users[user].y == data.users[user].y[: len(kept.users[user])] for user in cut)
    assert kept.hierarchies == {user: f"group of {user}" for user in kept.users}
    assert len(set(targets(kept))) == kept.num_samples


@given(st.floats(0.3, 1.0), st.sampled_from([0.01, 0.5, 1, 3, 8]), st.integers(0, 5))
def test_iid_sampling_deals_samples_evenly(fraction: float, users: float, seed: int) -> None:
    kept = sample_iid(made(), fraction, users, seed)
    sizes = [len(samples) for samples in kept.users.values()]
    assert sum(sizes) == int(fraction * sum(SIZES)) == len(set(targets(kept)))
    assert len(sizes) == {0.01: 1, 0.5: 3}.get(users, users)
    assert sizes == sorted(sizes)
    assert sizes[-1] - sizes[0] <= 1


def test_iid_sampling_mixes_users() -> None:
    kept = sample_iid(made((100, 100)), 1.0, 2, 0)
    shares = [np.mean(np.array(samples.y) < 100) for samples in kept.users.values()]
    assert all(0.3 < share < 0.7 for share in shares)


def test_small_users_are_removed() -> None:
    kept = remove_small(made(), 5)
    assert list(kept.users) == ["u0", "u3", "u5"]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).map(tuple),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
)
def test_a_split_by_sample_loses_nothing(
    sizes: tuple[int, ...], fraction: float, seed: int
) -> None:
    data = made(sizes)
    train, test = split_by_sample(data, fraction, seed)
    assert sorted(targets(train) + targets(test)) == targets(remove_small(data, 2))
    for user, samples in train.users.items():
        n = len(data.users[user])
        assert len(samples) == max(1, int(fraction * n))
        assert len(test.users[user]) == n - len(samples) > 0


def test_a_gap_keeps_windows_of_text_apart() -> None:
    data = made((200, 90, 1, 81))
    train, test = split_by_sample(data, 0.5, 0, gap=79)
    assert train.users["u0"].y == tuple(range(100))
    assert test.users["u0"].y == tuple(range(179, 200))
    assert "u1" in train.users
    assert set(test.users) == {"u0"}


@given(st.floats(0.01, 0.99), st.integers(0, 5))
def test_a_split_by_user_loses_nothing(fraction: float, seed: int) -> None:
    data = made(grouped=True)
    train, test = split_by_user(data, fraction, seed)
    assert len(train.users) == int(fraction * len(SIZES))
    assert {**train.users, **test.users} == data.users
    assert not train.users.keys() & test.users.keys()
    assert {**(train.hierarchies or {}), **(test.hierarchies or {})} == data.hierarchies


@pytest.mark.parametrize("name", [field.name for field in fields(Options)])
@pytest.mark.parametrize("value", ["x", [1], np.zeros(2), {}, 2 + 3j])
def test_an_option_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{name}` must be"):
        Options(**{name: value})


def test_seeds_decide_and_nothing_else() -> None:
    data = made((3,) * 20)
    options = Options(sampling="niid", fraction=0.5, split="sample", train_fraction=0.5)
    assert preprocess(data, options) == preprocess(data, options)
    for other in (
        Options(sampling="niid", fraction=0.5, sampling_seed=1),
        Options(split="sample", train_fraction=0.7, split_seed=1),
        Options(split="user", train_fraction=0.5, split_seed=1),
    ):
        plain = Options(**{**vars(other), "sampling_seed": 0, "split_seed": 0})
        assert preprocess(data, plain) != preprocess(data, other)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"sampling": "random"}, "sampling"),
        ({"split": "row"}, "split"),
        ({"fraction": 0.0}, "fraction"),
        ({"fraction": 1.1}, "fraction"),
        ({"train_fraction": 1.0}, "train_fraction"),
        ({"iid_users": 1.5}, "iid_users"),
        ({"iid_users": 0}, "iid_users"),
        ({"iid_users": 3, "sampling": "niid"}, "iid_users"),
        ({"min_samples": -1}, "min_samples"),
        ({"gap": -1}, "gap"),
    ],
)
def test_impossible_options_are_refused(bad: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{message}`"):
        Options(**bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"must leave users, got 100000"):
        preprocess(made(), Options(min_samples=100_000))
    with pytest.raises(InvalidArgumentError, match="`num_users`"):
        sample_iid(made(), 0.1, 20, 0)


# ------------------------------------------------------------------------------ command line


def test_the_command_writes_what_the_functions_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "in", "x", made())
    out = tmp_path / "out"
    words = ["leaf-preprocess", str(tmp_path / "in"), "--out", str(out), "-s", "niid", "--sf", "1"]
    words += ["-k", "2", "-t", "sample", "--tf", "0.5", "--spltseed", "7"]
    assert main(words) == 0
    options = Options(
        sampling="niid", fraction=1.0, min_samples=2, split="sample", train_fraction=0.5,
        split_seed=7,
    )  # fmt: skip
    expected = preprocess(made(), options)
    for name, data in expected.items():
        assert read_files(find_files(out / name)) == data
    assert "train: 5 users" in capsys.readouterr().out
    manifest = json.loads((out / "meta" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["options"]["split_seed"] == 7
    assert len(manifest["files"]) == 2
    for name, entry in manifest["files"].items():
        data = expected[name.partition("/")[0]]
        digest = hashlib.sha256((out / name).read_bytes()).hexdigest()
        counts = {"users": len(data.users), "samples": data.num_samples}
        assert entry == {"sha256": digest, **counts}
    assert main(words) == 2, "nothing is overwritten"
    assert "--out" in capsys.readouterr().err


def test_an_interrupted_preprocessing_starts_over_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "in", "x", made())
    out = tmp_path / "new" / "out"
    words = ["leaf-preprocess", str(tmp_path / "in"), "--out", str(out), "-t", "user"]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedhpo_gym.data.leaf.write_manifest", interrupted)
        assert main(words) == 130
    assert "the same command starts over" in capsys.readouterr().err
    assert list((tmp_path / "new").iterdir()) == []
    assert main(words) == 0
    assert {path.name for path in out.iterdir()} == {"train", "test", "meta"}
