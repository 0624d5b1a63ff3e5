"""Held-out errors of surrogates, what they must beat, and figures of every objective.

`cross_validate` returns what candidates claim of rows that they did not see, as `Claims`, and
`truths` what these rows did. From the two, `summary`, `tau_at`, `optimism` and
`divergence_summary` compute figures, `yardstick` the error of a constant that knows the round, and
`verdict` whether a surrogate is accepted. `surrogate_card` writes all of it into a card.
`write_verdicts` adds the figures of every objective to the card of a stored surrogate, and
`write_claim` what training its claimed best reached.
"""

import datetime
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.building.candidates import CANDIDATES, Candidate
from fedhpo_gym.building.surrogate_data import (
    MEASURES,
    FittingRows,
    FittingSample,
    FittingSource,
    FittingTable,
    prepare,
)
from fedhpo_gym.core.archive import add_to_card
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.core.identity import IMPORTED, Identity
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.multi_objective import count_pairs, tau_b
from fedhpo_gym.evaluation.records import Evaluations
from fedhpo_gym.objectives import NO_PRIVACY, OBJECTIVES
from fedhpo_gym.stored import surrogate_rows
from fedhpo_gym.stored.catalogue import list_samples, list_tables, open_sample, open_table
from fedhpo_gym.stored.health import LABELS, health_on
from fedhpo_gym.stored.surrogate import (
    CLAIM_RULE,
    CLAIMED,
    ENTRY,
    FORMAT,
    NUMBERS,
    Claim,
    HeldOut,
    Surrogate,
    held_on,
)
from fedhpo_gym.stored.surrogate_curves import DIVERGED, CurveModel, running_best
from fedhpo_gym.stored.table import ENDS, LACKS, Table

FOLDS = 10
LARGEST_SHARE, LOWEST_TAU = 0.5, 0.6
"""Of the yardstick's error of the loss, and of Kendall's tau: what a surrogate is accepted with."""

BEST_SHARE = 0.1
"""Of the held-out courses, those that are claimed best."""


@dataclass(frozen=True)
class Claims:
    """What is said of n courses at K rounds."""

    values: Floats  # (n, K, 2) best so far, in the order of `MEASURES`
    diverged: NDArray[np.bool_]  # (n, K) whether courses have diverged

    @classmethod
    def blank(cls, rows: FittingRows) -> "Claims":
        """Return claims to be filled in."""
        shape = rows.outputs.shape[:2]
        return cls(np.full((*shape, len(MEASURES)), np.nan), np.zeros(shape, np.bool_))

    def put(self, where: NDArray[np.int64], some: "Claims") -> None:
        """Fill in what is said of some courses."""
        self.values[where], self.diverged[where] = some.values, some.diverged


def folds_of(groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the fold of every row; rows of one group share a fold, folds are equally large."""
    distinct, group_of_row = np.unique(groups, return_inverse=True)
    return rng.permutation(np.arange(len(distinct)) % FOLDS)[group_of_row].astype(np.int64)


def truths(rows: FittingRows) -> Claims:
    """Return what courses really did; values are NaN at rounds that they were not trained for."""
    flat = rows.outputs.reshape(-1, rows.outputs.shape[2])
    weights = np.repeat(rows.weights, rows.outputs.shape[1], axis=0)
    values = surrogate_rows.objectives(flat[:, :-1], weights).reshape(*rows.outputs.shape[:2], -1)
    return Claims(values, rows.outputs[..., DIVERGED] >= 0.5)


def claims(model: CurveModel, rows: FittingRows) -> Claims:
    """Return what a model answers at the knots."""
    coefficients = model.coefficients(rows.inputs)
    losses = model.at_all_knots(coefficients, surrogate_rows.VALIDATION)
    best_knots = running_best(losses.T).T
    values = np.empty((*losses.shape, len(MEASURES)))
    weights = rows.weights
    for knot in range(losses.shape[1]):
        outputs = model.at_knots(coefficients, np.full(len(losses), knot))
        values[:, knot] = surrogate_rows.objectives(outputs[:, :-1], weights)
    chance = np.maximum.accumulate(model.at_all_knots(coefficients, DIVERGED), axis=1)
    best = np.take_along_axis(values, best_knots[..., None], axis=1)
    return Claims(best, chance >= 0.5)


def yardstick(rows: FittingRows, fold: NDArray[np.int64]) -> Floats:
    """Return (n, K, 2) errors of the mean of other folds at each round; NaN where there is none."""
    truth = truths(rows).values
    errors = np.empty_like(truth)
    for k in np.unique(fold):
        others = truth[fold != k]
        count = rows.trained[fold != k].sum(axis=0)[:, None]
        mean = np.nansum(others, axis=0) / np.where(count, count, np.nan)
        errors[fold == k] = np.abs(truth[fold == k] - mean)
    return errors


def cross_validate(
    candidates: Mapping[str, Candidate],
    rows: FittingRows,
    fold: NDArray[np.int64],
    progress: Callable[[str], object],
) -> dict[str, dict[str, dict[str, Claims]]]:
    """Return what is claimed of `train` and `test` rows, by candidate and variant.

    Of a training row, the claim of one of the models that saw it is kept.
    """
    claims_by_candidate: dict[str, dict[str, dict[str, Claims]]] = {name: {} for name in candidates}
    for k in np.unique(fold).tolist():
        inside, outside = np.flatnonzero(fold == k), np.flatnonzero(fold != k)
        prepared = prepare(rows[outside])
        for name, candidate in candidates.items():
            for variant, model in candidate.models(prepared).items():
                by_split = claims_by_candidate[name].setdefault(
                    variant, {split: Claims.blank(rows) for split in ("train", "test")}
                )
                by_split["test"].put(inside, claims(model, rows[inside]))
                by_split["train"].put(outside, claims(model, rows[outside]))
            progress(name)
    return claims_by_candidate


def kendall_tau(truth: Floats, claim: Floats, ranking: NDArray[np.int64]) -> float:
    """Return Kendall's tau-b of (n,) truth and claim, among courses of one (n,) ranking."""
    groups = np.unique(ranking[ranking >= 0]).tolist()
    return tau_b(
        [count_pairs(truth[ranking == group], claim[ranking == group]) for group in groups]
    )


def tau_at(rows: FittingRows, model_claims: Claims, knot: int = -1) -> float:
    """Return Kendall's tau of the validation loss at a round, of the courses that have it."""
    loss = MEASURES.index("log_val_loss")
    truth, claim = (each.values[:, knot, loss] for each in (truths(rows), model_claims))
    return kendall_tau(truth, claim, np.where(rows.trained[:, knot], rows.ranking, -1))


def optimism(rows: FittingRows, model_claims: Claims) -> dict[str, float]:
    """Return how far those claimed best fall short: the lowest predictions are the luckiest."""
    loss = MEASURES.index("log_val_loss")
    ranked = rows.trained[:, -1] & (rows.ranking >= 0)
    truth, claim = (each.values[ranked, -1, loss] for each in (truths(rows), model_claims))
    best_courses = np.argsort(claim, kind="stable")[: math.ceil(BEST_SHARE * len(claim))]
    claimed = claim[best_courses].mean()
    return {
        "courses": len(best_courses),
        "claimed": _round_digits(claimed),
        "above": _round_digits(truth[best_courses].mean() - claimed),
    }


def divergence_summary(rows: FittingRows, model_claims: Claims) -> dict[str, float]:
    """Return shares of courses that diverge by their end: in truth, claimed, and both."""
    last = rows.trained.sum(axis=1)[:, None] - 1
    truth, claim = (
        np.take_along_axis(each.diverged, last, axis=1)[:, 0]
        for each in (truths(rows), model_claims)
    )
    return {
        "share": _round_digits(truth.mean()),
        "claimed": _round_digits(claim.mean()),
        "both": _round_digits((truth & claim).mean()),
    }


def outcome_spread(rows: FittingRows) -> dict[str, float]:
    """Return the mean distance from the median over all courses and rounds."""
    values = truths(rows).values[rows.trained]
    distance = np.abs(values - np.median(values, axis=0)).mean(axis=0)
    return {measure: _round_digits(d) for measure, d in zip(MEASURES, distance, strict=True)}


def compression_summary(rows: FittingRows) -> dict[str, Any]:
    """Return how few numbers stand for curves, and the share of variance that this loses."""
    prepared = prepare(rows)
    basis = prepared.basis.reshape(len(prepared.basis), -1)
    lost = np.where(prepared.known, prepared.coefficients @ basis - prepared.curves, 0.0)
    curves = np.where(prepared.known, prepared.curves, 0.0)
    variance = max(float((curves**2).sum()), 1e-12)
    sizes = {
        "coefficients": len(basis),
        "of": basis.shape[1],
        "share_of_variance_lost": _round_digits(float((lost**2).sum()) / variance),
    }
    if prepared.clients is not None:
        sizes |= {
            "components_of_clients": len(prepared.clients),
            "client_outputs": prepared.clients.shape[1],
        }
    return sizes


def summary(errors: Floats, spread: Mapping[str, float]) -> dict[str, Any]:
    """Return what the card says of (..., 2) absolute errors, per measure; NaN does not count."""
    each = errors.reshape(-1, len(MEASURES))
    columns = each[~np.isnan(each).any(axis=1)].T
    return {
        measure: {
            "mae": _round_digits(column.mean()),
            "median": _round_digits(np.median(column)),
            "p90": _round_digits(np.percentile(column, 90)),
            "p99": _round_digits(np.percentile(column, 99)),
            "max": _round_digits(column.max()),
            **(
                {"mae_per_seed_spread": _round_digits(column.mean() / spread[measure])}
                if spread.get(measure)
                else {}
            ),
        }
        for measure, column in zip(MEASURES, columns, strict=True)
    }


def verdict(errors: Mapping[str, Any], constant: Mapping[str, float], tau: float) -> dict[str, Any]:
    """Return whether a surrogate is accepted, and by which figures."""
    share = errors["log_val_loss"]["mae"] / max(constant["log_val_loss"], 1e-12)
    return {
        "rule": f"error of log_val_loss at most {LARGEST_SHARE} of the yardstick's, and Kendall's "
        f"tau at least {LOWEST_TAU}",
        "share_of_yardstick": _round_digits(share),
        "kendall_tau": _round_digits(tau),
        "passed": bool(share <= LARGEST_SHARE and tau >= LOWEST_TAU),
    }


JUDGED = {name: one.compute for name, one in OBJECTIVES.items() if one.reads_clients}
"""What is measured, and how it is computed: all that is read off metrics of clients."""
NOTE = (
    "at full fidelity, of courses that the fit had not seen: the same recipe fitted without a "
    f"tenth of the configurations, {FOLDS} times; of losses, figures are of the logarithm"
)


def write_verdicts(card: Path) -> Path:
    """Measure the objectives of a stored surrogate, and write the figures onto its card."""
    add_to_card(card, FORMAT, {ENTRY: measured(Surrogate(card))})
    return card


def write_claim(card: Path, trained: float) -> Claim:
    """Write what training a surrogate's claimed best reaches onto its card."""
    surrogate = Surrogate(card)
    claimed = float(health_on(surrogate, "fedhpo-gym health --write")["optimum"]["val_loss"])
    claim = Claim(claimed, _round_digits(trained), held_on(surrogate.card)["val_loss"].spread)
    entry = {"of": surrogate.digest, "rule": CLAIM_RULE, **asdict(claim)}
    add_to_card(card, FORMAT, {CLAIMED: entry})
    return claim


def measured(surrogate: Surrogate) -> dict[str, object]:
    """Return what a card says of a surrogate's objectives."""
    source = _open_source_of(surrogate)
    rows = source.rows(FINAL_ROWS, stream(0, "surrogate_rows"))
    fold = folds_of(rows.configuration, stream(0, "surrogate_held_out"))
    model = surrogate.card["model"]
    predictions = np.full((len(rows), len(JUDGED)), np.nan)
    for k in np.unique(fold).tolist():
        inside, outside = np.flatnonzero(fold == k), np.flatnonzero(fold != k)
        fitted = CANDIDATES[model["candidate"]].models(prepare(rows[outside]))[model["variant"]]
        predictions[inside] = _predict_objectives(fitted, rows[inside], source)
    truth = _compute_objectives(rows.final, rows, source)
    ranking = np.where(rows.trained[:, -1], rows.ranking, -1)
    counted = ranking >= 0
    held = {
        name: asdict(_held_out_errors(truth[counted, j], predictions[counted, j], ranking[counted]))
        for j, name in enumerate(JUDGED)
    }
    return {"of": surrogate.digest, "courses": int(counted.sum()), "note": NOTE, "held_out": held}


def _open_source_of(surrogate: Surrogate) -> FittingSource:
    """Return what a surrogate was fitted on."""
    model = surrogate.card["model"]
    if model["candidate"] not in CANDIDATES:
        raise InvalidArgumentError(
            f"`card` must be that of a surrogate whose recipe is one of {list(CANDIDATES)}, got "
            f"{model['candidate']!r} on that of {surrogate.name}; fit it anew with "
            f"`{surrogate.card['fit_command']}`"
        )
    tables = (open_table(name) for name in list_tables())
    samples = (open_sample(name) for name in list_samples())
    for kind, sources in (("table", tables), ("sample", samples)):
        digest = surrogate.card.get(f"{kind}_sha256")
        for stored in sources if digest else ():
            if digest in stored.former:
                return FittingTable(stored) if isinstance(stored, Table) else FittingSample(stored)
    raise MissingDataError(
        f"what {surrogate.name} was fitted on is not stored here; build it with "
        f"`{surrogate.card['source_command']}`"
    )


def _predict_objectives(model: CurveModel, rows: FittingRows, source: FittingSource) -> Floats:
    """Return (n, objectives) that a model answers at the last knot."""
    coefficients = model.coefficients(rows.inputs)
    best = running_best(model.at_all_knots(coefficients, surrogate_rows.VALIDATION).T)[-1]
    outputs, metrics = model.at_knots(coefficients, best), np.empty_like(rows.final)
    for seed in np.unique(rows.seed).tolist():
        rows_of_seed = np.flatnonzero(rows.seed == seed)
        # The last output says whether the course diverged.
        metrics[rows_of_seed] = surrogate_rows.to_metrics(
            outputs[rows_of_seed, :-1], rows.seed_weights[[seed]]
        )
    return _compute_objectives(metrics, rows, source)


def _compute_objectives(
    metrics: NDArray[np.floating], rows: FittingRows, source: FittingSource
) -> Floats:
    """Return (n, objectives) of metrics at the last round; NaN where it was not trained."""
    results = np.full((len(rows), len(JUDGED)), np.nan)
    last = np.full(len(rows), source.stored.rounds[-1])
    for seed in np.unique(rows.seed[rows.trained[:, -1]]).tolist():
        rows_of_seed = np.flatnonzero(rows.trained[:, -1] & (rows.seed == seed))
        answers = Evaluations(
            metrics[rows_of_seed][:, None],
            source.stored.num_samples[[seed]],
            last[rows_of_seed][:, None],
            np.zeros((len(rows_of_seed), 1), np.bool_),
            np.array([source.stored.seeds[seed]]),
            {"round": last[rows_of_seed]},
        )
        for j, (name, compute) in enumerate(JUDGED.items()):
            values = compute(answers, NO_PRIVACY)
            loss = name.endswith("_loss")
            cut_off = np.clip(values, surrogate_rows.SMALLEST_LOSS, surrogate_rows.LARGEST_LOSS)
            results[rows_of_seed, j] = np.log(cut_off) if loss else values
    return results


def _held_out_errors(truth: Floats, predictions: Floats, ranking: NDArray[np.int64]) -> HeldOut:
    error = predictions - truth
    tau = kendall_tau(truth, predictions, ranking)
    return HeldOut(
        mae=_round_digits(np.abs(error).mean()),
        bias=_round_digits(error.mean()),
        spread=_round_digits(truth.std()),
        kendall_tau=None if np.isnan(tau) else _round_digits(tau),
    )


def _round_digits(value: float | np.floating) -> float:
    return float(f"{value:.4g}")


MAX_BYTES = 400_000
"""Largest model that is stored: surrogates travel inside the package."""
SELECTION_ROWS = 4_000
FINAL_ROWS = 12_000
"""Most courses that candidates are compared on, and that the chosen one is fitted on."""

NEARLY = 1.05
"""An error up to so many times the lowest is no reason to store or compute more."""

COPIED = (
    "data_fingerprint",
    "data_licence",
    "data_citation",
    "problem_citation",
    "licence",
    LABELS,
    LACKS,
    ENDS,
)


def surrogate_card(
    source: FittingSource,
    rows: FittingRows,
    candidates: Mapping[str, Mapping[str, Any]],
    identity: Identity | None = None,
    candidate: str | None = None,
) -> dict[str, Any]:
    """Return the card of a surrogate, but for the chosen model and its errors."""
    stored, identity = source.stored, identity or source.stored.identity
    selected = len(rows) if len(candidates) == 1 else min(SELECTION_ROWS, len(rows))
    note = {"note": "fitted on a random subsample: errors are larger than those of all rows"}
    return {
        **identity.to_card(),
        "fitted_on": source.kind,
        f"{source.kind}_sha256": stored.sha256,
        **({NUMBERS: stored.digest} if IMPORTED in stored.card else {}),
        "num_configurations": source.num_configurations,
        "model": {
            "inputs": list(source.inputs.names),
            "outputs": "see fedhpo_gym.stored.surrogate_curves",
            "rounds": list(stored.rounds),
            "compression": compression_summary(rows),
        },
        "space": source.inputs.space.to_dict(),
        "fidelity_space": source.fidelity_space.to_dict(),
        "seeds": list(stored.seeds),
        "num_samples": stored.num_samples.tolist(),
        "seed_spread": source.seed_spread,
        "outcome_spread": outcome_spread(rows),
        "comparison": {
            "rows": selected,
            "folds": FOLDS,
            **(note if selected < len(rows) else {}),
            "rule": f"of those up to {MAX_BYTES} bytes whose log_val_loss mae by configuration is "
            f"at most {NEARLY} times the lowest, the smallest",
            "candidates": dict(candidates),
        },
        **{key: stored.card[key] for key in COPIED if key in stored.card},
        "missing": stored.card.get("missing", ""),
        "fit_command": f"fedhpo-gym surrogate {identity.arguments}"
        + (f" --candidate {candidate}" if candidate else ""),
        "source_command": stored.card["build_command"],
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "software": {name: version(name) for name in ("numpy", "scikit-learn")},
    }
