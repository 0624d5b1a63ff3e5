"""Seeded damage of files: single bits, lost and doubled pieces, values that do not belong there."""

from __future__ import annotations

import gzip
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from numpy.random import Generator

ODD: tuple[Any, ...] = (
    None, True, "", "x", "1", [], {}, [[]], -1, 0, 1.9, 1e308, -1e308, 10**400, 10**29, 2**63,
    1e-300, float("nan"), float("inf"), "\ud800", "../../etc/passwd", "os:system", [1], {"a": 1},
    "é" * 999,
)  # fmt: skip
"""Values to put where others belong."""


def damage(path: Path, rng: Generator) -> str:
    """Damage one file, and return what was done.

    Compressed text is also damaged inside, and JSON also by its structure.
    """
    content = path.read_bytes()
    packed = path.suffix == ".gz" and rng.random() < 0.6
    if packed:
        content = gzip.decompress(content)
    known = {".json": _json, ".jsonl": _lines, ".toml": _toml}
    structured = known.get(path.with_suffix("").suffix) or known.get(path.suffix)
    if structured and (packed or path.suffix != ".gz") and rng.random() < 0.6:
        content, what = structured(content, rng)
    else:
        content, what = _bytes(content, rng)
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    return f"{path.name}: {what}"


def _bytes(content: bytes, rng: Generator) -> tuple[bytes, str]:
    data, kind = bytearray(content), int(rng.integers(8))
    if not data:
        return b"\0", "a byte added"
    at, length = int(rng.integers(len(data))), int(rng.integers(1, 65))
    if kind < 3:
        data[at] ^= 1 << int(rng.integers(8))
        return bytes(data), f"bit of byte {at}"
    if kind == 3:
        return bytes(data[:at]), f"cut at {at}"
    if kind == 4:
        return bytes(data[:at] + data[at + length :]), f"{length} bytes lost at {at}"
    if kind == 5:
        return bytes(data[: at + length] + data[at:]), f"{length} bytes doubled at {at}"
    if kind == 6:
        data[at : at + length] = rng.bytes(length)
        return bytes(data), f"{length} random bytes at {at}"
    return [b"", b"\0" * len(data), rng.bytes(len(data))][int(rng.integers(3))], "all of it"


def _json(content: bytes, rng: Generator) -> tuple[bytes, str]:
    tree = json.loads(content)
    what = change(tree, rng)
    return json.dumps(tree).encode(), what


def _toml(content: bytes, rng: Generator) -> tuple[bytes, str]:
    tree = tomllib.loads(content.decode())
    what = change(tree, rng)
    try:
        return tomli_w.dumps(tree).encode(), what
    except (TypeError, UnicodeEncodeError):  # TOML has no null, and no lone surrogates
        return _bytes(content, rng)


def _lines(content: bytes, rng: Generator) -> tuple[bytes, str]:
    lines = content.splitlines()
    at, kind = int(rng.integers(len(lines))), int(rng.integers(6))
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        other = int(rng.integers(len(lines)))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at], what = _json(lines[at], rng)
        return b"\n".join(lines) + b"\n", f"line {at + 1}: {what}"
    return b"\n".join(lines) + b"\n", f"line {at + 1}: {('lost', 'doubled', 'moved')[kind]}"


def change(tree: Any, rng: Generator) -> str:
    """Change one place of nested objects and lists, and return what was done."""
    places = list(_places(tree))
    if not places:
        return "nothing"
    holder, key, name = places[int(rng.integers(len(places)))]
    value, kind = holder[key], int(rng.integers(6))
    if kind == 0:
        del holder[key]
        return f"{name} lost"
    if kind == 1 and isinstance(holder, list):
        holder.insert(key, value)
        return f"{name} doubled"
    if kind == 2 and isinstance(value, int | float) and not isinstance(value, bool):
        holder[key] = value + float(rng.choice([1, -1, 0.5, 1e-9])) * (1 if value == 0 else value)
    elif kind == 3 and isinstance(value, list):
        holder[key] = value * 1000
        return f"{name} x 1000"
    else:
        holder[key] = ODD[int(rng.integers(len(ODD)))]
    return f"{name}: {str(value)[:40]!r} -> {str(holder[key])[:40]!r}"


def _places(tree: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    lists = enumerate(tree) if isinstance(tree, list) else ()
    items = tree.items() if isinstance(tree, dict) else lists
    for key, value in items:
        yield tree, key, f"{name}.{key}"
        yield from _places(value, f"{name}.{key}")
