"""What courses of logistic regression are trained on here: rows of five users of three classes."""

from __future__ import annotations

import numpy as np
import pytest

from fedhpo_gym.data.federation import Federation, make_user_federation
from fedhpo_gym.data.records import make_dataset


@pytest.fixture(scope="session")
def federations() -> dict[int, Federation]:
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(5), (40, 30, 25, 20, 12))
    labels = rng.integers(3, size=len(users))
    features = rng.normal(size=(len(users), 4)) * 2 + labels[:, None]
    data = make_dataset("made", features, labels, 3, users)
    return {seed: make_user_federation(data, seed) for seed in (1, 2)}


@pytest.fixture(scope="session")
def federation(federations: dict[int, Federation]) -> Federation:
    return federations[1]
