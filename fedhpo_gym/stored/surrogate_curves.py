"""The output model of a surrogate: whole learning curves, of which the best so far is read off.

For a configuration, a client sample rate and a seed, a model predicts what `surrogate_rows`
describes at all stored rounds, the *knots*, and with it the chance of having diverged. The
best-so-far at a knot is the prediction at the knot with the lowest validation loss up to it; every
metric and the best round come from there. From a knot to the best round of the next one, all that
is a blend of both, linear in the log round. So the loss never rises with the round, and an
unchanged best round means unchanged metrics.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Bools, Floats, Integers, Singles
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.stored.surrogate_models import Exact, ExactKernel, Forest, MultiHeadNetwork, on_grid
from fedhpo_gym.stored.surrogate_rows import VALIDATION

SCALES = ("mean", "scale", "low", "high")
COEFFICIENT_BITS, BASIS_BITS, CLIENT_BITS = 12, 16, 12
MAX_COEFFICIENT, MAX_CLIENT = 2.0**10, 2.0**10
MAX_BASIS = 128
"""A coefficient has 22 bits, an entry of a basis 17, and 128 products add 7: 46 of 53."""
DIVERGED, BEST_ROUND = -1, -2
"""Where a row of outputs holds whether a course has diverged, and the log of the best round."""
WATCHED = (VALIDATION, BEST_ROUND, DIVERGED)
"""Outputs that are looked at on the whole way."""
Best: TypeAlias = "tuple[Exact, Integers, Bools]"


CurveRegressor = Forest | ExactKernel | MultiHeadNetwork
"""What predicts (groups, rows, coefficients); a row has the same bits in any company."""
KINDS: Mapping[str, type[CurveRegressor]] = {
    kind.kind: kind for kind in (Forest, ExactKernel, MultiHeadNetwork)
}


class CurveModel:
    """A regressor, and how outputs at every knot follow from what it predicts.

    Attributes:
        regressor: predicts coefficients.
        scales: `mean` and `scale` that undo the standardisation of outputs; `low` and `high`,
            beyond which nothing is predicted: the range of the data, and of losses a bit less.
        centre: (K, targets) the mean curve.
        basis: (coefficients, K, targets) directions in which curves differ.
        clients: (components, client outputs) for the outputs of many clients; None where each
            target is an output.
    """

    def __init__(
        self,
        regressor: CurveRegressor,
        scales: Mapping[str, NDArray[np.floating]],
        centre: NDArray[np.floating],
        basis: NDArray[np.floating],
        clients: NDArray[np.floating] | None = None,
    ) -> None:
        self.regressor = regressor
        self.scales = {name: scales[name].astype(np.float64) for name in SCALES}
        self.centre, self.basis, self.clients = centre, basis, clients
        self._centre = on_grid(centre, BASIS_BITS, MAX_COEFFICIENT)
        self._basis = on_grid(basis, BASIS_BITS, 1.0)
        if basis.ndim != 3 or basis.shape[1:] != centre.shape or len(basis) > MAX_BASIS:
            raise ValueError(f"a basis of {basis.shape} does not fit a centre of {centre.shape}")
        self._by_knot = np.ascontiguousarray(self._basis.swapaxes(0, 1))
        watched = self._basis[:, :, list(WATCHED)]
        self._watch = np.ascontiguousarray(watched.T.reshape(-1, len(basis)))
        self._watch_centre = np.ascontiguousarray(self._centre[:, list(WATCHED)].T[:, :, None])
        self._clients = None if clients is None else on_grid(clients, BASIS_BITS, 1.0)

    @classmethod
    def from_arrays(cls, kind: str, arrays: Mapping[str, NDArray[Any]]) -> "CurveModel":
        """Rebuild a model from what `arrays` returned."""
        require_known("kind of surrogate model", kind, KINDS)
        centre, basis = arrays["centre"], arrays["basis"]
        return cls(KINDS[kind](arrays), arrays, centre, basis, arrays.get("components"))

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that is stored."""
        # With many clients the scales would be larger than everything else.
        single = np.float32 if self.clients is None else np.float16
        stored: dict[str, NDArray[Any]] = {
            **self.regressor.arrays,
            **{name: value.astype(single) for name, value in self.scales.items()},
            "centre": self.centre.astype(np.float32),
            "basis": self.basis.astype(np.float16),
        }
        if self.clients is not None:
            stored["components"] = self.clients.astype(np.float16)
        return stored

    def coefficients(self, rows: Singles) -> Exact:
        """Return (groups * rows, coefficients) of (groups, rows, features)."""
        predicted = self.regressor.predict(rows)
        flat = predicted.reshape(-1, predicted.shape[-1])
        return on_grid(flat, COEFFICIENT_BITS, MAX_COEFFICIENT)

    def at_all_knots(self, coefficients: Exact, output: int) -> Exact:
        """Return (n, K) values of one output of the federation, within the range of the data."""
        column = output if output >= 0 else self.centre.shape[1] + output
        targets = coefficients @ self._basis[:, :, column]
        targets += self._centre[:, column]
        return self._in_range(targets, output)

    def at_knots(self, coefficients: Exact, knots: Integers) -> Exact:
        """Return the (n, outputs) at one knot per row, within the range of the data."""
        order = np.argsort(knots, kind="stable")
        ends = np.searchsorted(knots[order], np.arange(len(self.centre) + 1))
        sorted_ = coefficients.take(order, axis=0)
        targets = np.empty((len(knots), self.centre.shape[1]))
        for knot, (start, end) in enumerate(pairwise(ends.tolist())):
            if end > start:
                np.matmul(sorted_[start:end], self._by_knot[knot], out=targets[start:end])
                targets[start:end] += self._centre[knot]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return self._in_range(self._expand(targets.take(back, axis=0)), slice(None))

    def best_so_far(self, rows: Singles, rounds: Integers, knots: Integers) -> Best:
        """Return the (groups * S, outputs) best so far at (groups,) rounds; `knots` are (K,)."""
        rounds_of_rows = np.repeat(rounds, rows.shape[1])  # `rows` are (groups, S, features)
        before = np.searchsorted(knots, rounds_of_rows, side="right") - 1
        coefficients = self.coefficients(rows)
        watched = (self._watch @ coefficients.T).reshape(len(WATCHED), len(self.centre), -1)
        losses, log_rounds, chances = watched + self._watch_centre  # (K, n) each, not scaled yet
        best_knots = running_best(self._in_range(losses, VALIDATION))
        each = np.arange(len(rounds_of_rows))
        first = best_knots[before, each]
        second = best_knots[np.minimum(before + 1, len(knots) - 1), each]
        best = self._best_rounds(log_rounds[first, each], first, knots)
        moving = np.flatnonzero((rounds_of_rows > knots[before]) & (second != first))
        then = self._best_rounds(log_rounds[second[moving], moving], second[moving], knots)
        now = rounds_of_rows[moving]
        best[moving] = np.minimum(then, now)
        first[moving] = np.where(now >= then, second[moving], first[moving])
        outputs = self.at_knots(coefficients, first)
        moving, then, now = (found[now < then] for found in (moving, then, now))
        if len(moving):
            later = self.at_knots(coefficients[moving], second[moving])
            later -= outputs[moving]
            later *= way_between(now, knots[before[moving]], then)[:, None]
            outputs[moving] += later
        # What is largest before it is scaled and cut off is largest after it.
        chance = self._in_range(np.maximum.accumulate(chances, axis=0)[before, each], DIVERGED)
        return outputs[:, :-1], best, chance >= 0.5

    def _expand(self, targets: Exact) -> Exact:
        if self._clients is None:
            return targets
        start, stop = len(SPLITS), len(SPLITS) + len(self._clients)
        middle = on_grid(targets[:, start:stop], CLIENT_BITS, MAX_CLIENT) @ self._clients
        return np.concatenate((targets[:, :start], middle, targets[:, stop:]), axis=1)

    def _best_rounds(self, targets: Exact, at: Integers, knots: Integers) -> Integers:
        """Return best rounds at (n,) of (K,) knots where the loss fell: after the knot before."""
        earliest = np.concatenate([[1], knots[:-1] + 1])
        predicted = np.rint(np.exp(self._in_range(targets, BEST_ROUND))).astype(np.int64)  # (n,)
        return np.asarray(np.minimum(np.maximum(predicted, earliest[at]), knots[at]))

    def _in_range(self, standardised: Exact, which: int | slice) -> Exact:
        scales = self.scales
        standardised *= scales["scale"][which]
        standardised += scales["mean"][which]
        low, high = scales["low"][which], scales["high"][which]
        return np.minimum(np.maximum(standardised, low, out=standardised), high, out=standardised)


Indices = Integers

NOTICED = 2e-4
"""A log loss falls by more than this, or not at all: rounding of float32 must not look like it."""


def running_best(columns: Floats) -> Indices:
    """Return, for every knot of (K, n) columns, the knot up to it that holds the best-so-far."""
    knots = np.zeros(columns.shape, dtype=np.int64)
    best = columns[0].copy()
    for knot in range(1, len(columns)):
        better = columns[knot] < best - NOTICED
        knots[knot] = knots[knot - 1]
        knots[knot][better] = knot
        np.copyto(best, columns[knot], where=better)
    return knots


def way_between(
    rounds: NDArray[np.integer], start: NDArray[np.integer], end: NDArray[np.integer]
) -> Floats:
    """Return (n,) shares of the way from start to end, in log rounds."""
    at, first, last = (_logarithms(each) for each in (rounds, start, end))
    return (at - first) / (last - first)


def _logarithms(rounds: NDArray[np.integer]) -> Floats:
    # One by one: a logarithm of an array may round by the position in it.
    distinct, where = np.unique(rounds, return_inverse=True)
    return np.array([math.log(each) for each in distinct.tolist()])[where]
