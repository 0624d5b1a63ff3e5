"""What a run record costs: `python benchmarks/record_speed.py` prints trials per second.

One core writes and reads records of an LR-CreditG run of 2,000 trials; "digests" is the time that
the digests of their lines take of writing.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import gymnasium as gym

import fedhpo_gym
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.analysis.files import read_record, write_record
from fedhpo_gym.analysis.records import Header, RunRecord, StepRecord, sealed

ID = "FedHPO-LR-CreditG-v0"
TRIALS, REPEATS = 2000, 5


def make_record() -> RunRecord:
    """Return the record of a run of random search."""
    with gym.make(ID, budget_trials=TRIALS, disable_env_checker=True) as env:
        _, info = env.reset(seed=0)
        spec = json.loads(env.spec.to_json()) if env.spec else {}
        steps = [
            StepRecord.from_step(s.action, s.reward, s.terminated, s.truncated, s.info)
            for s in run_episode(env, make_agent("random", env, 0), 0)
        ]
    version, fingerprint = fedhpo_gym.__version__, info["fingerprint"]
    return RunRecord(Header(version, ID, spec, "random", 0, fingerprint), tuple(steps))


def best_s(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some repetitions."""
    found = []
    for _ in range(REPEATS):
        start = perf_counter()
        work()
        found.append(perf_counter() - start)
    return min(found)


def main() -> int:
    """Print the table."""
    record = make_record()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        seconds = {
            "write": best_s(lambda: write_record(path, record)),
            "read": best_s(lambda: read_record(path)),
        }
        lines = path.read_bytes().splitlines()
        seconds["digests"] = best_s(lambda: list(sealed(lines)))
    sys.stdout.write("| | trials per second | µs per trial |\n|---|---|---|\n")
    for name, took in seconds.items():
        sys.stdout.write(f"| {name} | {TRIALS / took:,.0f} | {took / TRIALS * 1e6:.1f} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
