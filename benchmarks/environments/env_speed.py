"""What an agent waits for: import, `gym.make`, the first step, and steps per second.

Every backend that can answer without training is measured in a fresh process. The limit is what
any Python program could reach at best: the same blocks of numbers taken from one numpy array at
positions that are already known, weighted over clients and averaged over seeds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import gymnasium as gym
import measuring
import numpy as np
from measuring import number

import fedhpo_gym  # noqa: F401 - registers the environments
from fedhpo_gym.core.errors import MissingDataError
from fedhpo_gym.stored.catalogue import open_table
from fedhpo_gym.tasks import get_task

IMPORTS = {
    "`import gymnasium, numpy`": "import gymnasium, numpy",
    "`import fedhpo_gym`": "import fedhpo_gym",
    "... when gymnasium and numpy are there": "import fedhpo_gym",
}
BACKENDS = ("tabular", "surrogate")


def import_seconds(statement: str, before: str = "") -> float:
    """Return the processor seconds a statement takes in a new interpreter."""
    code = (
        f"import time\n{before}\nstart = time.process_time()\n{statement}\n"
        "print(time.process_time() - start)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def time_environment(task: str, backend: str, steps: int) -> dict[str, float] | None:
    """Time an environment from `gym.make` on; None where the backend has no answers.

    Returns:
        Seconds of `make`, `reset`, `first step` and `step`: one of `steps` steps with random
        actions, resets at the end of an episode included.
    """
    with measuring.stopwatch() as make:
        try:
            env = gym.make(task, backend=backend)
        except MissingDataError:
            return None
    with measuring.stopwatch() as reset:
        env.reset(seed=0)
    env.action_space.seed(0)
    action, *actions = [env.action_space.sample() for _ in range(steps + 1)]
    with measuring.stopwatch() as first:
        env.step(action)
    with measuring.stopwatch() as many:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
    found = {"make": make, "reset": reset, "first step": first, "step": many}
    return {name: spent.cpu_s / (steps if name == "step" else 1) for name, spent in found.items()}


def time_limit(task: str, steps: int) -> float:
    """Return the seconds of a look-up in a plain array, at a position that is known."""
    table = open_table(get_task(task).table_name)
    losses = table.values("best", "val", "loss")  # (rounds, *grid, rates, seeds, clients)
    samples = table.num_samples[:, :, 1]
    weights = samples / samples.sum(axis=1, keepdims=True) / len(table.seeds)
    rng = np.random.default_rng(0)
    cells = [tuple(cell) for cell in rng.integers(losses.shape[:-2], size=(steps, losses.ndim - 2))]
    total = 0.0
    with measuring.stopwatch() as spent:
        for cell in cells:
            total += float((losses[cell] * weights).sum())
    if not np.isfinite(total):
        raise RuntimeError(f"table {table.name} holds a loss that is not finite")
    return spent.cpu_s / steps


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the tables and write them to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--task", default="FedHPO-LR-CreditG-v0", help="environment id")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5, help="of the import; the median counts")
    options = parser.parse_args(argv)
    limit, _ = measuring.in_fresh_process(time_limit, options.task, options.steps)
    rows = []
    for backend in BACKENDS:
        asked = (time_environment, options.task, backend, options.steps)
        spent, peak = measuring.in_fresh_process(*asked)
        if spent is None:
            rows.append([backend, *["none yet"] * 6])
            continue
        *once, step = spent.values()
        rows.append([backend, *(number(1e3 * one) for one in once)])
        rows[-1] += [f"{1 / step:,.0f}", number(step / limit), f"{peak:.0f}"]
    rows.append(["limit: numpy look-up", "", "", "", f"{1 / limit:,.0f}", "1", ""])
    header = ("backend", "`gym.make` ms", "reset ms", "first step ms", "steps per second")
    header += ("times slower than the limit", "peak RSS MB")
    imports = []
    for name, statement in IMPORTS.items():
        before = "import gymnasium, numpy" if name.startswith("...") else ""
        times = [import_seconds(statement, before) for _ in range(options.repeats)]
        imports.append([name, number(1e3 * statistics.median(times))])
    return measuring.write_report(
        options,
        "Environment speed",
        f"{options.task}, {options.steps} random steps, processor time, each backend in a "
        "fresh process. A step answers for all three seeds and five clients and computes "
        "objectives, cost, observation and info.",
        measuring.table(header, rows),
        measuring.table(("import", "CPU ms"), imports),
    )


if __name__ == "__main__":
    measuring.run(main)
