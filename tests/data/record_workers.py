"""Records what `mfhpo-simulator` says of 1,000 random traces: an oracle for simulated workers.

    python -m venv .venv-simulator && .venv-simulator/bin/pip install mfhpo-simulator==1.4.6
    .venv-simulator/bin/python tests/data/record_workers.py tests/data/workers.npz

Seconds are whole numbers, so that sums are exact, and no two trials of a trace end together: the
simulator sorts by time, and equal times in no order of its own. Its clock also counts the seconds
that an optimizer thinks; here they are none. In every second trace courses are resumed, each once
and after its first part was told: the simulator remembers of a part only what that part cost.
"""

from __future__ import annotations

import sys
import tempfile
import types
import warnings
from typing import Any

import benchmark_simulator._simulator._worker_manager_for_ask_and_tell as asking
import numpy as np
from benchmark_simulator import ObjectiveFuncWrapper

TRACES = 1000
MOST_WORKERS = 32


class Trace:
    """An optimizer that starts new courses, and resumes those it was told of."""

    def __init__(self, rng: np.random.Generator, resumes: bool) -> None:
        self.rng, self.resumes = rng, resumes
        self.times: list[tuple[int, int]] = []
        self.told: list[int] = []
        self.asked: list[tuple[int, int]] = []

    def ask(self) -> tuple[dict[str, Any], dict[str, int] | None, int | None]:
        """Return a new course, or the rest of one whose first part was told."""
        course, part = len(self.times), 1
        if self.resumes and self.told and self.rng.random() < 0.5:
            course, part = self.told.pop(self.rng.integers(len(self.told))), 2
        else:
            first = int(self.rng.integers(1, 2**14))
            self.times.append((first, first + int(self.rng.integers(1, 2**14))))
        self.asked.append((course, part))
        return {"x": course}, {"part": part} if self.resumes else None, course

    def tell(self, eval_config: dict[str, Any], results: Any, fidels: Any, config_id: Any) -> None:
        """Remember which courses can be resumed."""
        if fidels and fidels["part"] == 1:
            self.told.append(eval_config["x"])


def record(seed: int) -> dict[str, list[int]] | None:
    """Return one trace; None if two of its trials end together."""
    rng = np.random.default_rng(seed)
    workers, number = int(rng.integers(1, MOST_WORKERS + 1)), int(rng.integers(4, 25))
    trace = Trace(rng, seed % 2 == 1)

    def evaluate(eval_config: Any, fidels: Any = None, **_: Any) -> dict[str, float]:
        part = fidels["part"] if fidels else 1
        return {"loss": len(trace.asked) - 1.0, "runtime": trace.times[eval_config["x"]][part - 1]}

    with tempfile.TemporaryDirectory() as folder:
        simulator = ObjectiveFuncWrapper(
            obj_func=evaluate,
            save_dir_name="trace",
            tmp_dir=folder,
            ask_and_tell=True,
            n_workers=workers,
            n_actual_evals_in_opt=number + workers,
            n_evals=number,
            obj_keys=["loss"],
            fidel_keys=["part"] if trace.resumes else None,
            continual_max_fidel=2 if trace.resumes else None,
            expensive_sampler=True,
            seed=seed,
        )
        simulator.simulate(trace)
        found = simulator.get_results()
    ends = [int(time) for time in found["cumtime"]]
    if len(set(ends)) < len(ends):
        return None
    return {
        "workers": [workers],
        "courses": [course for course, _ in trace.asked],
        "seconds": [trace.times[course][part - 1] for course, part in trace.asked],
        "order": [int(loss) for loss in found["loss"]],
        "ends": ends,
        "by": [int(worker) for worker in found["worker_index"]],
    }


def main(path: str) -> None:
    """Record the traces one after the other in flat arrays, with their sizes."""
    warnings.simplefilter("ignore")
    asking.time = types.SimpleNamespace(time=lambda: 0.0)  # nobody waits for the optimizer
    traces, seed = [], 0
    while len(traces) < TRACES:
        trace, seed = record(seed), seed + 1
        if trace is not None:
            traces.append(trace)
    arrays = {
        name: np.array([number for one in traces for number in one[name]], dtype=np.int32)
        for name in traces[0]
    }
    arrays["asked"] = np.array([len(one["courses"]) for one in traces], dtype=np.int32)
    arrays["ended"] = np.array([len(one["ends"]) for one in traces], dtype=np.int32)
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
