"""Every exception the package raises on purpose, and the wording of unknown names."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

MAX_NAME_LENGTH = 200
"""Characters of an unknown name that a message shows."""
MAX_NAMES = 60
"""Known names that a message lists where none is close to what was asked for."""


class FedHPOError(Exception):
    """Base of all errors raised by this package."""


class InvalidArgumentError(FedHPOError, ValueError):
    """An argument breaks a rule; the message names the argument, the rule, and the value."""


class OffGridError(InvalidArgumentError):
    """A value lies between the points of a grid that only knows its points."""


class UnknownNameError(FedHPOError, LookupError):
    """A name is in no catalogue; the message lists the nearest known names."""


class MissingDataError(FedHPOError, FileNotFoundError):
    """Data is not on this machine; the message ends with the command that gets it."""


class DamagedDataError(FedHPOError, ValueError):
    """Data does not match its hash or layout; the message names the file and the repair command."""


class TooLargeError(DamagedDataError):
    """A file would take more memory than it may; the message names the limit and its variable."""


class OtherFormatError(DamagedDataError):
    """An intact file of another format version; the message says which, and who can read it."""


class MissingDependencyError(FedHPOError, ImportError):
    """An optional package is not installed; the message names the extra to install."""


class WorkerLostError(FedHPOError, RuntimeError):
    """A worker process ended in the middle of its work; the message says how, and what to do."""


class WorkerTimeoutError(FedHPOError, TimeoutError):
    """A worker process took longer than it may, and was ended."""


class UnequalBitsError(FedHPOError, RuntimeError):
    """A course has other bits beside others on this machine; the message says what to set."""


class PeerError(FedHPOError, RuntimeError):
    """Another framework raised an error; the message shows it, and says where its log is."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a sentence, with a leading space, that helps after a mistyped name."""
    names = sorted(set(known))
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=3, cutoff=0.6)
    close = close or [one for one in by_lower if _initials(one) == str(name).lower()]
    if close:
        return f" Did you mean {' or '.join(repr(by_lower[match]) for match in close)}?"
    if len(names) > MAX_NAMES:
        close = difflib.get_close_matches(str(name).lower(), by_lower, n=5, cutoff=0.0)
        return f" Of {len(names)}, the nearest: {', '.join(by_lower[match] for match in close)}."
    return f" Known: {', '.join(names) or 'none'}."


def _initials(name: str) -> str:
    """Return "lr" of "learning_rate", and a single word as it is."""
    words = name.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else name


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build (not raise) the error for a name that no catalogue holds."""
    words = repr(name)
    if len(words) > MAX_NAME_LENGTH:
        words = f"{words[:MAX_NAME_LENGTH]}..."
    return UnknownNameError(f"Unknown {kind} {words}.{suggest(name, known)}")


def require_known(kind: str, name: str, known: Collection[str]) -> None:
    """Check that a catalogue holds a name."""
    if name not in known:
        raise unknown_name(kind, name, known)


def missing_dependency(what: str, package: str, extra: str) -> MissingDependencyError:
    """Build (not raise) the error for an optional package that is not installed."""
    return MissingDependencyError(
        f"{what} needs {package}, which is not installed. Run `pip install '.[{extra}]'` in a "
        "checkout of fedhpo_gym, which is on no index."
    )


@contextmanager
def require_optional(what: str, package: str, extra: str, *modules: str) -> Iterator[None]:
    """Say what to install when one of some modules is missing inside the `with` statement."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in modules:
            raise
        raise missing_dependency(what, package, extra) from error
