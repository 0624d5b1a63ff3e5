"""Conversations with FederatedScope's process, of which one place is changed."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from attacks.damage import change
from attacks.verdicts import Tally, judged, run_cases, same
from fedhpo_gym.core.seeding import stream

Parts = list[list[str]]


def conversations(count: int, seed: int, room: Path) -> list[Tally]:
    """Change a conversation, one place per case, and hold it again.

    Lines that are lost, doubled or moved, and other numbers of lines, must never give other
    answers. Inside a line a changed metric is a metric, if it can be one.
    """
    from federatedscope_peer import conversation, pretend_saying, talk

    def case(index: int) -> tuple[str, str]:
        rng = stream(seed, "conversations", index)
        said = copy.deepcopy(good)
        moved, what = _moved(said, rng) if index % 2 else _changed(said, rng)
        with tempfile.TemporaryDirectory(dir=room) as folder:

            def attempt() -> str:
                found = talk(pretend_saying(Path(folder), said))
                if same(found, before):
                    return "fine"
                return "silent" if moved or not _possible(found) else "fine"

            verdict, told = judged(attempt)
        return verdict, f"{told} [{what}]"

    with tempfile.TemporaryDirectory(dir=room) as home:
        good = conversation(Path(home))
        with tempfile.TemporaryDirectory(dir=room) as folder:
            before = talk(pretend_saying(Path(folder), good))
        return [run_cases("conversations: FederatedScope", count, case)]


def _possible(found: list[Any]) -> bool:
    """Return whether all metrics are such: finite where the course is, and losses not below 0."""
    numbers = [np.asarray(one) for one in found if np.asarray(one).dtype.kind == "f"]
    metrics = [one for one in numbers if one.ndim >= 3]
    return all(bool(np.isfinite(one).all() and (one >= 0).all()) for one in metrics[:1])


def _place(said: Parts, rng: Generator) -> tuple[int, int]:
    places = [(p, i) for p, part in enumerate(said) for i in range(len(part))]
    return places[int(rng.integers(len(places)))]


def _moved(said: Parts, rng: Generator) -> tuple[bool, str]:
    """Lose, double, move or renumber a line."""
    (p, i), (q, j), kind = _place(said, rng), _place(said, rng), int(rng.integers(5))
    line = said[p][i]
    if kind == 0:
        del said[p][i]
    elif kind == 1:
        said[p].insert(i, line)
    elif kind == 2:
        said[q].insert(j, said[p].pop(i))
    elif kind == 3:
        said[p][i], said[q][j] = said[q][j], line
    else:
        name = ("request", "line")[int(rng.integers(2))]
        message = json.loads(line)
        message[name] += int(rng.choice([-2, -1, 1, 2]))
        said[p][i] = json.dumps(message) + "\n"
    return True, f"line {p}.{i}: {('lost', 'doubled', 'moved', 'exchanged', 'renumbered')[kind]}"


def _changed(said: Parts, rng: Generator) -> tuple[bool, str]:
    """Change what a line says, or its characters."""
    (p, i), kind = _place(said, rng), int(rng.integers(8))
    line, what = said[p][i], ""
    if kind < 5:
        message = json.loads(line)
        what = change(message, rng)
        line = json.dumps(message) + "\n"
    elif kind == 5:
        at = int(rng.integers(len(line)))
        line, what = line[:at] + chr(int(rng.integers(256))) + line[at + 1 :], f"character {at}"
    elif kind == 6:
        deep = int(rng.choice([3, 30, 900, 100_000]))
        line, what = f'{line.rstrip()[:-1]}, "more": {"[" * deep}{"]" * deep}}}\n', f"{deep} deep"
    else:
        odd = str(rng.choice(["-Infinity", "NaN", "Infinity", "-1.0", "1e400", "1" * 5000]))
        at = line.find('_avg_loss": ') + len('_avg_loss": ')
        if at > len('_avg_loss": '):
            line, what = line[:at] + odd + line[line.index(",", at) :], f"a loss of {odd[:9]}"
    said[p][i] = line
    return False, f"line {p}.{i}: {what}"
