"""The version and variant of a problem to which stored results belong, as on their cards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedhpo_gym.core.checks import as_integer, coerce
from fedhpo_gym.core.plugins import callers_name

OPTIONS = ("algorithm", "alpha", "preprocessing", "precision", "table")
"""Arguments of `gymnasium.make` that choose the variant of a federated problem."""

BUILT_TABLE, FEDHPO_BENCH, IMPORTED = "fedhpo-gym", "fedhpo-bench", "imported"
"""Origin of a table: built by this package, published by FedHPO-Bench, or imported by the user. The
last one is also the entry of a card that describes the origin of imported results."""
OMITTED_VALUES: Mapping[str, str] = {"precision": "float32", "table": BUILT_TABLE}
"""Values that identities and cards omit, because older files were written without the option."""


@dataclass(frozen=True)
class Identity:
    """A variant of a version of a problem.

    Attributes:
        name: stem of its files; no code parses it.
        task: name of the problem in the catalogue.
        options: values of `OPTIONS`, in their order, without `OMITTED_VALUES`.
        settings: fixed hyperparameters, defaults included, in the order of their names.
        tuned: settings that are searched instead, each with its lowest and highest value.
    """

    name: str
    task: str
    version: int
    options: tuple[tuple[str, str | float], ...] = ()
    settings: tuple[tuple[str, float], ...] = ()
    tuned: tuple[tuple[str, float, float], ...] = ()

    @property
    def id(self) -> str:
        """Environment id of the problem."""
        return f"FedHPO-{self.task}-v{self.version}"

    @property
    def arguments(self) -> str:
        """Complete arguments of `fedhpo-gym build` for this variant."""
        options = [f"--{name} {callers_name(str(value))}" for name, value in self.options]
        fixed = [f"--setting {name}={value}" for name, value in self.settings]
        searched = [f"--tune {name}=[{low},{high}]" for name, low, high in self.tuned]
        return " ".join([self.id, *options, *fixed, *searched])

    @property
    def command(self) -> str:
        """Command that creates its table."""
        if "table" in dict(self.options):
            return "fedhpo-gym import PATH"
        return f"fedhpo-gym build {self.arguments}"

    def to_card(self) -> dict[str, Any]:
        """Return its entries of a card."""
        fixed = {"settings": dict(self.settings)} if self.settings else {}
        searched = {"tuned": {name: ends for name, *ends in self.tuned}} if self.tuned else {}
        kind = {"name": self.name, "task": self.task, "version": self.version}
        return {**kind, **dict(self.options), **fixed, **searched}

    @classmethod
    def from_card(cls, content: Mapping[str, Any]) -> "Identity":
        """Read the identity from the entries of a card."""
        for name in ("name", "task", "version"):
            if name not in content:
                raise ValueError(f"it lacks {name!r}, so its problem is unknown")
        version = as_integer(content["version"])
        if version is None or version < 0:
            raise ValueError(f"version {content['version']!r} is no version")
        tuned = coerce("tuned", content.get("tuned", {}), Mapping[str, Sequence[float]])
        if any(len(ends) != 2 for ends in tuned.values()):
            raise ValueError(f"`tuned` must hold a lowest and a highest value each, got {tuned!r}")
        return cls(
            name=str(content["name"]),
            task=str(content["task"]),
            version=version,
            options=tuple((name, content[name]) for name in OPTIONS if name in content),
            settings=tuple(sorted(dict(content.get("settings", {})).items())),
            tuned=tuple((setting, *ends) for setting, ends in tuned.items()),
        )
