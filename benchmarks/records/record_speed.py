"""What a run record costs: trials per second that are written and read.

One core writes and reads records of an LR-CreditG run of 2,000 trials; "digests" is the time that
the digests of their lines take of writing.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import gymnasium as gym
import measuring

import fedhpo_gym
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.records.files import read_record, write_record
from fedhpo_gym.records.record import Header, RunRecord, StepRecord
from fedhpo_gym.records.record import seal_lines as sealed

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


def main(argv: Sequence[str] | None = None) -> str:
    """Measure and write the table."""
    options = measuring.Parser(__file__, __doc__).parse_args(argv)
    record = make_record()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        write_record(path, record)
        lines = path.read_bytes().splitlines()
        jobs: dict[str, Callable[[], object]] = {
            "write": lambda: write_record(path, record),
            "read": lambda: read_record(path),
            "digests": lambda: list(sealed(lines)),
        }
        seconds = measuring.fastest({name: (job, 1) for name, job in jobs.items()}, REPEATS)
    rows = [
        [name, f"{TRIALS / took:,.0f}", f"{took / TRIALS * 1e6:.1f}"]
        for name, took in seconds.items()
    ]
    table = measuring.table(("", "trials per second", "µs per trial"), rows)
    return measuring.write_report(options, "Speed of records", table)


if __name__ == "__main__":
    measuring.run(main)
