"""Federated algorithms of a user, by name: trained everywhere, and never chosen by a record."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

pytest.importorskip("numba")

import fedhpo_gym
from conftest import REPOSITORY, RunPython
from fedhpo_gym.algorithms import (
    ALGORITHMS,
    REGISTERED,
    Algorithm,
    get_algorithm,
    register_algorithm,
)
from fedhpo_gym.algorithms.asynchronous import FedBuff
from fedhpo_gym.algorithms.base import VARIATE
from fedhpo_gym.algorithms.fedavg import Ditto, FedAvg
from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.backends import make_backend
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.core.plugins import plugin_modules
from fedhpo_gym.space import Dimension
from fedhpo_gym.studies.environments import remake_environment, spec_of
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.run import CellWork, run_alone
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing import check_plugin
from fedhpo_gym.wrappers import NamedAction

pytestmark = [pytest.mark.raw, pytest.mark.usefixtures("shared_datasets")]

NAME, ID = "mine:FedDyn", "FedHPO-LR-CreditG-v1"
GUIDE = REPOSITORY / "docs" / "guides" / "own_algorithm.md"
SHORT: dict[str, Any] = {"backend": "raw", "fidelity": {"round": 1, "client_sample_rate": 1.0}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the file of the guide."""
    [source] = re.findall(r"\.write_text\('''\n(from fedhpo_gym.*?)'''\)", GUIDE.read_text(), re.S)[
        :1
    ]
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("mine", None)


def step(env: gym.Env[Any, Any]) -> dict[str, Any]:
    env.reset(seed=0)
    env.action_space.seed(0)
    return env.step(env.action_space.sample())[-1]


def test_trials_and_rounds_take_it_by_module_and_class() -> None:
    env = gym.make(ID, algorithm=NAME, **SHORT)
    assert "alpha_dyn" in step(env)["configuration"]
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert step(again)["objectives"] == step(env)["objectives"]
    course = gym.make("FedHPO-DAC-LR-CreditG-v1", algorithm="feddyn", horizon=5)
    assert "alpha_dyn" in str(course.unwrapped.search_space.names)  # type: ignore[attr-defined]


def test_what_its_source_says_is_in_the_fingerprint(folder: Path) -> None:
    def fingerprint() -> str:
        sys.modules.pop("mine", None)
        get_algorithm(NAME)
        return make_backend("raw", get_task(ID).variant(algorithm="feddyn")).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    path = folder / "mine.py"
    path.write_text(path.read_text().replace("share = ", "share = 0.5 * "), encoding="utf-8")
    assert fingerprint() != first


@pytest.mark.slow
def test_worker_processes_and_laws_know_it(folder: Path) -> None:
    arguments = {"budget_trials": 1, "algorithm": NAME}
    fidelity = SHORT["fidelity"]
    (plan,) = make_plans(
        Request([ID], ["random"], 1, backend="raw", fidelity=fidelity, arguments=arguments)
    )
    work = CellWork(folder, columnar=False, places=(str(folder),))
    assert run_alone(work, plan).words == ""
    assert plugin_modules() == ("fedhpo_gym.algorithms:register_algorithm=mine:FedDyn",)
    assert check_plugin(NAME)


@pytest.mark.slow
def test_a_record_is_replayed_once_the_algorithm_is_named(
    folder: Path, run_python: RunPython
) -> None:
    fast = ["--backend", "raw", "--fidelity", "round=1", "--fidelity", "client_sample_rate=1"]
    options = [*fast, "--seeds", "1", "--set", "budget_trials=1", "--set", f"algorithm={NAME}"]
    assert main(["run", ID, "--agent", "random", *options, "--out", "here"]) == 0
    assert main(["replay", "here"]) == 0, "it was named in this process"
    code = f"""
import os, sys
os.chdir({str(folder)!r})
from fedhpo_gym.cli import main
first = main(["replay", "here"]), "mine" in sys.modules
print(*first, main(["replay", "here", "--set", "algorithm={NAME}"]))
"""
    assert run_python(code).splitlines()[-1] == "2 False 0"


def test_a_record_names_no_module() -> None:
    spec = spec_of(gym.make(ID, **SHORT))
    spec["kwargs"]["algorithm"] = "os:system"
    with pytest.raises(InvalidArgumentError, match=r"`algorithm` must be named by you"):
        remake_environment(ID, spec)
    with pytest.raises(InvalidArgumentError, match=r"`--set backend`"):
        remake_environment(ID, spec, named={"backend": "raw"})


@pytest.mark.parametrize("name", [None, "fedavg", "feddyn", NAME, "moved:FedDyn", "mine:Same"])
@pytest.mark.parametrize("named", [NAME, [NAME, "mine:Same"]])
def test_a_named_algorithm_is_that_of_records_that_name_it(
    name: str | None, named: Any, folder: Path
) -> None:
    with (folder / "mine.py").open("a", encoding="utf-8") as file:
        file.write("\n\nclass Same(FedDyn):\n    name = 'same'\n")
    spec = spec_of(gym.make(ID, **SHORT))
    spec["kwargs"]["algorithm"] = name
    if name == "mine:Same" and named == NAME:
        both = re.escape('algorithm=["mine:FedDyn", "mine:Same"]')
        with pytest.raises(InvalidArgumentError, match=f"must be named by you.*{both}"):
            remake_environment(ID, spec, named={"algorithm": named})
        return
    env = remake_environment(ID, spec, named={"algorithm": named})
    expected = {NAME: "feddyn", "moved:FedDyn": "feddyn", "mine:Same": "same", None: "fedavg"}
    assert env.get_wrapper_attr("task").algorithm == expected.get(name, name)


@pytest.mark.parametrize("wrong", ["fedavg", [], ["mine:FedDyn", "fedavg"], 3])
def test_only_own_algorithms_are_named_for_records(wrong: Any) -> None:
    spec = spec_of(gym.make(ID, **SHORT))
    with pytest.raises(InvalidArgumentError, match="must be one of the arguments that a record"):
        remake_environment(ID, spec, named={"algorithm": wrong})


@pytest.mark.parametrize("named", [NAME, [NAME]])
def test_runs_of_several_algorithms_lie_in_one_folder(
    named: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pandas = pytest.importorskip("pandas")
    out = ["--seeds", "1", "--out", str(tmp_path)]
    raw = ["--backend", "raw", "--fidelity", "round=1", "--fidelity", "client_sample_rate=1"]
    run = ["run", ID, "--agent", "random", *out, "--set", "budget_trials=1"]
    assert main(run) == main([*run, *raw, "--set", f"algorithm={NAME}"]) == 0
    plain = fedhpo_gym.load_runs(tmp_path)
    assert plain["regret"].notna().sum() == 1
    pandas.testing.assert_frame_equal(fedhpo_gym.load_runs(tmp_path, {"algorithm": named}), plain)
    capsys.readouterr()
    assert main(["replay", str(tmp_path), "--set", f"algorithm={json.dumps(named)}"]) == 0
    assert capsys.readouterr().out.count("equal ") == 2


@pytest.mark.slow
def test_its_sample_is_a_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(tmp_path / "tables"))
    options = ["--algorithm", NAME, "--sample", "8", "--rounds", "3", "--workers", "1", "--yes"]
    assert main(["build", ID, *options]) == 0
    env = gym.make(ID, backend="tabular", algorithm=NAME)
    assert "alpha_dyn" in step(env)["configuration"]
    [card] = (tmp_path / "tables").glob("*.json")
    content = json.loads(card.read_text())
    assert content["algorithm"] == "feddyn"
    assert f"--algorithm {NAME} " in content["build_command"], "who has not named it can run that"
    out, setting = str(tmp_path / "runs"), ["--set", f"algorithm={NAME}"]
    call = ["compare", ID, "--agents", "random", "--seeds", "2", "--no-report", "--out", out]
    assert main([*call, *setting, "--set", "budget_trials=3"]) == 0
    assert main(["report", out, *setting]) == 0
    assert fedhpo_gym.load_runs(out, {"algorithm": NAME})["regret"].notna().all()


class Still(FedAvg):
    name = "still"

    def server_update(self, parameters: Any, average: Any, state: Any, context: Any) -> Any:
        return parameters, state


class Ahead(Still):
    """Sends another model than the global one."""

    name = "ahead"

    def broadcast(self, parameters: Any, context: Any) -> Any:
        return {name: value + 1.0 for name, value in parameters.items()}


class InPlace(Still):
    """Changes what it is given."""

    name = "in-place"

    def broadcast(self, parameters: Any, context: Any) -> Any:
        for value in parameters.values():
            value *= 0.5
        return parameters


def test_a_server_goes_on_from_its_own_parameters_whatever_it_sent() -> None:
    losses = []
    for kind in (Still, Ahead, InPlace):
        register_algorithm(kind)
        losses.append(step(gym.make(ID, algorithm=kind.name, **SHORT))["objectives"]["val_loss"])
    assert losses[0] == losses[1] == losses[2]


class Shifted(Ditto):
    """Adds to the gradients of the model that travels."""

    name = "shifted"

    def correction(self, context: Any) -> Any:
        return {name: value + 1.0 for name, value in context.variates().items()}

    keeps_variates = sends_updates = True

    def reports(self, parameters: Any, context: Any) -> Any:
        return {VARIATE + name: value - value for name, value in parameters.items()}

    def upload(self, parameters: Any, context: Any) -> Any:
        nothing = {VARIATE + name: value - value for name, value in parameters.items()}
        return {**parameters, **nothing}

    def server_update(self, parameters: Any, average: Any, state: Any, context: Any) -> Any:
        return {name: value + average[name] for name, value in parameters.items()}, state


class Unshifted(Shifted):
    name = "unshifted"

    def correction(self, context: Any) -> Any:
        return {}


def test_a_correction_bends_the_model_that_travels_and_no_copy() -> None:
    losses = []
    for kind in (Shifted, Unshifted):
        register_algorithm(kind)
        for rounds in (1, 3):
            fidelity = {"round": rounds, "client_sample_rate": 1.0}
            env = gym.make(ID, algorithm=kind.name, backend="raw", fidelity=fidelity)
            losses.append(step(env)["objectives"]["val_loss"])
    assert losses[0] == losses[2], "copies are pulled to what was sent before the first round"
    assert losses[1] != losses[3]


class Nameless(FedAvg):
    name = 3  # type: ignore[assignment]


class Same(FedAvg):
    pass


class Copies(FedAvg):
    name = "copies"
    copies = "two"  # type: ignore[assignment]


class Owing(FedAvg):
    name = "owing"
    copies = -3


class Lacking(FedAvg):
    name = "lacking"

    def __init__(self, number: int) -> None:
        pass


class Leaving(FedAvg):
    name = "leaving"

    def __init__(self) -> None:
        sys.exit(3)


class Rounds(FedAvg):
    name = "rounds"
    dimensions = (Dimension("round", 1, 10, "int", scope="server"),)


def searching(name: str, scope: Any = "server") -> type[Algorithm]:
    """Return an algorithm with a dimension."""
    dimension = Dimension(name, 0.0, 0.9, "float", bins=3, scope=scope)
    return type("Searching", (FedAvg,), {"name": "searching", "dimensions": (dimension,)})


def late(**attributes: Any) -> type[Algorithm]:
    """Return an asynchronous algorithm with attributes of its own."""
    return type("Late", (FedBuff,), {"name": "late", **attributes})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (type("Alone", (FedAvg,), {"name": "alone", "asynchronous": True}), "subclasses of `Async"),
        (late(asynchronous=False), "subclasses of `Asynchronous` and of no others, got .*Late"),
        (late(from_current=None), "`from_current` of .*Late.* must be True or False"),
        (late(from_current=True, sends_updates=True), "'sends_updates' where `from_current` is T"),
        (late(poisson=True, keeps_copy=True), "must not have 'keeps_copy', 'poisson'"),
        (late(private=("staleness_exponent",)), "must not have 'private'"),
        (late(reports=lambda *_: {}, keeps_variates=True), "'keeps_variates', 'reports'"),
        (Algorithm, "that has `server_update`"),
        (Nameless, r"Nameless.*\.name` must be a string, got 3"),
        (Same, "must be none of this package, got 'fedavg'"),
        (Copies, r"Copies'>.copies` must be"),
        (Owing, r"Owing'>.copies` must be at least 0, got -3"),
        (Lacking, "made without arguments, got .*Lacking.*raised TypeError"),
        (Leaving, "made without arguments, got .*Leaving.*raised SystemExit"),
        (Rounds, r"other names than fidelities, got \['round'\]"),
        (searching("momentum"), r"got \['momentum'\]; rename them, as in 'server_momentum'"),
        (type("Sets", (FedAvg,), {"settings": {"rate_decay": Setting(1, 0.1, 1)}}), "local train"),
        (type("Odd", (FedAvg,), {"name": "a=b"}), "must have letters, digits"),
        (type("Up", (FedAvg,), {"name": ".."}), "must have letters, digits"),
    ],
)
def test_what_is_no_algorithm_is_refused(kind: type[Algorithm], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        register_algorithm(kind)
    assert "copies" not in ALGORITHMS


class Odd(FedAvg):
    """A server that returns something else."""

    name = "odd"
    returned: ClassVar[Callable[..., Any]]

    def server_update(self, parameters: Any, average: Any, state: Any, context: Any) -> Any:
        return type(self).returned(parameters, state)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda *_: None, "two mappings, got None"),
        (lambda _, state: ({}, state), "parameters with 'weight' of shape .* got None"),
        (lambda first, s: ({n: v[:1] for n, v in first.items()}, s), "with 'weight' of shape"),
    ],
)
def test_a_server_returns_what_it_was_given(
    returned: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "returned", staticmethod(returned), raising=False)
    monkeypatch.setitem(REGISTERED, "odd", Odd())  # for this test alone
    env = gym.make(ID, algorithm="odd", **SHORT)
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match=f"`server_update` of 'odd' must .*{words}"):
        env.step(env.action_space.sample())


@pytest.mark.parametrize("hook", ["broadcast", "upload"])
@pytest.mark.parametrize(
    "returned",
    [lambda _: None, lambda _: {}, lambda sent: {n: v[..., :1] for n, v in sent.items()}],
)
def test_what_travels_keeps_its_shapes(
    hook: str, returned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(_: Algorithm, sent: Any, __: object) -> Any:
        return returned(sent)

    kind = type("Cut", (FedAvg,), {"name": "cut", hook: changed})
    monkeypatch.setitem(REGISTERED, "cut", kind())
    env = gym.make(ID, algorithm="cut", **SHORT)
    env.reset(seed=0)
    with pytest.raises(
        InvalidArgumentError, match=f"`{hook}` of 'cut' must return parameters with"
    ):
        env.step(env.action_space.sample())


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=np.float32)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"pull": lambda *_: ones(1)}, r"`pull` .* with 'pull' of shape \(5,\), got \(1,\)"),
        ({"pull": lambda *_: 0.1}, r"`pull` .* with 'pull' of shape \(5,\), got 0.1"),
        ({"correction": lambda *_: {"weigth": ones(1)}}, "parameter of `correction` .*weigth"),
        ({"correction": lambda *_: {"weight": ones(1)}}, "`correction` .* with 'weight' of shape"),
        ({"init_state": lambda *_: {"m": 0.0}}, "`init_state` .* arrays with 'm' of shape"),
        ({"init_state": lambda *_: None}, "`init_state` .* a mapping of arrays, got None"),
        ({"reports": lambda *_: {"h": ones(3, 2)}}, r"`reports` .* shape \(3, 1\), got \(3, 2\)"),
        ({"reports": lambda *_: {"h": ones(3, 1)}}, r"`upload` .* 'h' of shape \(3, 5\), got None"),
        ({"keeps_variates": True}, "`upload` .* 'variate of weight' of shape"),
    ],
)
def test_hooks_return_one_number_for_every_item(
    hooks: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTERED, "cut", type("Cut", (FedAvg,), {"name": "cut", **hooks})())
    with pytest.raises(FedHPOError, match=words):
        step(gym.make(ID, algorithm="cut", **SHORT))


@pytest.mark.parametrize(
    ("hook", "words"),
    [("discount", r"shape \(\d+,\), got 0.5"), ("rate", r"shape \(1,\), got 0.5")],
)
def test_hooks_of_asynchronous_algorithms_return_one_number_for_every_item(
    hook: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTERED, "late", late(**{hook: lambda *_: 0.5})())
    with pytest.raises(FedHPOError, match=f"`{hook}` of 'late' must return .* {words}"):
        step(gym.make(ID, algorithm="late", **SHORT))


@pytest.mark.parametrize("name", ["mine:Missing", "mine:fit", "missing:FedDyn", "mine:"])
def test_a_wrong_name_is_one_line(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="`algorithm` must"):
        gym.make(ID, algorithm=name, **SHORT)


def test_a_name_is_of_one_class_which_may_be_defined_anew() -> None:
    first, again, other = (
        type(qualname, (FedAvg,), {"name": "one-of", "__qualname__": qualname})
        for qualname in ("First", "First", "Other")
    )
    register_algorithm(first)
    register_algorithm(again)
    assert type(ALGORITHMS["one-of"]) is again
    with pytest.raises(InvalidArgumentError, match="must be that of no other class, got 'one-of'"):
        register_algorithm(other)
    assert type(ALGORITHMS["one-of"]) is again


def test_a_dimension_of_the_clients_may_be_one_of_local_training() -> None:
    register_algorithm(searching("momentum", "client"))
    fidelity = {"round": 9, "client_sample_rate": 1.0}
    settings = {"backend": "raw", "fidelity": fidelity, "seed": 1}
    plain = gym.make(ID, settings={"momentum": 0.9}, **settings)
    searched = NamedAction(gym.make(ID, algorithm="searching", **settings))
    searched.reset(seed=0)
    configuration = step(plain)["configuration"]
    action = {n: v for n, v in configuration.items() if n in plain.unwrapped.search_space.names}
    info = searched.step({**action, "momentum": 0.9})[-1]
    assert info["objectives"]["val_loss"] == step(plain)["objectives"]["val_loss"]
    still = searched.step({**action, "momentum": 0.0})[-1]
    assert still["objectives"]["val_loss"] != info["objectives"]["val_loss"]


def test_it_is_exported() -> None:
    assert fedhpo_gym.register_algorithm is register_algorithm
