"""What a newcomer is told: who can act, what there is, what will be done, and who won."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fedhpo_gym.agents import AGENTS, agent_class
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.studies.suites import suite
from workers import CrewHere

pytestmark = pytest.mark.usefixtures("no_pictures")

PAIR = [
    *("FedHPO-LR-CreditG-v1", "--agents", "random,sobol", "--seeds", "2"),
    *("--set", "budget_trials=3"),
]


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(words)
    found = capsys.readouterr()
    return status, found.out, found.err


def test_agents_are_listed_by_what_their_classes_say(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(["agents"], capsys)
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines()[1:] if line.strip()}
    assert set(AGENTS) <= set(lines)
    for name in ("random", "nsga2", "hyperband", "fedex"):
        kind = agent_class(name)
        acts = lines[name].removeprefix(name).strip().split("  ")[0]
        assert acts == ", ".join(f"{one}s" for one in kind.acts_on)
    assert "as such" in lines["optuna-tpe"]
    assert "many" in lines["nsga2"]
    assert "always" in lines["hyperband"]
    for word, found in (("nsga", "nsga2"), ("de", "de")):
        status, out, _ = said(["agents", word], capsys)
        assert [line.split()[0] for line in out.splitlines()[1:]] == [found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["agents", "nsga3"], "nsga2"),
        (["list", "FEMNISS"], "FEMNIST"),
        (["show", "FedHPO-DAC-LR-CredtG"], "FedHPO-DAC-LR-CreditG"),
        (["show", "LR-CreditH"], "LR-CreditG"),
        (["show", "FedHPO-FewClient"], "FedHPO-DAC-FewClients"),
    ],
)
def test_misspelt_words_are_answered_with_the_nearest(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = said(words, capsys)
    assert status == 2
    assert f"Did you mean '{near}'" in err
    assert len(said(["list", "nonsense"], capsys)[2]) < 200


@pytest.mark.slow
def test_a_list_takes_a_suite_and_show_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("contest", "multi-objective"):
        _, out, _ = said(["list", name], capsys)
        assert [line.split()[0] for line in out.splitlines()[1:]] == [*suite(name)]
        status, _, err = said(["show", name], capsys)
        assert status == ERROR
        assert f"fedhpo-gym list {name}" in err


def test_budgets_are_short_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    problems, _, _ = said(["list", "FedHPO"], capsys)[1].partition("\n\n")
    rows = problems.splitlines()[1:]
    hours = [re.split("  +", row)[4].removesuffix(" h") for row in rows]
    assert max(len(one.replace(".", "").strip("0")) for one in hours) <= 3


def test_a_list_takes_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(["list", "FEMNIST"], capsys)
    assert status == 0
    assert out.splitlines()[1:]
    assert all("FEMNIST" in line for line in out.splitlines()[1:])


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["FedHPO-", "MO-FedHPO-", "FedHPO-DAC-", "MO-FedHPO-DAC-"])
def test_show_prints_the_id_that_was_asked_for(
    prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = said(["show", f"{prefix}LR-CreditG-v1"], capsys)
    assert out.splitlines()[0] == f"{prefix}LR-CreditG-v1"
    assert ("A step is a trial" in out) == ("DAC" not in prefix)
    assert ("\ntabular: " in out) == ("DAC" not in prefix)
    assert ("client_sample_rate" in out.split("What can answer")[0]) == ("DAC" not in prefix)
    assert ("is a vector" in out) == prefix.startswith("MO-")


@pytest.mark.slow
def test_compare_says_what_it_will_do_and_who_won(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("fedhpo_gym.studies.comparison.WorkerPool", CrewHere)
    out = tmp_path / "runs"
    status, told, _ = said(["compare", *PAIR, "--out", str(out)], capsys)
    lines = told.splitlines()
    assert status == 0
    assert lines[0].startswith("4 runs: 1 problem x 2 agents x 2 seeds")
    assert any(line.startswith("4 of 4 runs, 0 failed") for line in lines)
    assert lines[-1] == str(out / "report.html")
    assert lines[-4].startswith("Undecided between ")
    assert lines[-2].startswith("Best configuration on FedHPO-")
    assert lines[-3].startswith("By how much:")
    for end in ("by former runs here", "by the log here, all are done"):
        again = said(["compare", *PAIR, "--seeds", "3", "--out", str(out)], capsys)[1].splitlines()
        assert again[0].startswith("6 runs")
        assert again[0].endswith(end)
    assert said(["regret", str(out)], capsys)[0] == 0


@pytest.mark.slow
def test_compare_says_who_won_where_nothing_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("fedhpo_gym.studies.comparison.WorkerPool", CrewHere)
    out = str(tmp_path / "runs")
    drawn = said(["compare", *PAIR, "--out", out], capsys)[1].splitlines()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, told, warned = said(["compare", *PAIR, "--out", out], capsys)
    lines = told.splitlines()
    assert status == 0
    assert "will have to wait for the extra `plot`" in warned.splitlines()[0]
    assert lines[-3:-1] == drawn[-3:-1]
    assert f"fedhpo-gym report {out}" in lines[-1]
    assert said(["report", out], capsys)[0] == ERROR
