"""Registration of plugins: tasks, models, algorithms, agents and others that users add by name.

The catalogues of the package are sealed, and a `Registry` beside each holds the additions of users.
Installed packages register theirs through an entry point of the group `fedhpo_gym`, whose module is
imported. A caller may also write `module:name`, which is imported and run. For safety, files and
records never name a module. Worker processes import the same modules through `import_plugins`.
"""

import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, get_args, get_origin, get_type_hints

from fedhpo_gym.core.checks import FOREIGN_ERRORS, coerce, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError

V = TypeVar("V")


class LazyDict(MutableMapping[str, V]):
    """A dictionary that creates each value at its first use."""

    def __init__(self, makers: Mapping[str, Callable[[], V]]) -> None:
        self._makers = dict(makers)
        self._values: dict[str, V] = {}

    def __getitem__(self, key: str) -> V:
        if key not in self._values:
            self._values[key] = self._makers[key]()
        return self._values[key]

    def __setitem__(self, key: str, value: V) -> None:
        self._makers[key] = lambda: value
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._makers[key]
        self._values.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {short_repr(list(self))}"


ENTRY_POINT_GROUP: Final = "fedhpo_gym"
"""Group of entry points; each names a module to import."""

_modules: dict[str, None] = {}


class Registry(LazyDict[V]):
    """The additions of users to one sealed catalogue, by name; a later one replaces an earlier."""

    def __init__(self, kind: str, sealed: Callable[[], Collection[str]]) -> None:
        """Hold plugins of a kind, whose names must differ from the sealed ones."""
        super().__init__({})
        self._kind = kind
        self._sealed = sealed

    def add(self, name: str, make: Callable[[], V]) -> None:
        """Add a value that `make` creates at its first use."""
        if not re.fullmatch(r"\w[\w.-]{0,99}", name):
            raise InvalidArgumentError(
                f"the name of your own {self._kind} must have letters, digits, '-', '_' or '.' "
                f"only, 100 at most, and begin with none of '-' and '.', got {short_repr(name)}"
            )
        if name in self._sealed():
            raise InvalidArgumentError(
                f"the name of your own {self._kind} must be none of this package, got {name!r}; "
                "choose another"
            )
        self._makers[name] = make
        self._values.pop(name, None)
        _remember_module()


_callers_names: dict[str, str] = {}


def remember_plugin(register: Callable[[Any], object], name: str, registered: str) -> None:
    """Remember a call of `register` with the object `module:name`, which workers repeat."""
    _modules[f"{register.__module__}:{register.__qualname__}={name}"] = None
    _callers_names[registered] = name


def callers_name(registered: str) -> str:
    """Return the `module:name` by which a caller named a plugin, or its registered name."""
    return _callers_names.get(registered, registered)


def is_named(name: str) -> bool:
    """Return whether a caller has used this `module:name` in this process."""
    return any(entry.endswith(f"={name}") for entry in _modules)


def _remember_module() -> None:
    """Remember the module outside the package that registers a plugin: workers import it."""
    frame = sys._getframe(1)
    while (name := frame.f_globals.get("__name__", "")).partition(".")[
        0
    ] == ENTRY_POINT_GROUP and frame.f_back:
        frame = frame.f_back
    # Registrations during the import of the package happen in every process anyway.
    if name in sys.modules and name.partition(".")[0] not in _NEVER_PLUGINS:
        _modules[name] = None


_NEVER_PLUGINS: Final = (
    "__main__",
    "__mp_main__",
    ENTRY_POINT_GROUP,
    "functools",
    "importlib",
    "runpy",
)


def plugin_modules() -> tuple[str, ...]:
    """Return the modules, and the calls, that have registered plugins in this process."""
    return tuple(_modules)


def import_plugins(modules: Iterable[str]) -> None:
    """Repeat the registrations of `plugin_modules` of the process that started this one."""
    for name in modules:
        register, _, target = name.rpartition("=")
        _load_or_warn(partial(_register, register, target), f"the module {target}")


def _register(register: str, target: str) -> None:
    if not register:
        importlib.import_module(target)
        return
    call = import_named("register", "a function", register)
    call(import_named("name", "what is registered", target))


def load_entry_points() -> None:
    """Import the plugins of installed packages; one that fails is omitted with a warning."""
    for entry_point in _readable_entry_points():
        _load_or_warn(
            entry_point.load, f"{entry_point.value} of the entry point {entry_point.name!r}"
        )


def _readable_entry_points() -> Iterable[EntryPoint]:
    """Return the entry points of all installed packages whose metadata can be read."""
    with suppress(*FOREIGN_ERRORS):
        return entry_points(group=ENTRY_POINT_GROUP)
    readable: dict[tuple[str, str], EntryPoint] = {}
    for package in distributions():

        def read(package: Distribution = package) -> None:
            for entry_point in package.entry_points.select(group=ENTRY_POINT_GROUP):
                readable.setdefault((entry_point.name, entry_point.value), entry_point)

        _load_or_warn(read, f"what an `entry_points.txt` lists in {package.locate_file('')}")
    return readable.values()


def qualified_source(call: Callable[..., object]) -> str:
    """Return the qualified name of a function and its source, if any: a changed one differs."""
    qualified_name = f"{call.__module__}:{call.__qualname__}"
    with suppress(OSError, TypeError):
        return f"{qualified_name} {inspect.getsource(call)}"
    return qualified_name


def _load_or_warn(load: Callable[[], object], label: str) -> None:
    try:
        load()
    except KeyboardInterrupt:  # a Ctrl-C of the user
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
        try:
            reason = repr(error)
        except Exception:  # noqa: BLE001 - its `repr` may fail, too
            reason = type(error).__name__
        warnings.warn(f"{label} cannot be imported and is left out: {reason}", stacklevel=3)


def require_subclass(argument: str, name: str, kind: Any, base: type, method: str) -> None:
    """Check that a user's class is a complete subclass, with attributes of the right types."""
    if not (isinstance(kind, type) and issubclass(kind, base)) or inspect.isabstract(kind):
        raise InvalidArgumentError(
            f"`{argument}` must be a subclass of {base.__module__.rpartition('.')[0]}."
            f"{base.__qualname__} that has `{method}`, got {name}, which is {short_repr(kind)}"
        )
    for attribute, hint in get_type_hints(base, include_extras=True).items():
        value_type = get_args(hint)[0] if get_origin(hint) is ClassVar else hint
        coerce(f"{name}.{attribute}", getattr(kind, attribute, None), value_type)


def import_named(argument: str, role: str, name: str) -> Any:
    """Import the object `module:name`. This runs the module, so only a caller may choose it."""
    module, _, attribute = name.partition(":")
    rule = f"`{argument}` must name {role} as module:name, got {short_repr(name)}"
    if not all(identifier.isidentifier() for identifier in (*module.split("."), attribute)):
        raise InvalidArgumentError(f"{rule}; write it as `mine:Greedy` for `Greedy` of mine.py")
    import_module(rule, module)
    value = getattr(sys.modules[module], attribute, None)
    if value is None:
        raise InvalidArgumentError(f"{rule}; {sys.modules[module]} has no {attribute}")
    return value


def import_module(rule: str, module: str) -> None:
    """Import a module that a caller chose, also from the working folder."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last, so that no file there hides a library
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        reason = f"importing it raised {type(error).__name__}: {error}".splitlines()[0]
        advice = f"`python -c 'import {module}'` shows where"
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            reason = (
                f"there is no module {error.name!r} in the working folder or on the Python path"
            )
            advice = "go to its folder, or add that to PYTHONPATH"
        raise InvalidArgumentError(f"{rule}; {reason}: {advice}") from error
