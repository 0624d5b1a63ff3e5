"""Numbers and pictures of `generated_study.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, combinations_with_replacement
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.stats import ranks
from fedhpo_gym.tasks.meta import META_SPLITS
from studies import table

Array = NDArray[np.float64]
Found = Mapping[str, Any]

HELD_OUT = META_SPLITS[1:]
AT = (25, 50)
DRAWS, RESAMPLES = 200, 2000
"""Draws of one task of each survey; and of tasks or surveys, with replacement."""
COMPARED, REMOVED, FOLDS = 300, 8, 7
"""Generated tasks in pairs and before the classifier; statistics that it loses one by one."""
SHOWN = (
    *("best score", "useless (score 0)"),
    *("regret of 25 random ones", "predicted by a Gaussian process (R2)"),
)
TRANSFER = ("zero-shot", "tst-r")
KINDS = ("generated", "by truth", "noise-free", "pool", "surrogate")


def columns_of(tasks: Found) -> dict[str, Array]:
    """Return (n,) statistics of each task, and where its optimum lies."""
    places = {f"optimum: {name}": values for name, values in tasks["optimum"].items()}
    weights = {f"importance: {name}": values for name, values in tasks["importance"].items()}
    return {n: np.array(v, float) for n, v in (tasks["statistics"] | places | weights).items()}


def held_out(tasks: Found) -> tuple[dict[str, Array], NDArray[np.str_]]:
    """Return statistics and surveys of the tasks of meta-validation and meta-test."""
    parts = [columns_of(tasks[split]) for split in HELD_OUT]
    surveys = np.concatenate([tasks[split]["surveys"] for split in HELD_OUT])
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}, surveys


def holm(values: Array) -> Array:
    """Return p-values corrected for their number (Holm, 1979)."""
    order = values.argsort()
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    found = np.empty(len(values))
    found[order] = np.minimum(stepped, 1.0)
    return found


def one_of_each(surveys: NDArray[np.str_], draws: int) -> NDArray[np.intp]:
    """Return (draws, surveys) positions: a task of each survey, drawn again and again."""
    rng = stream(0, "generated_surveys")
    members = [np.flatnonzero(surveys == one) for one in dict.fromkeys(surveys.tolist())]
    return np.stack([rng.choice(own, draws) for own in members], axis=1)


def compared(
    own: Mapping[str, Array], surveys: NDArray[np.str_], made: Mapping[str, Array]
) -> dict[str, tuple[float, float]]:
    """Return the Kolmogorov-Smirnov distance of each statistic and its p-value.

    Tasks of one survey are no independent witnesses, so one task of each survey is drawn, again and
    again. The distance is a median, and p twice a median, which holds whatever depends on what.
    """
    from scipy.stats import kstwo

    drawn, found = one_of_each(surveys, DRAWS), []
    for name, values in own.items():
        other = np.sort(made[name][np.isfinite(made[name])])
        rows = [np.sort(row[np.isfinite(row)]) for row in values[drawn]]
        away = np.array([distance(row, other) for row in rows])
        sizes = np.array([len(row) * len(other) / (len(row) + len(other)) for row in rows])
        chances = kstwo.sf(away, np.round(sizes))
        found.append((np.median(away), min(2.0 * np.median(chances), 1.0)))
    away, chance = np.array(found).T
    pairs = zip(away.tolist(), holm(chance).tolist(), strict=True)
    return dict(zip(own, pairs, strict=True))


def distance(one: Array, other: Array) -> float:
    """Return the largest difference of the cumulative shares of two sorted samples."""
    sides: tuple[Literal["left", "right"], ...] = ("left", "right")
    shares = [[np.searchsorted(s, one, side) / len(s) for s in (one, other)] for side in sides]
    return float(max(np.abs(a - b).max() for a, b in shares))


def middle(values: Array, spread: bool = False) -> str:
    """Return the median as text, and the middle 80 % where wanted."""
    low, median, high = np.nanquantile(values, (0.1, 0.5, 0.9))
    return f"{median:.3g}" + (f" [{low:.3g}, {high:.3g}]" if spread else "")


def statistics_table(tasks: Found) -> str:
    """Return medians of all splits and of generated tasks, and how they differ."""
    splits, rows = {split: columns_of(tasks[split]) for split in tasks}, []
    trained = compared(splits["train"], np.array(tasks["train"]["surveys"]), splits["generated"])
    for name, (away, p) in compared(*held_out(tasks), splits["generated"]).items():
        medians = [middle(splits[split][name]) for split in ("train", *HELD_OUT)]
        made = middle(splits["generated"][name], spread=True)
        told = f"{trained[name][0]:.2f}", f"{away:.2f}", f"{p:.2g}"
        rows.append([name, *medians, made, *told])
    heads = ["median of", "train", *HELD_OUT, "generated [10 %, 90 %]"]
    heads += ["KS to train", "KS to held-out", "p (Holm)"]
    unsolvable = np.mean(np.array(tasks["generated"]["statistics"]["best score"]) <= 0)
    words = f"{100 * unsolvable:.1f} % of generated tasks have no configuration with a score.\n"
    return table(heads, rows) + "\n" + words


def agreements(one: Array, other: Array) -> Array:
    """Return the (n, m) tau-b of rows of scores."""
    first, second = np.triu_indices(one.shape[1], 1)

    def signs(scores: Array) -> NDArray[np.float32]:
        found = np.sign(scores[:, first] - scores[:, second]).astype(np.float32)
        size = np.sqrt((found**2).sum(axis=1, keepdims=True))
        return np.asarray(found / np.maximum(size, 1.0))

    return np.asarray(signs(one) @ signs(other).T, np.float64)


def pairs_table(tasks: Found) -> str:
    """Return how alike pairs of tasks rank configurations, and the nearest of as many tasks."""
    scores = {split: np.array(own["scores"]) for split, own in tasks.items()}
    solvable = scores["generated"].max(axis=1) > 0
    made = scores["generated"][solvable][:COMPARED]
    real = np.concatenate([scores[split] for split in HELD_OUT])
    surveys = held_out(tasks)[1]
    trained = np.array(tasks["train"]["surveys"])
    apart = surveys[:, None] != surveys
    among = agreements(made, made)[~np.eye(len(made), dtype=bool)]
    rows = [
        ["two held-out tasks of different surveys", agreements(real, real)[apart]],
        [
            "two train tasks of different surveys",
            agreements(scores["train"], scores["train"])[trained[:, None] != trained],
        ],
        ["two generated tasks", among],
        ["a held-out and a train task", agreements(real, scores["train"]).ravel()],
        ["a held-out and a generated task", agreements(real, made).ravel()],
        ["a held-out and its nearest train task", agreements(real, scores["train"]).max(axis=1)],
        [
            f"a held-out and its nearest of {len(trained)} generated tasks",
            agreements(real, made[: len(trained)]).max(axis=1),
        ],
        ["a generated and its nearest train task", agreements(made, scores["train"]).max(axis=1)],
    ]
    words = [[name, middle(values, spread=True)] for name, values in rows]
    return table(["Kendall's tau of scores", "median [10 %, 90 %]"], words)


def _folds(groups: NDArray[np.str_], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return (n,) folds: groups are dealt whole, in random order."""
    names, where = np.unique(groups, return_inverse=True)
    return np.asarray(rng.permutation(len(names))[where] % min(FOLDS, len(names)))


def _weights(groups: NDArray[np.str_]) -> Array:
    """Return (n,) weights with which each group counts the same, and all together 1."""
    _, where, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / (sizes[where] * len(sizes)))


class Judge:
    """A forest that tells two kinds of tasks apart, and how well it does on surveys left out.

    Args:
        real: (n, k) statistics of real tasks, of (n,) surveys; every survey counts the same.
        other: (m, k) statistics of others, of (m,) surveys.
    """

    def __init__(
        self, real: Array, surveys: NDArray[np.str_], other: Array, others: NDArray[np.str_]
    ) -> None:
        rng = stream(0, "generated_folds")
        self.rows = np.concatenate([real, other])
        self.is_other = np.repeat([False, True], [len(real), len(other)])
        self.groups = np.concatenate([surveys, others])
        self.weights = np.concatenate([_weights(surveys), _weights(others)])
        self.folds = np.concatenate([_folds(surveys, rng), _folds(others, rng)])

    def told(self, chosen: Sequence[int]) -> tuple[Array, Array]:
        """Return (n + m,) chances of being no real task, out of fold, and importances."""
        from sklearn.ensemble import ExtraTreesClassifier

        rows = self.rows[:, list(chosen)]
        chance, weight = np.zeros(len(rows)), np.zeros(rows.shape[1])
        for fold in np.unique(self.folds).tolist():
            own = self.folds == fold
            forest = ExtraTreesClassifier(200, min_samples_leaf=2, random_state=0)
            forest.fit(rows[~own], self.is_other[~own], self.weights[~own])
            chance[own] = forest.predict_proba(rows[own])[:, 1]
            weight += forest.feature_importances_
        return chance, weight

    def area(self, chance: Array, resamples: int = DRAWS) -> tuple[float, float, float]:
        """Return the area under the curve, and its interval by drawing surveys again."""
        from sklearn.metrics import roc_auc_score

        rng = stream(0, "generated_areas")
        names, where = np.unique(self.groups, return_inverse=True)
        side = np.array([self.is_other[self.groups == one].any() for one in names])
        found = [float(roc_auc_score(self.is_other, chance, sample_weight=self.weights))]
        for _ in range(resamples):
            counts = np.zeros(len(names))
            for one in (False, True):
                own = np.flatnonzero(side == one)
                np.add.at(counts, rng.choice(own, len(own)), 1.0)
            weights = self.weights * counts[where]
            found.append(float(roc_auc_score(self.is_other, chance, sample_weight=weights)))
        return found[0], *np.quantile(found[1:], (0.025, 0.975)).tolist()


def _matrix(columns: Mapping[str, Array], names: Sequence[str]) -> Array:
    """Return (n, k) statistics; what a task has not is the median of the others."""
    found = np.stack([columns[name] for name in names], axis=1)
    return np.where(np.isfinite(found), found, np.nanmedian(found, axis=0))


def classifier_table(tasks: Found) -> str:
    """Return how well a forest tells tasks apart, losing its best statistic again and again."""
    real, surveys = held_out(tasks)
    made = columns_of(tasks["generated"])
    solvable = np.flatnonzero(made["best score"] > 0)[:COMPARED]
    made = {name: values[solvable] for name, values in made.items()}
    numbers = np.array([f"generated {i}" for i in range(len(solvable))])
    train = columns_of(tasks["train"])
    of_train = np.array([f"train {one}" for one in tasks["train"]["surveys"]])
    names = list(real)
    known = _matrix(real, names), _matrix(made, names), _matrix(train, names)
    rows = []

    def row(words: str, judge: Judge, chosen: Sequence[int]) -> Array:
        chance, weight = judge.told(chosen)
        rows.append([words, "{:.2f} [{:.2f}, {:.2f}]".format(*judge.area(chance))])
        return weight

    everything = range(len(names))
    row("held-out and train tasks", Judge(known[0], surveys, known[2], of_train), everything)
    row("train and generated tasks", Judge(known[2], of_train, known[1], numbers), everything)
    judge, left = Judge(known[0], surveys, known[1], numbers), [*everything]
    weight = row("held-out and generated tasks", judge, left)
    gone: list[str] = []
    while len(gone) < REMOVED and len(left) > 1:
        gone.append(names[left.pop(int(weight.argmax()))])
        weight = row(f"without {gone[-1]}" + (", too" if len(gone) > 1 else ""), judge, left)
    return table(["told apart", "area under the curve"], rows)


def reached(tuning: Found) -> tuple[tuple[str, ...], NDArray[np.str_], Array]:
    """Return agents, (n,) surveys, and (n, agents, trials) regrets of the runs of one kind."""
    agents = tuple(next(iter(tuning.values()))["runs"])
    surveys = np.array([one["survey"] for one in tuning.values()])
    shares = [[one["runs"][agent] for agent in agents] for one in tuning.values()]
    return agents, surveys, 1.0 - np.array(shares)


def ranks_of(regret: Array) -> Array:
    """Return the (n, agents) ranks of (n, agents) regrets, as HPO-B rounds them."""
    return np.asarray(ranks(np.round(regret, 8)))


def redrawn(surveys: NDArray[np.str_], own: Array, seed: int, half: bool = False) -> list[Array]:
    """Return (resamples, agents) mean ranks of surveys drawn again; or of two random halves."""
    rng = stream(seed, "generated_orders")
    names, where = np.unique(surveys, return_inverse=True)
    size = len(names)
    sums, runs = np.zeros((size, own.shape[1])), np.zeros(size)
    np.add.at(sums, where, own)
    np.add.at(runs, where, 1)
    if half:
        first = rng.permuted(np.tile(np.arange(size) < size // 2, (RESAMPLES, 1)), axis=1)
        counts = [first.astype(float), (~first).astype(float)]
    else:
        counts = [rng.multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(float)]
    return [one @ sums / np.maximum(one @ runs, 1)[:, None] for one in counts]


def taus(one: Array, other: Array) -> Array:
    """Return the (n,) tau-b of (n, agents) mean ranks."""
    places = [*combinations(range(one.shape[-1]), 2)]
    first, second = (list(side) for side in zip(*places, strict=True))
    a, b = (np.sign(x[..., first] - x[..., second]) for x in (one, other))
    size = np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    return np.asarray((a * b).sum(axis=-1) / np.maximum(size, 1e-12))


def between(values: Array) -> str:
    """Return the mean of resamples as text, and the middle 95 %."""
    low, high = np.quantile(values, (0.025, 0.975))
    return f"{values.mean():.2f} [{low:.2f}, {high:.2f}]"


def order_tables(known: Mapping[str, tuple[NDArray[np.str_], Array]], at: Sequence[int]) -> str:
    """Return tau of the orders of two kinds of tasks; of one kind, what it has with itself."""
    rows: dict[bool, list[list[str]]] = {False: [], True: []}
    for kinds in combinations_with_replacement(KINDS, 2):
        words = []
        for trial in at:
            own = [(known[k][0], ranks_of(known[k][1][:, :, trial - 1])) for k in kinds]
            again = taus(*(redrawn(*ranked, seed=i)[0] for i, ranked in enumerate(own)))
            if kinds[0] == kinds[1]:
                halves = taus(*redrawn(*own[0], seed=0, half=True))
                words += [f"{halves.mean():.2f}", between(again)]
            else:
                point = taus(*(ranked.mean(axis=0) for _, ranked in own))
                words += [f"{point:.2f}", between(again)]
        rows[kinds[0] == kinds[1]].append([" and ".join(dict.fromkeys(kinds)), *words])
    drawn = "drawn again [95 %]"
    heads = [["two kinds", "tau-b"], ["one kind", "tau-b of its halves"]]
    first, second = ([h[0], *(w for t in at for w in (f"{h[1]} @{t}", drawn))] for h in heads)
    return table(first, rows[False]) + "\n" + table(second, rows[True])


def tuning_tables(tuning: Found) -> str:
    """Return regret and mean rank of each agent on each kind of tasks, and tau of the orders."""
    found = {kind: reached(tuning[kind]) for kind in KINDS}
    agents, _, regret = found[KINDS[0]]
    known = {kind: own[1:] for kind, own in found.items()}
    at = [trial for trial in AT if trial <= regret.shape[2]] or [regret.shape[2]]
    sizes = [f"{len(known[k][0])} {k} ({len(set(known[k][0]))})" for k in KINDS]
    tables = [fill(f"Tasks (and surveys): {', '.join(sizes)}.", 100) + "\n"]
    for word, digits in (("regret", 3), ("mean rank", 2)):
        own = {(k, t): known[k][1][:, :, t - 1] for k in KINDS for t in at}
        means = [(v if word == "regret" else ranks_of(v)).mean(axis=0) for v in own.values()]
        rows = [[agent, *(f"{m[i]:.{digits}f}" for m in means)] for i, agent in enumerate(agents)]
        tables.append(table([word, *(f"{kind} @{trial}" for kind, trial in own)], rows))
    tables.append(order_tables(known, at))
    alone = [i for i, name in enumerate(agents) if name not in TRANSFER]
    if 2 < len(alone) < len(agents):
        few = {kind: (surveys, own[:, alone]) for kind, (surveys, own) in known.items()}
        words = f"Of the {len(alone)} agents that learn from no other task:\n"
        tables += [words, order_tables(few, at).partition("\n\n")[0] + "\n"]
    return "\n".join(tables)


def report(found: Mapping[str, Found]) -> str:
    """Return all tables as Markdown."""
    parts = []
    for space, own in found.items():
        if tasks := own["tasks"]:
            parts += [f"## {space}: statistics of tasks\n", statistics_table(tasks)]
            parts += [pairs_table(tasks), classifier_table(tasks)]
        if tuning := own["tuning"]:
            parts += [f"## {space}: ranks of agents\n", tuning_tables(tuning)]
    return "\n".join(parts)


def draw(found: Mapping[str, Found], path: Path) -> None:
    """Draw four statistics as cumulative shares, and regrets over trials, of each search space."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        2 * len(found), 4, figsize=(15.0, 6.4 * len(found)), squeeze=False, layout="constrained"
    )
    for (space, own), upper, lower in zip(found.items(), grid[::2], grid[1::2], strict=True):
        for part, axes, drawn in (
            ("tasks", upper, _draw_statistics),
            ("tuning", lower, _draw_regrets),
        ):
            if own[part]:
                drawn(space, own[part], axes)
            else:
                for axis in axes:
                    axis.set_axis_off()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _draw_statistics(space: str, tasks: Found, axes: Any) -> None:
    sides = {
        "train": (columns_of(tasks["train"]), "C7", 1.0),
        "held out": (held_out(tasks)[0], "C0", 1.8),
        "generated": (columns_of(tasks["generated"]), "C3", 1.8),
    }
    for axis, name in zip(axes, SHOWN, strict=True):
        for label, (columns, color, width) in sides.items():
            values = np.sort(columns[name][np.isfinite(columns[name])])
            shares = np.arange(1, len(values) + 1) / len(values)
            axis.step(values, shares, where="post", color=color, label=label, linewidth=width)
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of tasks")
    axes[0].set_title(space, loc="left")
    axes[0].legend(frameon=False)


def _draw_regrets(space: str, tuning: Found, axes: Any) -> None:
    last = {}
    for axis, kind in zip(axes, ("generated", "pool", "surrogate"), strict=False):
        agents, _, regret = reached(tuning[kind])
        for i, agent in enumerate(agents):
            curve = regret[:, i].mean(axis=0)
            axis.plot(np.arange(1, len(curve) + 1), curve, color=f"C{i}", label=agent)
        axis.set(yscale="log", xlabel="trials", title=f"{space}: {kind}")
        axis.grid(alpha=0.3)
        last[kind] = ranks_of(regret[:, :, -1]).mean(axis=0)
    axes[0].set_ylabel("mean regret")
    for kind, marker in (("pool", "o"), ("surrogate", "^")):
        for i, name in enumerate(agents):
            label = name if kind == "pool" else None
            axes[3].plot(last["generated"][i], last[kind][i], marker, color=f"C{i}", label=label)
    axes[3].axline((4, 4), slope=1, color="C7", linewidth=0.8)
    axes[3].set(xlabel="mean rank, generated", ylabel="mean rank, pool (o), surrogate (triangle)")
    axes[3].legend(frameon=False, fontsize=7)
