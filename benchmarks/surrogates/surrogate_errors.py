"""Reports the errors of all surrogates on this machine, beside those of the paper.

Errors are cross-validated on held-out configurations. Beside them stands the yardstick: how far
seeds of one configuration are apart, or, where every configuration was trained under one seed, the
error of a constant. Every number comes from a surrogate's card, which also holds the errors of
every candidate that was compared; nothing is fitted here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring

from fedhpo_gym.stored.surrogate import list_surrogates, open_surrogate

# FedHPO-Bench, Table 12: model and data set, algorithm, test MAE of a random forest.
PAPER = {
    "CNN-FEMNIST-fedavg": 0.00777,
    "BERT-CoLA-fedavg": 0.05454,
    "BERT-CoLA-fedopt": 0.02959,
    "BERT-SST2-fedavg": 0.03227,
    "BERT-SST2-fedopt": 0.03166,
    "GNN-Cora-fedavg": 0.04839,
    "GNN-Cora-fedopt": 0.05893,
    "GNN-CiteSeer-fedavg": 0.01381,
    "GNN-CiteSeer-fedopt": 0.01717,
    "GNN-PubMed-fedavg": 0.04148,
    "GNN-PubMed-fedopt": 0.05699,
}
HEADER = (
    "surrogate", "configurations", "rounds", "client sample rates", "model",
    "accuracy", "yardstick", "log loss", "yardstick", "yardstick is", "paper: accuracy, by row",
)  # fmt: skip


def row(card: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the line of a surrogate: the errors of the candidate that was chosen."""
    chosen = card["comparison"]["candidates"][card["model"]["candidate"]]
    errors = chosen["by_configuration"]["test"]
    of_sample = not card["seed_spread"]
    spread = card["outcome_spread" if of_sample else "seed_spread"]
    axes = {axis["name"]: axis for axis in card["fidelity_space"]["dimensions"]}
    rates = axes["client_sample_rate"]
    numbers = [
        f"{value:.3f}"
        for measure in ("val_accuracy", "log_val_loss")
        for value in (errors[measure]["mae"], spread[measure])
    ]
    return (
        card["name"],
        str(card.get("num_configurations", "grid")),
        f"{axes['round']['high']:g}",
        f"{rates['low']:g} to {rates['high']:g}",
        card["model"]["candidate"],
        *numbers,
        "a constant" if of_sample else "another seed",
        f"{PAPER[card['name']]:.3f}" if card["name"] in PAPER else "",
    )


def main(argv: Sequence[str] | None = None) -> str:
    """Print the table and write it to a file."""
    options = measuring.Parser(__file__, __doc__).parse_args(argv)
    rows = [row(open_surrogate(name).card) for name in list_surrogates()]
    return measuring.write_report(
        options, "Errors of the surrogates", measuring.table(HEADER, rows)
    )


if __name__ == "__main__":
    measuring.run(main)
