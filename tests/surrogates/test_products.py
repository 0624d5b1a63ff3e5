"""Columns of products of hyperparameters: by hand, by name, and the same along both ways."""

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

from fedhpo_gym.core.archive import DIGEST, card_digest
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.stored.catalogue import EMBEDDED
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.surrogate_inputs import CurveInputs, is_product, named_products, products_of

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
    content: dict[str, Any] = json.loads((EMBEDDED / f"{stem}.json").read_text())
    shutil.copy(EMBEDDED / content["arrays"], folder)
    content["model"] |= model
    content[DIGEST] = card_digest(content)
    card = folder / f"{stem}.json"
    card.write_text(json.dumps(content))
    return card


SEEN = ["learning_rate", "weight_decay", "dropout", "batch_size", "step_size", "log_clients"]
SEEDS = ["seed=1", "seed=2", "seed=3"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([*SEEN, *NAMES, *SEEDS, "log(dropout)"], "is no number everywhere"),
        ([*SEEN, *NAMES, *SEEDS, "log(step_size*nothing)"], "nothing"),
        ([*SEEN, *NAMES[:2], "log(step_size/step_size)", *SEEDS], "once"),
        ([*SEEN, *NAMES[:2], "log(" + "step_size*" * 9 + "step_size)", *SEEDS], "once"),
        ([*SEEN, NAMES[0], NAMES[1], NAMES[0], *SEEDS], "in this order"),
        ([*SEEN[1::-1], *SEEN[2:], *NAMES, *SEEDS], "in this order"),
        ([*SEEN, *NAMES, *SEEDS, "height"], "in this order"),
        (dict.fromkeys([*SEEN, *NAMES, *SEEDS]), "`inputs` must be"),
    ],
)
def test_a_card_of_odd_columns_is_damaged(tmp_path: Path, inputs: object, said: str) -> None:
    with pytest.raises(DamagedDataError, match=said):
        Surrogate(_damage(tmp_path, inputs=inputs))


def test_rounds_reach_over_all_that_can_be_asked_for(tmp_path: Path) -> None:
    card = _damage(tmp_path, rounds=[2, 3, 6, 9, 13, 19, 27, 38, 56, 81])
    with pytest.raises(DamagedDataError, match="must reach from 1 to 81"):
        Surrogate(card)
