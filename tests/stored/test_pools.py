"""Pools: exact at trained configurations, the nearest elsewhere, and equal to really training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("sklearn")

from fedhpo_gym.backends import default_backend, make_backend
from fedhpo_gym.backends.base import Backend
from fedhpo_gym.backends.training import task_label_frequencies
from fedhpo_gym.building.build import build_sample
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, OffGridError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.catalogue import ENV_VAR, open_sample
from fedhpo_gym.stored.health import difficulty_of, health_of, labels_on, seed_error, write_health
from fedhpo_gym.stored.pool import Pool
from fedhpo_gym.stored.table import Sample
from fedhpo_gym.tasks import get_task, task_of, work_of
from stored_files import stamped
from workers import CrewHere

pytestmark = pytest.mark.raw

ID = "FedHPO-LR-BreastCancer-v1"
ARGUMENTS: dict[str, Any] = {"algorithm": "dpfedavg", "tune": {"epsilon": [1, 16]}}
TASK = get_task(ID).variant(algorithm="dpfedavg").tune({"epsilon": [1, 16]})
SIZE, ROUNDS, RATES, EVERY = 12, 6, (0.4, 1.0), 5
OBJECTIVES = ["val_loss", "val_error", "test_error", "fairness_std", "fairness_p10", "epsilon"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("pools")
    plan: Any = {"rounds": ROUNDS, "rates": RATES, "repeat_every": EVERY, "crossed": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedhpo_gym.building.build.WorkerPool", CrewHere)
        build_sample(TASK, SIZE, folder=where, workers=1, **plan)
    return where


@pytest.fixture(autouse=True)
def _stored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VAR, str(folder))


@pytest.fixture
def pool() -> Pool:
    return Pool(open_sample(TASK.identity))


def make(**arguments: Any) -> gym.Env[Any, Any]:
    return gym.make(f"MO-{ID}", **ARGUMENTS, objectives=OBJECTIVES, **arguments)


def test_it_holds_every_configuration_at_every_rate_under_the_first_seed(pool: Pool) -> None:
    assert (len(pool), pool.seeds, pool.courses.shape) == (SIZE, (1,), (SIZE, len(RATES)))
    assert (pool.courses >= 0).all()
    assert len(pool.sample) == (SIZE + 2 * 3) * len(RATES)  # three of them under two more seeds
    for seed in (2, 3):
        assert len(Pool(pool.sample, seed)) == 3


def test_an_answer_is_what_training_brings(pool: Pool) -> None:
    stored, raw = make_backend("tabular", TASK), make_backend("raw", TASK, seed=1)
    for index, rate in ((0, 1.0), (7, 0.4)):
        query = pool.configurations[index], Fidelity(ROUNDS - 2, rate)
        ours, trained = stored.evaluate(*query), raw.evaluate(*query)
        # Losses are stored with the upper half of a float32: seven bits and a half of a fraction.
        np.testing.assert_allclose(ours.best[..., 0], trained.best[..., 0], rtol=2**-8)
        np.testing.assert_array_equal(ours.best[..., 1], trained.best[..., 1])
        assert ours.best_round.tolist() == trained.best_round.tolist()
        assert ours.seeds == (1,)


def test_an_action_goes_to_the_nearest_configuration_and_is_charged_for_it(pool: Pool) -> None:
    env = make()
    env.reset(seed=0)
    setup = env.get_wrapper_attr("setup")
    known = pool.space.features(pool.space.encode_columns(pool.columns))
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        asked = setup.search_space.decode(action)
        own = pool.space.columns_of([asked])
        distance = ((known - pool.space.features(pool.space.encode_columns(own))) ** 2).sum(axis=1)
        *_, info = env.step(action)
        assert info["configuration"] == pool.configurations[int(distance.argmin())]
        assert info["fidelity"] == {k: asked[k] for k in ("round", "client_sample_rate")}
        fidelity = info["fidelity"]["round"], info["fidelity"]["client_sample_rate"]
        work = work_of(setup.task, info["configuration"], *fidelity)
        assert info["cost"]["time_s"] == setup.task.system.cost(work).time_s


def test_the_action_of_a_trained_configuration_is_its_own(pool: Pool) -> None:
    actions = pool.space.encode_columns(pool.columns)
    fidelity = {"round": np.full(SIZE, ROUNDS), "client_sample_rate": np.full(SIZE, 1.0)}
    again = pool.nearest({**pool.space.decode_columns(actions), **fidelity})
    for name, column in pool.columns.items():
        np.testing.assert_array_equal(again[name], column)
    once = pool.places({**pool.columns, **fidelity})
    np.testing.assert_array_equal(once[:, 0], np.arange(SIZE))


def test_between_configurations_a_look_up_is_an_error(pool: Pool) -> None:
    backend = make_backend("tabular", TASK)
    between = {**pool.configurations[0], "learning_rate": 0.123}
    with pytest.raises(OffGridError, match="answers nothing between them"):
        backend.evaluate(between, Fidelity(ROUNDS, 1.0))


def test_single_and_vector_environments_agree() -> None:
    env = make()
    several = gym.make_vec(
        f"MO-{ID}", num_envs=3, vectorization_mode="vector_entry_point", **ARGUMENTS,
        objectives=OBJECTIVES,
    )  # fmt: skip
    env.reset(seed=0)
    several.reset(seed=0)
    rng = np.random.default_rng(1)
    for step in range(60):  # more than `PATIENCE` together: all cells are scored at once then
        actions = rng.uniform(-1, 1, (3, *env.action_space.shape)).astype(np.float32)
        alone = env.step(actions[0])
        together = several.step(actions)
        np.testing.assert_array_equal(alone[1], together[1][0], err_msg=f"step {step}")
        for name, entry in alone[0].items():
            np.testing.assert_array_equal(entry, together[0][name][0], err_msg=name)
    several.close()


def test_the_truth_is_exact_and_of_all_that_is_trained(pool: Pool) -> None:
    truth = make().get_wrapper_attr("truth")
    rounds = len(pool.sample.rounds)
    assert truth.exact
    assert len(truth.values) == truth.on_lattice == SIZE * len(RATES) * rounds
    backend = make_backend("tabular", TASK)
    losses = [
        backend.evaluate(one, Fidelity(r, rate)).mean("val", "loss")
        for one in pool.configurations
        for rate in RATES
        for r in pool.sample.rounds
    ]
    assert truth.values[truth.optimum, 0] == min(losses)
    full = make().get_wrapper_attr("full_truth")
    assert len(full.values) == SIZE
    regrets, _ = full.regret_at(pool.configurations)
    assert (regrets == 0).sum() == 1


def test_a_fixed_fidelity_and_freeze_thaw_are_honoured(pool: Pool) -> None:
    env = make(fidelity={"client_sample_rate": 0.4}, freeze_thaw=True)
    env.reset(seed=0)
    action = np.full(env.action_space.shape, 0.3, np.float32)
    *_, first = env.step(action)
    *_, again = env.step(action)
    assert first["fidelity"]["client_sample_rate"] == 0.4
    assert first["cost"]["time_s"] > 0 == again["cost"]["time_s"]
    assert len(env.get_wrapper_attr("truth").values) == SIZE * len(pool.sample.rounds)


def test_the_regret_of_a_run_is_known() -> None:
    env = gym.make(ID, **ARGUMENTS, reward="regret")
    env.reset(seed=0)
    _, reward, *_ = env.step(env.action_space.sample())
    assert reward <= 0


def test_a_seed_that_few_configurations_have_makes_a_smaller_pool() -> None:
    env = make(seed=2)
    _, info = env.reset(seed=0)
    assert info["seeds"] == [2]
    assert len(env.get_wrapper_attr("full_truth").values) == 3
    with pytest.raises(InvalidArgumentError, match=r"`seed` must be among \(1, 2, 3\)"):
        make(seed=9)


def test_of_a_design_of_drawn_rates_and_seeds_one_seed_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configurations have one rate each: that is where they answer, whatever rate is asked."""
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    task = get_task("LR-BreastCancer-v0").variant(alpha=0.3)
    build_sample(task, 96, rounds=[2, 4], rates=[0.4, 1.0], folder=tmp_path, workers=1)
    pool = Pool(open_sample(task.identity))
    sample = pool.sample
    seeds = sample.codes("seed")
    most = np.bincount(seeds).argmax()
    rows = np.flatnonzero(seeds == most)
    assert len(pool) == len(rows)
    columns = {**pool.columns, "round": np.full(len(pool), 4)}
    columns["client_sample_rate"] = np.full(len(pool), 1.0)
    found = pool.nearest(columns)
    np.testing.assert_array_equal(
        found["client_sample_rate"], sample.codes("client_sample_rate")[rows]
    )
    np.testing.assert_array_equal(found["round"], sample.codes("last_round")[rows])
    answers = pool.look_up(found, pool.seeds)
    last = sample.objective("val", "loss")[rows]
    expected = np.where(np.isnan(last[:, -1]), last[:, sample.rounds.index(2)], last[:, -1])
    np.testing.assert_allclose(answers.mean("val", "loss"), expected, rtol=1e-6)


def test_who_answers_by_default(folder: Path) -> None:
    assert default_backend(TASK) == "tabular"
    assert default_backend(get_task("GNN-Cora-v1")) == "surrogate"  # promised before pools were
    assert default_backend(get_task("LR-CreditG-v1")) == "tabular"
    assert task_of(open_sample(TASK.identity).identity) == TASK
    assert (folder / f"{TASK.table_name}.sample.json").exists()


def test_its_card_gives_its_identity_back(folder: Path) -> None:
    card = json.loads((folder / f"{TASK.table_name}.sample.json").read_text())
    assert card["tuned"] == {"epsilon": [1.0, 16.0]}
    assert card["crossed"] is True
    assert "--tune epsilon=[1.0,16.0] --sample 12" in card["build_command"]


def test_the_guess_is_that_of_the_seed(pool: Pool) -> None:
    mean, by_seed = task_label_frequencies(TASK)
    assert labels_on(pool) == by_seed["1"] != by_seed["2"]
    assert labels_on(Pool(pool.sample, 2)) == by_seed["2"]
    assert pool.card["label_frequencies"] == mean
    guesses = [one["val_loss"] for one in by_seed.values()]
    assert mean["val_loss"] == pytest.approx(np.mean(guesses), rel=1e-5)
    assert difficulty_of(pool).guess == guesses[0]


@pytest.mark.parametrize(
    ("entry", "value"),
    [("tuned", {"epsilon": [1]}), ("tuned", [["epsilon", 1, 16]]), ("tuned", {"epsilon": "ab"}),
     ("crossed", "yes")],
)  # fmt: skip
def test_a_card_with_a_damaged_plan_is_named(
    folder: Path, tmp_path: Path, entry: str, value: object
) -> None:
    card = tmp_path / f"{TASK.table_name}.sample.json"
    content = json.loads((folder / card.name).read_text()) | {entry: value}
    card.write_bytes(stamped(json.dumps(content).encode()))
    with pytest.raises(DamagedDataError, match=f"sample card of format 2 .`{entry}` must"):
        Sample(card)


def test_noise_of_seeds_is_that_of_the_repeated(pool: Pool) -> None:
    again = pool.repeated_losses()
    assert again.shape == (3, 3)
    backends: list[Backend] = [make_backend("tabular", TASK, seed=seed) for seed in (1, 2, 3)]
    for row, index in zip(again, (0, 5, 10), strict=True):
        query = pool.configurations[index], Fidelity(ROUNDS, 1.0)
        means = [backend.evaluate(*query).mean("val", "loss") for backend in backends]
        np.testing.assert_allclose(row, means)
    difficulty = difficulty_of(pool)
    assert difficulty.configurations == SIZE
    assert np.isnan([difficulty.seed, seed_error(again)]).all()  # three say too little
    health = health_of(pool)
    assert health["lattice"]["exact"]
    assert health["kendall"]["seeds"]["pairs"] == 3


def test_show_and_list_say_that_a_pool_answers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--algorithm", "dpfedavg", "--tune", "epsilon=[1,16]"]
    card = open_sample(TASK.identity)
    write_health(folder / f"{card.name}.sample.json")
    assert main(["show", ID, *words]) == 0
    out = capsys.readouterr().out
    assert f"tabular: {SIZE} trained configurations (a pool), rounds" in " ".join(out.split())
    assert card.digest in out
    assert main(["list"]) == 0
    assert "tune={'epsilon': [1, 16]}" in capsys.readouterr().out


def test_each_instance_is_a_pool_of_its_own() -> None:
    """Seed 2 has three of twelve configurations: an episode of it equals `seed=2`."""
    rng = np.random.default_rng(2)
    vector = gym.make_vec(
        f"MO-{ID}", num_envs=3, vectorization_mode="vector_entry_point", **ARGUMENTS,
        objectives=OBJECTIVES, instances="train",
    )  # fmt: skip
    for freeze_thaw in (False, True):
        env = make(instances="train", freeze_thaw=freeze_thaw)
        actions = rng.uniform(-1, 1, (8, *env.action_space.shape)).astype(np.float32)
        met = set()
        for episode in range(6):
            _, info = env.reset(seed=episode)
            alone = make(seed=info["instance"]["seed"], freeze_thaw=freeze_thaw)
            alone.reset(seed=0)
            met.add(info["instance"]["seed"])
            for action in [*actions, actions[0]]:
                *_, ours = env.step(action)
                *_, theirs = alone.step(action)
                for name in ("configuration", "fidelity", "objectives", "cost", "incumbent"):
                    assert ours[name] == theirs[name]
        assert met == {1, 2}
    vector.reset(seed=3)
    for action in rng.uniform(-1, 1, (50, *vector.action_space.shape)).astype(np.float32):
        _, rewards, *_, infos = vector.step(action)
        for index, seed in enumerate(infos["instance"]["seed"].tolist()):
            alone = make(seed=seed)
            alone.reset(seed=0)
            np.testing.assert_array_equal(alone.step(action[index])[1], rewards[index])
        if action[0, 0] < 0:
            break
