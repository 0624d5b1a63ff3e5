"""Curves of surrogates: the best so far never rises, and nobody's company changes a bit."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedhpo_gym.building.candidates import _loss_gradients, train_network
from fedhpo_gym.building.surrogate_data import PreparedRows
from fedhpo_gym.core.archive import DIGEST_ENTRY, card_digest
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER
from fedhpo_gym.stored.surrogate import Surrogate, list_surrogates, open_surrogate
from fedhpo_gym.stored.surrogate_curves import NOTICED, CurveModel, running_best, way_between
from fedhpo_gym.stored.surrogate_models import ExactKernel, MultiHeadNetwork
from fedhpo_gym.stored.surrogate_rows import (
    CurveInputs,
    is_product,
    named_products,
    num_outputs,
    products_of,
    to_metrics,
)
from stored_files import check_law

KNOTS = np.array([1, 2, 4, 9, 27, 81])
CLIENTS, COEFFICIENTS, FEATURES, SEEDS = 3, 7, 4, 3
WEIGHTS = np.full((SEEDS, CLIENTS, 3), 1 / CLIENTS)
ROUNDS = st.integers(1, 81)


def heads(seed: int, outputs: int = COEFFICIENTS) -> MultiHeadNetwork:
    rng = np.random.default_rng(seed)
    sizes = {"weight_0": (FEATURES, 32), "bias_0": (32,), "weight_1": (32, 16), "bias_1": (16,)}
    sizes |= {"heads": (SEEDS, 16, outputs), "head_bias": (SEEDS, outputs)}
    return MultiHeadNetwork({n: rng.normal(0, 0.5, s).astype(np.float16) for n, s in sizes.items()})


def kernel(seed: int, outputs: int = COEFFICIENTS) -> ExactKernel:
    rng = np.random.default_rng(seed)
    columns = FEATURES + SEEDS
    return ExactKernel(
        {
            "stretch": rng.uniform(0.1, 1, columns).astype(np.float32),
            "points": rng.uniform(-1, 1, (40, columns)).astype(np.float32),
            "weights": rng.normal(0, 9, (40, outputs)).astype(np.float32),
        }
    )


def wild_model(seed: int, regressor: Any = heads) -> CurveModel:
    """A model of curves that go up and down."""
    rng = np.random.default_rng(seed)
    outputs = num_outputs(CLIENTS) + 1
    scales = {"mean": np.full(outputs, 0.5), "scale": np.full(outputs, 0.7)}
    scales |= {"low": np.full(outputs, -2.0), "high": np.full(outputs, 3.0)}
    basis = rng.uniform(-1, 1, (COEFFICIENTS, len(KNOTS), outputs)).astype(np.float16)
    return CurveModel(regressor(seed), scales, rng.normal(size=basis.shape[1:]), basis)


def rows(seed: int, groups: int = 5) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    known = np.repeat(rng.uniform(-1, 1, (groups, 1, FEATURES)), SEEDS, axis=1)
    eye = np.broadcast_to(np.eye(SEEDS), (groups, SEEDS, SEEDS))
    return np.concatenate([known, eye], axis=2).astype(np.float32)


def answers(
    model: CurveModel, some: NDArray[np.float32], rounds: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    outputs, best, diverged = model.best_so_far(some, rounds, KNOTS)
    return to_metrics(outputs, WEIGHTS), best, diverged


def losses(metrics: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(metrics[:, :, 1, 0].astype(np.float64).mean(axis=1))


@given(st.integers(0, 2**16), st.sets(ROUNDS, min_size=2, max_size=12))
def test_the_best_so_far_never_rises(seed: int, asked: set[int]) -> None:
    model, given_rows = wild_model(seed), rows(seed + 1)
    before: Any = None
    for rounds in sorted(asked):
        found = answers(model, given_rows, np.full(5, rounds))
        metrics, best, diverged = found
        assert np.all((best >= 1) & (best <= rounds))
        if before is not None:
            old_metrics, old_best, old_diverged = before
            assert np.all(losses(metrics) <= losses(old_metrics) * (1 + 1e-6))
            assert np.all(best >= old_best)
            assert np.all(diverged >= old_diverged)
            same = best == old_best
            assert np.array_equal(metrics[same], old_metrics[same])
            fell = losses(metrics) < losses(old_metrics) * (1 - 1e-6)
            assert np.all(best[fell] > old_best[fell])
        before = found


@pytest.mark.slow
def test_the_best_so_far_of_what_is_stored_never_rises() -> None:
    stored = [open_surrogate(name) for name in list_surrogates()]
    assert stored
    for surrogate in stored:
        check_law(surrogate, 0)


@pytest.mark.parametrize("regressor", [heads, kernel])
def test_company_changes_no_bit(regressor: Any) -> None:
    model, many = wild_model(3, regressor), rows(4, 700)
    rounds = np.random.default_rng(5).integers(1, 82, 700)
    together = answers(model, many, rounds)
    for index in (0, 1, 350, 699):
        alone = answers(model, many[[index]], rounds[[index]])
        for all_of_them, one in zip(together, alone, strict=True):
            assert all_of_them[3 * index : 3 * index + 3].tobytes() == one.tobytes()
    shuffled = np.random.default_rng(6).permutation(700)
    turned = model.coefficients(many[shuffled]).reshape(700, 3, -1)
    assert turned.tobytes() == model.coefficients(many).reshape(700, 3, -1)[shuffled].tobytes()


def test_the_way_between_knots_by_hand() -> None:
    start, end = np.array([2, 2, 2]), np.array([4, 4, 4])
    share = way_between(np.array([2, 3, 4]), start, end)
    np.testing.assert_allclose(share, [0.0, np.log(1.5) / np.log(2), 1.0])


def test_the_running_best_by_hand() -> None:
    curve = np.array([[3.0, 4.0, 2.0, 2.0 - NOTICED / 2, 1.0, 5.0]])
    assert running_best(curve.T).T.tolist() == [[0, 0, 2, 2, 4, 4]]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("heads", (2, 16, 7)), ("weight_1", (31, 16)), ("bias_0", (9,)), ("head_bias", (3, 9)),
     ("heads", None)],
)  # fmt: skip
def test_a_network_whose_heads_do_not_fit_is_refused(
    name: str, shape: tuple[int, ...] | None
) -> None:
    arrays = dict(heads(0).arrays)
    arrays.pop(name)
    with pytest.raises(InvalidArgumentError):
        MultiHeadNetwork(arrays if shape is None else {**arrays, name: np.zeros(shape)})


def prepared(count: int = 300) -> PreparedRows:
    """Curves of two knots and one output, one coefficient each, that differ between seeds."""
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    seed = np.eye(SEEDS, dtype=np.float32)[rng.integers(SEEDS, size=count)]
    offset = seed @ np.array([0.0, 0.5, 1.0], np.float32)
    curves = np.column_stack([np.sin(3 * inputs[:, 0]) + offset, inputs[:, 1] * offset])
    curves = (curves - curves.mean(axis=0)).astype(np.float32)
    scales = dict.fromkeys(("mean", "scale", "low", "high"), np.zeros(1, np.float32))
    basis = np.eye(2, dtype=np.float32).reshape(2, 2, 1)
    rows = np.concatenate([inputs, seed], axis=1)
    known = np.ones(curves.shape, np.bool_)
    centre, names = np.zeros((2, 1)), tuple("abcdefgh"[: rows.shape[1]])
    return PreparedRows(rows, curves, known, curves, SEEDS, scales, centre, basis, None, names)


def test_training_lowers_the_error_of_every_seed_and_repeats_exactly() -> None:
    few = prepared()
    fitted = [train_network(few, steps=n, batch=64, widths=(32, 32)) for n in (1, 300, 300)]
    found = [model.predict(few.inputs[:, None])[:, 0] for model in fitted]
    for seed in range(SEEDS):
        mine = few.inputs[:, 2 + seed] > 0
        first, last = (np.abs(f - few.curves)[mine].mean() for f in found[:2])
        assert last < 0.3 * first
    assert found[1].tobytes() == found[2].tobytes()


def test_a_gradient_is_the_slope_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    shapes = ((3, 5), (5,), (5, 4), (4,), (1, 4, 2), (SEEDS, 4, 2), (SEEDS, 2))
    parameters: list[Any] = [rng.normal(size=shape) for shape in shapes]
    inputs, seed = rng.normal(size=(6, 3)), np.eye(SEEDS)[[0, 1, 2, 0, 1, 1]]
    basis, curves = rng.normal(size=(2, 7)), rng.normal(size=(6, 7))
    known = rng.random((6, 7)) < 0.8  # the others were not trained for

    def loss() -> float:
        hidden = np.maximum(inputs @ parameters[0] + parameters[1], 0)
        hidden = np.maximum(hidden @ parameters[2] + parameters[3], 0)
        own = parameters[4] + parameters[5]
        found = np.einsum("nh,ns,sho->no", hidden, seed, own) + seed @ parameters[6]
        size = np.abs(found @ basis - curves) * known
        return float(np.where(size < 1, size**2 / 2, size - 0.5).sum() / len(inputs))

    found: list[Any] = _loss_gradients(parameters, inputs, seed, (curves, known), basis)  # type: ignore[arg-type]
    for parameter, gradient in zip(parameters, found, strict=True):
        for index in np.ndindex(parameter.shape):
            kept = parameter[index]
            parameter[index] = kept + 1e-6
            above = loss()
            parameter[index] = kept - 1e-6
            slope = (above - loss()) / 2e-6
            parameter[index] = kept
            assert gradient[index] == pytest.approx(slope, abs=1e-5)


# ----------------------------------------------------------- columns of products of hyperparameters

SPACE = SearchSpace(
    (
        Dimension("learning_rate", 0.01, 1.0, "float", log=True),
        Dimension("dropout", 0.0, 0.5, "float"),
        Dimension("batch_size", 16, 64, "int"),
        Dimension("step_size", 1, 4, "int"),
    )
)
FIDELITIES = SearchSpace(
    (
        Dimension("round", 1, 81, "int", scope="fidelity"),
        Dimension("client_sample_rate", 0.2, 1.0, "float", scope="fidelity"),
    )
)
INPUTS = CurveInputs(SPACE, FIDELITIES, 10, (1, 2), products_of(SPACE))
NAMES = ["log(learning_rate*step_size/batch_size)", "log(step_size/batch_size)", "log(step_size)"]


@given(st.floats(0.01, 1.0), st.floats(0.0, 0.5), st.integers(16, 64), st.integers(1, 4))
def test_columns_are_scaled_logarithms(rate: float, dropout: float, batch: int, step: int) -> None:
    configuration = {
        "learning_rate": rate, "dropout": dropout, "batch_size": batch, "step_size": step
    }  # fmt: skip
    columns = {name: np.array([value]) for name, value in configuration.items()}
    columns["client_sample_rate"] = np.array([0.6])
    row = INPUTS.rows(columns, np.array([1]))
    found = dict(zip(INPUTS.names, row[0, 0].tolist(), strict=True))

    def scaled(value: float, low: float, high: float) -> float:
        return 2 * math.log(value / low) / math.log(high / low) - 1

    by_hand = (
        scaled(rate * step / batch, 0.01 / 64, 4 / 16),
        scaled(step / batch, 1 / 64, 4 / 16),
        scaled(step, 1, 4),
    )
    np.testing.assert_allclose([found[name] for name in NAMES], by_hand, atol=1e-6)
    coordinates = SPACE.encode(configuration)[None].astype(np.float64)
    again = INPUTS.rows_of_one_seed(coordinates, np.array([0.6]), np.array([1]))
    assert again.tobytes() == row.tobytes()


def test_names_say_everything() -> None:
    assert [*filter(is_product, INPUTS.names)] == NAMES
    again = CurveInputs.from_names(INPUTS.names, SPACE, FIDELITIES, 10, (1, 2))
    assert again == INPUTS
    plain = [name for name in INPUTS.names if not is_product(name)]
    assert not CurveInputs.from_names(plain, SPACE, FIDELITIES, 10, (1, 2)).products


def test_only_what_varies_is_multiplied() -> None:
    some = SearchSpace(tuple(d for d in SPACE.dimensions if d.name != "batch_size"))
    names = [product.name for product in products_of(some)]
    assert names == ["log(learning_rate*step_size)", "log(step_size)"]
    assert products_of(SearchSpace((SPACE["learning_rate"], SPACE["batch_size"]))) == ()
    with pytest.raises(ValueError, match="dropout"):
        named_products(["log(dropout/step_size)"], SPACE)


def _damage(folder: Path, **model: Any) -> Path:
    """Write a stored card with other entries under `model`, and a digest that vouches for them."""
    stem = "CNN-FEMNIST-v1-fedavg-bfloat16.surrogate"
    content: dict[str, Any] = json.loads((EMBEDDED_FOLDER / f"{stem}.json").read_text())
    shutil.copy(EMBEDDED_FOLDER / content["arrays"], folder)
    content["model"] |= model
    content[DIGEST_ENTRY] = card_digest(content)
    card = folder / f"{stem}.json"
    card.write_text(json.dumps(content))
    return card


SEEN = ["learning_rate", "weight_decay", "dropout", "batch_size", "step_size", "log_clients"]
SEED_NAMES = ["seed=1", "seed=2", "seed=3"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([*SEEN, *NAMES, *SEED_NAMES, "log(dropout)"], "is no number everywhere"),
        ([*SEEN, *NAMES, *SEED_NAMES, "log(step_size*nothing)"], "nothing"),
        ([*SEEN, *NAMES[:2], "log(step_size/step_size)", *SEED_NAMES], "once"),
        ([*SEEN, *NAMES[:2], "log(" + "step_size*" * 9 + "step_size)", *SEED_NAMES], "once"),
        ([*SEEN, NAMES[0], NAMES[1], NAMES[0], *SEED_NAMES], "in this order"),
        ([*SEEN[1::-1], *SEEN[2:], *NAMES, *SEED_NAMES], "in this order"),
        ([*SEEN, *NAMES, *SEED_NAMES, "height"], "in this order"),
        (dict.fromkeys([*SEEN, *NAMES, *SEED_NAMES]), "`inputs` must be"),
    ],
)
def test_a_card_of_odd_columns_is_damaged(tmp_path: Path, inputs: object, said: str) -> None:
    with pytest.raises(DamagedDataError, match=said):
        Surrogate(_damage(tmp_path, inputs=inputs))


def test_rounds_reach_over_all_that_can_be_asked_for(tmp_path: Path) -> None:
    card = _damage(tmp_path, rounds=[2, 3, 6, 9, 13, 19, 27, 38, 56, 81])
    with pytest.raises(DamagedDataError, match="must reach from 1 to 81"):
        Surrogate(card)
