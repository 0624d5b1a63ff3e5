"""Fits the surrogate of a table or sample: compares candidates, fits the best, writes it.

`fedhpo-gym surrogate` calls `fit_surrogate`. It cross-validates `CANDIDATES` on some rows of
`building/surrogate_data.py`, chooses the smallest of those that are nearly the best, and fits it
again on many more rows. `building/surrogate_verdicts.py` measures it on held-out configurations
and says whether it is accepted. An accepted one is written as an archive, which
`stored.surrogate.Surrogate` opens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.building.candidates import CANDIDATES, Candidate
from fedhpo_gym.building.surrogate_data import (
    MEASURES,
    FittingRows,
    FittingSource,
    open_source,
    prepare,
)
from fedhpo_gym.building.surrogate_verdicts import (
    FINAL_ROWS,
    FOLDS,
    MAX_BYTES,
    NEARLY,
    SELECTION_ROWS,
    Claims,
    claims,
    cross_validate,
    divergence_summary,
    folds_of,
    optimism,
    summary,
    surrogate_card,
    tau_at,
    truths,
    verdict,
    write_claim,
    write_verdicts,
    yardstick,
)
from fedhpo_gym.core.archive import add_to_card
from fedhpo_gym.core.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.stored.catalogue import writable_table_folder
from fedhpo_gym.stored.health import HEALTH, write_health
from fedhpo_gym.stored.surrogate import (
    CLAIM_RULE,
    CLAIMED,
    ENTRY,
    FORMAT,
    Surrogate,
    write_surrogate,
)
from fedhpo_gym.stored.surrogate_curves import CurveModel


@dataclass(frozen=True)
class _CandidateResult:
    """What became of a candidate in the comparison."""

    candidate: Candidate
    variant: str  # its variant with the lowest error of the loss
    errors: Mapping[str, NDArray[np.float64]]  # (n, K, 2) absolute errors on training and test rows
    held_out: Claims  # what that variant claims of configurations held out
    tau: float  # Kendall's tau of these claims
    variants: Mapping[str, float]  # mean absolute error of the loss of every variant
    stored_bytes: int  # size of a model fitted on the rows of the comparison

    @property
    def score(self) -> float:
        """Held-out mean absolute error of the log validation loss."""
        return float(np.nanmean(self.errors["test"][..., LOSS]))


LOSS = MEASURES.index("log_val_loss")


def fit_surrogate(
    wanted: str | Identity,
    folder: Path | None = None,
    candidate: str | None = None,
    *,
    keep: bool = False,
    identity: Identity | None = None,
    train: Callable[[Surrogate], float] | None = None,
) -> Path:
    """Fit and write the surrogate of a table, or of a sample where there is no table.

    All candidates are compared by cross-validation. Of those small enough to be stored, and nearly
    as good as the best by the mean absolute error of the log validation loss on held-out
    configurations, the smallest is fitted again, on all courses or many more. It is written if it
    is accepted, by `validation.verdict`.
    """
    if candidate is not None and candidate not in CANDIDATES:
        raise unknown_name("surrogate candidate", candidate, CANDIDATES)
    source = open_source(wanted)
    name = source.stored.name
    if source.num_held_out < FOLDS:
        raise InvalidArgumentError(
            f"`wanted` must name a table or sample of at least {FOLDS} configurations (those that "
            f"share minibatches count as one), got {name!r} with {source.num_held_out}"
        )
    target = writable_table_folder(folder)
    rows = source.rows(FINAL_ROWS, stream(0, "surrogate_rows"))
    candidates = CANDIDATES if candidate is None else {candidate: CANDIDATES[candidate]}
    with tqdm(total=FOLDS * (len(candidates) + 1) + 1, desc=name, unit="fit") as bar:
        compared = _compare_candidates(rows, candidates, bar)
        winner = _choose_candidate(compared, candidate)
        bar.set_postfix_str(f"fitting {winner.candidate.name}")
        model = winner.candidate.models(prepare(rows))[winner.variant]
        bar.update()
        claimed = _claim_held_out(winner, rows, bar)
    errors = _measure_errors(source, rows, model, claimed)
    card = surrogate_card(
        source,
        rows,
        {name: _describe_candidate(f, source) for name, f in compared.items()},
        identity,
        candidate,
    )
    card["model"] |= {
        "kind": winner.candidate.kind,
        "candidate": winner.candidate.name,
        "variant": winner.variant,
        "settings": dict(winner.candidate.settings),
    }
    card["errors_of_the_stored_model"] = errors
    judgement = errors["verdict"]
    if not (judgement["passed"] or keep):
        raise InvalidArgumentError(
            f"`keep` (`--keep`) must be given to write the surrogate of {name!r}, which is not "
            f"accepted: its error of the loss is {judgement['share_of_yardstick']} of that of a "
            f"constant that knows the round, and Kendall's tau is {judgement['kendall_tau']}. The "
            f"rule is: {judgement['rule']}. Build a larger sample, then fit again"
        )
    with TemporaryDirectory(dir=target, prefix=".fit-") as folder_of_trial:
        trial = write_verdicts(write_health(write_surrogate(Path(folder_of_trial), card, model)))
        if train is not None:
            claim = write_claim(trial, train(Surrogate(trial)))
            if not (claim.passed or keep):
                raise InvalidArgumentError(
                    f"`keep` (`--keep`) must be given to write the surrogate of {name!r}, whose "
                    f"claimed best is not what it is said to be: {claim.words}. The rule is: "
                    f"{CLAIM_RULE}. Build a larger sample, then fit again"
                )
        trial_card = Surrogate(trial).card
        entries = {key: trial_card[key] for key in (HEALTH, ENTRY, CLAIMED) if key in trial_card}
    written = write_surrogate(target, card, model)
    add_to_card(written, FORMAT, entries)
    return written


def _compare_candidates(
    rows: FittingRows, candidates: Mapping[str, Candidate], bar: Any
) -> dict[str, _CandidateResult]:
    rng = stream(0, "surrogate_folds")
    size = len(rows) if len(candidates) == 1 else min(SELECTION_ROWS, len(rows))
    sample = rows[np.sort(rng.choice(len(rows), size, replace=False))]

    def show(name: str) -> None:
        bar.set_postfix_str(name)
        bar.update()

    claims_by_candidate = cross_validate(candidates, sample, _held_out_folds(sample), show)
    prepared = prepare(sample)
    truth = truths(sample).values
    compared = {}
    for name, candidate in candidates.items():
        claims_by_variant = claims_by_candidate[name]
        losses = {
            variant: float(np.nanmean(np.abs(by_split["test"].values - truth)[..., LOSS]))
            for variant, by_split in claims_by_variant.items()
        }
        best = min(losses, key=lambda variant: losses[variant])
        arrays = candidate.models(prepared)[best].arrays.values()
        errors = {split: np.abs(c.values - truth) for split, c in claims_by_variant[best].items()}
        tau = tau_at(sample, claims_by_variant[best]["test"])
        size_bytes = sum(array.nbytes for array in arrays)
        held_out = claims_by_variant[best]["test"]
        compared[name] = _CandidateResult(
            candidate, best, errors, held_out, tau, losses, size_bytes
        )
    return compared


def _choose_candidate(
    compared: Mapping[str, _CandidateResult], name: str | None
) -> _CandidateResult:
    small = [fitted for fitted in compared.values() if fitted.stored_bytes <= MAX_BYTES]
    if name is not None:
        return compared[name]
    if not small:
        raise InvalidArgumentError(f"no candidate fits into {MAX_BYTES} bytes; name one to store")
    good = NEARLY * min(fitted.score for fitted in small)
    return min((f for f in small if f.score <= good), key=lambda fitted: fitted.stored_bytes)


def _claim_held_out(winner: _CandidateResult, rows: FittingRows, bar: Any) -> Claims:
    """Return what the recipe claims of configurations that it did not see."""
    if len(winner.held_out.values) == len(rows):  # the comparison had all rows
        bar.update(FOLDS)
        return winner.held_out
    name, fold = winner.candidate.name, _held_out_folds(rows)
    by_candidate = cross_validate({name: winner.candidate}, rows, fold, lambda _: bar.update())
    return by_candidate[name][winner.variant]["test"]


def _held_out_folds(rows: FittingRows) -> NDArray[np.int64]:
    return folds_of(rows.configuration, stream(0, "surrogate_held_out"))


def _measure_errors(
    source: FittingSource, rows: FittingRows, model: CurveModel, claimed: Claims
) -> dict[str, Any]:
    spread, truth = source.seed_spread, truths(rows).values
    errors = summary(np.abs(claimed.values - truth), spread)
    constant_errors = {
        m: v["mae"] for m, v in summary(yardstick(rows, _held_out_folds(rows)), {}).items()
    }
    shared = rows.shared_knot
    ragged = {
        "kendall_tau_at_shared_round": {
            "round": source.stored.rounds[shared],
            "kendall_tau": float(f"{tau_at(rows, claimed, shared):.4g}"),
        }
    }
    return {
        "rows": len(rows),
        "train": summary(np.abs(claims(model, rows).values - truth), spread),
        "held_out": errors,
        "held_out_note": "the same recipe fitted without a tenth of the configurations, ten times",
        "yardstick": constant_errors,
        "yardstick_note": "error of the mean at every round over the courses of the other folds",
        "diverged": divergence_summary(rows, claimed),
        "verdict": verdict(errors, constant_errors, tau_at(rows, claimed)),
        "optimism": optimism(rows, claimed),
        "optimism_note": "log validation loss of the held-out tenth that is claimed best",
        **({} if rows.trained.all() else ragged),
    }


def _describe_candidate(fitted: _CandidateResult, source: FittingSource) -> dict[str, Any]:
    spread = source.seed_spread
    return {
        "settings": dict(fitted.candidate.settings),
        "variant": fitted.variant,
        "log_val_loss_mae_by_configuration_of_variants": {
            variant: float(f"{mae:.4g}") for variant, mae in fitted.variants.items() if variant
        },
        "kendall_tau": float(f"{fitted.tau:.4g}"),
        "bytes_before_compression": fitted.stored_bytes,
        "small_enough": fitted.stored_bytes <= MAX_BYTES,
        "by_configuration": {split: summary(e, spread) for split, e in fitted.errors.items()},
    }
