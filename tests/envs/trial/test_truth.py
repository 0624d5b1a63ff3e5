"""The truth of a trial environment: against exhaustive search, and out of an agent's sight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.trial import truth as truths
from fedhpo_gym.envs.trial.ledger import spending
from fedhpo_gym.envs.trial.truth import Queries, TrialTruth
from fedhpo_gym.envs.truth import SearchResult, Truth
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.catalogue import open_table
from fedhpo_gym.wrappers import RegretInfo

ID = "FedHPO-LR-BreastCancer-v0"
FULL = {"round": 500, "client_sample_rate": 1.0}
TWO = ("val_loss", "fairness_std")


@pytest.fixture(scope="module")
def truth() -> Truth:
    found: Truth = fedhpo_gym.truth(ID, objectives=(*TWO, "val_error"), fidelity=FULL)
    return found


@pytest.mark.slow
def test_the_truth_is_all_that_can_be_asked(truth: Truth) -> None:
    assert truth.exact
    env = gym.make(f"MO-{ID}", objectives=(*TWO, "val_error"), fidelity=FULL)
    own = env.unwrapped
    assert len(truth.values) == own.search_space.grid_size == 672  # type: ignore[attr-defined]
    for index in (0, 100, 671):
        configuration, fidelity = truth.query(index)
        assert (fidelity.round, fidelity.client_sample_rate) == (500, 1.0)
        env.reset(seed=0)
        action = own.search_space.encode(configuration)  # type: ignore[attr-defined]
        *_, info = env.step(action)
        assert list(info["objectives"].values()) == truth.values[index].tolist()
    assert own.truth is truth, "it is computed once"  # type: ignore[attr-defined]


def test_the_optimum_is_the_tables(truth: Truth) -> None:
    table = open_table("LR-BreastCancer-fedavg")
    losses = table.objective()[-1, ..., -1, :].mean(axis=-1)
    assert truth.values[truth.optimum, 0] == pytest.approx(losses.min(), rel=1e-12)
    index = np.unravel_index(losses.argmin(), losses.shape)
    grid = table.space.dimensions
    wanted = {d.name: d.grid[i] for d, i in zip(grid, index, strict=True)}
    assert truth.query(truth.optimum)[0] == wanted


def test_the_card_states_the_optimum_of_all_fidelities() -> None:
    stated = open_table("LR-BreastCancer-fedavg").card["health"]["optimum"]
    found = fedhpo_gym.truth(ID, objectives=("val_loss",))
    configuration, fidelity = found.query(found.optimum)
    loss = pytest.approx(found.values[found.optimum, 0], rel=1e-4)
    wanted = {"val_loss": loss, "configuration": configuration, **vars(fidelity)}
    assert {name: stated[name] for name in wanted} == wanted


@pytest.mark.parametrize("names", [TWO, ("val_error", "fairness_std"), None])
def test_fronts_are_those_of_exhaustive_search(truth: Truth, names: tuple[str, ...] | None) -> None:
    known = [objective.name for objective in truth.objectives]
    assert all(objective.minimize for objective in truth.objectives)
    values = truth.values[:, [known.index(name) for name in names or known]]
    front = [
        i for i, p in enumerate(values) if not ((values <= p).all(1) & (values < p).any(1)).any()
    ]
    assert truth.front(names).tolist() == front
    assert truth.ideal(names).tolist() == values.min(axis=0).tolist()
    assert truth.nadir(names).tolist() == values[front].max(axis=0).tolist()


def test_regret_is_zero_at_the_optimum_and_one_at_the_median(truth: Truth) -> None:
    losses = truth.values[:, 0]
    regrets = truth.regret(losses)
    assert regrets.min() == regrets[truth.optimum] == 0.0
    assert regrets.tolist() == (losses - losses.min()).tolist()
    relative = truth.relative_regret(losses)
    assert truth.relative_regret(np.median(losses)) == 1.0
    assert relative.max() == 1.0, "what is worse than luck counts as luck"
    order = np.argsort(losses, kind="stable")
    assert (np.diff(relative[order]) >= 0).all()


def test_hypervolume_regret_by_hand() -> None:
    # Volumes end at 10, the median loss, and at 21, a tenth beyond the front: 10 * 1 + 5 * 5.
    found = made_truth([[0.0, 20.0], [10.0, 10.0], [5.0, 15.0], [20.0, 30.0], [20.0, 30.0]])
    asked = [[20.0, 30.0], [10.0, 10.0], [5.0, 15.0], [5.0, 15.0], [0.0, 20.0]]
    shares = found.hypervolume_regret(asked)
    assert shares == pytest.approx([1.0, 1.0, 1 - 30 / 35, 1 - 30 / 35, 0.0])


def test_nan_is_worse_than_any_number_and_puts_no_trial_out_of_the_front() -> None:
    found = made_truth([[0.0, 20.0], [10.0, 10.0], [5.0, 15.0], [20.0, 30.0], [20.0, 30.0]])
    asked = [[np.nan, 20.0], [0.0, 20.0], [5.0, np.nan]]
    worst = [[np.inf, 20.0], [0.0, 20.0], [5.0, np.inf]]
    expected = found.hypervolume_regret(worst).tolist()
    assert expected[0] == 1.0
    assert expected[1] == expected[2] < 1.0
    assert found.hypervolume_regret(asked).tolist() == expected
    assert found.hypervolume_regret(worst, observed=asked).tolist() == expected


def test_one_trial_can_be_the_whole_front() -> None:
    found = made_truth([[1.0, 1.0], [2.0, 2.0]])
    assert found.hypervolume_regret([[2.0, 2.0], [1.0, 1.0], [2.0, 2.0]]).tolist() == [1, 0, 0]


def made_truth(values: list[list[float]]) -> Truth:
    setup = gym.make(f"MO-{ID}", objectives=TWO).unwrapped.setup  # type: ignore[attr-defined]
    asked = Queries(setup, np.arange(len(values)), {})
    result = SearchResult(lambda: (asked, np.array(values), len(values)))
    return TrialTruth(objectives=setup.objectives, exact=True, _setup=setup, _result=result)


@pytest.mark.parametrize("index", [1.5, True, 2, -3, 10**9, None])
def test_a_row_that_there_is_not_is_refused(index: Any) -> None:
    found = made_truth([[0.0, 0.5], [1.0, 0.4]])
    assert found.query(-1) == found.query(np.int64(1))
    with pytest.raises(InvalidArgumentError, match="`index` must be a whole number from -2 to 1"):
        found.query(index)


def test_maximized_objectives_keep_their_sign() -> None:
    found = fedhpo_gym.truth(ID, objectives=("val_f1", "val_loss"), fidelity=FULL)
    assert found.values[found.optimum, 0] == found.values[:, 0].max() == found.ideal()[0]
    assert found.nadir()[0] < found.ideal()[0]
    assert found.hypervolume([0.0, 10.0]) > 0


@pytest.mark.slow
def test_a_surrogate_is_asked_on_a_grid_and_between(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: Any = {"algorithm": "nbafl", "objectives": ("val_loss", "epsilon")}
    monkeypatch.setattr(truths, "MAX_QUERIES", 300)
    monkeypatch.setattr(truths, "DRAWS", 200)
    found = fedhpo_gym.truth("FedHPO-GNN-Cora-v1", **arguments)
    assert not found.exact
    assert (found.on_lattice, len(found.values)) == (300, 800 + truths.STARTS)
    env = gym.make("MO-FedHPO-GNN-Cora-v1", **arguments)
    for row in (0, 299, 300, 499, found.optimum):
        configuration, fidelity = found.query(row)
        values = {**configuration, "round": fidelity.round}
        values["client_sample_rate"] = fidelity.client_sample_rate
        env.reset(seed=0)
        action = env.unwrapped.search_space.encode(values)  # type: ignore[attr-defined]
        *_, info = env.step(action)
        wanted = found.values[row].tolist()
        assert list(info["objectives"].values()) == pytest.approx(wanted, rel=1e-5)
    drawn = [found.query(row)[1] for row in range(300, 500)]
    assert {(one.round, one.client_sample_rate) for one in drawn} == {(125, 1.0)}
    assert len(found.front()) > 1, "privacy is paid for in loss"
    median = np.median(found.values[:300, 0])
    assert found.relative_regret(median) == 1.0, "what a random trial brings is the lattice's"
    assert found.relative_regret(np.median(found.values[:, 0])) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_between_the_points_of_a_grid_there_is_more_than_on_it(order: tuple[bool, ...]) -> None:
    truths._known.clear()
    found = {}
    for grid in order:
        truth = fedhpo_gym.truth("FedHPO-MLP-Vehicle-v1", backend="surrogate", grid=grid)
        assert truth.exact == grid
        found[grid] = float(truth.best[0])
    assert found[False] < found[True] == truth.values[: truth.on_lattice, 0].min()


@pytest.mark.slow
def test_random_configurations_do_not_beat_the_truth_of_the_flagship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(truths, "MAX_QUERIES", 20_000)
    env: Any = gym.make("FedHPO-CNN-FEMNIST-v1").unwrapped
    known, rng = fedhpo_gym.truth("FedHPO-CNN-FEMNIST-v1"), np.random.default_rng(0)
    drawn = [env.backend.space.sample(rng) for _ in range(300)]
    found = env.backend.evaluate_many([(one, Fidelity(81, 1.0)) for one in drawn])
    lattice = known.values[: known.on_lattice, 0].min()
    assert known.values[known.optimum, 0] < found.mean("val", "loss").min() < lattice


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nobody knows what they can reach"):
        fedhpo_gym.truth("FedHPO-DAC-LR-BreastCancer-v1")
    with pytest.raises(UnknownNameError, match="objective"):
        fedhpo_gym.truth(ID, fidelity=FULL).front(["val_los"])


def test_no_agent_sees_it() -> None:
    env = gym.make(ID)
    observation, info = env.reset(seed=0)
    assert "truth" not in observation
    assert "truth" not in info
    *_, info = env.step(env.action_space.sample())
    assert "truth" not in info


def test_who_watches_may_see_regret(truth: Truth) -> None:
    env = RegretInfo(gym.make(ID, objectives=(*TWO, "val_error"), fidelity=FULL))
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        *_, info = env.step(env.action_space.sample())
        loss = info["incumbent"]["val_loss"]
        assert info["regret"] == loss - truth.values[truth.optimum, 0]
        assert info["relative_regret"] == truth.relative_regret(loss)
    with pytest.raises(InvalidArgumentError, match="truth"):
        RegretInfo(gym.make("CartPole-v1"))


def test_with_instances_it_is_that_of_the_episode() -> None:
    env = gym.make("FedHPO-LR-BreastCancer-v0", instances=[{"seed": 1}, {"seed": 2}])
    found = []
    for number, seed in enumerate((1, 2)):
        env.reset(seed=0, options={"instance": number})
        truth = env.unwrapped.truth  # type: ignore[attr-defined]
        alone = fedhpo_gym.truth("FedHPO-LR-BreastCancer-v0", seed=seed)
        assert np.array_equal(truth.values, alone.values)
        found.append(truth.values)
    assert not np.array_equal(*found)


@pytest.mark.parametrize("name", [ID, "FedHPO-LR-CreditG-v1"])
def test_constraints_bind_the_truth_as_they_bind_any_list_of_trials(name: str) -> None:
    limits = {"fairness_std": 0.08}
    plain, known = fedhpo_gym.truth(name), fedhpo_gym.truth(name, constraints=limits)
    feasible = plain.values[plain.values[:, 1] <= 0.08]
    assert known.ideal().tolist() == feasible.min(axis=0).tolist()
    assert plain.ideal(constraints=limits).tolist() == known.ideal().tolist()
    assert known.values[known.optimum, 1] <= 0.08
    assert (known.violations[known.front()] == 0).all()
    assert known.regret(feasible[:, 0]).min() == 0.0
    nobody = plain.under({"fairness_std": 0.0})
    assert nobody.values[nobody.optimum, 1] == plain.values[:, 1].min()


@pytest.mark.parametrize("wrong", ["x", {}, 1j, [[]], [1, "x"], None], ids=str)
def test_what_are_no_numbers_is_refused(truth: Truth, wrong: Any) -> None:
    for ask in (truth.regret, truth.hypervolume, truth.hypervolume_regret):
        with pytest.raises(InvalidArgumentError, match=r"`(values|reference)`|columns"):
            ask([[1.0, wrong]] if ask == truth.regret else wrong)
    with pytest.raises(InvalidArgumentError, match="`names`"):
        truth.front(3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_of_a_surrogate_portions_change_no_bit_and_no_query_is_checked_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    id_ = "FedHPO-GNN-Cora-v1"
    monkeypatch.setattr(truths, "MAX_QUERIES", 200)
    monkeypatch.setattr(truths, "DRAWS", 50)
    monkeypatch.setattr(truths, "ROUNDS", 3)
    monkeypatch.setattr(truths, "_known", type(truths._known)())
    arguments: Any = {"backend": "surrogate", "fidelity": {"round": 27}, "objectives": TWO}
    queries = fedhpo_gym.truth(id_, **arguments)
    some = [0, 5, len(queries.values) - 1]
    backend = queries._setup.backend
    alone = [backend.evaluate(*queries.query(row)).mean("val", "loss") for row in some]
    assert queries.values[some, 0].tolist() == alone
    monkeypatch.setattr(truths, "_known", type(truths._known)())
    monkeypatch.setattr(truths, "NUMBERS_AT_ONCE", 3 * 135)
    monkeypatch.setattr(type(backend), "evaluate_many", lambda *_: pytest.fail("one by one"))
    again = fedhpo_gym.truth(id_, **arguments)
    assert again is not queries
    np.testing.assert_array_equal(again.values, queries.values)


@pytest.mark.slow
def test_metrics_that_no_objective_reads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    id_, backend = "FedHPO-LR-Synthetic-v1", gym.make("FedHPO-LR-Synthetic-v1").unwrapped.backend
    known = backend.task.objectives
    names = [n for n in known if known[n].reads_clients and not backend.why_refused(n)]
    for name, number in (("MAX_QUERIES", 20), ("DRAWS", 5)):
        monkeypatch.setattr(truths, name, number)
    for name in ("ROUNDS", "STARTS"):
        monkeypatch.setattr(truths, name, 2)
    monkeypatch.setattr(truths, "_known", type(truths._known)())
    alone, every = (fedhpo_gym.truth(id_, objectives=chosen) for chosen in (names[:1], names))
    np.testing.assert_array_equal(every.values[:, 0], alone.values[:, 0])
    columns = every._queries.columns(np.arange(len(every.values)))
    answers, spent = backend.look_up(columns), spending(backend.task, columns)
    for one in every.objectives:
        found = one.compute(backend.look_up(columns, one.reads), spent)
        expected = one.compute(answers, spent)
        np.testing.assert_array_equal(found, expected, err_msg=one.name)
    wrong = replace(known[names[-1]], name="wrong", reads=known[names[0]].reads)
    own = fedhpo_gym.truth(id_, objectives=[names[0], wrong])
    np.testing.assert_array_equal(
        own.values[:, 1], every.values[:, -1], "what a user says it reads"
    )


def test_under_constraints_everything_is_of_what_keeps_them() -> None:
    found = made_truth([[0.0, 0.5], [1.0, 0.4], [4.0, 0.1], [6.0, 0.1], [8.0, 0.1]])
    bound = found.under({"fairness_std": 0.2})
    assert (bound.regret(bound.values[bound.optimum, 0]), bound.typical) == (0.0, 6.0)
    assert bound.relative_regret([4.0, 5.0, 6.0, 8.0]).tolist() == [0.0, 0.5, 1.0, 1.0]
    assert bound.reference(["val_loss"]).tolist() == [6.0]
    assert found.typical == 4.0, "without constraints all are feasible"


def test_scores_follow_the_reward_transform_whatever_was_asked_before() -> None:
    for transform in ("clip", "squash"):
        own: Any = gym.make(ID, reward_transform=transform).unwrapped
        assert own.full_truth.objectives[0].transform == transform


TOLERANCE = 1e-4
"""Share of the scale, from the optimum to the reference, by which a truth may be beaten."""
STARTS, OFFSPRING, ROUNDS = 20, 25, 100


def lowest_regret(env_id: str, queries: int = 100_000, **arguments: Any) -> float:
    """Return the lowest regret at full fidelity that queries find, over the truth's scale.

    Half of the queries are random, the others those of evolution strategies from the best of them,
    whose steps grow where offspring are better and shrink where they are not (Rechenberg, 1973).
    It is below `-TOLERANCE` where the truth is wrong; 0 is the truth's optimum.
    """
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    env.reset(seed=0)
    truth, rng = env.get_wrapper_attr("full_truth"), stream(1, "lowest_regret")
    size = len(truth.search_space)

    def regret(actions: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = np.array_split(actions, -(-len(actions) // 4096))
        return np.concatenate([truth.regret_of(part) for part in parts])

    drawn = rng.uniform(-1.0, 1.0, (queries // 2, size))
    found = regret(drawn)
    lowest, best = float(found.min()), np.argsort(found, kind="stable")[:STARTS]
    places, values, steps = drawn[best], found[best], np.full((len(best), 1), 0.2)
    for _ in range(max(queries // 2 // (STARTS * OFFSPRING), 1)):
        moved = places[:, None] + rng.normal(size=(len(best), OFFSPRING, size)) * steps[:, None]
        moved = np.clip(moved, -1.0, 1.0)
        answers = regret(moved.reshape(-1, size)).reshape(len(best), OFFSPRING)
        chosen, each = answers.argmin(axis=1), np.arange(len(best))
        better = answers[each, chosen] < values
        places = np.where(better[:, None], moved[each, chosen], places)
        values = np.where(better, answers[each, chosen], values)
        success = (answers < values[:, None] + 1e-15).mean(axis=1, keepdims=True)
        steps = np.clip(steps * np.where(success > 0.2, 1.5, 0.85), 1e-5, 1.0)
        lowest = min(lowest, float(values.min()))
    return lowest / float(truth.scale)


SMALL = "FedHPO-LR-CreditG-v1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        (SMALL, {}),
        (SMALL, {"backend": "surrogate"}),
        ("FedHPO-GNN-Cora-v1", {"constraints": {"fairness_std": 0.1}}),
    ],
)
def test_no_query_beats_the_truth(env_id: str, arguments: dict[str, Any]) -> None:
    assert lowest_regret(env_id, 3_000, **arguments) >= -TOLERANCE


@pytest.mark.slow
def test_no_query_beats_the_truth_of_a_wide_space() -> None:
    assert lowest_regret("FedHPO-MLP-Car-v1") >= -TOLERANCE


@pytest.mark.slow
def test_a_truth_without_the_search_is_beaten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truths, "STARTS", 1)
    monkeypatch.setattr(truths, "ROUNDS", 1)
    monkeypatch.setattr(truths, "_known", type(truths._known)())
    assert lowest_regret("FedHPO-MLP-Digits-v1", 20_000) < -TOLERANCE


@pytest.mark.parametrize(("most", "places"), [(truths.MOST_METRICS, 64), (1, 8)])
def test_a_search_starts_from_fewer_places_where_answers_are_large(
    most: int, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truths, "MOST_METRICS", most)
    monkeypatch.setattr(truths, "ROUNDS", 1)
    monkeypatch.setattr(truths, "DRAWS", 100)
    monkeypatch.setattr(truths, "_known", type(truths._known)())
    found = fedhpo_gym.truth(SMALL, backend="surrogate", fidelity={"round": 27})
    assert len(found.values) == found.on_lattice + 100 + places
