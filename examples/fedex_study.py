"""X with and without FedEx, with equal training for both: Section 4.2 of FedHPO-Bench.

    python examples/fedex_study.py --out DIR

X (random search, TPE) chooses a configuration per course. Without FedEx all clients use it; with
FedEx they try its neighbourhood (27 arms) while the course runs. A seed gives both arms the same
partition, initialisation and minibatches, and every course the same number of rounds from scratch.
(In the original, a wrapped course that came up again went on from its checkpoint.) Finished pieces
are kept: start it again after an interruption. The report is DIR/report.md, with a picture.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from studies import cell, piece, table
from tqdm import tqdm

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import make_agent
from fedhpo_gym.agents.wrapped_fedex import Neighbourhood, row_space, wrapped_search

OUTER = {"random": "random search", "optuna-tpe": "TPE"}
ARMS = (1, 27)
COLOURS = {"random": "#4878a8", "optuna-tpe": "#c8602c"}


@dataclass(frozen=True)
class Study:
    """How much is done: `courses` courses of `horizon` rounds per problem, X, arm and seed."""

    problems: Mapping[str, float]  # table -> concentration of the partition
    seeds: int = 6
    courses: int = 20
    horizon: int = 25


def run_search(study: Study, problem: str, outer: str, arms: int, seed: int) -> dict[str, Any]:
    """Run one search; return what every course reached: losses in nats."""
    env = gym.make(
        f"FedHPO-DAC-LR-{problem}-v0",
        per_client=True,
        instances=[[study.problems[problem], 1000 + seed]],
        horizon=study.horizon,
    )
    agent = make_agent(outer, row_space(env.action_space), seed)
    space = env.unwrapped.search_space  # type: ignore[attr-defined]
    began = time.process_time()
    courses = []
    around = Neighbourhood(arms=arms)
    for trial in islice(wrapped_search(env, agent, seed, around, space), study.courses):
        last = trial.steps[-1].info
        courses.append(
            {
                "score": trial.score,
                "rounds": len(trial.steps),
                "val_loss": last["val_loss"],
                "test_loss": last["test"]["loss"],
                "test_accuracy": last["test"]["accuracy"],
            }
        )
    env.close()
    return {"courses": courses, "cpu_s": time.process_time() - began}


def run(study: Study, out: Path) -> dict[tuple[str, str, int], list[Any]]:
    """Do every search that is not there yet; return the searches of each cell by seed."""
    found: dict[tuple[str, str, int], list[Any]] = {}
    cells = list(product(range(study.seeds), study.problems, OUTER, ARMS))
    for seed, problem, outer, arms in tqdm(cells, unit="search", disable=None):
        path = out / f"{problem}-{outer}-{arms}-{seed}.json"
        result = piece(path, partial(run_search, study, problem, outer, arms, seed))
        found.setdefault((problem, outer, arms), []).append(result)
    return found


def best(search: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the course that X was told is the best one."""
    found: Mapping[str, float] = max(search["courses"], key=lambda course: course["score"])
    return found


def incumbents(searches: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Return the (seeds, courses) lowest loss that X was told so far."""
    losses = [[-course["score"] for course in one["courses"]] for one in searches]
    return np.minimum.accumulate(np.array(losses), axis=1)


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
    rounds = study.courses * study.horizon
    cpu = sum(one["cpu_s"] for searches in found.values() for one in searches)
    return (
        f"{study.seeds} seeds; {rounds} rounds ({study.courses} courses of {study.horizon}) for "
        f"every search, with FedEx and without; {cpu:.0f} s of CPU time in all. Mean ± standard "
        "error over seeds; differences are paired by seed.\n\n**The best course of a search**\n\n"
        + table(head, parts)
        + "\n**All courses of a search: mean validation loss of the aggregated model, nats**\n\n"
        + table(["problem", "X", "X", "X + FedEx", "difference"], averages)
    )


def draw(study: Study, found: Mapping[tuple[str, str, int], list[Any]], path: Path) -> None:
    """Draw the incumbents against the rounds spent."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(study.problems), figsize=(9, 3.6), squeeze=False)
    rounds = study.horizon * np.arange(1, study.courses + 1)
    for axis, problem in zip(axes[0], study.problems, strict=True):
        for outer, arms in product(OUTER, ARMS):
            curves = incumbents(found[problem, outer, arms])
            middle = curves.mean(axis=0)
            error = curves.std(axis=0, ddof=min(1, len(curves) - 1)) / np.sqrt(len(curves))
            style, name = ("-", " + FedEx") if arms > 1 else ("--", "")
            colour = COLOURS[outer]
            axis.plot(rounds, middle, style, color=colour, label=OUTER[outer] + name)
            axis.fill_between(rounds, middle - error, middle + error, color=colour, alpha=0.12)
        axis.set_title(f"LR on {problem}, α {study.problems[problem]}")
        axis.set_xlabel("communication rounds")
        axis.set_ylabel("lowest loss X was told, nats")
        axis.set_yscale("log")
    axes[0, 0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Run the study that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it works")
    options = parser.parse_args()
    problems = {"BreastCancer": 0.5}
    if os.environ.get("FEDHPO_GYM_DATA"):
        problems["Vehicle"] = 0.5
    study = Study(problems)
    if options.quick:
        study = Study({"BreastCancer": 0.5}, seeds=2, courses=2, horizon=3)
    found = run(study, options.out)
    (options.out / "report.md").write_text(report(study, found), encoding="utf-8")
    draw(study, found, options.out / "fedex.png")
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
