"""Every public function answers arguments of another type with a documented error."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import fedhpo_gym
from fedhpo_gym.core.checks import Range, coerce, validate_call, validate_failed_call
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError, MissingDependencyError
from fedhpo_gym.evaluation import stats
from fedhpo_gym.objectives import Objective, selected_renyi, selection_epsilon
from fedhpo_gym.objectives.privacy import epsilon_from_renyi
from fedhpo_gym.tasks import get_task

WRONG: tuple[Any, ...] = (
    object(), None, 5, -1, 0.5, float("nan"), 1j, "x", "", b"x", [], ["x"], [None], {}, {"x": 1},
    {1: 2}, {"x"}, np.zeros(0), np.array([1.0, np.nan]), np.zeros((2, 2), complex), len, int,
    iter([1]), np.array(["a"]), Path("nowhere"),
)  # fmt: skip
"""What most parameters do not take."""

Public = Callable[..., Any]


def public_functions() -> dict[str, Public]:
    """Return the functions in `__all__` and those that check types, by where they are found."""
    found: dict[int, tuple[str, Public]] = {}
    names = [one.name for one in pkgutil.walk_packages(fedhpo_gym.__path__, "fedhpo_gym.")]
    for name in ["fedhpo_gym", *(one for one in names if "__main__" not in one)]:
        if ".federatedscope.peer" in name:  # of another interpreter
            continue
        try:
            module = importlib.import_module(name)
        except MissingDependencyError:
            assert name.startswith("fedhpo_gym.harnesses.")  # its library is not installed here
            continue
        checked = (key for key, one in vars(module).items() if _checks_types(one, name))
        for listed in (*getattr(module, "__all__", ()), *checked):
            one = getattr(module, listed)
            if callable(one) and not isinstance(one, type) and hasattr(one, "__qualname__"):
                found.setdefault(id(one), (f"{name}.{listed}", one))
    return dict(found.values())


def _checks_types(one: object, module: str) -> bool:
    doors = (validate_call(len).__code__, validate_failed_call(len).__code__)
    return inspect.isfunction(one) and one.__module__ == module and one.__code__ in doors


def fitting(hint: Any) -> Any:
    """Return some value of the type that an annotation names, such that nothing is written."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return fitting(next(one for one in inner if one is not NoneType))
    if origin is Literal:
        return inner[0]
    if origin is Annotated and isinstance(inner[1], Range):
        return next(one for one in (fitting(inner[0]), 1, 0.01) if inner[1].accepts(one))
    if origin is Annotated:
        axes = max(getattr(inner[1], "least", 1), 1)
        return np.ones((2,) * axes, int if "int" in str(inner[0]) else float)
    if origin in _FITTING:
        return _FITTING[origin]
    if isinstance(origin, type) and origin not in (str, bytes):
        if origin is tuple and ... not in inner:
            return tuple(map(fitting, inner))
        if issubclass(origin, tuple | list | Sequence) or origin.__name__ in ("Iterable", "Set"):
            return [fitting(inner[0])] if inner else []
        if issubclass(origin, Mapping):
            return {fitting(inner[0]): fitting(inner[1])} if inner else {}
    return _made(origin)


_FITTING: dict[Any, Any] = {
    bool: False, int: 2, float: 0.5, str: "x", Any: None, NoneType: None, type: dict,
    Path: Path("nowhere"), np.ndarray: np.array([1.0, 2.0]), Callable: len, AbstractSet: {"x"},
}  # fmt: skip
_FITTING[get_origin(Callable[[int], int])] = len


@cache
def _environment() -> gym.Env[Any, Any]:
    return gym.make("FedHPO-LR-CreditG-v0", disable_env_checker=True)


def _made(kind: Any) -> Any:
    name = getattr(kind, "__name__", "")
    if name == "Task":
        return get_task("LR-CreditG")
    if name == "Env":
        return _environment()
    try:
        hints = get_type_hints(kind.__init__)
        needed = [one.name for one in _named(kind) if one.default is one.empty]
        return kind(**{name: fitting(hints[name]) for name in needed})
    except Exception:  # noqa: BLE001 - then the function is called with the wrong one alone
        return None


def _named(call: Public) -> list[inspect.Parameter]:
    found = inspect.signature(call).parameters.values()
    return [one for one in found if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def wrong_calls(call: Public) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield the parameter that is wrong, its value, and all arguments."""
    hints = get_type_hints(call, include_extras=True)
    parameters = _named(call)
    needed = [one.name for one in parameters if one.default is one.empty]
    for wrong in (one.name for one in parameters):
        for value in WRONG:
            given = {name: fitting(hints.get(name, Any)) for name in needed if name != wrong}
            yield wrong, value, {**given, wrong: value}


def bare(call: Public, arguments: Mapping[str, Any]) -> Exception | None:
    """Return the undocumented error that a call ends in, if it does."""
    try:
        found = call(**arguments)
        if isinstance(found, Iterator):
            next(found, None)
    except FedHPOError:
        return None
    except Exception as error:  # noqa: BLE001 - what is looked for
        return error
    return None


FUNCTIONS = {name: call for name, call in public_functions().items() if inspect.isfunction(call)}
BUSY = ("build_sample", "build_table", "compare", "make_", "open_courses", "register_all")
"""Beginnings of functions that work for long where all fits: they get an object of no type only.
Entry points of environments have tests of their own, `tests/envs/test_bad_calls.py`."""
LATE = (
    "fedhpo_gym.agents.make_agent",
    "fedhpo_gym.testing.make_env",
    "fedhpo_gym.objectives.perf",
    "fedhpo_gym.objectives.client",
    "fedhpo_gym.tasks.work_of",
    "fedhpo_gym.tasks.decisive_names",
)
"""Beginnings of functions of which some take what they never read."""
THEIRS = ("statistic",)
"""Parameters that are functions of the caller: their errors are the caller's."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is written into a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(tmp_path / "data"))
    assert os.environ["FEDHPO_GYM_DATA"].startswith(str(tmp_path))


def _is_busy(name: str) -> bool:
    return name.rpartition(".")[2].startswith(BUSY)


LONG = ("fedhpo_gym.envs.trial.transfer.transfer_env", "fedhpo_gym.testing.check_plugin")
"""What takes many seconds, as it trains or runs laws wherever wrong arguments are taken."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name in FUNCTIONS
        if not _is_busy(name)
    ],
)
def test_an_argument_of_another_type_ends_in_a_documented_error(name: str) -> None:
    call = FUNCTIONS[name]
    says_os_error = "OSError:" in (call.__doc__ or "")
    for wrong, value, arguments in wrong_calls(call):
        error = bare(call, arguments)
        if isinstance(error, gym.error.Error) or (says_os_error and isinstance(error, OSError)):
            continue
        assert error is None or wrong in THEIRS, f"{name}({wrong}={value!r}) ended in {error!r}"


def test_what_fits_no_annotation_is_refused_by_name() -> None:
    tried = 0
    for name, call in FUNCTIONS.items():
        hints = get_type_hints(call, include_extras=True)
        for wrong, value, given in wrong_calls(call):
            if name.startswith(("fedhpo_gym.envs.make_", *LATE)):
                break
            others = {one: hints.get(one, Any) for one in given if one != wrong}
            if type(value) is not object or hints.get(wrong, Any) is Any or not fits(given, others):
                continue
            tried += 1
            with pytest.raises(InvalidArgumentError) as refused:
                call(**given)
            assert f"`{wrong.removesuffix('s')}" in str(refused.value), name
    assert tried > 150


def fits(given: dict[str, Any], hints: dict[str, Any]) -> bool:
    """Return whether arguments have their types."""
    try:
        for name, hint in hints.items():
            coerce(name, given[name], hint)
    except InvalidArgumentError:
        return False
    return True


def test_what_fits_is_taken_as_it_is() -> None:
    for call in FUNCTIONS.values():
        for name, hint in get_type_hints(call, include_extras=True).items():
            if get_origin(hint) is Annotated:
                coerce(name, fitting(hint), hint)


def test_all_packages_were_found() -> None:
    assert len(FUNCTIONS) > 100
    folders = {name.split(".")[1] for name in FUNCTIONS}
    assert {"analysis", "objectives", "systems", "stored", "tasks", "studies"} <= folders
    assert callable(fedhpo_gym.truth)


def test_a_call_that_fails_inside_is_noticed() -> None:
    def divide(number: float) -> float:
        return 1 / number

    found = [bare(divide, given) for _, _, given in wrong_calls(divide)]
    assert sum(error is not None for error in found) > 10


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Mapping[str, Any] | None, "a mapping from names or None"),
        (Mapping[str, int], "a mapping from names, each with an integer that fits into 64 bits"),
        (tuple[str | Objective, ...], "a list, each a string or an Objective"),
    ],
)
def test_types_are_said_in_words(hint: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`name` must be {words}, got 5"):
        coerce("name", 5, hint)


# ------------------------------------------------------------------------- no number out of NaN

NAN = np.array([np.nan, 1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("bad", [float("nan"), -1e-9, -5.0])
def test_the_accountant_does_not_fail_open(bad: float) -> None:
    for divergences in ([bad, 1.0], [1.0, bad]):
        with pytest.raises(InvalidArgumentError, match="`renyi` must be at least 0"):
            epsilon_from_renyi((2, 3), divergences, 1e-5)
        for account in (selection_epsilon, _selected):
            with pytest.raises(InvalidArgumentError, match="`renyi` must hold no negative"):
                account(divergences, 2.0, 1e-5, orders=(2, 3))
    assert epsilon_from_renyi((2, 3), (0.0, 0.0), 1e-5) == 0.0
    assert epsilon_from_renyi((2, 3), (np.inf, np.inf), 1e-5) == np.inf


def _selected(renyi: Any, mean: float, _delta: float, orders: Any) -> Any:
    return selected_renyi(renyi, mean, orders=orders)


def calls() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield statistics of one column of values."""
    for name in ("interquartile_mean", "ranks", "overtuning", "relative_overtuning", "holm"):
        yield name, getattr(stats, name)
    for name in ("friedman", "nemenyi", "wilcoxon_holm", "mean_ranks"):
        yield name, lambda x, name=name: getattr(stats, name)(np.stack([x, x + 1], axis=1))
    for name in ("wilcoxon", "sign_test"):
        yield name, lambda x, name=name: getattr(stats, name)(x, np.arange(5.0))
        yield name, lambda x, name=name: getattr(stats, name)(np.arange(5.0), x)


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in calls()])
def test_statistics_refuse_nan(call: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="none NaN"):
        call(NAN)
    call(np.arange(5.0) / 10)


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.holm([2, -0.01]),
        lambda: stats.holm([0.5, 1.1]),
        lambda: stats.data_profile(np.zeros((2, 3)), -1.0),
        lambda: stats.data_profile(np.zeros((2, 3)), 1.1),
    ],
)
def test_what_must_lie_between_0_and_1_does(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must (lie|be) in \[0, 1\]"):
        call()


def test_lists_of_numbers_are_arrays() -> None:
    table = [[1.0, 2.0], [3.0, 5.0]]
    assert stats.friedman(table).statistic == stats.friedman(np.array(table)).statistic  # type: ignore[arg-type]
    assert stats.ranks([3, 1, 2]).tolist() == [3.0, 1.0, 2.0]  # type: ignore[arg-type]
