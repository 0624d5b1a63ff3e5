"""Which trial is the incumbent: one rule for agents with and without fidelities.

Wang et al. (2022, section 4.1) compare black-box and multi-fidelity agents by their best-seen
validation loss, where "higher fidelity results are preferred over lower ones". Stated exactly:

    After t trials, the incumbent is the trial of lowest value among those of the highest level
    that was tried so far; of equals, the first. The level of a trial is the product of the numbers
    of its fidelity: rounds times client sample rate.

Where constraints are set, trials that keep them come before all others, whatever their level; of
those that do not, the one of the least total violation comes first.

So a trial takes the incumbent's place if its level is higher, or if its level is equal and its
value lower. The value of the incumbent may therefore rise, each time a new level is reached, and
never falls back to a lower level. Where an agent has one level only, it is the best seen. The
program of that paper also lets a lower value of a lower level win; its text does not.

Losses of different levels are not losses of one thing. The stricter rule "full_fidelity" counts
trials of full fidelity alone: the highest level of any run on the problem. An agent has no
incumbent before its first such trial. It needs all runs of a problem, so it is the paper's rule
here, and `fedhpo_gym.analysis.group` leaves out what came before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.typed import checked_types

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Trials:
    """What a run tried, in the order in which it was paid for.

    Attributes:
        time_s: (N,) simulated seconds when the trial was paid for, never falling.
        value: (N,) what is minimised; never NaN.
        level: (N,) how much of a course was trained: the higher, the more; None where all trials
            have one fidelity.
        test: (N,) the value's counterpart on the test split, or None.
        told: (N,) the noisy values by which incumbents are chosen; None where they are `value`.
        is_course: whether these are steps of one course: then the last model is what counts, and
            each step is the incumbent until the next.
        violation: (N,) total violation of constraints; None where there are none. Feasible trials
            come before all others, and an incumbent that is not feasible has the value infinity.

    Raises:
        InvalidArgumentError: there is no trial, the arrays differ in length, hold NaN, or time runs
            backwards.
    """

    time_s: Numbers
    value: Numbers
    level: Numbers | None = None
    test: Numbers | None = None
    told: Numbers | None = None
    violation: Numbers | None = None
    is_course: bool = False

    def __post_init__(self) -> None:
        """Check the arrays."""
        if self.time_s.ndim != 1 or not len(self.time_s):
            raise InvalidArgumentError("`time_s` must have one entry per trial, and at least one")
        for name in ("value", "level", "test", "told", "violation"):
            array = getattr(self, name)
            if array is not None and array.shape != self.time_s.shape:
                raise InvalidArgumentError(
                    f"`{name}` must have one entry per trial, {self.time_s.shape}, "
                    f"got {array.shape}"
                )
        if any(np.isnan(one).any() for one in (self.value, self.ranked, self.time_s)):
            raise InvalidArgumentError(
                "`value` and `time_s` must not hold NaN; leave the trial out"
            )
        if np.any(self.time_s[1:] < self.time_s[:-1]):
            raise InvalidArgumentError("`time_s` must not run backwards; sort the trials")

    @property
    def ranked(self) -> Numbers:
        """(N,) what incumbents are chosen by."""
        values = self.value if self.told is None else self.told
        if self.violation is None or not self.violation.any():
            return values
        pairs = np.stack([self.violation, values], axis=1)
        return np.unique(pairs, axis=0, return_inverse=True)[1].astype(np.float64).reshape(-1)


@checked_types
def incumbents(trials: Trials, rule: str = "highest_fidelity") -> Places:
    """Return the number of the incumbent, from 0, after each trial: (N,); -1 while there is none.

    Args:
        trials: what a run tried.
        rule: a name in `RULES`.

    Raises:
        UnknownNameError: there is no such rule.
    """
    if rule not in RULES:
        raise unknown_name("rule of incumbents", rule, RULES)
    if trials.is_course:
        return np.arange(len(trials.time_s))
    return RULES[rule](trials)


def best_seen(trials: Trials) -> Places:
    """Return the first of the lowest values so far, whatever their level."""
    return _first_lowest(trials.ranked)


def highest_fidelity(trials: Trials) -> Places:
    """Return the first of the lowest values of the highest level so far: the paper's rule."""
    if trials.level is None:
        return best_seen(trials)
    level = trials.level
    if trials.violation is not None:
        level = np.where(trials.violation > 0, -1.0, level)  # below any that is feasible
    highest = np.maximum.accumulate(level)
    begins = np.flatnonzero(np.diff(highest, prepend=-np.inf) > 0)
    found = np.empty(len(highest), dtype=np.int64)
    for begin, end in zip(begins, [*begins[1:], len(highest)], strict=True):
        counts = level[begin:end] == highest[begin]
        values = np.where(counts, trials.ranked[begin:end], np.inf)
        # The first trial of a new level is of that level, so it stands if all values are infinite.
        found[begin:end] = begin + _first_lowest(values)
    return found


def _first_lowest(values: Numbers) -> Places:
    lowest = np.minimum.accumulate(values)
    is_new = np.empty(len(values), dtype=bool)
    is_new[0] = True
    np.less(values[1:], lowest[:-1], out=is_new[1:])
    # Only a new lowest value moves the incumbent: its place is the last of those so far.
    return np.maximum.accumulate(np.where(is_new, np.arange(len(values)), 0))


RULES: Final[Mapping[str, Callable[[Trials], Places]]] = {
    "best_seen": best_seen,
    "highest_fidelity": highest_fidelity,
    "full_fidelity": highest_fidelity,
}
"""Rules by name."""
