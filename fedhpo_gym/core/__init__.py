"""Foundations of all other packages: files, errors, checks, random streams and processes."""

import warnings
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


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that finds renamed objects by their old names, and warns."""

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"`{module}.{name}` is now `{names[name]}`"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), names[name])

    return attribute
