"""The lock files: everything that is declared, by hashes, and nothing of one machine."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
DEMOS = [path for path in LOCKS if path.name.startswith("demo")]
OF_OLD_PYTHONS = {"importlib-metadata"}
"""What dask needs before Python 3.12 only."""
ENTRY = re.compile(r"([a-z0-9._-]+)===?(\S+?)(?: ; .*?)?((?: --hash=sha256:[0-9a-f]{64})+)")


def entries(path: Path) -> dict[str, str]:
    """Return version by name; every entry has hashes, and there is nothing but entries."""
    lines = path.read_text(encoding="utf-8").replace(" \\\n   ", "").splitlines()
    found = [ENTRY.fullmatch(line) for line in lines]
    assert None not in found, [line for line, match in zip(lines, found, strict=True) if not match]
    return {match[1]: match[2] for match in found if match}


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_has_versions_and_hashes_only(path: Path) -> None:
    assert entries(path)


def test_every_supported_python_has_a_lock() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r"Python :: (3\.\d+)", text)
    wanted = {f"{kind}{version}.txt" for version in versions for kind in ("py", "demo")}
    assert wanted < {path.name for path in LOCKS}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_the_locks_have_the_versions_that_are_pinned(path: Path) -> None:
    found, wanted = entries(path), pinned()
    if path.name.startswith("py"):
        assert wanted.keys() - found.keys() <= OF_OLD_PYTHONS
        assert {
            name: found[name] for name in wanted.keys() & found.keys()
        }.items() <= wanted.items()
    assert not {"pip", "setuptools"} & found.keys() or path.name == "build.txt"


@pytest.mark.parametrize("path", DEMOS, ids=lambda path: path.name)
def test_the_demo_has_the_core_and_plotting_of_the_lock_and_nothing_to_train(path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["plot"]
    demo, lock = entries(path), entries(path.with_name(path.name.replace("demo", "py")))
    assert demo.items() <= lock.items()
    assert {re.split("[<>=]", requirement)[0] for requirement in declared} <= demo.keys()
    assert not {"torch", "scipy", "pandas", "triton"} & demo.keys()


def test_both_builds_of_torch_are_of_the_version_that_is_pinned() -> None:
    cpu, cuda = (entries(ROOT / "requirements" / f"torch-{b}.txt") for b in ("cpu", "cuda"))
    assert cpu == {"torch": f"{pinned()['torch']}+cpu"}
    assert cuda == {"torch": pinned()["torch"]}


def installs(makefile: str) -> list[list[str]]:
    """Return the words of each line of a Makefile that calls pip."""
    return [line.split() for line in makefile.splitlines() if line.startswith("\t$(PIP")]


def test_the_makefile_installs_nothing_without_a_hash_but_this_package() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (own,) = (words for words in installs(makefile) if "--require-hashes" not in words)
    assert own == ["$(PIP)", "--no-deps", "--no-build-isolation", "-e", "."]
    assert len(installs(makefile)) == makefile.replace("PIP     :=", "").count("PIP") == 4


@pytest.fixture(name="torch_installer")
def fixture_torch_installer() -> ModuleType:
    path = ROOT / "requirements" / "install_torch.py"
    spec = importlib.util.spec_from_file_location("install_torch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("choice", "there", "device", "asked"),
    [
        ("auto", None, False, "cpu"),
        ("auto", None, True, "cuda"),
        ("auto", "1.0", False, "cpu"),
        ("auto", "{version}", False, None),
        ("auto", "{version}+cpu", True, None),
        ("cpu", "{version}", True, "cpu"),
        ("cpu", "{version}+cpu", False, None),
        ("cuda", "{version}+cpu", False, "cuda"),
    ],
)
def test_the_switch_chooses_the_build_of_torch(
    torch_installer: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    there: str | None,
    device: bool,
    asked: str | None,
) -> None:
    """What is installed stays under auto; else the device decides, or the word."""
    calls: list[str] = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch_installer, "sees_nvidia", lambda: device)
    version = there and there.format(version=pinned()["torch"])
    monkeypatch.setattr(torch_installer, "installed", lambda: version)
    monkeypatch.setattr(torch_installer, "install", lambda build, _: not calls.append(build))
    torch_installer.main(choice)
    assert calls == [asked] * (asked is not None)


def test_only_auto_goes_on_where_a_build_cannot_be_had(
    torch_installer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch_installer, "sees_nvidia", lambda: False)
    monkeypatch.setattr(torch_installer, "installed", lambda: None)
    monkeypatch.setattr(torch_installer, "install", lambda *_: False)
    torch_installer.main("auto")
    assert "what the lock has" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="cannot be had"):
        torch_installer.main("cpu")
    with pytest.raises(SystemExit, match="must be one of auto, cpu, cuda, got 'gpu'"):
        torch_installer.main("gpu")
