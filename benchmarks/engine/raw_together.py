"""Raw training of configurations asked together, beside the same ones asked one after another.

Both are asked of new backends, whose answers are the same bits, in one fresh process. What a batch
gains depends on how much its courses share: those of one seed with one batch size share their
minibatches, and the paper's grid has seven batch sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
from measuring import number

from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.tasks import get_task

SPACES = ("the paper's grid", "intervals")


def measure(name: str, configurations: int, rounds: int, space: str) -> tuple[float, float]:
    """Return processor seconds one after another, and together."""
    task = get_task(name)
    drawn = task.space.discretized() if space == SPACES[0] else task.space
    actions = stream(0, "benchmark_raw").uniform(-1.0, 1.0, (configurations, len(drawn)))
    queries = [(drawn.decode(action), Fidelity(rounds, 1.0)) for action in actions]
    Raw(task).evaluate(*queries[0])  # loads the data
    backend = Raw(task)
    with measuring.stopwatch() as alone:
        answers = [backend.evaluate(*query).best for query in queries]
    backend = Raw(task)
    with measuring.stopwatch() as together:
        many = backend.evaluate_many(queries)
    np.testing.assert_array_equal(many.best, answers)
    return alone.cpu_s, together.cpu_s


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the table and write it to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--task", default="FedHPO-LR-CreditG-v0", help="environment id")
    parser.add_argument("--configurations", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(argv)
    rows, peak = [], 0.0
    for space in SPACES:
        asked = options.task, options.configurations, options.rounds, space
        (alone, together), peak = measuring.in_fresh_process(measure, *asked)
        rows.append([space, f"{alone:.2f}", f"{together:.2f}", number(alone / together)])
    header = ("configurations from", "one by one, s", "together, s", "ratio")
    return measuring.write_report(
        options,
        "Raw training of configurations asked together",
        f"{options.task}, {options.configurations} random configurations, {options.rounds} rounds, "
        f"three seeds; processor time of one core, equal answers; peak memory {peak:.0f} MB.",
        measuring.table(header, rows),
    )


if __name__ == "__main__":
    measuring.run(main)
