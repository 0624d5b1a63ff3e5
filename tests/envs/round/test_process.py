"""The process of round environments on courses that train nothing, and what actions set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.backends.base import Configuration, Courses, CourseSnapshot, Metrics, TrainingReport
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.envs.arguments import parse_arguments
from fedhpo_gym.envs.round.arguments import RoundArguments
from fedhpo_gym.envs.round.settings import Controls
from fedhpo_gym.evaluation.client_feedback import ClientFeedback
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.tasks import get_task, round_system, work_of

SAMPLES = np.array([[40, 5, 5], [100, 10, 10]])
"""Of two clients, in three splits."""


class Halving(Courses):
    """Two clients whose loss halves in every round, from 1 nat; only the first one trains."""

    def __init__(self, number: int) -> None:
        self.rounds = np.zeros(number, np.int64)
        self.on = np.zeros(number, np.int64)
        self.configured: list[Configuration] = []

    @property
    def num_samples(self) -> NDArray[np.int64]:
        return np.stack([SAMPLES + index for index in self.on])

    @property
    def most_samples(self) -> NDArray[np.int64]:
        return SAMPLES[:, 0] + 1

    def start(self, positions: Sequence[int], instances: Sequence[int]) -> None:
        self.rounds[positions], self.on[positions] = 0, instances

    def first_metrics(self, positions: Sequence[int]) -> Metrics:
        return self._metrics()[positions]

    def configure(
        self, configurations: Sequence[Configuration], client_sample_rates: Sequence[float]
    ) -> None:
        self.configured = list(configurations)

    def sampled(self, rounds: int) -> NDArray[np.bool_]:
        return np.tile([True, False], (len(self.rounds), 1))

    def advance(self, rounds: int) -> TrainingReport:
        self.rounds += rounds
        feedback = ClientFeedback.empty(len(self.rounds), rounds, 2)
        feedback.sampled[:] = [True, False]
        return TrainingReport(self._metrics(), self.rounds < 0, feedback)

    def snapshot(self, position: int) -> CourseSnapshot:
        return CourseSnapshot(int(self.on[position]), int(self.rounds[position]))

    def restore(self, position: int, snapshot: CourseSnapshot) -> None:
        assert isinstance(snapshot.state, int)
        self.on[position], self.rounds[position] = snapshot.instance, snapshot.state

    def _metrics(self) -> Metrics:
        metrics = np.full((len(self.rounds), 2, 3, 3), 0.5, np.float32)
        metrics[..., 0] = (0.5**self.rounds)[:, None, None]
        return metrics


def arguments(**changes: Any) -> RoundArguments:
    given = {
        "task": "LR-CreditG-v0", "rounds_per_step": 2, "horizon": 4,
        "instances": [[0.5, 1], [0.5, 2]], "time_price": 0.0,
    }  # fmt: skip
    return RoundArguments(**{**given, **changes})


def two_clients(**changes: Any) -> Any:
    """Return a process of two clients with one episode per instance, started."""
    made = arguments(**changes)
    task = made.variant.variant(num_clients=2)
    made.__dict__["variant"] = task  # the protocol is about any number of clients
    made.__dict__.pop("controls", None)
    process = made.process(Halving(2), 2)
    process.restart(np.array([0, 1]), [0, 1])
    return process


def test_rewards_of_halved_losses() -> None:
    process = two_clients()
    rewards = [process.step(np.zeros((2, 4), np.float32)) for _ in range(2)]
    for outcome in rewards:
        assert outcome.scalars.tolist() == pytest.approx([2 * math.log10(2)] * 2)
    assert [outcome.terminated.tolist() for outcome in rewards] == [[False] * 2, [True] * 2]
    assert process.episodes.best_step.tolist() == [2, 2]


def test_a_snapshot_is_gone_back_to() -> None:
    process = two_clients()
    process.step(np.zeros((2, 4), np.float32))
    snapshot = process.snapshot(0)
    assert (snapshot.course.instance, snapshot.course.state) == (0, 2)
    process.step(np.zeros((2, 4), np.float32))
    process.restore(1, snapshot)
    assert process.episodes.rounds.tolist() == [4, 2]
    assert process.episodes.instance.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("rule", "units"),
    # The middle of the space: 3 epochs and minibatches of 30. The first client has 40 samples on
    # the first instance, and 41 on the second.
    [("constant", (1, 1)), ("epochs", (3, 3)), ("steps", (6, 6)), ("samples", (120, 123))],
)
def test_a_step_is_charged_by_the_rule(rule: str, units: tuple[int, int]) -> None:
    process = two_clients(system={"compute": rule, "client_compute_mean_s": 2.0})
    process.step(np.zeros((2, 4), np.float32))
    configuration = process.episodes.configuration[0]
    assert (configuration["step_size"], configuration["batch_size"]) == (3, 30)
    found = [cost["computation_s"] for cost in process.episodes.cost]
    assert found == pytest.approx([2 * 2.0 * unit * 1.5 for unit in units])


def test_single_devices_are_charged_for_the_rounds_that_they_took() -> None:
    system = {"model": "devices", "devices": "alike", "compute": "steps", "client_compute_s": 2.0}
    process = two_clients(system={**system, "server_compute_s": 0.5})
    process.step(np.zeros((2, 4), np.float32))
    # Two rounds of the first client: 3 epochs of two minibatches, 2 s each, and the server.
    found = [cost["computation_s"] for cost in process.episodes.cost]
    assert found == pytest.approx([2 * (2.0 * 6 + 0.5)] * 2)


@pytest.mark.parametrize("chance", [{"bandwidth_variation": 0.5}, {"availability": "sine"}])
def test_rounds_of_a_course_differ(chance: dict[str, Any]) -> None:
    process = two_clients(system={"model": "devices", **chance}, budget_s=1e9)
    actions = np.zeros((2, 4), np.float32)
    found = []
    for _ in range(2):
        process.step(actions)
        found.append(process.episodes.cost[0]["time_s"])
    assert found[0] != found[1]


def test_a_round_costs_by_when_it_begins_and_by_its_course() -> None:
    system = {"model": "devices", "availability": "sine", "bandwidth_variation": 0.5}
    process = two_clients(system=system, budget_s=1e9)
    actions = np.zeros((2, 4), np.float32)
    process.step(actions)
    snapshot = process.snapshot(0)
    first = [cost["time_s"] for cost in process.episodes.cost]
    assert first[0] != first[1]  # other seeds
    process.step(actions)
    second = process.episodes.cost[0]["time_s"]
    assert second != first[0]
    process.restore(0, snapshot)
    process.step(actions)
    assert process.episodes.cost[0]["time_s"] == second
    again = two_clients(system=system, budget_s=1e9)
    again.step(actions)
    assert [cost["time_s"] for cost in again.episodes.cost] == first


@pytest.mark.parametrize("rule", ["constant", "epochs", "steps", "samples"])
def test_no_course_costs_more_than_the_default_budget(rule: str) -> None:
    process = two_clients(system={"compute": rule})
    ends = []
    for _ in range(2):  # many epochs of small minibatches
        outcome = process.step(np.array([[0, 0, -1, 1]] * 2, np.float32))
        ends.append(outcome.terminated.tolist())
    assert ends == [[False] * 2, [True] * 2]
    assert (process.episodes.elapsed_s <= process.settings.budget_s).all()


def test_messages_are_rewarded_as_shares_of_the_most_that_can_be_sent() -> None:
    system = {"upload_compression": 0.25, "download_compression": 0.5}
    process = two_clients(rewards=["download", "upload"], system=system)
    for _ in range(2):  # two of four rounds each
        found = process.step(np.zeros((2, 4), np.float32)).vectors
        assert found.tolist() == [[pytest.approx(-0.5)] * 2] * 2


def test_the_true_loss_of_the_best_step_is_that_of_its_step() -> None:
    process = two_clients(noise={"epsilon": 0.5})
    seen = set()
    for key in range(12):
        process.restart(np.array([0, 1]), [0, 1], np.array([key, 100 + key]))
        for _ in range(2):
            process.step(np.zeros((2, 4), np.float32))
        steps = process.episodes.best_step
        seen |= set(steps.tolist())
        assert process.episodes.best_true_loss.tolist() == pytest.approx((0.25**steps).tolist())
    assert seen == {1, 2}


@pytest.mark.slow
def test_a_record_of_arguments_needs_no_compiler(run_python: Any) -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import fedhpo_gym, gymnasium as gym\n"
        "from fedhpo_gym.envs.round.arguments import RoundArguments\n"
        "print(RoundArguments(task='LR-BreastCancer').controls.space.names)\n"
        "for make in (gym.make, gym.make_vec):\n"
        "    try: make('FedHPO-DAC-LR-BreastCancer-v0')\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    first, *refusals = run_python(code).splitlines()
    assert "learning_rate" in first
    assert len(refusals) == 2
    for refusal in refusals:
        assert refusal.startswith("MissingDependencyError")
        assert "checkout" in refusal
        assert "pip install '.[compiled]'" in refusal
        assert "fedhpo_gym[" not in refusal


@pytest.mark.slow
def test_small_models_need_no_torch(run_python: Any) -> None:
    code = (
        "import importlib.abc, sys\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import fedhpo_gym, gymnasium as gym\n"
        "env = gym.make('FedHPO-DAC-LR-BreastCancer-v0')\n"
        "env.reset(seed=0)\n"
        "print(env.step(env.action_space.sample())[1], 'torch' in sys.modules)\n"
    )
    reward, loaded = run_python(code).split()
    assert math.isfinite(float(reward))
    assert loaded == "False"


def test_every_argument_is_documented() -> None:
    assert RoundArguments.__doc__ is not None
    for field in fields(RoundArguments):
        assert f"        {field.name}: " in RoundArguments.__doc__


def test_names_are_suggested() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'rounds_per_steps'.*'rounds_per_step'"):
        parse_arguments(RoundArguments, {"task": "LR-CreditG", "rounds_per_steps": 2})
    with pytest.raises(InvalidArgumentError, match=r"'render_mod'.*'render_mode'"):
        parse_arguments(RoundArguments, {"render_mod": None}, ["render_mode"])
    with pytest.raises(InvalidArgumentError, match="`task` must name"):
        parse_arguments(RoundArguments, {})
    with pytest.raises(UnknownNameError, match="CreditF"):
        parse_arguments(RoundArguments, {"task": "LR-CreditF"})


HETERO = get_task("Hetero-GraphDC")
HETERO = HETERO.variant(system=round_system(HETERO))
ROWS = np.linspace(-0.9, 0.9, 10, dtype=np.float32).reshape(5, 2)


def test_rows_of_clients_and_the_product_of_their_spaces_are_the_same_problem() -> None:
    whole, rows = Controls(HETERO), Controls(HETERO, per_client=True)
    assert whole.action_space.shape == (10,)
    assert rows.action_space.shape == (5, 2)
    assert rows.space.names == ("learning_rate", "step_size")
    named, by_row = whole.decode(ROWS.ravel()), rows.decode(ROWS)
    assert named.items() <= by_row.items()
    assert set(by_row) - set(named) == {"learning_rate", "step_size"}


@pytest.mark.parametrize("per_client", [False, True])
def test_the_slowest_sampled_client_is_charged(per_client: bool) -> None:
    controls = Controls(HETERO, per_client=per_client)
    actions = np.full((5, 2), -1.0, np.float32)
    actions[3, 1] = 1.0  # four epochs
    configuration = controls.decode(actions.reshape(controls.action_space.shape))
    everybody = np.ones(5, np.bool_)
    without = everybody.copy()
    without[3] = False
    rate = float(configuration["client_sample_rate"])
    slow, fast = (
        HETERO.system.cost(work_of(HETERO, configuration, 1, rate, sampled)).computation_s
        for sampled in (everybody, without)
    )
    assert slow == pytest.approx(4 * fast)
    assert HETERO.system.cost(controls.largest_work(1)).computation_s == pytest.approx(slow)


def test_clients_of_different_kinds_have_no_rows() -> None:
    first, *others = HETERO.client_space.dimensions
    wider = SearchSpace((replace(first, high=0.5), *others))
    with pytest.raises(InvalidArgumentError, match=r"`per_client`.*'learning_rate' of client 1"):
        Controls(HETERO.variant(client_space=wider), per_client=True)


def test_what_is_not_active_has_no_value_and_costs_nothing() -> None:
    task = get_task("Joint-ExamLondon").variant(system=HETERO.system)
    for model, shape in (("lr", ()), ("mlp", ("model_depth", "model_width"))):
        controls = Controls(task, configuration={"model": model})
        free = {d.name for d in controls.space.dimensions}
        assert free == set(task.space.names) - set(task.architecture)
        seen = set()
        for action in np.random.default_rng(0).uniform(-1, 1, (20, len(free))):
            found = controls.decode(action.astype(np.float32))
            rate = float(found.pop("client_sample_rate"))
            assert task.space.validate(found) == found
            assert tuple(name for name in found if name in task.architecture[1:]) == shape
            work = work_of(task, found, 1, rate, np.ones(64, np.bool_))
            assert work.num_parameters == task.parameters_of(found)
            seen.add(found["server_optimizer"])
        assert seen == {"none", "sgd", "adam", "yogi"}


@pytest.mark.raw
def test_both_forms_train_the_same_course(
    shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("torch", "rdkit", "scipy"):
        pytest.importorskip(library)
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    arguments: dict[str, Any] = {
        "instances": [[0.5, 100]], "rounds_per_step": 1, "horizon": 2, "client_sample_rate": 0.4
    }  # fmt: skip
    ends = []
    for per_client, action in ((False, ROWS.ravel()), (True, ROWS)):
        env = gym.make(HETERO.round_id, per_client=per_client, **arguments)
        env.reset(seed=0)
        for _ in range(2):
            _, reward, *_, info = env.step(action)
        ends.append((reward, info["test"], info["cost"], info["elapsed_s"]))
    assert ends[0] == ends[1]
