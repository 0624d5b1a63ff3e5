"""Tables and pictures of `optimizers_study.py`: `python examples/optimizers_report.py --out DIR`.

DIR is the folder of the study. Written into it: `report.md`, `ranks.png`, `differences.png`, and
`finals.csv`, the final incumbent of every run, which `fedhpo-gym report --table` reads.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from optimizers_study import (
    AGENTS,
    BLACK_BOX,
    MULTI_FIDELITY,
    NOISY_AGENTS,
    VECTOR_AGENTS,
)

from fedhpo_gym.analysis import group
from fedhpo_gym.analysis.comparison import VALIDATION, VOLUME, Comparison, answer, compare
from fedhpo_gym.analysis.figures import draw_difference
from fedhpo_gym.analysis.files import read_each, read_judged
from fedhpo_gym.analysis.plot import looks_of
from fedhpo_gym.analysis.problems import Problem
from fedhpo_gym.analysis.stats import sign_test
from fedhpo_gym.analysis.trajectories import Study, Trajectory
from studies import positive, table

PAPER_PAIRS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("bo-gp", "random"): ("13/0/7", "0.0637"),
    ("bo-rf", "random"): ("12/0/8", "0.2161"),
    ("bo-kde", "random"): ("7/0/13", "0.1649"),
    ("de", "random"): ("11/0/9", "0.7561"),
    ("bohb", "hyperband"): ("7/0/13", "0.4523"),
    ("dehb", "hyperband"): ("9/0/11", "0.9854"),
    ("tpe-md", "hyperband"): ("9/0/11", "0.2942"),
    ("tpe-hb", "hyperband"): ("9/0/11", "0.2454"),
    ("hyperband", "random"): ("13/0/7", "0.1139"),
    ("dehb", "de"): ("13/0/7", "0.2942"),
    ("bohb", "bo-kde"): ("16/0/4", "0.0106"),
}
"""Tables 2 and 3 of Wang et al. (2022): wins, ties and losses of 20 problems, and p-values."""
PAPER_FINALS: Mapping[str, Mapping[str, float]] = {
    "CreditG": dict(random=0.6821, **{"bo-gp": 0.6308, "bo-rf": 0.6382, "bo-kde": 0.6385}, de=0.667,
                    hyperband=0.6492, bohb=0.6461, dehb=0.6145),
    "Vehicle": dict(random=1.6297, **{"bo-gp": 1.7288, "bo-rf": 1.6116, "bo-kde": 1.7142},
                    de=1.6062, hyperband=1.5765, bohb=1.5634, dehb=1.4755),
    "KC1": dict(random=1.8892, **{"bo-gp": 1.7561, "bo-rf": 1.7186, "bo-kde": 2.4271}, de=1.7519,
                hyperband=3.948, bohb=1.6384, dehb=3.1183),
    "BloodTransfusion": dict(random=0.548, **{"bo-gp": 0.5483, "bo-rf": 0.5482, "bo-kde": 0.5487},
                             de=0.5481, hyperband=0.5504, bohb=0.5505, dehb=0.5516),
    "Australian": dict(random=0.5294, **{"bo-gp": 0.5291, "bo-rf": 0.5295, "bo-kde": 0.5289},
                       de=0.5291, hyperband=0.5292, bohb=0.529, dehb=0.5293),
    "Car": dict(random=0.4733, **{"bo-gp": 0.464, "bo-rf": 0.4722, "bo-kde": 0.4843}, de=0.4971,
                hyperband=0.4678, bohb=0.4747, dehb=0.4707),
    "Segment": dict(random=0.4581, **{"bo-gp": 0.4481, "bo-rf": 0.4505, "bo-kde": 0.4731},
                    de=0.4587, hyperband=0.4478, bohb=0.4446, dehb=0.4304),
}  # fmt: skip
"""Means of its table 13, logistic regression rows."""
MANY = ("CNN-FEMNIST", "LR-Twitter", "MF-MadeRatings")


def read(folder: Path, rule: str = "highest_fidelity") -> tuple[Problem, ...]:
    """Return the problems of a part."""
    return group(read_each([folder], read_judged), rule=rule)


def lines_of(problems: Iterable[Problem]) -> list[Trajectory]:
    """Return all runs."""
    return [run.trajectory for one in problems for runs in one.runs.values() for run in runs]


def judged(lines: Iterable[Trajectory], measure: str = VALIDATION) -> Comparison:
    """Return the comparison of runs that form one study."""
    (study,) = Study.whole(lines)
    return compare(study, measure)


def summary(found: Mapping[str, Comparison]) -> str:
    """Return mean ranks of the agents over the problems of each part, best of the last first."""
    *_, last = found.values()
    rows = [
        [agent, *(f"{one.numbers[agent].rank:.2f}" for one in found.values())]
        for agent in last.order
    ]
    friedman = [f"{one.means.friedman.p_value:.2g}" for one in found.values()]
    head = ["mean rank", *(f"{name} ({len(c.study.problems)})" for name, c in found.items())]
    return table(head, [*rows, ["Friedman, p", *friedman]])


def numbers(found: Comparison) -> str:
    """Return what sums up each agent."""
    rows = []
    for agent in found.order:
        own = found.numbers[agent]
        low, high = own.iqm_interval
        rows.append(
            [
                agent, f"{own.rank:.2f}", f"{own.rank_runs:.2f}", f"{own.iqm:.3f}",
                f"{low:.3f} to {high:.3f}", f"{own.anytime:.3f}", f"{own.worst[1]:.2f}",
            ]
        )  # fmt: skip
    head = ["agent", "rank", "rank, all runs", "IQM of regret", "95 %", "anytime", "worst case"]
    return table(head, rows)


def signs(found: Mapping[str, Comparison]) -> str:
    """Return the pairs of tables 2 and 3 of the paper, and what they are here."""
    rows = []
    known = {*next(iter(found.values())).study.agents}
    for pair, (counts, p_value) in PAPER_PAIRS.items():
        if not known.issuperset(pair):
            continue
        row = [" against ".join(pair), f"{counts} ({p_value})"]
        for one in found.values():
            agents = list(one.study.agents)
            means = one.study.finals_of_means()
            tested = sign_test(*(means[:, agents.index(agent)] for agent in pair))
            row.append(f"{tested} ({tested.p_value:.4f})")
        rows.append(row)
    return table(["win/tie/loss (p)", "paper", *found], rows)


def finals(found: Comparison) -> str:
    """Return final losses on the paper's tables beside those that it prints."""
    agents = [one for one in next(iter(PAPER_FINALS.values())) if one in found.study.agents]
    rows = []
    for problem in found.study.problems:
        name = problem.removeprefix("FedHPO-LR-").removesuffix("-v0")
        if name not in PAPER_FINALS:
            continue
        printed = PAPER_FINALS[name]
        ours = [found.study.final(problem, agent) for agent in agents]
        rows.append([f"{name}, paper", *(f"{printed[agent]:.4f}" for agent in agents)])
        rows.append([f"{name}, here", *(f"{v.mean():.4f} ± {v.std(ddof=1):.4f}" for v in ours)])
    return table(["validation loss", *agents], rows)


def draw(found: Comparison, out: Path) -> None:
    """Draw ranks over time and critical differences of all problems."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    kinds = {"black box": BLACK_BOX, "multi-fidelity": MULTI_FIDELITY}
    figure, panels = plt.subplots(1, 2, figsize=(10, 5), sharey=True, layout="constrained")
    for (name, agents), axes in zip(kinds.items(), panels, strict=True):
        own = [agent for agent in found.order if agent in agents]
        for agent, (colour, style) in looks_of(own).items():
            axes.step(found.fractions, found.ranks[agent], color=colour, ls=style, label=agent)
        axes.set(xscale="log", xlabel="share of the budget", title=name)
        axes.set_ylim(1, 21)  # with room for the legend
        axes.legend(fontsize=8, ncols=2)
    panels[0].set_ylabel(f"mean rank among all {len(found.order)}")
    figure.savefig(out / "ranks.png", dpi=80)
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    draw_difference(axes, found.means)
    figure.savefig(out / "differences.png", dpi=80)
    plt.close("all")


def write_finals(parts: Mapping[str, Iterable[Trajectory]], path: Path) -> None:
    """Write the final incumbent of every run."""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(("problem", "agent", "seed", "time", "value"))
        for part, lines in parts.items():
            for line in lines:
                name = line.problem.removeprefix("FedHPO-")
                named = f"{part} {name}"
                writer.writerow(
                    (named, line.agent, line.seed, f"{line.end_s:.6g}", f"{line.final:.7g}")
                )


def whole(problems: Iterable[Problem], agents: Sequence[str], seeds: int) -> list[Problem]:
    """Return the problems on which these agents have so many runs, and nobody else."""
    found = []
    for problem in problems:
        runs = {agent: problem.runs.get(agent, ())[:seeds] for agent in agents}
        if all(len(of) == seeds for of in runs.values()):
            found.append(replace(problem, runs=runs))
    return found


def id_of(line: Trajectory) -> str:
    """Return the id of a run's problem."""
    return line.problem.split(" ")[0]


def noise_words(noisy: Sequence[Problem], calm: Sequence[Problem]) -> list[str]:
    """Return ranks with noise beside those without, on tables and on problems of many clients."""
    words = []
    for title, many in (("LR v1", False), ("many clients", True)):
        lines = [
            line for line in lines_of(noisy) if any(one in line.problem for one in MANY) == many
        ]
        ids = {id_of(line) for line in lines}
        beside = [line for line in lines_of(calm) if id_of(line) in ids]
        if not ids:
            continue
        pair = {"without noise": judged(beside), "with noise": judged(lines)}
        words += [f"\n## Noise: {title}\n", summary(pair)]
        words += [f"\n{name}:\n\n{numbers(one)}" for name, one in pair.items()]
    return words


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge all parts that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--seeds", type=positive, default=5, help="runs per cell (default: 5)")
    options = parser.parse_args(arguments)
    out, seeds = options.out, options.seeds

    def part(name: str, rule: str = "highest_fidelity") -> list[Problem]:
        agents = {"noise": NOISY_AGENTS, "vectors": VECTOR_AGENTS}.get(name, AGENTS)
        return whole(read(out / name, rule), agents, seeds)

    parts = {name: part(name) for name in ("v0", "v1", "others")}
    every = [one for of in parts.values() for one in of]
    names = dict(zip(parts, ("LR v0", "LR v1", "other families"), strict=True))
    found = {names[name]: judged(lines_of(of)) for name, of in parts.items()}
    found["all"] = judged(lines_of(every))
    strict = {names[name]: judged(lines_of(part(name, "full_fidelity"))) for name in parts}
    sections = {
        "All problems": "\n\n".join(answer(found["all"])),
        "Ranks": summary(found),
        "In short, all problems": numbers(found["all"]),
        "Sign tests": signs(found),
        "Final values, LR v0": finals(found["LR v0"]),
        "Only full fidelity counts": summary(strict),
    }
    words = [part for title, text in sections.items() for part in (f"## {title}\n", text, "")]
    lines = {name: lines_of(of) for name, of in parts.items()}
    noisy, vectors = part("noise"), part("vectors")
    words += noise_words(noisy, whole(every, NOISY_AGENTS, seeds))
    volumes = [line for one in vectors for line in one.volumes()]
    pair = {"validation loss": judged(lines_of(vectors)), "hypervolume": judged(volumes, VOLUME)}
    words += ["\n## Vectors\n", summary(pair), "\n", numbers(pair["hypervolume"])]
    draw(found["all"], out)
    write_finals({**lines, "noise": lines_of(noisy), "volume": volumes}, out / "finals.csv")
    text = "\n".join(words) + "\n"
    (out / "report.md").write_text(text, encoding="utf-8")
    print(text, {name: len(of) for name, of in {**parts, "n": noisy, "v": vectors}.items()})


if __name__ == "__main__":
    main()
