"""Tables and pictures of a study: `python docs/studies/optimizers_report.py --out DIR`.

DIR is the folder of `optimizers_study.py`. Written into it: `report.md`, `ranks.png`,
`differences.png`, and `finals.csv`, the final incumbent of every run, which
`fedhpo-gym report --table` reads.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from optimizers_noise import noise_words
from optimizers_paper import finals, signs
from optimizers_study import (
    AGENTS,
    BLACK_BOX,
    MULTI_FIDELITY,
    PARTS,
    VECTOR_AGENTS,
)

from fedhpo_gym.analysis import group
from fedhpo_gym.analysis.comparison import REGRET, VALIDATION, VOLUME, Comparison, answer, compare
from fedhpo_gym.analysis.figures import draw_difference
from fedhpo_gym.analysis.files import read_each, read_judged
from fedhpo_gym.analysis.incumbents import Study, Trajectory
from fedhpo_gym.analysis.plot import looks_of
from fedhpo_gym.analysis.problems import Problem, Run
from fedhpo_gym.analysis.runs import JudgedRun
from fedhpo_gym.studies.regret import known_of
from studies import positive, table

NAMES = {"v0": "LR v0", "v1": "LR v1", "others": "other families"}
VECTORS = {f"vectors-{part}": name for part, name in NAMES.items()}
LONG, NOISY = "vectors-long", "vectors-noise"


@cache
def records(folder: Path) -> list[tuple[Path, JudgedRun]]:
    """Return what judges read of the records of a part."""
    return [*read_each([folder], read_judged)]


def read(folder: Path, as_tried: bool = False) -> tuple[Problem, ...]:
    """Return the problems of a part, or the paper's incumbents as tried; none if not run."""
    how: dict[str, Any] = {"rule": "highest_fidelity"} if as_tried else {"known": known_of}
    return group(records(folder), **how) if folder.is_dir() else ()


def runs_of(problems: Iterable[Problem]) -> list[Run]:
    """Return all runs."""
    return [run for one in problems for runs in one.runs.values() for run in runs]


def lines_of(problems: Iterable[Problem]) -> list[Trajectory]:
    """Return the relative regret of all runs, see docs/regret.md."""
    return [run.relative for run in runs_of(problems) if run.relative is not None]


def losses_of(problems: Iterable[Problem]) -> list[Trajectory]:
    """Return the incumbents of all runs."""
    return [run.trajectory for run in runs_of(problems)]


def judged(lines: Iterable[Trajectory], measure: str = REGRET) -> Comparison:
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


def leaders(found: Comparison) -> str:
    """Return who has the best mean rank from which share of the budget on."""
    names = [*found.ranks]
    first = np.array([*found.ranks.values()]).argmin(axis=0)
    begins = np.flatnonzero(np.diff(first, prepend=-1))
    rows = [[f"{found.fractions[at]:.2%}", names[first[at]]] for at in begins]
    return table(["from this share of the budget on", "best mean rank"], rows)


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


def vector_words(parts: Mapping[str, Sequence[Problem]]) -> str:
    """Return ranks by hypervolume and by loss: id budgets, four times as much, and noise."""
    calm = {name: parts[part] for part, name in VECTORS.items() if parts[part]}
    calm["all"] = [problem for of in calm.values() for problem in of]
    noisy = {line.problem.split(" ")[0] for line in lines_of(parts[NOISY])}
    same = [one for one in calm["all"] if one.name.split(" ")[0] in noisy]
    alike = {"these, without noise": same, "with noise": parts[NOISY]}
    words = []
    for title, groups in (
        ("Budgets of the ids", calm),
        ("Four times the budget", {"LR v1": parts[LONG]}),
        ("Under noise", alike),
    ):
        if not all(groups.values()):
            continue
        by_volume = {name: judged(volumes_of(of), VOLUME) for name, of in groups.items()}
        by_loss = {name: judged(lines_of(of)) for name, of in groups.items()}
        *_, last = by_volume.values()
        words += [f"### {title}, hypervolume", summary(by_volume), numbers(last)]
        words += [*answer(last), f"### {title}, validation loss", summary(by_loss)]
    return "\n\n".join(words)


def volumes_of(problems: Iterable[Problem]) -> list[Trajectory]:
    """Return the hypervolume regrets of all runs."""
    return [line for one in problems for line in one.volumes()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge all parts that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--seeds", type=positive, default=5, help="runs per cell (default: 5)")
    options = parser.parse_args(arguments)
    out, seeds = options.out, options.seeds

    def part(name: str, as_tried: bool = False) -> list[Problem]:
        agents = VECTOR_AGENTS if name.startswith("vectors") else AGENTS
        return whole(read(out / name, as_tried), agents, seeds)

    parts = {name: part(name) for name in PARTS}
    tried = {name: part(name, as_tried=True) for name in (*NAMES, "noise")}
    every = [one for name in NAMES for one in parts[name]]
    found = {NAMES[name]: judged(lines_of(parts[name])) for name in NAMES if parts[name]}
    found["all"] = judged(lines_of(every))
    with_noise = {"all, with noise": judged(lines_of(parts["noise"]))} if parts["noise"] else {}
    sections = {
        "All problems": "\n\n".join(answer(found["all"])),
        "Ranks": summary(found),
        "In short, all problems": numbers(found["all"]),
        "Who leads when": leaders(found["all"]),
        "Sign tests": signs({**found, **with_noise}),
        "Final values, LR v0": finals(judged(losses_of(tried["v0"]), VALIDATION)),
    }
    if parts["noise"]:
        sections["Under noise"] = noise_words(lines_of(parts["noise"]), lines_of(every))
    if vectors := vector_words(parts):
        sections["Many objectives"] = vectors
    words = [part for title, text in sections.items() for part in (f"## {title}\n", text, "")]
    lines = {name: losses_of(problems) for name, problems in tried.items()}
    for name in (*VECTORS, LONG, NOISY):
        lines[name.replace("vectors", "volume")] = volumes_of(parts[name])
    draw(found["all"], out)
    write_finals(lines, out / "finals.csv")
    text = "\n".join(words) + "\n"
    (out / "report.md").write_text(text, encoding="utf-8")
    print(text, {name: len(of) for name, of in parts.items()})


if __name__ == "__main__":
    main()
