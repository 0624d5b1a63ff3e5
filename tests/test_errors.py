"""Exceptions keep both families and carry helpful messages."""

import importlib
import pickle
import sys
from collections.abc import Iterable

import pytest

from fedhpo_gym.core import errors
from fedhpo_gym.evaluation import records

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


def test_a_missing_package_is_installed_from_a_checkout() -> None:
    with (
        pytest.raises(errors.MissingDependencyError) as caught,
        errors.require_optional("a test", "the library", "raw", "no_such_module"),
    ):
        importlib.import_module("no_such_module.inner")
    assert str(caught.value) == str(errors.missing_dependency("a test", "the library", "raw"))
    assert "a test needs the library" in str(caught.value)
    assert "`pip install '.[raw]'` in a checkout of fedhpo_gym" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_another_missing_module_is_no_missing_dependency() -> None:
    with (
        pytest.raises(ModuleNotFoundError) as caught,
        errors.require_optional("a test", "the library", "raw", "another"),
    ):
        importlib.import_module("no_such_module")
    assert not isinstance(caught.value, errors.FedHPOError)


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


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("val_los", ["val_loss", "epsilon"], " Did you mean 'val_loss'?"),
        ("CNN-FEMNIS", ["cnn-Femnist", "LR"], " Did you mean 'cnn-Femnist'?"),
        ("qqq", iter(["beta", "alpha"]), " Known: alpha, beta."),
        ("x", [], " Known: none."),
    ],
)
def test_the_nearest_name_is_suggested_or_all_are_listed(
    name: str, known: Iterable[str], said: str
) -> None:
    assert errors.suggest(name, known) == said


def test_a_renamed_function_is_found_by_its_old_name() -> None:
    with pytest.warns(DeprecationWarning, match=r"errors.needing` is now `require_optional`"):
        assert errors.needing is errors.require_optional  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="wanting"):
        errors.wanting  # type: ignore[attr-defined]  # noqa: B018
    with pytest.warns(DeprecationWarning, match="axis_index"):
        assert records.position is records.axis_index  # type: ignore[attr-defined]
