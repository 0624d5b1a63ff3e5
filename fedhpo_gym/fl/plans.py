"""What no draw decides of local training, worked out once for all rounds of the same items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedhpo_gym.fl.steps import Steps

MAX_PLANNED = 2**17
"""Numbers that are kept of steps from round to round: of large courses only the first steps'."""


@dataclass(frozen=True, eq=False, slots=True)
class Chosen:
    """Hyperparameters of some items, (items,) each.

    Attributes:
        rate: learning rates.
        decay: factors of the parameters.
        others: values of the model's hyperparameters, by name.
        pull: strength of the pull; None for none.
        momentum: share of a step that the next one takes again; None for none.
    """

    rate: Tensor
    decay: Tensor
    others: Mapping[str, Tensor]
    pull: Tensor | None
    momentum: Tensor | None = None

    def of(self, span: slice) -> Chosen:
        """Return those of some of the items."""
        others = {name: value[span] for name, value in self.others.items()}
        pull = None if self.pull is None else self.pull[span]
        momentum = None if self.momentum is None else self.momentum[span]
        return Chosen(self.rate[span], self.decay[span], others, pull, momentum)


class Plan:
    """How items of one width train.

    Attributes:
        span: where they stand among all items.
        steps: what they read.
    """

    def __init__(self, span: slice, steps: Steps, chosen: Chosen) -> None:
        """Plan with the hyperparameters of the items of all widths."""
        self.span, self.steps = span, steps
        self._first = {len(steps.items): chosen.of(span)}
        self._rates: list[Tensor] = []
        self._room = MAX_PLANNED

    def first(self, count: int) -> Chosen:
        """Return the hyperparameters of the first items; they are those that train longest."""
        if count not in self._first:
            self._first[count] = self._first[len(self.steps.items)].of(slice(count))
        return self._first[count]

    def rates(self, number: int, weights: Tensor, rate: Tensor) -> Tensor:
        """Return the (items, rows) products of the rows' weights and learning rates in a step."""
        if number < len(self._rates):
            return self._rates[number]
        rates = weights * rate[:, None]
        self._room -= rates.numel()
        if self._room >= 0:
            self._rates.append(rates)
        return rates
