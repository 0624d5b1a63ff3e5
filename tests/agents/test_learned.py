"""Networks that learned to tune: numpy says what torch says, and files are read or refused."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import (
    agent_class,
    learned_lstm,
    learned_transformer,
    make_agent,
    run_episode,
)
from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.learned_network import (
    STORED,
    LearnedNetwork,
    Shapes,
    load_network,
    save_network,
)
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.archive import write_archive
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.stored.meta_data import open_meta_data
from fedhpo_gym.stored.task_generator import open_generator
from fedhpo_gym.tasks.meta import GENERATED_SPACES
from problems import BOX, box_problem, play

STUDIES = Path(__file__).parents[2] / "docs" / "studies"
PROBLEM = box_problem(BOX)
FEATURES = 3
SIZES = {
    "learned-transformer": {
        "width": 8,
        "heads": 2,
        "layers": 2,
        "features": FEATURES,
        "dimensions": 3,
    },
    "learned-lstm": {"width": 8, "units": 6, "features": FEATURES, "dimensions": 3},
}
SHAPES: dict[str, Callable[[Any], Shapes]] = {
    "learned-transformer": learned_transformer.transformer_shapes,
    "learned-lstm": learned_lstm.lstm_shapes,
}


def made(name: str, seed: int = 0, problem: SearchProblem = PROBLEM) -> LearnedNetwork:
    """Return a network of random weights."""
    rng = np.random.default_rng(seed)
    sizes = SIZES[name]
    arrays = {
        key: rng.normal(0.0, 0.7, shape).astype(np.float32)
        for key, shape in SHAPES[name](sizes).items()
    }
    return LearnedNetwork(
        name, problem.search_space, sizes, arrays, "python train.py", {"seed": seed}
    )


def agent(name: str, problem: SearchProblem = PROBLEM, **given: Any) -> TrialSearch:
    return agent_class(name)(problem, **{"policy": made(name), **given})  # type: ignore[return-value]


def trials(number: int, seed: int = 1) -> tuple[Any, Any]:
    """Return (n, F) points and (n,) scores, some of them 0."""
    rng = np.random.default_rng(seed)
    scores = np.maximum(rng.normal(0.2, 0.3, number), 0.0).astype(np.float32)
    return rng.random((number, FEATURES)).astype(np.float32), scores


@pytest.fixture(name="training")
def fixture_training(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("tqdm")
    monkeypatch.syspath_prepend(STUDIES)
    return importlib.import_module("train_learned")


@pytest.mark.parametrize("number", [0, 1, 2, 25, 40])
def test_numpy_says_of_candidates_what_torch_says(training: Any, number: int) -> None:
    """Padded, too: a batch in training holds histories of several lengths."""
    torch, network, spare = training.torch, made("learned-transformer"), 3
    sizes = (network.sizes[name] for name in ("features", "width", "heads", "layers"))
    model = training.Transformer(*sizes)
    model.load_state_dict({name: torch.from_numpy(one) for name, one in network.arrays.items()})
    (points, scores), (candidates, _) = trials(number + spare), trials(9, 2)
    known = np.arange(number + spare) < number
    with torch.no_grad():
        given = (torch.from_numpy(one)[None] for one in (points, scores, known, candidates))
        expected = model(*given)[0].numpy()
    found = learned_transformer.logits(network, points[:number], scores[:number], candidates)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_numpy_acts_as_torch_does(training: Any) -> None:
    torch, network = training.torch, made("learned-lstm")
    lstm = torch.nn.LSTM(FEATURES + learned_lstm.NUM_TRIAL_FEATURES, SIZES["learned-lstm"]["units"])
    arrays = {name: torch.from_numpy(one) for name, one in network.arrays.items()}
    own = {name[5:]: one for name, one in arrays.items() if name.startswith("lstm.")}
    lstm.load_state_dict(own)
    points, scores = trials(12)
    rows = learned_lstm.input_rows(points, scores, network.price(points))
    with torch.no_grad():
        state = lstm(torch.from_numpy(rows)[:, None])[0][-1, 0]
        hidden = torch.tanh(arrays["hidden.weight"] @ state + arrays["hidden.bias"])
        raw = arrays["action.weight"] @ hidden + arrays["action.bias"]
    expected = raw.numpy()
    np.testing.assert_allclose(learned_lstm.act(network, rows), expected, atol=1e-5)


def test_a_recurrent_policy_draws_around_what_it_prefers() -> None:
    network = made("learned-lstm")
    network.arrays["deviation"][:] = [0.0, 0.1, 0.3]
    asked = np.array([agent("learned-lstm", replace(PROBLEM, seed=seed), policy=network).ask({})
                      for seed in range(300)])  # fmt: skip
    empty = learned_lstm.input_rows(*(one[:0] for one in trials(1)), np.zeros(0, np.float32))
    mean = learned_lstm.act(network, empty)
    assert (asked[:, 0] == np.clip(mean[0], -1.0, 1.0)).all()
    inside = np.abs(mean[1:]) + 1.0 < 2.0 - 3 * network.arrays["deviation"][1:]
    assert inside.any()
    found = asked[:, 1:].std(axis=0) / network.arrays["deviation"][1:]
    np.testing.assert_allclose(found[inside], 1.0, atol=0.15)
    assert len(np.unique(asked[:, 1])) > 1


def test_the_recurrent_state_of_an_episode_is_the_same_alone_and_in_a_batch() -> None:
    network, episodes = made("learned-lstm"), [trials(7, seed) for seed in range(5)]
    points, scores = (np.stack(part) for part in zip(*episodes, strict=True))
    rows = learned_lstm.input_rows(points, scores, network.price(points))
    together = learned_lstm.act(network, rows)
    for index, (own, of) in enumerate(episodes):
        alone = learned_lstm.input_rows(own, of, network.price(own))
        assert np.array_equal(rows[index], alone)
        assert np.array_equal(learned_lstm.act(network, alone), together[index])


def test_what_training_shows_is_what_the_agent_sees(training: Any) -> None:
    network, (points, scores) = made("learned-lstm"), trials(4)
    history = np.zeros((1, 25 * FEATURES), np.float32)
    history[0, : 4 * FEATURES] = points.ravel()
    shown = {"history": history, "scores": np.append(scores, np.zeros(21))[None]}
    view = training.LastTrial.__new__(training.LastTrial)
    view._network, view._width = network, FEATURES
    found = view._seen({**shown, "trials": np.full((1, 1), 4.0)})[0]
    expected = learned_lstm.input_rows(points, scores, network.price(points))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_inputs_of_two_trials_by_hand() -> None:
    points = np.array([[0.1], [0.2]], np.float32)
    found = learned_lstm.input_rows(points, np.array([0.4, 0.2], np.float32), np.array([5.0, 2.5]))
    expected = [
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.1, 0.4, 0.4, 1.0, 0.04, 0.2],
        [0.2, 0.2, 0.4, 0.5, 0.08, 0.3],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_neither_the_order_of_trials_nor_that_of_candidates_matters() -> None:
    network, (points, scores), (candidates, _) = made("learned-transformer"), trials(9), trials(8)
    found = learned_transformer.logits(network, points, scores, candidates)
    rng = np.random.default_rng(0)
    rows, places = rng.permutation(9), rng.permutation(8)
    again = learned_transformer.logits(network, points[rows], scores[rows], candidates[places])
    np.testing.assert_allclose(again, found[places], rtol=1e-3, atol=1e-4)
    other = learned_transformer.logits(network, points, scores[::-1].copy(), candidates)
    assert np.abs(other - found).max() > 0.01


def test_a_candidate_that_was_not_tried_is_chosen() -> None:
    pool = np.random.default_rng(0).uniform(-1.0, 1.0, (6, 3)).astype(np.float32)
    left = list(range(6))
    problem = replace(PROBLEM, candidates=lambda: pool[left])
    searcher = agent("learned-transformer", problem)
    network, seen = made("learned-transformer"), []
    for _ in range(6):
        points = problem.search_space.features(np.array(seen).reshape(-1, 3)).astype(np.float32)
        features = problem.search_space.features(pool[left]).astype(np.float32)
        scores = np.array([abs(one.sum()) for one in seen], np.float32)
        logits = learned_transformer.logits(network, points, scores, features)
        ((action, _),) = play(searcher, 1, lambda taken: abs(taken.sum()))
        assert np.array_equal(action, pool[left[int(logits.argmax())]])
        left.remove(left[int(logits.argmax())])
        seen.append(action)


@pytest.mark.parametrize("name", SIZES)
def test_a_network_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    network = made(name)
    path = save_network(network, tmp_path, f"{name}-Mine")
    found = load_network(path, name, SHAPES[name])
    assert (found.space, found.sizes, found.made_by) == (
        network.space,
        network.sizes,
        network.made_by,
    )
    assert found.origin == network.origin
    for key, array in network.arrays.items():
        assert np.array_equal(found.arrays[key], array)
    acts = [play(agent(name, policy=one), 4, np.sum) for one in (network, path, str(path))]
    for other in acts[1:]:
        for (action, _), (expected, _) in zip(other, acts[0], strict=True):
            assert np.array_equal(action, expected)


def _pickled(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **{**arrays, next(iter(arrays)): np.array([print], dtype=object)})
    return buffer.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    network, stem = made(name), f"{name}-Mine"
    key = "price.0.weight"
    for number, wrong in enumerate(
        (
            {**network.arrays, key: network.arrays[key][:-1]},
            {**network.arrays, key: network.arrays[key] * np.float32(np.nan)},
            {**network.arrays, key: network.arrays[key].astype(np.float64)},
            {**network.arrays, "more": network.arrays[key]},
            {other: one for other, one in network.arrays.items() if other != key},
        )
    ):
        path = save_network(replace(network, arrays=wrong), tmp_path / str(number), stem)
        with pytest.raises(DamagedDataError, match=r"run `python train\.py`"):
            load_network(path, name, SHAPES[name])
    path = save_network(network, tmp_path, stem)
    (arrays,) = tmp_path.glob("*.npz")
    arrays.write_bytes(_pickled({**network.arrays}))
    with pytest.raises(DamagedDataError, match="sha256"):
        load_network(path, name, SHAPES[name])
    card = json.loads(path.read_text())
    for entry, value in (
        ("agent", "gp"),
        ("format", 2),
        ("sizes", {**network.sizes, "width": 0}),
        ("sizes", {**network.sizes, "width": 10**9}),
        ("sizes", {}),
        ("search_space", {"dimensions": [1]}),
    ):
        wrong_card = {k: v for k, v in card.items() if k not in ("arrays", "sha256", "bytes")}
        folder = tmp_path / f"{entry} {value!s:.20}"
        path = write_archive(folder, stem, {**wrong_card, entry: value}, network.arrays)
        with pytest.raises(DamagedDataError, match="train it again"):
            load_network(path, name, SHAPES[name])


@pytest.mark.parametrize("name", SIZES)
def test_another_search_space_is_refused_with_what_there_is(name: str, tmp_path: Path) -> None:
    other = box_problem(BOX, 0, replace(PROBLEM.search_space.dimensions[0], name="another"))
    with pytest.raises(InvalidArgumentError, match=r"search space.*another.*for \['x0', 'x1', 'x"):
        agent(name, other)
    with pytest.raises(InvalidArgumentError, match=r"'x2'\], got None.*\[.*\] of FedHPO-B; train"):
        agent(name, policy=None)
    for path in (tmp_path / "none.json", tmp_path, "x" * 5000):
        with pytest.raises(MissingDataError, match=r"no network at.*leave `policy` out"):
            agent(name, policy=path)


def test_regret_over_time_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 for two seconds, .5 for three, .2 for the rest of ten; what ends later does not count."""
    monkeypatch.syspath_prepend(STUDIES)
    pytest.importorskip("matplotlib")
    study = importlib.import_module("learned_study")
    assert study.over_time([2.0, 5.0], [0.5, 0.2], 10.0) == pytest.approx(0.2 + 0.15 + 0.1)
    assert study.over_time([2.0, 12.0], [0.5, 0.2], 10.0) == pytest.approx(0.2 + 0.4)
    assert study.over_time([12.0], [0.0], 10.0) == pytest.approx(1.0)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("space", GENERATED_SPACES)
def test_stored_networks_learned_from_what_is_stored(name: str, space: str) -> None:
    learned_from = [open_generator(space).fingerprint, open_meta_data(space).fingerprint]
    card = json.loads((STORED / f"{name}-{space}.json").read_text())
    assert card["origin"]["fingerprints"] == learned_from


@pytest.mark.slow
@pytest.mark.usefixtures("few_meta_tasks")
def test_the_smallest_training_ends_in_agents_that_act_on_pools(
    training: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trains with torch and sb3-contrib; what was imitated before an interruption is kept."""
    pytest.importorskip("sb3_contrib")
    fit = training.fit_prices
    monkeypatch.setattr(training, "fit_prices", lambda *given: fit(*given[:-1], 20))
    card, ends = tmp_path / "learned-transformer-LR.json", []
    for again in range(3):
        training.main(["--out", str(tmp_path), "--quick", "--spaces", "LR"])
        ends.append(json.loads(card.read_text())["sha256"])
        if again == 1:
            card.unlink()
    assert capsys.readouterr().out.count("cpu_s") == len(SIZES) + 1
    assert len(set(ends)) == 1
    for name in SIZES:
        env = gym.make("FedHPO-B-LR-v1", instances="Tuna", actions="coordinates", trials=3)
        env.reset(seed=0)
        pool = {one.tobytes() for one in env.get_wrapper_attr("candidates")()}
        policy = tmp_path / f"{name}-LR.json"
        steps = list(run_episode(env, make_agent(name, env, 0, policy=policy), seed=0))
        assert len({step.info["place"] for step in steps}) == 3
        assert name != "learned-transformer" or {s.action.tobytes() for s in steps} <= pool
    with pytest.raises(InvalidArgumentError, match="for the search space of the"):
        make_agent("learned-lstm", gym.make("FedHPO-B-Joint-v1", actions="coordinates"), 0,
                   policy=tmp_path / "learned-lstm-LR.json")  # fmt: skip
