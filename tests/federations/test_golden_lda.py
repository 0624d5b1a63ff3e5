"""The partition of labels over clients against that of the original code, index by index."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.data.federation import lda_partition

KEY = "a653102_min10_balanced"
CASES = 18


def golden_cases() -> list[dict[str, Any]]:
    default = Path(__file__).resolve().parents[2].parent / "shared"
    path = Path(os.environ.get("FEDHPO_SHARED", default)) / "facts/golden/lda_golden.json"
    if not path.is_file():
        pytest.skip(f"no golden partitions of the original code at {path}; set FEDHPO_SHARED")
    cases: list[dict[str, Any]] = json.loads(path.read_text())
    assert len(cases) == CASES
    return cases


@pytest.mark.parametrize("index", range(CASES))
def test_equals_the_original_code(index: int) -> None:
    case = golden_cases()[index]
    labels, rng = np.array(case["labels"]), np.random.RandomState(case["seed"])
    clients = lda_partition(labels, case["clients"], case["alpha"], rng)
    assert [client.tolist() for client in clients] == case[KEY]
