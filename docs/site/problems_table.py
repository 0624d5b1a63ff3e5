"""Writes `docs/problems.md`, the stored problems side by side, from nothing but their cards."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhpo_gym.cli.problems import WIDTH, name_of, number, percent, variant_of
from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.stored.health import (
    INERT,
    SURVIVES,
    faults,
    health_cards,
    health_on,
    inert,
    labels_on,
    open_card,
    survival_on,
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
TITLE = f"""\
# Problems, side by side

Made by `python docs/site/problems_table.py` from what the cards of the stored numbers say;
`fedhpo-gym show ID` says more about one, and `fedhpo-gym health` computes the figures anew. All are
of the validation loss, of the mean over seeds (of one seed in [pools](environments.md#pools));
where training diverged it is infinite.

- **optimum**: the lowest loss of all configurations, rounds and client sample rates. For a table
  and a pool it is exact. A surrogate is asked on a lattice: the grid of its space, and 2,048 more
  configurations drawn uniformly. Its card says which.
- **labels**: the loss of always predicting how often each label is in the training data. Who does
  not beat it has learned nothing.
- **edges**: hyperparameters whose optimum is the lowest (−) or highest (+) value of the grid. With
  more than one, the space is cut off where it gets good. For an inert one it means little.
- **losing**: share of configurations whose loss is above that of the label frequencies at full
  fidelity, which is the last round and the highest client sample rate.
- **near**: share of configurations within 1 % of the optimum, at full fidelity.
- **diverging**: share of configurations that diverge under a seed. Surrogates that predict losses
  of diverged courses like any other say nothing.
- **noise/spread**: how far the logarithm of the loss differs between seeds, over how far it differs
  between configurations. Near 1, seeds decide.
- **τ**: Kendall's rank correlation of configurations, between round 9 and the last one, between the
  lowest and the highest client sample rate, and between two seeds.
- **inert**: hyperparameters that cause less than {percent(INERT)} of the variance of the logarithm
  of the loss, interactions included (functional analysis of variance on the whole grid).

A low loss can be luck: trained anew from initial weights moved by 1e-8, the best configurations of
a table reach their stored loss again, to within {percent(SURVIVES)}, or do not survive.
`fedhpo-gym health ID --survival` trains them, with `--write` onto the card; it was done for the
tables of version 1, and `fedhpo-gym show ID` prints what came of it.

Versions that share numbers share a line.
"""
SECTION = f"""\
## Objectives of surrogates

Errors are of courses at full fidelity that the fit had not seen (`fedhpo-gym surrogate all
--measure` holds them out again). An objective is offered if Kendall's τ is at least {LOWEST_TAU}
and the bias, either way, at most {LARGEST_BIAS} of the spread of the truth (standard deviation
over courses); behind a refused one stand its τ and its bias over that spread.

The last column is the lowest validation loss that a surrogate claims, and what training that
configuration reaches, where both are known. A claim is missed where the logarithm of the loss is
off by more than {LARGEST_MISS} of its spread; `fedhpo-gym surrogate` refuses new fits that miss.
"""
PROBLEM_HEADS = (
    *("id", "variant", "optimum", "labels", "edges", "losing", "near", "diverging"),
    *("noise/spread", "τ rounds", "τ rates", "τ seeds", "inert"),
)
VERDICT_HEADS = (
    "surrogate",
    "courses",
    "offered",
    "refused (τ, bias over spread)",
    "best: claimed, trained",
)
CHAOS = "some of the best configurations do not survive a perturbation of their initial weights"
KINDS = {"table": "Tables", "surrogate": "Surrogates", "sample": "Pools"}


def page() -> str:
    """Return the page."""
    cards, parts = health_cards(), [TITLE]
    stored = [open_card(card) for card in cards]
    for kind, title in KINDS.items():
        chosen = [s for c, s in zip(cards, stored, strict=True) if c.match(f"*.{kind}.json")]
        parts += [f"## {title}\n", markdown_table(PROBLEM_HEADS, map(_cells, chosen)), ""]
    parts += [*section(stored), "## What is degenerate\n", *_degenerate(stored)]
    return "\n".join(parts).rstrip("\n") + "\n"


def health_of_card(stored: StoredNumbers) -> Mapping[str, Any]:
    """Return the health on a card."""
    return health_on(stored, f"fedhpo-gym health {stored.identity.id} --write")


def _cells(stored: StoredNumbers) -> Iterator[str]:
    health, labels = health_of_card(stored), labels_on(stored)
    tau = health["kendall"]
    yield name_of(stored)
    yield variant_of(stored)
    yield number(health["optimum"]["val_loss"])
    yield number(labels["val_loss"]) if labels else "–"
    ends = {"lowest": "−", "highest": "+"}
    yield ", ".join(f"{name} {ends[end]}" for name, end in health["edges"].items()) or "–"
    for figure in ("losing", "near_optimum", "diverging"):
        yield percent(health[figure]["full_fidelity"]) if health[figure] else "–"
    noise, spread = health["seed_noise"], health["spread"]
    yield f"{noise / spread:.2f}" if noise is not None and spread else "–"
    for key in ("rounds", "client_sample_rates", "seeds"):
        value = tau[key]["tau"]
        yield "–" if value is None else f"{value:.2f}"
    yield ", ".join(inert(health)) or "–"


def _degenerate(stored: list[StoredNumbers]) -> Iterator[str]:
    """Yield a paragraph per fault with the problems that have it, and how many have none."""
    named: dict[str, list[str]] = {}
    healthy = 0
    for one in stored:
        health = health_of_card(one)
        found = faults(health, labels_on(one))
        moved = survival_on(one)
        if moved is not None and moved["surviving"] < moved["cells"]:
            found.append(CHAOS)
        kind = type(one).__name__.lower()
        for fault in found:
            named.setdefault(fault, []).append(f"{name_of(one)} ({variant_of(one)}; {kind})")
        healthy += not found
    for fault, names in named.items():
        words = f"**{fault[0].upper()}{fault[1:]}** ({len(names)}): {', '.join(names)}."
        yield textwrap.fill(words, WIDTH, break_on_hyphens=False) + "\n"
    yield f"The other {healthy} of {len(stored)} have none of these faults."


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
