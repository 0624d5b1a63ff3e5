"""Small stored files: by formula, and a table that was trained; and seeded damage to files."""

from __future__ import annotations

import atexit
import gzip
import io
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.agents.policy import Policy
from fedhpo_gym.core import archive
from fedhpo_gym.core.archive import DIGEST_ENTRY, card_digest
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.catalogue import ENV_VAR, open_table
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.table import WHICH, Sample, write_sample, write_table
from fedhpo_gym.tasks import Task, get_task

NAME = "LR-MadeUp-fedavg"
IDENTITY = Identity(NAME, "LR-MadeUp", 0, (("algorithm", "fedavg"), ("alpha", 0.5)))
ROUNDS = (1, 3, 10, 40)
SEEDS = (1, 2)
SAMPLES = np.array(
    [[[60, 20, 10], [30, 10, 4], [90, 5, 20]], [[50, 10, 20], [70, 15, 5], [9, 30, 1]]]
)
SPACE = SearchSpace(
    (
        Dimension("learning_rate", 1e-4, 1.0, "float", log=True, bins=5),
        Dimension("batch_size", 4, 64, "int", log=True, bins=3),
    )
)
RATES = Dimension("client_sample_rate", 1 / 3, 1.0, "float", bins=3, scope="fidelity")


def write_made_up_table(folder: Path) -> Path:
    """Write the table and return its card; axes (rounds, rate, batch, share, seeds, clients)."""
    shape = (len(ROUNDS), *SPACE.grid_shape, len(RATES.grid), len(SEEDS), SAMPLES.shape[1])
    rounds, rate, batch, share, seed, client = np.indices(shape)
    progress = rounds * (1.0 + np.cos(rate)) + 0.1 * share - 0.2 * batch + 0.05 * seed
    arrays = {
        "best_round": np.broadcast_to(
            np.array(ROUNDS, np.uint16).reshape(-1, 1, 1, 1, 1), shape[:-1]
        ).copy(),
        "diverged_at": np.zeros(shape[1:-1], np.uint16),
    }
    for s, split in enumerate(SPLITS):
        for metric in METRICS:
            values = 1.0 / (1.0 + np.exp(0.3 * client + 0.1 * s - 0.5 * progress))
            if metric == "loss":
                values = np.exp(2.0 - progress + 0.4 * client)
            for which in WHICH:
                coded = codec.encode(metric, values, SAMPLES[:, :, s])
                arrays[f"{which}_{split}_{metric}"] = coded
    fidelity = SearchSpace(
        (
            Dimension("round", ROUNDS[0], ROUNDS[-1], "int", values=ROUNDS, scope="fidelity"),
            RATES.discretized(),
        )
    )
    card = {
        **IDENTITY.to_card(),
        "space": SPACE.discretized().to_dict(),
        "fidelity_space": fidelity.to_dict(),
        "seeds": list(SEEDS),
        "num_samples": SAMPLES.tolist(),
        "splits": list(SPLITS),
        "metrics": list(METRICS),
        "licence": "Apache-2.0",
        "build_command": "fedhpo-gym build FedHPO-LR-MadeUp-v0 --algorithm fedavg",
    }
    return write_table(folder, card, arrays)


SAMPLE_TASK = get_task("LR-CreditG-v0").variant(alpha=0.25)  # nobody stores this variant
SAMPLE_NAME = SAMPLE_TASK.table_name
SAMPLE_ROUNDS, SAMPLE_RATES, SAMPLE_SEEDS, SAMPLE_COUNT = (1, 3, 9, 20), (0.4, 0.8), (1, 2, 3), 40


def write_made_up_sample(folder: Path, clients: int = 5, name: str = SAMPLE_NAME) -> Sample:
    """Write a sample whose numbers follow a smooth formula."""
    rng = np.random.default_rng(0)
    space = SAMPLE_TASK.space
    actions = rng.uniform(-1, 1, (SAMPLE_COUNT, len(space)))
    configurations = [space.decode(action) for action in actions]
    number = np.arange(SAMPLE_COUNT)
    seed, rate = number % 3, np.array(SAMPLE_RATES)[number // 3 % 2]
    samples = rng.integers(20, 60, (3, clients, 3))
    progress = np.exp(-(actions[:, 0] ** 2))[:, None, None] * np.log1p(SAMPLE_ROUNDS)[:, None]
    score = progress + 0.2 * rate[:, None, None] + 0.1 * seed[:, None, None]
    score = score + np.sin(np.arange(clients)) - 1.0
    arrays: dict[str, Any] = {
        "point": number,
        "configuration": np.array([list(c.values()) for c in configurations]),
        "client_sample_rate": rate,
        "seed": seed,
        "diverged_at": np.zeros(SAMPLE_COUNT, np.uint16),
        "best_round": np.broadcast_to(SAMPLE_ROUNDS, (SAMPLE_COUNT, len(SAMPLE_ROUNDS))).astype(
            np.uint16
        ),
    }
    for s, split in enumerate(SPLITS):
        for metric in METRICS:
            values = np.exp(-score) if metric == "loss" else 1 / (1 + np.exp(-score))
            codes = codec.encode(metric, values, samples[seed][:, None, :, s])
            arrays |= {f"{which}_{split}_{metric}": codes for which in WHICH}
    rounds, rates = SAMPLE_TASK.fidelity_space.dimensions
    fidelity = (
        replace(rounds, high=SAMPLE_ROUNDS[-1], values=SAMPLE_ROUNDS, bins=None),
        replace(rates, low=SAMPLE_RATES[0], high=SAMPLE_RATES[-1], values=SAMPLE_RATES),
    )
    card = {
        **replace(SAMPLE_TASK.identity, name=name).to_card(),
        "space": space.to_dict(),
        "fidelity_space": SearchSpace(fidelity).to_dict(),
        "seeds": list(SAMPLE_SEEDS),
        "num_samples": samples.tolist(),
        "splits": list(SPLITS),
        "metrics": list(METRICS),
        "courses": SAMPLE_COUNT,
        "missing": "everything: it is made up",
        "build_command": "fedhpo-gym build FedHPO-LR-CreditG --sample 40",
    }
    return Sample(write_sample(folder, card, arrays))


TINY_ROUNDS = 9
TINY_ID = "FedHPO-LR-BreastCancer-v0"


def tiny_task(rounds: int = TINY_ROUNDS, seeds: tuple[int, ...] = (1, 2, 3)) -> Task:
    """Return the breast cancer task with two points per hyperparameter and a few rounds."""
    task = get_task("LR-BreastCancer-v0")
    high = {"step_size": 2}
    low = {"batch_size": 32}
    client = [
        replace(d, low=low.get(d.name, d.low), high=high.get(d.name, d.high), bins=2)
        for d in task.client_space.dimensions
    ]
    round_, rate = task.fidelity_space.dimensions
    fidelity = (replace(round_, high=rounds, bins=rounds), replace(rate, bins=2))
    return task.variant(
        client_space=SearchSpace(tuple(client)), fidelity_space=SearchSpace(fidelity), seeds=seeds
    )


@cache
def tiny_folder() -> Path:
    """Return a folder with the table of `tiny_task()`, built once per test process."""
    from fedhpo_gym.building.build import build_table, compute_unit
    from fedhpo_gym.building.design import GridDesign

    folder = Path(tempfile.mkdtemp(prefix="fedhpo-gym-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    task = tiny_task()
    design = GridDesign(task)
    parts = folder / "parts" / design.parts_name
    parts.mkdir(parents=True)
    for unit in design.units():  # in this process: a worker would only load torch once more
        compute_unit(design, unit, parts)
    build_table(task, folder, workers=1)
    return folder


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Return the task of the tiny table, which is the only table while the test runs."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    monkeypatch.setenv(ENV_VAR, str(tiny_folder()))
    task = tiny_task()
    assert open_table(task.table_name).rounds[-1] == TINY_ROUNDS
    return task


def arrays_of(card: Path) -> Path:
    """Return the file of arrays that a card names."""
    return archive.arrays_path(card, json.loads(card.read_text(encoding="utf-8")))


def stamped(content: bytes) -> bytes:
    """Return the text of a changed card with the digest that fits, if it is the text of a card.

    A change by somebody who means it: what a card says has to make sense all the same.
    """
    try:
        card = json.loads(content)
    except ValueError:
        return content
    if not isinstance(card, dict):
        return content
    return json.dumps({**card, DIGEST_ENTRY: card_digest(card)}).encode()


def numbered_policy(number: int) -> Policy:
    """Return a policy whose card and arrays, of a size of their own, all say one number."""
    inputs = 50 + number % 7
    return Policy(
        entries={"a": (inputs,)},
        low=np.zeros(1, np.float32),
        high=np.ones(1, np.float32),
        weights=(np.full((inputs, 1), number, np.float32),),
        biases=(np.full(1, number, np.float32),),
        activation="tanh",
        output="clip",
        mean=np.zeros(inputs),
        deviation=np.ones(inputs),
        limit=float(number),
        made_by="python train.py",
        origin={},
    )


FEW = {
    "candidates.FEWEST_STEPS": 60,
    "candidates.POINTS": 100,
    "candidates.LIKELY_ROWS": 40,
    "candidates.STEPS": 10,
}


def fit_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let candidates take few steps, trees and points, and ask few for the health."""
    for name, value in FEW.items():
        patch.setattr(f"fedhpo_gym.building.{name}", value)
    patch.setattr("fedhpo_gym.stored.lattice.DRAWS", 16)


def fit_everything(folder: Path, name: str) -> Path:
    """Fit the surrogate of what a folder holds quickly; return the folder."""
    from fedhpo_gym.building.surrogate_fit import fit_surrogate

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_VAR, str(folder))
        fit_quickly(patch)
        fit_surrogate(name, folder)
    return folder


def fit_sample(
    folder: Path, patch: pytest.MonkeyPatch, candidate: str = "gaussian_process", **options: Any
) -> Surrogate:
    """Fit one candidate on the sample in a folder, and few steps of it."""
    from fedhpo_gym.building import surrogate_fit

    patch.setenv(ENV_VAR, str(folder))
    fit_quickly(patch)
    patch.setattr(surrogate_fit, "CANDIDATES", {candidate: surrogate_fit.CANDIDATES[candidate]})
    return Surrogate(surrogate_fit.fit_surrogate(SAMPLE_NAME, **options))


def written_with(sample: Sample, folder: Path, **changes: Any) -> Sample:
    """Write a sample again with other arrays."""
    codes = {name: sample.codes(name) for name in sample._codes}
    return Sample(write_sample(folder, dict(sample.card), {**codes, **changes}))


def check_law(surrogate: Surrogate, seed: int) -> None:
    """Ask one configuration for all rounds that are stored, and some between them."""
    rng = np.random.default_rng(seed)
    fidelities = surrogate.fidelity_space
    last = int(fidelities["round"].high)
    asked = np.unique([*surrogate.card["model"]["rounds"], *rng.integers(1, last + 1, 20)])
    query = {**surrogate.space.sample(rng), **fidelities.sample(rng)}
    columns = {name: np.full(len(asked), value) for name, value in query.items()}
    found = surrogate.look_up({**columns, "round": asked}, surrogate.seeds)
    weighted = found.mean("val", "loss")
    assert np.all(weighted[1:] <= weighted[:-1] * (1 + 1e-6))
    assert np.all(np.diff(found.best_round, axis=0) >= 0)
    assert np.all(np.diff(found.diverged.astype(int), axis=0) >= 0)


# ------------------------------------------------------------------------------------ seeded damage

Rng = np.random.Generator
Mutation = Callable[[Rng, bytes], bytes]

DEEP = 20_000
"""Levels of nesting: more than any parser that calls itself can follow."""
STRANGE = (
    float("nan"), float("inf"), -1, 1.9, 10**30, 10**400, -(2**63), 1e300, True, None, "", "x",
    "\x00", "\ud7ff", [], {}, [[]], [None], {"a": []}, "9" * 5000,
)  # fmt: skip
CELLS = (
    "nan", "inf", "-1", "1.9", "1e999", "9" * 30, "9" * 5000, "", "x", "\x00", "٣", "?", "'", '"',
    "a,b", "a\tb", "1:", ",,,,", "{", "%", "\ufeff", "-0",
)  # fmt: skip


def damaged_bytes(rng: Rng, content: bytes) -> bytes:
    """Flip bits; cut, repeat, remove, exchange or overwrite a part."""
    start, end = sorted(rng.integers(0, len(content) + 1, 2).tolist())
    part = content[start:end]
    kind = rng.integers(7)
    if kind <= 1:
        flipped = bytearray(content)
        for place in rng.integers(0, len(content), rng.integers(1, 9)):
            flipped[place] ^= 1 << int(rng.integers(8))
        return bytes(flipped)
    return (
        content[:start],
        content[:end] + part + content[end:],
        content[:start] + content[end:],
        content[end:] + part + content[:start],
        content[:start] + rng.bytes(len(part)) + content[end:],
    )[kind - 2]


def damaged_json(rng: Rng, content: bytes) -> bytes:
    """Put something strange in a place of the tree, remove or repeat one, or nest too deeply."""
    if rng.integers(20) == 0:
        return content[:-1] + b', "deep": ' + b"[" * DEEP + b"]" * DEEP + b"}"
    tree = json.loads(content)
    holder, key = _somewhere(rng, tree)
    kind = rng.integers(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = STRANGE[rng.integers(len(STRANGE))]
    return json.dumps(tree).replace("1e+300", "1e999").encode()


def _somewhere(rng: Rng, tree: Any) -> tuple[Any, Any]:
    """Return a list or dictionary in a tree, and a key in it; every level is as likely."""
    places = []
    while isinstance(tree, dict | list) and tree:
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        places.append((tree, keys[rng.integers(len(keys))]))
        tree = tree[places[-1][1]]
    return places[rng.integers(len(places))]


def damaged_lines(rng: Rng, content: bytes) -> bytes:
    """Put something strange in a cell, or remove, repeat or empty a line."""
    lines = content.decode("utf-8", "replace").split("\n")
    row = int(rng.integers(len(lines)))
    kind = rng.integers(6)
    if kind == 0:
        del lines[row]
    elif kind == 1:
        lines.insert(row, lines[row])
    elif kind == 2:
        lines[row] = ""
    else:
        separator = next((s for s in ("\t", ",", " ") if s in lines[row]), "\n")
        cells = lines[row].split(separator)
        cells[rng.integers(len(cells))] = CELLS[rng.integers(len(CELLS))]
        lines[row] = separator.join(cells)
    return "\n".join(lines).encode("utf-8")


def damaged_arrays(rng: Rng, content: bytes) -> bytes:
    """Change an array of an .npz file in type, shape or values, promise too much, or drop it."""
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    name = list(arrays)[rng.integers(len(arrays))]
    old, flat = arrays[name], arrays[name].ravel()
    changed = flat.astype(np.float64) if flat.dtype.kind in "iuf" else flat
    if changed.size and changed.dtype.kind == "f":
        changed[rng.integers(len(changed))] = rng.choice([np.nan, np.inf, -1.0, 1e12, 0.5])
    choices = (
        None, "huge", changed, changed.reshape(old.shape), flat[:-1], np.concatenate([flat, flat]),
        old[None], np.array(7), np.array([], old.dtype), np.full(old.shape, 2**40),
        old.astype(object), old.astype("U8"), old.astype(bool),
    )  # fmt: skip
    chosen = choices[rng.integers(len(choices))]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for key, array in (arrays | {name: chosen}).items():
            if array is not None:
                archive.writestr(f"{key}.npy", _npy(array))
    return out.getvalue()


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    if isinstance(array, str):
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**13,)}
        np.lib.format.write_array_header_1_0(out, header)
    else:
        np.lib.format.write_array(out, np.asarray(array), allow_pickle=True)
    return out.getvalue()


def inside_gzip(mutation: Mutation) -> Mutation:
    """Damage what is compressed, so that the container is sound."""
    return lambda rng, content: gzip.compress(mutation(rng, gzip.decompress(content)), 1)


def inside_zip(mutation: Mutation) -> Mutation:
    """Damage a file in a zip archive."""

    def mutate(rng: Rng, content: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = list(members)[rng.integers(len(members))]
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for key, old in members.items():
                archive.writestr(key, mutation(rng, old) if key == name else old)
        return out.getvalue()

    return mutate


def inside_tar(mutation: Mutation, compression: str) -> Mutation:
    """Damage a file in a compressed tar archive."""

    def mutate(rng: Rng, content: bytes) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = [(one.name, archive.extractfile(one)) for one in archive]
            files = [(name, handle.read()) for name, handle in members if handle is not None]
        place = rng.integers(len(files))
        changed = [
            (name, mutation(rng, old) if i == place else old) for i, (name, old) in enumerate(files)
        ]
        return tar(dict(changed), compression)

    return mutate


def tar(files: dict[str, bytes], compression: str) -> bytes:
    """Return a compressed tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{compression}") as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    """Return a zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def npz(**arrays: Any) -> bytes:
    """Return a file of arrays."""
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()
