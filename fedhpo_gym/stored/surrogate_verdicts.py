"""Which objectives a surrogate may answer, by the held-out figures of each that its card states.

The figures are computed of nothing but courses and answers, so they decide no answer and no digest;
they name the digest of the surrogate that they are of. The verdict is never stored: it follows from
the figures by the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedhpo_gym.core.archive import DIGEST
from fedhpo_gym.core.checks import CheckedFields, as_typed
from fedhpo_gym.core.errors import DamagedDataError, FedHPOError

ENTRY = "objectives"
"""Entry of a card: what `building.surrogate_verdicts.measured` returned."""
LOWEST_TAU, LARGEST_BIAS = 0.6, 0.1
"""Of Kendall's tau, and of the bias as a share of the spread: what an objective is accepted by."""
RULE = (
    f"Kendall's tau at least {LOWEST_TAU}, and a bias of at most {LARGEST_BIAS} of the objective's "
    "spread"
)
CLAIMED = "claimed_best"
"""Entry of a card: the loss that the surrogate claims for its best configuration, and what training
it reaches."""
LARGEST_MISS = 0.1
CLAIM_RULE = (
    "the logarithm of the loss that training reaches, under all seeds, exceeds that of the claim "
    f"by at most {LARGEST_MISS} of its spread over courses"
)


@dataclass(frozen=True)
class HeldOut(CheckedFields):
    """Held-out figures of an objective at full fidelity; a loss is measured by its logarithm."""

    mae: float  # mean absolute error of the claims
    bias: float  # mean of claim less truth
    spread: float  # standard deviation of the truth
    kendall_tau: float | None  # None where truth or claim never differs

    @property
    def passed(self) -> bool:
        """Whether the objective is accepted, by `RULE`."""
        ranks = self.kendall_tau is not None and self.kendall_tau >= LOWEST_TAU
        return ranks and abs(self.bias) <= LARGEST_BIAS * self.spread

    @property
    def words(self) -> str:
        """The figures in words."""
        tau = "none" if self.kendall_tau is None else f"{self.kendall_tau:.4g}"
        return (
            f"tau {tau}, bias {self.bias:+.3g}, mean absolute error {self.mae:.3g}, spread "
            f"{self.spread:.3g}"
        )


@dataclass(frozen=True)
class Claim(CheckedFields):
    """The best configuration that a surrogate claims, at its fidelity; means over seeds."""

    claimed: float  # validation loss that it answers
    trained: float  # validation loss that training reaches
    spread: float  # standard deviation, over courses, of the logarithm of the loss

    @property
    def passed(self) -> bool:
        """Whether the claim is accepted, by `CLAIM_RULE`."""
        if min(self.claimed, self.trained) <= 0:
            return self.trained <= self.claimed
        return math.log(self.trained / self.claimed) <= LARGEST_MISS * self.spread

    @property
    def words(self) -> str:
        """The figures in words."""
        return (
            f"validation loss {self.claimed:.4g} claimed, {self.trained:.4g} trained; the spread "
            f"of its logarithm is {self.spread:.3g}"
        )


def claim_on(card: Mapping[str, Any]) -> Claim | None:
    """Return the claimed best that a surrogate's card states; None where it states none."""
    found = card.get(CLAIMED)
    if found is None:
        return None
    try:
        claim = Claim(**{name: found[name] for name in ("claimed", "trained", "spread")})
        own = found["of"] == card[DIGEST]
    except (LookupError, TypeError, ValueError, FedHPOError) as error:
        raise DamagedDataError(_wrong(card, str(error), CLAIMED)) from error
    if not own:
        raise DamagedDataError(_wrong(card, "it is of another surrogate", CLAIMED))
    return claim


def held_on(card: Mapping[str, Any]) -> dict[str, HeldOut]:
    """Return the figures by objective that a surrogate's card states."""
    try:
        found = card[ENTRY]
        figures = as_typed(ENTRY, found["held_out"], Mapping[str, Mapping[str, Any]])
        held = {name: HeldOut(**one) for name, one in figures.items()}
        own = found["of"] == card[DIGEST]
    except (LookupError, TypeError, ValueError, FedHPOError) as error:
        raise DamagedDataError(_wrong(card, str(error))) from error
    if not own:
        raise DamagedDataError(_wrong(card, "they are of another surrogate"))
    return held


def _wrong(card: Mapping[str, Any], reason: str, entry: str = ENTRY) -> str:
    return (
        f"the card of {card['name']}: `{entry}` does not hold figures of this surrogate "
        f"({reason}); run `fedhpo-gym surrogate ID --measure`"
    )


def why_refused(card: Mapping[str, Any], objective: str) -> str:
    """Return why a surrogate does not answer an objective of clients' metrics; "" where it does."""
    held = held_on(card)
    if objective not in held:
        return "it was not measured on courses that the fit had not seen"
    one = held[objective]
    return "" if one.passed else f"{one.words}; the rule is: {RULE}"
