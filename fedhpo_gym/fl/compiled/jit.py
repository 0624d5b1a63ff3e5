"""Compile functions with numba and cache the machine code on disk.

The modules of this folder decorate their functions: `kernel` for those that Python calls,
`compiled` for those that only kernels call, and `implements` for the variants of a model. Compiling
takes half a minute, so that machine code is cached under a digest of all sources of the folder. The
digest covers all of them because a kernel contains the code of the functions that it calls.
Floating point stays exact: no option may change the order of a sum.
"""

from __future__ import annotations

import hashlib
import io
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    _CacheLocator,
)
from numba.extending import overload

from fedhpo_gym.core.files import cache_folder

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "boundscheck": False}
"""No fast-math: sums stay in the order in which they are written."""


def compiled(function: F) -> F:
    """Compile a function that only compiled functions call."""
    return cast("F", njit(**_OPTIONS)(function))


def kernel(function: F) -> F:
    """Compile a function that Python calls; its machine code is cached by CPU and sources."""
    dispatcher = njit(**_OPTIONS)(function)
    dispatcher._compile_for_args = _uninterrupted(dispatcher._compile_for_args)
    if _folder() is not None:
        dispatcher._cache = _Cache(function)
    return cast("F", dispatcher)


def implements(general: Callable[..., Any], kind: type[tuple[Any, ...]]) -> Callable[[F], F]:
    """Register a function as the variant of `general` for models of one type, a named tuple."""

    def register(function: F) -> F:
        def choose(model: Any, *_: Any) -> Any:
            return function if getattr(model, "instance_class", None) is kind else None

        overload(general, jit_options=_OPTIONS, strict=False)(choose)
        return function

    return register


def _uninterrupted(compile_for: Callable[..., Any]) -> Callable[..., Any]:
    """Delay signals until a compilation has ended, because an interrupted one breaks LLVM."""

    def work(*args: Any, **kwargs: Any) -> Any:
        if _folder() is None:
            _warn("", "no folder can be written")
        if threading.current_thread() is not threading.main_thread():
            return compile_for(*args, **kwargs)
        signals: list[int] = []
        former = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
        for kind, handler in former.items():
            if handler is not None:  # None: not set by Python, so it cannot be restored
                signal.signal(kind, lambda number, _: signals.append(number))
        try:
            return compile_for(*args, **kwargs)
        finally:
            for kind, handler in former.items():
                if handler is not None:
                    signal.signal(kind, handler)
            if signals:
                signal.raise_signal(signals[0])

    return work


@cache
def _folder() -> Path | None:
    """Return a folder that can be written, or None."""
    named_folder = os.environ.get("NUMBA_CACHE_DIR")
    name = f"compiled-{_digest()[:16]}"
    folders = [*([Path(named_folder) / name] if named_folder else []), cache_folder(name)]
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # its files are executed
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    return None


@cache
def _digest() -> str:
    """Return a digest of all compiled sources: machine code includes the functions it calls."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Locator(_CacheLocator):
    """Finds the machine code of a function by the digest of all sources of this folder."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        return str(_folder())

    def get_source_stamp(self) -> str:
        return _digest()

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        del py_file
        return cls(py_func)


class _Implementation(CompileResultCacheImpl):
    _locator_classes: Any = (_Locator,)


class _File(IndexDataCacheFile):
    """Files that end with a digest, since damaged machine code would crash the process.

    A digest after the pickle does not disturb numba, which reads the pickle only.
    """

    def _load_data(self, name: str) -> Any:
        _check(Path(self._data_path(name)))  # type: ignore[no-untyped-call]
        return super()._load_data(name)  # type: ignore[no-untyped-call]

    def _load_index(self) -> Any:
        with suppress(FileNotFoundError):
            _check(Path(self._index_path))
        return super()._load_index()  # type: ignore[no-untyped-call]

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        with super()._open_for_write(filepath) as handle:
            yield (content := io.BytesIO())
            handle.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())


def _check(path: Path) -> None:
    """Reject a file that was changed since it was written."""
    content = path.read_bytes()
    if content[-32:] != hashlib.sha256(content[:-32]).digest():
        raise ValueError(f"{path.name} was changed")


class _Cache(FunctionCache):
    """Machine code on disk; if it cannot be read or written, functions are compiled again."""

    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        own = self._impl
        self._cache_file = _File(  # type: ignore[no-untyped-call]
            self._cache_path, own.filename_base, own.locator.get_source_stamp()
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - a damaged pickle may raise anything
            _warn(self.cache_path, error)
            with suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - any failure to write
            _warn(self.cache_path, error)


_told: set[str] = set()


def _warn(folder: str, error: Exception | str) -> None:
    """Warn once that a cache folder cannot be used, or that there is none."""
    if folder not in _told:
        _told.add(folder)
        where = f" in {folder}" if folder else ""
        kind = f"{type(error).__name__}: " * isinstance(error, Exception)
        warnings.warn(
            f"compiled code{where} cannot be read or written ({kind}{error}), so functions "
            "are compiled again, for half a minute in every process; free space there, or name "
            "another folder in NUMBA_CACHE_DIR",
            stacklevel=2,
        )
