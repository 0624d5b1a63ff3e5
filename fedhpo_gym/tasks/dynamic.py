"""Problems of dynamic configuration: courses in which a schedule is worth more than a setting.

Each is a task of the catalogue under conditions in which no constant is good all the way: few
clients a round, label skew, privacy or a deadline that must last. The reward adds up to the
improvement of the last model's validation loss, in decades. What a constant and what hindsight
reach is known of each (`env.unwrapped.references`): hindsight is better than the best constant by
at least half as much as that is better than the default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks.federated import Task


@dataclass(frozen=True, kw_only=True)
class CourseProblem(Task):
    """A task under a `title` of its own, for its rounds alone."""

    title: str

    @property
    def name(self) -> str:
        return self.title

    @property
    def round_arguments(self) -> Mapping[str, Any]:
        return round_arguments(self.title)

    @classmethod
    def like(cls, task: Task, title: str, changes: Mapping[str, Any]) -> Self:
        """Return a task under another name, with other fields."""
        values = {field.name: getattr(task, field.name) for field in fields(Task)}
        return cls(**{**values, "title": title, "version": 1, "numbers": None, **changes})


_PICTURES: Final = {
    "model": "SmallCNN",
    "num_parameters": 1_898,
    "model_settings": (),
    "unstored": "raw",
    "client_space": SearchSpace(
        (
            Dimension("learning_rate", 1e-3, 1.0, "float", log=True, bins=9),
            Dimension("step_size", 1, 4, "int", log=True, bins=3, unit="local epochs"),
            Dimension("batch_size", 16, 64, "int", log=True, bins=3, unit="samples"),
        )
    ),
}
_SMALL: Final = {"model_depth": 1, "model_width": 16}


class Definition(NamedTuple):
    """What a problem is: the task that is trained, what differs, and arguments of its id."""

    task: str
    arguments: Mapping[str, Any]
    changes: Mapping[str, Any] = MappingProxyType({})


DYNAMIC: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        # One client of five in a round, whose update is the next model.
        "FewClients": Definition("LR-Car-v1", {"client_sample_rate": 0.2, "horizon": 50}),
        # The same, and every client has few of the seven classes.
        "LabelSkew": Definition("LR-Segment-v1", {"client_sample_rate": 0.2, "alpha": 0.1}),
        # Noise that hides clients: little of it is quick, and an epsilon of 8 has to last.
        "Private": Definition(
            "LR-MlbDivision-v1",
            {
                "algorithm": "dpfedavg",
                "tune": {"noise_multiplier": (0.4, 8.0)},
                "epsilon": 8.0,
                "client_sample_rate": 0.2,
                "horizon": 30,
                "rounds_per_step": 1,
                "dynamic": ("learning_rate", "update_clip", "noise_multiplier"),
                "configuration": {
                    "step_size": 1,
                    "batch_size": 16,
                    "server_momentum": 0.0,
                    "server_learning_rate": 1.0,
                    "weight_decay": 1e-6,
                },
            },
        ),
        # Local epochs make a round better, and cost seconds of sixty.
        "Deadline": Definition(
            "LR-Vehicle-v1",
            {
                "dynamic": ("learning_rate", "batch_size", "step_size"),
                "configuration": {"weight_decay": 1e-6},
                "client_sample_rate": 0.2,
                "budget_s": 60.0,
            },
        ),
        # Perceptrons on natural federations.
        "Tuna": Definition(
            "MLP-Tuna-v1", {"client_sample_rate": 0.1, "horizon": 50, "configuration": _SMALL}
        ),
        "ExamLondon": Definition(
            "MLP-ExamLondon-v1",
            {
                "client_sample_rate": 0.1,
                "horizon": 20,
                "rounds_per_step": 2,
                "dynamic": ("learning_rate", "step_size", "batch_size"),
                "configuration": {**_SMALL, "weight_decay": 1e-6},
            },
        ),
        # A convolutional network on digits, few clients with few of the digits each.
        "Pictures": Definition(
            "LR-Digits-v1",
            {
                "client_sample_rate": 0.2,
                "alpha": 0.1,
                "horizon": 30,
                "rounds_per_step": 3,
                "dynamic": ("learning_rate", "step_size"),
                "configuration": {"batch_size": 64},
            },
            _PICTURES,
        ),
    }
)
"""The problems by name."""


def round_arguments(name: str) -> dict[str, Any]:
    """Return what the id of a problem brings to `gymnasium.make`."""
    arguments = DYNAMIC[name].arguments
    shared = {"task": f"{name}-v1", "preprocessing": "standardized", "time_price": 0.0}
    return {**shared, **arguments}
