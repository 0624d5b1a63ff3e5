"""Laws of the references of round environments, on quadratics, which are quick and known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents.schedule import KINDS, Schedule
from fedhpo_gym.backends.quadratic_schedules import best_schedule
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    MissingDataError,
    MissingDependencyError,
)
from fedhpo_gym.envs.arguments import PlainSpec
from fedhpo_gym.envs.round.env import _references
from fedhpo_gym.stored import references as stored
from fedhpo_gym.stored.references import References, dumped, read, references_of
from fedhpo_gym.studies import references
from fedhpo_gym.studies.references import Player, SearchBudget, evenly_spaced, find_references
from fedhpo_gym.studies.suites import suite

ID = "FedHPO-DAC-Quadratic-v1"
LITTLE = SearchBudget(16, 2, 4, 4, 4, 6, 8)


@pytest.fixture(scope="module")
def found() -> References:
    return find_references(ID, LITTLE, width=16)


def made(**returns: tuple[float, ...]) -> References:
    return References(ID, (0, 1), returns, {}, None, {})


@pytest.mark.slow
def test_hindsight_is_at_least_every_reference_on_every_instance(found: References) -> None:
    returns = np.array([found.returns[name] for name in found.returns if name != "random"])
    assert (returns <= np.array(found.returns["hindsight"])).all()
    assert {"default", "static", "cosine", "decaying epochs"} <= set(found.returns)
    assert "growing participation" not in found.returns  # no action sets who takes part


@pytest.mark.slow
def test_neither_width_nor_a_second_run_changes_a_number(found: References) -> None:
    assert find_references(ID, LITTLE, width=5) == found


@pytest.mark.slow
def test_more_generations_never_make_hindsight_worse(found: References) -> None:
    less = find_references(ID, replace(LITTLE, generations=2), width=16)
    assert (np.array(less.returns["hindsight"]) <= found.returns["hindsight"]).all()


def test_a_sequence_returns_what_a_single_environment_returns() -> None:
    player = Player(ID, "test", 3)
    env = gym.make(ID, instances="test")
    instance = env.unwrapped.instances[5]
    rounds, _ = best_schedule(instance)
    actions = np.stack([player.space.encode(one) for one in rounds]).astype(np.float32)
    sequence = np.resize(actions, (player.steps, 2))
    sequence[len(actions) :] = actions[-1]
    env.reset(options={"instance": 5})
    total, over, step = 0.0, False, 0
    while not over:
        _, reward, over, _, _ = env.step(sequence[step])
        total, step = total + reward, step + 1
    assert player.play([5], sequence[None]).tolist() == [total]


def test_a_schedule_falls_with_the_budget_where_that_ends_first() -> None:
    env = gym.make("FedHPO-DAC-Deadline-v1", instances="test")
    player = Player("FedHPO-DAC-Deadline-v1", "test", 3)
    space = player.space
    schedule = Schedule(space, space.decode(np.zeros(len(space))), "exponential")
    shown, _ = env.reset(options={"instance": 2})
    total, over, taken = 0.0, False, []
    while not over:
        taken.append(schedule.act(shown))
        shown, reward, over, _, _ = env.step(taken[-1])
        total += reward
    returns, actions = player.follow([schedule], [2])
    assert shown["remaining_budget"] == 0.0 < shown["remaining_rounds"]
    assert returns.item() == pytest.approx(total, abs=1e-6)
    np.testing.assert_allclose(actions[0, 0, : len(taken)], taken, atol=1e-6)
    first, last = (space.decode(one)["learning_rate"] for one in (taken[0], taken[-1]))
    assert 0.01 <= last / first < 0.05, "a hundredth where the budget ends"


def test_scores_are_0_for_the_default_and_1_for_the_best_static_action() -> None:
    one = made(default=(0.0, 2.0), static=(2.0, 4.0), hindsight=(5.0, 5.0))
    assert one.score([1.0, 3.0, 5.0]).tolist() == [0.0, 1.0, 2.0]
    assert one.interval(one.returns["static"]) == (1.0, 1.0, 1.0)
    assert one.headroom == (1.0, 0.5, 1.5)  # both samples of one instance: 5 is 1.5 or 2.5


def test_returns_are_compared_instance_by_instance_with_the_best_static_and_the_best_schedule() -> (
    None
):
    static = (1.0, 9.0, 2.0, 8.0, 3.0, 7.0)
    step = tuple(value + 1.0 for value in static)
    returns = {"default": (0.0,) * 6, "static": static, "step": step, "hindsight": step}
    known = References(ID, tuple(range(6)), returns, {}, "step", {})
    first, second = known.compare(np.array(static) + 0.5)
    for paired, gain, better in ((first, 0.5, 6), (second, -0.5, 0)):
        assert (paired.difference, paired.interval) == (gain, (gain, gain)), "instances cancel out"
        assert paired.p_value == 2 / 2**6, "of all signs, two are as extreme"
        assert (paired.better, paired.instances) == (better, 6)
    assert str(first).startswith("above the best static action by Wilcoxon's signed-rank test, p =")
    assert "below the schedule 'step' by" in str(second)
    assert "mean difference -0.5000 [-0.5000, -0.5000]" in str(second)
    (even,) = References(ID, (0, 1), {"static": (1.0, 2.0)}, {}, None, {}).compare([2.0, 1.0])
    assert str(even).startswith("not told apart from the best static action by Wilcoxon's")
    with pytest.raises(InvalidArgumentError, match=r"`returns` must be \(6,\) finite numbers"):
        known.compare([1.0, np.nan, 0.0, 0.0, 0.0, 0.0])
    for call in (known.compare, known.interval, known.score):
        with pytest.raises(InvalidArgumentError, match="`returns` must be an array of real"):
            call(["a", 2.0, 3.0, 4.0, 5.0, 6.0])


def test_where_the_default_is_best_nothing_has_a_score() -> None:
    level = made(default=(1.0, 1.0), static=(1.0, 1.0), hindsight=(2.0, 2.0))
    assert np.isnan(level.score([2.0])).all()


@pytest.mark.slow
def test_a_file_is_read_as_it_was_written(found: References, tmp_path: Path) -> None:
    path = tmp_path / "references.json"
    path.write_text(dumped([found]), encoding="utf-8")
    again = read(path)[ID]
    assert again.returns.keys() == found.returns.keys()
    np.testing.assert_allclose(again.returns["hindsight"], found.returns["hindsight"], rtol=1e-4)
    assert dumped([again]) == dumped([found])


ENTRY: dict[str, Any] = {
    "instances": [0, 1],
    "returns": {name: [0.0, 1.0] for name in ("default", "static", "hindsight")},
    "configurations": {},
    "best_schedule": None,
    "effort": {},
}


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"ids": {"a": 1}}', '{"ids": {"a": {}}}', "[]", '{"ids": ' * 5_000 + "}" * 5_000]
    + [
        json.dumps({"ids": {"a": {**ENTRY, **change}}})
        for change in (
            {"instances": []},
            {"returns": {"default": [0.0, 1.0]}},
            {"returns": {**ENTRY["returns"], "random": [1]}},
            {"returns": {**ENTRY["returns"], "random": [0.0, 10**400]}},
            {"returns": {**ENTRY["returns"], "random": [0.0, math.nan]}},
            {"best_schedule": "step"},
            {"effort": {"test": [1]}},
            {"configurations": [1]},
        )
    ],
)
def test_a_damaged_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "references.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DamagedDataError, match="does not hold references"):
        read(path)


def test_an_environment_tells_those_of_its_id_unless_arguments_differ(
    found: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "read", lambda _: {ID: found})
    assert gym.make(ID, instances="val").unwrapped.references == found
    assert gym.make(f"MO-{ID}").unwrapped.references == found
    assert gym.make_vec(ID, 2, "vector_entry_point").references == found
    assert gym.make(ID, budget_s=100.0).unwrapped.references is None
    assert references_of("FedHPO-DAC-LR-CreditG-v1") is None


@pytest.mark.parametrize("env_id", suite("dac"))
def test_what_comes_back_from_json_has_the_references_of_its_id(env_id: str) -> None:
    env = PlainSpec()  # what an environment does with its spec
    env.spec = EnvSpec.from_json(gym.spec(env_id).to_json())
    assert _references(env.spec) is not None


@pytest.mark.slow
def test_what_is_searched_is_best_on_train_instances(found: References) -> None:
    player = Player(ID, "train", 16)
    many = evenly_spaced(player.instances, LITTLE.train)

    def mean(kind: str, configuration: Mapping[str, Any]) -> float:
        schedule = Schedule(player.space, configuration, kind)
        return float(player.follow([schedule], many)[0].mean())

    means = {kind: mean(kind, one) for kind, one in found.configurations.items()}
    middle = player.space.decode(np.zeros(len(player.space)))
    assert all(means[kind] >= mean(kind, middle) for kind in means)
    best = max((kind for kind in means if kind != "static"), key=lambda kind: means[kind])
    assert found.best_schedule == best


@pytest.mark.slow
def test_test_instances_decide_nothing(found: References, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Player):
        def __init__(self, env_id: str, instances: str, *more: Any) -> None:
            super().__init__(env_id, {"test": "val"}.get(instances, instances), *more)

    monkeypatch.setattr(references, "Player", Other)
    other = find_references(ID, LITTLE, width=16)
    assert other.configurations == found.configurations
    assert other.best_schedule == found.best_schedule
    assert other.returns != found.returns


def test_the_command_computes_what_is_missing_and_keeps_the_rest(
    found: References,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, other, computed = tmp_path / "references.json", "FedHPO-DAC-FewClients-v1", []

    def compute(env_id: str, effort: SearchBudget, **_: Any) -> References:
        computed.append(env_id)
        return replace(found, id=env_id, effort=vars(effort))

    monkeypatch.setattr("fedhpo_gym.cli.references.find_references", compute)

    def asked(*words: str) -> int:
        return main(["references", *words, "--out", str(out)])

    assert asked(ID, "--effort", "least") == asked(other, "--effort", "least") == 0
    assert {*read(out)} == {ID, other}
    before = out.read_bytes()
    assert asked(ID, other, "--effort", "least") == 0
    assert computed == [ID, other]
    assert out.read_bytes() == before
    assert asked(ID, "--effort", "half") == 0
    assert computed == [ID, other, ID]
    assert asked(ID, "--effort", "least", "--again") == 1
    assert "name another --out" in capsys.readouterr().err
    assert computed == [ID, other, ID]
    out = tmp_path / "missing" / "references.json"
    assert asked(ID, "--effort", "least") == 0
    assert {*read(out)} == {ID}
    out = tmp_path
    assert asked(ID, "--effort", "least") == 2
    assert "`--out` must be a file, got the folder" in capsys.readouterr().err
    assert computed == [ID, other, ID, ID], "before anything is computed"
    assert asked("FedHPO-LR-CreditG-v1") == 2
    assert "`ids` must be of round environments" in capsys.readouterr().err


def test_an_effort_of_another_version_is_named(
    found: References, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "references.json"
    effort = {**found.effort, "guesses": 3}
    out.write_text(dumped([replace(found, effort=effort)]), encoding="utf-8")
    assert main(["references", found.id, "--out", str(out)]) == 2
    words = capsys.readouterr().err
    assert words.count("\n") == 1
    assert f"{out} must hold references whose `effort` is that of this version" in words
    assert "'guesses'" in words


def test_instances_are_spread() -> None:
    assert evenly_spaced(48, 4) == [0, 16, 31, 47]
    assert evenly_spaced(3, 16) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [ID, "FedHPO-DAC-FewClients-v1", "FedHPO-DAC-Tuna-v1"])
def test_what_is_stored_is_what_the_environment_returns(env_id: str) -> None:
    pytest.importorskip("numba")
    one = references_of(env_id)
    assert one is not None
    try:
        player = Player(env_id, "test", 16)
    except (MissingDataError, MissingDependencyError) as error:
        pytest.skip(str(error))
    default = np.zeros((16, player.steps, len(player.space)), np.float32)
    returns = player.play(one.instances, default)
    np.testing.assert_allclose(returns, one.returns["default"], rtol=1e-4, atol=1e-5)


def test_all_problems_of_the_suite_have_known_headroom() -> None:
    for env_id in suite("dac"):
        one = references_of(env_id)
        assert one is not None, env_id
        mean, low, _ = one.headroom
        assert mean >= 0.5, env_id
        assert low > 0.2, env_id
        assert set(one.returns) - {"random", "default", "hindsight"} <= set(KINDS)


def test_the_page_says_what_is_stored() -> None:
    from references_page import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page(), "run `python docs/site/references_page.py`"
