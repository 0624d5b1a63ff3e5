"""Which objectives surrogates answer, in words and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedhpo_gym.stored.lattice import Stored
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.surrogate_verdicts import (
    CLAIM_RULE,
    LARGEST_BIAS,
    LARGEST_MISS,
    LOWEST_TAU,
    claim_on,
    held_on,
)

SECTION = f"""## Objectives of surrogates

Errors are of courses at full fidelity that the fit had not seen (`fedhpo-gym surrogate all
--measure` holds them out again). An objective is offered if Kendall's τ is at least {LOWEST_TAU}
and the bias, either way, at most {LARGEST_BIAS} of the spread of the truth (standard deviation
over courses); behind a refused one stand its τ and its bias over that spread.

The last column is the lowest validation loss that a surrogate claims, and what training that
configuration reaches, where both are known. A claim is missed where the logarithm of the loss is
off by more than {LARGEST_MISS} of its spread; `fedhpo-gym surrogate` refuses new fits that miss.
"""
HEADS = (
    "surrogate",
    "courses",
    "offered",
    "refused (τ, bias over spread)",
    "best: claimed, trained",
)


def verdicts_of(stored: Stored) -> dict[str, Any] | None:
    """Return figures and verdict by objective, as JSON data; None for a table."""
    if not isinstance(stored, Surrogate):
        return None
    held = held_on(stored.card)
    return {
        name: {"verdict": "offered" if one.passed else "refused", "figures": one.words}
        for name, one in held.items()
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that `fedhpo-gym show` prints of `verdicts_of`."""
    for name, one in found.items():
        yield f"{name}: {one['verdict']} ({one['figures']})"


def claim_words(stored: Stored) -> str | None:
    """Return what became of the best that a surrogate claims; None for a table."""
    if not isinstance(stored, Surrogate):
        return None
    claim = claim_on(stored.card)
    if claim is None:
        return "not trained"
    return f"{'kept' if claim.passed else 'MISSED'} ({claim.words}); the rule is that {CLAIM_RULE}"


def section(stored: Sequence[Stored]) -> Iterator[str]:
    """Yield the parts of the page of all problems that are of objectives."""
    rows = []
    for one in stored:
        if not isinstance(one, Surrogate):
            continue
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
        cells = (one.card["name"], counted, ", ".join(offered), ", ".join(refused) or "–", best)
        rows.append(f"| {' | '.join(cells)} |")
    yield SECTION
    yield "\n".join([f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}", *rows])
    yield ""
