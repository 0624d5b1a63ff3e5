"""Problems of dynamic configuration: courses in which a schedule is worth more than a setting.

Each is a task of the catalogue under conditions in which no constant is good all the way: few
clients a round, label skew, privacy or a deadline that must last. The reward adds up to the
improvement of the last model's validation loss, in decades. What a constant and what hindsight
reach is known of each (`env.unwrapped.references`): hindsight is better than the best constant by
at least half as much as that is better than the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, Self

from fedhpo_gym.tasks.federated import Task


@dataclass(frozen=True, kw_only=True)
class CourseProblem(Task):
    """A task under a `title` of its own, for its rounds alone."""

    title: str

    @property
    def name(self) -> str:
        return self.title

    @classmethod
    def like(cls, task: Task, title: str) -> Self:
        """Return a task under another name."""
        own = {one.name: getattr(task, one.name) for one in fields(Task)}
        return cls(**{**own, "title": title, "version": 1, "numbers": None})


_SMALL: Final = {"model_depth": 1, "model_width": 16}
DYNAMIC: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = MappingProxyType(
    {
        # One client of five in a round, whose update is the next model.
        "FewClients": ("LR-Car-v1", {"client_sample_rate": 0.2, "horizon": 50}),
        # The same, and every client has few of the seven classes.
        "LabelSkew": ("LR-Segment-v1", {"client_sample_rate": 0.2, "alpha": 0.1, "horizon": 100}),
        "Yogurt": (
            "MLP-Yogurt-v1",
            {"client_sample_rate": 0.1, "horizon": 50, "configuration": _SMALL},
        ),
    }
)
"""Name of each problem -> the task that is trained, and arguments of its id."""


def round_arguments(name: str) -> dict[str, Any]:
    """Return what the id of a problem brings to `gymnasium.make`."""
    task, arguments = DYNAMIC[name]
    standardized = "standardized" if task.startswith(("LR-", "MLP-")) else "label_encoded"
    shared = {"task": f"{name}-v1", "preprocessing": standardized, "time_price": 0.0}
    return {**shared, **arguments}
