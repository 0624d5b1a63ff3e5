"""Every optimizer on a contest and on stored problems, for `docs/studies/optimizers.md`.

    python docs/studies/optimizers_study.py --out DIR

The contest is really trained, by the extras `compiled` and `natural`; everything else is asked of
stored tables and surrogates. Runs that are there are not done again: start it anew after an
interruption, or with more `--seeds`. DIR holds a folder of records per part;
`docs/studies/optimizers_report.py` makes tables and pictures of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhpo_gym.studies import Execution, compare
from fedhpo_gym.studies.suites import suite
from fedhpo_gym.tasks.logistic_regression import LR_TASKS
from studies import positive

HOURS = 3600.0
BLACK_BOX = (
    "random", "grid", "sobol", "latin-hypercube", "de", "cma-es",
    "bo-gp", "bo-rf", "bo-kde", "optuna-tpe",
)  # fmt: skip
MULTI_FIDELITY = (
    "tpe-md", "tpe-hb", "successive-halving", "asha", "hyperband", "bohb", "dehb", "priorband",
)  # fmt: skip
AGENTS = (*BLACK_BOX, *MULTI_FIDELITY)
VECTOR_AGENTS = ("random", "nsga2", "motpe", "parego", "qlognehvi")
LR = tuple(dict.fromkeys(task.name for task in LR_TASKS))


@dataclass(frozen=True)
class Part:
    """Some problems, and who acts on them.

    Attributes:
        problems: ids.
        agents: who is compared.
        budget_s: simulated seconds; None for the problems' own.
        arguments: further arguments of `gymnasium.make`.
    """

    problems: Sequence[str]
    agents: Sequence[str] = AGENTS
    budget_s: float | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


MANY = ("FedHPO-LR-Twitter-v2", "FedHPO-MF-MadeRatings-v1")
"""Problems of many clients that the paper does not have; in a day they take hundreds of trials."""
OTHERS = ("CNN-FEMNIST", "GNN-CiteSeer", "GNN-Cora", "MLP-Car")
FIFTH = {"noise": {"clients": 0.2}}
"""One of five clients evaluates a trial."""
HUNDREDTH = {"noise": {"clients": 0.01}}
FAIR = {"objectives": ["val_loss", "fairness_p10"]}
"""Objectives of version 1, for version 0, too: its own do not vary where one client evaluates.
Simulated time does not vary either: every trial has full fidelity."""
PARTS: Mapping[str, Sequence[Part]] = {
    "contest": [Part(suite("contest"))],
    "v0": [Part([f"FedHPO-{name}-v0" for name in LR])],
    "v1": [Part([f"FedHPO-{name}-v1" for name in LR])],
    "others": [
        Part(["FedHPO-MLP-Car-v1", "FedHPO-CNN-FEMNIST-v1", "FedHPO-GNN-Cora-v1"]),
        Part([*MANY, "FedHPO-Hetero-GraphDC-v1"], budget_s=6 * HOURS),
    ],
    "vectors-v0": [Part([f"MO-FedHPO-{name}-v0" for name in LR], VECTOR_AGENTS, arguments=FAIR)],
    "vectors-v1": [Part([f"MO-FedHPO-{name}-v1" for name in LR], VECTOR_AGENTS)],
    "vectors-others": [Part([f"MO-FedHPO-{name}-v1" for name in OTHERS], VECTOR_AGENTS)],
    "noise": [
        Part([f"FedHPO-{name}-v1" for name in LR], arguments=FIFTH),
        Part([f"FedHPO-{name}-v0" for name in LR], arguments=FIFTH),
        Part(MANY, budget_s=6 * HOURS, arguments=HUNDREDTH),
        Part(["FedHPO-CNN-FEMNIST-v1"], arguments=HUNDREDTH),
    ],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that the command line asks for; 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for records")
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only this one")
    parser.add_argument("--seeds", type=positive, default=5, help="runs per cell (default: 5)")
    parser.add_argument("--workers", type=positive, default=1, help="processes (default: 1)")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.part or PARTS:
        for part in PARTS[name]:
            compared = compare(
                part.problems,
                part.agents,
                options.seeds,
                options.out / name,
                budget_s=part.budget_s,
                arguments=part.arguments,
                execution=Execution(workers=options.workers),
                warn=print,
            )
            failed += len(compared.faults)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
