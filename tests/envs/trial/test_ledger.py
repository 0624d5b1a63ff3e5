"""What a trial costs: by the model its configuration shapes, and by what was paid for before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym.backends import Backend
from fedhpo_gym.envs.trial.ledger import GridLedger, Ledger, charge, owed, times_s
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.systems import (
    COMPUTE_RULES,
    CROSS_DEVICE,
    CROSS_SILO,
    DeviceModel,
    RecordedModel,
    System,
    SystemModel,
    Work,
)
from fedhpo_gym.systems.model import MODES
from fedhpo_gym.tasks import Task, get_task

TASK = get_task("MLP-CreditG")
LINEAR = get_task("LR-CreditG")
EPOCHS = LINEAR.variant(system=replace(LINEAR.system, compute="epochs"))
FIRST_ENV = np.array([0])


class Silent(Backend):
    """Knows what can be asked, and is never asked."""

    name = "silent"
    fingerprint = "silent"

    def __init__(self, task: Task) -> None:
        super().__init__(task, None, task.space.discretized(), task.stored_fidelity_space())

    def _evaluate(self, configuration: Any, fidelity: Fidelity) -> Any:
        raise AssertionError


def setup(task: Task, freeze_thaw: bool) -> TrialSetup:
    return TrialSetup(task, Silent(task), ("val_loss",), {}, freeze_thaw=freeze_thaw)


def configuration(depth: int, width: int) -> dict[str, Value]:
    first = {dimension.name: dimension.grid[0] for dimension in TASK.space.dimensions}
    return {**first, "model_depth": depth, "model_width": width}


@pytest.mark.parametrize(
    ("depth", "width", "parameters"),
    [(1, 16, 23 * 16 + 34), (2, 16, 23 * 16 + 19 * 16 + 34), (3, 1024, 2_128_898)],
)
def test_a_model_is_charged_by_its_size(depth: int, width: int, parameters: int) -> None:
    assert TASK.parameters_of(configuration(depth, width)) == parameters
    query = configuration(depth, width), Fidelity(2, 1.0)
    [cost] = Ledger(setup(TASK, freeze_thaw=False), 1).pay(FIRST_ENV, [query])
    assert cost.upload_bytes == 2 * 5 * 4 * parameters
    assert cost == TASK.system.cost(Work.of_course(parameters, 5, Fidelity(2, 1.0)))


ASKED, OWED = (100, 200, 56, 500, 500, 501), (100, 100, 0, 300, 0, 1)


def test_the_most_rounds_paid_for_count_and_not_the_last() -> None:
    ledger = Ledger(setup(TASK, freeze_thaw=True), 1)
    point = configuration(1, 16)
    costs = [ledger.pay(FIRST_ENV, [(point, Fidelity(asked, 1.0))])[0] for asked in ASKED]
    assert tuple(cost.rounds for cost in costs) == OWED
    paid = np.zeros(1, dtype=np.int32)
    for asked, expected in zip(ASKED, OWED, strict=True):
        rounds, paid = owed(np.array([asked], dtype=np.int32), paid)
        assert rounds.tolist() == [expected]


def test_another_configuration_or_rate_is_an_account_of_its_own() -> None:
    ledger = Ledger(setup(TASK, freeze_thaw=True), 2)
    small, large, full = configuration(1, 16), configuration(2, 16), Fidelity(100, 1.0)
    queries = [(small, full), (large, full), (small, Fidelity(100, 0.2)), (small, full)]
    costs = [ledger.pay(FIRST_ENV, [query])[0].rounds for query in queries]
    assert costs == [100, 100, 100, 0]
    assert ledger.pay(np.array([1]), [(small, full)])[0].rounds == 100, "another environment pays"
    ledger.restart(FIRST_ENV)
    assert ledger.pay(np.array([0, 1]), [(small, full)] * 2)[0].rounds == 100


@pytest.mark.parametrize(
    "task",
    [TASK, LINEAR, EPOCHS],
    ids=lambda task: f"{task.name}-{task.system.compute}",
)
@pytest.mark.parametrize("freeze_thaw", [False, True])
@given(data=st.data())
def test_a_grid_is_paid_as_queries_are(task: Task, freeze_thaw: bool, data: st.DataObject) -> None:
    known = _ledgers(task, freeze_thaw)
    asked, grid, alone = known
    space = asked.search_space
    few = st.integers(0, min(40, space.grid_size - 1))
    step = max(1, space.grid_size // 41)
    grid.restart(np.arange(3))
    alone.restart(range(3))
    for _ in range(5):
        cells = np.array([data.draw(few) * step for _ in range(3)])
        queries = []
        for cell in cells:
            index = np.unravel_index(cell, space.grid_shape)
            values = {d.name: d.grid[i] for d, i in zip(space.dimensions, index, strict=True)}
            queries.append(asked.query(values))
        times, rounds = grid.pay(cells)
        costs = alone.pay(np.arange(3), queries)
        assert times.tolist() == [cost.time_s for cost in costs]
        assert rounds.tolist() == [cost.rounds for cost in costs]
        for query, cost in zip(queries, costs, strict=True):
            rate = query[1].client_sample_rate
            assert cost == charge(task, query[0], cost.rounds, rate)


_KNOWN: dict[tuple[Task, bool], tuple[TrialSetup, GridLedger, Ledger]] = {}


def _ledgers(task: Task, freeze_thaw: bool) -> tuple[TrialSetup, GridLedger, Ledger]:
    key = (task, freeze_thaw)
    if key not in _KNOWN:
        asked = setup(task, freeze_thaw)
        _KNOWN[key] = asked, GridLedger(asked, 3), Ledger(asked, 3)
    return _KNOWN[key]


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
    "compute": st.sampled_from(COMPUTE_RULES),
    "samples_per_client": st.integers(1, 300),
    "server_compute_s": st.floats(0, 9),
    "upload_compression": SHARES,
    "download_compression": SHARES,
}
CLOCKS = st.one_of(
    st.builds(
        SystemModel,
        mode=st.sampled_from(MODES),
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
@settings(max_examples=20, deadline=None)
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
        "FedHPO-LR-CreditG-v0",
        system=system,
        fidelity={"round": 100, "client_sample_rate": 1.0},
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
