"""What the picture of a round environment shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class _Point(Protocol):
    round: int
    val_loss: float
    action: tuple[float, ...]


@dataclass(frozen=True)
class Drawing:
    """An episode to draw.

    Attributes:
        title: name of the task.
        trace: the untrained model, and then every step.
        names: what the coordinates of an action are.
    """

    title: str
    trace: tuple[Any, ...]
    names: tuple[str, ...]

    def plot(self, figure: Any) -> None:
        """Draw the validation loss, and below it the actions, against the rounds."""
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        rounds = [point.round for point in self.trace]
        above.plot(rounds, [point.val_loss for point in self.trace], color="#0b5394", marker=".")
        above.set_ylabel("validation loss (nats)")
        above.set_title(f"{self.title}: round {rounds[-1]}", loc="left")
        losses = [point.val_loss for point in self.trace]
        if 0 < 20 * min(losses) < max(losses):
            above.set_yscale("log")
        for column, name in enumerate(self.names):
            values = [point.action[column] for point in self.trace[1:]]
            below.plot(rounds[1:], values, marker=".", label=name)
        below.set_ylim(-1.05, 1.05)
        below.set_ylabel("action")
        below.set_xlabel("round")
        below.legend(loc="upper left", fontsize="x-small", ncols=2, frameon=False)
