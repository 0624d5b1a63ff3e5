"""Held-out figures of every objective that a surrogate could answer."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.building.candidates import CANDIDATES
from fedhpo_gym.building.surrogate_data import FittingRows, prepare
from fedhpo_gym.building.surrogate_sources import FittingSample, FittingSource, FittingTable
from fedhpo_gym.building.validation import (
    FOLDS,
    compression_summary,
    folds_of,
    kendall_tau,
    outcome_spread,
)
from fedhpo_gym.core.archive import add_to_card
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Evaluations
from fedhpo_gym.objectives import NO_PRIVACY, OBJECTIVES
from fedhpo_gym.stored.catalogue import list_samples, list_tables, open_sample, open_table
from fedhpo_gym.stored.health import LABELS, health_on
from fedhpo_gym.stored.sample import ENDS
from fedhpo_gym.stored.surrogate import FORMAT, Surrogate
from fedhpo_gym.stored.surrogate_curves import CurveModel, running_best
from fedhpo_gym.stored.surrogate_outputs import LARGEST_LOSS, SMALLEST_LOSS, VALIDATION, to_metrics
from fedhpo_gym.stored.surrogate_verdicts import (
    CLAIM_RULE,
    CLAIMED,
    ENTRY,
    Claim,
    HeldOut,
    held_on,
    to_card,
)
from fedhpo_gym.stored.table import Table

Floats = NDArray[np.float64]
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
    claim = Claim(claimed, _short(trained), held_on(surrogate.card)["val_loss"].spread)
    entry = {"of": surrogate.digest, "rule": CLAIM_RULE, **asdict(claim)}
    add_to_card(card, FORMAT, {CLAIMED: entry})
    return claim


def measured(surrogate: Surrogate) -> dict[str, object]:
    """Return what a card says of a surrogate's objectives."""
    source = _source_of(surrogate)
    rows = source.rows(FINAL_ROWS, stream(0, "surrogate_rows"))
    fold = folds_of(rows.configuration, stream(0, "surrogate_held_out"))
    model = surrogate.card["model"]
    said = np.full((len(rows), len(JUDGED)), np.nan)
    for k in np.unique(fold).tolist():
        inside, outside = np.flatnonzero(fold == k), np.flatnonzero(fold != k)
        fitted = CANDIDATES[model["candidate"]].models(prepare(rows[outside]))[model["variant"]]
        said[inside] = _claimed(fitted, rows[inside], source)
    truth = _values(rows.final, rows, source)
    ranking = np.where(rows.trained[:, -1], rows.ranking, -1)
    counted = ranking >= 0
    held = {
        name: _held(truth[counted, j], said[counted, j], ranking[counted])
        for j, name in enumerate(JUDGED)
    }
    return {
        "of": surrogate.digest,
        "courses": int(counted.sum()),
        "note": NOTE,
        "held_out": to_card(held),
    }


def _source_of(surrogate: Surrogate) -> FittingSource:
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
    for kind, known in (("table", tables), ("sample", samples)):
        wanted = surrogate.card.get(f"{kind}_sha256")
        for stored in known if wanted else ():
            if wanted in stored.former:
                return FittingTable(stored) if isinstance(stored, Table) else FittingSample(stored)
    raise MissingDataError(
        f"what {surrogate.name} was fitted on is not stored here; build it with "
        f"`{surrogate.card['source_command']}`"
    )


def _claimed(model: CurveModel, rows: FittingRows, source: FittingSource) -> Floats:
    """Return (n, objectives) that a model answers at the last knot."""
    coefficients = model.coefficients(rows.inputs)
    best = running_best(model.at_all_knots(coefficients, VALIDATION).T)[-1]
    outputs, metrics = model.at_knots(coefficients, best), np.empty_like(rows.final)
    for seed in np.unique(rows.seed).tolist():
        own = np.flatnonzero(rows.seed == seed)
        # The last output says whether the course diverged.
        metrics[own] = to_metrics(outputs[own, :-1], rows.seed_weights[[seed]])
    return _values(metrics, rows, source)


def _values(metrics: NDArray[np.floating], rows: FittingRows, source: FittingSource) -> Floats:
    """Return (n, objectives) of metrics at the last round; NaN where it was not trained."""
    found = np.full((len(rows), len(JUDGED)), np.nan)
    last = np.full(len(rows), source.stored.rounds[-1])
    for seed in np.unique(rows.seed[rows.trained[:, -1]]).tolist():
        own = np.flatnonzero(rows.trained[:, -1] & (rows.seed == seed))
        answers = Evaluations(
            metrics[own][:, None],
            source.stored.num_samples[[seed]],
            last[own][:, None],
            np.zeros((len(own), 1), np.bool_),
            np.array([source.stored.seeds[seed]]),
            {"round": last[own]},
        )
        for j, (name, compute) in enumerate(JUDGED.items()):
            values = compute(answers, NO_PRIVACY)
            loss = name.endswith("_loss")
            cut_off = np.clip(values, SMALLEST_LOSS, LARGEST_LOSS)
            found[own, j] = np.log(cut_off) if loss else values
    return found


def _held(truth: Floats, said: Floats, ranking: NDArray[np.int64]) -> HeldOut:
    error = said - truth
    tau = kendall_tau(truth, said, ranking)
    return HeldOut(
        mae=_short(np.abs(error).mean()),
        bias=_short(error.mean()),
        spread=_short(truth.std()),
        kendall_tau=None if np.isnan(tau) else _short(tau),
    )


def _short(number: float | np.floating) -> float:
    return float(f"{number:.4g}")


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
    ENDS,
)


def surrogate_card(
    source: FittingSource,
    rows: FittingRows,
    candidates: Mapping[str, Mapping[str, Any]],
    identity: Identity | None = None,
    wanted: str | None = None,
) -> dict[str, Any]:
    """Return the card of a surrogate, but for the chosen model and its errors."""
    stored, identity = source.stored, identity or source.stored.identity
    selected = len(rows) if len(candidates) == 1 else min(SELECTION_ROWS, len(rows))
    note = {"note": "fitted on a random subsample: errors are larger than those of all rows"}
    return {
        **identity.to_card(),
        "fitted_on": source.kind,
        f"{source.kind}_sha256": stored.sha256,
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
        + (f" --candidate {wanted}" if wanted else ""),
        "source_command": stored.card["build_command"],
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "software": {name: version(name) for name in ("numpy", "scikit-learn")},
    }
