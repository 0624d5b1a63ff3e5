"""Commands in code blocks of pages: their words are accepted, and the short ones run."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedhpo_gym.cli import main, make_parser

REPOSITORY = Path(__file__).resolve().parents[1]
STUDIES = REPOSITORY / "docs" / "studies"
PAGES = [
    *(page for page in sorted((REPOSITORY / "docs").rglob("*.md")) if page.parent.name != "made"),
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
]
BLOCK = re.compile(
    r"^```(?:sh|console|text)?\n(.*?)^```|^((?:    \S.*\n)+)", re.DOTALL | re.MULTILINE
)
THIS = Path(__file__).name


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command in the code blocks of a page."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        lines = "".join(block).replace("\\\n", " ").splitlines()
        for line in lines:
            if re.match(r"\s*(fedhpo-gym|python docs/|python benchmarks/|make) ?", line):
                yield shlex.split(line, comments=True)


ALL = [(page, words) for page in PAGES for words in commands(page)]
CALLS = {" ".join(words): words[1:] for _, words in ALL if words[0] == "fedhpo-gym"}
PROGRAMS = {" ".join(words): words[1:] for _, words in ALL if words[0] == "python"}
TARGETS = sorted({words[1] for _, words in ALL if words[0] == "make" and len(words) > 1})


@pytest.mark.parametrize("call", CALLS)
def test_the_command_line_accepts_what_pages_say(call: str) -> None:
    make_parser(CALLS[call]).parse_args(CALLS[call])


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_the_targets_that_pages_name(target: str) -> None:
    assert f"\n{target}:" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")


class AcceptedError(Exception):
    """Raised where a program has read its words."""


@pytest.mark.slow
@pytest.mark.parametrize("call", PROGRAMS)
def test_programs_accept_what_pages_say(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("gpytorch", "matplotlib", "stable_baselines3", "optuna", "torch"):
        pytest.importorskip(library)
    path, *words = PROGRAMS[call]
    monkeypatch.syspath_prepend(STUDIES)
    monkeypatch.syspath_prepend((REPOSITORY / path).parent)
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    parse = argparse.ArgumentParser.parse_args

    def accepting(parser: argparse.ArgumentParser, *given: object) -> argparse.Namespace:
        parse(parser, *given)
        raise AcceptedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", accepting)
    monkeypatch.setattr("sys.argv", [path, *words])
    with pytest.raises(AcceptedError):
        importlib.import_module(Path(path).stem).main()


def test_every_study_program_is_run_by_a_test() -> None:
    tests = [path for path in (REPOSITORY / "tests").rglob("test_*.py") if path.name != THIS]
    words = {word for path in tests for word in re.findall(r"\w+", path.read_text("utf-8"))}
    programs = {path.stem for path in STUDIES.glob("*.py") if "__main__" in path.read_text("utf-8")}
    assert not programs - words - {*LONG_STUDIES}


LONG_STUDIES = ("async_study", "transfer_study", "transfer_tasks")
"""Run once a week."""
LONG = {
    **dict.fromkeys(("build", "queue", "surrogate"), "tests/building"),
    **dict.fromkeys(("generator", "meta-data", "transfer"), "tests/transfer and tests/profet"),
    **dict.fromkeys(("health", "import"), "tests/cli and tests/plugins"),
    **dict.fromkeys(("download", "leaf-preprocess", "federatedscope"), "tests/cli"),
}
"""Commands that train, load data or need a machine of their own, and where they are run."""
ELSEWHERE = re.compile(r"/shared|--backend', 'federatedscope|check', 'FedHPO|\$")
"""Needs other machines or programs, takes long by design, or has variables of a shell."""
SMALL = {
    "run": ["--seeds", "1", "--set"],
    "compare": ["--seeds", "1", "--workers", "1", "--set", "budget_trials=2"],
}
SHORT: dict[Path, list[list[str]]] = {}
for _page, _words in ALL:
    if _words[0] == "fedhpo-gym" and _words[1] not in LONG and not ELSEWHERE.search(str(_words)):
        SHORT.setdefault(_page, []).append(_words[1:])


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("page", SHORT, ids=lambda page: page.stem)
def test_short_commands_run_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the fewest seeds and trials: what one writes, the next ones read, as on the page."""
    pytest.importorskip("optuna")
    own = re.search(
        r"```python\n(.*?)```", (REPOSITORY / "docs/agents.md").read_text("utf-8"), re.S
    )
    assert own is not None
    (tmp_path / "mine.py").write_text(own[1], encoding="utf-8")
    trials = "".join(f"{a},{p},0.{k}\n" for a in "ab" for p in "xy" for k in range(1, 6))
    (tmp_path / "runs.csv").write_text(f"algorithm,problem,validation\n{trials}", encoding="utf-8")
    monkeypatch.setattr("sys.path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    for folder in ("runs", "DIR"):  # some pages go on with what the reader has
        first = ["--agent", "random", "--seeds", "1", "--set", "budget_trials=2", "--out", folder]
        assert main(["run", "FedHPO-LR-KC1-v1", *first]) == 0
    for words in SHORT[page]:
        small = list(SMALL.get(words[0], []))
        if words[0] == "run":
            small.append("horizon=25" if "FedHPO-DAC" in words[1] else "budget_trials=2")
        assert main([*words, *small]) == 0, f"{words}: {capsys.readouterr().err}"
    sys.modules.pop("mine", None)


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", LONG_STUDIES)
def test_a_long_study_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for library in ("matplotlib", "sklearn", "torch"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(STUDIES)
    importlib.import_module(name).main(["--quick", "--out", str(tmp_path)])
    assert "|---" in capsys.readouterr().out.replace(" ", "")
    assert list(tmp_path.glob("*.png"))
