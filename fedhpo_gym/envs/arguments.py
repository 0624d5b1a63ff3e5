"""Arguments that users write by name: records of them, and options of `reset`."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from gymnasium.envs.registration import EnvSpec

from fedhpo_gym.algorithms import algorithm_name
from fedhpo_gym.core.checks import coerce, parameter_types, short_repr, to_json_data
from fedhpo_gym.core.errors import InvalidArgumentError, suggest

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
RENDERING: Final[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": 4}
"""Metadata of single environments, which `gymnasium.make` reads off what makes them."""


class PlainSpec:
    """Base of environments whose `spec` holds plain arguments, so that it survives JSON."""

    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """What `gymnasium.make` made the environment of."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = spec and replace(spec, kwargs=to_json_data(spec.kwargs))


def with_signature_of(record: type[Any]) -> Callable[[F], F]:
    """Give an entry point its metadata and its whole signature, with the fields of a record."""

    def sign(entry_point: F) -> F:
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = parameter_types(record)
        signature = inspect.signature(entry_point)
        positional = [
            p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        defaults = inspect.signature(record).parameters
        keyword_only = [
            inspect.Parameter(name, keyword, default=defaults[name].default, annotation=hint)
            for name, hint in added.items()
        ]
        entry_point.__signature__ = signature.replace(parameters=[*positional, *keyword_only])  # type: ignore[attr-defined]
        entry_point.metadata = RENDERING  # type: ignore[attr-defined]
        return entry_point

    return sign


def check_own(entry_point: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Reject values of an entry point's arguments that do not match its signature."""
    hints = parameter_types(entry_point)
    for name, value in values.items():
        coerce(name, value, hints[name])


def refuse_render_mode(render_mode: str | None) -> None:
    """Refuse to draw N environments as one."""
    if render_mode is not None:
        raise InvalidArgumentError(
            "`render_mode` must be None for a vector environment, got "
            f"{render_mode!r}; draw one environment made by `gymnasium.make`"
        )


def parse_arguments(
    record: type[R], arguments: Mapping[str, Any], others: Sequence[str] = (), needed: str = "task"
) -> R:
    """Make a dataclass of arguments from what a user wrote."""
    field_names = {field.name for field in fields(record)}  # type: ignore[arg-type]
    for name in arguments:
        if name not in field_names:
            hint = suggest(name, field_names | set(others))
            raise InvalidArgumentError(f"unknown argument {name!r}.{hint}")
    if needed not in arguments:
        raise InvalidArgumentError(f"`{needed}` must name one of the catalogue, got nothing")
    return record(**arguments)


def chosen_options(record: object, names: Iterable[str]) -> dict[str, Any]:
    """Return those of some fields that a record has and that are not None.

    A caller may name an algorithm as `module:Class`, which is imported here.
    """
    options = {name: getattr(record, name, None) for name in names}
    if isinstance(algorithm := options.get("algorithm"), str):
        options["algorithm"] = algorithm_name(algorithm)
    return {name: value for name, value in options.items() if value is not None}


def read_options(options: object, allowed: Sequence[str]) -> dict[str, Any]:
    """Return the options of a `reset`, none where they are None."""
    entries = coerce("options", {} if options is None else options, Mapping[str, Any])
    for name in entries:
        if name not in allowed:
            raise InvalidArgumentError(
                f"`options` must hold nothing but {list(allowed)} for this environment, got "
                f"{short_repr(name)}"
            )
    return dict(entries)
