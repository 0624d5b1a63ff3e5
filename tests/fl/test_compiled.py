"""Laws of compiled training: numpy's draws, functions with fixed bits, equal digests everywhere."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from compiled_digests import digests
from fedhpo_gym.fl.compiled import draws, jit
from fedhpo_gym.fl.compiled.elementary import exp, log, power
from fedhpo_gym.seeding import stream

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "support" / "compiled_digests.py"
TARGETS = [
    {"NUMBA_CPU_NAME": "generic", "OMP_NUM_THREADS": "2"},
    {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "", "OMP_NUM_THREADS": "1"},
    {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma", "OMP_NUM_THREADS": "2"},
    {"NUMBA_DISABLE_INTEL_SVML": "1", "OMP_NUM_THREADS": "1"},
    {"NUMBA_SLP_VECTORIZE": "1", "OMP_NUM_THREADS": "1"},
]


@cache
def here() -> dict[str, str]:
    return dict(digests())


@pytest.mark.parametrize(
    "target", [TARGETS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in TARGETS[1:])]
)
def test_every_processor_and_number_of_threads_computes_the_same_bits(
    target: dict[str, str], tmp_path: Path
) -> None:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    known = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "OMP_"))}
    environment = {**known, **target, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == here()


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**40, 2**130 + 5])
def test_draws_are_those_of_numpy(seed: int) -> None:
    pool, state = np.empty(draws.POOL, np.uint32), np.empty(draws.STATE, np.uint64)
    start, shuffle = draws.start, draws.shuffle
    words = draws.entropy(seed, "minibatches", 2)
    for n in range(1, 300):
        words[-2:] = 3, n
        start(words, pool, state)
        found, rng = np.arange(n), stream(seed, "minibatches", 3, n)
        expected = np.arange(n)
        for _ in range(2):  # what is left of a word of 64 bits is used next time
            shuffle(state, found)
            rng.shuffle(expected)
        np.testing.assert_array_equal(found, expected)


def test_exponentials_and_logarithms_are_right_to_some_units_of_a_double() -> None:
    for x in np.linspace(-700.0, 700.0, 20_011).tolist():
        assert exp(x) == pytest.approx(math.exp(x), rel=1e-15)
    for x in np.geomspace(1e-300, 1e300, 20_011).tolist():
        assert log(x) == pytest.approx(math.log(x), rel=1e-15, abs=1e-16)
    assert math.isnan(exp(math.nan))
    assert math.isnan(log(math.nan))
    assert math.isnan(log(-1.0))
    assert [exp(-1e9), exp(1e9), log(0.0), log(math.inf)] == [0.0, math.inf, -math.inf, math.inf]
    assert power(10.0, -0.5) == pytest.approx(10**-0.5, rel=1e-15)
    assert [power(0.0, 0.0), power(0.0, 2.0)] == [1.0, 0.0]


def test_small_models_are_trained_without_torch(run_python: Callable[..., str]) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        f"sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        "import compiled_digests as program\n"
        "print(next(program.digests())[1])"
    )
    assert run_python(code).strip() == here()["LR 2 fedavg"]


def test_importing_the_package_loads_no_compiler(run_python: Callable[..., str]) -> None:
    code = (
        "import sys, fedhpo_gym, gymnasium\n"
        "gymnasium.make('FedHPO-LR-CreditG-v1', backend='tabular').reset(seed=0)\n"
        "print([name for name in ('torch', 'numba') if name in sys.modules])"
    )
    assert run_python(code).strip() == "[]"


def test_a_cache_that_cannot_be_written_is_done_without(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    code = (
        "import os\n"
        f"os.environ['NUMBA_CACHE_DIR'] = {str(tmp_path / 'file')!r}\n"
        "os.environ['XDG_CACHE_HOME'] = os.environ['NUMBA_CACHE_DIR']\n"
        "from fedhpo_gym.fl.compiled import training\n"
        "import numpy as np\n"
        "found = np.empty(2, np.bool_)\n"
        "training.finite(np.array([[1, 2], [3, np.inf]], np.float32), found)\n"
        "print(found)"
    )
    assert run_python(code).strip() == "[ True False]"


def test_an_interrupt_waits_until_a_compilation_has_ended() -> None:
    ended = []

    def compile_for() -> None:
        signal.raise_signal(signal.SIGINT)
        ended.append(True)

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            jit._uninterrupted(compile_for)()
        assert ended == [True]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, former)
