"""Bits are equal in any company on lower processors, too: one machine stands for several."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")
pytest.importorskip("networkx")
pytest.importorskip("scipy")

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
CODE = """
from fedhpo_gym.fl.models import MODELS
from fedhpo_gym.fl.self_check import require_equal_bits
print({{require_equal_bits(MODELS[family]) for family in {families}}})
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", LOWER)
def test_courses_have_equal_bits_on_lower_processors(
    level: str, run_python: Callable[..., str]
) -> None:
    """Of what torch computes; `test_compiled.py` tells of the others."""
    families = ["GNN", "CNN"] if level == "SSE" else ["GNN", "CNN", "BERT", "Hetero", "MF"]
    # Nothing of this process's own processor is inherited: the package chooses anew.
    said = run_python(CODE.format(families=families), {**LOWER[level], "MKL_CBWR": ""})
    assert said.strip() == "{'equal bits alone and in any batch'}"
