"""The table of damages of what is stored: it answers as it did, or it is refused by name.

Bits, bytes and entries are changed at random, and as somebody would who means it, with the digest
that fits. `REFUSED` lists damages by hand, and what the error says of each. Data sets have a table
of their own (`tests/federated_data/test_damage.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_study import fake_environments, make_record
from fedhpo_gym.agents.policy import Policy, load_policy, save_policy
from fedhpo_gym.backends import make_backend
from fedhpo_gym.building.design import read_unit, write_unit
from fedhpo_gym.core.archive import DIGEST_ENTRY, UNDIGESTED_ENTRIES
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Evaluation, Fidelity
from fedhpo_gym.records.files import read_judged, read_record, write_record
from fedhpo_gym.records.record import seal_lines
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER, ENV_VAR
from fedhpo_gym.stored.curve_coder import ENTRY
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.table import Sample, Table
from fedhpo_gym.tasks import get_task
from stored_files import (
    arrays_of,
    damaged_bytes,
    damaged_json,
    npz,
    numbered_policy,
    stamped,
    write_made_up_table,
)

__all__ = ["fake_environments"]

FLIPS, MUTANTS = 60, 30
"""Single bits, and larger damages, of each file."""

Answers = list[object]


@dataclass(frozen=True)
class Kind:
    """A kind of stored file.

    Attributes:
        write: writes a whole one into a folder, and returns its file: of a pair, the card.
        answers: what it answers.
        repair: what an error says to do about damage.
        strict: whether nothing in the file may be changed.
    """

    write: Callable[[Path], Path]
    answers: Callable[[Path], Answers]
    repair: str
    strict: bool = False


# --------------------------------------------------------------------------------- the kinds


def embedded(stem: str) -> Callable[[Path], Path]:
    """Return what copies an embedded pair."""

    def copy(folder: Path) -> Path:
        card = Path(shutil.copy(EMBEDDED_FOLDER / f"{stem}.json", folder))
        shutil.copy(arrays_of(EMBEDDED_FOLDER / card.name), folder)
        return card

    return copy


def said(thing: Table | Sample | Surrogate) -> Answers:
    spaces = [thing.space, thing.fidelity_space, thing.seeds, thing.num_samples.tolist()]
    return [*spaces, thing.identity, thing.digest, thing.sha256]


def of_table(card: Path) -> Answers:
    table = Table(card)
    ends = [{d.name: end for d in table.space.dimensions} for end in (0, -1)]
    points = [{name: table.space[name].grid[i] for name, i in end.items()} for end in ends]
    asked = [Fidelity(table.rounds[i], table.rates[i]) for i in (0, -1)]
    found = [table.evaluate(*query, table.seeds) for query in zip(points, asked, strict=True)]
    return [*said(table), table.splits, table.metrics, *map(shown, found)]


def of_sample(card: Path) -> Answers:
    sample = Sample(card)
    codes = {name: array.tobytes() for name, array in sample._codes.items()}
    read = [sample.configurations(), sample.objective().tobytes(), sample.rounds, sample.rates]
    return [*said(sample), sample.splits, sample.metrics, codes, *read]


def of_surrogate(card: Path) -> Answers:
    surrogate = Surrogate(card)
    middle = surrogate.space.decode(np.full(len(surrogate.space), 0.1))
    space = surrogate.fidelity_space
    fidelity = Fidelity(int(space["round"].high), float(space["client_sample_rate"].low))
    return [*said(surrogate), shown(surrogate.evaluate(middle, fidelity, surrogate.seeds))]


def shown(found: Evaluation) -> tuple[object, ...]:
    arrays = (found.best, found.num_samples, found.best_round, found.diverged)
    return (*(array.tobytes() for array in arrays), found.seeds, found.fidelity)


def of_policy(card: Path) -> Answers:
    policy: Policy = load_policy(card.parent)
    action = policy.act({"a": np.linspace(-9.0, 9.0, 51)}).tobytes()
    return [policy.entries, policy.limit, policy.activation, policy.output, policy.origin, action]


def recorded(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        if name.endswith(".parquet"):
            pytest.importorskip("pyarrow")
        write_record(folder / name, make_record())
        return folder / name

    return write


def of_record(path: Path) -> Answers:
    return [read_record(path), read_judged(path).trials.is_course]


UNIT = {
    "metrics": np.linspace(0.0, 1.0, 3 * 2 * 45, dtype=np.float32).reshape(3, 2, 5, 3, 3),
    "rounds": np.array([1, 4]),
    "diverged_at": np.array([0, 4, 0]),
    "hardware": np.array("a machine"),
}


def write_a_unit(folder: Path, **changes: Any) -> Path:
    write_unit(folder, "points-3_5", {**UNIT, **changes})
    return folder / "points-3_5.npz"


def of_unit(path: Path) -> Answers:
    found = read_unit(path.parent, path.stem, 3, (1, 4), (5, 3, 3))
    return [{name: array.tobytes() for name, array in found.items()}]


PAIRS = {
    "table": Kind(write_made_up_table, of_table, "fedhpo-gym build "),
    "sample": Kind(embedded("BERT-CoLA-fedavg-pretrained0.sample"), of_sample, "--sample "),
    "surrogate": Kind(
        embedded("BERT-CoLA-v1-fedavg-pretrained0.surrogate"), of_surrogate, "fedhpo-gym surrogate "
    ),
    "policy": Kind(lambda folder: save_policy(numbered_policy(1), folder), of_policy, "train"),
}
FILES = {
    **PAIRS,
    "record": Kind(recorded("run.jsonl"), of_record, r"line \d+: .*`fedhpo-gym run` again", True),
    "columns": Kind(recorded("run.parquet"), of_record, "run.* again", True),
    "unit of a build": Kind(write_a_unit, of_unit, "delete it and run the same build"),
}
every_pair = pytest.mark.parametrize("kind", PAIRS.values(), ids=PAIRS)
every_file = pytest.mark.parametrize("kind", FILES.values(), ids=FILES)


# ------------------------------------------------------------------------------ at random


def damages(content: bytes, what: str) -> Iterator[bytes]:
    """Return a file with one bit flipped, then with larger damages; all are drawn."""
    bits = stream(0, f"flips of {what}").choice(8 * len(content), FLIPS, replace=False)
    for bit in bits.tolist():
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
    for mutant in range(MUTANTS):
        changed = damaged_bytes(stream(0, f"damage of {what}", mutant), content)
        if changed != content:
            yield changed


def assert_refused(kind: Kind, file: Path, damaged: Path, words: str = "delete it") -> None:
    with pytest.raises(DamagedDataError, match=words) as caught:
        kind.answers(file)
    text = str(caught.value)
    assert damaged.name in text
    assert re.search(kind.repair, text), text
    assert "\n" not in text


@every_file
def test_a_damaged_file_is_refused_or_answers_as_before(kind: Kind, tmp_path: Path) -> None:
    file = kind.write(tmp_path)
    content, before, refused = file.read_bytes(), kind.answers(file), 0
    for changed in damages(content, "file"):
        file.write_bytes(changed)
        try:
            assert kind.answers(file) == before
            assert not kind.strict
        except DamagedDataError:
            refused += 1
    assert refused > (FLIPS + MUTANTS) // 4


@every_pair
def test_damaged_arrays_are_refused(kind: Kind, tmp_path: Path) -> None:
    card = kind.write(tmp_path)
    arrays = arrays_of(card)
    content = arrays.read_bytes()
    for changed in (*damages(content, "arrays"), b"", content[:-20], content + b"x"):
        arrays.write_bytes(changed)
        assert_refused(kind, card, arrays)
    arrays.write_bytes(content)
    with np.load(arrays) as stored:  # well formed, only not the file that the card describes
        np.savez(arrays, **stored)
    assert_refused(kind, card, arrays)
    arrays.unlink()
    assert_refused(kind, card, arrays)


@every_pair
def test_what_is_no_card_is_refused(kind: Kind, tmp_path: Path) -> None:
    card = kind.write(tmp_path)
    content = card.read_bytes()
    no_json = [b"", b"[]", b"{}", b"\xff\xfe", content[: len(content) // 2], b'{"a":' * 10**5]
    number = json.loads(content)["format"]
    for text in (*no_json, *(with_(format=n)(content) for n in (number - 1, number + 1, "x", 99))):
        card.write_bytes(text)
        assert_refused(kind, card, card, "is not a .* card")


OF_TYPE: dict[type, object] = {str: "words", dict: {}}
"""Other values of entries that decide nothing; their types are checked all the same."""


@every_pair
def test_every_entry_is_protected_or_decides_nothing(kind: Kind, tmp_path: Path) -> None:
    card = kind.write(tmp_path)
    content: dict[str, Any] = json.loads(card.read_text())
    before = kind.answers(card)
    for name in content.keys() - UNDIGESTED_ENTRIES:
        for value in (None, 3, [content[name]]):
            card.write_text(json.dumps({**content, name: value}))
            with pytest.raises(DamagedDataError):
                kind.answers(card)
    # Nothing that decides answers is among what the digest leaves out.
    told = content.keys() & UNDIGESTED_ENTRIES - {DIGEST_ENTRY, "arrays"}
    other = {name: OF_TYPE[type(content[name])] for name in told}
    assert told
    assert all(content[name] != value for name, value in other.items())
    card.write_text(json.dumps({**content, **other}))
    assert kind.answers(card) == before


@every_pair
def test_a_forged_card_answers_or_is_refused(kind: Kind, tmp_path: Path) -> None:
    card = kind.write(tmp_path)
    content, refused = card.read_bytes(), list[str]()
    for mutant in range(MUTANTS):
        card.write_bytes(stamped(damaged_json(stream(0, "forgery", mutant), content)))
        try:
            kind.answers(card)
        except DamagedDataError as error:
            refused.append(str(error))
    assert len(refused) > MUTANTS // 4
    assert [text for text in refused if not re.search(f"{kind.repair}|genuine", text)] == []


# --------------------------------------------------------------------------------- by hand


def without(*keys: str) -> Callable[[bytes], bytes]:
    """Return what takes entries out of a card."""

    def change(content: bytes) -> bytes:
        card = {key: value for key, value in json.loads(content).items() if key not in keys}
        return stamped(json.dumps(card).encode())

    return change


def with_(**entries: Any) -> Callable[[bytes], bytes]:
    """Return what writes other entries on a card."""
    return lambda content: stamped(json.dumps({**json.loads(content), **entries}).encode())


def packed(**entries: Any) -> Callable[[bytes], bytes]:
    """Return what changes what a card says of packing."""
    return lambda content: with_(**{ENTRY: {**json.loads(content)[ENTRY], **entries}})(content)


def lines(*, number: int, drop: str = "", **entries: Any) -> Callable[[bytes], bytes]:
    """Return what changes a line of a record, counted from 1, and seals all of them anew."""

    def change(content: bytes) -> bytes:
        found = [json.loads(line) for line in content.splitlines()]
        found[number - 1] |= entries
        found[number - 1].pop(drop, None)
        plain = [{k: v for k, v in line.items() if k != "digest"} for line in found]
        return b"".join(
            line + b"\n" for line in seal_lines([json.dumps(p).encode() for p in plain])
        )

    return change


def incumbent(**entries: Any) -> Callable[[bytes], bytes]:
    """Return what changes the incumbent of the second step."""

    def change(content: bytes) -> bytes:
        said = json.loads(content.splitlines()[2])["incumbent"]
        return lines(number=3, incumbent={**said, **entries})(content)

    return change


def moved(change: Callable[[list[bytes]], object]) -> Callable[[bytes], bytes]:
    """Return what moves lines of a record, as they are."""

    def move(content: bytes) -> bytes:
        found = content.splitlines(keepends=True)
        change(found)
        return b"".join(found)

    return move


def cells(**arrays: Any) -> Callable[[bytes], bytes]:
    """Return what stores other arrays as the results of a unit."""

    def change(_: bytes) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            return write_a_unit(Path(folder), **arrays).read_bytes()

    return change


SHAPE = {"name": "x", "low": 1, "high": 10**400, "kind": "int"}
PATHS = "along one or two of the axes"
REFUSED: list[tuple[str, Callable[[bytes], bytes], str]] = [
    *(("table", without(name), f"'{name}'") for name in ("space", "build_command", "metrics")),
    *(
        ("table", without(name), f"lacks '{name}', so its problem is unknown")
        for name in ("name", "task", "version")
    ),
    *(("table", with_(version=version), "is no version") for version in (-1, "0")),
    ("table", with_(settings=3), "not iterable"),
    ("table", with_(space=3), "must have the one key 'dimensions'"),
    ("table", with_(space={"dimensions": [3]}), "must be a list of objects"),
    ("table", with_(space={"dimensions": [{"name": "x"}]}), "lacks .*'high', 'kind', 'low'"),
    ("table", with_(space={"dimensions": [SHAPE]}), "`high` must be a finite number"),
    ("table", with_(fidelity_space={"dimensions": []}), "Unknown dimension 'round'"),
    ("table", with_(num_samples=[[1], [1, 2]]), "not a table card"),
    ("table", with_(num_samples=[[[1.5] * 3] * 3] * 2), "must be counts with the axes"),
    ("table", with_(num_samples=[]), "must be counts with the axes"),
    ("table", with_(num_samples=[[[1] * 3] * 3] * 4), "must have 2 seeds and 3 splits"),
    *(("table", with_(seeds=s), "must be integers that differ") for s in ([], [1, "3"], [1, 1])),
    *(
        ("table", with_(bytes=size), "`bytes` must be the size of the arrays")
        for size in ("9", -1, 1.5, True, None)
    ),
    *(("table", with_(metrics=m), "`metrics` must be a list") for m in (["loss", 3], [[]])),
    ("table", with_(splits="val"), "`splits` must be a list, each a string"),
    ("table", packed(name="another"), "packed by 'another', known is"),
    *(
        ("table", packed(paths=[[0], *path]), PATHS)
        for path in ([[5]], [[True]], [["1"]], [[0, 1, 2]], [[]])
    ),
    ("table", packed(paths=[]), PATHS),
    *(("table", packed(paths=p), "up to 16, one of them") for p in ([[1]], [[0]] * 99)),
    ("table", packed(paths=3), "not iterable"),
    *(
        ("table", packed(**{name: number}), "must be positive")
        for name, number in [("lanes", 0), ("lanes", 1.0), ("words", -1), ("words", None)]
    ),
    ("table", packed(listed=0), "must be positive"),
    ("table", packed(lanes=10**9), "too few for 1000000000 lanes"),
    ("table", packed(words=10**6), r"'words' has shape .* expected \(1000000,\)"),
    ("table", packed(listed=10**6), "it must hold the arrays"),
    *(("surrogate", without(name), f"'{name}'") for name in ("space", "model", "sha256", "task")),
    ("policy", with_(entries=3), r"policy\.json is not a policy card"),
    ("policy", with_(layers=7), "does not hold the policy its card describes"),
    ("policy", with_(entries=[["a", [3]]]), "`weights` must lead from 3 inputs"),
    ("policy", with_(activation="__import__"), r"`activation` must be one of \['relu', 'tanh'\]"),
    ("record", lines(number=1, kind="other"), "line 1: .*`kind` must be"),
    (
        "record",
        lines(number=1, format=4),
        r"line 1: .*`format` must be 3, got 4; .* it \('1.2.3'\)",
    ),
    ("record", lines(number=1, seed=True), "line 1: .*`seed` must be a non-negative integer"),
    ("record", lines(number=1, spec={}), "line 1: .*`spec` must be an object with `kwargs`"),
    ("record", lines(number=1, drop="agent"), "line 1: .*must have the fields"),
    ("record", lines(number=3, drop="reward"), "line 3: .*must have the fields"),
    ("record", lines(number=3, extra=1), "line 3: .*`extra` must be an object of plain data"),
    ("record", lines(number=3, regret=[None]), "line 3: .*`extra` must be"),
    ("record", lines(number=3, action=[1.0, "2"]), "line 3: .*`action` must be a list of numbers"),
    ("record", lines(number=3, reward=[]), "line 3: .*`reward` must be a finite number"),
    ("record", lines(number=3, reward=None), "line 3: .*`reward` must be a finite number"),
    ("record", lines(number=3, reward=float("nan")), "line 3: .*NaN is no finite number"),
    ("record", lines(number=3, elapsed_s=float("inf")), "line 3: .*Infinity is no finite number"),
    ("record", lines(number=3, terminated=0), "line 3: .*`terminated` must be true or false"),
    ("record", lines(number=3, configuration={"a": [1]}), "line 3: .*`configuration` must be"),
    ("record", lines(number=3, test={"loss": 0.1}), "line 3: .*step 2 lacks 'accuracy' in `test`"),
    ("record", lines(number=3, cost={}), "line 3: .*`cost` must be an object with 'time_s'"),
    ("record", lines(number=3, cost={"time_s": 1.0}), "line 3: .*step 2 lacks 'rounds' in `cost`"),
    ("record", lines(number=3, objectives={}), "line 3: .*step 2 lacks .* in `objectives`"),
    ("record", lines(number=3, violation="a"), "line 3: .*`violation` must be a finite number"),
    ("record", lines(number=3, violation=[1.0]), "line 3: .*`violation` must be a finite number"),
    ("record", lines(number=3, violation=0.5), "line 3: .*step 2 must have `violation` if and"),
    ("record", lines(number=3, reward=[1.0]), "line 3: .*step 2 must have as many .* in `reward`"),
    ("record", lines(number=3, action=[]), "line 3: .*step 2 must have as many .* in `action`"),
    ("record", lines(number=3, incumbent={"trial": 1}), "line 3: .*`incumbent` must be"),
    ("record", incumbent(step=1), "line 3: .*`incumbent` must be .* either 'trial' or 'step'"),
    ("record", incumbent(trial=3), r"line 3: .*step 2 has the incumbent of step 3, not in 1\.\.2"),
    ("record", lines(number=3, terminated=True), "line 3: .*step 2 ends the episode, but more"),
    ("record", lines(number=3, elapsed_s=0.5), "line 3: .*step 2 has `elapsed_s` 0.5, less than"),
    ("record", lines(number=9, terminated=False), "line 9: .*step 8 is the last but does not end"),
    *(
        ("record", lambda _, text=text: text, "line 1: not a run record")
        for text in (b"", b"step,loss\n1,0.5\n", b"[1, 2]\n", b"\xff\xfe\n", b"[" * 100_000)
    ),
    ("record", moved(lambda found: found.insert(3, found[3])), "line 5:"),
    ("record", moved(lambda found: found.pop(3)), "line 4:"),
    ("record", moved(lambda found: found.insert(3, found.pop(4))), "line 4:"),
    ("record", moved(lambda found: found.pop(0)), "line 1:"),
    ("record", moved(lambda found: found.append(found[-1])), "line 10:"),
    *(("record", lambda old, n=n: old[:-n], r"line \d: .*cut short") for n in (1, 20, 2000)),
    ("record", moved(lambda found: found.__delitem__(slice(-2, None))), "line 7: .*cut short"),
    *(
        ("unit of a build", cells(**{name: value}), "is damaged")
        for name, value in [
            ("metrics", np.full((3, 2, 5, 3, 3), np.nan, np.float32)),
            ("metrics", np.zeros((2, 2, 5, 3, 3), np.float32)),
            ("metrics", np.zeros((3, 2, 5, 3, 3), np.int32)),
            ("rounds", np.array([1, 5])),
            ("rounds", np.array([1.0, 4.0])),
            ("diverged_at", np.array([0, 5, 0])),
            ("diverged_at", np.array([0, -1, 0])),
            ("hardware", np.array(["a machine"])),
            ("more", np.array(3)),
        ]
    ),
    *(("columns", lambda old, n=n: old[:n], r"run\.parquet") for n in (0, 4, -1)),
    ("unit of a build", lambda _: npz(**UNIT), "its digest is not that of the results"),
]


@pytest.mark.parametrize(("name", "change", "words"), REFUSED)
def test_a_damage_is_refused_by_its_name(
    name: str, change: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    file = FILES[name].write(tmp_path)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DamagedDataError, match=words) as caught:
        FILES[name].answers(file)
    assert re.search(FILES[name].repair, str(caught.value))


# ------------------------------------------------------------------- of other numbers


def of_credit(folder: Path, change: Callable[[str], str]) -> Path:
    """Copy the embedded table of CreditG with a changed card."""
    stem = "LR-CreditG-fedavg.table"
    text = (EMBEDDED_FOLDER / f"{stem}.json").read_text(encoding="utf-8")
    arrays = arrays_of(EMBEDDED_FOLDER / f"{stem}.json")
    (folder / arrays.name).symlink_to(arrays)
    assert change(text) != text
    card = folder / f"{stem}.json"
    card.write_text(change(text), encoding="utf-8")
    return card


def test_a_grid_that_does_not_fit_its_arrays_is_refused_even_with_its_digest(
    tmp_path: Path,
) -> None:
    def fewer(text: str) -> str:
        return stamped(text.replace("     0.1,\n", "", 1).encode()).decode()

    table = Table(of_credit(tmp_path, fewer))
    with pytest.raises(DamagedDataError, match=r"has shape \(20, 6, .*\), expected \(20, 5, "):
        table.values("best", "val", "loss")


def test_the_fingerprint_covers_card_and_arrays_and_says_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    task = get_task("LR-CreditG-v0")
    found = make_backend("tabular", task)
    arrays = arrays_of(EMBEDDED_FOLDER / "LR-CreditG-fedavg.table.json").read_bytes()
    assert f"table-sha256:{hashlib.sha256(arrays).hexdigest()}" in found.former_fingerprints
    assert found.fingerprint not in found.former_fingerprints

    def other(text: str) -> str:
        return stamped(text.replace('"unit": ""', '"unit": "1"').encode()).decode()

    def later(text: str) -> str:
        return text.replace('"created": "20', '"created": "30')

    for change, same in ((other, False), (later, True)):
        for path in tmp_path.iterdir():
            path.unlink()
        of_credit(tmp_path, change)
        changed = make_backend("tabular", task)
        assert (changed.fingerprint == found.fingerprint) == same
        assert changed.former_fingerprints == found.former_fingerprints
