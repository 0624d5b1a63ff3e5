"""Results that are stored or cached: equal to what is computed, and of these very arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.cli.listing import answering_tasks
from fedhpo_gym.cli.problems import limits_of, limits_request
from fedhpo_gym.envs.trial import truth as truths
from fedhpo_gym.envs.truth import Truth
from fedhpo_gym.objectives import Objective
from fedhpo_gym.stored import remembered
from fedhpo_gym.stored.health import health_cards, open_stored
from fedhpo_gym.stored.surrogate import Surrogate

ID = "MO-FedHPO-GNN-CiteSeer-v1"
NAMES = ("val_loss", "val_error", "time_s")
SETTINGS: dict[str, Any] = {"backend": "surrogate", "objectives": NAMES}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and searches of few queries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in (("MAX_QUERIES", 60), ("DRAWS", 20), ("ROUNDS", 3), ("STARTS", 8)):
        monkeypatch.setattr(truths, name, value)
    monkeypatch.setattr(truths, "_known", type(truths._known)())
    return tmp_path / "fedhpo_gym" / "truths"


@pytest.fixture
def anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Truth]:
    """Return the truth as a new process would, with its own `cache`."""
    assert not cache.exists()

    def ask(**arguments: Any) -> Truth:
        monkeypatch.setattr(truths, "_known", type(truths._known)())
        found: Truth = fedhpo_gym.truth(ID, **{**SETTINGS, **arguments})
        return found

    return ask


def all_of(truth: Truth) -> list[Any]:
    """Everything that a truth says without its rows."""
    space, rng = truth.search_space, np.random.default_rng(3)
    actions = rng.uniform(-1.0, 1.0, (5, len(space)))
    values = np.array(truth.reference()) * rng.uniform(0.2, 1.2, (30, len(NAMES)))
    said: list[Any] = [truth.best, truth.best_query, truth.typical, truth.scale, truth.regret(0.5)]
    for names in (None, NAMES[:1], NAMES[1:], (NAMES[2], NAMES[0])):
        said += [truth.ideal(names), truth.nadir(names), truth.reference(names)]
        said.append(truth.hypervolume(truth.reference(names), names))
    said += [truth.regret_of(actions), truth.relative_regret(values[:, 0])]
    said.append(truth.hypervolume_regret(values))
    return said


@pytest.mark.parametrize("limits", [None, {"val_error": 0.5}, {"val_error": 0.0}])
def test_what_is_stored_says_what_all_rows_say(
    limits: Any, cache: Path, anew: Callable[..., Truth], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = anew(constraints=limits)
    computed = all_of(replace(first, key=None))
    assert not cache.exists()
    np.testing.assert_equal(all_of(first), computed)
    assert len([*cache.iterdir()]) == 1
    monkeypatch.setattr(truths, "search", lambda *_: pytest.fail("it is stored"))
    np.testing.assert_equal(all_of(anew(constraints=limits)), computed)


@pytest.mark.parametrize("change", [lambda b: b[:-9], lambda b: b.replace(b"1", b"2"), None])
def test_a_damaged_cache_is_computed_again(
    change: Callable[[bytes], bytes] | None, cache: Path, anew: Callable[..., Truth]
) -> None:
    best = anew().best.tolist()
    [path] = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(change(whole) if change else b"[" * 10**5)
    assert anew().best.tolist() == best
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        lambda _: 5,
        lambda _: {},
        lambda good: {**good, "best": [1.0]},
        lambda good: {**good, "best": "x"},
        lambda good: {**good, "query": [1]},
        lambda good: {**good, "query": [{}, {"round": "x"}]},
        lambda good: {**good, "front": []},
        lambda good: {**good, "front": [[1.0], [1.0, 2.0]]},
        lambda good: {**good, "medians": None},
        lambda good: {**good, "losses": {"a": "b"}},
    ],
)
def test_a_result_of_another_form_is_computed_again(
    change: Callable[[Any], Any], cache: Path, anew: Callable[..., Truth]
) -> None:
    known = all_of(anew())
    [path] = cache.iterdir()
    results = remembered.read_results(path)
    remembered.write_remembered(path, {key: change(good) for key, good in results.items()})
    np.testing.assert_equal(all_of(anew()), known)
    assert remembered.read_results(path) == results


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, anew: Callable[..., Truth], monkeypatch: pytest.MonkeyPatch
) -> None:
    best = anew().best.tolist()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert anew().best.tolist() == best


def test_the_oldest_results_are_deleted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MAX_FILES", 3)
    for number in range(5):
        key = remembered.key_of(number)
        assert remembered.recall("x", key, lambda n=number: {"n": n}) == {"n": number}
        os.utime(cache / f"{key}.json", ns=(number, number))
    assert {path.stem for path in cache.iterdir()} == {remembered.key_of(n) for n in (2, 3, 4)}


def test_other_arguments_have_other_results(anew: Callable[..., Truth]) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"seed": 2},
        {"constraints": {"val_error": 0.5}},
        {"constraints": {"val_error": {"limit": 0.5, "weight": 2.0}}},
        {"fidelity": {"round": 13}},
        {"objectives": NAMES[:2]},
        {"system": {"client_upload_bytes_per_s": 1e5}},
        {"reward_transform": "squash"},
    ]
    keys = [anew(**change).key for change in changes]
    assert None not in keys
    assert len({*keys}) == len(keys)
    mine = Objective.of(lambda _: 0.0, name="mine", unit="1", minimize=True, bounds=(0.0, 1.0))
    assert anew(objectives=["val_loss", mine]).key is None, "a function has no lasting name"


def test_a_value_that_does_not_say_all_of_itself_has_no_key() -> None:
    assert remembered.key_of(object()) is None
    assert remembered.key_of(np.zeros(10**5)) is None
    assert remembered.key_of(np.zeros(3), "x", 1.5) is not None


@pytest.mark.slow
def test_keys_depend_on_no_hash_seed() -> None:
    code = f"import fedhpo_gym; print(fedhpo_gym.truth({ID!r}, **{SETTINGS!r}).key)"
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1


SURROGATES = [card.name for card in health_cards() if card.name.endswith(".surrogate.json")]


@pytest.mark.fast(2)
@pytest.mark.parametrize("name", SURROGATES)
def test_default_arguments_of_every_surrogate_search_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(truths, "search", lambda *_: pytest.fail("it is stored"))
    [card] = [card for card in health_cards() if card.name == name]
    stored = open_stored(card)
    assert isinstance(stored, Surrogate)
    for task in answering_tasks(stored):
        arguments = {option: getattr(task, option) for option in task.options}
        settings = {"settings": dict(task.settings) or None, "backend": "surrogate"}
        for prefix in ("", "MO-"):
            env = gym.make(f"{prefix}{task.id}", **arguments, **settings)
            for known in (env.unwrapped.truth, env.unwrapped.full_truth):  # type: ignore[attr-defined]
                assert np.isfinite(known.best).all()
                assert known.regret(known.best[0]) == 0.0
    assert not (tmp_path / "fedhpo_gym").exists()


@pytest.mark.fast(2)
@pytest.mark.parametrize("card", health_cards(), ids=lambda card: card.name)
def test_limits_of_every_stored_problem_are_stored(
    card: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stored = open_stored(card)
    for task in answering_tasks(stored):
        backend = "surrogate" if isinstance(stored, Surrogate) else "tabular"
        limits_of(task, backend)
    assert not (tmp_path / "fedhpo_gym").exists()


def test_stored_limits_are_those_that_are_computed() -> None:
    [card] = [one for one in health_cards() if one.name == SURROGATES[0]]
    task = answering_tasks(open_stored(card))[0]
    _, _, compute = limits_request(task, "surrogate")
    assert limits_of(task, "surrogate") == compute()


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["FedHPO-LR-CreditG-v0", "FedHPO-LR-CreditG-v1"])
def test_regret_at_full_fidelity_is_stored_for_all_that_actions_can_ask(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = gym.make(env_id, backend="tabular").unwrapped.full_truth
    queries = [full.query(row)[0] for row in range(0, len(full.values), 7)]
    computed = replace(full, key=None).regret_at(queries)
    monkeypatch.setattr(truths, "values_of_queries", lambda *_: pytest.fail("it is stored"))
    np.testing.assert_array_equal(full.regret_at(queries), computed)
