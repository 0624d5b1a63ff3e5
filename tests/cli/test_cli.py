"""The command line: every subcommand, from the words typed to the files and exit codes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_study import ID, FakeEnv, contents, fake_environments, write_lines
from fedhpo_gym.analysis import read_record
from fedhpo_gym.cli import BAD, ERROR, INTERRUPTED, main
from fedhpo_gym.tasks import Task, get_task
from stored_files import stamped, write_made_up_table

pytestmark = pytest.mark.usefixtures("no_pictures")

__all__ = ["fake_environments"]

SHORT = "FedHPO-LR-CreditG"
OLD = f"{SHORT}-v0"


def run(out: Path, *words: str, seeds: int = 2) -> int:
    return main(
        ["run", SHORT, "--agent", "random", "--seeds", str(seeds), "--out", str(out), *words]
    )


def records(out: Path) -> list[Path]:
    return sorted(out.rglob("*.jsonl"))


def test_run_writes_one_record_per_id_agent_and_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", SHORT, f"MO-{SHORT}", "--agent", "random", "--out", str(tmp_path)]) == 0
    assert run(tmp_path, "--agent", "optuna-tpe") == 0
    headers = [read_record(path).header for path in records(tmp_path)]
    done = sorted((header.id, header.agent, header.seed) for header in headers)
    wanted = [(i, "random", s) for i in (ID, f"MO-{ID}") for s in range(5)]
    assert done == sorted(wanted + [(ID, "optuna-tpe", s) for s in range(2)])
    out = capsys.readouterr().out
    assert "10 runs done, 0 already there" in out
    assert f"`fedhpo-gym report {tmp_path}`" in out


def test_fidelity_is_full_unless_asked_otherwise(tmp_path: Path) -> None:
    def kwargs(name: str, *words: str) -> Any:
        assert run(tmp_path / name, *words, seeds=1) == 0
        return read_record(records(tmp_path / name)[0]).header.kwargs

    full = {"round": 500, "client_sample_rate": 1.0}
    assert kwargs("a") == {"backend": "tabular", "fidelity": full}
    some = kwargs("b", "--fidelity", "round=50", "--backend", "raw")
    assert some == {"backend": "raw", "fidelity": {**full, "round": 50}}
    free = kwargs("c", "--fidelity", "round=free", "client_sample_rate=free")
    assert free == {"backend": "tabular"}
    other = kwargs("d", "--budget-s", "900", "--set", "vector=true")
    assert other == {"backend": "tabular", "fidelity": full, "budget_s": 900.0, "vector": True}


def test_a_run_that_is_there_is_not_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in records(tmp_path)}
    run(tmp_path, seeds=3)
    assert "1 run done, 2 already there" in capsys.readouterr().out
    after = {path: path.stat().st_mtime_ns for path in records(tmp_path)}
    assert before.items() < after.items()
    run(tmp_path, "--budget-s", "900")
    assert len(records(tmp_path)) == 5, "other settings are other runs"


def test_a_report_follows_no_link_that_was_laid_in_its_way(tmp_path: Path) -> None:
    run(tmp_path, seeds=1)
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    for name in ("report.html", "report.html.part"):
        (tmp_path / name).symlink_to(victim)
    assert main(["report", str(tmp_path)]) == 0
    assert victim.read_text(encoding="utf-8") == "precious"
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_call_leaves_whole_records_and_resumes(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step, calls = FakeEnv.step, []

    def interrupted(self: FakeEnv, action: Any) -> Any:
        calls.append(action)
        if len(calls) == 12:  # in the middle of the second run of eight steps
            signal.raise_signal(number)
        return step(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(FakeEnv, "step", interrupted)
        assert run(tmp_path) == INTERRUPTED
    assert "the same command goes on after what is done" in capsys.readouterr().err
    assert len(records(tmp_path)) == 1
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    (growing,) = files - {*records(tmp_path)}  # what was being written, trial by trial
    assert growing.name.endswith(".jsonl.open")
    assert run(tmp_path) == 0
    assert "1 run done, 1 already there" in capsys.readouterr().out
    run(tmp_path / "whole")
    resumed = [path.read_text(encoding="utf-8") for path in tmp_path.glob(f"{ID}/*")]
    whole = [path.read_text(encoding="utf-8") for path in records(tmp_path / "whole")]
    assert sorted(resumed) == sorted(whole)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0"], "`--seeds` must be at least 1"),
        (["--agent", "randon"], "Unknown agent 'randon'. Did you mean 'random'?"),
        (["--agent", "random", "--agent", "random"], "`agents` must name each agent once"),
        (["--fidelity", "rounds=5"], "Unknown fidelity 'rounds'. Did you mean 'round'?"),
        (["--fidelity", "round"], "`--fidelity` must be of the form name=value, got 'round'"),
        (["--set", "vector=true", "--set", "vector=false"], "`--set` names 'vector' twice"),
        (["--set", "backend=raw"], "`backend` must be given by `--backend`"),
        (["--set", "colour=red"], "takes no argument 'colour'"),
        (["--agent", "hyperband", "--fidelity", "client_sample_rate=free"], "nothing free but"),
        (["--agent", "fedex"], "`--agent fedex` must act in round environments, `FedHPO-DAC-"),
        ([f"MO-{ID}", "--agent", "optuna-tpe"], "use the environment id without `MO-`"),
        (["FedHPO-DAC-LR-CreditG-v0", "--agent", "bohb"], "`--agent bohb` must act in trial"),
        (["--agent", "policy"], "`--agent` must be one that needs nothing learned, got 'policy'"),
        (["FedHPO-LR-CreditH-v0"], "Unknown environment id 'FedHPO-LR-CreditH-v0'. Did you mean"),
    ],
)
def test_a_wrong_word_stops_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    ids = [SHORT, *(word for word in words if "FedHPO" in word)]
    rest = [word for word in words if "FedHPO" not in word]
    assert main(["run", *ids, "--agent", "random", "--out", str(tmp_path), *rest]) == ERROR
    assert message in capsys.readouterr().err
    assert not records(tmp_path)


@pytest.mark.slow
def test_report_takes_tables_of_other_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    table = tmp_path / "smac.csv"
    lines = [f"{ID},smac,{seed},{time},{9 - time}\n" for seed in range(2) for time in (1, 2, 3)]
    table.write_text("problem,agent,seed,time,value\n" + "".join(lines), encoding="utf-8")
    assert main(["report", str(tmp_path), "--table", str(table)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "2 agents on 1 problem, by validation loss" in page
    files = {path.name for path in (tmp_path / "report_files").iterdir()}
    assert {"study-1-summary.csv", "study-1-summary.tex", "study-1-rank-over-time.svg"} <= files
    for name in ("problem-9-results.csv", "notes.csv"):
        (tmp_path / "report_files" / name).touch()
    assert main(["report", "--table", str(table), "--rule", "recommended"]) == 0
    left = {path.name for path in (tmp_path / "report_files").iterdir()}
    assert "notes.csv" in left
    assert not left & {"problem-9-results.csv", "study-1-summary.csv"}
    assert main(["report"]) == ERROR
    assert "name folders of records" in capsys.readouterr().err


def test_report_leaves_a_foreign_file_out_and_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    (tmp_path / "z.jsonl").write_text('{"loss": 1}\n', encoding="utf-8")
    assert main(["report", str(tmp_path)]) == BAD
    assert f"{tmp_path / 'z.jsonl'}, line 1: not a run record" in capsys.readouterr().err
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "z.jsonl").exists()
    assert main(["report", str(tmp_path / "nowhere")]) == ERROR


def test_replay_ends_with_1_when_a_number_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    files = [str(path) for path in records(tmp_path)]
    assert main(["replay", *files]) == 0
    assert capsys.readouterr().out.count("equal  ") == 2
    lines = contents(Path(files[1]))
    lines[2]["test"]["accuracy"] += 1e-12
    write_lines(Path(files[1]), lines)
    assert main(["replay", *files]) == 1
    out = capsys.readouterr().out
    assert f"DIFFERENT  {files[1]}: step 2: test.accuracy: recorded" in out
    assert "equal" in out


def test_list_names_ids_sizes_and_backends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedhpo_gym.cli import listing

    name = get_task(ID).table_name
    monkeypatch.setattr(listing, "list_tables", lambda: (name,))
    monkeypatch.setattr(listing, "list_surrogates", tuple)
    monkeypatch.setattr(listing, "find_spec", lambda _name: None)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith(f"{ID} "))
    assert row.split() == [ID, "5", "4", "432", "6", "h", "tabular"]
    monkeypatch.setattr(listing, "list_tables", tuple)
    monkeypatch.setattr(listing, "list_surrogates", lambda: (name,))
    monkeypatch.setattr(listing, "find_spec", lambda _name: object())
    main(["list"])
    assert "surrogate, raw" in capsys.readouterr().out


def test_list_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list"]) == 0
    narrow = capsys.readouterr().out
    table, _, rest = narrow.partition("Variants with stored numbers")
    assert max(map(len, table.splitlines())) <= 80
    assert max(map(len, rest.partition("tuned:")[2].splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "400")
    main(["list"])
    assert capsys.readouterr().out.split() == narrow.split()


def test_list_says_how_stored_variants_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedhpo_gym.cli import listing

    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(tmp_path))
    mine = get_task("LR-CreditG-v0").variant(algorithm="fedopt", alpha=0.1).identity
    card = write_made_up_table(tmp_path)  # of a task that is not in the catalogue
    content = json.loads(card.read_text(encoding="utf-8"))
    renamed = {**content, **mine.to_card(), "name": "any-name"}
    (tmp_path / "any-name.table.json").write_bytes(stamped(json.dumps(renamed).encode()))
    del content["task"]
    (tmp_path / "older.table.json").write_bytes(stamped(json.dumps(content).encode()))
    names = (
        "LR-Car-v1-fedavg-standardized",
        "any-name",
        "GNN-Cora-v1-nbafl-epsilon10",
        "LR-MadeUp-fedavg",
    )
    monkeypatch.setattr(listing, "list_tables", lambda: ("any-name", "older", *names[3:]))
    monkeypatch.setattr(listing, "list_surrogates", lambda: names[:3])
    monkeypatch.setattr(listing, "list_samples", tuple)
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "Not listed: Unknown task 'FedHPO-LR-MadeUp-v0'" in out
    assert f"Not listed: {tmp_path / 'older.table.json'} is not a table card" in out
    variants = out.partition("Variants")[2].partition("\n\n")[2]
    rows = [" ".join(line.split()) for line in variants.partition("\n\n")[0].splitlines()]
    newest = OLD if get_task(SHORT).numbers is None else get_task(SHORT).id
    assert rows[1:] == [
        "FedHPO-GNN-Cora-v1 surrogate algorithm='nbafl', settings={'epsilon': 10}",
        f"{newest} tabular, surrogate algorithm='fedopt', alpha=0.1",
    ]


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> None:
    fake = ModuleType(name)
    fake.__dict__.update(attributes)
    monkeypatch.setitem(__import__("sys").modules, name, fake)


def test_build_passes_its_arguments_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def record(task: Task, *size: int, **arguments: Any) -> str:
        assert callable(arguments.pop("announce"))
        calls.append((f"{task.table_name}{size or ''}", arguments))
        return "card.json"

    _module(monkeypatch, "fedhpo_gym.building.build", build_table=record, build_sample=record)
    assert main(["build", OLD]) == 0
    words = ["--algorithm", "fedopt", "--alpha", "5", "--preprocessing", "standardized"]
    rest = ["--workers", "3", "--out", str(tmp_path), "--device", "cuda", "--merge", "a", "b"]
    assert main(["build", OLD, *words, *rest]) == 0
    sample = ["--sample", "9", "--rounds", "4", "--rates", "0.2,1", "--only-finished"]
    sample += ["--repeat-every", "5"]
    assert main(["build", OLD, *sample]) == 0
    address = "tcp://127.0.0.1:8786"
    assert main(["build", OLD, "--executor", "dask", "--address", address]) == 0
    variant = "LR-CreditG-fedopt-alpha5-standardized"
    here = {"folder": None, "workers": None, "merge": [], "device": "cpu", "address": None}
    plain: dict[str, Any] = here
    merge = [Path("a"), Path("b")]
    given = {**here, "folder": tmp_path, "workers": 3, "merge": merge, "device": "cuda"}
    sampled = {"rounds": [4], "rates": [0.2, 1.0], "only_finished": True, "repeat_every": 5}
    sampled["crossed"] = False
    assert calls == [
        ("LR-CreditG-fedavg", plain),
        (variant, given),
        ("LR-CreditG-fedavg(9,)", {**plain, **sampled}),
        ("LR-CreditG-fedavg", {**plain, "address": address}),
    ]
    assert capsys.readouterr().out == "card.json\n" * 4
    assert main(["build", OLD, "--executor", "dask"]) == ERROR
    assert "`--address` must name the scheduler" in capsys.readouterr().err
    assert main(["build", OLD, "--address", address]) == ERROR
    assert "`--address` is for `--executor dask`" in capsys.readouterr().err
    assert main(["build", SHORT, "--algorithm", "fedmagic"]) == ERROR
    assert "Unknown algorithm 'fedmagic'" in capsys.readouterr().err


def test_surrogate_names_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _module(
        monkeypatch,
        "fedhpo_gym.building.surrogate_fit",
        fit_surrogate=lambda wanted, _, **__: f"{wanted.name}!",
    )
    assert main(["surrogate", OLD, "--algorithm", "fedopt"]) == 0
    assert capsys.readouterr().out == "LR-CreditG-fedopt!\n"


def test_download_goes_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    from fedhpo_gym.core.errors import MissingDataError

    def load_dataset(name: str) -> Any:
        if name == "A":
            raise MissingDataError("A is gone")
        return type("Table", (), {"features": np.zeros((7, 3)), "num_classes": 2})

    sources = dict.fromkeys("AB", SimpleNamespace(open_licence=True))
    monkeypatch.setattr("fedhpo_gym.data.SOURCES", sources)
    monkeypatch.setattr("fedhpo_gym.data.get_source", sources.__getitem__)
    monkeypatch.setattr("fedhpo_gym.data.load_dataset", load_dataset)
    assert main(["download", "all"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "B: 7 rows, 3 features, 2 classes\n"
    assert "A is gone" in captured.err
    assert main(["download", "B"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compre"], "Unknown command 'compre'. Did you mean 'compare'"),
        (["run", SHORT, "--agent", "random", "--seed", "2"], "unrecognized arguments: --seed 2"),
    ],
)
def test_unknown_words_are_a_usage_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(words)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_help_and_list_need_nothing_heavy(run_python: Callable[..., str]) -> None:
    code = """
import sys
from fedhpo_gym.cli import main
assert main(["list"]) == 0
heavy = {"torch", "sklearn", "pandas", "matplotlib", "optuna", "openml"}
print("heavy:", sorted(heavy & set(sys.modules)))
"""
    assert run_python(code).splitlines()[-1] == "heavy: []"


WITHOUT_TORCH = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Nothing())
from fedhpo_gym.cli import main
sys.exit(main(["agents"]))
"""


@pytest.mark.slow
def test_agents_are_listed_without_torch(run_python: Callable[[str], str]) -> None:
    said = run_python(WITHOUT_TORCH)
    assert said.count("Not listed: ") == 3  # some of them name several agents
    assert "\nhyperband " in said
    assert "an agent of BoTorch needs BoTorch, which is not installed" in said
