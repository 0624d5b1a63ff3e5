"""Families of tasks from Profet's own files: what is in them is read, and never run."""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    require_known,
)
from fedhpo_gym.core.files import load_json, max_bytes, require_bytes
from fedhpo_gym.profet.families import LINE, Family
from fedhpo_gym.space import Dimension, SearchSpace


@contextmanager
def reading(path: Path, site: str) -> Iterator[None]:
    """Say of which file an error is, and where it is published."""
    if not path.exists():
        raise MissingDataError(f"there is nothing at {path}; get it from {site}")
    try:
        yield
    except FedHPOError:
        raise
    except (OSError, EOFError, ValueError, TypeError, LookupError, ArithmeticError,
            AttributeError, tarfile.TarError, lzma.LZMAError) as error:  # fmt: skip
        raise DamagedDataError(
            f"{path} is not what it should be: {error}; get it again from {site}"
        ) from error


def limited(opened: Any, what: object) -> bytes:
    """Return what an open file holds, which must not be more than may be read."""
    with opened:
        content: bytes = opened.read(max_bytes() + 1)
    require_bytes(len(content), what)
    return content


def _intervals(**ranges: tuple[float, float, bool]) -> SearchSpace:
    return SearchSpace(
        tuple(
            Dimension(name, low, high, "float", log=log)
            for name, (low, high, log) in ranges.items()
        )
    )


E10: Final = float(np.exp(10.0))
SPACES: Final[Mapping[str, SearchSpace]] = {
    "forrester": LINE,
    "svm": _intervals(C=(1 / E10, E10, True), gamma=(1 / E10, E10, True)),
    "fcnet": _intervals(
        lr=(1e-6, 0.1, True), batch_size=(8, 128, True), n_units_1=(16, 512, True),
        n_units_2=(16, 512, True), dropout_1=(0, 0.99, False), dropout_2=(0, 0.99, False),
    ),
    "xgboost": _intervals(
        learning_rate=(1e-6, 0.1, True), gamma=(0, 2, False), reg_alpha=(1e-5, 1e3, True),
        reg_lambda=(1e-4, 1e3, True), n_estimators=(10, 500, False), subsample=(0.1, 1, False),
        max_depth=(1, 15, False), min_child_weight=(0, 20, False),
    ),
}  # fmt: skip
"""Profet's own search spaces, all of whose dimensions are intervals."""
_HOW: Final[Mapping[str, Mapping[str, Any]]] = {
    "forrester": {"latent": 2, "widths": (100,)},
    "svm": {"link": "logit"},
    "fcnet": {"link": "logit"},
    "xgboost": {"link": "log"},
}
PROFET_SITE: Final = "its authors: profet_data.tar.gz, data/data_sobol_<name>.json"


@checked_types
def read_profet_json(path: Path, name: str) -> Family:
    """Return a family from `data_sobol_<name>.json` of Profet's authors, or in their layout.

    Args:
        path: a JSON file of X (N, D) in [0, 1], Y (T, N) and C (T, N), costs in seconds.
        name: whose search space and settings it has, a key of `SPACES`.
    """
    require_known("family of Profet", name, SPACES)
    with reading(path, PROFET_SITE):
        content = limited(path.open("rb"), path)
        if path.suffix == ".pkl" or content[:1] == b"\x80":
            raise InvalidArgumentError(
                f"`path` must be a JSON file, got {path}: Profet's samples are pickles, which run "
                f"code when they are read; give data_sobol_{name}.json, and fit a model to it"
            )
        held = load_json(content, path)
        x, y, c = (np.array(held[key], dtype=np.float64) for key in "XYC")
        names = tuple(map(str, range(len(y))))
    costs = None if name == "forrester" else c
    return Family(name, SPACES[name], x, y, costs, names, str(path), **_HOW[name])
