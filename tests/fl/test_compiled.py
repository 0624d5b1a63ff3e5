"""Laws of compiled training: numpy's draws, functions with fixed bits, equal digests everywhere."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

pytest.importorskip("numba")

from digests import FILE, kernels
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.fl.compiled import jit, rng
from fedhpo_gym.fl.compiled.arithmetic import exp, log, power
from fedhpo_gym.fl.compiled.rng import quantile, standard_normal

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "support" / "digests.py"
RECORDED = json.loads(FILE.read_text(encoding="utf-8"))["kernels"]
TARGETS = {
    "generic, no SVML": (
        ("LR", "Sparse"),
        {"NUMBA_CPU_NAME": "generic", "NUMBA_DISABLE_INTEL_SVML": "1", "OMP_NUM_THREADS": "2"},
    ),
    # Fused multiplications are what could change most.
    "haswell, perceptrons": (
        ("MLP",),
        {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma", "OMP_NUM_THREADS": "2"},
    ),
}
"""Beginnings of cases, and what chooses the processor that their functions are compiled for.
Numba's names are of x86; elsewhere the digests of the machine itself are compared, and those that
`benchmarks/engine/emulate_aarch64.sh` computes."""


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart, from snapshots"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_this_processor_computes_the_recorded_bits(
    threads: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert dict(kernels(apart=apart)) == RECORDED


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="names of x86")
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_processor_computes_the_recorded_bits(target: str, tmp_path: Path) -> None:
    cases, chosen = TARGETS[target]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    known = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "OMP_"))}
    environment = {**known, **chosen, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--kernels", *cases],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {name: own for name, own in RECORDED.items() if name.startswith(cases)}
    assert json.loads(done.stdout) == expected
    assert expected


def test_normal_numbers_are_the_quantiles_of_the_uniform_ones_of_a_stream() -> None:
    found = standard_normal(2**40, "noise", [(3, 1), (3, 2)], 5000)
    for row, client in zip(found, (1, 2), strict=True):
        uniform = stream(2**40, "noise", 3, client).random(5000)
        expected = [NormalDist().inv_cdf(p) for p in uniform.tolist()]
        # Either double is right to some units, and single precision may cut between them.
        np.testing.assert_allclose(row, expected, rtol=2**-23)
    for p in (2.0**-53, 1e-12, 1e-7, 0.075, 0.0751, 0.5, 0.924, 0.926, 1 - 2.0**-53):
        p = float(int(p * 2**53) * 2.0**-53)
        assert quantile(p) == pytest.approx(NormalDist().inv_cdf(p), rel=1e-14, abs=1e-300)
    assert quantile(0.0) == pytest.approx(NormalDist().inv_cdf(2.0**-54), rel=1e-14)


def test_normal_numbers_have_the_bits_that_were_recorded() -> None:
    drawn = standard_normal(1, "noise", [(client,) for client in range(40)], 5000)
    assert hashlib.sha256(drawn.tobytes()).hexdigest().startswith("4f2b22c416344564")
    ordered = np.sort(drawn.ravel().astype(float))
    shares = np.array([NormalDist().cdf(x) for x in ordered.tolist()])
    distance = np.abs(shares - (np.arange(len(shares)) + 0.5) / len(shares)).max()
    # Kolmogorov's statistic exceeds this by chance once in 1e9 draws of a normal distribution.
    assert distance < math.sqrt(-0.5 * math.log(0.5e-9) / len(shares))
    assert abs(np.corrcoef(drawn)[np.triu_indices(40, 1)]).max() < 6.5 / math.sqrt(5000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**40, 2**130 + 5])
def test_draws_are_those_of_numpy(seed: int) -> None:
    pool, state = np.empty(rng.POOL, np.uint32), np.empty(rng.STATE, np.uint64)
    start, shuffle = rng.start, rng.shuffle
    words = rng.entropy(seed, "minibatches", 2)
    for n in range(1, 300):
        words[-2:] = 3, n
        start(words, pool, state)
        found, numpys = np.arange(n, dtype=np.int32), stream(seed, "minibatches", 3, n)
        expected = np.arange(n, dtype=np.int32)
        for _ in range(2):  # what is left of a word of 64 bits is used next time
            shuffle(state, found)
            numpys.shuffle(expected)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
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


@pytest.mark.slow
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
        "import warnings\n"
        "found = np.empty(2, np.bool_)\n"
        "with warnings.catch_warnings(record=True) as heard:\n"
        "    warnings.simplefilter('always')\n"
        "    for kind in (np.float32, np.float64):\n"
        "        training.finite(np.array([[1, 2], [3, np.inf]], kind), found)\n"
        "print(found, [str(one.message)[:66] for one in heard])"
    )
    said = "compiled code cannot be read or written (no folder can be written)"
    assert run_python(code).strip() == f"[ True False] {[said]}"


def test_only_its_owner_reaches_the_folder_of_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there is run."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = jit._folder.__wrapped__()
    assert folder is not None
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def answer(run_python: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """Run a small package of compiled code that keeps it; return its answers and warnings."""
    package = tmp_path / "made"
    package.mkdir()
    (package / "jit.py").write_bytes(Path(jit.__file__).read_bytes())
    (package / "outer.py").write_text(
        "from made.inner import inner\nfrom made.jit import kernel\n"
        "@kernel\ndef one(x):\n    return inner(x)\n@kernel\ndef two(x):\n    return -inner(x)\n"
    )

    def run(first: str = "", result: str = "x + 1") -> str:
        (package / "inner.py").write_text(
            f"from made.jit import compiled\n@compiled\ndef inner(x):\n    return {result}\n"
        )
        return run_python(
            "import os, sys, warnings\n"
            "sys.dont_write_bytecode = True  # stale where sources change within a second\n"
            f"os.environ['NUMBA_CACHE_DIR'] = {str(tmp_path)!r}\n"
            f"sys.path.insert(0, {str(tmp_path)!r})\n"
            "from made.outer import one, two\n"
            f"{first}\nwith warnings.catch_warnings(record=True) as heard:\n"
            "    warnings.simplefilter('always'); print(one(1), two(1), len(heard))\n"
        ).strip()

    return run


@pytest.mark.slow
def test_damaged_or_old_code_is_compiled_again(answer: Callable[..., str], tmp_path: Path) -> None:
    assert answer() == answer() == "2 -2 0"
    for ending, size in (("nbc", 100), ("nbi", 0)):
        for path in tmp_path.rglob(f"*.{ending}"):
            path.write_bytes(path.read_bytes()[:size])
        assert answer() == "2 -2 1", "one warning"
    for path in tmp_path.rglob("*.nbc"):
        content = bytearray(path.read_bytes())
        begin = content.find(b"\x7fELF") + 64  # of the instructions
        content[begin : begin + 7] = b"\x0f\x0b\x0f\x0b\x0f\x0b\x0f"
        path.write_bytes(content)
    assert answer() == "2 -2 1", "changed code is not run"
    assert answer() == "2 -2 0"
    assert answer(result="x + 5") == "6 -6 0", "a change of any source"


@pytest.mark.slow
def test_code_that_a_full_disk_cannot_keep_is_used(answer: Callable[..., str]) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    assert answer(full) == "2 -2 1"


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
