"""Generated tasks: a number is one, a trial answers with its best round, and optima are known."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fedhpo_gym
from fedhpo_gym.core.archive import EMBEDDED_FOLDER, write_archive
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, UnknownNameError
from fedhpo_gym.envs.meta import generated
from fedhpo_gym.objectives.base import LARGEST
from fedhpo_gym.records.files import read_record
from fedhpo_gym.stored.meta_data import COSTS, open_meta_data
from fedhpo_gym.stored.task_generator import (
    DIVERGED,
    KNOTS,
    LOWEST,
    STEP,
    GeneratedTasks,
    TaskGenerator,
    open_generator,
)
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.regret import regret_of
from fedhpo_gym.studies.replay import replay
from fedhpo_gym.studies.run import do_run
from fedhpo_gym.tasks.meta import GENERATED_IDS, GENERATED_SPACES
from vector_parity import check_vector

ID = "FedHPO-Generated-Joint-v1"


def _make(env_id: str = ID, **arguments: Any) -> Any:
    return gym.make(env_id, disable_env_checker=True, **{"trials": 8, **arguments}).unwrapped


def _asked(
    generator: TaskGenerator, count: int
) -> tuple[GeneratedTasks, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return some tasks, a row of features for each, and full fidelity."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (count, len(generator.space))).astype(np.float32)
    last = np.full(count, generator.cell(generator.rounds[-1], generator.rates[-1]))
    return generator.draw(range(count)), generator.space.rounded_features(actions), last


@pytest.mark.parametrize("env_id", GENERATED_IDS)
def test_gymnasium_accepts_it(env_id: str) -> None:
    check_env(_make(env_id), skip_render_check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [{}, {"choose_fidelity": True, "noise": "fresh"}, {"fidelity": {"round": 1}, "noise": "none"}],
    ids=["default", "fidelity", "first round"],
)
@pytest.mark.parametrize("env_id", [*GENERATED_IDS, f"MO-{ID}"])
def test_a_vector_is_bit_for_bit_its_environments(env_id: str, arguments: dict[str, Any]) -> None:
    check_vector(env_id, {"trials": 5, **arguments})


@pytest.mark.parametrize("space", GENERATED_SPACES)
def test_a_number_is_a_task_in_any_company(space: str) -> None:
    generator = open_generator(space)
    tasks, features, cells = _asked(generator, 40)
    noise = generator.frozen_noise(tasks.number, features)
    together = generator.evaluate(tasks, features, cells, noise)
    for i in (0, 7, 39):
        alone, row = generator.draw([i]), features[i : i + 1]
        assert alone.best[0] == tasks.best[i]
        own = generator.evaluate(alone, row, cells[:1], generator.frozen_noise(alone.number, row))
        np.testing.assert_array_equal(own[0][0], together[0][i])
        assert own[1][0] == together[1][i]


@pytest.mark.parametrize("space", GENERATED_SPACES)
def test_its_exact_sums_are_those_of_an_ordinary_network(space: str) -> None:
    generator = open_generator(space)
    tasks, features, cells = _asked(generator, 20)
    values, losses = generator.evaluate(tasks, features, cells)
    arrays = {name: one.astype(np.float64) for name, one in generator.arrays.items()}
    rounds, rates = len(generator.rounds), len(generator.rates)
    for i, network in enumerate(tasks.network.tolist()):
        hidden = (2.0 * features[i] - 1.0) @ arrays["weight_0"][network] + tasks.offset[i]
        for layer in range(1, sum(name.startswith("weight_") for name in arrays)):
            hidden = 0.5 * hidden * (1.0 + hidden / np.sqrt(1.0 + hidden**2))
            hidden = hidden @ arrays[f"weight_{layer}"][network] + arrays[f"bias_{layer}"][network]
        measured = len(generator.objectives) - len(COSTS)
        curves = hidden[: rates * rounds * measured].reshape(rates, rounds, measured)[-1]
        best = curves[curves[:, 0].argmin()]
        scores = np.append(best, hidden[-len(COSTS) :])
        knots = LOWEST + STEP * np.arange(KNOTS)
        for q, score in enumerate(scores):
            if score > LOWEST:
                bounded = np.interp(score, knots, tasks.bounded[i, q])
                expected = 1.0 / bounded - 1.0 if bounded > 1.01 * DIVERGED else LARGEST
                assert values[i, q] == pytest.approx(max(expected, 0.0), rel=2e-2, abs=2e-3)
        assert losses[i] == values[i, 0]


@pytest.mark.parametrize("space", GENERATED_SPACES)
def test_more_rounds_never_lose_and_cost_in_proportion(space: str) -> None:
    generator = open_generator(space)
    tasks, features, _ = _asked(generator, 200)
    for rate in generator.rates:
        before = np.full(len(tasks), np.inf)
        full = None
        for round_ in reversed(generator.rounds):
            cells = np.full(len(tasks), generator.cell(round_, rate))
            noise = generator.frozen_noise(tasks.number, features)
            values, _ = generator.evaluate(tasks, features, cells, noise)
            if full is None:
                full, before = values, values[:, 0]
            assert (values[:, 0] >= before).all()
            before = values[:, 0]
            share = round_ / generator.rounds[-1]
            np.testing.assert_allclose(values[:, -3:], full[:, -3:] * share, rtol=1e-15)


def test_noise_is_frozen_fresh_or_none() -> None:
    action = np.zeros(15, np.float32)
    heard: dict[str, list[float]] = {}
    for noise in ("frozen", "fresh", "none"):
        env = _make(noise=noise)
        env.reset(seed=1)
        heard[noise] = [env.step(action)[4]["objectives"]["val_loss"] for _ in range(4)]
        env.reset(seed=1)
        assert heard[noise][0] == env.step(action)[4]["objectives"]["val_loss"]
    assert len(set(heard["none"])) == len(set(heard["frozen"])) == 1
    assert len(set(heard["fresh"])) == 4
    assert heard["none"][0] != heard["frozen"][0]


@pytest.mark.slow
@pytest.mark.parametrize("space", GENERATED_SPACES)
def test_frozen_noise_has_the_moments_of_a_normal_distribution_with_heavy_tails(space: str) -> None:
    generator = open_generator(space)
    tasks, features, _ = _asked(generator, 4000)
    noise = generator.frozen_noise(tasks.number, features)
    assert np.abs(noise.mean(axis=0)).max() < 0.08  # 5 deviations of a mean of 4,000
    assert np.abs(noise.std(axis=0) - 1.0).max() < 0.12
    assert np.abs(np.corrcoef(noise.T) - np.eye(noise.shape[1])).max() < 0.15
    # A sum of four uniform numbers has 2.7, times 49 / 13 of the cube of a uniform one.
    assert (noise**4).mean() == pytest.approx(10.2, rel=0.1)


@pytest.mark.parametrize("noise", ["frozen", "fresh"])
def test_rewards_add_up_to_one_minus_the_regret_of_what_is_told_to_be_best(noise: str) -> None:
    """Noise deceives: what is told to be best need not be."""
    env, exact = _make(noise=noise, trials=30), _make(noise="none", trials=30)
    env.action_space.seed(0)
    env.reset(seed=0)
    exact.reset(seed=0)
    total, told, true, values = 0.0, -1.0, 0.0, {}
    high, deceived = env.setup.data.draw([env.describe()["instance"]]).best[0], False
    for _ in range(30):
        action = env.action_space.sample()
        _, reward, _, _, info = env.step(action)
        known = exact.step(action)[4]
        assert info["truth"]["objectives"] == known["objectives"]
        assert "truth" not in known
        if info["score"] > told:
            told, true, values = info["score"], known["score"], known["objectives"]
        assert info["truth"]["incumbent"] == values
        total += reward
        assert info["normalised_regret"] == pytest.approx(1.0 - min(true / high, 1.0), abs=1e-12)
        assert total == pytest.approx(1.0 - info["normalised_regret"], abs=1e-12)
        deceived |= true < known["incumbent"]["score"]
    assert deceived


def emptied(info: dict[str, Any]) -> None:
    for value in info.values():
        if isinstance(value, dict):
            emptied(value)
    info.clear()


def test_a_caller_may_change_an_info() -> None:
    env, twin = _make(), _make()
    env.action_space.seed(0)
    for one in (env, twin):
        one.reset(seed=0)
    for _ in range(8):
        action = env.action_space.sample()
        info = env.step(action)[4]
        assert info == twin.step(action)[4]
        assert info["truth"]["incumbent"]
        emptied(info)


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", [-1, 1], ids=["full", "two rounds of few clients"])
@pytest.mark.parametrize("space", GENERATED_SPACES)
def test_an_optimum_by_search_is_hardly_ever_missed(space: str, fidelity: int) -> None:
    """Of 500 random configurations and of small steps from what was found."""
    generator = open_generator(space)
    tasks = generator.draw(range(60), fidelity)
    rng = np.random.default_rng(1)
    highest = np.zeros(len(tasks))
    for trial in range(500):
        moved = tasks.best_action + 0.3 * rng.standard_normal(tasks.best_action.shape)
        drawn = rng.uniform(-1, 1, tasks.best_action.shape)
        actions = np.clip(moved if trial % 2 else drawn, -1, 1).astype(np.float32)
        highest = np.maximum(highest, generator.true_scores(tasks, actions, fidelity))
    own = generator.true_scores(tasks, tasks.best_action, fidelity)
    np.testing.assert_array_equal(own, tasks.best)
    missed = np.maximum(1.0 - tasks.best / highest, 0.0)
    assert missed.mean() < 0.01
    assert missed.max() < 0.1


def test_a_configuration_has_one_answer() -> None:
    """What an inactive coordinate says changes nothing."""
    env = _make()
    env.reset(seed=0)
    first = env.step(env.search_space.encode(env.search_space.decode(np.full(15, -0.9))))[4]
    second = env.step(np.full(15, -0.9, np.float32))[4]
    assert first["configuration"] == second["configuration"]
    assert first["objectives"] == second["objectives"]


@pytest.mark.parametrize("space", GENERATED_SPACES)
def test_its_card_says_that_it_was_fitted_on_meta_train_alone(space: str) -> None:
    data, card = open_meta_data(space), open_generator(space).card
    assert card["fitted_on"] == [data.names[i] for i in data.where("train")]
    assert card["fitted_on_card"] == data.fingerprint


def test_a_seed_is_a_task_for_ever() -> None:
    env = _make(noise="none")
    drawn = [env.reset(seed=seed)[1]["instance"] for seed in range(4)]
    # Written down once: who changes the draws breaks what seeds stand for.
    assert drawn == [1760417643, 3458841497, 264823350, 1749028071]
    assert env.reset(options={"instance": 7})[1]["task"] == "FedHPO-Generated-Joint 7"
    assert _make(instances=7).reset()[1]["task"] == "FedHPO-Generated-Joint 7"
    assert _make(instances=[5, 5, 7]).reset(options={"instance": 1})[1]["task"].endswith(" 7")


def test_a_trial_chooses_the_fidelity_that_is_not_fixed() -> None:
    env = _make(choose_fidelity=True, fidelity={"client_sample_rate": 0.2})
    assert env.search_space.names[-1] == "round"
    assert env.fidelity_space.names == ("round",)
    env.reset(seed=0)
    for place, round_ in ((-1.0, 1), (0.0, 3), (1.0, 5)):
        seen, _, _, _, info = env.step(np.append(np.zeros(15), place).astype(np.float32))
        assert info["fidelity"] == {"round": round_, "client_sample_rate": 0.2}
        assert info["cost"]["rounds"] == round_
    np.testing.assert_array_equal(seen["fidelities"][:3], np.array([0, 0.5, 1], np.float32))


def test_a_copy_made_in_mid_episode_goes_on_alike() -> None:
    env = _make(noise="fresh")
    env.reset(seed=1)
    action = np.zeros(15, np.float32)
    env.step(action)
    copies = copy.deepcopy(env), pickle.loads(pickle.dumps(env))
    expected = [env.step(action)[4] for _ in range(3)]
    for again in copies:
        assert [again.step(action)[4] for _ in range(3)] == expected


@pytest.mark.parametrize("fidelity", [{}, {"round": 1}, {"client_sample_rate": 0.2}], ids=str)
def test_truth_and_episodes_of_one_task_have_the_same_regret(fidelity: dict[str, Any]) -> None:
    env = _make(instances=11, noise="none", fidelity=fidelity)
    truth = fedhpo_gym.truth(ID, instances=11, fidelity=fidelity)
    entropy = open_generator("Joint").draw([11]).entropy[0]
    low = truth.values[truth.optimum, 0]
    for row in (truth.optimum, 1, 30, 200):
        env.reset(seed=0)
        asked, _ = truth.query(row)
        info = env.step(env.search_space.encode(asked))[4]
        [regret], _ = truth.regret_at([asked])
        assert info["objectives"]["val_loss"] == truth.values[row, 0] == low + regret
        expected = 1.0 - max(entropy - low - regret, 0.0) / (entropy - low)
        assert info["normalised_regret"] == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InvalidArgumentError, match="must be one task"):
        fedhpo_gym.truth(ID)


@pytest.mark.slow
def test_a_seed_of_a_study_is_a_task_and_its_truth_judges(tmp_path: Path) -> None:
    asked = {"trials": 6, "noise": "frozen"}
    plans = make_plans(Request([ID], ["random", "de"], 2, arguments=asked))
    assert [plan.kwargs["instances"] for plan in plans] == [0, 1, 0, 1]
    assert {plan.seed for plan in plans} == {0}
    again = make_plans(Request([ID], ["random"], 3, arguments={**asked, "instances": 7}))
    assert [(plan.kwargs["instances"], plan.seed) for plan in again] == [(7, 0), (7, 1), (7, 2)]
    for plan in (*plans, *again):
        assert do_run(plan, tmp_path, lambda _: None, pytest.fail)
    records = [read_record(path) for path in tmp_path.rglob("*.jsonl")]
    assert len({tuple(one.steps[0].configuration.items()) for one in records}) == len(records)
    for record in records:
        assert replay(record) is None
        number = record.header.kwargs["instances"]
        truth = fedhpo_gym.truth(ID, instances=number, **asked)
        best = [record.steps[step.best_step - 1] for step in record.steps]
        low = truth.values[truth.optimum, 0]
        found = np.array([step.true_objectives["val_loss"] for step in best]) - low
        np.testing.assert_allclose(regret_of(record).regret, found, rtol=0, atol=1e-12)


def test_no_task_is_its_own_source() -> None:
    first = [one.name for one in _make().source_tasks]
    number = int(first[0].split()[-1])
    own = [one.name for one in _make(instances=number).source_tasks]
    assert len(own) == 25
    assert own[:24] == first[1:]


def test_sources_are_always_the_same_and_of_full_fidelity() -> None:
    env = _make(choose_fidelity=True)
    assert all(one.actions.shape == (200, 17) for one in env.source_tasks)
    assert (env.source_tasks[0].actions[:, 15:] == 1.0).all()
    env = _make()
    first = env.source_tasks
    assert len(first) == 25
    generated._source_tasks.cache_clear()
    env.reset(seed=5)
    for one, two in zip(first, env.source_tasks, strict=True):
        np.testing.assert_array_equal(one.scores, two.scores)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"instances": -1}, "`instances` must be integers from 0 to 4294967295"),
        ({"instances": []}, "at least one"),
        ({"noise": "white"}, "frozen"),
        ({"trials": 0}, "from 1 to 1000"),
        ({"fidelity": {"round": 9}}, "must be one of"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidArgumentError, UnknownNameError), match=words):
        _make(**arguments)


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": [1, 2, 4, 3]},
        {"rounds": ["1", "2", "3", "4"]},
        {"client_sample_rates": [0.2, 1.5]},
        {"measured": ["time_s", "val_loss"]},
        {"entropy": 0.0},
        {"elites": 1.5},
        {"bounded": 2.0},
        {"facts": 1e30},
    ],
    ids=str,
)
def test_a_card_of_other_hands_is_checked(tmp_path: Path, change: dict[str, Any]) -> None:
    known = open_generator("LR")
    arrays = {name: array.copy() for name, array in known.arrays.items()}
    own = {name: value for name, value in change.items() if name not in arrays}
    for name in set(change) - set(own):
        arrays[name].flat[0] = change[name]
    left = ("arrays", "sha256", "bytes", "card_sha256")
    card = {name: value for name, value in known.card.items() if name not in left} | own
    path = write_archive(tmp_path, "FedHPO-Generated-LR.generator", card, arrays)
    with pytest.raises(DamagedDataError, match="fedhpo-gym generator LR"):
        TaskGenerator(path)


@pytest.mark.parametrize("change", ["weights", "card"])
def test_a_damaged_generator_is_refused(tmp_path: Path, change: str) -> None:
    for path in EMBEDDED_FOLDER.glob("FedHPO-Generated-LR.*"):
        shutil.copy(path, tmp_path)
    card = tmp_path / "FedHPO-Generated-LR.generator.json"
    if change == "card":
        content = json.loads(card.read_text())
        content["rounds"] = [1, 2, 3, 5]
        card.write_text(json.dumps(content))
    else:
        (arrays,) = tmp_path.glob("*.npz")
        content = bytearray(arrays.read_bytes())
        content[len(content) // 2] ^= 1
        arrays.write_bytes(content)
    with pytest.raises(DamagedDataError, match="fedhpo-gym generator LR"):
        TaskGenerator(card)
