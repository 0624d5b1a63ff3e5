"""A record of an earlier engine is named so when it is replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")
pytest.importorskip("sklearn")

from fedhpo_gym.analysis import read_record
from fedhpo_gym.cli import main
from fedhpo_gym.studies.environments import remake_environment
from fedhpo_gym.studies.replay import replay


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("FedHPO-DAC-LR-BreastCancer-v0", ["--set", "horizon=5"]),
        pytest.param(
            "FedHPO-LR-BreastCancer-v0",
            ["--backend", "raw", "--set", "budget_trials=1"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_earlier_engine_is_named(env_id: str, options: list[str], tmp_path: Path) -> None:
    assert (
        main(["run", env_id, "--agent", "random", "--seeds", "1", "--out", str(tmp_path), *options])
        == 0
    )
    [path] = tmp_path.rglob("*.jsonl")
    record = read_record(path)
    assert replay(record) is None
    env: Any = remake_environment(record.header.id, record.header.spec).unwrapped
    trained = env.backend if "backend" in options[0] else env.process.courses
    [former] = trained.former_engines
    old = replace(record, header=replace(record.header, fingerprint=former))
    assert str(replay(old)) == "reset: engine: recorded 1, replayed 2"
    other = replace(record, header=replace(record.header, fingerprint="raw-sha256:0"))
    assert str(replay(other)).startswith("reset: fingerprint: ")
