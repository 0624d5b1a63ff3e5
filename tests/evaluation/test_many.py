"""Many evaluations side by side say what each says alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Evaluation, Fidelity
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
