"""Tables and pictures of a study: `python docs/studies/optimizers_report.py --out DIR`.

DIR is the folder of `optimizers_study.py`. Written into it: `report.md`, pictures
of the contest and of the stored problems, and `finals.csv`, the final incumbent of every run, which
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
from optimizers_study import AGENTS, BLACK_BOX, MULTI_FIDELITY, PARTS, VECTOR_AGENTS

from fedhpo_gym.analysis import group
from fedhpo_gym.analysis.comparison import (
    REGRET,
    VALIDATION,
    VOLUME,
    Comparison,
    answer,
    compare_agents,
)
from fedhpo_gym.analysis.figures import draw_difference
from fedhpo_gym.analysis.plot import line_styles
from fedhpo_gym.analysis.problems import ProblemRuns, Run
from fedhpo_gym.evaluation.stats import wilcoxon_holm
from fedhpo_gym.records.files import read_each, read_judged
from fedhpo_gym.records.incumbents import Study, Trajectory
from fedhpo_gym.records.runs import JudgedRun
from fedhpo_gym.studies.regret import known_of
from studies import table

NAMES = {"v0": "LR v0", "v1": "LR v1", "others": "other families"}
LEVEL = 0.05
DESIGNS = ("grid", "random", "latin-hypercube", "sobol")
VECTORS = {f"vectors-{part}": name for part, name in NAMES.items()}


@cache
def records(folder: Path) -> list[tuple[Path, JudgedRun]]:
    """Return what judges read of the records of a part."""
    return [*read_each([folder], read_judged)]


def read(folder: Path, as_tried: bool = False) -> tuple[ProblemRuns, ...]:
    """Return the problems of a part, or the paper's incumbents as tried; none if not run."""
    how: dict[str, Any] = {"rule": "highest_fidelity"} if as_tried else {"known": known_of}
    return group(records(folder), **how) if folder.is_dir() else ()


def runs_of(problems: Iterable[ProblemRuns]) -> list[Run]:
    """Return all runs."""
    return [run for one in problems for runs in one.runs.values() for run in runs]


def lines_of(problems: Iterable[ProblemRuns]) -> list[Trajectory]:
    """Return the relative regret of all runs, see docs/regret.md."""
    return [run.relative for run in runs_of(problems) if run.relative is not None]


def losses_of(problems: Iterable[ProblemRuns]) -> list[Trajectory]:
    """Return the incumbents of all runs."""
    return [run.trajectory for run in runs_of(problems)]


def judged(lines: Iterable[Trajectory], measure: str = REGRET) -> Comparison:
    """Return the comparison of runs that form one study."""
    (study,) = Study.whole(lines)
    return compare_agents(study, measure)


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
        ends = "–" if own.iqm_interval is None else "{:.3f} to {:.3f}".format(*own.iqm_interval)
        rows.append(
            [
                agent, f"{own.rank:.2f}", f"{own.rank_runs:.2f}", f"{own.iqm:.3f}",
                ends, f"{own.anytime:.3f}", f"{own.worst[1]:.2f}",
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


def draw(found: Comparison, out: Path, name: str) -> None:
    """Draw ranks over time and critical differences as `<name>.png`, `<name>_differences.png`."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    kinds = {"black box": BLACK_BOX, "multi-fidelity": MULTI_FIDELITY}
    figure, panels = plt.subplots(1, 2, figsize=(10, 5), sharey=True, layout="constrained")
    for (kind, agents), axes in zip(kinds.items(), panels, strict=True):
        own = [agent for agent in found.order if agent in agents]
        for agent, (colour, style) in line_styles(own).items():
            axes.step(found.fractions, found.ranks[agent], color=colour, ls=style, label=agent)
        axes.set(xscale="log", xlabel="share of the budget", title=kind)
        axes.set_ylim(1, 21)  # with room for the legend
        axes.legend(fontsize=8, ncols=2)
    panels[0].set_ylabel(f"mean rank among all {len(found.order)}")
    figure.savefig(out / f"{name}.png", dpi=80)
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    draw_difference(axes, found.means)
    figure.savefig(out / f"{name}_differences.png", dpi=80)
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


def whole(
    problems: Iterable[ProblemRuns], agents: Sequence[str], most: int = 99
) -> list[ProblemRuns]:
    """Return the problems with runs of all these agents, of nobody else, and as many seeds each."""
    found = [one for one in problems if all(one.runs.get(agent) for agent in agents)]
    seeds = min((len(one.runs[agent]) for one in found for agent in agents), default=0)
    kept = min(seeds, most)
    return [replace(one, runs={a: one.runs[a][:kept] for a in agents}) for one in found]


def told(found: Comparison) -> tuple[int, int, int]:
    """Return the seeds, and how many pairs are told apart on means over seeds and on all runs."""
    means = sum(pair.p_means < LEVEL for pair in found.pairs)
    runs = sum((1.0 if pair.p_runs is None else pair.p_runs) < LEVEL for pair in found.pairs)
    return len(found.study.final(found.study.problems[0], found.study.agents[0])), means, runs


def growth(problems: Sequence[ProblemRuns]) -> str:
    """Return how many pairs so many seeds tell apart; more than there are by a bootstrap."""
    rows = []
    for seeds in range(1, 1 + len(problems[0].runs[AGENTS[0]])):
        found = judged(losses_of(whole(problems, AGENTS, seeds)), VALIDATION)
        rows.append([*map(str, told(found))])
    draws, upper = np.random.default_rng(0), np.triu_indices(len(found.order), 1)
    finals = np.array([found.finals[agent] for agent in found.order]).swapaxes(0, 1)  # (P, A, S)
    for seeds in (10, 20, 40):
        counts = [
            np.sum(wilcoxon_holm(np.vstack([
                one[:, draws.integers(one.shape[1], size=seeds)].T for one in finals
            ]))[upper] < LEVEL)
            for _ in range(20)
        ]  # fmt: skip
        rows.append([f"{seeds} by a bootstrap", "–", f"{np.mean(counts):.0f}"])
    return table(["seeds", "pairs told apart on means over seeds", "on all runs"], rows)


def by_rule(recommended: Sequence[ProblemRuns], as_tried: Sequence[ProblemRuns]) -> str:
    """Return mean ranks by the true loss of what is recommended, and of the paper's incumbents."""
    first, second = (judged(losses_of(one), VALIDATION) for one in (recommended, as_tried))
    rows = [
        [agent, *(f"{one.numbers[agent].rank:.2f}" for one in (first, second))]
        for agent in first.order
    ]
    return table(["mean rank", "best of any fidelity", "best of the highest fidelity"], rows)


def spread(found: Comparison, without: Sequence[str] = ()) -> str:
    """Return what normalised regret varies by: agent, agent and problem, luck of the seed.

    Components of variance of a two-way layout with repetitions, problems taken as random; one that
    comes out below 0 is shown as 0.
    """
    agents = [agent for agent in found.order if agent not in without]
    finals = np.array([found.finals[agent] for agent in agents])  # (A, P, S)
    count, problems, seeds = finals.shape
    cells = finals.mean(axis=2) - finals.mean(axis=(0, 2))
    own = cells.mean(axis=1)
    luck = finals.var(axis=2, ddof=1).mean()
    both = np.sum((cells - own[:, None]) ** 2) / (count - 1) / (problems - 1) - luck / seeds
    alone = np.sum(own**2) / (count - 1) - (both + luck / seeds) / problems
    whole = np.maximum([alone, both, luck], 0.0)
    row = [", ".join(without) or "nobody"]
    row += [f"{v / whole.sum():.0%} ({v**0.5:.3f})" for v in whole]
    return table(["left out", "agent", "agent and problem", "luck of the seed"], [row])


def beaten(found: Comparison) -> str:
    """Return of whom each agent is told apart on all runs, the worse ones."""
    rows: dict[str, list[str]] = {agent: [] for agent in found.order}
    for pair in found.pairs:
        if pair.p_runs is not None and pair.p_runs < LEVEL:
            better, worse = sorted(pair.agents, key=lambda a: found.numbers[a].rank_runs or 0.0)
            rows[better].append(worse)
    return table(["agent", "better on all runs than"], [[a, ", ".join(b)] for a, b in rows.items()])


def apart(found: Comparison) -> str:
    """Return how many pairs a test tells apart at 0.05, on means over seeds and on all runs."""
    seeds, means, runs = told(found)
    return (
        f"{len(found.study.problems)} problems, {seeds} seeds: of {len(found.pairs)} pairs {means} "
        f"are told apart on means over seeds, {runs} ({runs / len(found.pairs):.0%}) on all runs."
    )


def vector_words(parts: Mapping[str, Sequence[ProblemRuns]]) -> str:
    """Return ranks by hypervolume and by loss."""
    groups = {name: parts[part] for part, name in VECTORS.items() if parts[part]}
    if not groups:
        return ""
    groups["all"] = [problem for of in groups.values() for problem in of]
    by_volume = {name: judged(volumes_of(of), VOLUME) for name, of in groups.items()}
    by_loss = {name: judged(lines_of(of)) for name, of in groups.items()}
    last = by_volume["all"]
    words = [summary(by_volume), apart(last), numbers(last), *answer(last)]
    return "\n\n".join([*words, "### Validation loss", summary(by_loss)])


def volumes_of(problems: Iterable[ProblemRuns]) -> list[Trajectory]:
    """Return the hypervolume regrets of all runs."""
    return [line for one in problems for line in one.volumes()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge all parts that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    out: Path = parser.parse_args(arguments).out

    def part(name: str, as_tried: bool = False) -> list[ProblemRuns]:
        agents = VECTOR_AGENTS if name.startswith("vectors") else AGENTS
        return whole(read(out / name, as_tried), agents)

    parts = {name: part(name) for name in PARTS}
    tried = {name: part(name, as_tried=True) for name in (*NAMES, "noise")}
    tried["contest"] = parts["contest"]
    every = [one for name in NAMES for one in parts[name]]
    found = {NAMES[name]: judged(lines_of(parts[name])) for name in NAMES if parts[name]}
    found["all"] = judged(lines_of(every))
    with_noise = {"all, with noise": judged(lines_of(parts["noise"]))} if parts["noise"] else {}
    stored = found["all"]
    sections = {
        "Ranks, stored problems": summary(found),
        "In short, stored problems": "\n\n".join(
            [apart(stored), numbers(stored), spread(stored), beaten(stored)]
        ),
        "Who leads when, stored problems": leaders(stored),
        "Sign tests": signs({**found, **with_noise}),
        "Final values, LR v0": finals(judged(losses_of(tried["v0"]), VALIDATION)),
        "Under noise": parts["noise"] and noise_words(lines_of(parts["noise"]), lines_of(every)),
        "Under noise, by rule": parts["noise"] and by_rule(parts["noise"], tried["noise"]),
        "Many objectives": vector_words(parts),
    }
    draw(stored, out, "stored")
    if parts["contest"]:
        contest = judged(losses_of(parts["contest"]), VALIDATION)
        words = [*answer(contest), apart(contest), numbers(contest), leaders(contest)]
        words += [growth(parts["contest"]), beaten(contest)]
        left_out = [one for one in ((), ("grid",), DESIGNS) if len({*contest.order} - {*one}) > 1]
        words += [spread(contest, without) for without in left_out]
        sections = {"Contest": "\n\n".join(words), **sections}
        draw(contest, out, "contest")
    lines = {name: losses_of(problems) for name, problems in tried.items()}
    for name in VECTORS:
        lines[name.replace("vectors", "volume")] = volumes_of(parts[name])
    write_finals(lines, out / "finals.csv")
    text = "".join(f"## {title}\n\n{words}\n\n" for title, words in sections.items() if words)
    (out / "report.md").write_text(text, encoding="utf-8")
    print(text, {name: len(of) for name, of in parts.items()})


if __name__ == "__main__":
    main()
