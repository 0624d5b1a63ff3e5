"""Which FL algorithm deserves to be called best when its tuning is charged?

    python docs/studies/algorithms_study.py --out DIR

Every algorithm trains with configurations drawn from its search space, at full client sample rate.
The runs become a library (`runs.csv`), and `report.md` says what random search over it finds: the
procedure of Prabhu Teja S et al. (2020). Data sets must be on this machine; those of scikit-learn
always are. Finished pieces are kept: start it again after an interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from pieces import claim, pieces

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.analysis.tuning_cost import (
    COLUMNS,
    WEIGHTS,
    RunLibrary,
    Runs,
    expected_curve,
    omega_tunability,
    probability_of_best,
    read_library,
    relative_performance,
)
from fedhpo_gym.core.files import write_text
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.tasks import get_task
from studies import study_parser, table

ALGORITHMS = ("fedavg", "fedprox", "fedopt", "fedadam", "fedyogi")
PROBLEMS = (
    "LR-BreastCancer", "LR-Digits", "GNN-Cora", "LR-CreditG", "LR-Vehicle", "LR-KC1",
    "LR-BloodTransfusion", "LR-Australian", "LR-Car", "LR-Segment",
)  # fmt: skip
"""Their places number the streams of draws: new ones go to the end."""
STUDIED = (
    "LR-BreastCancer", "LR-Digits", "LR-CreditG", "LR-Vehicle", "LR-BloodTransfusion",
    "LR-Australian", "LR-Car",
)  # fmt: skip
"""Where no problem is named: what trains within half an hour of one core."""
AT = (1, 4, 16, 64)
"""Trials after which the expected best is shown."""
ALPHA = 0.9
"""An algorithm is tuned when it is within this share of the best expected loss."""


@dataclass(frozen=True)
class Study:
    """What is trained: so many configurations of every algorithm on every problem."""

    problems: Sequence[str] = STUDIED
    algorithms: Sequence[str] = ALGORITHMS
    configurations: int = 64
    rounds: int = 100


def train(study: Study, problem: str, algorithm: str) -> list[list[float]]:
    """Return validation loss, test loss and simulated seconds of every configuration.

    All courses train at once, which changes no bit of any.
    """
    count = study.configurations
    numbers = PROBLEMS.index(problem), ALGORITHMS.index(algorithm)
    rng = stream(0, "algorithms_study", *numbers)
    envs: Any = gym.make_vec(
        f"FedHPO-{problem}-v1",
        num_envs=count,
        backend="raw",
        algorithm=algorithm,
        seed=1,
        fidelity={"round": study.rounds, "client_sample_rate": 1.0},
        budget_trials=1,
        info_keys=["test"],
    )
    with closing(envs):
        envs.reset(seed=0)
        actions = rng.uniform(-1.0, 1.0, envs.action_space.shape).astype(np.float32)
        info = envs.step(actions)[4]
    found = info["objectives"]["val_loss"], info["test"]["loss"], info["cost"]["time_s"]
    rows: list[list[float]] = np.stack(found, axis=1).tolist()
    return rows


def at_most_a_guess(library: RunLibrary) -> RunLibrary:
    """Return runs whose losses end at that of a guess: nobody would use a worse model.

    Without it, one course that diverged would decide every mean.
    """
    runs = {}
    for (algorithm, problem), one in library.runs.items():
        guess = get_task(problem).chance_loss
        losses = np.minimum(one.validation, guess), np.minimum(one.test, guess)
        runs[algorithm, problem] = Runs(*losses, one.cost)
    return replace(library, runs=runs)


def rows_of(study: Study, library: RunLibrary, problem: str) -> list[list[str]]:
    """Return a row per algorithm: expected best test losses, weighted means, and chances."""
    runs = {name: library.of(name, problem) for name in study.algorithms}
    trials = range(1, study.configurations + 1)
    curves = {name: expected_curve(one, trials) for name, one in runs.items()}
    shown = [k for k in AT if k <= study.configurations]
    chances = {k: probability_of_best(runs, k) for k in (shown[0], shown[-1])}
    rows = []
    for name, curve in curves.items():
        weighted = [omega_tunability(curve, WEIGHTS[w](len(curve))) for w in ("cpe", "cpl")]
        numbers = [*(curve[k - 1] for k in shown), *weighted]
        first, last = (chances[k][name] for k in chances)
        words = [f"{number:.4f}" for number in numbers]
        rows.append([name, *words, f"{100 * first:.0f} %", f"{100 * last:.0f} %"])
    return rows


def report(study: Study, library: RunLibrary) -> str:
    """Return all tables as Markdown."""
    shown = [k for k in AT if k <= study.configurations]
    head = ["algorithm", *(f"k = {k}" for k in shown), "CPE", "CPL"]
    head += [f"best, k = {k}" for k in (shown[0], shown[-1])]
    lines = [
        f"Expected test loss of what random search finds after k of {study.configurations} "
        f"configurations of {study.rounds} rounds, chosen by validation loss; its means with more "
        "weight on early (CPE) and late (CPL) trials; and who is likely to be best. Losses worse "
        "than a guess count as a guess.\n"
    ]
    for problem in study.problems:
        lines += [f"**{problem}**\n", table(head, rows_of(study, library, problem)), ""]
    expected = np.array(
        [
            [
                expected_curve(library.of(name, problem), range(1, study.configurations + 1))
                for problem in study.problems
            ]
            for name in study.algorithms
        ]
    )
    lines += [*over_problems(study, expected), *winners(study, expected)]
    return "\n".join(lines) + "\n"


def alpha_tunability(expected: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return how many trials bring an algorithm to a share of the best that any one reaches.

    Of (A, T) losses above 0, the first k with L_k <= L_best / alpha; infinity where none is enough.
    """
    reached = expected <= expected.min() / alpha
    first = np.argmax(reached, axis=1) + 1.0
    return np.where(reached.any(axis=1), first, np.inf)


def over_problems(study: Study, expected: NDArray[np.float64]) -> list[str]:
    """Return S(o, k), its likes for weighted means, and what tuning each algorithm takes.

    Args:
        study: what is trained.
        expected: (algorithms, problems, trials) expected best test losses.
    """
    shown = [k for k in AT if k <= study.configurations]
    trials = expected.shape[-1]
    weighted = [omega_tunability(expected, WEIGHTS[w](trials)) for w in ("cpe", "cpu", "cpl")]
    share = relative_performance(np.stack([*(expected[..., k - 1] for k in shown), *weighted], -1))
    needed = np.array([alpha_tunability(each, ALPHA) for each in expected.swapaxes(0, 1)])
    rows = []
    for place, name in enumerate(study.algorithms):
        own = needed[:, place]
        words = [f"{number:.3f}" for number in share[place]]
        reached = f"{np.isfinite(own).sum()} of {len(own)}"
        median = np.median(own)
        rows.append([name, *words, f"{median:g}" if np.isfinite(median) else "never", reached])
    head = ["algorithm", *(f"k = {k}" for k in shown), "CPE", "CPU", "CPL"]
    return [
        "S(o, k): mean over problems of the best algorithm's expected loss over that of this one; "
        "1 is best. The same of the means over trials with more weight on early ones (CPE), equal "
        "weights (CPU), and more weight on late ones (CPL). Last, the median number of trials to "
        f"come within {ALPHA:g} of the best that any algorithm reaches (alpha-tunability), and on "
        "how many problems it does so at all.\n",
        table([*head, "trials needed", "reached on"], rows),
    ]


def winners(study: Study, expected: NDArray[np.float64]) -> list[str]:
    """Return which algorithm has the lowest expected loss on each problem, and how often."""
    shown = [k for k in AT if k <= study.configurations]
    best = [[study.algorithms[a] for a in expected[..., k - 1].argmin(axis=0)] for k in shown]
    rows = [[name, *each] for name, *each in zip(study.problems, *best, strict=True)]
    head = ["lowest expected loss", *(f"k = {k}" for k in shown)]
    counts = [[name, *(str(each.count(name)) for each in best)] for name in study.algorithms]
    return [table(head, rows), table(["problems won", *head[1:]], counts)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is not there yet, and report."""
    parser = study_parser(__doc__)
    parser.add_argument("--problem", action="append", choices=PROBLEMS, help="only these")
    options = parser.parse_args(arguments)
    study = Study(problems=options.problem or STUDIED)
    if options.quick:
        study = Study(PROBLEMS[:1], ("fedavg", "fedopt"), configurations=6, rounds=6)
    claim(options.out, study)
    cells = {
        options.out / f"{problem}-{algorithm}.json": (problem, algorithm)
        for problem, algorithm in product(study.problems, study.algorithms)
    }
    done = pieces(
        {path: partial(train, study, *cell) for path, cell in cells.items()}, options.workers
    )
    lines = [",".join(COLUMNS)]
    for path, (problem, algorithm) in cells.items():
        for validation, test, cost in done[path]:
            lines.append(f"{algorithm},{problem},{validation:.6g},{test:.6g},{cost:.6g}")
    write_text(options.out / "runs.csv", "\n".join(lines) + "\n")
    words = report(study, at_most_a_guess(read_library(options.out / "runs.csv")))
    write_text(options.out / "report.md", words)
    print(words)


if __name__ == "__main__":
    main()
