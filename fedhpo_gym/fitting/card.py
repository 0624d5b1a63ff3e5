"""What the card of a surrogate says."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fedhpo_gym.fitting.data import FittingRows
from fedhpo_gym.fitting.sources import FittingSource
from fedhpo_gym.fitting.validate import FOLDS, compression_summary, outcome_spread
from fedhpo_gym.identity import Identity
from fedhpo_gym.landscape import LABELS
from fedhpo_gym.tables.sample import ENDS

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
    """Return the card of a surrogate, but for the chosen model and its errors.

    Args:
        source: what it was fitted on.
        rows: the rows of the final fit.
        candidates: what became of each candidate in the comparison.
        identity: what the surrogate belongs to; by default, to what its source belongs to.
        wanted: name of the only candidate, where one was asked for.
    """
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
            "outputs": "see fedhpo_gym.surrogates.curves",
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
