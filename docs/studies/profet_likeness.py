"""Likeness of tasks that a model generates to real ones that it never saw.

A model is fitted to some tasks of a family from files and generates more. These and the held-out
tasks are compared at the family's own points, without noise. Names of axes: T tasks, N points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from profet_families import fc_net, svm, xgboost
from scipy.spatial.distance import cdist
from scipy.stats import kendalltau, ks_2samp

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.profet import Family, ProfetModel
from fedhpo_gym.profet.model import LINKS
from studies import table

READERS: Mapping[str, Callable[[Path], Family]] = {"svm": svm, "fc_net": fc_net, "xgboost": xgboost}
GIVEN = {"svm": 25, "fc_net": 4, "xgboost": 11}
"""Tasks that a model is fitted to: half, all, and as many as the paper has."""
PERMUTATIONS = 999
NETWORKS = 20
"""Networks of a model that are asked what they know of its own tasks."""


@dataclass(frozen=True)
class Likeness:
    """A family of real tasks, which values it has, and what models of it are fitted with."""

    family: str
    data: str
    draws: int = 2
    generated: int = 100
    feature_steps: int = 2000
    burn_in: int = 50_000
    keep_every: int = 100
    widths: tuple[int, int] = (200, 200)


def some(family: Family, chosen: Floats) -> Family:
    """Return a family with only some of its tasks."""
    costs = None if family.costs is None else family.costs[chosen]
    names = tuple(family.tasks[i] for i in chosen)
    return replace(family, values=family.values[chosen], costs=costs, tasks=names)


def fitted(study: Likeness, given: Family, out: Path, number: int) -> ProfetModel:
    """Return the model of the given tasks, fitted unless that was done."""
    folder = out / f"model-{number}"
    if not (folder / "profet.json").is_file():
        ProfetModel.fit(
            given, samples=study.generated, feature_steps=study.feature_steps,
            burn_in=study.burn_in, keep_every=study.keep_every, widths=study.widths, seed=number,
            made_by=f"python docs/studies/profet_acceptance.py --family {study.family} --data PATH"
            f" --out {out}",
        ).save(folder)  # fmt: skip
    return ProfetModel.load(folder)


def draw(study: Likeness, data: Path, out: Path, number: int) -> dict[str, Any]:
    """Return what is measured of given, held-out and generated tasks."""
    whole = READERS[study.family](data)
    chosen = stream(number, "given").permutation(len(whole.tasks))
    given = some(whole, chosen[: GIVEN[study.family]])
    held = some(whole, rest) if len(rest := chosen[len(given.tasks) :]) else given
    model = fitted(study, given, out, number)
    made = [model.task(i) for i in range(study.generated)]
    costs = None if given.costs is None else np.array([one.cost(whole.x) for one in made])
    values = np.array([one.value(whole.x) for one in made])
    generated = replace(given, values=values, costs=costs, tasks=tuple(map(str, range(len(made)))))
    kinds = {"held out": held, "given": given, "generated": generated}
    return {
        "alone": {name: alone(one) for name, one in kinds.items()},
        "pairs": {name: pairs(held, kinds[name]) for name in ("given", "generated")},
        "known": known(model, given),
        "places": (model.arrays["mean"].std(axis=0) / model.arrays["deviation"].mean()).tolist(),
    }


def alone(family: Family) -> dict[str, list[float]]:
    """Return what is measured of each task alone."""
    scaled = np.log(family.values) if family.link == "log" else family.values
    found = {"spread": scaled.std(axis=1), "optimum": family.values.min(axis=1)}
    if family.costs is not None:
        logs = np.log(family.costs)
        found |= {"log-cost, mean": logs.mean(axis=1), "log-cost, spread": logs.std(axis=1)}
    return {name: one.tolist() for name, one in found.items()}


def pairs(real: Family, other: Family) -> dict[str, list[float]]:
    """Return medians within real tasks, within others and between them, and a p-value.

    The test permutes tasks, and its statistic is the energy distance: twice the mean between the
    kinds, less the means within them.
    """
    both = np.vstack([real.values, other.values])
    lowest = real.x[both.argmin(axis=1)]
    taus = np.eye(len(both))
    for i, j in zip(*np.triu_indices(len(both), 1), strict=True):
        taus[i, j] = taus[j, i] = kendalltau(both[i], both[j]).statistic
    measures = {"distance of optima": cdist(lowest, lowest), "tau": taus}
    return {name: _pairs(one, len(real.tasks), name == "tau") for name, one in measures.items()}


def _pairs(found: Floats, real: int, alike: bool) -> list[float]:
    within = [
        one[np.triu_indices(len(one), 1)] for one in (found[:real, :real], found[real:, real:])
    ]
    away, rng = 1.0 - found if alike else found, stream(0, "likeness")
    orders = [np.arange(len(found)), *(rng.permutation(len(found)) for _ in range(PERMUTATIONS))]
    energies = []
    for order in orders:
        one, other = order[:real], order[real:]
        apart = away[np.ix_(one, other)].mean()
        energies.append(
            2.0 * apart - away[np.ix_(one, one)].mean() - away[np.ix_(other, other)].mean()
        )
    p = np.mean(np.array(energies) >= energies[0] - 1e-12)
    return [*(float(np.median(one)) for one in (*within, found[:real, real:])), float(p)]


def known(model: ProfetModel, family: Family) -> list[float]:
    """Return the share of variance of its own tasks that a model explains, of all and of each."""
    there = LINKS[family.link][0]
    wanted, missed = there(family.values), np.zeros(len(family.tasks))
    networks = [model.task(i) for i in range(NETWORKS)]
    for task, place in enumerate(model.arrays["mean"]):
        told = [there(replace(one, features=place).value(family.x)) for one in networks]
        missed[task] = ((np.array(told) - wanted[task]) ** 2).mean()
    whole = 1.0 - missed.mean() / wanted.var()
    return [float(whole), *(1.0 - missed / wanted.var(axis=1)).tolist()]


def report(study: Likeness, found: Sequence[Mapping[str, Any]]) -> str:
    """Return three tables: of tasks alone, of pairs of them, and of what models know."""
    singles, couples, models = [], [], []
    for number, of in enumerate(found):
        start, unseen = [study.family, str(number)], of["alone"]["given"] != of["alone"]["held out"]
        for what, held in of["alone"]["held out"].items():
            every = {name: of["alone"][name][what] for name in ("given", "generated")}
            cells = [f"{np.median(one):.3g}" for one in (held, *every.values())]
            for name, own in every.items():
                test = ks_2samp(held, own)
                told = f"{test.statistic:.2f} ({test.pvalue:.2g})"
                cells.append(told if unseen or name == "generated" else "–")
            singles.append([*start, what, *cells])
        for what, (real, made, between, p) in of["pairs"]["generated"].items():
            beside = of["pairs"]["given"][what]
            told = [f"{one:.2f}" for one in (real, made, between)]
            other = [f"{beside[2]:.2f}", f"{beside[3]:.2g}"] if unseen else ["–", "–"]
            couples.append([*start, what, *told, f"{p:.2g}", *other])
        whole, *each = of["known"]
        few = f"{sum(one < 0.5 for one in each)} of {len(each)}"
        models.append([*start, f"{whole:.2f}", few, " ".join(f"{one:.2g}" for one in of["places"])])
    head = ["family", "draw", ""]
    tests = ["KS of given ones (p)", "KS of generated ones (p)"]
    kinds = ["held out", "generated", "held out and generated", "p", "held out and given", "p"]
    knows = ["variance of given tasks explained", "tasks of which less than half is explained"]
    knows.append("spread of places, by dimension, in deviations of one")
    return "\n".join([
        table([*head, "median, held out", "given", "generated", *tests], singles),
        table([*head, *kinds], couples), table([*head[:2], *knows], models),
    ])  # fmt: skip
