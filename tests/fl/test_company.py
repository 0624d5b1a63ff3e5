"""A course has the same bits alone, in any batch, in any order, and from a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import COMPILED, MODELS
from fedhpo_gym.fl.self_check import make_case

PAIRS = [*((family, "fedavg") for family in MODELS), ("MF", "fednova"), ("Hetero", "scaffold")]
"""Every family; `test_compiled.py` and `test_course_batch.py` have the other algorithms."""
GIVEN = {
    "fedavg": {},
    "fednova": {"server_momentum": 0.0, "server_learning_rate": 1.0},
    "scaffold": {"server_learning_rate": 0.8},
}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "algorithm"), PAIRS)
def test_courses_of_every_family_are_alone_what_they_are_in_company(
    family: str, algorithm: str
) -> None:
    if family not in COMPILED:
        pytest.importorskip("torch")
    case = make_case(family)
    courses = [
        Course({**one.configuration, **GIVEN[algorithm]}, one.client_sample_rate, one.seed)
        for one in case.courses
    ]
    given = {**courses[-1].configuration, "learning_rate": 1e30, "weight_decay": 1e30}
    courses[-1] = wild = Course(given, 1.0, 1)

    def trained(courses: list[Course]) -> Any:
        """Return (courses, 2, ...) metrics; the second round is trained again from a snapshot."""
        federations = {case.federation.seed: case.federation}
        batch = CourseBatch(federations, case.model, get_algorithm(algorithm), courses, horizon=2)
        first, state = batch.advance(1).metrics, batch.snapshot()
        curves = batch.advance(1)
        assert (curves.diverged_at > 0).tolist() == [one is wild for one in courses]
        second = curves.metrics
        batch.restore(state)
        np.testing.assert_array_equal(batch.advance(1).metrics, second)
        return np.concatenate([first, second], axis=1)

    together = trained(courses)
    assert np.isfinite(together).all()
    np.testing.assert_array_equal(*together[-1], "a course that diverged keeps its last metrics")
    np.testing.assert_array_equal(trained(courses[::-1])[::-1], together)
    for place in (0, len(courses) // 2, len(courses) - 1):
        np.testing.assert_array_equal(trained([courses[place]])[0], together[place])


# --------------------------------------------------------------------------------- lower processors

LOWER = {
    "AVX2": {
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
    "SSE": {
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
    },
}
EVERY_LAW = """
from fedhpo_gym.fl.self_check import check_engine
print([one for one in check_engine({families}) if not one.holds])
"""
EQUAL_BITS = """
from fedhpo_gym.fl.models import MODELS
from fedhpo_gym.fl.self_check import require_equal_bits
print([one for one in {families} if "equal bits" not in require_equal_bits(MODELS[one])])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "code", "families"),
    [
        ("AVX2", EVERY_LAW, ["GNN", "CNN", "BERT", "Hetero", "MF"]),
        ("SSE", EQUAL_BITS, ["GNN", "CNN"]),
    ],
)
def test_the_laws_hold_on_lower_processors(
    level: str, code: str, families: list[str], run_python: Callable[..., str]
) -> None:
    """Of what torch computes; `test_compiled.py` tells of the others."""
    for module in ("torch", "networkx", "scipy"):
        pytest.importorskip(module)
    # Nothing of this process's own processor is inherited: the package chooses anew.
    said = run_python(code.format(families=families), {**LOWER[level], "MKL_CBWR": ""})
    assert said.strip() == "[]"
