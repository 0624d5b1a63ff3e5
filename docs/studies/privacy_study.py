"""What can be reached under a privacy budget? Table 10 of FedHPO-Bench, asked again.

    python docs/studies/privacy_study.py --out DIR

Stored surrogates answer for NbAFL with nominal epsilon 1, 10 and 20 on Cora and CiteSeer. The best
query of each is found on the grid, beside what random search and TPE find in the task's simulated
time. DIR holds one study, finished pieces are kept. The report is DIR/report.md, with a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from pieces import claim, pieces

import fedhpo_gym
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.analysis.plot import COLOURS, SETTINGS, STYLES
from studies import cell, positive, study_parser, table

PAPER = {1: "63.87 ± 6.38", 10: "87.02 ± 1.16", 20: "87.30 ± 0.54"}
"""Test accuracies of Table 10, on Cora, in per cent."""
LABELS = {"random": "random search", "optuna-tpe": "TPE"}
LOSS, ERROR = "val_loss", "test_error"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """Which data, epsilons (0: FedAvg without privacy) and agents; `trials` at most per search."""

    names: Sequence[str] = ("Cora", "CiteSeer")
    epsilons: Sequence[float] = (1.0, 10.0, 20.0, 0.0)
    agents: Sequence[str] = ("random", "optuna-tpe")
    seeds: int = 5
    trials: int = 100
    full: bool = True

    @property
    def budget(self) -> dict[str, Any]:
        """Return what ends an episode: the task's simulated time, or these trials before."""
        return {"max_trials": self.trials}

    @property
    def fidelity(self) -> dict[str, Any]:
        """Return what is fixed of the lattice."""
        return {} if self.full else {"client_sample_rate": 1.0, "round": 9}


def problem(name: str, epsilon: float) -> tuple[str, dict[str, Any]]:
    """Return an id and the arguments that choose a privacy budget.

    The test error is among the objectives where the surrogate answers it; at ε 1 not each does.
    """
    chosen = {"algorithm": "nbafl", "settings": {"epsilon": epsilon}} if epsilon else {}
    env_id = f"FedHPO-GNN-{name}-v1"
    backend = gym.make(env_id, disable_env_checker=True, **chosen).get_wrapper_attr("backend")
    objectives = [LOSS] if backend.why_refused(ERROR) else [LOSS, ERROR]
    return env_id, {**chosen, "objectives": objectives}


def reach(study: Study, name: str, epsilon: float) -> dict[str, Any]:
    """Return the best query, what it reaches under each seed, and the best by learning rate."""
    env_id, arguments = problem(name, epsilon)
    truth = fedhpo_gym.truth(env_id, fidelity=study.fidelity, **arguments)
    configuration, fidelity = truth.query(truth.optimum)
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    backend = env.get_wrapper_attr("setup").backend
    found = backend.evaluate(configuration, fidelity)
    weights = found.num_samples / found.num_samples.sum(axis=1, keepdims=True)
    means = np.einsum("snkm,snk->skm", found.best, weights)
    rates = list(next(d for d in backend.space.dimensions if d.name == "learning_rate").grid)
    column = np.array([truth.query(i)[0]["learning_rate"] for i in range(len(truth.values))])
    return {
        "configuration": dict(configuration),
        "fidelity": vars(fidelity),
        "val_loss": means[:, 1, 0].tolist(),
        "test_accuracy": means[:, 2, 1].tolist() if ERROR in arguments["objectives"] else [],
        "highest_accuracy": [1.0 - float(low) for low in truth.values[:, 1:].min(axis=0)],
        "learning_rates": rates,
        "by_learning_rate": [float(truth.values[column == r, 0].min()) for r in rates],
        "guess": float(env.get_wrapper_attr("setup").task.num_classes),
    }


def search(study: Study, name: str, epsilon: float) -> dict[str, Any]:
    """Return what the incumbents of agents and seeds reach at the end."""
    env_id, arguments = problem(name, epsilon)
    env = gym.make(env_id, disable_env_checker=True, **arguments, **study.budget)
    found: dict[str, dict[str, list[float]]] = {}
    for agent in study.agents:
        of: dict[str, list[float]] = {"val_loss": [], "test_accuracy": [], "trials": [], "s": []}
        for seed in range(study.seeds):
            steps = list(run_episode(env, make_agent(agent, env, seed), seed=seed))
            seen = [step.info["objectives"] for step in steps]
            best = min(seen, key=lambda one: one[LOSS])
            of[LOSS].append(float(best[LOSS]))
            of["test_accuracy"] += [1.0 - float(best[ERROR])] if ERROR in best else []
            of["trials"].append(len(steps))
            of["s"].append(float(steps[-1].info["elapsed_s"]))
        found[agent] = of
    return found


def run(study: Study, out: Path, workers: int) -> dict[str, dict[tuple[str, float], Any]]:
    """Do every piece that is not there yet, and return them all."""
    keys = [(name, epsilon) for name in study.names for epsilon in study.epsilons]
    works = {"reached": reach, "searched": search}
    jobs = {
        out / f"{what}-{name}-{epsilon:g}.json": partial(work, study, name, epsilon)
        for what, work in works.items()
        for name, epsilon in keys
    }
    found = iter(pieces(jobs, workers).values())
    return {what: {key: next(found) for key in keys} for what in works}


def said(epsilon: float) -> str:
    """Return an epsilon in words."""
    return f"{epsilon:g}" if epsilon else "none (FedAvg)"


def percent(values: Any, digits: int = 1) -> str:
    """Return accuracies in per cent; a dash where there are none."""
    return "–" if not len(values) else cell(100.0 * np.asarray(values, dtype=np.float64), digits)


def reached_table(reached: Mapping[tuple[str, float], Any]) -> str:
    """Return the best configurations, and what they reach."""
    rows = []
    for (name, epsilon), one in reached.items():
        chosen = one["configuration"]
        rows.append(
            [
                name,
                said(epsilon),
                f"{chosen['learning_rate']:.3g}",
                f"{chosen['weight_decay']:.2g}",
                f"{chosen['dropout']:.2g}",
                f"{chosen['step_size']}",
                f"{one['fidelity']['round']}",
                f"{one['fidelity']['client_sample_rate']:.2g}",
                cell(one["val_loss"]),
                percent(one["test_accuracy"]),
                "".join(f"{100 * value:.1f}" for value in one["highest_accuracy"]) or "–",
                PAPER.get(int(epsilon), "-") if name == "Cora" else "-",
            ]
        )
    head = ["data", "ε", "learning rate", "weight decay", "dropout", "step size", "rounds"]
    head += ["client sample rate", "loss", "test accuracy, %", "highest, %", "paper, %"]
    return table(head, rows)


def searched_table(study: Study, results: Mapping[str, Any]) -> str:
    """Return what agents reach."""
    rows = []
    for (name, epsilon), one in results["searched"].items():
        best = float(np.mean(results["reached"][name, epsilon]["val_loss"]))
        for agent in study.agents:
            of = one[agent]
            lost = np.asarray(of["val_loss"]) - best
            row = [name, said(epsilon), LABELS[agent], f"{np.mean(of['trials']):.0f}"]
            rows.append([*row, cell(lost, sign=True), percent(of["test_accuracy"])])
    head = ["data", "ε", "agent", "trials", "loss above the optimum", "test accuracy, %"]
    return table(head, rows)


def write_report(study: Study, results: Mapping[str, Any], out: Path) -> None:
    """Write `report.md` and `privacy.png`."""
    lines = [
        "The best query that is known by validation loss. Mean ± standard error over three seeds; "
        "`highest` is the best test accuracy of any query.\n",
        reached_table(results["reached"]),
        f"Searches of at most {study.trials} trials: mean ± standard error over {study.seeds} "
        "seeds.\n",
        searched_table(study, results),
    ]
    (out / "report.md").write_text("\n".join(lines), encoding="utf-8")
    draw(study, results, out / "privacy.png")


def draw(study: Study, results: Mapping[str, Any], path: Path) -> None:
    """Draw the best loss by learning rate, and what searches reach, for each data set."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**SETTINGS, "font.size": 10}):
        figure = Figure(figsize=(9.0, 3.8), layout="constrained", dpi=110)
        axes: Any = figure.subplots(1, len(study.names), sharey=True, squeeze=False)[0]
        for axis, name in zip(axes, study.names, strict=True):
            for number, epsilon in enumerate(study.epsilons):
                one = results["reached"][name, epsilon]
                look = {
                    "color": COLOURS[number],
                    "linestyle": STYLES[number],
                    "marker": "osD^"[number],
                }
                label = f"ε = {epsilon:g}" if epsilon else "no privacy (FedAvg)"
                axis.plot(one["learning_rates"], one["by_learning_rate"], label=label, **look)
            axis.axhline(np.log(one["guess"]), color="#777777", linewidth=1, linestyle=":")
            axis.annotate(
                "guessing evenly", (0.012, np.log(one["guess"])), (0, 3),
                textcoords="offset points", color="#555555", fontsize=9,
            )  # fmt: skip
            axis.set_xscale("log")
            axis.set_title(f"GNN on {name}", loc="left", fontsize=10)
            axis.set_xlabel("learning rate")
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_ylim(0.0, 2.15)
        axes[0].set_ylabel("lowest validation loss")
        axes[0].legend(frameon=False, loc="lower left", fontsize=9)
        figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--seeds", type=positive, help="seeds of every search (default: 5)")
    options = parser.parse_args(arguments)
    study = Study()
    if options.quick:
        study = Study(("Cora",), (1.0, 20.0), ("random",), 2, 5, full=False)
    if options.seeds:
        study = replace(study, seeds=options.seeds)
    claim(options.out, study)
    write_report(study, run(study, options.out, options.workers), options.out)
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
