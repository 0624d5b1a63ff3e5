"""An id is a promise: what it returns is, bit for bit, what it returned when it was recorded.

Arithmetic rounds differently on other kinds of processors. There, sums of what stored ids return
are compared within a tolerance, and those of trained courses for their first step only.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

import digests
from digests import FILE, Digest, Trajectory
from fedhpo_gym.errors import MissingDataError

RECORDED: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
ALL = [digests.from_json(entry) for entry in RECORDED["trajectories"]]
TRAINED_STEPS = 1
"""Steps of really trained courses that are compared here; the recording command compares all."""
LIKE_OTHERS = ("Vehicle", "KC1", "BloodTransfusion", "Australian", "Car", "Segment", "Digits")
LIKE_OTHERS += ("CiteSeer",)
"""Data sets whose trained ids are compared as single environments only: CreditG's, BreastCancer's
and Cora's vectors train the same models, and a vector is its single environments by a law of
`round/test_vector.py`. The recording command compares all."""


@functools.cache
def same_machine() -> bool:
    return digests.machine() == RECORDED["machine"]


def check(trajectory: Trajectory, recorded: list[Digest], limit: int | None) -> None:
    try:
        found = digests.stepped(trajectory, limit)
    except MissingDataError as error:
        pytest.skip(f"no data: {error}")
    assert found, "nothing was stepped"
    if same_machine():
        assert found == recorded[: len(found)]
        return
    known = {digest.steps: digest for digest in recorded}
    for digest in found[:1] if trajectory.trained else found:
        assert digest.sums == pytest.approx(known[digest.steps].sums, rel=1e-3)


def like_others(trajectory: Trajectory) -> bool:
    return any(f"-{name}-" in trajectory.id for name in LIKE_OTHERS)


def named(trained: bool) -> Any:
    chosen = [
        pytest.param(t, d, id=t.name, marks=[] if "CreditG" in t.name else [pytest.mark.slow])
        for t, d in ALL
        if t.trained == trained and not (trained and t.form == "vector" and like_others(t))
    ]
    return pytest.mark.parametrize(("trajectory", "recorded"), chosen)


@named(trained=False)
def test_stored_ids_return_what_they_returned(
    trajectory: Trajectory, recorded: list[Digest]
) -> None:
    check(trajectory, recorded, None)


@pytest.mark.raw
@named(trained=True)
def test_trained_ids_return_what_they_returned(
    trajectory: Trajectory,
    recorded: list[Digest],
    shared_datasets: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    check(trajectory, recorded, TRAINED_STEPS)


def test_another_number_is_noticed() -> None:
    trajectory, recorded = next((t, d) for t, d in ALL if not t.trained and t.form == "single")
    other = Trajectory(trajectory.id, "single", 4, {**trajectory.kwargs, "seed": 1})
    with pytest.raises(AssertionError):
        check(other, recorded, 4)
