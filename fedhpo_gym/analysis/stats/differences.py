"""Critical differences: which agents cannot be told apart, as numbers; drawing comes after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedhpo_gym.analysis.stats.hypotheses import (
    Friedman,
    friedman,
    nemenyi,
    nemenyi_distance,
    wilcoxon_holm,
)
from fedhpo_gym.analysis.stats.ranks import Matrix, Numbers
from fedhpo_gym.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.typed import checked_types


@dataclass(frozen=True, eq=False)
class CriticalDifference:
    """Everything a critical-difference diagram shows (Demsar, 2006, figure 1).

    Attributes:
        agents: names, the best mean rank first.
        ranks: (A,) their mean ranks.
        blocks: number of blocks.
        friedman: whether any differ at all.
        p_values: (A, A) of pairs, adjusted for being several.
        groups: runs of neighbours (first, last) that cannot be told apart, longest possible; none
            is part of another one. An agent alone is no group.
        distance: critical difference of Nemenyi's test; None for Wilcoxon's.
        alpha: level at which agents count as different.
    """

    agents: tuple[str, ...]
    ranks: Numbers
    blocks: int
    friedman: Friedman
    p_values: Numbers
    groups: tuple[tuple[int, int], ...]
    distance: float | None
    alpha: float


@checked_types
def critical_difference(
    values: Matrix, agents: Sequence[str], method: str = "wilcoxon", alpha: float = 0.05
) -> CriticalDifference:
    """Compare all agents over blocks.

    A pair differs if Friedman's test rejects and the pair's own test does: Wilcoxon's with Holm's
    correction (Benavoli et al., 2016), or Nemenyi's.

    Args:
        values: (B, A), lower is better.
        agents: names of the columns.
        method: "wilcoxon" or "nemenyi".
        alpha: level of both tests.

    Raises:
        InvalidArgumentError: there are fewer than two agents or no block, a value is NaN, or names
            and columns differ in number.
        UnknownNameError: there is no such method.
    """
    if method not in ("wilcoxon", "nemenyi"):
        raise unknown_name("test of pairs", method, ("wilcoxon", "nemenyi"))
    if len(agents) != values.shape[1]:
        raise InvalidArgumentError(
            f"`agents` must name {values.shape[1]} columns, got {len(agents)} names"
        )
    found = friedman(values)
    order = np.argsort(found.mean_ranks, kind="stable")
    p_values = (nemenyi if method == "nemenyi" else wilcoxon_holm)(values)[np.ix_(order, order)]
    distance = None
    if method == "nemenyi":
        distance = nemenyi_distance(values.shape[1], len(values), alpha)
    alike = (p_values >= alpha) | (found.p_value >= alpha)
    return CriticalDifference(
        agents=tuple(agents[place] for place in order),
        ranks=found.mean_ranks[order],
        blocks=len(values),
        friedman=found,
        p_values=p_values,
        groups=_groups(alike),
        distance=distance,
        alpha=alpha,
    )


def _groups(alike: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Return the longest runs of neighbours of which every pair is alike."""
    found: list[tuple[int, int]] = []
    count = len(alike)
    for first in range(count):
        last = first
        while last + 1 < count and alike[first : last + 2, first : last + 2].all():
            last += 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return tuple(found)
