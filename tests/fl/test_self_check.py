"""The laws of the engine hold on lower processors, too: one machine stands for several."""

from __future__ import annotations

import json
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
import json, sys
from fedhpo_gym.fl.self_check import check_engine
print(json.dumps([[v.family, v.law, v.holds, v.words] for v in check_engine({families})]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", LOWER)
def test_the_laws_hold_on_lower_processors(level: str, run_python: Callable[..., str]) -> None:
    """Of what torch computes; `test_compiled.py` tells of the others."""
    families = ["GNN", "CNN"] if level == "SSE" else ["GNN", "CNN", "BERT", "Hetero", "MF"]
    # Nothing of this process's own processor is inherited: the package chooses anew.
    said = run_python(CODE.format(families=families), {**LOWER[level], "MKL_CBWR": ""})
    verdicts = json.loads(said.splitlines()[-1])
    assert {family for family, *_ in verdicts} == set(families)
    assert [one for one in verdicts if not one[2]] == []
