"""What every part stands on: files, errors, checks, random streams and processes."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__version__ = "0.1.0"
"""The version of the package, which run records and studies hold."""


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports a name's module when it is asked for."""
    homes = {name: module for module, names in modules.items() for name in names.split(", ")}

    def attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return attribute
