"""Learning curves of FederatedScope beside ours, both behind `gymnasium.make`.

Every problem is made twice, with backend="federatedscope" and backend="raw", and asked for the same
configuration under the same seeds. Equal seeds have equal federations, so curves are compared in
pairs. Each program draws initial weights, cohorts and minibatches for itself: what differs by
chance is in the standard errors.

Curves are kept in `results/federatedscope_curves.json`; a problem that is asked for is run again,
the others stay. The tables and the picture are of all that are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib as mpl
import measuring
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.analysis.plot import COLOURS, SETTINGS
from fedhpo_gym.backends.federatedscope import sharing
from fedhpo_gym.backends.federatedscope.installation import VARIABLE
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.files import write_text

KEPT = measuring.RESULTS / "federatedscope_curves.json"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "federatedscope_curves.svg"
ALGORITHMS: Mapping[str, Mapping[str, float]] = {
    "fedavg": {},
    "fedopt": {"server_learning_rate": 0.5, "server_momentum": 0.5},
    "fedprox": {"mu": 0.1},
}
BACKENDS = ("raw", "federatedscope")
HEADER = ("algorithm, round", "ours", "theirs", "difference", "accuracy: ours", "theirs", "diff.")


@dataclass(frozen=True)
class Problem:
    """What is compared.

    Attributes:
        id: environment id.
        configuration: hyperparameters without those of the algorithm.
        rounds: of a course.
        rate: client sample rate.
        seeds: how many, from 1 on.
    """

    id: str
    configuration: Mapping[str, float]
    rounds: int
    rate: float
    seeds: int


PROBLEMS: Mapping[str, Problem] = {
    "LR": Problem(
        "FedHPO-LR-CreditG-v1",
        {"learning_rate": 0.1, "weight_decay": 1e-3, "batch_size": 32, "step_size": 1},
        81, 0.6, 10,
    ),
    "MLP": Problem(
        "FedHPO-MLP-CreditG-v1",
        {
            "learning_rate": 0.05, "weight_decay": 1e-3, "batch_size": 32, "step_size": 1,
            "model_depth": 1, "model_width": 64,
        },
        27, 1.0, 5,
    ),
    "GNN": Problem(
        "FedHPO-GNN-Cora-v1",
        {"learning_rate": 0.25, "weight_decay": 5e-4, "dropout": 0.0, "step_size": 4},
        19, 1.0, 4,
    ),
    "CNN": Problem(
        "FedHPO-CNN-FEMNIST-v1",
        {
            "learning_rate": 0.05, "weight_decay": 0.0, "dropout": 0.0, "batch_size": 32,
            "step_size": 1,
        },
        3, 0.2, 2,
    ),
}  # fmt: skip


def curves(problem: Problem, algorithm: str, backend: str, options: Mapping[str, str]) -> Any:
    """Return rounds, and (seeds, rounds, 2) validation losses and accuracies of a backend."""
    found = []
    configuration = {**problem.configuration, **ALGORITHMS[algorithm]}
    for seed in range(1, problem.seeds + 1):
        env = gym.make(problem.id, backend=backend, algorithm=algorithm, seed=seed, **options)
        one = env.unwrapped.setup.backend  # type: ignore[attr-defined]
        rounds = [r for r in one.task.evaluated_rounds if r <= problem.rounds]
        one.evaluate(configuration, Fidelity(rounds[-1], problem.rate))
        answers = [one.evaluate(configuration, Fidelity(r, problem.rate)) for r in rounds]
        found.append([[a.mean("val", m, "current") for m in ("loss", "accuracy")] for a in answers])
        env.close()
    return rounds, np.array(found)


def run(name: str, options: Mapping[str, str], kept: dict[str, Any]) -> None:
    """Run a problem with every algorithm and keep what came of it."""
    problem = PROBLEMS[name]
    for algorithm in ALGORITHMS:
        found: dict[str, Any] = {}
        for backend in BACKENDS:
            given = options if backend == "federatedscope" else {}
            rounds, values = curves(problem, algorithm, backend, given)
            found[backend] = np.round(values, 6).tolist()
        kept[f"{name}-{algorithm}"] = {"rounds": rounds, **found}
        write_text(KEPT, json.dumps(kept).replace('}, "', '},\n"') + "\n")
        print(f"{name} {algorithm}: done", flush=True)


def table(name: str, kept: Mapping[str, Any]) -> str:
    """Return the paired differences of a problem: means, and standard errors in brackets."""
    rows = []
    for algorithm in _there(name, kept):
        one = kept[f"{name}-{algorithm}"]
        ours, theirs = (np.array(one[backend]) for backend in BACKENDS)
        for at in _shown(one["rounds"]):
            rows.append([f"{algorithm}, {one['rounds'][at]}"])
            for metric in (0, 1):
                pair = ours[:, at, metric], theirs[:, at, metric]
                rows[-1] += [f"{value.mean():.4f}" for value in pair]
                rows[-1].append(_with_error(pair[1] - pair[0]))
    return measuring.table(HEADER, rows)


def _there(name: str, kept: Mapping[str, Any]) -> list[str]:
    """Return the algorithms of which there are curves of a problem."""
    return [algorithm for algorithm in ALGORITHMS if f"{name}-{algorithm}" in kept]


def _shown(rounds: Sequence[int]) -> list[int]:
    return sorted({0, len(rounds) // 3, 2 * len(rounds) // 3, len(rounds) - 1})


def _with_error(differences: NDArray[np.float64]) -> str:
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    return f"{differences.mean():+.4f} ({error:.4f})"


def draw(path: Path, kept: Mapping[str, Any]) -> None:
    """Draw the mean validation losses of all problems and algorithms."""
    names = [name for name in PROBLEMS if f"{name}-fedavg" in kept]
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": "federatedscope", "font.size": 10}):
        figure = Figure(figsize=(3.2 * len(names), 3.4), layout="constrained")
        axes: Any = figure.subplots(1, len(names), squeeze=False)
        for panel, name in zip(axes[0], names, strict=True):
            panel.set_title(PROBLEMS[name].id.removeprefix("FedHPO-"), fontsize=10)
            panel.set_xlabel("round")
            panel.spines[["top", "right"]].set_visible(False)
            colours = dict(zip(ALGORITHMS, COLOURS, strict=False))
            for algorithm in _there(name, kept):
                one = kept[f"{name}-{algorithm}"]
                for backend, style in zip(BACKENDS, ("-", "--"), strict=True):
                    mean = np.array(one[backend])[:, :, 0].mean(axis=0)
                    label = f"{algorithm}, {'ours' if backend == 'raw' else 'FederatedScope'}"
                    panel.plot(one["rounds"], mean, style, color=colours[algorithm], label=label)
        axes[0, 0].set_ylabel("validation loss, nats")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def main(argv: Sequence[str] | None = None) -> str:
    """Run the problems that are asked for, and write tables and picture of all."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--source", help="FederatedScope's source tree")
    parser.add_argument("--interpreter", help="Python that has its dependencies")
    arguments = parser.parse_args(argv)
    if not arguments.source and not os.environ.get(VARIABLE):
        print(f"skipped: needs --source PATH, FederatedScope's source tree, or {VARIABLE}")
        return ""
    load = measuring.load_average()
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    given = {"source": arguments.source, "interpreter": arguments.interpreter}
    options = {name: value for name, value in given.items() if value is not None}
    with sharing.kept():  # FederatedScope starts once
        for name in arguments.problems:
            run(name, options, kept)
    draw(PICTURE, kept)
    sections = [
        "Validation loss (nats, weighted over clients by their samples) and accuracy; means over "
        "seeds, and the paired difference theirs - ours with its standard error.",
    ]
    for name, problem in PROBLEMS.items():
        if _there(name, kept):
            words = ", ".join(f"{key} {value:g}" for key, value in problem.configuration.items())
            sections.append(f"## {problem.id}")
            sections.append(f"{words}; client sample rate {problem.rate:g}; {problem.seeds} seeds.")
            sections.append(table(name, kept))
    command = ["python", "benchmarks/federatedscope_curves.py"]
    return measuring.write_report(
        arguments.out, "Learning curves beside FederatedScope", command, load, sections
    )


if __name__ == "__main__":
    main()
