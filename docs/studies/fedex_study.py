"""X with and without FedEx, with equal training for both: Section 4.2 of FedHPO-Bench.

    python docs/studies/fedex_study.py --out DIR

X (random search, TPE, Hyperband, BOHB) chooses a configuration per course, and the latter two also
how many rounds it gets. Without FedEx all clients use it; with FedEx they try its neighbourhood (27
arms) while the course runs. A seed gives both arms the same partition, initialisation and
minibatches, and every search the same number of rounds; every course starts from scratch. (In the
original, a wrapped course that came up again went on from its checkpoint.) Finished pieces are
kept: start it again after an interruption. DIR holds one study, and says in study.json which.
BreastCancer needs no download; Vehicle joins where `fedhpo-gym download Vehicle` has fetched it.
The report is DIR/report.md, with a picture.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
from fedex_report import LABELS, draw, report
from pieces import claim, pieces
from wrapped_fedex import Neighbourhood, row_problem, wrapped_search

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import agent_class
from fedhpo_gym.space.dimension import Dimension
from studies import positive, study_parser, tables_here

TABLES = ("BreastCancer", "Vehicle")


@dataclass(frozen=True)
class Study:
    """How much is done per problem, X, arm and seed.

    Two turns of Hyperband's brackets (81 + 54 + 81 rounds) are 16 courses of 27 rounds.
    """

    problems: Mapping[str, float]  # table -> concentration of the partition
    seeds: int = 5
    rounds: int = 432
    horizon: int = 27
    shortest: int = 3
    outer: Sequence[str] = tuple(LABELS)
    arms: tuple[int, int] = (1, 27)  # without FedEx and with it


def run_search(study: Study, problem: str, outer: str, arms: int, seed: int) -> dict[str, Any]:
    """Run one search; return what every course reached: losses in nats."""
    env = gym.make(
        f"FedHPO-DAC-LR-{problem}-v0",
        per_client=True,
        instances=[[study.problems[problem], 1000 + seed]],
        horizon=study.horizon,
    )
    kind, lengths = agent_class(outer), None
    if kind.fidelity is not None:
        lengths = Dimension(kind.fidelity, study.shortest, study.horizon, "int")
    agent = kind(row_problem(env, seed, lengths))
    space = env.unwrapped.search_space  # type: ignore[attr-defined]
    began, spent = time.process_time(), 0
    courses = []
    around = Neighbourhood(arms=arms)
    for trial in wrapped_search(env, agent, seed, around, space, lengths):
        last = trial.steps[-1].info
        spent += trial.length or study.horizon
        courses.append(
            {
                "score": trial.score,
                "spent": spent,
                "rounds": len(trial.steps),
                "val_loss": last["val_loss"],
                "test_loss": last["test"]["loss"],
                "test_accuracy": last["test"]["accuracy"],
            }
        )
        if spent >= study.rounds:
            break
    env.close()
    return {"courses": courses, "cpu_s": time.process_time() - began}


def run(study: Study, out: Path, workers: int) -> dict[tuple[str, str, int], list[Any]]:
    """Do every search that is not there yet; return the searches of each cell by seed."""
    cells = {
        out / f"{problem}-{outer}-{arms}-{seed}.json": (problem, outer, arms, seed)
        for seed, problem, outer, arms in product(
            range(study.seeds), study.problems, study.outer, study.arms
        )
    }
    jobs = {path: partial(run_search, study, *cell) for path, cell in cells.items()}
    found: dict[tuple[str, str, int], list[Any]] = {}
    for path, result in pieces(jobs, workers).items():
        found.setdefault(cells[path][:3], []).append(result)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--seeds", type=positive, help="searches per cell (default: 5)")
    options = parser.parse_args(arguments)
    if options.quick:
        study = Study({"BreastCancer": 0.5}, seeds=2, rounds=6, horizon=3, shortest=1)
    else:
        study = Study(dict.fromkeys(tables_here(TABLES), 0.5))
    if options.seeds:
        study = replace(study, seeds=options.seeds)
    claim(options.out, study)
    found = run(study, options.out, options.workers)
    (options.out / "report.md").write_text(report(study, found), encoding="utf-8")
    draw(study, found, options.out / "fedex.png")
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
