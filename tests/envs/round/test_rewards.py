"""Entries of reward vectors by hand, and evaluations between rounds that are noisy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Evaluation
from fedhpo_gym.objectives import Objective
from fedhpo_gym.records.files import read_record
from fedhpo_gym.studies.plan import RunPlan
from fedhpo_gym.studies.replay import replay
from fedhpo_gym.studies.run import do_run
from fedhpo_gym.testing.rollout import plain

pytestmark = pytest.mark.raw
ID = "MO-FedHPO-DAC-LR-BreastCancer-v1"
SHORT: dict[str, Any] = {"instances": [[0.7, 100]], "rounds_per_step": 1, "horizon": 3}
POWERED = {
    "model": "devices",
    "devices": "alike",
    "client_compute_s": 0.5,
    "client_compute_w": 2.0,
    "upload_j_per_byte": 1e-3,
}
COSTS = ("upload", "download", "flops", "energy")


def loss_of(evaluation: Evaluation) -> float:
    return evaluation.mean("val", "loss")


def heard_of(evaluation: Evaluation) -> float:
    return float((evaluation.num_samples[0, :, 1] > 0).sum())


BOUNDS = {"unit": "nats", "minimize": True, "bounds": (0.0, 10.0)}
LOSS = Objective.of(loss_of, name="own_loss", **BOUNDS)
HEARD = Objective.of(heard_of, name="heard", unit="1", minimize=False, bounds=(0.0, 9.0))


def play(steps: int = 3, **arguments: Any) -> tuple[Any, list[Any]]:
    env: Any = gym.make(ID, disable_env_checker=True, **{**SHORT, **arguments})
    env.reset(seed=0)
    env.action_space.seed(0)
    return env, [env.step(env.action_space.sample()) for _ in range(steps)]


def test_costs_by_hand() -> None:
    rate = {"dynamic": ["learning_rate", "step_size"], "client_sample_rate": 0.6}
    env, steps = play(rewards=COSTS, system=POWERED, **rate)
    task, process = env.unwrapped.process.task, env.unwrapped.process
    size, most = 4 * task.num_parameters, task.space["step_size"].high
    samples = np.sort(process.courses.most_samples)
    for _, reward, *_, info in steps:
        epochs = info["configuration"]["step_size"]
        read = epochs * sum(info["num_train_samples"])
        wanted = [
            -1 / 3,
            -1 / 3,
            -read / (3 * most * samples[-3:].sum()),
            -(epochs * 0.5 * 2.0 + size * 1e-3) / (3 * (most * 0.5 * 2.0 + size * 1e-3)),
        ]
        assert reward.tolist() == pytest.approx(wanted, rel=1e-6)
        assert info["cost"]["upload_bytes"] == 3 * size
    assert env.unwrapped.reward_space.low.tolist() == [-1.0] * 4


def test_objectives_are_read_off_the_model_as_it_is() -> None:
    names = [LOSS, "fairness_p10", "improvement", "fairness"]
    env, steps = play(rewards=[*names, "fairness_std"], potential="loss")
    before = None
    for _, reward, *_, info in steps:
        values = info["objectives"]
        assert values["own_loss"] == pytest.approx(info["val_loss"], rel=1e-6)
        assert reward[0] == pytest.approx(reward[2], abs=1e-6)
        if before is not None:
            assert reward[0] == pytest.approx(before["own_loss"] - values["own_loss"], abs=1e-6)
            risen = values["fairness_p10"] - before["fairness_p10"]
            assert reward[1] == pytest.approx(risen, abs=1e-6)
            fallen = before["fairness_std"] - values["fairness_std"]
            assert reward[3:].tolist() == pytest.approx([fallen] * 2, abs=1e-6)
            assert abs(fallen) > 1e-3
        before = values
    assert env.unwrapped.reward_space.high[:3].tolist() == [10.0, 1.0, 10.0]


def test_an_objective_hears_what_the_server_hears() -> None:
    _, steps = play(rewards=[HEARD, LOSS], noise={"clients": 0.4})
    for *_, info in steps:
        assert (info["objectives"]["heard"], info["truth"]["objectives"]["heard"]) == (2.0, 5.0)
        assert info["objectives"]["own_loss"] == pytest.approx(info["val_loss"], rel=1e-6)
        truth = info["truth"]["objectives"]
        assert truth["own_loss"] == pytest.approx(truth["val_loss"], rel=1e-6)
    private = {"epsilon": 30.0}
    with pytest.raises(InvalidArgumentError, match="state the `sensitivity`"):
        play(rewards=[LOSS], noise=private)
    stated = Objective.of(loss_of, name="own_loss", **BOUNDS, sensitivity=lambda n: 10.0 / n)
    _, steps = play(rewards=[stated], noise=private)
    truths = [info["truth"]["objectives"]["own_loss"] for *_, info in steps]
    assert [info["objectives"]["own_loss"] for *_, info in steps] != truths


def test_where_a_course_diverges_they_are_the_worst() -> None:
    given = {"preprocessing": "label_encoded", "dynamic": ["learning_rate"]}
    env: Any = gym.make(ID, disable_env_checker=True, rewards=[LOSS], **{**SHORT, **given})
    env.reset(seed=0)
    env.unwrapped.process.episodes.diverged[:] = True
    process = env.unwrapped.process
    measurement = process._evaluate(process.courses.first_metrics([0]), np.array([0]))
    assert measurement.measured.tolist() == [[10.0]]


def test_a_record_replays_with_the_function(tmp_path: Path) -> None:
    plan = RunPlan(ID, {**SHORT, "rewards": ["improvement", LOSS]}, "random", 0)
    assert do_run(plan, tmp_path, lambda _: None, lambda _: None)
    [path] = tmp_path.rglob("*.jsonl")
    record = read_record(path)
    assert "own_loss" in record.steps[0].objectives
    with pytest.raises(InvalidArgumentError, match=r"'own_loss'.*cannot be replayed without it"):
        replay(record)
    assert replay(record, {"own_loss": LOSS}) is None


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"rewards": ["joy"]}, UnknownNameError, "Unknown reward 'joy'"),
        ({"rewards": ["time_s"]}, UnknownNameError, "Unknown reward 'time_s'"),
        ({"rewards": ["time", "time"]}, InvalidArgumentError, "different names"),
        ({"rewards": [LOSS, LOSS]}, InvalidArgumentError, "different names"),
        ({"rewards": ["energy"]}, InvalidArgumentError, "energy is known where devices have a pow"),
        ({"rewards": ["flops"], "algorithm": "fedasync"}, InvalidArgumentError, "asynchronous"),
        (
            {"rewards": [Objective.of(loss_of, name="time", **BOUNDS)]},
            InvalidArgumentError,
            "a new name, got 'time'",
        ),
        (
            {"rewards": ["energy"], "algorithm": "fedasync", "system": POWERED},
            InvalidArgumentError,
            "synchronous rounds only",
        ),
        (
            {"rewards": ["val_loss"], "noise": {"iid": 0.5}, "potential": "accuracy"},
            InvalidArgumentError,
            "'val_loss' would not be known",
        ),
    ],
    ids=lambda value: str(value)[:50],  # no address of a function: they differ between processes
)
def test_what_no_reward_can_be_is_refused(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        gym.make(ID, **{**SHORT, **arguments})


SCALAR_ID = "FedHPO-DAC-LR-BreastCancer-v0"


def single(seed: int, **arguments: Any) -> list[Any]:
    env = gym.make(SCALAR_ID, disable_env_checker=True, **{**SHORT, **arguments})
    seen, _ = env.reset(seed=seed)
    found = [plain(dict(sorted(seen.items())))]
    env.action_space.seed(0)
    for _ in range(3):
        seen, reward, over, _, info = env.step(env.action_space.sample())
        found.append([plain(dict(sorted(seen.items()))), plain(reward), over, info])
    return found


def test_no_noise_is_the_environment_without_it() -> None:
    plainly, quietly = single(0), single(0, noise={"bias": 2.0, "epsilon": math.inf})
    assert quietly[0] == plainly[0]
    for one, other in zip(plainly[1:], quietly[1:], strict=True):
        truth = other[3].pop("truth")
        assert plain(other) == plain(one)
        assert truth["objectives"] == one[3]["objectives"]


def test_a_private_loss_is_that_of_the_formula() -> None:
    """All five clients, one number for each of four evaluations of an epsilon of 60."""
    _, *steps = single(9, noise={"epsilon": 60.0})
    truth = gym.make(SCALAR_ID, disable_env_checker=True, **SHORT)
    truth.reset(seed=9)
    key = int(stream(9, "evaluation_noise").integers(2**32))
    truth.action_space.seed(0)
    for number, (_, _, _, info) in enumerate(steps, start=1):
        truth.step(truth.action_space.sample())
        courses = truth.unwrapped.process.courses  # type: ignore[attr-defined]
        losses = courses._batch.evaluate()[0][:, 1, 0].astype(np.float64)
        added = stream(key, "evaluation_noise", number).laplace(size=(1, 1))[0, 0]
        heard = np.clip(losses, 0.0, 10.0).mean() + added * (10.0 / 5) * 4 / 60.0
        assert info["val_loss"] == pytest.approx(min(max(heard, 0.0), 10.0), abs=1e-6)
        assert info["val_accuracy"] == 0.0


def test_what_clients_do_not_report_is_refused() -> None:
    for arguments, why in (
        ({"noise": {"iid": 0.5}}, "potential='accuracy'"),
        ({"noise": {"epsilon": 1.0}, "per_client": True}, "single clients"),
        ({"noise": {"epsilon": 1.0, "evaluations": 3}}, "horizon"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            gym.make(SCALAR_ID, **{**SHORT, **arguments})
