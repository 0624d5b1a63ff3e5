"""What an optimizer can hope for on stored numbers, and how hard they are: figures of them alone.

All of validation loss, of the mean over seeds where nothing else is said. A *cell* is a
configuration at a fidelity. *Full fidelity* is the last round and the highest client sample rate.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core import archive
from fedhpo_gym.core.checks import as_number, coerce, validate_call
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.evaluation.multi_objective import kendall
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.space.per_client import base_name
from fedhpo_gym.stored import lattice, surrogate, table
from fedhpo_gym.stored.catalogue import find_stored, list_names
from fedhpo_gym.stored.meta_data import LOSS, REPEATED, MetaData
from fedhpo_gym.stored.pool import Pool
from fedhpo_gym.stored.table import FORMAT
from fedhpo_gym.tasks import task_of

LABELS = "label_frequencies"
"""Entry of a card: what the frequencies of the labels, as a prediction, reach."""
SEED_LABELS = "seed_label_frequencies"
"""Entry of a card: the same by seed, because another seed is another split."""
HEALTH = "health"
"""Entry of a card: what `health_of` returned."""
SURVIVAL = "survival"
"""Entry of a card: what `fedhpo-gym health ID --survival` found by training the best anew."""
SURVIVES = 0.01
"""Relative deviation from the stored loss up to which a cell survives."""
MEANS = ("val_loss", "test_loss", "val_accuracy", "test_accuracy")
"""What is stated of an optimum, and of the label frequencies."""
NEAR = 0.01
"""A loss is near the optimum if it exceeds it by no more than this share of it."""
SMALLEST_LOSS = 1e-6
"""Losses below are taken for this one before a logarithm."""
DIGITS = 5


@validate_call
def health_of(stored: lattice.StoredNumbers) -> dict[str, Any]:
    """Return the health of stored numbers, as JSON data; docs/problems.md has the figures.

    A figure that cannot be had is None, and `missing` says why.
    """
    land = lattice.landscape_of(stored)
    losses = land.losses[-1, land.even, -1]
    finite, labels = losses[np.isfinite(losses).all(axis=1)], labels_on(stored)
    again = stored.repeated_losses() if isinstance(stored, Pool) else losses
    figures: dict[str, Any] = {
        "of": stored.digest,
        "lattice": {
            "exact": land.exact,
            "grid": {d.name: list(d.grid) for d in land.space.dimensions},
            "configurations": land.on_grid,
            "draws": len(land.configurations) - land.on_grid,
            "rounds": list(land.rounds),
            "client_sample_rates": list(land.rates),
        },
        **_optimum(stored, land),
        "losing": None if labels is None else _shares(land, land.means > labels["val_loss"]),
        "near_optimum": _shares(land, land.means <= (1.0 + NEAR) * land.means.min()),
        "diverging": _shares(land, np.isinf(land.means)),
        "seed_noise": _noise(again),
        "spread": float(_logs(finite.mean(axis=1)).std()) if len(finite) else None,
        "kendall": _agreements(land, again),
        "importance": _importance(land),
    }
    figures["missing"] = dict(_reasons(stored, land, figures))
    if not land.exact and not np.isinf(land.means).any():
        figures["diverging"] = None
    return _rounded(figures)  # type: ignore[no-any-return]


@validate_call
def labels_on(stored: lattice.StoredNumbers) -> Mapping[str, float] | None:
    """Return what the label frequencies reach, as a card states it; None where it does not."""
    frequencies: Mapping[str, float] | None = stored.card.get(LABELS)
    if isinstance(stored, Pool):
        frequencies = stored.card.get(SEED_LABELS, {}).get(str(stored.seeds[0]), frequencies)
    if frequencies is not None and not frequencies.keys() >= {*MEANS}:
        raise DamagedDataError(
            f"the card of {stored.card['name']}: `{LABELS}` must hold {', '.join(MEANS)}, got "
            f"{', '.join(frequencies) or 'nothing'}; delete it and make it again"
        )
    return frequencies


def agree(first: Any, other: Any) -> bool:
    """Return whether two healths are the same, up to what processors round differently."""
    if isinstance(first, dict) and isinstance(other, dict):
        return first.keys() == other.keys() and all(agree(first[k], other[k]) for k in first)
    if isinstance(first, list) and isinstance(other, list):
        return len(first) == len(other) and all(map(agree, first, other))
    if isinstance(first, float) and isinstance(other_real := as_number(other), float | int):
        return math.isclose(first, other_real, rel_tol=1e-3, abs_tol=1e-6)
    return bool(first == other)


def _optimum(stored: lattice.StoredNumbers, land: lattice.Landscape) -> dict[str, Any]:
    configuration, fidelity = land.optimum()
    if isinstance(stored, Pool):  # the rate may be one that this configuration was not trained at
        configuration, fidelity = stored.nearest_query(configuration, fidelity)
    answer = stored.evaluate(configuration, fidelity, stored.seeds)
    names = [(split, metric) for metric in ("loss", "accuracy") for split in ("val", "test")]
    lacks = stored.card.get(table.LACKS, {})
    means = {
        f"{split}_{metric}": math.nan
        if f"{split}_{metric}" in lacks
        else answer.mean(split, metric)
        for split, metric in names
    }
    return {
        "optimum": {
            "configuration": dict(configuration),
            "round": fidelity.round,
            "client_sample_rate": fidelity.client_sample_rate,
            **means,
        },
        "edges": edges(land, configuration),
    }


def edges(land: lattice.Landscape, configuration: Mapping[str, Value]) -> dict[str, str]:
    """Return which hyperparameters are "lowest" or "highest" of three or more grid points."""
    ends = {}
    for dimension in land.space.dimensions:
        if dimension.kind == "category" or dimension.name not in configuration:
            continue
        at, last = _nearest(dimension, configuration[dimension.name]), len(dimension.grid) - 1
        if last >= 2 and at in {0, last}:
            ends[dimension.name] = "highest" if at else "lowest"
    return ends


def _nearest(dimension: Dimension, value: Value) -> int:
    scale = np.log if dimension.log else np.asarray
    return int(np.argmin(np.abs(scale(np.array(dimension.grid, float)) - scale(float(value)))))


def _shares(land: lattice.Landscape, is_member: NDArray[np.bool_]) -> dict[str, float]:
    """Return the share of all cells of the grid, and of its configurations at full fidelity."""
    is_member = is_member[:, land.even]
    return {"cells": float(is_member.mean()), "full_fidelity": float(is_member[-1, :, -1].mean())}


def _logs(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(losses, SMALLEST_LOSS))


def _noise(losses: NDArray[np.float64]) -> float | None:
    """Return the root mean square, over configurations, of the deviation between seeds."""
    finite = losses[np.isfinite(losses).all(axis=1)]
    if losses.shape[1] < 2 or not len(finite):
        return None
    return float(np.sqrt(_logs(finite).var(axis=1, ddof=1).mean()))


def _agreements(land: lattice.Landscape, seeds: NDArray[np.float64]) -> dict[str, Any]:
    """Return Kendall's tau between an early and the last round, two rates, and seeds.

    Shapes: `seeds` (configurations, seeds) losses at full fidelity.
    """
    even = land.means[:, land.even]
    early = max((r for r in land.rounds[:-1] if r <= lattice.EARLY), default=land.rounds[0])
    pairs = itertools.combinations(range(seeds.shape[1]), 2)
    taus = [kendall(seeds[:, a], seeds[:, b]) for a, b in pairs if len(seeds) > 1]
    return {
        "rounds": {
            "of": [early, land.rounds[-1]],
            "tau": kendall(even[land.rounds.index(early), :, -1], even[-1, :, -1]),
        },
        "client_sample_rates": {
            "of": [land.rates[0], land.rates[-1]],
            "tau": kendall(even[-1, :, 0], even[-1, :, -1]) if len(land.rates) > 1 else None,
        },
        "seeds": {"pairs": len(taus), "tau": _mean_of_known(taus)},
    }


def _mean_of_known(taus: Sequence[float | None]) -> float | None:
    finite = [tau for tau in taus if tau is not None]
    return float(np.mean(finite)) if finite else None


def _importance(land: lattice.Landscape) -> dict[str, dict[str, float]] | None:
    """Return shares of the variance of the log loss; what diverged counts as the largest."""
    if not land.on_grid:
        return None
    losses = land.means[-1, : land.on_grid, -1]
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return None
    logs = _logs(np.minimum(losses, finite.max())).reshape(land.space.grid_shape)
    shares = variance_shares(logs)
    if shares is None:
        return None
    return {
        name: {"alone": float(alone), "total": float(total)}
        for name, (alone, total) in zip(land.space.names, shares, strict=True)
    }


def _reasons(
    stored: lattice.StoredNumbers, land: lattice.Landscape, figures: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the figures that are not there, and why."""
    reasons = []
    if stored.card.get(LABELS) is None:
        reason = "the card does not say what the label frequencies reach, and that needs the data"
        reasons.append(("losing", reason))
    if not land.exact and not np.isinf(land.means).any():
        reason = "no answer says so: diverged courses are losses like others to this surrogate"
        reasons.append(("diverging", reason))
    if figures["seed_noise"] is None and len(stored.seeds) < 2:
        reason = "no configuration" if isinstance(stored, Pool) else "there is one seed"
        reason += " was trained under all seeds" if isinstance(stored, Pool) else ""
        reasons.append(("seed_noise", reason))
    if figures["importance"] is None:
        reason = f"the whole grid of {land.space.grid_size} configurations was not asked"
        reason = "a pool is no grid" if isinstance(stored, Pool) else reason
        reasons.append(("importance", "all losses are equal" if land.on_grid else reason))
    return reasons


def _rounded(value: Any) -> Any:
    """Return JSON data with figures of few digits; what is no number is None."""
    if isinstance(value, dict):
        exact = ("lattice", "configuration", "of")
        return {k: v if k in exact else _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def variance_shares(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return each axis's share of the variance, alone and with all its interactions: (axes, 2).

    Exact on a complete grid whose points weigh the same (Hooker, 2007; Hutter, Hoos and
    Leyton-Brown, 2014). Alone: Var(E[f | x_i]) / Var(f). With interactions: 1 - Var(E[f | all but
    x_i]) / Var(f). These are Sobol's first-order and total indices.
    """
    total = values.var()
    if not total > 0:
        return None
    axes = range(values.ndim)
    shares = []
    for axis in axes:
        alone = values.mean(axis=tuple(a for a in axes if a != axis))
        shares.append((alone.var(), total - values.mean(axis=axis).var()))
    return np.asarray(np.clip(np.array(shares) / total, 0.0, 1.0))


MOST_EDGES = 1
"""Hyperparameters whose optimum may lie at an edge of the grid."""
MOST_NOISE = 1.0
"""Spread of seeds, as a share of that of configurations, from which seeds decide."""
INERT = 0.02
"""A hyperparameter with a smaller share of the variance, interactions included, is not worth it."""


def faults(health: Mapping[str, Any], labels: Mapping[str, float] | None) -> list[str]:
    """Return in a few words what makes a problem degenerate; empty where nothing does."""
    reasons = []
    if labels is not None and not health["optimum"]["val_loss"] < labels["val_loss"]:
        reasons.append("optimum loses to the label frequencies")
    if len(health["edges"]) > MOST_EDGES:
        reasons.append("optimum at more than one edge")
    noise, spread = health["seed_noise"], health["spread"]
    if noise is not None and spread and noise >= MOST_NOISE * spread:
        reasons.append("seeds differ more than configurations")
    return reasons


def unimportant(health: Mapping[str, Any]) -> list[str]:
    """Return the hyperparameters that hardly matter, even in interactions."""
    importance = health["importance"] or {}
    return [name for name, share in importance.items() if share["total"] < INERT]


KINDS: Mapping[str, int] = {
    ".table.json": FORMAT,
    f"{surrogate.SUFFIX}.json": surrogate.FORMAT,
    f"{table.SUFFIX}.json": FORMAT,
}
"""How the names of cards end that have a health, and their format."""
ANY = "*"
"""Stands for every name in a rule."""
_SHARES = {"cells": float, "full_fidelity": float}
_FIGURES: Mapping[str, Any] = {
    "of": str,
    "lattice": {
        "exact": bool,
        "grid": Mapping[str, Sequence[Value]],
        "configurations": int,
        "draws": int,
        "rounds": Sequence[int],
        "client_sample_rates": Sequence[float],
    },
    "optimum": {
        "configuration": Mapping[str, Value],
        "round": int,
        **dict.fromkeys(("client_sample_rate", MEANS[0]), float),
        **dict.fromkeys(MEANS[1:], float | None),
    },
    "edges": Mapping[str, Literal["lowest", "highest"]],
    "losing": (_SHARES, None),
    "near_optimum": _SHARES,
    "diverging": (_SHARES, None),
    "seed_noise": float | None,
    "spread": float | None,
    "kendall": {
        "rounds": {"of": Sequence[int], "tau": float | None},
        "client_sample_rates": {"of": Sequence[float], "tau": float | None},
        "seeds": {"pairs": int, "tau": float | None},
    },
    "importance": ({ANY: {"alone": float, "total": float}}, None),
    "missing": Mapping[str, str],
}
"""The figures of a health, and the types of what they hold."""
_SURVIVAL: Mapping[str, Any] = {
    "of": str,
    **dict.fromkeys(("draws", "cells", "surviving"), int),
    "perturbation": float,
    "optimum": dict.fromkeys(("stored", "trained", "lowest", "highest"), float),
    "moved": float,
    "seeds": float | None,
}


def health_cards() -> list[Path]:
    """Return the cards of all tables, surrogates and pools that can be opened, by kind and name."""
    paths = ((find_stored(name, ending)) for ending in KINDS for name in list_names(ending))
    return [card for card in paths if card is not None]


def open_stored(card: Path) -> lattice.StoredNumbers:
    """Open the table, the surrogate or the pool of a card."""
    if card.name.endswith(f"{table.SUFFIX}.json"):
        return Pool(table.Sample(card).require_installed())
    return table.Table(card) if card.name.endswith(".table.json") else surrogate.Surrogate(card)


@validate_call
def write_health(card: Path, labels: Mapping[str, Any] | None = None) -> Path:
    """Compute the health of stored numbers, and write it onto their card, whose digest stays.

    Raises DamagedDataError for a damaged card or arrays, OSError for a card that is not writable.
    """
    format_version = next(
        (kind for ending, kind in KINDS.items() if card.name.endswith(ending)), None
    )
    if format_version is None:
        raise InvalidArgumentError(f"`card` must end in one of {list(KINDS)}, got {card.name!r}")
    if labels:
        archive.add_to_card(card, format_version, labels)
    archive.add_to_card(card, format_version, {HEALTH: health_of(open_stored(card))})
    return card


@validate_call
def health_on(stored: lattice.StoredNumbers, command: str) -> Mapping[str, Any]:
    """Return the health that a card states, of these very numbers."""
    health: Mapping[str, Any] | None = stored.card.get(HEALTH)
    if health is None or health.get("of") != stored.digest:
        what = "states no health" if health is None else "states the health of other numbers"
        raise DamagedDataError(f"the card of {stored.card['name']} {what}; run `{command}`")
    return _stated(stored, HEALTH, _FIGURES, command)


def survival_on(stored: lattice.StoredNumbers) -> Mapping[str, Any] | None:
    """Return the survival of the best cells from a card; None if it has none of these numbers."""
    survival = stored.card.get(SURVIVAL)
    if survival is None or survival.get("of") != stored.digest:
        return None
    return _stated(stored, SURVIVAL, _SURVIVAL, "fedhpo-gym health ID --survival --write")


def _stated(
    stored: lattice.StoredNumbers, name: str, rule: Mapping[str, Any], command: str
) -> Mapping[str, Any]:
    try:
        return _figures(name, stored.card[name], rule)  # type: ignore[no-any-return]
    except InvalidArgumentError as error:
        raise DamagedDataError(
            f"the card of {stored.card['name']}: {error}; run `{command}`"
        ) from error


def _figures(name: str, value: Any, rule: Any) -> Any:
    """Return what a rule knows of a value, if it has the types of the rule."""
    if isinstance(rule, tuple):
        return None if value is None else _figures(name, value, rule[0])
    if not isinstance(rule, Mapping):
        return coerce(name, value, rule)
    held = coerce(name, value, Mapping[str, Any])
    rules = dict.fromkeys(held, rule[ANY]) if ANY in rule else rule
    if missing := sorted(rules.keys() - held.keys()):
        raise InvalidArgumentError(f"`{name}` must hold {', '.join(rules)}; it lacks {missing}")
    return {key: _figures(f"{name}.{key}", held[key], one) for key, one in rules.items()}


DRAWS = 2_048
TRIALS = (5, 10, 25, 50)
NEAR_BEST = 0.05
"""A configuration is near the best if it lacks no more of what is to gain than this share."""
TOP = 0.1
"""Share of the configurations, the best ones, whose seeds say how much a seed moves."""
FEWEST_TOP = 6
"""The fewest of these: under three seeds their error is known within a factor of two."""
CONTEST = (4.0, 10.0)
"""Standard errors of seeds that random search leaves after 25 trials, and that tuning gains over
the usual configuration, in a contest: at least."""
CONTEST_LEFT = 0.01
"""Share of (guess - best) that it leaves then, at least: a surrogate may give all its best
configurations equal seeds, and any gain is large in units of no deviation."""

USUAL: Mapping[str, float] = {
    "learning_rate": 0.1,
    "batch_size": 32,
    "step_size": 1,
    "server_learning_rate": 1.0,
    "rate_decay": 1.0,
    "clip_norm": 1e9,
    "w_clip": 1e9,
    "update_clip": 1.0,
}
"""Default values, clipped to the range of a space. Any other hyperparameter gets its lowest value,
which switches it off. A bound on updates that are noised is the exception: it cannot be off."""


@dataclass(frozen=True)
class Difficulty:
    """How hard a problem is."""

    configurations: int  # number of evaluated configurations
    guess: float  # loss of the label frequencies as a prediction
    best: float  # lowest mean over seeds
    usual: float  # mean of the default configuration
    seed: float  # standard error by seeds among the best, see `seed_error`; NaN of one seed
    # Random trials -> mean of their best, minus `best`; NaN for more trials than configurations.
    left: Mapping[int, float]
    near: float  # share of the configurations within `NEAR_BEST` of guess - best
    useless: float  # share of those that are no better than the guess, or diverge

    @property
    def gain(self) -> float:
        """Standard errors of seeds that tuning gains over the usual configuration; NaN of none."""
        return (self.usual - self.best) / self.seed if self.seed > 0 else math.nan

    def scaled(self, trials: int) -> tuple[float, float, float]:
        """Return what is left, over guess - best, over usual - best, and in errors of seeds."""
        scales = (self.guess - self.best, self.usual - self.best, self.seed)
        first, second, third = (self.left[trials] / s if s > 0 else math.nan for s in scales)
        return first, second, third

    @property
    def is_contest(self) -> bool | None:
        """Whether optimizers have something to do here; None where what decides is not known."""
        share, _, deviations = self.scaled(25)
        figures = ((share, CONTEST_LEFT), (deviations, CONTEST[0]), (self.gain, CONTEST[1]))
        if self.guess <= self.best or any(value < least for value, least in figures):
            return False  # a comparison with NaN is false
        return None if any(math.isnan(value) for value, _ in figures) else True


def difficulty_of(stored: lattice.StoredNumbers) -> Difficulty:
    """Return how hard the problem of stored numbers is."""
    labels = labels_on(stored)
    guess = float(labels["val_loss"]) if labels else task_of(stored.identity).chance_loss
    if isinstance(stored, Pool):
        return _difficulty_of_pool(stored, guess)
    exact = all(d.values is not None for d in stored.space.dimensions)
    space = stored.space if exact else lattice.asked_space(stored)
    draws, default = (
        lattice.asked_columns(space, DRAWS, "difficulty"),
        space.columns_of([default_configuration(space)]),
    )
    columns = {name: np.concatenate([draws[name], default[name]]) for name in space.names}
    fidelity = Fidelity(
        int(stored.fidelity_space["round"].high),
        float(stored.fidelity_space["client_sample_rate"].high),
    )
    return difficulty_from(lattice.losses_at(stored, columns, fidelity), guess)


def _difficulty_of_pool(pool: Pool, guess: float) -> Difficulty:
    """Return how hard a pool is; the usual configuration is the nearest that was trained."""
    fidelity = {d.name: np.array([d.high]) for d in pool.fidelity_space.dimensions}
    default = pool.space.columns_of([default_configuration(pool.space)])
    [[nearest, *_]] = pool.places({**default, **fidelity})
    losses = lattice.landscape_of(pool).losses[-1, :, -1]
    difficulty = difficulty_from(np.append(losses, losses[[nearest]], axis=0), guess)
    again = pool.repeated_losses()
    return replace(difficulty, seed=seed_error(again) * math.sqrt(again.shape[1]))


def difficulty_in_pool(data: MetaData, task: int) -> Difficulty:
    """Return how hard a task of FedHPO-B is, whose values are of one seed, not means.

    What a seed does is estimated where several are, of the best tenth of every tenth configuration.
    """
    loss = data.objectives.index(LOSS)
    pool_losses = data.values[task, :, -1, -1, loss, None]
    difficulty = difficulty_from(
        np.append(pool_losses, [[math.nan]], axis=0), float(data.label_entropy[task])
    )
    seeds = data.arrays["values"][None, task, ::REPEATED], data.arrays["repeats"][task]
    again = np.concatenate(seeds)[:, :, -1, -1, loss].T.astype(np.float64)
    return replace(difficulty, seed=seed_error(again) * math.sqrt(again.shape[1]))


def difficulty_from(losses: NDArray[np.float64], guess: float) -> Difficulty:
    """Return how hard a problem is, of (configurations + 1, seeds) losses."""
    *means, default = losses.mean(axis=1)
    ranked = np.sort(np.array(means))
    best = float(ranked[0])
    # A loss above a guess has taught nothing, however far above: it counts as the guess.
    worst = guess if best < guess else math.inf
    capped = np.minimum(ranked, worst)
    return Difficulty(
        configurations=len(ranked),
        guess=guess,
        best=best,
        usual=min(float(default), worst),
        seed=seed_error(losses[:-1]),
        left={k: best_of(capped, k) - best if k <= len(ranked) else math.nan for k in TRIALS},
        near=float((ranked <= best + NEAR_BEST * (guess - best)).mean()),
        useless=float((ranked >= guess).mean()),
    )


def best_of(losses: NDArray[np.float64], trials: int) -> float:
    """Return the expected lowest of draws with replacement from losses in ascending order."""
    count = len(losses)
    above = (np.arange(count, -1, -1) / count) ** trials
    return float((losses * -np.diff(above)).sum())


def default_configuration(space: SearchSpace) -> dict[str, Value]:
    """Return the default configuration: plain federated averaging, as far as it is legal.

    This is a learning rate of 0.1, minibatches of 32, one local epoch and a server learning rate of
    1. All other hyperparameters have their lowest value, and categories their first.
    """
    configuration: dict[str, Value] = {}
    for dimension in space.dimensions:
        if not dimension.is_active(configuration):
            continue
        usual_value = USUAL.get(base_name(dimension.name))
        configuration[dimension.name] = _nearest_value(dimension, usual_value)
    return configuration


def _nearest_value(dimension: Dimension, target: float | None) -> Value:
    if dimension.kind == "category" or target is None:
        return dimension.decode(-1.0)
    if dimension.values is None:
        return dimension.validate(min(max(target, dimension.low), dimension.high))
    scale = math.log if target > 0 and dimension.low > 0 else float
    return min(dimension.grid, key=lambda point: abs(scale(float(point)) - scale(target)))


def seed_error(losses: NDArray[np.float64]) -> float:
    """Return the standard error of a mean over seeds, of (configurations, seeds) losses.

    What a seed does to all configurations alike cancels in every comparison and does not count:
    what is left are the residuals of an additive model of configuration and seed, whose root mean
    square is divided by the root of the number of seeds, because values are means over them.
    The best tenth counts, but at least `FEWEST_TOP`, and NaN is returned where these would be more
    than half: of two configurations under three seeds, the error is off by a factor of six.
    """
    num_best = max(int(TOP * len(losses)), FEWEST_TOP)
    if 2 * num_best > len(losses):
        return math.nan
    ranked = losses[np.argsort(losses.mean(axis=1))][:num_best]
    top = ranked[np.isfinite(ranked).all(axis=1)]
    free, seeds = (len(top) - 1) * (top.shape[1] - 1), top.shape[1]
    if free < 1:
        return math.nan
    residuals = top - top.mean(axis=0) - top.mean(axis=1, keepdims=True) + top.mean()
    return float(np.sqrt((residuals**2).sum() / free / seeds))
