"""Optimizers of one's own, by `module:Class`: they run as any other, and no record imports one."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedhpo_gym
from fedhpo_gym.agents import Agent, agent_class, agent_name
from fedhpo_gym.agents.black_box import RandomSearch
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.studies import Execution, compare
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.run import do_run
from fedhpo_gym.testing import check_plugin

pytestmark = pytest.mark.usefixtures("no_pictures")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
ID, NAMES, SHORT = "FedHPO-LR-CreditG-v1", ["mine:Greedy", "random"], {"budget_trials": 4}
OTHERS = """
from fedhpo_gym.agents.black_box import RandomSearch
from fedhpo_gym.agents.multi_fidelity import Hyperband
class Ladder(Hyperband): pass
class Idle(Agent): pass
class Odd(Greedy): rewards = "many"
class Float(RandomSearch):
    def ask(self, observation): return self._rng.uniform(-1, 1, self.action_space.shape)
class Listed(Float):
    def ask(self, observation): return super().ask(observation).tolist()
class Wordy(Float):
    def ask(self, observation): return "left"
class Writing(Float):
    def tell(self, step): step.action[:] = 0.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the example of the page, and modules that fail."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    (tmp_path / "mine.py").write_text(found[1] + OTHERS, encoding="utf-8")
    (tmp_path / "failing.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "leaving.py").write_text("raise SystemExit('bye')", encoding="utf-8")
    (tmp_path / "lacking.py").write_text("import no_such_library", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.fixture
def records(folder: Path) -> Path:
    """Records of the study, made in this process."""
    plans = make_plans(Request([ID], NAMES, 1, arguments=SHORT))
    assert all(do_run(plan, folder / "here", lambda _: None, pytest.fail) for plan in plans)
    return folder / "here"


def contents(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.rglob("*.jsonl")}
    assert not any(":" in name for name in found), "no file system of Windows has such names"
    return found


@pytest.mark.slow
def test_two_processes_leave_the_records_of_this_one(records: Path, folder: Path) -> None:
    out = ["--seeds", "1", "--set", "budget_trials=4", "--records", "jsonl", "--out", "words"]
    words = ["compare", ID, "--agents", ",".join(NAMES), "--workers", "2", "--no-report", *out]
    assert main(words) == 0
    assert contents(folder / "words") == contents(records)
    greedy = importlib.import_module("mine").Greedy
    found = compare(ID, [greedy, RandomSearch], 1, "words", arguments=SHORT)
    assert [(one.plan.agent, one.status) for one in found.outcomes] == [
        (name, "there") for name in NAMES
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_began_elsewhere_leaves_the_records_of_this_process(
    cluster: tuple[str, list[subprocess.Popen[bytes]]], records: Path
) -> None:
    execution = Execution(executor="dask", address=cluster[0], columnar=False)
    assert not compare(ID, NAMES, 1, "afar", arguments=SHORT, execution=execution).faults
    assert contents(Path("afar")) == contents(records)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_the_agent_of_the_page_keeps_all_laws() -> None:
    assert check_plugin("mine:Greedy")
    assert not check_plugin("mine:Writing"), "a second call tries what it is given, not the first"


def test_no_record_imports_its_agent(records: Path, folder: Path) -> None:
    (folder / "mine.py").unlink()
    del sys.modules["mine"]
    assert set(fedhpo_gym.load_runs(records)["agent"]) == set(NAMES)
    assert main(["regret", str(records)]) == 0
    assert main(["report", str(records)]) == 0
    assert "mine:Greedy" in (records / "report.html").read_text(encoding="utf-8")
    assert main(["replay", str(records)]) == 0
    assert "mine" not in sys.modules


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_agent_answers_with_is_what_its_record_replays(folder: Path, workers: int) -> None:
    names = [f"mine:{name}" for name in ("Float", "Listed", "Writing", "Wordy")]
    *plans, writing, wordy = make_plans(Request([ID], names, 1, arguments=SHORT, workers=workers))
    for plan in plans:
        do_run(plan, folder / "out", lambda _: None, pytest.fail)
    assert main(["replay", str(folder / "out")]) == 0
    with pytest.raises(ValueError, match="read-only"):
        do_run(writing, folder / "out", lambda _: None, pytest.fail)
    with pytest.raises(InvalidArgumentError, match="`ask` must return numbers, got 'left'"):
        do_run(wordy, folder / "out", lambda _: None, pytest.fail)


def test_what_is_there_is_said_to_be_known_by_a_name(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--seeds", "1", "--set", "budget_trials=4", "--out", str(records)]
    for name in NAMES:
        assert main(["run", ID, "--agent", name, *words]) == 0
        said = capsys.readouterr().out
        assert "1 already there" in said
        assert ("by its name alone" in said) == (name == "mine:Greedy")


@pytest.mark.usefixtures("folder")
def test_what_a_class_says_of_itself_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", "mine:Ladder"]) == 0
    assert re.search(r"mine:Ladder +trials +always", capsys.readouterr().out)
    (plan,) = make_plans(Request([ID], ["mine:Ladder"], 1))
    assert list(plan.kwargs["fidelity"]) == ["client_sample_rate"]
    for wrong in ("FedHPO-DAC-LR-CreditG-v1", f"MO-{ID}"):
        assert main(["compare", wrong, "--agents", "mine:Greedy"]) == ERROR
    said = capsys.readouterr().err
    assert "`--agent mine:Greedy` must act in trial environments" in said
    assert "`objectives` must be one for Greedy" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine:", "write it as `mine:Greedy`"),
        ("../mine:Greedy", "write it as `mine:Greedy`"),
        (
            "no_module_of_this_name:Greedy",
            "there is no module 'no_module_of_this_name' in the working folder",
        ),
        ("mine.inner:Greedy", "there is no module 'mine.inner'"),
        ("mine:Gredy", "mine.py'> has no Gredy"),
        ("mine:np", "must be a subclass .* got mine:np, which is <module 'numpy'"),
        ("mine:stream", "must be a subclass"),
        ("builtins:int", "must be a subclass .* which is <class 'int'>"),
        ("mine:Idle", "must be a subclass .* that has `ask`"),
        ("failing:Greedy", "importing it raised ZeroDivisionError: division by zero: `python"),
        ("leaving:Greedy", "importing it raised SystemExit: bye"),
        ("lacking:Greedy", "importing it raised ModuleNotFoundError: .*no_such_library"),
        ("mine:Odd", r"`mine:Odd.rewards` must be one of \['any', .*\], got 'many'"),
    ],
)
def test_what_is_no_agent_is_refused_in_one_line(
    name: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", ID, "--agents", name, "--out", str(folder / "out")]) == ERROR
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert name in said
    assert re.search(words, said)


def test_a_class_goes_by_the_name_that_other_processes_find_it_by() -> None:
    class Here(RandomSearch): ...

    class Main(RandomSearch):
        __module__ = "__main__"

    assert agent_name(RandomSearch) == "random"
    assert agent_name(Agent) == "fedhpo_gym.agents.base:Agent"
    assert agent_class("fedhpo_gym.agents.black_box:RandomSearch") is RandomSearch
    for kind in (Here, Main):
        with pytest.raises(InvalidArgumentError, match="worker processes can import"):
            compare(ID, [kind], 1)
