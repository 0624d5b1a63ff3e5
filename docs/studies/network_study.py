"""How many clients should a round have, on a good and on a bad network?

    python docs/studies/network_study.py --out DIR

FedHPO-Bench (Appendix G) fixes the client sample rate and asks which one is best on a good and on a
bad network, in equal time. So does this study: random search and Hyperband search with every rate,
on tables and on a surrogate. A network is given by the seconds that one model needs on a client's
uplink, for every problem the same. What is compared is the regret of the incumbent over simulated
time; zero is the best of all rates. DIR holds one study, finished pieces are kept. The report is
DIR/report.md, with a picture.
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
from fedhpo_gym.tasks import get_task
from studies import cell, positive, study_parser, table

NETWORKS = {"good": 0.0984, "middle": 3.15, "bad": 100.8}
"""Seconds of one model on a client's uplink. Good and bad are those of the paper's network (6.6
million parameters of 4 bytes) at 0.25 GB/s and at 0.25 MB/s."""
DOWN = 3.0
"""How much faster downloads are; the server's uplink is as fast as a client's."""
LABELS = {"random": "random search", "hyperband": "Hyperband"}
SHARES = (0.02, 0.1, 1.0)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """Which problems, rates and agents; `compute_s` is a client's mean time in a round."""

    ids: Sequence[str] = ("LR-CreditG-v1", "LR-Segment-v1", "LR-Vehicle-v1", "GNN-Cora-v1")
    rates: Sequence[float] = (0.2, 0.4, 0.6, 0.8, 1.0)
    agents: Sequence[str] = ("random", "hyperband")
    networks: Sequence[str] = ("good", "middle", "bad")
    seeds: int = 8
    budget_s: float = 108_000.0
    compute_s: float = 1.0

    @property
    def grid_times(self) -> Floats:
        """Simulated seconds at which regrets are compared, evenly spread on a log scale."""
        return np.geomspace(self.budget_s / 1000, self.budget_s, 101)


def system(study: Study, name: str, network: str) -> dict[str, float]:
    """Return what the clock of a problem is made with."""
    bytes_per_s = 4.0 * get_task(name).num_parameters / NETWORKS[network]
    return {
        "client_upload_bytes_per_s": bytes_per_s,
        "server_upload_bytes_per_s": bytes_per_s,
        "client_download_bytes_per_s": DOWN * bytes_per_s,
        "client_compute_mean_s": study.compute_s,
    }


def known(name: str) -> tuple[float, float]:
    """Return the best validation loss of all rates, and the one in the middle."""
    truth = fedhpo_gym.truth(f"FedHPO-{name}", objectives=("val_loss",))
    loss = truth.values[:, 0]
    return float(loss.min()), float(np.median(loss))


def search(study: Study, name: str, network: str, rate: float) -> dict[str, Any]:
    """Return the losses of the incumbents of every agent and seed at `grid_times`."""
    best, typical = known(name)
    env = gym.make(
        f"FedHPO-{name}",
        fidelity={"client_sample_rate": rate},
        system=system(study, name, network),
        objectives=("val_loss",),
        budget_s=study.budget_s,
        disable_env_checker=True,
    )
    found: dict[str, list[list[float]]] = {}
    for agent in study.agents:
        found[agent] = []
        for seed in range(study.seeds):
            ends, losses = [0.0], [typical]
            for step in run_episode(env, make_agent(agent, env, seed), seed=seed):
                ends.append(step.info["elapsed_s"])
                losses.append(min(losses[-1], step.info["objectives"]["val_loss"]))
            at = np.searchsorted(ends, study.grid_times, side="right") - 1
            found[agent].append([float(losses[i] - best) for i in at])
    return {"optimum": best, "median": typical, "regrets": found}


def run(study: Study, out: Path, workers: int) -> dict[tuple[str, str, float], Any]:
    """Do every piece that is not there yet, and return them all."""
    keys = [(i, n, rate) for i in study.ids for n in study.networks for rate in study.rates]
    jobs = {
        out / f"{name}-{network}-{rate:g}.json": partial(search, study, name, network, rate)
        for name, network, rate in keys
    }
    return dict(zip(keys, pieces(jobs, workers).values(), strict=True))


def shares(result: Mapping[str, Any], agent: str) -> Floats:
    """Return (seeds, times) regrets in units of what the median query has; 1 at most."""
    worst = result["median"] - result["optimum"]
    return np.array(np.asarray(result["regrets"][agent], dtype=np.float64) / worst)


def prices(study: Study) -> str:
    """Return a table of what a round costs; all problems of five clients have equal prices."""
    name = study.ids[0]
    rows = []
    for network in study.networks:
        row = [network]
        for rate in study.rates:
            fixed = {"round": 1, "client_sample_rate": rate}
            env = gym.make(f"FedHPO-{name}", fidelity=fixed, system=system(study, name, network))
            env.reset(seed=0)
            env.action_space.seed(0)
            info = env.step(env.action_space.sample())[4]
            row.append(f"{info['cost']['time_s']:.2f}")
        rows.append(row)
    return table(["seconds of a round", *(f"rate {rate:g}" for rate in study.rates)], rows)


def losses_table(study: Study, results: Mapping[Any, Any], agent: str) -> str:
    """Return regrets of every rate at some shares of the budget, mean over problems."""
    rows = []
    for network in study.networks:
        for share in SHARES:
            at = int(np.searchsorted(study.grid_times, share * study.budget_s * (1 - 1e-9)))
            row = [network, f"{share * study.budget_s:,.0f} s"]
            for rate in study.rates:
                found = [shares(results[i, network, rate], agent)[:, at] for i in study.ids]
                row.append(cell(np.mean(found, axis=0)))
            rows.append(row)
    return table(["network", "after", *(f"rate {rate:g}" for rate in study.rates)], rows)


def winners_table(study: Study, results: Mapping[Any, Any]) -> str:
    """Return who is best at the end on each problem, and paired differences of the outer rates."""
    low, high = study.rates[0], study.rates[-1]
    rows = []
    for name in study.ids:
        for network in study.networks:
            row = [name, network]
            for agent in study.agents:
                last = {r: shares(results[name, network, r], agent)[:, -1] for r in study.rates}
                best = min(study.rates, key=lambda rate: float(last[rate].mean()))
                row += [f"{best:g}", cell(last[low] - last[high], sign=True)]
            rows.append(row)
    head = [
        part
        for agent in study.agents
        for part in (f"{LABELS[agent]}: best rate", f"rate {low:g} minus {high:g}")
    ]
    return table(["problem", "network", *head], rows)


def write_report(study: Study, results: Mapping[Any, Any], out: Path) -> None:
    """Write `report.md` and `network.png`."""
    lines = [
        f"{', '.join(study.ids)}; {study.seeds} seeds; {study.budget_s:,.0f} simulated seconds; "
        f"{study.compute_s:g} s of computation per client and round. Regret is a share of what the "
        "median query has. Mean ± standard error over seeds, of means over problems.\n",
        prices(study),
    ]
    for agent in study.agents:
        lines += [f"**{LABELS[agent]}**\n", losses_table(study, results, agent)]
    lines += ["**At the end, on every problem**\n", winners_table(study, results)]
    (out / "report.md").write_text("\n".join(lines), encoding="utf-8")
    draw(study, results, out / "network.png")


def draw(study: Study, results: Mapping[Any, Any], path: Path) -> None:
    """Draw the mean regret over simulated time, a row per agent and a column per network."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**SETTINGS, "font.size": 10}):
        figure = Figure(figsize=(9.6, 5.8), layout="constrained", dpi=110)
        size = (len(study.agents), len(study.networks))
        axes: Any = figure.subplots(*size, sharex=True, sharey=True, squeeze=False)
        for row, agent in zip(axes, study.agents, strict=True):
            for axis, network in zip(row, study.networks, strict=True):
                for number, rate in enumerate(study.rates):
                    found = [shares(results[i, network, rate], agent) for i in study.ids]
                    look = {"color": COLOURS[number], "linestyle": STYLES[number % len(STYLES)]}
                    middle = np.mean(found, axis=(0, 1))
                    axis.plot(study.grid_times / 3600, middle, label=f"rate {rate:g}", **look)
                axis.set_xscale("log")
                axis.set_yscale("log")
                axis.set_title(f"{LABELS[agent]}, {network} network", loc="left", fontsize=10)
                axis.spines[["top", "right"]].set_visible(False)
        for axis in axes[-1]:
            axis.set_xlabel("simulated time (h)")
        for axis in axes[:, 0]:
            axis.set_ylabel("regret (share of the median's)")
        axes[0, 0].legend(frameon=False, fontsize=9)
        figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--seeds", type=positive, help="seeds of every search (default: 8)")
    parser.add_argument("--compute", type=float, help="a client's mean seconds (default: 1)")
    parser.add_argument("--budget", type=float, help="simulated seconds (default: 108,000)")
    parser.add_argument("--problems", nargs="+", help="such as CNN-FEMNIST-v1 (default: four)")
    options = parser.parse_args(arguments)
    study = Study()
    if options.quick:
        study = Study(("LR-CreditG-v1",), (0.2, 1.0), seeds=2, budget_s=3600.0)
    given = {
        "ids": options.problems,
        "seeds": options.seeds,
        "compute_s": options.compute,
        "budget_s": options.budget,
    }
    study = replace(study, **{name: value for name, value in given.items() if value is not None})
    claim(options.out, study)
    write_report(study, run(study, options.out, options.workers), options.out)
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
