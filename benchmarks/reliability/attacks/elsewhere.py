"""Tables, task files and descriptors of others: damaged, and small where they stand for much."""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attacks.files import Kind, leaf, make_columns
from attacks.verdicts import Tally, judged, run_cases
from fedhpo_gym.data import REGISTERED, load_dataset
from fedhpo_gym.data.frames import read_frame
from fedhpo_gym.data.leaf import read_files, write_files
from fedhpo_gym.records.files import read_record
from fedhpo_gym.records.parquet import store_table
from fedhpo_gym.stored.references import References, dumped
from fedhpo_gym.stored.references import read as read_references
from fedhpo_gym.tasks.own import read_task_file, write_task
from fedhpo_gym.transfer.source import HPOBFiles


def _frame() -> Any:
    import pandas

    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=200), "n": rng.integers(5, size=200), "label": [0, 1] * 100}
    words = {"word": list("abcd") * 50, "client": [f"c{i}" for i in range(5)] * 40}
    return pandas.DataFrame({**columns, **words})


def _save(folder: Path, columns: Any, compression: str | None = None, times: int = 1) -> None:
    """Write columns as Hugging Face's `save_to_disk` does."""
    import pyarrow

    table = pyarrow.table(columns)
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_stream(folder / "d.arrow", table.schema, options=options) as stream:
        for _ in range(times):
            stream.write_table(table)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "d.arrow"}]}')


def _read_table(name: str) -> Callable[[Path], Any]:
    return lambda folder: len(read_frame(folder / name).shape)


def _read_run(folder: Path) -> Any:
    return len(read_record(next(folder.rglob("*.parquet"))).steps)


def _read_task(folder: Path) -> Any:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    load_dataset.cache_clear()
    for name in [*REGISTERED]:
        del REGISTERED[name]
    path = next(folder.glob("*.toml"))
    return all(make().name for make in read_task_file(path).values())


def _results(folder: Path) -> None:
    (folder / "a.toml").write_text(
        'kind = "results"\nname = "Mine"\nparameters = 9\nclients = 2\nclasses = 2\n'
        "rounds = [1, 5]\nclient_sample_rates = [0.5, 1.0]\nseeds = [1]\n"
        '[space.lr]\nvalues = [0.1, 0.5]\nlog = true\n[space.kind]\nvalues = ["a", "b"]\n'
    )


def _references(folder: Path) -> None:
    returns = dict.fromkeys(("default", "static", "hindsight"), (0.0, 1.0))
    made = References("FedHPO-DAC-LR-CreditG-v1", (0, 1), returns, {}, None, {"test": 2})
    (folder / "references.json").write_text(dumped([made]))


def _read_references(folder: Path) -> Any:
    read_references.cache_clear()
    known = read_references(folder / "references.json").values()
    return len([(one.headroom, one.score([1.0, 2.0])) for one in known]) >= 0


def _descriptors(folder: Path) -> None:
    about = {
        "variables": {"a": {"min": 0.0, "max": 1.0}, "k": {"categories": ["x", "y"]}},
        "variables_to_apply_log": ["a"],
        "variables_order": ["a", "k.ohe._x", "k.ohe._y"],
    }
    (folder / "meta-dataset-descriptors.json").write_text(json.dumps({"7": about}))


def _decode(folder: Path) -> Any:
    return len(HPOBFiles(folder, folder).decode("7", [0.5, 0.0, 1.0])) >= 0


KINDS = tuple(
    Kind(name, make, read, protected=False)
    for name, make, read in (
        ("data set of Hugging Face", lambda f: _save(f, dict(_frame())), _read_table("")),
        ("Parquet", lambda f: _frame().to_parquet(f / "a.parquet"), _read_table("a.parquet")),
        ("CSV", lambda f: _frame().to_csv(f / "a.csv.gz"), _read_table("a.csv.gz")),
        ("task file", lambda f: write_task(_frame(), name="Mine", folder=f), _read_task),
        ("task file of results", _results, _read_task),
        ("references", _references, _read_references),
        ("descriptors of HPO-B", _descriptors, _decode),
    )
)
"""Kinds that carry no checksum, or whose checksum a stranger writes."""


def _text(name: str, content: bytes | str) -> Callable[[Path], Any]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def _parquet(columns: Callable[[], Any]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns()), folder / "a.parquet", compression="zstd")

    return make


def _repeated() -> Any:
    import pyarrow

    places = np.zeros(1 << 20, np.int32)
    return {"a": pyarrow.DictionaryArray.from_arrays(places, ["x" * 1_000_000])}


def _record(name: str, kind: str, cells: Callable[[int], Any]) -> Callable[[Path], None]:
    """Return what writes a run record with a forged column, and right digests of its bytes."""

    def make(folder: Path) -> None:
        import pyarrow.parquet

        make_columns(folder)
        table = pyarrow.parquet.read_table(path := next(folder.rglob("*.parquet")))
        about = json.loads(table.schema.metadata[b"fedhpo_gym"])
        about["columns"][name] = {"path": [name], "kind": kind}
        rest = table.select([one for one in table.column_names if one != name])
        store_table(path, rest.append_column(name, cells(len(table))), about)

    return make


def _long_list(rows: int) -> Any:
    import pyarrow

    ends = pyarrow.array([0, *[150_000_000] * rows], pyarrow.int32())
    return pyarrow.ListArray.from_arrays(ends, np.zeros(150_000_000))


def _long_words(rows: int) -> Any:
    import pyarrow

    return pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * 50_000_000])


def _many_words(folder: Path) -> None:
    import pandas

    columns = {"w": [f"w{i // 2}" for i in range(60_000)], "x": range(60_000)}
    frame = pandas.DataFrame({**columns, "label": [0, 1] * 30_000})
    path = write_task(frame, clients=5, name="Words", folder=folder).path
    path.write_text(re.sub("(?m)^rare = .*", "rare = 1", path.read_text()))


def _long_cell(folder: Path) -> None:
    import pandas

    words = [*["a", "b"] * 299, *["x" * 1_000_000] * 2]
    frame = pandas.DataFrame({"w": words, "x": range(600), "label": [0, 1] * 300})
    write_task(frame, clients=5, name="Long", folder=folder)


def _leaf_of_nothing(folder: Path) -> None:
    (path,) = write_files(folder, "all_data", leaf(3))
    text = path.read_bytes().replace(b"}", b" " * 150_000_000 + b"}", 1)
    (folder / "a.json.gz").write_bytes(gzip.compress(text, 1))


_HEAD = ",".join(f"c{i}" for i in range(3_900)) + "\n"
_ZEROS = {"a": np.zeros(1 << 22, np.int64)}
SMALL: tuple[tuple[str, Callable[[Path], Any], Callable[[Path], Any]], ...] = (
    ("csv.gz", lambda f: (f / "a.csv.gz").write_bytes(gzip.compress(b"1,2\n" * 60_000_000, 1)),
     _read_table("a.csv.gz")),
    ("short rows", _text("a.csv", _HEAD + "1\n" * 500_000), _read_table("a.csv")),
    ("wide", _text("a.csv", ",".join("a" * 500_000) + "\n1\n"), _read_table("a.csv")),
    ("wide rows", _text("a.csv", "a\n" + ",".join("1" * 500_000) + "\n"), _read_table("a.csv")),
    ("Parquet", _parquet(lambda: dict.fromkeys("abcdefgh", _ZEROS["a"])),
     _read_table("a.parquet")),
    ("words in Parquet", _parquet(_repeated), _read_table("a.parquet")),
    ("Arrow", lambda f: _save(f, _ZEROS, "zstd", 30), _read_table("")),
    ("lists in a run record", _record("action", "list<double>", _long_list), _read_run),
    ("words in a run record", _record("word", "string", _long_words), _read_run),
    ("words of a task file", _many_words, _read_task),
    ("a long cell", _long_cell, _read_task),
    ("keys of many parts", _text("a.toml", ".".join("a" * 250_000) + "=1"), _read_task),
    ("many keys of many parts", _text("a.toml", (".".join("a" * 4_000) + "b=1\n") * 60),
     _read_task),
    ("many hyperparameters", _text("a.toml", 'kind = "results"\n' + "".join(
        f"[space.a{i}]\nlow=0\n" for i in range(22_000))), _read_task),
    ("nested TOML", _text("a.toml", "x = " + "[" * 200_000), _read_task),
    ("LEAF", _leaf_of_nothing, lambda f: read_files([f / "a.json.gz"])),
    ("nested references", _text("references.json", '{"ids": ' * 90_000), _read_references),
)  # fmt: skip
"""What stands for much: its name, what writes it, and what reads it."""


def small_files(room: Path) -> list[Tally]:
    """Read small files that stand for large ones; each is refused or answers."""

    def case(index: int) -> tuple[str, str]:
        name, _, read = SMALL[index]

        def attempt() -> str:
            read(Path(home) / str(index))
            return "fine"

        verdict, said = judged(attempt)
        return verdict, f"{said} [{name}]"

    with tempfile.TemporaryDirectory(dir=room) as home:
        for place, (_, make, _) in enumerate(SMALL):
            (Path(home) / str(place)).mkdir()
            make(Path(home) / str(place))
        return [run_cases("small files that stand for large ones", len(SMALL), case)]
