"""What the card of a surrogate says."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fedhpo_gym.fitting.data import FittingRows
from fedhpo_gym.fitting.sources import FittingSource
from fedhpo_gym.fitting.validate import FOLDS, compression_summary, outcome_spread
from fedhpo_gym.landscape import LABELS

MAX_BYTES = 600_000
"""Largest model that is stored: surrogates travel inside the package."""
SELECTION_ROWS = 8_000
FINAL_ROWS = 250_000

COPIED = (
    "data_fingerprint",
    "data_licence",
    "data_citation",
    "problem_citation",
    "licence",
    LABELS,
)


def surrogate_card(
    source: FittingSource, rows: FittingRows, candidates: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the card of a surrogate, but for the chosen model and its errors.

    Args:
        source: what it was fitted on.
        rows: the rows of the final fit.
        candidates: what became of each candidate in the comparison.
    """
    stored = source.stored
    selected = min(SELECTION_ROWS, len(rows))
    compression = compression_summary(rows)
    note = {"note": "fitted on a random subsample: errors are larger than those of all rows"}
    return {
        **stored.identity.to_card(),
        "fitted_on": source.kind,
        f"{source.kind}_sha256": stored.sha256,
        "num_configurations": source.num_configurations,
        "model": {
            "inputs": list(source.inputs.names),
            "outputs": "see fedhpo_gym.surrogates.outputs",
            **({"compression": compression} if compression else {}),
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
            "rule": f"lowest log_val_loss mae by configuration of those up to {MAX_BYTES} bytes",
            "candidates": dict(candidates),
        },
        **{key: stored.card[key] for key in COPIED if key in stored.card},
        "missing": stored.card.get("missing", ""),
        "fit_command": f"fedhpo-gym surrogate {stored.identity.arguments}",
        "source_command": stored.card["build_command"],
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "software": {name: version(name) for name in ("numpy", "scikit-learn")},
    }
