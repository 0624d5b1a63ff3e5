"""What a trial costs: by the model its configuration shapes, and by what was paid for before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.trial.ledger import Ledger, charge, times_s
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.systems import CROSS_DEVICE, CROSS_SILO, DeviceModel, System, SystemModel, Work
from fedhpo_gym.systems.base import Compute
from fedhpo_gym.systems.model import Mode, RecordedModel
from fedhpo_gym.tasks import Task, get_task

TASK = get_task("MLP-CreditG")
LINEAR = get_task("LR-CreditG")


def configuration(depth: int, width: int) -> dict[str, Value]:
    first = {dimension.name: dimension.grid[0] for dimension in TASK.space.dimensions}
    return {**first, "model_depth": depth, "model_width": width}


@pytest.mark.parametrize(
    ("depth", "width", "parameters"),
    [(1, 16, 23 * 16 + 34), (2, 16, 23 * 16 + 19 * 16 + 34), (3, 1024, 2_128_898)],
)
def test_a_model_is_charged_by_its_size(depth: int, width: int, parameters: int) -> None:
    assert TASK.parameters_of(configuration(depth, width)) == parameters
    cost = charge(TASK, configuration(depth, width), 2, 1.0)
    assert cost.upload_bytes == 2 * 5 * 4 * parameters
    assert cost == TASK.system.cost(Work.of_course(parameters, 5, Fidelity(2, 1.0)))


ASKED, OWED = (100, 200, 56, 500, 500, 501), (100, 100, 0, 300, 0, 1)


def pay(ledger: Ledger, where: Sequence[int], courses: Sequence[int], rounds: int) -> list[int]:
    asked = np.full(len(where), rounds)
    owed: list[int] = ledger.pay(np.array(where), np.array(courses), asked).tolist()
    return owed


def test_the_most_rounds_paid_for_count_and_not_the_last() -> None:
    ledger = Ledger(1)
    assert tuple(pay(ledger, [0], [3], asked)[0] for asked in ASKED) == OWED


def test_another_course_or_environment_is_an_account_of_its_own() -> None:
    ledger = Ledger(2)
    assert [pay(ledger, [0], [course], 100) for course in (0, 5, 2, 0)] == [[100]] * 3 + [[0]]
    assert pay(ledger, [1, 0], [0, 2], 100) == [100, 0]
    ledger.restart(np.array([0]))
    assert pay(ledger, [0, 1], [0, 0], 100) == [100, 0]


@pytest.mark.parametrize("backend", ["tabular", "surrogate"])
@pytest.mark.parametrize("compute", ["constant", "epochs"])
@pytest.mark.parametrize("fidelity", [None, {"client_sample_rate": 1.0}])
def test_with_freeze_thaw_what_is_owed_is_charged(
    backend: str, compute: str, fidelity: Any
) -> None:
    """Few configurations, so that most trials go on with a course: cells or actions alike."""
    given = {"system": {"compute": compute}, "fidelity": fidelity, "budget_trials": 99}
    env: Any = gym.make("FedHPO-LR-CreditG-v1", backend=backend, freeze_thaw=True, **given)
    paid: dict[Any, int] = {}
    env.reset(seed=0)
    rng, size, owed = np.random.default_rng(0), env.action_space.shape[0], []
    for _ in range(40):
        action = rng.choice([-0.9, 0.9], size).astype(np.float32)
        action[:3], action[4] = 0.0, rng.uniform(-1, 1)  # two configurations, any rounds
        info = env.step(action)[4]
        rounds, rate = info["fidelity"].values()
        course = (*info["configuration"].values(), rate)
        owed.append(max(rounds - paid.get(course, 0), 0))
        paid[course] = max(rounds, paid.get(course, 0))
        expected = charge(env.unwrapped.task, info["configuration"], owed[-1], rate)
        assert info["cost"] == vars(expected)
    assert 0 in owed
    assert len(set(owed)) > 5


@pytest.mark.parametrize("grid", [{}, {"grid": True, "freeze_thaw": True}], ids=str)
def test_trials_are_charged_their_epochs_on_request(grid: dict[str, Any]) -> None:
    """Eq. 1: 5 clients, H_5 = 137/60, c = 1 s per epoch; in both forms."""
    arguments: dict[str, Any] = {
        "system": {"compute": "epochs"},
        "fidelity": {"round": 100, "client_sample_rate": 1.0},
        **grid,
    }
    env = gym.make("FedHPO-LR-CreditG-v0", **arguments)
    many = gym.make_vec("FedHPO-LR-CreditG-v0", num_envs=2, **arguments)
    env.reset(seed=0)
    many.reset(seed=0)
    actions = np.array([[0, 0, 0, -1], [0, 0, 0, 1]], np.float32)
    times = many.step(actions)[4]["cost"]["time_s"]
    communication = 100 * 6 * 4 * LINEAR.num_parameters / (0.25 * 2**20)
    for action, epochs, time in zip(actions, (1, 4), times.tolist(), strict=True):
        info = env.step(action)[4]
        assert info["configuration"]["step_size"] == epochs
        assert info["cost"]["time_s"] == time
        assert time == pytest.approx(100 * epochs * 137 / 60 + communication)


@pytest.mark.parametrize("rule", ["steps", "samples"])
def test_trials_refuse_rules_that_count_samples(rule: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`system\['compute'\]`.*FedHPO-DAC"):
        gym.make("FedHPO-LR-CreditG-v0", system={"compute": rule})


@pytest.mark.parametrize(
    "task",
    [
        get_task("LR-CreditG-v0"),
        get_task("MLP-Car-v0"),
        get_task("LR-Twitter-v0"),
        get_task("LR-CreditG-v0").variant(system=replace(CROSS_SILO, compute="epochs")),
        get_task("CNN-FEMNIST-v0").variant(system=replace(CROSS_DEVICE, max_connections=3)),
        get_task("LR-CreditG-v0").variant(algorithm="fedbuff"),
        get_task("MLP-Car-v0").variant(algorithm="fedbuff", system=DeviceModel(compute="epochs")),
    ],
    ids=lambda task: f"{task.name}-{task.algorithm}-{task.system.compute}",
)
def test_many_trials_cost_what_each_costs(task: Task) -> None:
    assert_many_cost_what_each_costs(task)


def assert_many_cost_what_each_costs(task: Task, seed: int = 0, number: int = 50) -> None:
    rng = np.random.default_rng(seed)
    queries = [{**task.space.sample(rng), **task.fidelity_space.sample(rng)} for _ in range(number)]
    columns = {name: np.array([query[name] for query in queries]) for name in queries[0]}
    each = [charge(task, q, q["round"], q["client_sample_rate"]).time_s for q in queries]  # type: ignore[arg-type]
    assert times_s(task, columns).tolist() == each


NAMES = ("LR-CreditG-v0", "MLP-Car-v0", "LR-Twitter-v0")
SHARES = st.sampled_from([0.1, 0.5, 1.0])
SHARED = {
    "compute": st.sampled_from(get_args(Compute)),
    "samples_per_client": st.integers(1, 300),
    "server_compute_s": st.floats(0, 9),
    "upload_compression": SHARES,
    "download_compression": SHARES,
}
CLOCKS = st.one_of(
    st.builds(
        SystemModel,
        mode=st.sampled_from(get_args(Mode)),
        max_connections=st.integers(1, 70_000),
        server_download_bytes_per_s=st.floats(1.0, 1e9),
        **SHARED,
    ),
    st.builds(
        DeviceModel,
        devices=st.sampled_from(["lognormal", "flash", "alike"]),
        availability=st.sampled_from(["always", "sine"]),
        over_selection=SHARES,
        dropout=st.sampled_from([0.0, 0.3]),
        deadline_s=st.sampled_from([0.0, 20.0]),
        seed=st.integers(0, 3),
        **SHARED,
    ),
)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(system=CLOCKS, name=st.sampled_from(NAMES), seed=st.integers(0, 2**32 - 1))
def test_many_trials_cost_what_each_costs_on_every_clock(
    system: System, name: str, seed: int
) -> None:
    assert_many_cost_what_each_costs(get_task(name).variant(system=system), seed, 12)


def test_many_trials_cost_what_each_costs_by_recorded_times(tmp_path: Path) -> None:
    file = tmp_path / "rounds.csv"
    rows = [f"{0.1 * n},{0.3 * n},{n}" for n in range(1, 6)]
    file.write_text("\n".join(["communication_s,computation_s,sampled_clients", *rows]))
    task = get_task("LR-CreditG-v0").variant(system=RecordedModel(path=str(file)))
    assert_many_cost_what_each_costs(task)


def test_what_nobody_knows_is_refused_for_many_trials_too() -> None:
    task = get_task("LR-CreditG-v0").variant(system=replace(CROSS_SILO, compute="steps"))
    query = {**task.space.sample(np.random.default_rng(0)), "round": 3, "client_sample_rate": 0.4}
    with pytest.raises(InvalidArgumentError, match="samples"):
        times_s(task, {name: np.array([value]) for name, value in query.items()})


def test_trials_take_all_rules_where_somebody_says_the_samples() -> None:
    """25 samples in minibatches of 4 are 7 steps an epoch; 5 clients, H_5 = 137/60."""
    system = {"compute": "steps", "samples_per_client": 25}
    env = gym.make(
        "FedHPO-LR-CreditG-v0", system=system, fidelity={"round": 100, "client_sample_rate": 1.0}
    )
    env.reset(seed=0)
    info = env.step(np.full(4, -1, np.float32))[4]
    assert (info["configuration"]["batch_size"], info["configuration"]["step_size"]) == (4, 1)
    assert info["cost"]["computation_s"] == pytest.approx(100 * 7 * 137 / 60)


def test_trials_of_devices_cost_the_same_whenever_they_are_asked() -> None:
    system = {"model": "devices", "availability": "lognormal", "dropout": 0.2, "seed": 3}
    env = gym.make("FedHPO-LR-CreditG-v0", system=system, budget_trials=4)
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape or (), np.float32)
    found = [env.step(action)[4]["cost"]["time_s"] for _ in range(3)]
    assert len(set(found)) == 1
    thaw = gym.make("FedHPO-LR-CreditG-v0", system=system, budget_trials=4, freeze_thaw=True)
    thaw.reset(seed=1)
    assert thaw.step(action)[4]["cost"]["time_s"] == found[0]
    assert thaw.step(action)[4]["cost"]["time_s"] == 0.0


COSTS_NAMES = ("val_loss", "time_s", "upload_bytes", "download_bytes", "flops")
CASES = {
    "table": {},
    "epochs cost": {"system": {"compute": "epochs"}},
    "surrogate": {"backend": "surrogate", "alpha": 0.1},
    "one by one": {"backend": "surrogate", "alpha": 0.1, "freeze_thaw": True},
}


def arguments(case: str) -> tuple[str, dict[str, Any]]:
    return "MO-FedHPO-LR-Vehicle-v1", {**CASES[case], "objectives": COSTS_NAMES}


@pytest.mark.parametrize("case", CASES)
def test_they_are_what_a_trial_is_charged(case: str) -> None:
    name, given = arguments(case)
    env: Any = gym.make(name, disable_env_checker=True, **given)
    env.reset(seed=0)
    env.action_space.seed(0)
    task = env.unwrapped.task
    train = env.unwrapped.backend.num_samples[..., 0].mean()
    for _ in range(5):
        _, reward, *_, info = env.step(env.action_space.sample())
        found, cost = info["objectives"], info["cost"]
        for entry in COSTS_NAMES[1:4]:
            assert found[entry] == cost[entry]
        fidelity = Fidelity(**info["fidelity"])
        clients = fidelity.sampled_clients(task.num_clients)
        steps = info["configuration"]["step_size"] * fidelity.round * clients
        assert found["flops"] == pytest.approx(6 * task.num_parameters * steps * train)
        assert reward[1:4].tolist() == [-np.float32(cost[entry]) for entry in COSTS_NAMES[1:4]]


POWERED = {
    "system": {"model": "devices", "devices": "alike", "client_compute_w": 2.0,
               "upload_j_per_byte": 1e-3, "compute": "epochs"},
    "objectives": ("val_loss", "energy_j"),
}  # fmt: skip


@pytest.mark.parametrize("case", ["table", "surrogate", "one by one"])
def test_energy_is_an_objective_where_devices_know_it(case: str) -> None:
    name, given = arguments(case)
    given = {**given, **POWERED}
    env: Any = gym.make(name, disable_env_checker=True, **given)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        info = env.step(env.action_space.sample())[-1]
        task, fidelity = env.unwrapped.task, Fidelity(**info["fidelity"])
        each = 2.0 * info["configuration"]["step_size"] + 4e-3 * task.num_parameters
        trained = fidelity.round * fidelity.sampled_clients(task.num_clients)
        assert info["objectives"]["energy_j"] == pytest.approx(trained * each)


def test_asynchronous_rounds_compute_as_many_jobs_as_they_have_reports() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    rounds = {"round": 4, "client_sample_rate": 1.0}
    given = {"backend": "raw", "seed": 1, "objectives": COSTS_NAMES, "fidelity": rounds}
    env: Any = gym.make("MO-FedHPO-LR-BreastCancer-v1", algorithm="fedbuff", **given)
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape, np.float32)
    place = env.unwrapped.search_space.names.index("buffer_size")
    infos = []
    for action[place] in (-1.0, 1.0):
        infos.append(env.step(action)[-1])
    few, many = (info["configuration"]["buffer_size"] for info in infos)
    assert few < many
    for name in ("upload_bytes", "flops"):
        fewer, more = (info["objectives"][name] for info in infos)
        assert more / fewer == pytest.approx(many / few)


def test_energy_is_refused_where_nobody_knows_it() -> None:
    for system in ({}, {"model": "devices"}):
        with pytest.raises(InvalidArgumentError, match="energy is known where devices have a powe"):
            gym.make("MO-FedHPO-LR-Car-v0", objectives=["energy_j"], system=system)
    asynchronous = {"backend": "raw", "algorithm": "fedbuff"}
    with pytest.raises(InvalidArgumentError, match="energy is known of synchronous rounds only"):
        gym.make("MO-FedHPO-LR-BreastCancer-v1", **{**POWERED, **asynchronous})


@pytest.mark.slow
def test_what_was_paid_for_before_still_counts() -> None:
    """An objective is what the whole query costs: else its value would depend on the past."""
    env: Any = gym.make("MO-FedHPO-LR-Car-v0", freeze_thaw=True, objectives=COSTS_NAMES)
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape, np.float32)
    first, again = (env.step(action)[-1] for _ in range(2))
    assert again["cost"]["time_s"] == 0 < first["cost"]["time_s"]
    assert again["objectives"] == first["objectives"]


def test_a_truth_knows_them() -> None:
    full = {"round": 500}
    truth = fedhpo_gym.truth("FedHPO-LR-BreastCancer-v1", objectives=COSTS_NAMES[:2], fidelity=full)
    times = np.unique(truth.values[:, 1])
    assert len(times) == 5, "one per client sample rate"
    assert truth.ideal()[1] == times[0]
