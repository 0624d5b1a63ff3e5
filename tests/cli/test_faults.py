"""What goes wrong on the command line is one line and an exit status, and loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_study import edit, fake_environments
from fedhpo_gym.analysis import read_folder, read_record, write_record
from fedhpo_gym.cli import BAD, ERROR, main
from fedhpo_gym.cli.console import parse_pairs
from fedhpo_gym.cli.data import LONG_H
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.data import cache
from fedhpo_gym.data.sentences import FILE, VOCABULARY_SIZE
from fedhpo_gym.records.parquet import store_table

__all__ = ["fake_environments"]

REPOSITORY = Path(__file__).resolve().parents[2]
SHORT = "FedHPO-LR-CreditG"
TORCH = "FedHPO-GNN-Cora"
RUN = ["run", SHORT, "--agent", "random", "--seeds", "1"]
Capture = pytest.CaptureFixture[str]


def one_line(capsys: Capture) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if "run/s" not in line]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.fixture
def a_file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("no folder", encoding="utf-8")
    return path


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def records(out: Path) -> list[Path]:
    return sorted(out.rglob("*.jsonl"))


# ------------------------------------------------------------------------- places to write to


@pytest.mark.parametrize("below", ["", "runs"])
def test_a_run_checks_that_it_can_write_before_it_computes(
    a_file: Path, below: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("fedhpo_gym.cli.run.do_run", lambda *_: pytest.fail("it computes"))
    assert main([*RUN, "--out", str(a_file / below)]) == ERROR
    assert "`--out` must be a folder where files can be written" in one_line(capsys)


def test_a_wrong_word_makes_no_folder(tmp_path: Path) -> None:
    assert main([*RUN, "--fidelity", "rounds=1", "--out", str(tmp_path / "new")]) == ERROR
    assert not (tmp_path / "new").exists()


def test_a_report_that_cannot_be_written_is_one_line_and_leaves_nothing(
    tmp_path: Path, a_file: Path, capsys: Capture
) -> None:
    assert main([*RUN, "--out", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path / "runs"), "--out", str(a_file / "report.html")]) == ERROR
    assert "`--out`" in one_line(capsys)
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "runs")]) == ERROR
    assert str(tmp_path / "runs") in one_line(capsys)
    assert not list(tmp_path.glob("*.part"))


def test_leaf_preprocess_says_that_it_cannot_write(
    tmp_path: Path, a_file: Path, capsys: Capture
) -> None:
    (tmp_path / "data").mkdir()
    content = '{"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": [[1]], "y": [0]}}}'
    (tmp_path / "data" / "all.json").write_text(content, encoding="utf-8")
    words = ["leaf-preprocess", str(tmp_path / "data"), "--out", str(a_file / "out")]
    assert main(words) == ERROR
    assert "`--out`" in one_line(capsys)


@pytest.mark.raw
@pytest.mark.parametrize("variable", ["--out", "FEDHPO_GYM_TABLES", "XDG_CACHE_HOME"])
def test_a_build_checks_its_folder_first(
    a_file: Path, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("fedhpo_gym.building.build.estimate", lambda *_: pytest.fail("it trains"))
    words = ["build", "FedHPO-LR-BreastCancer", "--sample", "1"]
    if variable == "--out":
        words += ["--out", str(a_file)]
    else:
        monkeypatch.delenv("FEDHPO_GYM_TABLES", raising=False)
        monkeypatch.setenv(variable, str(a_file))
    assert main(words) == ERROR
    line = one_line(capsys)
    assert f"`{variable}`" in line
    assert str(a_file) in line


def test_a_surrogate_is_not_fitted_for_a_place_that_cannot_be_written(
    a_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(
        "fedhpo_gym.building.surrogate_fit._compare_candidates", lambda *_: pytest.fail("it fits")
    )
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(a_file))
    assert main(["surrogate", SHORT]) == ERROR
    assert "`FEDHPO_GYM_TABLES`" in one_line(capsys)


@pytest.mark.parametrize("variable", ["FEDHPO_GYM_DATA", "XDG_CACHE_HOME"])
def test_data_that_cannot_be_kept_name_the_variable(
    a_file: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDHPO_GYM_DATA", raising=False)
    monkeypatch.setenv(variable, str(a_file))
    with pytest.raises(InvalidArgumentError, match=f"`{variable}`"):
        cache.fetch_file("https://x.invalid/a", cache.data_folder() / "a" / "b", "0" * 64, "again")


def test_what_is_derived_is_not_computed_where_it_cannot_be_kept(
    a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(a_file))
    with pytest.raises(InvalidArgumentError, match="`XDG_CACHE_HOME`"):
        cache.derive_arrays("x", [a_file], lambda: pytest.fail("it computes"), "again")


def test_a_table_folder_that_is_a_file_holds_nothing(
    a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(a_file))
    assert main(["list"]) == 0


def test_any_error_of_the_system_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/disk")

    monkeypatch.setattr("fedhpo_gym.cli.run.do_run", fails)
    assert main([*RUN, "--out", str(tmp_path)]) == ERROR
    assert one_line(capsys) == "fedhpo-gym run: No space left on device: /disk"


# ------------------------------------------------------------------------------ damaged records


def truncate(path: Path) -> bytes:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return whole


def test_run_sets_a_truncated_record_aside_and_makes_it_again(
    tmp_path: Path, capsys: Capture
) -> None:
    words = [*RUN[:-1], "3", "--out", str(tmp_path)]
    assert main(words) == 0
    damaged = records(tmp_path)[1]
    whole = truncate(damaged)
    half = damaged.read_bytes()
    capsys.readouterr()
    assert main(words) == 0
    told = capsys.readouterr()
    assert "1 run done, 2 already there" in told.out
    assert f"{damaged}, line" in told.err
    assert f"set aside as {damaged.name}.damaged" in told.err
    assert damaged.read_bytes() == whole
    assert damaged.with_name(f"{damaged.name}.damaged").read_bytes() == half


def test_no_damaged_file_takes_the_place_of_another(tmp_path: Path, capsys: Capture) -> None:
    words = [*RUN, "--out", str(tmp_path)]
    assert main(words) == 0
    [path] = records(tmp_path)
    halves = []
    for name in (".damaged", ".damaged2", ".damaged3"):
        truncate(path)
        path.write_bytes(path.read_bytes() + name.encode())
        halves.append(path.read_bytes())
        assert main(words) == 0
        assert f"set aside as {path.name}{name}" in capsys.readouterr().err
    kept = [one.read_bytes() for one in sorted(path.parent.glob("*.damaged*"))]
    assert kept == halves


@pytest.mark.parametrize("form", ["lines", "parquet"])
def test_a_record_of_a_newer_format_stays_where_it_is(
    tmp_path: Path, form: str, capsys: Capture
) -> None:
    words = [*RUN, "--out", str(tmp_path)]
    assert main(words) == 0
    [path] = records(tmp_path)
    if form == "lines":
        edit(path, 1, lambda content: content.update(format=4))
    else:
        arrow = pytest.importorskip("pyarrow.parquet")
        write_record(path.with_suffix(".parquet"), read_record(path))
        path.unlink()
        table = arrow.read_table(path := path.with_suffix(".parquet"))
        about = json.loads(table.schema.metadata[b"fedhpo_gym"])
        about["header"]["format"] = 4
        store_table(path, table, about)
    newer = path.read_bytes()
    capsys.readouterr()
    for command in (["regret", str(tmp_path)], ["report", str(tmp_path)], words):
        assert main(command) in (BAD, ERROR)
        said = capsys.readouterr()
        assert "`format` must be 3, got 4; read the file with the package version" in (
            said.out + said.err
        )
        assert path.read_bytes() == newer


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "replay"])
def test_one_truncated_record_does_not_block_the_others(
    tmp_path: Path, command: str, capsys: Capture
) -> None:
    main([*RUN[:-1], "3", "--out", str(tmp_path)])
    damaged = records(tmp_path)[1]
    truncate(damaged)
    capsys.readouterr()
    assert main([command, str(tmp_path)]) == BAD
    assert f"set aside as {damaged.name}.damaged" in one_line(capsys)
    assert len([read_record(path) for path in records(tmp_path)]) == 2
    for call in ([command, str(tmp_path)], ["regret", str(tmp_path)]):
        assert main(call) == BAD, "what was set aside is still missing"
        assert f"{damaged.name}.damaged was damaged, and nothing" in one_line(capsys)
    with pytest.raises(DamagedDataError, match=r"\.damaged was damaged"):
        list(read_folder([tmp_path]))
    main([*RUN[:-1], "3", "--out", str(tmp_path)])
    assert main([command, str(tmp_path)]) == 0


# ------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("constraints={'fairness_std':0.1}", "`--set constraints` must be JSON"),
        ("objectives=[val_loss]", "`--set objectives` must be JSON"),
        ('settings={"a": 1', "`--set settings` must be JSON"),
    ],
)
def test_what_should_be_json_says_how_it_is_written(
    tmp_path: Path, word: str, message: str, capsys: Capture
) -> None:
    assert main([*RUN, "--set", word, "--out", str(tmp_path)]) == ERROR
    line = one_line(capsys)
    assert message in line
    assert '={"key": 0.1}' in line


def test_the_help_shows_json(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    example = """constraints={"fairness_std": 0.1}"""
    assert example in " ".join(capsys.readouterr().out.split())
    assert parse_pairs("--set", [example]) == [("constraints", {"fairness_std": 0.1})]


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "constraints=0.1"],
        ["--set", "constraints=tight"],
        ["--set", "settings=3"],
        ["--set", "settings=abc"],
        ["--set", "algorithm=3"],
        ["--set", "preprocessing={}"],
        ["--set", "system=3"],
        ["--set", "objectives=3"],
    ],
    ids=" ".join,
)
def test_arguments_of_a_wrong_kind_are_one_line(
    tmp_path: Path, capsys: Capture, words: list[str]
) -> None:
    assert main([*RUN, "--out", str(tmp_path), *words]) == ERROR
    said = capsys.readouterr().err
    assert said.startswith("fedhpo-gym run: ")
    assert said.count("\n") == 1, said


# -------------------------------------------------------------------------------- missing packages


@pytest.mark.slow
def test_without_torch_training_says_what_to_install(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    build = ["build", TORCH]
    asked = [["run", TORCH, "--agent", "random", "--seeds", "1", "--backend", "raw"]]
    asked += [build, [*build, "--sample", "3"]]
    code = f"""
import contextlib, io, sys
sys.modules["torch"] = None
from fedhpo_gym.cli import main
for words in {asked!r}:
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        status = main([*words, "--out", {str(tmp_path)!r}])
    print(status, err.getvalue(), end="")
"""
    said = run_python(code).splitlines()
    assert len(said) == len(asked)
    for words, line in zip(asked, said, strict=True):
        assert line.startswith(f"{ERROR} fedhpo-gym {words[0]}: "), line
        assert "needs torch" in line
        assert "pip install '.[torch]'" in line or "pip install '.[raw]'" in line


# ------------------------------------------------------------------------------------ the rest


@pytest.mark.slow
def test_the_module_is_the_script() -> None:
    done = python("-m", "fedhpo_gym", "list")
    assert done.returncode == 0
    assert "FedHPO-LR-CreditG-v0" in done.stdout
    done = python("-m", "fedhpo_gym", "run", "Nope", "--agent", "random")
    assert done.returncode == ERROR
    assert done.stderr.startswith("fedhpo-gym run: Unknown environment id 'Nope'")


@pytest.mark.slow
def test_a_reader_that_stops_early_sees_no_traceback() -> None:
    code = "import sys; from fedhpo_gym.cli import main; sys.exit(main(['list']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == ERROR


def test_the_weights_of_bert_have_a_command_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(tmp_path))
    assert main(["download", "BERT-Tiny"]) == BAD  # tests reach no other machine
    line = one_line(capsys)
    assert "run `fedhpo-gym download BERT-Tiny`" in line
    assert "SST2" not in line
    (tmp_path / FILE).parent.mkdir(exist_ok=True)
    (tmp_path / FILE).write_bytes(b"weights")
    assert main(["download", "BERT-Tiny"]) == BAD
    assert "delete it and run `fedhpo-gym download BERT-Tiny`" in one_line(capsys)
    save = pytest.importorskip("safetensors.numpy").save_file
    words = np.zeros((VOCABULARY_SIZE, 128), np.float16)
    save({"embeddings.word_embeddings.weight": words}, tmp_path / FILE)
    assert main(["download", "BERT-Tiny"]) == 0
    assert str(tmp_path / FILE) in capsys.readouterr().out


class Terminal:
    def __init__(self, is_one: bool) -> None:
        self.isatty = lambda: is_one


@pytest.mark.raw
@pytest.mark.parametrize(
    ("hours", "asked", "words", "status"),
    [
        (2 * LONG_H, True, [], ERROR),
        (2 * LONG_H, True, ["--yes"], 0),
        (2 * LONG_H, False, [], 0),
        (0.5 * LONG_H, True, [], 0),
    ],
)
def test_a_long_build_asks_for_yes_when_somebody_is_there(
    hours: float,
    asked: bool,
    words: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    pytest.importorskip("torch")
    from fedhpo_gym.building.build import Estimate

    def build(_task: Any, announce: Callable[[Estimate], None], **_rest: Any) -> str:
        announce(Estimate("LR-CreditG-fedavg", 1200, 600_000, 3 * hours, 3))
        return "card.json"

    monkeypatch.setattr("fedhpo_gym.building.build.build_table", build)
    monkeypatch.setattr("sys.stdin", Terminal(asked))
    assert main(["build", SHORT, *words]) == status
    told = capsys.readouterr()
    assert "1,200 courses, 600,000 rounds, about" in told.err
    assert ("`--yes` must be given" in told.err) == (status == ERROR)
    assert ("card.json" in told.out) == (status == 0)
