"""All exceptions that the package raises on purpose, and the messages for unknown names."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

MAX_NAME_LENGTH = 200
"""Characters of an unknown name that a message shows."""
MAX_NAMES = 60
"""Known names that a message lists if none resembles the requested one."""


class FedHPOError(Exception):
    """Base of all errors raised by this package."""


class InvalidArgumentError(FedHPOError, ValueError):
    """An argument breaks a rule; the message names the argument, the rule, and the value."""


class OffGridError(InvalidArgumentError):
    """A value lies between the points of a grid, which stores results for its points only."""


class UnknownNameError(FedHPOError, LookupError):
    """A name is in no catalogue; the message lists the nearest known names."""


class MissingDataError(FedHPOError, FileNotFoundError):
    """Data is not on this machine; the message ends with the command that gets it."""


class DamagedDataError(FedHPOError, ValueError):
    """Data does not match its hash or layout; the message names the file and the repair command."""


class TooLargeError(DamagedDataError):
    """A file would take more memory than it may; the message names the limit and its variable."""


class OtherFormatError(DamagedDataError):
    """An intact file of another format version; the message says which, and what can read it."""


class MissingDependencyError(FedHPOError, ImportError):
    """An optional package is not installed; the message names the extra to install."""


class WorkerLostError(FedHPOError, RuntimeError):
    """A worker process ended in the middle of its work; the message says how, and what to do."""


class WorkerTimeoutError(FedHPOError, TimeoutError):
    """A worker process exceeded its time limit and was ended."""


class UnequalBitsError(FedHPOError, RuntimeError):
    """A training run gives other bits in a batch than alone; the message says what to set."""


class PeerError(FedHPOError, RuntimeError):
    """Another framework raised an error; the message shows it, and the path of its log."""


def suggest(name: str, candidates: Iterable[str]) -> str:
    """Return a sentence, with a leading space, that suggests names for an unknown one."""
    names = sorted(set(candidates))
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=3, cutoff=0.6)
    close = close or [lower for lower in by_lower if _initials(lower) == str(name).lower()]
    if close:
        return f" Did you mean {' or '.join(repr(by_lower[match]) for match in close)}?"
    if len(names) > MAX_NAMES:
        close = difflib.get_close_matches(str(name).lower(), by_lower, n=5, cutoff=0.0)
        return f" Of {len(names)}, the nearest: {', '.join(by_lower[match] for match in close)}."
    return f" Known: {', '.join(names) or 'none'}."


def _initials(name: str) -> str:
    """Return "lr" for "learning_rate", and a single word unchanged."""
    parts = name.split("_")
    return "".join(word[:1] for word in parts) if len(parts) > 1 else name


def unknown_name(kind: str, name: str, candidates: Iterable[str]) -> UnknownNameError:
    """Build (not raise) the error for a name that no catalogue holds."""
    quoted = repr(name)
    if len(quoted) > MAX_NAME_LENGTH:
        quoted = f"{quoted[:MAX_NAME_LENGTH]}..."
    return UnknownNameError(f"Unknown {kind} {quoted}.{suggest(name, candidates)}")


def require_known(kind: str, name: str, candidates: Collection[str]) -> None:
    """Check that a catalogue holds a name."""
    if name not in candidates:
        raise unknown_name(kind, name, candidates)


def missing_dependency(feature: str, package: str, extra: str) -> MissingDependencyError:
    """Build (not raise) the error for an optional package that is not installed."""
    return MissingDependencyError(
        f"{feature} needs {package}, which is not installed. Run `pip install '.[{extra}]'` in a "
        "checkout of fedhpo_gym, which is on no index."
    )


@contextmanager
def require_optional(feature: str, package: str, extra: str, *modules: str) -> Iterator[None]:
    """Raise `missing_dependency` if one of some modules is missing inside the `with` statement."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in modules:
            raise
        raise missing_dependency(feature, package, extra) from error
