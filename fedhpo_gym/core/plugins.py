"""What users add by name to the sealed catalogues, and `module:name` where a name is taken.

Installed packages add theirs by an entry point of the group `fedhpo_gym`, whose module registers
them when it is imported. Files and records never name a module: only who calls does.
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
    """What behaves like a dictionary, and makes each value when it is first asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], V]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, V] = {}

    def __getitem__(self, key: str) -> V:
        if key not in self._made:
            self._made[key] = self._makers[key]()
        return self._made[key]

    def __setitem__(self, key: str, value: V) -> None:
        self._makers[key] = lambda: value
        self._made[key] = value

    def __delitem__(self, key: str) -> None:
        del self._makers[key]
        self._made.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {short_repr(list(self))}"


ENTRY_POINT_GROUP: Final = "fedhpo_gym"
"""Group of entry points, each a module to import."""

_modules: dict[str, None] = {}


class Registry(LazyDict[V]):
    """What users add to one sealed catalogue, by name; who adds a name again replaces it."""

    def __init__(self, kind: str, sealed: Callable[[], Collection[str]]) -> None:
        """Hold things of a kind, whose names are none of the sealed ones."""
        super().__init__({})
        self._kind = kind
        self._sealed = sealed

    def add(self, name: str, make: Callable[[], V]) -> None:
        """Add what is made when it is first asked for."""
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
        self._made.pop(name, None)
        _note_module()


_callers_names: dict[str, str] = {}


def note_plugin(register: Callable[[Any], object], name: str, registered: str) -> None:
    """Remember that `register` was called with what `module:name` names: workers call it, too."""
    _modules[f"{register.__module__}:{register.__qualname__}={name}"] = None
    _callers_names[registered] = name


def callers_name(registered: str) -> str:
    """Return the `module:name` by which a caller has named what is registered, or its own name."""
    return _callers_names.get(registered, registered)


def is_named(name: str) -> bool:
    """Return whether a caller has named `module:name` in this process."""
    return any(entry.endswith(f"={name}") for entry in _modules)


def _note_module() -> None:
    """Remember the module outside the package that registers something: workers import it."""
    frame = sys._getframe(1)
    while (name := frame.f_globals.get("__name__", "")).partition(".")[
        0
    ] == ENTRY_POINT_GROUP and frame.f_back:
        frame = frame.f_back
    # What the package registers while it is imported, every process registers by itself.
    if name in sys.modules and name.partition(".")[0] not in _NO_PLUGINS:
        _modules[name] = None


_NO_PLUGINS: Final = (
    "__main__",
    "__mp_main__",
    ENTRY_POINT_GROUP,
    "functools",
    "importlib",
    "runpy",
)


def plugin_modules() -> tuple[str, ...]:
    """Return the modules that have registered something here, and calls that have."""
    return tuple(_modules)


def import_plugins(modules: Iterable[str]) -> None:
    """Register what `plugin_modules` of the process that started this one names."""
    for name in modules:
        register, _, target = name.rpartition("=")
        _try(partial(_register, register, target), f"the module {target}")


def _register(register: str, target: str) -> None:
    if not register:
        importlib.import_module(target)
        return
    call = import_named("register", "a function", register)
    call(import_named("name", "what is registered", target))


def load_entry_points() -> None:
    """Import what installed packages add; one that fails is named in a warning and left out."""
    for found in _entry_points():
        _try(found.load, f"{found.value} of the entry point {found.name!r}")


def _entry_points() -> Iterable[EntryPoint]:
    """Return the entry points of all installed packages whose list of them can be read."""
    with suppress(*FOREIGN_ERRORS):
        return entry_points(group=ENTRY_POINT_GROUP)
    found: dict[tuple[str, str], EntryPoint] = {}
    for package in distributions():

        def read(package: Distribution = package) -> None:
            for one in package.entry_points.select(group=ENTRY_POINT_GROUP):
                found.setdefault((one.name, one.value), one)

        _try(read, f"what an `entry_points.txt` lists in {package.locate_file('')}")
    return found.values()


def qualified_source(call: Callable[..., object]) -> str:
    """Return what a function is called and its source, where there is one: another is another."""
    place = f"{call.__module__}:{call.__qualname__}"
    with suppress(OSError, TypeError):
        return f"{place} {inspect.getsource(call)}"
    return place


def _try(load: Callable[[], object], what: str) -> None:
    try:
        load()
    except KeyboardInterrupt:  # a Ctrl-C of the user
        raise
    except BaseException as error:  # noqa: BLE001 - what is wrong is not with us
        try:
            words = repr(error)
        except Exception:  # noqa: BLE001 - nor is how it is shown
            words = type(error).__name__
        warnings.warn(f"{what} cannot be imported and is left out: {words}", stacklevel=3)


def require_subclass(argument: str, name: str, kind: Any, base: type, method: str) -> None:
    """Check that a user's class is what a catalogue takes, with attributes of the right types."""
    if not (isinstance(kind, type) and issubclass(kind, base)) or inspect.isabstract(kind):
        raise InvalidArgumentError(
            f"`{argument}` must be a subclass of {base.__module__.rpartition('.')[0]}."
            f"{base.__qualname__} that has `{method}`, got {name}, which is {short_repr(kind)}"
        )
    for attribute, hint in get_type_hints(base, include_extras=True).items():
        value_type = get_args(hint)[0] if get_origin(hint) is ClassVar else hint
        coerce(f"{name}.{attribute}", getattr(kind, attribute, None), value_type)


def import_named(argument: str, what: str, name: str) -> Any:
    """Import what `module:name` names; the module is run, so only a caller may choose it."""
    module, _, attribute = name.partition(":")
    rule = f"`{argument}` must name {what} as module:name, got {short_repr(name)}"
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise InvalidArgumentError(f"{rule}; write it as `mine:Greedy` for `Greedy` of mine.py")
    import_module(rule, module)
    found = getattr(sys.modules[module], attribute, None)
    if found is None:
        raise InvalidArgumentError(f"{rule}; {sys.modules[module]} has no {attribute}")
    return found


def import_module(rule: str, module: str) -> None:
    """Import a module that a caller named, also from the working folder."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # the last place: no file here hides a library
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        words = f"importing it raised {type(error).__name__}: {error}".splitlines()[0]
        advice = f"`python -c 'import {module}'` shows where"
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            words = f"there is no module {error.name!r} in the working folder or on the Python path"
            advice = "go to its folder, or add that to PYTHONPATH"
        raise InvalidArgumentError(f"{rule}; {words}: {advice}") from error
