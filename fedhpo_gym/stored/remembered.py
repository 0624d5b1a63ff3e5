"""Results that take seconds to compute from stored numbers, such as an optimum that is searched.

`recall` returns a result that was computed before, or computes it and writes it to the user's cache
folder. The results of default arguments come with the package, in one file for each card.
A result is found by a digest of all that it depends on, so a stale one is never returned.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedhpo_gym.core.archive import EMBEDDED_FOLDER
from fedhpo_gym.core.checks import FOREIGN_ERRORS
from fedhpo_gym.core.errors import FedHPOError
from fedhpo_gym.core.files import cache_folder, read_json, write_text
from fedhpo_gym.evaluation.records import Fidelity

SUFFIX: Final = ".truth.json"
MAX_FILES: Final = 1024
"""Results in the cache folder, about 10 kB each; the oldest are deleted first."""

Result = dict[str, Any]


def key_of(*parts: object) -> str | None:
    """Return the digest of what a result depends on; None where `repr` does not say all of that."""
    text = repr(parts)
    # Objects without a `repr` of their own show an address, and long arrays an ellipsis.
    if " at 0x" in text or "..." in text:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def results_stem(card: Mapping[str, Any], backend: str) -> str:
    """Return the beginning of the name of the file with results of stored numbers."""
    return f"{card.get('name', '')}.{backend}"


def recall(
    stem: str,
    key: str | None,
    compute: Callable[[], Mapping[str, Any]],
    is_valid: Callable[[Any], bool] = lambda result: isinstance(result, dict),
) -> Result:
    """Return the result of a key, as it comes back from JSON.

    Args:
        stem: `results_stem` the stored numbers.
        key: `key_of` everything that the result depends on; None computes it every time.
        compute: computes the result.
        is_valid: whether a stored result has the form of a computed one; another is computed again.
    """
    if key is None:
        return dict(compute())
    cached = cache_folder("truths") / f"{key}.json"
    for path in (EMBEDDED_FOLDER / f"{stem}{SUFFIX}", cached):
        stored = read_results(path).get(key)
        with suppress(*FOREIGN_ERRORS):  # of a form that nobody foresaw
            if stored is not None and is_valid(stored):
                return stored
    result: Result = json.loads(json.dumps(compute()))
    with suppress(OSError):  # a cache that cannot be written is no reason to fail
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_remembered(cached, {key: result})
        _limit(cached.parent)
    return result


def is_truth(result: Mapping[str, Any], width: int) -> bool:
    """Return whether a result has the form of what a `Truth` of some objectives stores."""
    arrays = {name: np.array(result[name]) for name in ("best", "medians", "front")}
    configuration, fidelity = result["query"]
    Fidelity(**fidelity)
    cells, losses = configuration.values(), result.get("losses", {}).values()
    return (
        all(array.dtype.kind in "if" for array in arrays.values())
        and arrays["best"].shape == arrays["medians"].shape == (width,)
        and arrays["front"].shape == (max(len(arrays["front"]), 1), width)
        and all(isinstance(cell, int | float | str) for cell in cells)
        and all(type(loss) is float for loss in losses)
    )


def write_remembered(path: Path, results: Mapping[str, Result]) -> None:
    """Write results, by key, with their checksum."""
    write_text(path, json.dumps({"sha256": _digest(results), "results": results}) + "\n")


def read_results(path: Path) -> Mapping[str, Result]:
    """Return the results in a file by key; none where it is missing, damaged or of another kind."""
    with suppress(FedHPOError, OSError, *FOREIGN_ERRORS):
        content = read_json(path)
        if content["sha256"] == _digest(content["results"]):
            return dict(content["results"])
    return {}


def _digest(results: Mapping[str, Result]) -> str:
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


def _limit(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in files[: max(len(files) - MAX_FILES, 0)]:
        path.unlink(missing_ok=True)
