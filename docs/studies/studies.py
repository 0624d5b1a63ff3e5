"""What the studies beside this file share: which data there are, and statistics."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.core.files import write_text
from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.data import SOURCES, TableSource, load_dataset

CORES = os.cpu_count() or 1


def tables_here(names: Sequence[str]) -> tuple[str, ...]:
    """Return the tables that load without a download; print how the others are fetched."""
    found = []
    for name in names:
        try:
            _load(name)
            found.append(name)
        except MissingDataError as error:
            print(error)
    return tuple(found)


def _load(name: str) -> None:
    source = SOURCES[name]
    if isinstance(source, TableSource) and not source.here:
        raise MissingDataError(f"{name} is left out: it is not here; run `{source.repair}`")
    load_dataset(name)


def study_parser(doc: str) -> argparse.ArgumentParser:
    """Return what reads a study's command line: where to, how large, and on how many cores.

    Args:
        doc: docstring of the study; its first line says what it asks.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for all that is made")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it works")
    parser.add_argument("--workers", type=positive, default=CORES, help="processes (one per core)")
    return parser


def positive(word: str) -> int:
    """Return an option of the command line that counts something."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {word!r}")
    return int(word)


def rewrite(page: Path, name: str, words: str) -> None:
    """Replace what stands on a page between `<!-- name -->` and the next `<!-- end -->`."""
    before, mark, after = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = after.partition("<!-- end -->")
    if not (mark and end):
        raise InvalidArgumentError(
            f"`--page` must have a line `<!-- {name} -->` and, after it, `<!-- end -->`, got {page}"
        )
    write_text(page, f"{before}{mark}\n{words}\n{end}{after}")


def mean_and_error(values: ArrayLike) -> tuple[float, float]:
    """Return the mean of independent values and its standard error (0 for a single value)."""
    found = np.asarray(values, dtype=np.float64).ravel()
    if found.size < 2:
        return float(found.mean()), 0.0
    return float(found.mean()), float(found.std(ddof=1)) / math.sqrt(found.size)


def cell(values: ArrayLike, digits: int = 3, sign: bool = False) -> str:
    """Return `mean ± standard error` as text."""
    mean, error = mean_and_error(values)
    return f"{mean:{'+' if sign else ''}.{digits}f} ± {error:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return markdown_table(head, rows) + "\n"
