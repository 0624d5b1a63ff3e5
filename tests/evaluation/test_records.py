"""The records check themselves and average by hand-computed rules."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.evaluation.records import (
    CLASSIFICATION,
    METRICS,
    SPLITS,
    Cost,
    Evaluation,
    Fidelity,
    sum_in_order,
)


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


def test_axes() -> None:
    assert SPLITS == ("train", "val", "test")
    assert METRICS == ("loss", "accuracy", "f1")


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


def test_mean_is_a_builtin_float() -> None:
    assert type(make(best=make().best.astype(np.float32)).mean("val", "loss")) is float


def test_order_of_clients_does_not_matter() -> None:
    original = make()
    order = [2, 0, 1]
    shuffled = make(best=original.best[:, order], num_samples=original.num_samples[:, order])
    assert shuffled.mean("train", "loss") == pytest.approx(original.mean("train", "loss"))


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


def test_cost_is_a_plain_record() -> None:
    cost = Cost(3.0, 1.0, 2.0, 4.0, 5.0, 6)
    assert dataclasses.asdict(cost) == {
        "time_s": 3.0,
        "communication_s": 1.0,
        "computation_s": 2.0,
        "upload_bytes": 4.0,
        "download_bytes": 5.0,
        "rounds": 6,
    }


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
