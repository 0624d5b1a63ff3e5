"""What an evaluation costs on the simulated clock."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, get_type_hints

from fedhpo_gym.core.checks import coerce, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, suggest
from fedhpo_gym.systems.base import NEEDS_SAMPLES, ClientWork, CourseHistory, JobClock, System, Work
from fedhpo_gym.systems.device_model import DeviceModel
from fedhpo_gym.systems.model import (
    CROSS_DEVICE,
    CROSS_SILO,
    RecordedModel,
    RoundRecord,
    SystemModel,
    calibrate,
)

SYSTEM_MODELS: Final[Mapping[str, type[System]]] = {
    "analytic": SystemModel,
    "devices": DeviceModel,
    "recorded": RecordedModel,
}
"""System models: Eq. 1 of FedHPO-Bench, single devices, and recorded times of a user."""


@validate_call
def changed_system(base: System, changes: Mapping[str, Any]) -> System:
    """Return a system model with some parameters replaced.

    `model` chooses another kind, which takes over the parameters that all kinds have.
    """
    parameters = dict(changes)
    kind = type(base)
    if "model" in parameters:
        name = coerce("model", parameters.pop("model"), str)
        require_known("system model", name, SYSTEM_MODELS)
        kind = SYSTEM_MODELS[name]
    field_names, hints = (
        [field.name for field in fields(kind)],
        get_type_hints(kind, include_extras=True),
    )
    for name, value in parameters.items():
        if name not in field_names:
            raise InvalidArgumentError(
                f"unknown system parameter {name!r}.{suggest(name, field_names)}"
            )
        parameters[name] = coerce(f"system[{name!r}]", value, hints[name])
    if kind is type(base):
        return replace(base, **parameters)
    shared = {field.name: getattr(base, field.name) for field in fields(System)}
    return kind(**{**shared, **parameters})


__all__ = [
    "CROSS_DEVICE",
    "CROSS_SILO",
    "NEEDS_SAMPLES",
    "SYSTEM_MODELS",
    "ClientWork",
    "CourseHistory",
    "DeviceModel",
    "JobClock",
    "RoundRecord",
    "System",
    "SystemModel",
    "Work",
    "calibrate",
    "changed_system",
]
