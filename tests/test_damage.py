"""What is stored is what was written, or it is refused: single bits, and edits that make sense."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.agents.policy import Policy, load_policy, save_policy
from fedhpo_gym.backends import make_backend
from fedhpo_gym.core.archive import DIGEST, UNDIGESTED
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Evaluation, Fidelity
from fedhpo_gym.stored.catalogue import EMBEDDED, ENV_VAR
from fedhpo_gym.stored.sample import Sample
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.table import Table
from fedhpo_gym.tasks import get_task
from made_up_table import write_made_up_table
from pairs import arrays_of, stamped
from rewriter import numbered

FLIPS = 300


def embedded(stem: str) -> Callable[[Path], Path]:
    """Return what copies an embedded pair."""

    def copy(folder: Path) -> Path:
        card = Path(shutil.copy(EMBEDDED / f"{stem}.json", folder))
        shutil.copy(arrays_of(EMBEDDED / card.name), folder)
        return card

    return copy


def said(thing: Table | Sample | Surrogate) -> list[object]:
    spaces = [thing.space, thing.fidelity_space, thing.seeds, thing.num_samples.tolist()]
    return [*spaces, thing.identity, thing.digest, thing.sha256]


def of_table(card: Path) -> list[object]:
    table = Table(card)
    ends = [{d.name: end for d in table.space.dimensions} for end in (0, -1)]
    points = [{name: table.space[name].grid[i] for name, i in end.items()} for end in ends]
    asked = [Fidelity(table.rounds[i], table.rates[i]) for i in (0, -1)]
    found = [table.evaluate(*query, table.seeds) for query in zip(points, asked, strict=True)]
    return [*said(table), table.splits, table.metrics, *map(shown, found)]


def of_sample(card: Path) -> list[object]:
    sample = Sample(card)
    codes = {name: array.tobytes() for name, array in sample._codes.items()}
    read = [sample.configurations(), sample.objective().tobytes(), sample.rounds, sample.rates]
    return [*said(sample), sample.splits, sample.metrics, codes, *read]


def of_surrogate(card: Path) -> list[object]:
    surrogate = Surrogate(card)
    middle = surrogate.space.decode(np.full(len(surrogate.space), 0.1))
    space = surrogate.fidelity_space
    fidelity = Fidelity(int(space["round"].high), float(space["client_sample_rate"].low))
    return [*said(surrogate), shown(surrogate.evaluate(middle, fidelity, surrogate.seeds))]


def shown(found: Evaluation) -> tuple[object, ...]:
    arrays = (found.best, found.num_samples, found.best_round, found.diverged)
    return (*(array.tobytes() for array in arrays), found.seeds, found.fidelity)


def of_policy(card: Path) -> list[object]:
    policy: Policy = load_policy(card.parent)
    action = policy.act({"a": np.linspace(-9.0, 9.0, 51)}).tobytes()
    return [policy.entries, policy.limit, policy.activation, policy.output, policy.origin, action]


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], list[object]]]] = {
    "table": (write_made_up_table, of_table),
    "sample": (embedded("BERT-CoLA-fedavg-pretrained0.sample"), of_sample),
    "surrogate": (embedded("BERT-CoLA-v1-fedavg-pretrained0.surrogate"), of_surrogate),
    "policy": (lambda folder: save_policy(numbered(1), folder), of_policy),
}
every_kind = pytest.mark.parametrize(("write", "answers"), KINDS.values(), ids=KINDS)


def flips(content: bytes, what: str) -> list[bytes]:
    """Return a file with one bit flipped, again and again; the bits are drawn."""
    bits = stream(0, f"flips of {what}").choice(8 * len(content), FLIPS, replace=False)
    found = []
    for bit in bits.tolist():
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        found.append(bytes(changed))
    return found


@every_kind
def test_a_flipped_bit_of_a_card_is_refused_or_decides_nothing(
    write: Callable[[Path], Path], answers: Callable[[Path], list[object]], tmp_path: Path
) -> None:
    card = write(tmp_path)
    content, before = card.read_bytes(), answers(card)
    refused = 0
    for changed in flips(content, "card"):
        card.write_bytes(changed)
        try:
            assert answers(card) == before
        except DamagedDataError:
            refused += 1
    assert refused > FLIPS // 4


@every_kind
def test_a_flipped_bit_of_arrays_is_refused(
    write: Callable[[Path], Path], answers: Callable[[Path], list[object]], tmp_path: Path
) -> None:
    card = write(tmp_path)
    path = arrays_of(card)
    for changed in flips(path.read_bytes(), "arrays"):
        path.write_bytes(changed)
        with pytest.raises(DamagedDataError, match="delete it and"):
            answers(card)


@pytest.mark.parametrize("step", [-1, 1])
@every_kind
def test_a_card_of_another_format_is_refused(
    write: Callable[[Path], Path],
    answers: Callable[[Path], list[object]],
    step: int,
    tmp_path: Path,
) -> None:
    card = write(tmp_path)
    said = json.loads(card.read_text())
    number = said["format"] + step
    card.write_bytes(stamped(json.dumps({**said, "format": number}).encode()))
    with pytest.raises(DamagedDataError, match=rf"of format \d \(format {number}\); delete it and"):
        answers(card)


OF_TYPE: dict[type, object] = {str: "words", dict: {}}
"""Other values of entries that decide nothing; their types are checked all the same."""


@every_kind
def test_every_entry_is_protected_or_decides_nothing(
    write: Callable[[Path], Path], answers: Callable[[Path], list[object]], tmp_path: Path
) -> None:
    card = write(tmp_path)
    content: dict[str, Any] = json.loads(card.read_text())
    before = answers(card)
    for name in content.keys() - UNDIGESTED:
        for value in (None, 3, [content[name]]):
            card.write_text(json.dumps({**content, name: value}))
            with pytest.raises(DamagedDataError):
                answers(card)
    # Nothing that decides answers is among what the digest leaves out.
    told = content.keys() & UNDIGESTED - {DIGEST, "arrays"}
    other = {name: OF_TYPE[type(content[name])] for name in told}
    assert told
    assert all(content[name] != value for name, value in other.items())
    card.write_text(json.dumps({**content, **other}))
    assert answers(card) == before


def of_credit(folder: Path, change: Callable[[str], str]) -> Path:
    """Copy the embedded table of CreditG with a changed card."""
    stem = "LR-CreditG-fedavg.table"
    text = (EMBEDDED / f"{stem}.json").read_text(encoding="utf-8")
    arrays = arrays_of(EMBEDDED / f"{stem}.json")
    (folder / arrays.name).symlink_to(arrays)
    assert change(text) != text
    card = folder / f"{stem}.json"
    card.write_text(change(text), encoding="utf-8")
    return card


EDITS: dict[str, Callable[[str], str]] = {
    "0.1 is no learning rate": lambda text: text.replace("     0.1,\n", "", 1),
    "450 rounds instead of 400": lambda text: text.replace("     400,", "     450,", 1),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_grid_serves_nothing(edit: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(DamagedDataError, match=r"digest.*delete it and run `fedhpo-gym build"):
        Table(of_credit(tmp_path, edit))


def test_a_grid_that_does_not_fit_its_arrays_is_refused_even_with_its_digest(
    tmp_path: Path,
) -> None:
    def fewer(text: str) -> str:
        return stamped(EDITS["0.1 is no learning rate"](text).encode()).decode()

    table = Table(of_credit(tmp_path, fewer))
    with pytest.raises(DamagedDataError, match=r"has shape \(20, 6, .*\), expected \(20, 5, "):
        table.values("best", "val", "loss")


def test_the_fingerprint_covers_card_and_arrays_and_says_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    task = get_task("LR-CreditG-v0")
    found = make_backend("tabular", task)
    arrays = arrays_of(EMBEDDED / "LR-CreditG-fedavg.table.json").read_bytes()
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
