"""A conversation with FederatedScope that takes rounds, kept, changed and held again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from federatedscope_pretended import pretend
from fedhpo_gym.backends.federatedscope import sharing
from fedhpo_gym.backends.federatedscope.courses import FederatedScopeCourses
from fedhpo_gym.tasks import Instance
from record_federatedscope import LR, SMALL

STEPS, ROUNDS = 3, 2


def talk(arguments: dict[str, str]) -> list[Any]:
    """Take some rounds, and return all that was understood."""
    sharing.close_all()
    sharing._numbers = itertools.count()  # the numbers of courses are part of what is said
    words: Any = {"horizon": 9, "local_metrics": True, "time_limit_s": 20.0, **arguments}
    courses = FederatedScopeCourses(LR, (Instance(seed=1, alpha=LR.alpha),), 1, SMALL, 0.4, **words)
    try:
        found: list[Any] = [courses.first_metrics([0])]
        for _ in range(STEPS):
            found.append(courses.sampled(ROUNDS))
            found += [v for v in vars(courses.advance(ROUNDS)).values() if v is not None]
    finally:
        courses.close()
        sharing.close_all()
    return found


def conversation(folder: Path) -> list[list[str]]:
    """Return what a program of courses by formula says, line by line, before and after requests.

    Args:
        folder: an empty folder.
    """
    kept = folder / "kept.jsonl"
    talk(pretend(folder, "keep", kept))
    lines = kept.read_text(encoding="utf-8").splitlines(keepends=True)
    grouped = itertools.groupby(lines, lambda line: json.loads(line)["request"])
    return [list(part) for _, part in grouped]


def pretend_saying(folder: Path, said: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return `source` and `interpreter` of a program that says just this, as in `conversation`."""
    path = folder / "said.json"
    path.write_text(json.dumps(["".join(part) for part in said]), encoding="utf-8")
    return pretend(folder, "play", path)
