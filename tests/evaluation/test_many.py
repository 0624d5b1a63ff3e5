"""Many evaluations side by side say what each says alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.evaluation.records import (
    METRICS,
    SPLITS,
    Evaluation,
    Evaluations,
    Fidelity,
    client_means,
)
from fedhpo_gym.objectives import client_fairness, fairness_vector, get_objective

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
    found = client_means(values, samples)
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
