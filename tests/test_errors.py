"""Exceptions keep both families and carry helpful messages."""

import ast
import importlib
import pickle
import sys
import tomllib
from pathlib import Path

import pytest

from fedhpo_gym.core import errors
from fedhpo_gym.data import SOURCES

FAMILIES = [
    (errors.InvalidArgumentError, ValueError),
    (errors.OffGridError, errors.InvalidArgumentError),
    (errors.UnknownNameError, LookupError),
    (errors.MissingDataError, FileNotFoundError),
    (errors.DamagedDataError, ValueError),
    (errors.MissingDependencyError, ImportError),
    (errors.WorkerLostError, RuntimeError),
]


@pytest.mark.parametrize(("error", "builtin"), FAMILIES)
def test_is_caught_as_ours_and_as_builtin(
    error: type[errors.FedHPOError], builtin: type[Exception]
) -> None:
    assert issubclass(error, errors.FedHPOError)
    assert issubclass(error, builtin)


@pytest.mark.parametrize("error", [error for error, _ in FAMILIES])
def test_message_survives_pickling(error: type[errors.FedHPOError]) -> None:
    original = error("Table 'x' is absent; run `fedhpo-gym download x`")
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is error
    assert str(copy) == str(original) == "Table 'x' is absent; run `fedhpo-gym download x`"


def test_unknown_name_is_no_key_error() -> None:
    # str() of a KeyError quotes the message, which spoils its layout.
    assert not issubclass(errors.UnknownNameError, KeyError)


def test_suggests_the_nearest_name() -> None:
    assert errors.suggest("val_los", ["val_loss", "epsilon"]) == " Did you mean 'val_loss'?"


def test_suggestion_ignores_case() -> None:
    assert errors.suggest("CNN-FEMNIS", ["cnn-Femnist", "LR"]) == " Did you mean 'cnn-Femnist'?"


def test_lists_all_names_when_none_is_near() -> None:
    assert errors.suggest("qqq", iter(["beta", "alpha"])) == " Known: alpha, beta."


def test_says_so_when_nothing_is_known() -> None:
    assert errors.suggest("x", []) == " Known: none."


def test_a_missing_package_is_installed_from_a_checkout() -> None:
    with (
        pytest.raises(errors.MissingDependencyError) as caught,
        errors.needing("a test", "the library", "raw", "no_such_module"),
    ):
        importlib.import_module("no_such_module.inner")
    assert str(caught.value) == str(errors.missing_dependency("a test", "the library", "raw"))
    assert "a test needs the library" in str(caught.value)
    assert "`pip install '.[raw]'` in a checkout of fedhpo_gym" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_another_missing_module_is_no_missing_dependency() -> None:
    with (
        pytest.raises(ModuleNotFoundError) as caught,
        errors.needing("a test", "the library", "raw", "another"),
    ):
        importlib.import_module("no_such_module")
    assert not isinstance(caught.value, errors.FedHPOError)


def test_every_extra_that_is_named_exists() -> None:
    root = Path(errors.__file__).parents[1]
    known = tomllib.loads((root.parent / "pyproject.toml").read_text(encoding="utf-8"))
    extras = known["project"]["optional-dependencies"]
    calls = [
        node
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    called = [getattr(node.func, "attr", getattr(node.func, "id", "")) for node in calls]
    place = {"missing_dependency": 2, "needing": 2, "require": 1}  # of the extra in a call
    arguments = [
        node.args[place[name]]
        for node, name in zip(calls, called, strict=True)
        if len(node.args) > place.get(name, len(node.args))  # a starred argument hides it
    ]
    named = {one.value for one in arguments if isinstance(one, ast.Constant)}
    named |= {source.library[1] for source in SOURCES.values() if source.library}
    assert {"raw", "plot", "data", "natural"} <= named <= set(extras)


def test_a_policy_names_the_extra_that_trains_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stable_baselines3", "stable_baselines3.common.vec_env"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "fedhpo_gym.agents.sb3", raising=False)
    with pytest.raises(errors.MissingDependencyError, match=r"pip install '\.\[rl\]'"):
        importlib.import_module("fedhpo_gym.agents.sb3")


def test_unknown_name_builds_the_whole_message() -> None:
    error = errors.unknown_name("objective", "epsilonn", ["epsilon", "delta"])
    assert isinstance(error, errors.UnknownNameError)
    assert str(error) == "Unknown objective 'epsilonn'. Did you mean 'epsilon'?"
