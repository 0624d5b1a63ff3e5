"""Format 2: what was packed is unpacked bit for bit, and damage is always found out."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedhpo_gym.core.archive import write_archive
from fedhpo_gym.core.errors import InvalidArgumentError, TooLargeError, UnknownNameError
from fedhpo_gym.core.files import MAX_BYTES_VARIABLE
from fedhpo_gym.stored import codec, curve_coder
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER
from fedhpo_gym.stored.codec import CONTEXTS, MOST, Decoder, Encoder, lanes_for
from fedhpo_gym.stored.curve_coder import COUNTS, ENTRY, VALUES, WORDS, CurveLayout, pack, unpack
from fedhpo_gym.stored.table import FORMAT, Sample, StoredCurves, Table, write_sample, write_table
from stored_files import SAMPLES, arrays_of, write_made_up_table

OWN = {"format", ENTRY, "arrays", "sha256", "bytes", "card_sha256"}


def all_of(stored: StoredCurves) -> dict[str, NDArray[Any]]:
    return {name: stored.codes(name) for name in stored.names}


def written_anew(stored: StoredCurves, folder: Path) -> StoredCurves:
    said = {name: value for name, value in stored.card.items() if name not in OWN}
    if isinstance(stored, Table):
        return Table(write_table(folder, said, all_of(stored)))
    return Sample(write_sample(folder, said, all_of(stored)))


def assert_equal(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype.kind == array.dtype.kind


# -------------------------------------------------------------------------- entropy coding


def coded(rng: np.random.Generator, sizes: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Return contexts, and numbers that spread as the contexts say; the extremes are among them."""
    steps = []
    for size in sizes:
        contexts = rng.integers(0, CONTEXTS, size).astype(np.uint8)
        spread = rng.laplace(0, 1, size) * 2.0 ** (contexts / 2)
        numbers = np.clip(np.rint(spread), -MOST - 1, MOST).astype(np.int32)
        numbers[: min(size, 3)] = [-MOST - 1, MOST, 0][:size]
        steps.append((contexts, numbers))
    return steps


@pytest.mark.parametrize("sizes", [(0,), (1,), (5, 0, 3), (70_000, 1, 9_000), (9, 90_000)])
def test_numbers_come_back(sizes: tuple[int, ...]) -> None:
    steps = coded(np.random.default_rng(1), sizes)
    encoder = Encoder()
    for contexts, numbers in steps:
        encoder.code(contexts, numbers)
    words = encoder.close()
    assert words.size == 2 * lanes_for(sum(sizes)) or sum(sizes)
    decoder = Decoder(words, lanes_for(sum(sizes)))
    for contexts, numbers in steps:
        np.testing.assert_array_equal(decoder.code(contexts, None), numbers)
    decoder.close()


def test_rare_numbers_cost_more_than_frequent_ones() -> None:
    rng = np.random.default_rng(2)
    frequent = (rng.random(100_000) < 0.01).astype(np.int32)
    encoder = Encoder()
    for part in np.array_split(frequent, 100):
        encoder.code(np.zeros(part.size, np.uint8), part)
    entropy = -(0.01 * np.log2(0.01) + 0.99 * np.log2(0.99)) * frequent.size / 8
    overhead = 4 * lanes_for(frequent.size)
    assert entropy < 2 * encoder.close().size < 1.35 * entropy + overhead


@pytest.mark.parametrize("change", ["cut", "more"])
def test_changed_words_are_found_out(change: str) -> None:
    ((contexts, numbers),) = coded(np.random.default_rng(3), (5_000,))
    encoder = Encoder()
    encoder.code(contexts, numbers)
    words = encoder.close()
    changed = {"cut": words[:-1], "more": np.append(words, words[:1])}[change]
    with pytest.raises(ValueError, match="coded numbers"):
        read_numbers(changed, contexts)


def read_numbers(words: NDArray[np.uint16], contexts: NDArray[np.uint8]) -> None:
    decoder = Decoder(words, lanes_for(contexts.size))
    decoder.code(contexts, None)
    decoder.close()


# ----------------------------------------------------------------------------- what is packed


def layout(shape: tuple[int, ...], axis: int, metrics: tuple[str, ...]) -> CurveLayout:
    axes = (axis,) if axis else tuple(range(len(shape) - 1))
    rounds = tuple(range(1, shape[axis] + 1))
    return CurveLayout(shape, axis, axes, rounds, SAMPLES, ("train", "val", "test"), metrics)


def drawn(kind: CurveLayout, rng: np.random.Generator, lawful: bool) -> dict[str, NDArray[Any]]:
    """Return random codes; lawful ones have the best models that `best_round` says."""
    arrays: dict[str, NDArray[Any]] = {"extra": rng.random(3)}
    best = rng.integers(1, len(kind.rounds) + 1, kind.shape)
    arrays["best_round"] = np.maximum.accumulate(best, axis=kind.axis).astype(np.uint16)
    same, own = kind.following(arrays["best_round"])
    step = int(np.prod(kind.shape[kind.axis + 1 :]))
    for metric in kind.metrics:
        for s, (split, dtype) in enumerate(kind.dtypes(metric).items()):
            top = SAMPLES[:, :, s].min() + 1 if metric == "accuracy" else np.iinfo(dtype).max + 1
            shape = (*kind.shape, SAMPLES.shape[1])
            both = [rng.integers(0, top, shape).astype(dtype) for _ in curve_coder.WHICH]
            current, best_ones = (one.reshape(-1, shape[-1]) for one in both)
            for cell in range(len(best_ones) if lawful else 0):
                if same[cell]:
                    best_ones[cell] = best_ones[cell - step]
                elif own[cell]:
                    best_ones[cell] = current[cell]
            arrays[f"current_{split}_{metric}"], arrays[f"best_{split}_{metric}"] = both
    return arrays


@pytest.mark.parametrize("lawful", [True, False])
@pytest.mark.parametrize("metrics", [("loss", "accuracy", "f1"), ("f1",), ("loss", "f1")])
@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 3, 1, 5, 2), 0), ((1, 2), 0), ((7, 5), 1), ((1, 1), 1)]
)
def test_arrays_come_back_whatever_they_are(
    shape: tuple[int, ...], axis: int, metrics: tuple[str, ...], lawful: bool
) -> None:
    kind = layout(shape, axis, metrics)
    rng = np.random.default_rng(4)
    arrays = drawn(kind, rng, lawful)
    seeds = rng.integers(0, len(SAMPLES), int(np.prod(shape)))
    members, said = pack(arrays, kind, seeds)
    again = curve_coder.Packing.from_card(json.loads(json.dumps(said.to_card())), kind)
    assert again == said
    assert not lawful or said.follows
    assert_equal(unpack(members, kind, seeds, again, "this"), arrays)


def test_metrics_of_huge_clients_stay_as_they_are() -> None:
    kind = layout((3, 2, 2), 0, ("loss", "accuracy"))
    kind = CurveLayout(**{**vars(kind), "samples": SAMPLES * 100_000})
    arrays = drawn(kind, np.random.default_rng(5), True)
    assert arrays["best_val_accuracy"].dtype.itemsize == 4
    seeds = np.zeros(12, np.int64)
    members, said = pack(arrays, kind, seeds)
    assert "best_val_accuracy" in members
    assert "best_val_loss" not in members
    assert_equal(unpack(members, kind, seeds, said, "this"), arrays)


def test_codes_that_do_not_fit_are_refused() -> None:
    kind = layout((3, 2, 2), 0, ("f1",))
    arrays = drawn(kind, np.random.default_rng(6), True)
    seeds = np.zeros(12, np.int64)
    name = "best_val_f1"
    for wrong in (arrays[name].astype(float), arrays[name] + np.uint16(256), arrays[name][1:]):
        with pytest.raises(InvalidArgumentError, match=f"'{name}' must hold codes that fit uint8"):
            pack({**arrays, name: wrong}, kind, seeds)


def some_stored() -> list[Any]:
    """Return a sample of each model and version, and as a slow test a grid.

    What others unpack to has the checksum of what was packed, or is damage.
    """
    samples = sorted(EMBEDDED_FOLDER.glob("*.sample.json"))
    kinds = {(path.name.partition("-")[0], "-v1-" in path.name): path for path in samples}
    grid = pytest.param(*EMBEDDED_FOLDER.glob("LR-Segment-v1-*.table.json"), marks=pytest.mark.slow)
    return [*kinds.values(), grid]


@pytest.mark.fast(4)
@pytest.mark.parametrize("card", some_stored(), ids=lambda card: card.name)
def test_what_is_stored_is_packed_without_loss(card: Path, tmp_path: Path) -> None:
    stored = Table(card) if ".table." in card.name else Sample(card)
    again = written_anew(stored, tmp_path)
    assert (again.card["format"], again.card[ENTRY]["name"]) == (FORMAT, curve_coder.CODEC)
    assert_equal(all_of(again), all_of(stored))


def test_what_follows_takes_no_room(tmp_path: Path) -> None:
    made = Table(write_made_up_table(tmp_path / "first"))
    arrays = all_of(made)
    rng = np.random.default_rng(7)
    for name in arrays:
        if name.startswith(("best_val", "best_test", "best_train")):
            current = arrays[name.replace("best", "current")]
            current[:] = rng.integers(0, min(int(current.max()), 200) + 1, current.shape)
            arrays[name] = current.copy()
    said = {name: value for name, value in made.card.items() if name not in OWN}
    whole = Table(write_table(tmp_path / "second", said, arrays))
    assert whole.card[ENTRY]["follows"]
    arrays["best_val_loss"][1] ^= 1
    broken = Table(write_table(tmp_path / "third", said, arrays))
    assert not broken.card[ENTRY]["follows"]
    assert 1.1 * whole.card[ENTRY]["words"] < broken.card[ENTRY]["words"]
    assert_equal(all_of(broken), arrays)


# ---------------------------------------------------------------------------------- damage


@pytest.mark.slow
def test_any_members_are_damage_or_the_same_numbers() -> None:
    kind = layout((6, 4, 3, 2, 2), 0, ("loss", "accuracy", "f1"))
    rng = np.random.default_rng(8)
    arrays = drawn(kind, rng, True)
    for name in [name for name in arrays if name.endswith("f1")]:  # few values for as many hits
        arrays[name] = (arrays[name.replace("f1", "accuracy")] * 2 + arrays[name] % 2).astype(
            np.uint8
        )
    seeds = np.tile(np.arange(2), 144)
    members, said = pack({**arrays}, kind, seeds)
    assert said.listed is not None
    refused = 0
    for _ in range(15):
        changed = dict(members)
        name = str(rng.choice([WORDS, COUNTS, VALUES, "best_round"]))
        array = changed[name] = members[name].copy()
        for _ in range(int(rng.integers(1, 4))):
            array[tuple(rng.integers(array.shape))] = rng.integers(np.iinfo(array.dtype).max + 1)
        try:
            found = unpack(changed, kind, seeds, said, "this")
        except ValueError:
            refused += 1
        else:
            assert_equal({**found, name: members[name]}, {**arrays, name: members[name]})
    assert refused > 8


def test_a_card_of_a_huge_table_is_measured_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = write_made_up_table(tmp_path)
    content = json.loads(card.read_text())
    rounds = content["fidelity_space"]["dimensions"][0]
    many = list(range(1, 20_001))
    rounds.update(low=1, high=many[-1], values=many)
    members = {"best_round": np.zeros((20_000, 5, 3, 3, 2), np.uint16)}
    with np.load(arrays_of(card)) as stored:
        members = {**dict(stored), **members}
    write_archive(tmp_path, card.name.removesuffix(".json"), content, members)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "50000000")
    table = Table(card)
    tracemalloc.start()
    with pytest.raises(TooLargeError, match=r"unpacking .* would take .* 50,000,000 may be read"):
        table.codes("best_val_loss")
    assert tracemalloc.get_traced_memory()[1] < 30_000_000
    tracemalloc.stop()


# --------------------------------------------------------------------------------- how tables round

ONE = np.array(1)
TOP = 0xFF00 - 1
LARGEST = codec.decode("loss", np.array([TOP], dtype=np.uint16), ONE)[0]
TINY = np.finfo(np.float32).tiny


def test_every_loss_code_comes_back() -> None:
    codes = np.arange(TOP + 1, dtype=np.uint16)
    values = codec.decode("loss", codes, ONE)
    assert values.dtype == np.float32
    assert np.isfinite(values).all()
    assert (np.diff(values) > 0).all(), "larger losses have larger codes"
    np.testing.assert_array_equal(codec.encode("loss", values, ONE), codes)


@given(st.integers(1, 5000))
def test_every_accuracy_code_comes_back_exactly(num_samples: int) -> None:
    samples = np.array(num_samples)
    codes = np.arange(num_samples + 1).astype(codec.dtype("accuracy", samples))
    values = codec.decode("accuracy", codes, samples)
    np.testing.assert_array_equal(codec.encode("accuracy", values, samples), codes)
    np.testing.assert_array_equal(values, (codes / num_samples).astype(np.float32))
    assert values[-1] == 1.0


def test_a_client_without_samples_has_no_hits() -> None:
    values = codec.decode("accuracy", np.zeros(2, np.uint8), np.array([0, 5]))
    assert values.tolist() == [0.0, 0.0]


def test_every_f1_code_comes_back() -> None:
    codes = np.arange(codec.F1_STEPS + 1, dtype=np.uint8)
    values = codec.decode("f1", codes, ONE)
    np.testing.assert_array_equal(codec.encode("f1", values, ONE), codes)
    assert (values[0], values[-1]) == (0.0, 1.0)


@given(st.floats(float(TINY), float(LARGEST), width=32))
def test_a_loss_keeps_nine_bits(loss: float) -> None:
    code = codec.encode("loss", np.array([loss]), ONE)
    stored = float(codec.decode("loss", code, ONE)[0])
    assert abs(stored - loss) <= 2.0**-9 * loss


@given(st.lists(st.floats(0.0, float(np.finfo(np.float32).max), width=32), min_size=2))
def test_rounding_keeps_the_order_of_losses(losses: list[float]) -> None:
    ordered = np.sort(np.array(losses, dtype=np.float32))
    assert (np.diff(codec.encode("loss", ordered, ONE).astype(int)) >= 0).all()


@pytest.mark.parametrize("huge", [np.finfo(np.float32).max, np.inf])
def test_a_loss_too_large_is_clipped_to_the_largest_finite_one(huge: float) -> None:
    code = codec.encode("loss", np.array([huge], dtype=np.float32), ONE)
    assert codec.decode("loss", code, ONE)[0] == LARGEST
    assert np.isfinite(LARGEST)


@given(st.floats(0.0, 1.0))
def test_an_f1_is_off_by_half_a_step_at_most(f1: float) -> None:
    stored = float(codec.decode("f1", codec.encode("f1", np.array([f1]), ONE), ONE)[0])
    assert abs(stored - f1) <= 0.5 / codec.F1_STEPS + 1e-7


@pytest.mark.parametrize(
    ("metric", "most", "expected"),
    [
        ("loss", 10, "uint16"),
        ("accuracy", 255, "uint8"),
        ("accuracy", 256, "uint16"),
        ("f1", 256, "uint8"),
    ],
)
def test_codes_take_the_smallest_type_that_holds_them(
    metric: str, most: int, expected: str
) -> None:
    assert codec.dtype(metric, np.array([3, most])) == np.dtype(expected)


def test_losses_worked_by_hand() -> None:
    # 1.0 is 0x3F800000 and its upper half without the sign 0x7F00; 1 + 2^-8 is the next code.
    values = np.array([0.0, 1.0, 1.0 + 2**-8, 1.0 + 2**-10])
    assert codec.encode("loss", values, ONE).tolist() == [0, 0x7F00, 0x7F01, 0x7F00]


def test_accuracies_use_the_samples_of_each_client() -> None:
    samples = np.array([4, 10])
    codes = codec.encode("accuracy", np.array([[0.75, 0.3], [1.0, 0.0]]), samples)
    assert codes.tolist() == [[3, 3], [4, 0]]


def test_a_metric_without_a_code_is_refused() -> None:
    samples = np.array([4])
    for use in (
        lambda: codec.dtype("stars", samples),
        lambda: codec.encode("stars", np.ones(1), samples),
        lambda: codec.decode("stars", np.ones(1, np.uint8), samples),
    ):
        with pytest.raises(UnknownNameError, match="stored metric 'stars'"):
            use()
