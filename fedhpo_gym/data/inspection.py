"""What a table of one's own seems to hold: an encoding of each column, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from fedhpo_gym.core.errors import InvalidArgumentError, needing, require_known, suggest
from fedhpo_gym.data.natural import RARE, grows

MOST_CLASSES: Final = 100
MOST_NUMBERS: Final = 20
"""Distinct numbers of a target that are taken for classes."""
GIVES_AWAY, MAJORITY = 0.98, 0.95
"""Accuracy of one column alone from which on it gives the target away, where the most frequent
class has a smaller share than the second number."""
LOOKED_AT: Final = 5_000
"""Rows that are asked whether a column gives the target away."""


class Inspection(NamedTuple):
    """What was found."""

    columns: dict[str, str]  # an encoding for each column
    rare: int  # rows that a word must have for a column of its own
    notes: tuple[str, ...]  # what was done, and why, a sentence each


def inspect(frame: Any, target: str, client: str | None, leave_out: Sequence[str]) -> Inspection:
    """Look at a data frame and say how its columns are encoded.

    Raises:
        InvalidArgumentError: a column is not there, or the target is no class.
    """
    for argument, name in (("target", target), ("client", client)):
        if name is not None and name not in frame:
            raise InvalidArgumentError(
                f"`{argument}` must be a column of the data, got {name!r}.{suggest(name, frame)}"
            )
    for name in leave_out:
        require_known("column", name, [*frame])
    whole = len(frame)
    frame = frame.dropna(subset=[target, *filter(None, [client])])
    notes = list(_of_target(frame, target))
    if whole > len(frame):
        notes.append(f"{whole - len(frame)} of {whole} rows have no {target} or client: left out.")
    if client is not None:
        notes += _of_clients(frame, client)
    rare = min(RARE, max(2, len(frame) // 50))
    columns: dict[str, str] = {}
    for name in frame:
        if name not in (target, client):
            asked = "none", "as asked"
            encoding, said = asked if name in leave_out else _encoding(frame, name, client, rare)
            columns[name] = encoding
            if said:
                out = " is left out" * (encoding == "none")
                notes.append(f"Column {name!r}{out}: {said}.")
    kept = [name for name, encoding in columns.items() if encoding != "none"]
    if not kept:
        raise InvalidArgumentError("the data must have a column besides target and client to learn")
    notes += _giving_away(frame, target, kept)
    return Inspection(columns, rare, tuple(notes))


def _of_target(frame: Any, target: str) -> Iterator[str]:
    counts = frame[target].value_counts()
    numeric = frame[target].dtype.kind in "iuf"
    if len(counts) < 2 or len(counts) > (MOST_NUMBERS if numeric else MOST_CLASSES):
        raise InvalidArgumentError(
            f"`target` must have 2 to {MOST_CLASSES} classes, at most {MOST_NUMBERS} where they "
            f"are numbers, got {len(counts)} values of {target!r}; what is trained are "
            "classifiers: cut numbers into classes first, as by `pandas.qcut(frame[target], 4)`"
        )
    shares = ", ".join(f"{label} {count / len(frame):.0%}" for label, count in counts[:6].items())
    yield f"Target {target!r} has {len(counts)} classes: {shares}{', ...' * (len(counts) > 6)}."
    if few := [str(label) for label, count in counts.items() if count < 10]:
        yield (
            "Classes of fewer than 10 rows may be missing where it is validated: "
            f"{', '.join(few[:6])}{', ...' * (len(few) > 6)}."
        )


def _of_clients(frame: Any, client: str) -> Iterator[str]:
    sizes = frame[client].value_counts()
    if len(sizes) < 2:
        raise InvalidArgumentError(
            f"`client` must say of two clients at least, got {len(sizes)} in {client!r}; leave it "
            "out and give `clients`, a number, to deal the rows to"
        )
    yield (
        f"{len(sizes):,} clients by {client!r}, of {sizes.min():,} to {sizes.max():,} rows "
        f"(median {sizes.median():g})."
    )
    if few := int((sizes < 3).sum()):
        yield (
            f"{few:,} clients have fewer than 3 rows: they train, and nothing of theirs is "
            "validated (of two rows one is tested); `fewest` in the task file leaves them out."
        )


def _encoding(frame: Any, name: str, client: str | None, rare: int) -> tuple[str, str]:
    column = frame[name]
    missing, distinct = int(column.isna().sum()), column.nunique()
    if distinct + (missing > 0) < 2:
        return "none", "it has one value"
    if client is not None and distinct > 1 and _tells(frame, name, client):
        return "none", "it says who the client is"
    if column.dtype.kind in "iufb":
        said = f"{missing:,} numbers are missing, a column of 0 and 1 says where" if missing else ""
        return ("log" if grows(column) else "number"), said
    if distinct > len(frame) / 2:
        return (
            "none",
            f"it has {distinct:,} values in {len(frame):,} rows, so it is an id or a text",
        )
    many = int((column.fillna("").value_counts() < rare).sum())
    return "words", f"{many:,} words of fewer than {rare} rows share a column" if many else ""


def _tells(frame: Any, name: str, client: str) -> bool:
    """Return whether each client has a value of its own."""
    pairs = frame[[name, client]].drop_duplicates()
    return bool(len(pairs) == frame[client].nunique() == frame[name].nunique())


def _giving_away(frame: Any, target: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each column that alone tells the target, by a tree of one column."""
    with needing("looking at a table", "scikit-learn", "data", "sklearn", "pandas"):
        import pandas
        from sklearn.model_selection import cross_val_score
        from sklearn.tree import DecisionTreeClassifier
    frame = frame.sample(min(len(frame), LOOKED_AT), random_state=0)
    labels, classes = pandas.factorize(frame[target].astype(str), sort=True)
    counts = np.bincount(labels)
    if counts.max() / len(labels) > MAJORITY or counts.min() < 2:
        return
    for name in names:
        column = frame[name]
        if column.dtype.kind not in "iufb":
            column = pandas.Series(pandas.factorize(column.astype(str), sort=True)[0])
        tree = DecisionTreeClassifier(max_leaf_nodes=8 * len(classes), random_state=0)
        cells = column.to_numpy(dtype=np.float64)[:, None]
        accuracy = cross_val_score(tree, np.nan_to_num(cells, nan=-1.0), labels, cv=2).mean()
        if accuracy >= GIVES_AWAY:
            yield (
                f"WARNING: column {name!r} alone tells {target!r} in {accuracy:.1%} of all rows: "
                "it seems to be known only with the target. `--leave-out` leaves it out."
            )
