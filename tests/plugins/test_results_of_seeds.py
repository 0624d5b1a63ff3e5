"""Results of several seeds: which courses answer, and what an import says of it."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")
import pandas

import fedhpo_gym
from fedhpo_gym import cli
from fedhpo_gym.backends import make_backend
from fedhpo_gym.stored.catalogue import ENV_VAR
from fedhpo_gym.tasks import get_task


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VAR, str(tmp_path / "tables"))


def grid() -> Any:
    """Return a complete grid of two hyperparameters under three seeds."""
    cells = itertools.product((0.01, 0.1, 1.0), (8, 16, 32), (0, 1, 2), (1, 5))
    frame = pandas.DataFrame([*cells], columns=["lr", "batch", "seed", "round"])
    return frame.assign(val_loss=frame["lr"] + frame["seed"] / 10 + 1 / frame["round"])


def search(seeds: int = 20) -> Any:
    """Return a random search of which every trial has a seed of its own."""
    lrs, rounds = np.geomspace(0.001, 1.0, seeds), (1, 5)
    cells = [(lr, 1.0 - lr, seed, round_) for seed, lr in enumerate(lrs) for round_ in rounds]
    frame = pandas.DataFrame(cells, columns=["lr", "momentum", "seed", "round"])
    return frame.assign(val_loss=frame["lr"] + 1 / frame["round"])


def imported(frame: Any) -> tuple[str, Any]:
    """Return what an import warns of, and the backend of its numbers."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        fedhpo_gym.import_results(frame, "Seeds", 100, clients=3)
    words = " ".join(str(note.message) for note in notes)
    return words, make_backend("tabular", get_task("Results-Seeds"))


def test_a_search_of_one_seed_for_each_trial_answers_with_all_of_them() -> None:
    words, backend = imported(search())
    assert "under two of the 20 seeds, so all 20 courses answer together, under seed 0" in words
    assert len(backend.pool) == 20
    assert backend.seeds == (0,)
    truth = fedhpo_gym.truth("FedHPO-Results-Seeds-v0")
    assert truth.best[0] == pytest.approx(search()["val_loss"].min(), rel=2**-8)


def test_seeds_that_share_a_configuration_or_differ_in_samples_stay_apart() -> None:
    frame = search()
    twice = frame[frame["seed"] == 0].assign(seed=1)
    words, backend = imported(pandas.concat([frame, twice]))
    assert len(backend.pool.sample.seeds) == 20
    assert (len(backend.pool), backend.seeds) == (2, (1,))
    assert words.startswith("2 of 21 courses answer, those under seed 1; `seed=` or `instances=`")
    assert "those under 0, 2, 3, 4, 5, ..." in words
    words, backend = imported(frame.assign(val_samples=10 + frame["seed"]))
    assert len(backend.pool.sample.seeds) == 20
    assert words.startswith("1 of 20 courses answer, those under seed 0;")


def test_a_grid_with_a_hole_says_which_courses_answer_and_which_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = grid()
    frame[(frame["lr"] != 1.0) | (frame["batch"] != 32) | (frame["seed"] != 2)].to_csv(
        tmp_path / "hole.csv", index=False
    )
    (tmp_path / "hole.toml").write_text('name = "Hole"\nparameters = 100\nclients = 3\n')
    assert cli.main(["import", str(tmp_path / "hole.csv")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("9 of 26 courses answer, those under seed 0;")
    cell = "{'lr': 1.0, 'batch': 32, 'client_sample_rate': 1.0, 'seed': 2}"
    assert f"The grid lacks 1 of 27 courses: {cell}." in shown
    assert "a complete grid answers with means over seeds" in shown
    assert cli.main(["show", "FedHPO-Results-Hole-v0"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "an action gets the nearest of these. 9 of 26 courses answer, those under" in shown


def test_a_course_with_fewer_rounds_is_named_as_the_reason() -> None:
    frame = grid()
    words, _ = imported(frame[(frame["lr"] != 1.0) | (frame["round"] == 1)])
    assert words.startswith("9 of 27 courses answer, those under seed 0;")
    assert "Some courses have fewer rounds than others. Fill the gaps" in words


def test_a_complete_grid_and_results_of_one_seed_say_nothing() -> None:
    words, backend = imported(grid())
    assert (words, backend.seeds) == ("", (0, 1, 2))
    words, backend = imported(search().assign(seed=7))
    assert (words, backend.seeds, len(backend.pool)) == ("", (7,), 20)
