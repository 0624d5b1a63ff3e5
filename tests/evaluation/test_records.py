"""Evaluations check themselves, average by hand, and say side by side what each says alone."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.evaluation.records import (
    CLASSIFICATION,
    METRICS,
    SPLITS,
    Evaluation,
    Evaluations,
    Fidelity,
    mean_over_clients,
    num_sampled_clients,
    sum_in_order,
)
from fedhpo_gym.objectives import client_fairness, fairness_vector, get_objective
from fedhpo_gym.space import Dimension


def make(**changes: Any) -> Evaluation:
    """Two seeds, three clients; entry = 1000 seed + 100 client + 10 split + metric."""
    seed, client, split, metric = np.indices((2, 3, 3, 3))
    best = 1000.0 * seed + 100.0 * client + 10.0 * split + metric
    fields: dict[str, Any] = {
        "best": best,
        "current": best + 0.5,
        "num_samples": np.tile(np.array([[8, 2, 1], [1, 1, 1], [1, 1, 0]]), (2, 1, 1)),
        "best_round": np.array([4, 5]),
        "diverged": np.array([False, False]),
        "seeds": (1, 2),
        "fidelity": Fidelity(9, 1.0),
        **changes,
    }
    return Evaluation(**fields)


def test_the_worst_value_is_the_bound_on_the_bad_side() -> None:
    assert [metric.worst for metric in CLASSIFICATION] == [10.0, 0.0, 0.0]


def test_clients_takes_one_split_and_metric() -> None:
    expected = [[21, 121, 221], [1021, 1121, 1221]]
    assert make().clients("test", "accuracy").tolist() == expected
    assert make().clients("test", "accuracy", which="current")[0, 0] == 21.5


def test_mean_weights_clients_by_samples_and_seeds_equally() -> None:
    # Train weights 8, 1, 1: seed 0 gives (8*2 + 102 + 202)/10 = 32, seed 1 gives 1032.
    assert make().mean("train", "f1") == pytest.approx((32 + 1032) / 2)
    assert make().mean("train", "f1", which="current") == pytest.approx((32 + 1032) / 2 + 0.5)


def test_seeds_may_weigh_clients_differently() -> None:
    samples = np.ones((2, 3, 3), dtype=int)
    samples[1, 2, 1] = 6
    # Seed 0: (10 + 110 + 210)/3 = 110; seed 1: (1010 + 1110 + 6*1210)/8 = 1172.5.
    assert make(num_samples=samples).mean("val", "loss") == pytest.approx((110 + 1172.5) / 2)


@pytest.mark.parametrize("hole", [np.nan, np.inf])
def test_client_without_samples_has_no_say(hole: float) -> None:
    best = make().best
    best[:, 2, 2, :] = hole
    # Test weights 1, 1, 0: seed 0 gives (20 + 120)/2 = 70, seed 1 gives 1070.
    assert make(best=best).mean("test", "loss") == pytest.approx(570.0)


def test_empty_split_is_refused() -> None:
    samples = make().num_samples
    samples[1, :, 2] = 0
    with pytest.raises(InvalidArgumentError, match="`split` must hold samples, but 'test'"):
        make(num_samples=samples).mean("test", "loss")


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown split 'valid'. Did you mean 'val'"):
        make().mean("valid", "loss")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="Unknown metric 'acc'"):
        make().clients("val", "acc")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="`which` must be 'best' or 'current', got 'x'"):
        make().mean("val", "loss", which="x")  # type: ignore[arg-type]


def test_absent_current_says_what_to_do() -> None:
    with pytest.raises(InvalidArgumentError, match=r"not known.*use which='best'"):
        make(current=None).mean("val", "loss", which="current")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"best": np.zeros((2, 3, 3))}, r"`best` must have shape .* got \(2, 3, 3\)"),
        ({"best": np.zeros((2, 3, 3, 2))}, "`best` must have shape"),
        ({"current": np.zeros((2, 4, 3, 3))}, r"`current` must have shape \(2, 3, 3, 3\)"),
        ({"num_samples": np.ones((2, 3))}, r"`num_samples` must have shape \(2, 3, 3\)"),
        ({"best_round": np.ones(3)}, r"`best_round` must have shape \(2,\)"),
        ({"diverged": np.zeros((2, 1))}, r"`diverged` must have shape \(2,\)"),
        ({"seeds": (1,)}, "`seeds` must name the 2 seeds"),
    ],
)
def test_evaluation_refuses_wrong_shapes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("rounds", "rate", "message"),
    [
        (-1, 1.0, "`round` must be an integer >= 0, got -1"),
        (1.0, 1.0, "`round` must be"),
        (True, 1.0, "`round` must be"),
        ("3", 1.0, "`round` must be"),
        (1, 0.0, r"`client_sample_rate` must be in \(0, 1\], got 0.0"),
        (1, 1.01, "`client_sample_rate` must be"),
        (1, float("nan"), "`client_sample_rate` must be"),
        (1, "0.5", "`client_sample_rate` must be"),
        (1, None, "`client_sample_rate` must be"),
        (1, True, "`client_sample_rate` must be"),
    ],
)
def test_fidelity_refuses_bad_fields(rounds: Any, rate: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Fidelity(rounds, rate)


def test_fidelity_holds_builtin_numbers_and_hashes() -> None:
    fidelity = Fidelity(np.int64(3), np.float64(1))  # type: ignore[arg-type]
    assert type(fidelity.round) is int
    assert type(fidelity.client_sample_rate) is float
    assert fidelity == Fidelity(3, 1.0)
    assert hash(fidelity) == hash(Fidelity(3, 1.0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        fidelity.round = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("rate", "clients", "sampled"),
    [(1.0, 200, 200), (0.2, 200, 40), (0.29, 100, 29), (0.01, 5, 1), (0.59, 5, 2), (0.6, 5, 3)],
)
def test_sampled_clients(rate: float, clients: int, sampled: int) -> None:
    assert Fidelity(1, rate).sampled_clients(clients) == sampled
    assert num_sampled_clients(np.array([rate]), np.array([clients])).tolist() == [sampled]


@pytest.mark.parametrize("clients", [12, 64, 1000, 100_000])
@pytest.mark.parametrize("log", [False, True])
def test_a_rate_that_went_through_an_action_samples_as_many_clients(
    clients: int, log: bool
) -> None:
    low = max(1 / clients, 0.02 if log else 0.0)
    sampled = np.arange(math.ceil(low * clients), clients + 1)
    rate = Dimension("client_sample_rate", low, 1.0, "float", log=log)
    actions = rate.encode_many(sampled / clients).astype(np.float32)
    rates = rate.decode_many(actions.astype(np.float64))
    assert num_sampled_clients(rates, np.array(clients)).tolist() == sampled.tolist()
    alone = [Fidelity(1, one).sampled_clients(clients) for one in rates[:: clients // 12].tolist()]
    assert alone == sampled[:: clients // 12].tolist()
    below = sampled[1:] / clients - 1e-3 / clients - 2.0**-24
    assert num_sampled_clients(below, np.array(clients)).tolist() == sampled[:-1].tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(1, 400, 1), (400, 1, 2), (3, 2, 400), (50, 40, 30), (1, 1, 1)])
def test_sums_are_those_of_a_loop(
    shape: tuple[int, ...], axis: int, dtype: type[np.floating]
) -> None:
    drawn = np.random.default_rng(0).lognormal(0.0, 4.0, shape).astype(dtype)
    for terms in (drawn, np.asfortranarray(drawn)):
        expected = np.zeros(np.delete(shape, axis), dtype)
        for part in np.moveaxis(terms, axis, 0):
            expected = expected + part
        found = sum_in_order(terms, axis)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)


SHAPE = (7, 3, 5, 3, 3)


def many(seed: int = 0) -> tuple[Evaluations, list[Evaluation]]:
    rng = np.random.default_rng(seed)
    best = rng.lognormal(0.0, 3.0, SHAPE).astype(np.float32)
    best[2, :, :, :, 0] = np.inf
    samples = rng.integers(1, 90, SHAPE[1:4])
    samples[:, 2] = samples[1, 0] = 0
    best[:, :, 2] = np.nan  # means nothing: no samples
    diverged = np.zeros(SHAPE[:2], bool)
    diverged[1, 2] = diverged[4] = True
    alone = [
        Evaluation(
            best=one,
            current=None,
            num_samples=samples,
            best_round=np.ones(3, int),
            diverged=failed,
            seeds=(1, 2, 3),
            fidelity=Fidelity(1, 1.0),
        )
        for one, failed in zip(best, diverged, strict=True)
    ]
    return Evaluations.stack(alone), alone


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("metric", METRICS)
def test_means_and_clients_keep_every_bit(split: Any, metric: Any) -> None:
    together, alone = many()
    assert together.mean(split, metric).tolist() == [one.mean(split, metric) for one in alone]
    for row, one in zip(together.clients(split, metric), alone, strict=True):
        np.testing.assert_array_equal(row, one.clients(split, metric))


def test_fairness_keeps_every_bit() -> None:
    together, alone = many()
    expected = np.stack([client_fairness(one) for one in alone])
    np.testing.assert_array_equal(client_fairness(together), expected)
    holes = together.clients("val", "f1").astype(float)  # client 2 is missing, others elsewhere
    holes[3, 1, 0] = holes[5, :, 4] = np.nan
    np.testing.assert_array_equal(fairness_vector(holes), [fairness_vector(one) for one in holes])


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 300),
    st.sampled_from(["C", "F"]),
    st.integers(0, 2**32 - 1),
)
def test_means_add_client_after_client(b: int, s: int, n: int, order: Any, seed: int) -> None:
    """The sum of each alone, in plain Python: no company and no layout of memory changes a bit."""
    rng = np.random.default_rng(seed)
    values = np.asarray(rng.lognormal(0, 3, (b, s, n, 3, 3)).astype(np.float32), order=order)
    samples = rng.integers(0, 4, (b, s, n, 3))
    samples[:, :, rng.integers(n)] = 1
    values[rng.random(values.shape) < 0.1] = np.nan
    values[samples > 0] = np.nan_to_num(values[samples > 0])
    found = mean_over_clients(values, samples)
    for at in np.ndindex(b, 3, 3):
        each = []
        for seed_ in range(s):
            weights = samples[at[0], seed_, :, at[1]]
            of_clients = values[at[0], seed_, :, at[1], at[2]].tolist()
            shares = (weights / weights.sum()).tolist()
            each.append(sum(x * w if w else 0.0 for x, w in zip(of_clients, shares, strict=True)))
        assert found[at] == np.mean(each)


@given(st.integers(1, 6), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_fairness_is_that_of_the_clients_that_are_there(s: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 5, (s, n)) / 4
    values[rng.random((s, n)) < rng.random()] = np.nan
    values[:, rng.integers(n)] = 0.25
    rows = [row[~np.isnan(row)] for row in values]
    spread = np.mean([np.std(np.sort(row)) for row in rows])
    tails = np.mean([np.percentile(row, (10, 50, 90)) for row in rows], axis=0)
    found = fairness_vector(values)
    assert found[0] == spread
    assert found[1:4] == pytest.approx(tails, abs=1e-12)
    assert found[4] == np.mean([row.min() for row in rows])
    np.testing.assert_array_equal(found, np.mean([fairness_vector([row]) for row in rows], axis=0))


@pytest.mark.parametrize("name", ["val_loss", "val_f1", "delta"])
def test_errors_are_those_of_each_value(name: str) -> None:
    objective = get_objective(name)
    values = [-np.inf, -1.0, -0.0, 0.0, 0.3, 1.0, 9.9, 10.0, 1e6, np.inf, np.nan]
    array = np.array(values)
    assert objective.errors(array).tolist() == [objective.error(value) for value in values]
    unclipped = [objective.unclipped_error(value) for value in values]
    assert objective.unclipped_errors(array).tolist() == unclipped


def test_only_evaluations_of_one_federation_can_be_stacked() -> None:
    together, alone = many()
    stacked = Evaluations.stack(alone)
    np.testing.assert_array_equal(stacked.best, together.best)
    np.testing.assert_array_equal(stacked.diverged, together.diverged)
    assert together.has_diverged.tolist() == [one.has_diverged for one in alone]
    assert together.has_diverged.tolist() == [False, True, False, False, True, False, False]
    other = many(1)[1][0]
    for wrong in ([], [alone[0], other]):
        with pytest.raises(InvalidArgumentError, match="`evaluations` must"):
            Evaluations.stack(wrong)


def test_shapes_must_fit() -> None:
    together, _ = many()
    for best in (together.best[0], together.best[:, :, :4]):
        with pytest.raises(InvalidArgumentError, match=r"`best`.*\(evaluations, 3, 5, 3, 3\)"):
            replace(together, best=best)
    with pytest.raises(InvalidArgumentError, match=r"`diverged` must have shape \(7, 3\)"):
        replace(together, diverged=together.diverged[:2])


def test_what_is_unknown_is_refused() -> None:
    together, _ = many()
    with pytest.raises(UnknownNameError, match="'los'"):
        together.mean("val", "los")  # type: ignore[arg-type]
    empty = together.num_samples.copy()
    empty[1, :, 1] = 0
    with pytest.raises(InvalidArgumentError, match="'val' is empty"):
        replace(together, num_samples=empty).mean("val", "loss")
    assert len(replace(together, num_samples=empty).mean("train", "loss")) == 7
