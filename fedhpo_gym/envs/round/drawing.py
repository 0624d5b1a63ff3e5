"""What the picture of a round environment shows."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol


class _Point(Protocol):
    @property
    def round(self) -> int: ...
    @property
    def val_loss(self) -> float: ...
    @property
    def action(self) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class Drawing:
    """An episode to draw.

    Attributes:
        title: name of the task.
        trace: the untrained model, and then every step.
        names: what the coordinates of an action are.
        horizon: rounds of an episode.
        action: what is drawn of actions.
    """

    title: str
    trace: tuple[_Point, ...]
    names: tuple[str, ...]
    horizon: int
    action: str

    def plot(self, figure: Any) -> None:
        """Draw the validation loss, and below it the actions, against the rounds they ruled."""
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        rounds = [point.round for point in self.trace]
        above.plot(rounds, [point.val_loss for point in self.trace], color="#0b5394", marker=".")
        above.set_ylabel("validation loss")
        above.set_title(f"{self.title}: round {rounds[-1]}", loc="left")
        losses = [point.val_loss for point in self.trace]
        usual = [loss for loss in losses if loss < 100 * max(median(losses), 1e-12)]
        if 0 < len(usual) < len(losses):
            # A course that diverged has a loss of 3.4e38: it ends at the rim.
            above.set_ylim(0.95 * min(usual), 1.05 * max(usual))
            gone = [r for r, loss in zip(rounds, losses, strict=True) if loss > max(usual)]
            rim = {"transform": above.get_xaxis_transform(), "clip_on": False}
            above.plot(gone, [1.0] * len(gone), ls="", marker="^", color="#0b5394", **rim)
            losses = usual
        if 0 < 20 * min(losses) < max(losses):
            above.set_yscale("log")
        for column, name in enumerate(self.names):
            values = [point.action[column] for point in self.trace[1:]]
            # An action rules the rounds before the point that it led to.
            drawn = [*values[:1], *values]
            below.step(rounds[: len(drawn)], drawn, where="pre", label=name)
        below.set_xlim(0, self.horizon)
        below.xaxis.get_major_locator().set_params(integer=True)
        below.set_ylim(-1.05, 1.05)
        below.set_ylabel(self.action)
        below.set_xlabel("round")
        # Beside the axes: actions lie anywhere inside them.
        below.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="x-small", frameon=False)
