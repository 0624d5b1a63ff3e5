"""How much faster compiled code trains small models than torch did: both engines in one run.

The former engine is that of a commit of this repository, unpacked into a temporary folder. Either
runs in fresh processes on one thread, in turns; of every figure the best of the turns counts. The
courses are the same: those of CreditG and Vehicle, drawn from the same streams.

- alone: milliseconds a round of one course, trained alone and with all metrics after every round;
- tables: courses per hour of one core, 48 side by side with the metrics of every round;
- round environments: steps per second, one and 256 at once, with everything dynamic.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import measuring

ROOT = Path(__file__).resolve().parents[1]
FORMER = "a31945e"
"""The last commit whose small models torch trained."""
TURNS = 2
ROUNDS = 27
DYNAMIC = ["learning_rate", "weight_decay", "batch_size", "step_size", "client_sample_rate"]


def best_s(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the fewest seconds that some work took, after a first time."""
    work()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def figures() -> dict[str, float]:
    """Measure the engine that this process imports; larger is better."""
    import gymnasium as gym
    import numpy as np

    from fedhpo_gym.courses.training import make_batch
    from fedhpo_gym.fl.packing import Course
    from fedhpo_gym.tasks import get_task

    found: dict[str, float] = {}
    for name, shape in (
        ("LR-CreditG", {}),
        ("LR-Vehicle", {}),
        ("MLP-Vehicle", {"model_depth": 1, "model_width": 64}),
    ):
        task = get_task(f"{name}-v0")
        for size, epochs in ((64, 1), (8, 4)):
            config = {"weight_decay": 0.001, "batch_size": size, "step_size": epochs, **shape}
            courses = [
                Course({**config, "learning_rate": float(rate)}, 1.0, 1)
                for rate in np.geomspace(0.001, 0.1, 48)
            ]
            alone, many = make_batch(task, courses[:1]), make_batch(task, courses)
            words = f"{name}, batches of {size}, {epochs} epochs"
            trained = best_s(lambda b=alone: b.advance(ROUNDS, evaluated=()))
            seen = best_s(lambda b=alone: b.advance(ROUNDS))
            found[f"{words}: rounds/s alone, training"] = ROUNDS / trained
            found[f"{words}: rounds/s alone, with metrics"] = ROUNDS / seen
            side = best_s(lambda b=many: b.advance(5), repeats=1)
            hourly = 48 * 5 / side * 3600 / 500
            found[f"{words}: courses of 500 rounds per core-hour, 48 at once"] = hourly
    for number in (1, 256):
        env = gym.make_vec("FedHPO-DAC-LR-CreditG-v0", num_envs=number, dynamic=DYNAMIC)
        env.reset(seed=0)
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(3)]

        def play(env: Any = env, actions: Sequence[Any] = actions) -> None:
            for action in actions:
                env.step(action)

        repeats = 3 if number == 1 else 1
        found[f"round environment LR-CreditG: steps/s, {number} at once"] = (
            number * len(actions) / best_s(play, repeats)
        )
    return found


def run(folder: Path) -> dict[str, float]:
    """Measure the engine in a folder, in a fresh process."""
    code = (
        f"import sys; sys.path[:0] = [{str(folder)!r}, {str(Path(__file__).parent)!r}]\n"
        "import json, compiled_speed\n"
        "print(json.dumps(compiled_speed.figures()))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main(argv: Sequence[str] | None = None) -> str:
    """Measure both engines in turns, print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    arguments = parser.parse_args(argv)
    load = measuring.load_average()
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", FORMER, "fedhpo_gym"],  # noqa: S607
        capture_output=True,
        check=True,
    ).stdout
    best: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        for _ in range(TURNS):
            for which, place in enumerate((Path(folder), ROOT)):
                for name, value in run(place).items():
                    known = best.setdefault(name, [0.0, 0.0])
                    known[which] = max(known[which], value)
    rows = [
        [n, measuring.number(a), measuring.number(b), f"{b / a:.1f}"] for n, (a, b) in best.items()
    ]
    sections = [measuring.table(("figure", f"torch ({FORMER})", "compiled", "times"), rows)]
    command = ["python", "benchmarks/compiled_speed.py"]
    return measuring.write_report(arguments.out, "Compiled training", command, load, sections)


if __name__ == "__main__":
    main()
