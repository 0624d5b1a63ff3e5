"""A pair of arrays and card is the old one or the new one, whoever writes and whatever ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.agents.policy import load_policy, save_policy
from fedhpo_gym.core.archive import checked_card, write_archive
from fedhpo_gym.core.errors import DamagedDataError
from stored_files import arrays_of, numbered_policy

REPOSITORY = Path(__file__).resolve().parents[1]
SUPPORT = REPOSITORY / "tests" / "support"


REWRITE = """
import itertools, sys
from pathlib import Path
from fedhpo_gym.agents.policy import save_policy
from stored_files import numbered_policy

for number in itertools.count(int(sys.argv[2])):
    save_policy(numbered_policy(number % 20 + 1), Path(sys.argv[1]))
"""


def start_rewriter(folder: Path, first: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", REWRITE, str(folder), str(first)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, SUPPORT)))},
    )


def read_until(folder: Path, enough: Callable[[set[float]], bool]) -> None:
    """Read the policy again and again; each time its card and its arrays belong together."""
    seen: set[float] = set()
    deadline = time.monotonic() + 60
    while not enough(seen):
        assert time.monotonic() < deadline, "the writers do not get on"
        policy = load_policy(folder)
        assert (policy.weights[0] == policy.limit).all()
        seen.add(policy.limit)


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 2])
def test_a_reader_beside_writers_sees_whole_pairs_even_if_they_are_killed(
    writers: int, tmp_path: Path
) -> None:
    save_policy(numbered_policy(0), tmp_path)
    for _ in range(2):
        processes = [start_rewriter(tmp_path, 7 * number) for number in range(writers)]
        try:
            read_until(tmp_path, lambda seen: len(seen) >= 15)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        until = time.monotonic() + 0.05
        read_until(tmp_path, lambda _, until=until: time.monotonic() > until)  # type: ignore[misc]
    card = save_policy(numbered_policy(3), tmp_path)
    assert set(tmp_path.iterdir()) == {card, arrays_of(card)}, "what killed writers left is removed"


def test_who_has_read_a_card_gets_its_arrays_though_the_pair_is_replaced(tmp_path: Path) -> None:
    card = write_archive(tmp_path, "stem", {"format": 1}, {"x": np.zeros(3)})
    with checked_card(card, "pair", 1, "repair") as (content, arrays):
        write_archive(tmp_path, "stem", {"format": 1}, {"x": np.ones(3)})
    assert not arrays.path.exists()
    assert arrays.read(content["sha256"], "repair")["x"].tolist() == [0.0] * 3


def test_a_neighbour_is_left_alone(tmp_path: Path) -> None:
    for stem in ("a.table", "a.table.b", "a.table-b", "aa.table"):
        write_archive(tmp_path, stem, {"format": 1}, {"x": np.zeros(3)})
    before = set(tmp_path.iterdir())
    assert len(before) == 8
    replaced = arrays_of(write_archive(tmp_path, "a.table", {"format": 1}, {"x": np.ones(3)}))
    assert len(before - set(tmp_path.iterdir())) == 1
    assert set(tmp_path.iterdir()) - before == {replaced}


@pytest.mark.parametrize("name", ["../other.npz", "/other.npz", 3, "", "stem.json", None])
def test_a_card_names_arrays_beside_it_or_is_damaged(name: object, tmp_path: Path) -> None:
    card = write_archive(tmp_path, "stem", {"format": 1}, {"x": np.zeros(3)})
    card.write_text(json.dumps({**json.loads(card.read_text()), "arrays": name}))
    reading = checked_card(card, "pair", 1, "repair")
    with pytest.raises(DamagedDataError, match="beside the card"), reading:
        pass


def test_arrays_of_words_are_refused(tmp_path: Path) -> None:
    card = write_archive(tmp_path, "stem", {"format": 1}, {"x": np.array(["a"])})
    with checked_card(card, "pair", 1, "repair") as (content, arrays):
        pass
    with pytest.raises(DamagedDataError, match=r"'x' must hold numbers, got <U1.*run `repair`"):
        arrays.read(content["sha256"], "repair")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_what_was_read_is_not_held_open(tmp_path: Path) -> None:
    card = write_archive(tmp_path, "stem", {"format": 1}, {"x": np.zeros(3)})
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        with checked_card(card, "pair", 1, "repair") as (content, arrays):
            arrays.read(content["sha256"], "repair")
        assert len(list(Path("/proc/self/fd").iterdir())) <= before
