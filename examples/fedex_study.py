"""X with and without FedEx, with equal training for both: Section 4.2 of FedHPO-Bench.

    python examples/fedex_study.py --out DIR

X (random search, TPE, Hyperband, BOHB) chooses a configuration per course, and the latter two also
how many rounds it gets. Without FedEx all clients use it; with FedEx they try its neighbourhood (27
arms) while the course runs. A seed gives both arms the same partition, initialisation and
minibatches, and every search the same number of rounds; every course starts from scratch. (In the
original, a wrapped course that came up again went on from its checkpoint.) Finished pieces are
kept: start it again after an interruption. The report is DIR/report.md, with a picture.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from studies import CORES, cell, pieces, table

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import MULTI_FIDELITY_AGENTS, make_agent
from fedhpo_gym.agents.wrapped_fedex import Neighbourhood, row_space, wrapped_search
from fedhpo_gym.dimension import Dimension

OUTER = {"random": "random search", "optuna-tpe": "TPE", "hyperband": "Hyperband", "bohb": "BOHB"}
ARMS = (1, 27)
COLOURS = dict(zip(OUTER, ("#4878a8", "#c8602c", "#6a9a4a", "#8a5aa8"), strict=True))


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


def run_search(study: Study, problem: str, outer: str, arms: int, seed: int) -> dict[str, Any]:
    """Run one search; return what every course reached: losses in nats."""
    env = gym.make(
        f"FedHPO-DAC-LR-{problem}-v0",
        per_client=True,
        instances=[[study.problems[problem], 1000 + seed]],
        horizon=study.horizon,
    )
    chooses = outer in MULTI_FIDELITY_AGENTS
    lengths = Dimension("round", study.shortest, study.horizon, "int") if chooses else None
    row = row_space(env.action_space, more=int(chooses))
    agent = make_agent(outer, row, seed, **({"fidelity": lengths} if chooses else {}))
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
        for seed, problem, outer, arms in product(range(study.seeds), study.problems, OUTER, ARMS)
    }
    jobs = {path: partial(run_search, study, *cell) for path, cell in cells.items()}
    found: dict[tuple[str, str, int], list[Any]] = {}
    for path, result in pieces(jobs, workers).items():
        found.setdefault(cells[path][:3], []).append(result)
    return found


def best(search: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the course that X was told is the best one."""
    found: Mapping[str, float] = max(search["courses"], key=lambda course: course["score"])
    return found


def incumbents(
    searches: Sequence[Mapping[str, Any]],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return (courses,) rounds spent and (seeds, courses) lowest losses that X was told so far."""
    spent = np.array([course["spent"] for course in searches[0]["courses"]])
    losses = [[-course["score"] for course in one["courses"]] for one in searches]
    return spent, np.minimum.accumulate(np.array(losses), axis=1)


def report(study: Study, found: Mapping[tuple[str, str, int], list[Any]]) -> str:
    """Return the tables of the report."""
    parts, averages = [], []
    for problem, outer in product(study.problems, OUTER):
        plain, wrapped = ([best(one) for one in found[problem, outer, arms]] for arms in ARMS)
        row = [f"{problem} (α {study.problems[problem]})", OUTER[outer]]
        for name, factor, digits in (
            ("score", -1.0, 4), ("val_loss", 1.0, 4), ("test_accuracy", 100.0, 2),
        ):  # fmt: skip
            without, with_it = (
                np.array([course[name] for course in courses]) * factor
                for courses in (plain, wrapped)
            )
            row += [cell(without, digits), cell(with_it, digits)]
            row += [cell(with_it - without, digits, sign=True)]
        parts.append(row)
        everything = [
            np.array([[course["val_loss"] for course in one["courses"]] for one in found[key]])
            for key in ((problem, outer, arms) for arms in ARMS)
        ]
        averages.append(
            [
                *row[:2],
                *(cell(losses.mean(axis=1), 4) for losses in everything),
                cell((everything[1] - everything[0]).mean(axis=1), 4, sign=True),
            ]
        )
    head = ["problem", "X"]
    for name in ("loss X was told, nats", "validation loss, nats", "test accuracy, %"):
        head += [f"{name}: X", "X + FedEx", "difference"]
    cpu = sum(one["cpu_s"] for searches in found.values() for one in searches)
    return (
        f"{study.seeds} seeds; {study.rounds} rounds for every search, with FedEx and without, in "
        f"courses of {study.horizon} (Hyperband, BOHB: {study.shortest} to {study.horizon}); "
        f"{cpu:.0f} s of CPU time in all. Mean ± standard error over seeds; differences are paired "
        "by seed.\n\n**The best course of a search**\n\n"
        + table(head, parts)
        + "\n**All courses of a search: mean validation loss of the aggregated model, nats**\n\n"
        + table(["problem", "X", "X", "X + FedEx", "difference"], averages)
    )


def draw(study: Study, found: Mapping[tuple[str, str, int], list[Any]], path: Path) -> None:
    """Draw the incumbents against the rounds spent."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shape = (len(study.problems), len(OUTER))
    figure, axes = plt.subplots(
        *shape, figsize=(11, 1 + 2.5 * shape[0]), squeeze=False, sharex=True, sharey="row"
    )
    for (row, problem), (column, outer) in product(enumerate(study.problems), enumerate(OUTER)):
        axis = axes[row, column]
        for arms in ARMS:
            rounds, curves = incumbents(found[problem, outer, arms])
            middle = curves.mean(axis=0)
            error = curves.std(axis=0, ddof=min(1, len(curves) - 1)) / np.sqrt(len(curves))
            style, name = ("-", "X + FedEx") if arms > 1 else ("--", "X")
            colour = COLOURS[outer]
            axis.step(rounds, middle, style, where="post", color=colour, label=name)
            axis.fill_between(
                rounds, middle - error, middle + error, step="post", color=colour, alpha=0.12
            )
        axis.set_yscale("log")
        axis.legend(frameon=False)
        axis.set_title(OUTER[outer] if row == 0 else "")
        axis.set_xlabel("communication rounds" if row == shape[0] - 1 else "")
        axis.set_ylabel(f"{problem}: lowest loss\nX was told, nats" if column == 0 else "")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it works")
    parser.add_argument("--workers", type=int, default=CORES, help="processes (one per core)")
    options = parser.parse_args(arguments)
    problems = {"BreastCancer": 0.5}
    if os.environ.get("FEDHPO_GYM_DATA"):
        problems["Vehicle"] = 0.5
    study = Study(problems)
    if options.quick:
        study = Study({"BreastCancer": 0.5}, seeds=2, rounds=6, horizon=3, shortest=1)
    found = run(study, options.out, options.workers)
    (options.out / "report.md").write_text(report(study, found), encoding="utf-8")
    draw(study, found, options.out / "fedex.png")
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
