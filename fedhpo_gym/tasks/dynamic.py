"""Problems of dynamic configuration: courses in which a schedule is worth more than a setting.

Each is a task of the catalogue under conditions in which no constant is good all the way: few
clients a round, label skew, privacy or a deadline that must last. The reward adds up to the
improvement of the last model's validation loss, in decades. What a constant and what hindsight
reach on each is known (`fedhpo_gym.stored.references`): hindsight has at least half as much more
than the best constant as that has more than the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, Self

from fedhpo_gym.tasks.federated import Task


@dataclass(frozen=True, kw_only=True)
class CourseProblem(Task):
    """A task under a name of its own, for its rounds alone.

    Attributes:
        title: the name.
        arguments: what its id brings to `gymnasium.make`, besides the task.
    """

    title: str
    arguments: Mapping[str, Any] = field(compare=False)

    @property
    def name(self) -> str:
        return self.title

    @classmethod
    def like(cls, task: Task, title: str, arguments: Mapping[str, Any]) -> Self:
        """Return a task under another name."""
        own = {one.name: getattr(task, one.name) for one in fields(Task)}
        changed = {"title": title, "arguments": arguments, "version": 1, "numbers": None}
        return cls(**{**own, **changed})


_SHARED: Final = {"time_price": 0.0}
DYNAMIC: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = MappingProxyType(
    {"FewClients": ("LR-Vehicle-v1", {"client_sample_rate": 0.2})}
)
"""Name of each problem -> the task that is trained, and arguments of its id."""


def round_arguments(name: str) -> dict[str, Any]:
    """Return what the id of a problem brings to `gymnasium.make`."""
    return {"task": f"{name}-v1", **_SHARED, **DYNAMIC[name][1]}
