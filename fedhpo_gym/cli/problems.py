"""The page that sets the stored problems side by side, made of nothing but their cards."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from fedhpo_gym.cli.listing import answering, arguments_of
from fedhpo_gym.cli.verdicts import section
from fedhpo_gym.cli.words import number, percent
from fedhpo_gym.stored.health import INERT, SURVIVES, faults, inert, labels_on
from fedhpo_gym.stored.health_cards import health_cards, health_on, open_card, survival_on
from fedhpo_gym.stored.lattice import Stored

TITLE = f"""# Problems, side by side

Made by `fedhpo-gym show all` from what the cards of the stored numbers say; `fedhpo-gym show ID`
says more about one, and `fedhpo-gym health` computes the figures anew. All are of the validation
loss, of the mean over seeds; where training diverged it is infinite.

- **optimum**: the lowest loss of all configurations, rounds and client sample rates. For a table it
  is exact. A surrogate is asked on a lattice: the grid of its space, and 2,048 more configurations
  drawn uniformly. Its card says which.
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
HEADS = (
    *("id", "variant", "optimum", "labels", "edges", "losing", "near", "diverging"),
    *("noise/spread", "τ rounds", "τ rates", "τ seeds", "inert"),
)
WIDTH = 100
CHAOS = "some of the best configurations do not survive a perturbation of their initial weights"
KINDS = {"table": "Tables", "surrogate": "Surrogates"}


def page() -> str:
    """Return the page."""
    stored = [(card, open_card(card)) for card in health_cards()]
    parts = [TITLE]
    for kind, title in KINDS.items():
        chosen = [s for card, s in stored if card.name.endswith(f".{kind}.json")]
        rows = [f"| {' | '.join(_cells(s))} |" for s in chosen]
        head = f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}"
        parts += [f"## {title}\n", "\n".join([head, *rows]), ""]
    parts += section([s for _, s in stored])
    parts += ["## What is degenerate\n", *_degenerate([s for _, s in stored])]
    return "\n".join(parts).rstrip("\n") + "\n"


def health_of_card(stored: Stored) -> Mapping[str, Any]:
    """Return the health on a card."""
    return health_on(stored, f"fedhpo-gym health {stored.identity.id} --write")


def _name(stored: Stored) -> str:
    """Return the ids, without their common beginning, that answer from stored numbers."""
    versions = ", ".join(f"-v{task.version}" for task in answering(stored))
    return f"{stored.identity.task}{versions}"


def _variant(stored: Stored) -> str:
    words = ", ".join(arguments_of(stored.identity)).replace("algorithm=", "")
    return words.replace("'", "")


def _cells(stored: Stored) -> Iterator[str]:
    health, labels = health_of_card(stored), labels_on(stored)
    tau = health["kendall"]
    yield _name(stored)
    yield _variant(stored)
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


def _degenerate(stored: list[Stored]) -> Iterator[str]:
    """Yield a paragraph per fault with the problems that have it, and how many have none."""
    named: dict[str, list[str]] = {}
    healthy = 0
    for one in stored:
        health = health_of_card(one)
        found = faults(health, labels_on(one))
        moved = survival_on(one)
        if moved is not None and moved["surviving"] < moved["cells"]:
            found.append(CHAOS)
        kind = "table" if health["lattice"]["exact"] else "surrogate"
        for fault in found:
            named.setdefault(fault, []).append(f"{_name(one)} ({_variant(one)}; {kind})")
        healthy += not found
    for fault, names in named.items():
        words = f"**{fault[0].upper()}{fault[1:]}** ({len(names)}): {', '.join(names)}."
        yield textwrap.fill(words, WIDTH, break_on_hyphens=False) + "\n"
    yield f"The other {healthy} of {len(stored)} have none of these faults."
