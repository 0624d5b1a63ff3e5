"""What is read from files, made small: how each kind is written, read, and what it answers.

A *protected* kind is one that this package writes itself, with a checksum: other answers from
damaged files are never right. The others are users' data in other people's formats. There, a
changed value is a value; `claims` keeps what the format itself makes checkable.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhpo_gym.agents.policy import Policy, load_policy, save_policy
from fedhpo_gym.building.design import read_unit, write_unit
from fedhpo_gym.core.archive import arrays_path, write_archive
from fedhpo_gym.data import SOURCES, cache
from fedhpo_gym.data.leaf import LeafData, UserSamples, read_files, write_files
from fedhpo_gym.data.records import Dataset, Source
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.records.files import read_record, write_record
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.table import Sample, Table
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.run import do_run


@dataclass(frozen=True)
class Kind:
    """One kind of files.

    Attributes:
        name: the row of the table.
        make: writes good files into an empty folder.
        read: reads a folder; returns the answers, nested in any way.
        protected: see above.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], Any]
    protected: bool = True


def policy(number: int = 1) -> Policy:
    """Return a policy whose card and arrays, of a size of their own, all say one number."""
    inputs = 50 + number % 7
    return Policy(
        entries={"a": (inputs,)},
        low=np.zeros(1, np.float32),
        high=np.ones(1, np.float32),
        weights=(np.full((inputs, 1), number / 1e3, np.float32),),
        biases=(np.full(1, number / 1e3, np.float32),),
        activation="tanh",
        output="clip",
        mean=np.zeros(inputs),
        deviation=np.ones(inputs),
        limit=float(number),
        made_by="python train.py",
    )


def _read_policy(folder: Path) -> Any:
    found = load_policy(folder)
    acted = [found.act({name: np.full(s, 0.5) for name, s in found.entries.items()})]
    return acted, found.limit, [weight.tobytes() for weight in found.weights]


def _embedded(name: str) -> Callable[[Path], None]:
    """Return what writes a surrogate of the package anew, as it is written today."""

    def make(folder: Path) -> None:
        path = EMBEDDED_FOLDER / f"{name}.surrogate.json"
        card = json.loads(path.read_text(encoding="utf-8"))
        with np.load(arrays_path(path, card)) as archive:
            arrays = {key: archive[key] for key in archive.files}
        said = {
            k: v for k, v in card.items() if k not in ("arrays", "sha256", "bytes", "card_sha256")
        }
        write_archive(folder, f"{name}.surrogate", said, arrays)

    return make


def card_in(folder: Path) -> Path:
    """Return the one card in a folder."""
    return next(path for path in folder.iterdir() if path.suffix == ".json")


def _read_table(folder: Path) -> Any:
    table = Table(card_in(folder))
    asked = {d.name: d.grid[0] for d in table.space.dimensions}
    fidelity = Fidelity(int(table.rounds[-1]), float(table.rates[-1]))
    found = table.evaluate(asked, fidelity, table.seeds)
    answers = [table.objective(), found.best, found.best_round, found.diverged, table.num_samples]
    return [np.asarray(one).tobytes() for one in answers], table.space.to_dict(), table.rounds


def _made_up_table(folder: Path) -> None:
    from stored_files import write_made_up_table

    write_made_up_table(folder)


def _made_up_sample(folder: Path) -> None:
    from stored_files import write_made_up_sample

    write_made_up_sample(folder)


def _read_sample(folder: Path) -> Any:
    sample = Sample(card_in(folder))
    answers = [sample.objective(), sample.codes("best_round"), sample.num_samples]
    told = sample.configurations(), sample.rounds, sample.rates, sample.seeds
    return [np.asarray(one).tobytes() for one in answers], told, sample.space.to_dict()


def _read_surrogate(folder: Path) -> Any:
    found = Surrogate(card_in(folder))
    asked = found.space.decode(np.full(len(found.space.names), 0.25))
    top = found.fidelity_space
    fidelity = Fidelity(int(top["round"].high), float(top["client_sample_rate"].high))
    answer = found.evaluate(asked, fidelity, found.seeds)
    told = found.space.to_dict(), top.to_dict(), found.seeds, asked
    return [answer.best.tobytes(), answer.best_round.tobytes(), found.num_samples.tobytes()], told


def make_record(folder: Path, seed: int = 0) -> None:
    """Run one episode of five trials, and write its record."""
    request = Request(["FedHPO-LR-CreditG-v0"], ["random"], 1, None, None, {}, {"budget_trials": 5})
    (plan,) = make_plans(request)
    do_run(replace(plan, seed=seed), folder, lambda _: None, lambda _: None)


def make_columns(folder: Path) -> None:
    """Write such a record as a Parquet file."""
    make_record(folder)
    path = next(folder.rglob("*.jsonl"))
    write_record(path.with_suffix(".parquet"), read_record(path))
    path.unlink()


def _read_record(folder: Path) -> Any:
    return repr(read_record(next(path for path in folder.rglob("*.*") if path.is_file())))


def make_part(folder: Path, number: int = 1) -> None:
    """Store a unit as builds do, without training it."""
    arrays = {
        "metrics": np.full((4, 3, 2, 3, 3), number, np.float32),
        "rounds": np.arange(1, 4),
        "diverged_at": np.zeros(4, np.int64),
        "hardware": np.array("made up"),
    }
    write_unit(folder, "unit", arrays)


def read_part(folder: Path) -> dict[str, Any]:
    """Return the arrays of the unit that `make_part` stores."""
    return read_unit(folder, "unit", 4, (1, 2, 3), (2, 3, 3))


def _read_part(folder: Path) -> Any:
    return {k: np.asarray(v).tobytes() for k, v in read_part(folder).items()}


def _arrays(folder: Path) -> None:
    cache.write_arrays(folder / "a.npz", {"x": np.arange(100.0), "y": np.arange(9)})


def _read_arrays(folder: Path) -> Any:
    return {k: v.tobytes() for k, v in cache.read_arrays(folder / "a.npz", "x").items()}


def leaf(width: int, text: bool = False) -> LeafData:
    """Return a federated data set of five users."""

    def samples(rows: range) -> UserSamples:
        x = ["a" * width if text else [((i + j) % 11) / 10 for j in range(width)] for i in rows]
        return UserSamples(tuple(x), tuple("ab"[i % 2] if text else i % 2 for i in rows))

    return LeafData({f"u{n}": samples(range(n, 2 * n + 2)) for n in range(5)})


def _leaf_folder(name: str, data: LeafData) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (path,) = write_files(folder / name / "all_data", "all_data", data)
        gzipped = path.with_suffix(".json.gz")
        if name == "femnist":
            gzipped.write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))
            path.unlink()

    return make


def claims(dataset: Dataset, source: Source) -> Any:
    """Return what a data set must keep whatever its values are; a broken rule is an answer, too."""
    features = getattr(dataset.features, "values", dataset.features)
    labels = np.asarray(dataset.labels)
    finite = bool(np.isfinite(np.asarray(features, dtype=np.float64)).all())
    legal = bool(((labels >= 0) & (labels < source.num_classes)).all())
    return finite, legal, bool(np.issubdtype(labels.dtype, np.integer))


def _source(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        os.environ[cache.ENV_VAR] = str(folder)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        source = replace(SOURCES[name], num_rows=None)  # ours are smaller
        dataset = source.read()
        source.check(dataset)
        return claims(dataset, source)

    return read


def _sentences(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        lines = _COLA if name == "CoLA" else _SST
        header = int(name != "CoLA")
        sizes = {file: text.count("\n") - header for file, text in lines.items()}
        source: Any = replace(SOURCES[name], sizes=sizes)  # type: ignore[call-arg]
        parts = source.split(folder)
        return all(isinstance(label, int) for rows in parts.values() for _, label in rows)

    return read


def _texts(contents: dict[str, str]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")

    return make


def _tweets() -> LeafData:
    def tweet(i: int) -> list[str]:
        return ["1", "Mon", "NO_QUERY", "me", f"so happy {'abc'[i % 3]}", "t"]

    x = {f"u{n}": tuple(tweet(i) for i in range(n + 1)) for n in range(4)}
    return LeafData({u: UserSamples(t, tuple(i % 2 for i in range(len(t)))) for u, t in x.items()})


_COLA = {
    "in_domain_train.tsv": "gj04\t1\t\tgood film\nbc01\t0\t*\tfilm bad film\n" * 20,
    "in_domain_dev.tsv": "gj04\t0\t*\tbad\n" * 9,
    "out_of_domain_dev.tsv": "m_02\t1\t\tfilm\n" * 9,
}
_SST = {
    f"{part}.tsv": "sentence\tlabel\n" + "a film\t1\nbad\t0\n" * 9
    for part in ("train", "dev", "test")
}
_STARS = (
    "1:\n"
    + "".join(f"{user},{user % 5 + 1},2005-09-06\n" for user in range(30))
    + "2:\n3,4,2005-09-06\n"
)

_PIECE = {"a": [1.0, 2]}


def _read_leaf(folder: Path) -> Any:
    return len(read_files([folder / "x" / "all_data" / "all_data_0.json"]).users) > 0


_SHAKESPEARE = _leaf_folder("shakespeare", leaf(80, True))
_RATINGS = {"netflix/combined_data_1.txt": _STARS}

KINDS = (
    Kind("table", _made_up_table, _read_table),
    Kind("sample", _made_up_sample, _read_sample),
    Kind("surrogate: forest", _embedded("BERT-CoLA-v1-fedavg-pretrained0"), _read_surrogate),
    Kind("surrogate: kernel", _embedded("CNN-CIFAR10-v1-fedavg-bfloat16"), _read_surrogate),
    Kind("policy", lambda folder: save_policy(policy(), folder), _read_policy),
    Kind("run record", make_record, _read_record),
    Kind("run record in Parquet", make_columns, _read_record),
    Kind("unit of a build", make_part, _read_part),
    Kind("derived arrays", _arrays, _read_arrays),
    Kind("LEAF json", _leaf_folder("x", leaf(3)), _read_leaf, False),
    Kind("FEMNIST json.gz", _leaf_folder("femnist", leaf(784)), _source("FEMNIST"), False),
    Kind("Twitter json", _leaf_folder("sent140", _tweets()), _source("Twitter"), False),
    Kind("Shakespeare json", _SHAKESPEARE, _source("Shakespeare"), False),
    Kind("Netflix text", _texts(_RATINGS), _source("FedNetflix"), False),
    Kind("CoLA text", _texts(_COLA), _sentences("CoLA"), False),
    Kind("SST-2 text", _texts(_SST), _sentences("SST2"), False),
)
PAIRS = KINDS[:5]
"""Kinds that are a card and arrays."""
