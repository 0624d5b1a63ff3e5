"""Tables and pictures of `dac_study.py`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.stats import bootstrap_interval, interquartile_mean
from fedhpo_gym.stored.references import References
from studies import cell, table

Floats = NDArray[np.float64]
Results = Mapping[str, Any]
LEARNERS = ("CMA-ES", "PPO", "SAC", "DDQN", "cloning")
IN_COURSE = {
    "fedhyper": "FedHyper",
    "auto-fedrl": "Auto-FedRL",
    "fedtune": "FedTune",
    "fedex": "FedEx",
    "population": "population-based training",
}
SCHEDULE = "best stated schedule"
NOTHING = "–"


QUANTILES = 48
"""By which a problem counts in the mean over all."""
RESAMPLES = 1000
CONTESTANTS = {SCHEDULE: SCHEDULE, **{one: one for one in LEARNERS}, **IN_COURSE}


class Found:
    """What is known so far of the problems whose stated settings have been played.

    Scores are of held-out instances: 0 is the mean of the default, 1 that of the best static
    configuration.
    """

    def __init__(self, study: Any, results: Results) -> None:
        self.titles = [one.title for one in study.problems if f"stated-{one.title}" in results]
        self.seeds: int = study.seeds
        self.results = results

    def stated(self, title: str) -> Results:
        known: Results = self.results[f"stated-{title}"]
        return known

    def returns(self, title: str, who: str) -> Floats | None:
        """Return (seeds, instances) returns on held-out instances; None where there are none."""
        stated = self.stated(title)
        if who == SCHEDULE:
            who = stated["best_schedule"]
        if who in stated["held_out"]:
            return np.array([stated["held_out"][who]])
        if who in LEARNERS:
            keys = [f"learned-{title}-{who}-{seed}" for seed in range(self.seeds)]
        else:
            keys = [f"course-{title}-{who}"]
        found = [one["returns"] for one in map(self._of, keys) if "returns" in one]
        return np.array(found) if found else None

    def _of(self, key: str) -> Mapping[str, Any]:
        return self.results.get(key, {})

    def references(self, title: str) -> References:
        """Return default and best static setting on the held-out instances."""
        stated = self.stated(title)["held_out"]
        number = range(len(stated["default"]))
        return References(title, tuple(number), stated, {}, None, {})

    def interval(self, title: str, who: str) -> tuple[float, float, float] | None:
        """Return the score of the mean over seeds and instances, and its 95 % interval."""
        found = self.returns(title, who)
        return None if found is None else self.references(title).interval(found.mean(axis=0))


def score_table(found: Found) -> str:
    """Return who reaches what in every problem, with intervals."""
    rows = []
    for who, label in CONTESTANTS.items():
        cells = []
        for title in found.titles:
            known = found.interval(title, who)
            cells.append(NOTHING if known is None else "{:.2f} ({:.2f} to {:.2f})".format(*known))
        rows.append([label, *cells])
    return table(["", *found.titles], rows)


def summary_table(found: Found) -> str:
    """Return interquartile means over all problems, and probabilities of improvement."""
    rows = []
    for who, label in CONTESTANTS.items():
        returns = {title: found.returns(title, who) for title in found.titles}
        titles = [title for title, own in returns.items() if own is not None]
        played = []
        for title in titles:
            known = found.references(title)
            if not np.isnan(known.score(0.0)):  # static is above the default
                own = _known(returns[title]).mean(axis=0)
                played.append(np.array([known.returns["default"], known.returns["static"], own]))
        if not played:
            continue
        row = [label, str(len(played)), _iqm_with_interval(played)]
        for other in ("static", SCHEDULE):
            wins = []
            for title in titles:
                apart = _known(returns[title]) - _known(found.returns(title, other))
                wins.append(((apart > 0) + 0.5 * (apart == 0)).mean(axis=0))
            row.append(_with_interval(_mean, wins))
        rows.append(row)
    head = ["", "problems", "IQM of scores", "better than best static", "than best stated schedule"]
    return table(head, rows)


def _known(values: Floats | None) -> Floats:
    return np.empty(0) if values is None else values


def _iqm(played: Sequence[Floats]) -> float:
    """Return the IQM of scores of (3, instances) returns: of default, static and contestant.

    Every problem counts the same, by as many quantiles of its scores.
    """
    at = (np.arange(QUANTILES) + 0.5) / QUANTILES
    scores = []
    for default, static, own in played:
        gap = max((static - default).mean(), 1e-12)
        scores.append(np.quantile((own - default) / gap, at))
    return interquartile_mean(np.concatenate(scores))


def _iqm_with_interval(played: Sequence[Floats]) -> str:
    """Return it with the middle 95 % of bootstraps that draw the instances of problems again."""
    rng, found = stream(0, "dac_report"), []
    for _ in range(RESAMPLES):
        numbers = [one.shape[1] for one in played]
        drawn = [one[:, rng.integers(n, size=n)] for one, n in zip(played, numbers, strict=True)]
        found.append(_iqm(drawn))
    low, high = np.quantile(found, [0.025, 0.975])
    return f"{_iqm(played):.2f} ({low:.2f} to {high:.2f})"


def _mean(samples: Sequence[Floats]) -> float:
    return float(np.mean([one.mean() for one in samples]))


def _with_interval(statistic: Any, samples: Sequence[Floats]) -> str:
    low, high = bootstrap_interval(statistic, samples)
    return f"{statistic(samples):.2f} ({low:.2f} to {high:.2f})"


def transfer_table(found: Found) -> str:
    """Return scores of policies evolved in one problem (row) and played in another (column)."""
    rows = []
    for source in found.titles:
        cells = []
        for target in found.titles:
            known = found.results.get(f"transfer-{source}-{target}")
            if known is None:
                return ""
            score = found.references(target).score(np.mean(known)).item()
            cells.append(f"{score:.2f}")
        rows.append([source, *cells])
    return table(["", *found.titles], rows)


def optimum_lines(found: Found) -> list[str]:
    """Return the shares of the computed optimum that are reached, where it is computed."""
    lines = []
    for title in found.titles:
        stated = found.stated(title)
        if "optimum" not in stated:
            continue
        base, best = np.mean(stated["held_out"]["default"]), np.mean(stated["optimum"])
        who = {"static": "best static", SCHEDULE: SCHEDULE, **{one: one for one in LEARNERS}}
        shares = []
        for name, label in who.items():
            known = found.returns(title, name)
            if known is not None:
                every = ", ".join(f"{(one - base) / (best - base):.3f}" for one in known.mean(1))
                shares.append(f"{label} {every}")
        lines.append(
            f"**{title}**, shares of what the computed best schedules gain over the default, a "
            f"number per seed: {'; '.join(shares)}.\n"
        )
    return lines


def reasons(found: Found) -> list[str]:
    """Return why methods did not take part."""
    return [
        f"- {IN_COURSE[agent]}, {title}: {known['reason']}"
        for title in found.titles
        for agent in IN_COURSE
        if "reason" in (known := found.results.get(f"course-{title}-{agent}", {}))
    ]


def costs(found: Found) -> list[str]:
    """Return the processor seconds of one policy, a line per learner."""
    lines = []
    for who in LEARNERS:
        cells = []
        for title in found.titles:
            keys = (f"learned-{title}-{who}-{seed}" for seed in range(found.seeds))
            if spent := [found.results[key]["cpu_s"] for key in keys if key in found.results]:
                cells.append(f"{title} {cell(spent, 0)}")
        lines.append(f"- {who}: {', '.join(cells) or NOTHING}.")
    return lines


def write_report(study: Any, results: Results, out: Path) -> None:
    """Write `report.md` and the pictures of what is there so far."""
    found = Found(study, results)
    lines = [
        "**Scores on held-out instances, with 95 % intervals over instances**\n",
        score_table(found),
        "**All problems**\n",
        summary_table(found),
        *optimum_lines(found),
    ]
    if matrix := transfer_table(found):
        lines += ["**Transfer: trained on (row), evaluated on (column)**\n", matrix]
    lines += ["**Processor seconds of a policy**\n", *costs(found), ""]
    if why := reasons(found):
        lines += ["**Agents that do not support a problem**\n", *why, ""]
    (out / "report.md").write_text("\n".join(map(_filled, lines)), encoding="utf-8")
    draw(found, out)


def _filled(line: str) -> str:
    """Return a line in lines of a page; tables stay."""
    if line.startswith("|"):
        return line
    indent = "  " if line.startswith("- ") else ""
    text = textwrap.fill(line.rstrip(), 100, subsequent_indent=indent, break_long_words=False)
    return text + "\n" * line.endswith("\n")


def draw(found: Found, out: Path) -> None:
    """Draw curves over samples (`dac_curves.png`), and scores (`dac_scores.png`)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    for name, panel, label in (
        ("dac_curves", draw_curves, "steps of training"),
        ("dac_scores", draw_scores, "score, held-out instances"),
    ):
        figure, axes = plt.subplots(2, 4, figsize=(13, 6), squeeze=False)
        for axis, title in zip(axes.flat, found.titles, strict=False):
            panel(axis, found, title)
            axis.set_title(title, fontsize=10)
        for axis in axes.flat[len(found.titles) :]:
            axis.set_visible(False)
        for axis in axes[-1]:
            axis.set_xlabel(label)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
        figure.tight_layout(rect=(0, 0, 1, 0.94))
        figure.savefig(out / f"{name}.png", dpi=110)
        plt.close(figure)


def draw_curves(axis: Any, found: Found, title: str) -> None:
    """Draw scores on validation instances over the steps of training, mean and range of seeds."""
    stated = found.stated(title)
    means = {name: np.mean(returns) for name, returns in stated["val"].items()}
    default, gap = means["default"], means["static"] - means["default"]
    axis.axhline(1.0, color="#555555", lw=1.0, label="best static")
    if schedule := stated["best_schedule"]:
        level = (means[schedule] - default) / gap
        axis.axhline(level, color="#555555", lw=1.0, ls="--", label=SCHEDULE)
    for colour, who in enumerate(LEARNERS):
        keys = (f"learned-{title}-{who}-{seed}" for seed in range(found.seeds))
        curves = [found.results[key]["curve"] for key in keys if key in found.results]
        if curves:
            length = min(len(one) for one in curves)
            steps, returns = np.array([one[:length] for one in curves]).transpose(2, 0, 1)
            scores, at = (returns - default) / gap, steps.mean(axis=0)
            style = {"color": f"C{colour}", "marker": "o" if length < 2 else None}
            axis.plot(at, scores.mean(axis=0), label=who, **style)
            ends = scores.min(axis=0), scores.max(axis=0)
            axis.fill_between(at, *ends, color=f"C{colour}", alpha=0.15, lw=0)
    low, high = axis.get_ylim()
    axis.set_ylim(max(-1.0, low), min(4.0, high))
    axis.set_ylabel("score, validation instances", fontsize=8)
    axis.xaxis.set_major_formatter(lambda at, _: f"{at / 1000:g}k")


def draw_scores(axis: Any, found: Found, title: str) -> None:
    """Draw scores on held-out instances with their intervals."""
    axis.axvline(1.0, color="#555555", lw=1.0, label="best static")
    for place, who in enumerate(CONTESTANTS):
        known = found.interval(title, who)
        if known is not None:
            mean, low, high = np.clip(known, -1.0, 6.0)
            axis.plot([low, high], [place, place], color="C0", lw=2)
            axis.plot([mean], [place], "o", color="C0", ms=5)
    axis.set_yticks(range(len(CONTESTANTS)), list(CONTESTANTS.values()), fontsize=7)
    axis.invert_yaxis()
