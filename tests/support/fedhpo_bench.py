"""Archives in the layout of FedHPO-Bench, made up; and what its formula answers from them."""

from __future__ import annotations

import gzip
import itertools
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SPLITS, MEASURES = ("train", "val", "test"), ("avg_loss", "acc", "f1")
GRID: Mapping[str, Sequence[float]] = {
    "sample_client": (0.2, 1.0),
    "lr": (0.01, 0.1, 1.0),
    "wd": (0.0, 0.001),
    "dropout": (0.0,),
    "batch": (4.0, 64.0),
    "step": (1.0, 4.0),
    "seed": (1.0, 2.0, 3.0),
}
Row = dict[str, Any]


def made_rows(
    grid: Mapping[str, Sequence[float]] = GRID,
    entries: int = 12,
    splits: Sequence[str] = SPLITS,
    seed: int = 0,
) -> list[Row]:
    """Return a row of every point of a grid: its values, and lists of so many evaluations."""
    rng = np.random.default_rng(seed)
    rows = []
    for values in itertools.product(*grid.values()):
        row: Row = dict(zip(grid, values, strict=True))
        for split, measure in itertools.product(splits, MEASURES):
            row[f"{split}_{measure}"] = rng.random(entries).tolist()
        rows.append(row)
    return rows


def result_of(row: Row) -> str:
    """Return the text of a result, as `str` writes a dictionary of lists and times."""
    lists = [f"'{name}': {row[name]}" for name in row if name.partition("_")[0] in SPLITS]
    times = ", ".join(["datetime.timedelta(seconds=7, microseconds=1)"] * 3)
    extra = [f"'{name}': [{times}]" for name in ("train_time", "eval_time", "tol_time")]
    return "{" + ", ".join([*lists, "'fairness': [0.5, [0.25]]", *extra]) + "}"


def csv_of(rows: Sequence[Row], results: Sequence[str] | None = None) -> bytes:
    """Return the text of a table, packed."""
    names = [name for name in rows[0] if name.partition("_")[0] not in SPLITS]
    texts = list(map(result_of, rows)) if results is None else results
    lines = [",".join([*names, "result"])]
    lines += [
        ",".join([*(str(row[name]) for name in names), f'"{text}"'])
        for row, text in zip(rows, texts, strict=True)
    ]
    return gzip.compress("\n".join([*lines, ""]).encode(), mtime=0)


def write_zip(path: Path, place: str, content: bytes, **others: bytes) -> Path:
    """Write an archive of one table."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"data/tabular_data/{place}/tabular.csv.gz", content)
        for name, more in others.items():
            archive.writestr(name, more)
    return path


def original_answer(row: Row, evaluations: int, key: str) -> float:
    """Return result[key][argmin(val_avg_loss[:evaluations])], the formula of FedHPO-Bench."""
    best = int(np.argmin(row["val_avg_loss"][:evaluations]))
    return float(row[key][best])
