"""Reports the errors of all surrogates on this machine as two tables, beside those of the paper.

The first has a line per surrogate: cross-validated errors on held-out configurations, and beside
them the yardstick: how far seeds of one configuration are apart, or, where every configuration was
trained under one seed, the error of a constant. The second has every candidate that was compared.

Every number comes from a surrogate's card; nothing is fitted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import measuring

from fedhpo_gym.surrogates import list_surrogates, open_surrogate

# FedHPO-Bench, Table 12: model and data set, algorithm, train MAE, test MAE of a random forest.
PAPER = (
    ("CNN-FEMNIST", "fedavg", 0.00609, 0.00777),
    ("BERT-CoLA", "fedavg", 0.04724, 0.05454),
    ("BERT-CoLA", "fedopt", 0.02426, 0.02959),
    ("BERT-SST2", "fedavg", 0.02597, 0.03227),
    ("BERT-SST2", "fedopt", 0.02802, 0.03166),
    ("GNN-Cora", "fedavg", 0.04702, 0.04839),
    ("GNN-Cora", "fedopt", 0.05703, 0.05893),
    ("GNN-CiteSeer", "fedavg", 0.01334, 0.01381),
    ("GNN-CiteSeer", "fedopt", 0.01652, 0.01717),
    ("GNN-PubMed", "fedavg", 0.04042, 0.04148),
    ("GNN-PubMed", "fedopt", 0.04816, 0.05699),
)
SUMMARY = (
    "surrogate", "configurations", "rounds", "client sample rates", "model",
    "accuracy", "yardstick", "log loss", "yardstick", "yardstick is", "paper: accuracy, by row",
)  # fmt: skip
HEADER = (
    "table", "model", "folds by", "rows",
    "accuracy train", "accuracy test", "/ seed spread",
    "log loss train", "log loss test", "/ seed spread",
)  # fmt: skip


def summary_row(card: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the line of a surrogate: the errors of the candidate that was chosen."""
    chosen = card["comparison"]["candidates"][card["model"]["candidate"]]
    errors = chosen["by_configuration"]["test"]
    of_sample = not card["seed_spread"]
    spread = card["outcome_spread" if of_sample else "seed_spread"]
    paper = {f"{name}-{algorithm}": test for name, algorithm, _, test in PAPER}
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
        f"{paper[card['name']]:.3f}" if card["name"] in paper else "",
    )


def candidate_rows(card: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    """Yield a row per candidate and way of cutting folds, then one for the stored model."""
    comparison = card["comparison"]
    for name, result in comparison["candidates"].items():
        for folds in ("row", "configuration"):
            parts = result.get(f"by_{folds}")
            if parts is None:  # a sample: its rows are not held out one by one
                continue
            yield _row(card, name, folds, comparison["rows"], parts["train"], parts["test"])
    stored = card["errors_of_the_stored_model"]
    name = f"**{card['model']['candidate']}, stored**"
    yield _row(card, name, "configuration", stored["rows"], stored["train"], stored["held_out"])


def _row(
    card: Mapping[str, Any],
    model: str,
    folds: str,
    rows: int,
    train: Mapping[str, Any],
    test: Mapping[str, Any],
) -> tuple[str, ...]:
    numbers: list[str] = []
    for measure in ("val_accuracy", "log_val_loss"):
        ratio = test[measure].get("mae_per_seed_spread")
        numbers += [
            f"{train[measure]['mae']:.4f}",
            f"{test[measure]['mae']:.4f}",
            "" if ratio is None else f"{ratio:.2f}",
        ]
    return (card["name"], model, folds, str(rows), *numbers)


def paper_rows() -> Iterable[tuple[str, ...]]:
    """Yield the rows of the paper; it reports accuracies only."""
    for name, algorithm, train, test in PAPER:
        shown = (f"{train:.5f}", f"{test:.5f}", "", "", "", "")
        yield (f"paper: {name}-{algorithm}", "random_forest", "row", "all", *shown)


def markdown(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: Sequence[str] | None = None) -> str:
    """Print the tables and write them to a file."""
    arguments = measuring.parser(__file__, __doc__).parse_args(argv)
    load = measuring.load_average()
    cards = [open_surrogate(name).card for name in list_surrogates()]
    if not cards:
        print("skipped: no surrogate on this machine; fit one with `fedhpo-gym surrogate`")
        return ""
    rows = [row for card in cards for row in candidate_rows(card)]
    sections = [
        markdown(SUMMARY, map(summary_row, cards)),
        "## Candidates",
        markdown(HEADER, [*rows, *paper_rows()]),
    ]
    command = ["python", "benchmarks/surrogate_errors.py"]
    return measuring.write_report(
        arguments.out, "Errors of the surrogates", command, load, sections
    )


if __name__ == "__main__":
    main()
