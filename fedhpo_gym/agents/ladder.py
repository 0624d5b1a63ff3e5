"""Ladders: the fidelities at which configurations are tried, from cheap to full."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.search import Row, TrialSearch
from fedhpo_gym.checks import as_integer
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.space.dimension import Dimension, Value

ROUND = ("round",)


class LadderSearch(TrialSearch):
    """A search that chooses the fidelity of its trials, the last coordinates of every action.

    A configuration on a rung is asked for whole: an environment with `freeze_thaw=True` charges
    only the rounds that it has not had yet (resume), another charges all of them (restart).

    Where `round` and `client_sample_rate` are chosen together, both fall by eta from rung to rung,
    the rate no further than to its lowest value; a rung then costs about eta^2 times the one below
    it. Rates of a stored grid are the nearest ones.

    Attributes:
        rungs: values of the first fidelity, lowest first.
    """

    fidelity = "round"

    def __init__(
        self,
        problem: SearchProblem,
        *,
        low: Value | None = None,
        high: Value | None = None,
        eta: int = 3,
        fidelities: Sequence[str] = ROUND,
    ) -> None:
        """Build the ladder.

        Args:
            problem: at least one more coordinate in [-1, 1] than fidelities, which are the last.
            low: the lowest rung of the first fidelity is at least this; by default the lowest.
            high: its highest rung; by default the highest.
            eta: a rung is this many times the one below it.
            fidelities: which ones are chosen: `round`, `client_sample_rate`, or both.

        Raises:
            InvalidArgumentError: an argument breaks one of these rules.
        """
        self.fidelities = tuple(fidelities)
        super().__init__(problem)
        box, chosen = self.action_space, len(self.fidelities)
        if box.shape[0] <= chosen or (box.low != -1).any() or (box.high != 1).any():
            raise InvalidArgumentError(
                "`action_space` must be a Box in [-1, 1] of a configuration's coordinates and then "
                f"the fidelity's, got {box}"
            )
        base = as_integer(eta)
        if base is None or base < 2:
            raise InvalidArgumentError(f"`eta` must be an integer of at least 2, got {eta!r}")
        self._eta = base
        first, *others = (problem.fidelities[name] for name in self.fidelities)
        self.rungs = rungs(first, low, high, base)
        columns = [[first.encode(rung) for rung in self.rungs]]
        columns += [_shares(other, len(self.rungs), base) for other in others]
        # In the order of the action's coordinates, which is that of the problem's fidelities.
        order = [self.fidelities.index(name) for name in problem.fidelities.names]
        self._coordinates = np.array(columns)[order].T

    def on_rung(self, point: Sequence[float] | np.ndarray, rung: int) -> Row:
        """Return the action of a configuration's coordinates on a rung."""
        return np.array([*point, *self._coordinates[rung]], dtype=np.float32)

    def _check_fidelity(self, problem: SearchProblem) -> None:
        free, last = problem.fidelities.names, problem.search_space.names
        if {*self.fidelities} == {*free} and last[-len(free) :] == free and free:
            return
        others = {
            d.name: d.high for d in problem.fidelities.dimensions if d.name not in self.fidelities
        }
        named = " and ".join(map(repr, self.fidelities))
        advice = f"with fidelity={others}" if others else f"without {named} in its `fidelity`"
        raise InvalidArgumentError(
            f"{type(self).__name__} chooses the fidelity {named}, which must be the only "
            f"free one, got {list(free)}; make the environment {advice}."
        )


def rungs(
    fidelity: Dimension, low: Value | None, high: Value | None, eta: int
) -> tuple[Value, ...]:
    """Return the values high / eta^k that are at least `low`, lowest first.

    A fidelity with a grid gives the nearest ones that it has, each a rung once.

    Raises:
        InvalidArgumentError: `low` is not positive or above `high`.
    """
    bottom = float(fidelity.validate(fidelity.low if low is None else low, "low"))
    top = float(fidelity.validate(fidelity.high if high is None else high, "high"))
    if not 0 < bottom <= top:
        raise InvalidArgumentError(
            f"`low` must be positive and at most `high`, got low={bottom:g}, high={top:g}"
        )
    number = math.floor(math.log(top / bottom, eta) + 1e-9) + 1
    wanted = [top / eta**below for below in reversed(range(number))]
    return tuple(dict.fromkeys(_nearest(fidelity, rung) for rung in wanted))


def _shares(fidelity: Dimension, number: int, eta: int) -> list[float]:
    """Return the coordinates of another fidelity on each rung of a ladder of `number`."""
    wanted = [fidelity.high / eta**below for below in reversed(range(number))]
    return [fidelity.encode(_nearest(fidelity, max(fidelity.low, rung))) for rung in wanted]


def _nearest(fidelity: Dimension, wanted: float) -> Value:
    if fidelity.values is not None:
        return min(fidelity.values, key=lambda value: abs(float(value) - wanted))
    value = math.floor(wanted + 0.5) if fidelity.kind == "int" else wanted
    return fidelity.validate(value, "rungs")
