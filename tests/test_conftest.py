"""The fixtures that other tests trust."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

RunPython = Callable[..., str]


def test_run_python_varies_the_hash_seed_unless_told(run_python: RunPython) -> None:
    code = "print(hash('fedhpo'))"
    fixed = {run_python(code, env={"PYTHONHASHSEED": "7"}) for _ in range(2)}
    free = {run_python(code) for _ in range(3)}
    assert len(fixed) == 1
    assert len(free) > 1


def test_run_python_imports_this_checkout(run_python: RunPython) -> None:
    found = run_python("import fedhpo_gym; print(fedhpo_gym.__file__)").strip()
    assert Path(found).parents[1] == Path(__file__).resolve().parents[1]


def test_run_python_fails_with_the_error_of_the_code(run_python: RunPython) -> None:
    with pytest.raises(pytest.fail.Exception, match="ValueError: planted"):
        run_python("raise ValueError('planted')")


def test_the_network_is_closed() -> None:
    with socket.socket() as connection, pytest.raises(RuntimeError, match="offline"):
        connection.connect(("192.0.2.1", 80))


def test_tests_with_real_data_carry_the_marker(
    request: pytest.FixtureRequest, shared_datasets: Path
) -> None:
    assert shared_datasets.is_dir()
    assert request.node.get_closest_marker("data") is not None
