"""Writes `docs/problems.md` and `docs/problems.csv`, the stored problems, from their cards."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhpo_gym.cli.problems import format_share, format_value, name_of, variant_of
from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.stored.health import (
    INERT,
    SURVIVES,
    faults,
    health_cards,
    health_on,
    labels_on,
    open_stored,
    survival_on,
    unimportant,
)
from fedhpo_gym.stored.lattice import StoredNumbers
from fedhpo_gym.stored.surrogate import (
    LARGEST_BIAS,
    LARGEST_MISS,
    LOWEST_TAU,
    Surrogate,
    claim_on,
    held_on,
)

PAGE = Path(__file__).resolve().parents[1] / "problems.md"
CSV = PAGE.with_suffix(".csv")
MEANINGS = markdown_table(
    ("column", "meaning"),
    {
        "optimum": (
            "the lowest loss of all configurations, rounds and client sampling rates. It is "
            "exact for tables and pools. A surrogate is evaluated on the grid of its space "
            "and at 2,048 more configurations, drawn uniformly; its card says which"
        ),
        "labels": (
            "the loss of always predicting the label frequencies of the training data. A "
            "configuration that is not better has learned nothing"
        ),
        "edges": (
            "number of hyperparameters whose optimum is at an end of the grid, by name in "
            "the CSV file: the lowest (−) or the highest (+) value. With more than one, the "
            "space ends where it gets good. For an unimportant hyperparameter, an edge "
            "means little"
        ),
        "losing": (
            "share of configurations whose loss is above that of the label frequencies at "
            "full fidelity, which is the last round and the highest client sampling rate"
        ),
        "near": ("share of configurations within 1 % of the optimum, at full fidelity"),
        "diverging": (
            "share of configurations that diverge under a seed; unknown for surrogates that "
            "predict losses of diverged training runs like any other"
        ),
        "noise/spread": (
            "difference of the logarithm of the loss between seeds, divided by that between "
            "configurations. Near 1, seeds decide"
        ),
        "τ": (
            "Kendall's rank correlation of configurations: between round 9 and the last "
            "one, between the lowest and the highest client sampling rate, and between two "
            "seeds"
        ),
        "unimportant": (
            f"in the CSV file: hyperparameters that cause less than {format_share(INERT)} of the "
            "variance of the logarithm of the loss, interactions included (functional "
            "analysis of variance on the whole grid)"
        ),
    }.items(),
)
TITLE = f"""\
# Problems, side by side

This page shows how good the stored problems are as benchmarks: how low losses get, how much seeds
matter, and which hyperparameters decide. `python docs/site/problems_table.py` makes it from the
cards of the stored results. `fedhpo-gym show ID` prints more about one problem, and `fedhpo-gym
health` computes the figures again. [problems.csv](problems.csv) has all rows and columns, with the
names of hyperparameters at edges and of unimportant ones.

All figures are of the validation loss and of the mean over seeds (of one seed in
[pools](environments.md#pools)). Where training diverged, the loss is infinite.

{MEANINGS}

A low loss can be luck. `fedhpo-gym health ID --survival` tests this: it trains the best
configurations of a table again from initial weights moved by 1e-8. Those that reach their stored
loss again, to within {format_share(SURVIVES)}, survive. `--write` stores the result on the card.
This was done for the tables of version 1, and `fedhpo-gym show ID` prints the result.

Versions that share results share a row.
"""
POOLS = """\
The rows of the {number} pools are in [problems.csv](problems.csv), where `kind` is `pool`.
"""
FAULTS = """\
## Faults

The column `faults` of [problems.csv](problems.csv) names the faults of each problem.
"""
SECTION = f"""\
## Objectives of surrogates

This table shows which objectives each surrogate offers. An objective is offered if its predictions
rank training runs well enough: Kendall's τ must be at least {LOWEST_TAU}, and the bias, either way,
at most {LARGEST_BIAS} of the spread of the true values (standard deviation over training runs). The
errors are those on training runs at full fidelity that were not used for the fit (`fedhpo-gym
surrogate all --measure` holds them out again). A refused objective stands with its τ and its bias
over that spread.

The last column is the lowest validation loss that the surrogate predicts, and the loss that
training reaches with this configuration, if both are known. The prediction is missed if the
logarithm of the loss is off by more than {LARGEST_MISS} of its spread. `fedhpo-gym surrogate`
refuses new fits that miss.
"""
PROBLEM_HEADS = (
    *("id", "variant", "optimum", "labels", "edges", "losing", "near", "diverging"),
    *("noise/spread", "τ rounds", "τ rates", "τ seeds", "unimportant"),
)
VERDICT_HEADS = (
    "surrogate",
    "training runs",
    "offered",
    "refused (τ, bias over spread)",
    "best: predicted, trained",
)
CHAOS = "some of the best configurations do not survive a perturbation of their initial weights"
KINDS = {"table": "Tables", "surrogate": "Surrogates", "sample": "Pools"}
PAGE_HEADS = tuple(head for head in PROBLEM_HEADS if head != "unimportant")
LONGEST, FEW = 60, 12
"""Rows of the longest table of the page; problems that are named beside a fault."""


def page() -> str:
    """Return the page."""
    cards, parts = health_cards(), [TITLE]
    stored = [open_stored(card) for card in cards]
    for kind, title in KINDS.items():
        chosen = [s for c, s in zip(cards, stored, strict=True) if c.match(f"*.{kind}.json")]
        parts.append(f"## {title}\n")
        if len(chosen) > LONGEST:
            parts.append(POOLS.format(number=len(chosen)))
            continue
        parts += [markdown_table(PAGE_HEADS, map(_shown_cells, chosen)), ""]
    parts += [*section(stored), _fault_table(stored)]
    return "\n".join(parts).rstrip("\n") + "\n"


def csv_text() -> str:
    """Return the CSV file: a row per stored problem, with all columns, its kind and its faults."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("kind", *PROBLEM_HEADS, "faults"))
    for one in (open_stored(card) for card in health_cards()):
        writer.writerow((_kind(one), *_cells(one), "; ".join(_faults(one)) or "–"))
    return text.getvalue()


def _kind(stored: StoredNumbers) -> str:
    return type(stored).__name__.lower()


def _shown_cells(stored: StoredNumbers) -> Iterator[str]:
    """Yield the cells of a row of the page, where names of hyperparameters would be too wide."""
    cells = dict(zip(PROBLEM_HEADS, _cells(stored), strict=True))
    cells["edges"] = str(len(health_of_card(stored)["edges"]))
    return (cells[head] for head in PAGE_HEADS)


def health_of_card(stored: StoredNumbers) -> Mapping[str, Any]:
    """Return the health on a card."""
    return health_on(stored, f"fedhpo-gym health {stored.identity.id} --write")


def _cells(stored: StoredNumbers) -> Iterator[str]:
    health, labels = health_of_card(stored), labels_on(stored)
    tau = health["kendall"]
    yield name_of(stored)
    yield variant_of(stored)
    yield format_value(health["optimum"]["val_loss"])
    yield format_value(labels["val_loss"]) if labels else "–"
    ends = {"lowest": "−", "highest": "+"}
    yield ", ".join(f"{name} {ends[end]}" for name, end in health["edges"].items()) or "–"
    for figure in ("losing", "near_optimum", "diverging"):
        yield format_share(health[figure]["full_fidelity"]) if health[figure] else "–"
    noise, spread = health["seed_noise"], health["spread"]
    yield f"{noise / spread:.2f}" if noise is not None and spread else "–"
    for key in ("rounds", "client_sample_rates", "seeds"):
        value = tau[key]["tau"]
        yield "–" if value is None else f"{value:.2f}"
    yield ", ".join(unimportant(health)) or "–"


def _faults(stored: StoredNumbers) -> list[str]:
    """Return the faults of a problem, survival included."""
    found = faults(health_of_card(stored), labels_on(stored))
    moved = survival_on(stored)
    return [*found, CHAOS] if moved is not None and moved["surviving"] < moved["cells"] else found


def _fault_table(stored: Sequence[StoredNumbers]) -> str:
    """Return the section of faults: how many problems have each, and which if these are few."""
    named: dict[str, list[str]] = {}
    for one in stored:
        for fault in _faults(one):
            named.setdefault(fault, []).append(f"{name_of(one)} ({variant_of(one)}; {_kind(one)})")
    rows = [
        (
            fault,
            len(names),
            "; ".join(names) if len(names) <= FEW else "[problems.csv](problems.csv)",
        )
        for fault, names in named.items()
    ]
    healthy = sum(not _faults(one) for one in stored)
    end = f"The other {healthy} of {len(stored)} have none of these faults."
    table = markdown_table(("fault", "problems", "which"), rows)
    return f"{FAULTS}\n{table}\n\n{end}"


def section(stored: Sequence[StoredNumbers]) -> Iterator[str]:
    """Yield the parts of the page that are of objectives."""
    rows = []
    for one in (one for one in stored if isinstance(one, Surrogate)):
        held = held_on(one.card)
        offered = [name for name, figures in held.items() if figures.passed]
        refused = [
            f"{name} ({'none' if f.kendall_tau is None else format(f.kendall_tau, '.2f')}, "
            f"{abs(f.bias) / f.spread if f.spread else 0:.2f})"
            for name, f in held.items()
            if not f.passed
        ]
        counted, claim = str(one.card["objectives"]["courses"]), claim_on(one.card)
        best = f"{claim.claimed:.3g}, {claim.trained:.3g}" if claim else "–"
        best += " (missed)" if claim and not claim.passed else ""
        rejected = ", ".join(refused) or "–"
        rows.append((one.card["name"], counted, ", ".join(offered), rejected, best))
    yield SECTION
    yield markdown_table(VERDICT_HEADS, rows)
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    CSV.write_text(csv_text(), encoding="utf-8")
