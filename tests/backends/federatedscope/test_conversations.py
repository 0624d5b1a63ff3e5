"""A line that is lost, comes twice, comes late or makes no sense never becomes a number."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import WorkerLostError

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from federatedscope_peer import ROUNDS, STEPS, conversation, pretend_saying, talk


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return conversation(tmp_path_factory.mktemp("good"))


def test_what_was_said_once_can_be_said_again(tmp_path: Path, good: list[list[str]]) -> None:
    found = [talk(pretend_saying(tmp_path, good)) for _ in range(2)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    lines = [json.loads(line) for part in good for line in part]
    assert [line["line"] for line in lines] == list(range(len(lines)))
    assert sum("trained" in line for line in lines) == STEPS * ROUNDS


def places(good: list[list[str]], what: str) -> list[tuple[int, int]]:
    """Return where lines of a kind are: the part, and the line in it."""
    return [
        (p, i) for p, part in enumerate(good) for i, line in enumerate(part) if f'"{what}"' in line
    ]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["hello", "trained", "round", "done"])
@pytest.mark.parametrize("how", ["twice", "lost", "late", "of another request"])
def test_a_line_in_the_wrong_place_is_refused(
    tmp_path: Path, good: list[list[str]], what: str, how: str
) -> None:
    said = copy.deepcopy(good)
    found = places(good, what)
    p, i = found[len(found) // 2]
    line = said[p].pop(i)
    if how == "twice":
        said[p][i:i] = [line, line]
    elif how == "late":
        said[p + 1].insert(0, line)
    elif how == "of another request":
        q, j = found[len(found) // 2 - 1] if len(found) > 1 else (1, 0)
        said[p].insert(i, good[q][j])
    with pytest.raises(WorkerLostError):
        talk(pretend_saying(tmp_path, said))


RENUMBERED = [("request", 1), ("line", 1), ("request", -1), ("line", -1)]


@pytest.mark.parametrize(("name", "by"), RENUMBERED)
def test_a_wrong_number_is_refused(
    tmp_path: Path, good: list[list[str]], name: str, by: int
) -> None:
    p, i = places(good, "round")[1]
    said = copy.deepcopy(good)
    message = json.loads(said[p][i])
    said[p][i] = json.dumps({**message, name: message[name] + by}) + "\n"
    with pytest.raises(WorkerLostError, match=f"`{name}` must be {message[name]}, got"):
        talk(pretend_saying(tmp_path, said))


def numbered(line: str, **changes: Any) -> str:
    return json.dumps({**json.loads(line), **changes}) + "\n"


@pytest.mark.parametrize(
    ("what", "changes", "told"),
    [
        ("hello", {"hello": [1, 2]}, "no answer"),
        ("hello", {"hello": "0.3"}, "no answer"),
        ("hello", {"hello": {"torch": 2}}, "no answer"),
        ("hello", {"hello": {"torch": "\ud800", "layout": "current"}}, "no answer"),
        ("round", {"round": 2}, "`round` must be 4, got 2"),
        ("round", {"round": 10**30}, "`round` must be 4, got 1000"),
        ("round", {"round": None}, "`round` must be a whole number"),
        ("round", {"course": 99}, "`course` must be"),
        ("round", {"clients": None}, "`clients` must be an object"),
        ("trained", {"trained": "3"}, "`trained` must be a whole number"),
        ("trained", {"clients": {"²": {}}}, "`clients` must be 1 to 5"),
        ("trained", {"clients": {"1": {"norm": -1.0}}}, "`norm` must be a number from 0"),
        ("trained", {"clients": {"1": {"norm": 1.0, "alignment": 2.0}}}, "`alignment` must be"),
        ("trained", {"clients": {"1": {"norm": 1.0, "alignment": 1.0}}}, "`client 1` must be an"),
    ],
)
def test_a_wrong_value_is_named(
    tmp_path: Path, good: list[list[str]], what: str, changes: dict[str, Any], told: str
) -> None:
    found = places(good, what)
    p, i = next((p, i) for p, i in found[len(found) // 2 :])
    said = copy.deepcopy(good)
    said[p][i] = numbered(said[p][i], **changes)
    with pytest.raises(WorkerLostError, match=told):
        talk(pretend_saying(tmp_path, said))


def test_a_model_that_nobody_trained_has_finite_metrics(
    tmp_path: Path, good: list[list[str]]
) -> None:
    said = copy.deepcopy(good)
    p, i = next((p, i) for p, i in places(good, "done") if "avg_loss" in good[p][i])
    message = json.loads(said[p][i])
    message["done"]["1"]["val_avg_loss"] = float("nan")
    said[p][i] = json.dumps(message) + "\n"
    with pytest.raises(WorkerLostError, match="finite metrics before the first round"):
        talk(pretend_saying(tmp_path, said))


@pytest.mark.parametrize("depth", [9, 500, 200_000])
@pytest.mark.parametrize("pair", ["[]", ('{"a":', "}")])
def test_nesting_is_bounded(
    tmp_path: Path, good: list[list[str]], depth: int, pair: tuple[str, str]
) -> None:
    said, (p, i) = copy.deepcopy(good), places(good, "round")[0]
    nested = pair[0] * depth + ("1" if pair[0] != "[" else "") + pair[1] * depth
    said[p][i] = f'{said[p][i].rstrip()[:-1]}, "more": {nested}}}\n'
    with pytest.raises(WorkerLostError, match="no answer"):
        talk(pretend_saying(tmp_path, said))
