"""What `fedhpo_gym.truth` and the regret of a run take, for every stored problem.

Processor seconds of a new interpreter, imports included, and how many times a bare import that is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
from measuring import number

from fedhpo_gym.cli.health import cards_of_ids as chosen
from fedhpo_gym.cli.listing import answering_tasks as answering
from fedhpo_gym.stored.health import open_stored
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.tasks import Task

IMPORT = "import time, fedhpo_gym; print(time.process_time())"
CODE = """
import json, sys, time
import fedhpo_gym
from fedhpo_gym.studies.environments import make_environment
env_id, arguments = json.loads(sys.argv[1])
known = fedhpo_gym.truth(env_id, **arguments)
known.best, known.ideal(), known.reference()
truth_s = time.process_time()
full = make_environment(env_id, arguments).unwrapped.full_truth
full.regret_at([full.best_query[0]])
print(truth_s, time.process_time())
"""


def seconds(code: str, *words: str) -> list[float]:
    """Return the processor seconds that a program prints."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def arguments_of(task: Task, backend: str) -> dict[str, object]:
    """Return the arguments of an id that choose a variant."""
    tuned = {"tune": {d.name: [d.low, d.high] for d in task.tuned}} if task.tuned else {}
    options = {name: getattr(task, name) for name in task.options}
    return {**options, "settings": dict(task.settings), "backend": backend, **tuned}


def main() -> None:
    """Measure every card, the newest id that answers from it."""
    options = measuring.Parser(__file__, __doc__).parse_args()
    [bare] = seconds(IMPORT)
    rows: dict[str, list[tuple[float, float, str]]] = {}
    for card in chosen(()):
        stored = open_stored(card)
        kind = card.name.split(".")[-2]
        task = answering(stored)[-1]
        backend = "surrogate" if isinstance(stored, Surrogate) else "tabular"
        asked = json.dumps([task.id, arguments_of(task, backend)])
        truth_s, regret_s = seconds(CODE, asked)
        rows.setdefault(kind, []).append((truth_s, regret_s, card.name.split(".")[0]))
    lines = [
        [kind, len(own), *(number(x) for x in (max(own)[0], max(own)[0] / bare)), max(own)[2],
         *(number(x) for x in (slowest[1], slowest[1] / bare)), slowest[2]]
        for kind, own in rows.items()
        for slowest in [max(own, key=lambda row: row[1])]
    ]  # fmt: skip
    heads = ["kind", "cards", "truth, s", "imports", "slowest", "and regret, s", "imports"]
    text = f"A bare `import fedhpo_gym` takes {number(bare)} s; the slowest card of each kind:"
    measuring.write_report(
        options, "Truth and regret of stored problems", text,
        measuring.table([*heads, "slowest"], lines),
    )  # fmt: skip


if __name__ == "__main__":
    measuring.run(main)
