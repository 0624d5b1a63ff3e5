"""Foundations of all other packages: files, errors, checks, random streams and processes."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__version__ = "0.1.0"
"""The version of the package, which run records and studies hold."""


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports the module of a name at its first use."""
    homes = {name: module for module, names in modules.items() for name in names.split(", ")}

    def attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return attribute
