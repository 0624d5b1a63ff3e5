"""Seeded damage: to bytes, to what json, tables and arrays hold, and inside archives."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

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
