r"""Brackets of Hyperband and DEHB by their authors' code, in an environment of its own.

    python -m venv peer && peer/bin/pip install numpy scipy ConfigSpace Pyro4 serpent statsmodels \\
        pandas loguru distributed && peer/bin/pip install --no-deps hpbandster==0.7.4 DEHB==0.1.2
    peer/bin/python benchmarks/peer_brackets.py > tests/data/brackets.json

Both pin packages that this suite does not: hence `--no-deps`. A run is (trials, fidelity).
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from itertools import groupby
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

ETA = 3
LADDERS = {"hpbandster": ((1, 27), (3, 81), (1, 81), (9, 81)), "dehb": ((3, 81), (3, 27))}
TRIALS = 150


def hpbandster(low: int, high: int) -> dict[str, Any]:
    """Return the brackets of two turns, from `get_next_iteration`."""
    sys.modules.setdefault("netifaces", ModuleType("netifaces"))  # asked for, and not used
    from hpbandster.optimizers.hyperband import HyperBand

    # Without its constructor, which waits for workers; these are the lines of it that count.
    made = HyperBand.__new__(HyperBand)
    number = -int(np.log(low / high) / np.log(ETA)) + 1
    made.eta, made.max_SH_iter, made.iterations = ETA, number, []
    made.budgets = high * np.power(ETA, -np.linspace(number - 1, 0, number))
    made.config_generator = SimpleNamespace(get_config=None)
    turns = [made.get_next_iteration(i, {"result_logger": None}) for i in range(2 * number)]
    runs = [
        [int(count), round(float(budget))]
        for turn in turns
        for count, budget in zip(turn.num_configs, turn.budgets, strict=True)
    ]
    return {"low": low, "high": high, "runs": runs}


def dehb(low: int, high: int) -> dict[str, Any]:
    """Return the fidelities that DEHB asks for, and how large its populations are."""
    from ConfigSpace import ConfigurationSpace, Float
    from dehb import DEHB

    space = ConfigurationSpace(seed=1)
    space.add([Float(name, (0.0, 1.0)) for name in "abc"])
    with tempfile.TemporaryDirectory() as folder:
        made = DEHB(
            f=None, cs=space, min_fidelity=low, max_fidelity=high, eta=ETA, n_workers=1,
            output_path=folder, seed=1, log_level="ERROR",
        )  # fmt: skip
        asked = []
        for _ in range(TRIALS):
            job = made.ask()
            asked.append(round(float(job["fidelity"])))
            loss = sum((float(value) - 0.3) ** 2 for value in dict(job["config"]).values())
            made.tell(job, {"fitness": loss, "cost": 1.0})
        sizes = [int(made.de[fidelity].pop_size) for fidelity in sorted(made.de)]
    runs = [[len(list(same)), rung] for rung, same in groupby(asked)]
    return {"low": low, "high": high, "runs": runs, "populations": sizes}


def main() -> int:
    """Print the brackets as JSON."""
    logging.disable(logging.CRITICAL)
    peers = {"hpbandster": hpbandster, "dehb": dehb}
    found = {name: [peer(*one) for one in LADDERS[name]] for name, peer in peers.items()}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
