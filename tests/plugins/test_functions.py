"""A function of one's own answers as any backend, and so does a simulation of Flower behind it."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fake_study import make_record
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.analysis import RunRecord, group, write_record
from fedhpo_gym.analysis.comparison import compare_agents
from fedhpo_gym.backends import make_backend
from fedhpo_gym.backends.function import FunctionBackend
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.records.files import read_judged
from fedhpo_gym.records.incumbents import Study
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.studies.environments import remake_environment
from fedhpo_gym.studies.replay import replay
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing import BackendConformance

SPACE = SearchSpace(
    (
        Dimension("learning_rate", 1e-3, 1.0, "float", log=True),
        Dimension.of_categories("optimizer", ("sgd", "adam")),
        Dimension("momentum", 0.0, 0.9, "float", active=("optimizer", ("sgd",))),
    )
)
ROUNDS = (2, 5, 10)


def bowl(configuration: Mapping[str, Any], fidelity: Mapping[str, Any], seed: int) -> Any:
    """Three clients, of which the last is the worst; a large learning rate diverges."""
    rate = math.log10(configuration["learning_rate"])
    loss = (rate + 2) ** 2 + configuration.get("momentum", 0.5) + 1 / fidelity["round"] + seed / 100
    losses = loss + 0.1 * np.arange(3)
    return {
        "val_loss": losses if configuration["learning_rate"] < 0.9 else math.nan,
        "val_accuracy": np.exp(-losses),
    }


def register(**options: Any) -> str:
    usual = {
        "rounds": ROUNDS,
        "clients": 3,
        "by_client": True,
        "told": ["val_loss", "val_accuracy"],
    }
    return fedhpo_gym.register_function("Flower-Bowl", bowl, SPACE, **{**usual, **options})


class TestFunctionBackend(BackendConformance):
    rounds = ROUNDS

    def make(self) -> FunctionBackend:
        register(seeds=(1, 2))
        found = make_backend("function", get_task("Flower-Bowl"))
        assert isinstance(found, FunctionBackend)
        return found


def test_its_numbers_are_those_of_the_function_and_what_it_lacks_is_refused() -> None:
    assert register() == "FedHPO-Flower-Bowl-v1"
    assert "FedHPO-DAC-Flower-Bowl-v1" not in gym.registry
    fidelity = {"round": 10, "client_sample_rate": 1.0}
    env = gym.make(
        "FedHPO-Flower-Bowl-v1", objectives=["val_loss", "fairness_std"], fidelity=fidelity
    )
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(20):
        info = env.step(env.action_space.sample())[-1]
        told = bowl(info["configuration"], fidelity, 1)
        if math.isnan(np.sum(told["val_loss"])):
            assert info["diverged"]
            continue
        assert info["objectives"]["val_loss"] == pytest.approx(np.mean(told["val_loss"]))
        assert info["objectives"]["fairness_std"] == pytest.approx(np.std(told["val_accuracy"]))
    with pytest.raises(InvalidArgumentError, match="does not return val_f1"):
        gym.make("FedHPO-Flower-Bowl-v1", objectives=["val_loss", "val_f1"])
    register(by_client=False)
    with pytest.raises(InvalidArgumentError, match="returns no metrics of clients"):
        gym.make("FedHPO-Flower-Bowl-v1", objectives=["val_loss", "fairness_std"])


def test_agents_and_commands_tune_it(capsys: pytest.CaptureFixture[str]) -> None:
    register()
    env = gym.make("FedHPO-Flower-Bowl-v1", budget_trials=12)
    steps = [*run_episode(env, make_agent("random", env, 0), 0)]
    assert len(steps) == 12
    for line in (["list", "Flower-Bowl"], ["show", "FedHPO-Flower-Bowl-v1"]):
        assert main(line) == 0
    assert "function" in capsys.readouterr().out
    vector = gym.make_vec("FedHPO-Flower-Bowl-v1", num_envs=2, budget_trials=3)
    vector.reset(seed=0)
    assert np.isfinite(vector.step(vector.action_space.sample())[1]).all()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_metric_that_is_not_told_is_no_result(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    if kind == "parquet":
        pytest.importorskip("pyarrow")

    def told(configuration: Any, fidelity: Any) -> Any:
        del fidelity
        return {"val_loss": configuration["learning_rate"], "test_accuracy": 0.75}

    names = ["val_loss", "test_accuracy"]
    env_id = fedhpo_gym.register_function("Flower-Told", told, SPACE, rounds=[1], told=names)
    out, page = tmp_path / "runs", tmp_path / "report.html"
    for agent, seed in itertools.product(("random", "cma-es"), (0, 1)):
        record = make_record(env_id, seed, agent, backend="function", budget_trials=3)
        assert all(step.test == {"accuracy": 0.75} for step in record.steps)
        write_record(out / f"{agent}-{seed}.{kind}", record)
    frame = fedhpo_gym.load_runs(out)
    assert frame["test.loss"].isna().all()
    assert (frame["test.accuracy"] == 0.75).all()
    capsys.readouterr()
    assert main(["replay", str(out)]) == 0
    assert "DIFFERENT" not in capsys.readouterr().out
    found = group((path, read_judged(path)) for path in out.rglob(f"*.{kind}"))
    lines = [run.trajectory for run in found[0].all_runs()]
    assert [line.test for line in lines] == [None] * 4
    assert compare_agents(*Study.whole(lines)).numbers["random"].overtuning is None
    assert main(["report", str(out), "--out", str(page)]) == 0
    words = page.read_text(encoding="utf-8")
    assert "test loss unknown, test accuracy 0.7500" in words
    assert "10.0000" not in words


@pytest.mark.parametrize("loss", [0.5, 0.0, math.nan])
def test_runs_that_are_all_alike_have_a_page(loss: float, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    env_id = fedhpo_gym.register_function(
        "Flower-Level", lambda _configuration, _fidelity: {"val_loss": loss}, SPACE, rounds=[1]
    )
    for agent, seed in itertools.product(("random", "de"), (0, 1)):
        record = make_record(env_id, seed, agent, backend="function", budget_trials=3)
        write_record(tmp_path / f"{agent}-{seed}.jsonl", record)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "report.html")]) == 0


def test_an_older_record_of_a_metric_that_is_not_told_replays() -> None:
    """It holds the worst there is in its place."""
    record = make_record(register(), budget_trials=2)
    assert [one.test for one in record.steps] == [{}, {}]
    worst = {"loss": 10.0, "accuracy": 0.0, "f1": 0.0}
    older = tuple(replace(one, test=worst) for one in record.steps)
    assert replay(RunRecord(record.header, older)) is None
    measured = tuple(replace(one, test={**worst, "loss": 0.5}) for one in record.steps)
    difference = replay(RunRecord(record.header, measured))
    assert str(difference) == "step 1: test.loss: recorded 0.5, replayed 'nothing'"


def test_info_of_one_and_of_many_says_nan_of_what_is_not_told() -> None:
    env_id = register()
    env, vector = gym.make(env_id), gym.make_vec(env_id, num_envs=2, info_keys=["test"])
    env.reset(seed=0)
    vector.reset(seed=0)
    assert env.step(env.action_space.sample())[-1]["test"] == {}
    test = vector.step(vector.action_space.sample())[-1]["test"]
    assert all(np.isnan(test[name]).all() for name in ("loss", "accuracy", "f1"))


def test_a_configspace_is_a_space_conditions_included() -> None:
    cs = pytest.importorskip("ConfigSpace")
    space = cs.ConfigurationSpace()
    space.add(
        cs.Float("learning_rate", (1e-3, 1.0), log=True),
        cs.Categorical("optimizer", ["sgd", "adam"]),
        cs.Float("momentum", (0.0, 0.9)),
    )
    space.add(cs.EqualsCondition(space["momentum"], space["optimizer"], "sgd"))
    fedhpo_gym.register_function("Flower-Bowl", bowl, space, rounds=[1], told=["val_loss"])
    assert get_task("Flower-Bowl").space["momentum"].active == ("optimizer", ("sgd",))


@pytest.mark.parametrize(
    ("options", "answer", "words"),
    [
        ({"clients": -3}, None, "`clients` must be"),
        ({"seeds": [1, 1]}, None, r"`seeds` must be different numbers, at least one, got \[1, 1\]"),
        ({"rounds": [0, 1]}, None, r"`rounds` must be in \[1, 65535\], got \[0, 1\]"),
        ({"told": ["val_loss"]}, -0.5, r"must return 'val_loss' in \[0, inf\], got"),
        (
            {"told": ["val_loss", "val_accuracy"]},
            {"val_loss": 1.0, "val_accuracy": 7.0},
            r"must return 'val_accuracy' in \[0, 1.0\]",
        ),
        ({"told": ["loss"]}, None, "Unknown metric 'loss'"),
        ({"told": ["val_f1"]}, None, "`told` must hold 'val_loss'"),
        ({"told": ["val_loss"]}, {"val_f1": 1.0}, r"must return \['val_loss'\].*got \['val_f1'\]"),
        ({"told": ["val_loss"]}, [1.0, 2.0], r"one of each of 3 clients, got the shape \(2,\)"),
        ({"told": ["val_loss"]}, "low", "`val_loss` must be an array of real numbers"),
    ],
)
def test_a_wrong_function_is_refused_by_name(options: Any, answer: Any, words: str) -> None:
    def wrong(configuration: Any, fidelity: Any) -> Any:
        del configuration, fidelity
        return answer

    with pytest.raises(ValueError, match=words):  # noqa: PT012 - of both steps
        try:
            env_id = fedhpo_gym.register_function(
                "Flower-Bowl", wrong, SPACE, **{"rounds": [1], "clients": 3, **options}
            )
            env = gym.make(env_id)
            env.reset(seed=0)
            env.step(env.action_space.sample())
        except LookupError as error:
            raise ValueError(str(error)) from error
    with pytest.raises(InvalidArgumentError, match="two words with '-' between"):
        fedhpo_gym.register_function("Flower", wrong, SPACE, rounds=[1])
    with pytest.raises(InvalidArgumentError, match="must not be 'function' for LR-CreditG"):
        gym.make("FedHPO-LR-CreditG-v1", backend="function")


def test_a_strategy_of_flower_is_tuned_and_averages_as_we_do() -> None:
    """Without momentum of the server, its rounds are those of a plain loop."""
    pytest.importorskip("flwr", reason="flwr is not installed; it needs an environment of its own")
    path = Path(__file__).parents[2] / "examples" / "flower_strategy.py"
    spec = importlib.util.spec_from_file_location("flower_strategy", path)
    assert spec is not None
    assert spec.loader is not None
    flower = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(flower)
    configuration = {"learning_rate": 0.5, "server_momentum": 0.0}
    found = flower.simulate(configuration, {"round": 10})["val_loss"]
    clients = [flower.Client(number, 0.5) for number in range(flower.CLIENTS)]
    weights, losses = np.zeros(flower.WIDTH), []
    for _ in range(10):
        weights = np.mean([one.fit([weights], {})[0][0] for one in clients], axis=0)
        losses.append(np.mean([one.evaluate([weights], {})[0] for one in clients]))
    assert found == pytest.approx(min(losses), rel=1e-12)
    env = gym.make(flower.ID, budget_trials=2)
    env.reset(seed=0)
    assert math.isfinite(env.step(env.action_space.sample())[1])


def test_an_id_of_this_package_is_never_taken_and_another_source_is_another_fingerprint() -> None:
    for name in ("DAC-LR-BreastCancer", "Generated-LR", "B-Joint"):
        with pytest.raises(InvalidArgumentError, match="must not begin with one of"):
            fedhpo_gym.register_function(name, bowl, SPACE, rounds=[1])
    register()
    first = make_backend("function", get_task("Flower-Bowl")).fingerprint

    def other(configuration: Any, fidelity: Any) -> float:
        del configuration, fidelity
        return 1.0

    fedhpo_gym.register_function("Flower-Bowl", other, SPACE, rounds=[*ROUNDS])
    assert make_backend("function", get_task("Flower-Bowl")).fingerprint != first
    for options, words in (
        ({"rounds": []}, "must not be empty"),
        ({"rounds": [1], "round": [1]}, "no argument"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            fedhpo_gym.register_function("Flower-Other", bowl, SPACE, **options)


def test_a_record_of_an_id_that_no_module_registered_says_how_to_name_the_module() -> None:
    with pytest.raises(UnknownNameError, match=r"`fedhpo-gym replay --plugins MODULE`"):
        remake_environment("FedHPO-Nobodys-Bowl-v1", {})
