"""Landscapes of run records: by hand, and from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fake_study import make_record
from fedhpo_gym.analysis import RunRecord
from fedhpo_gym.analysis.landscape import BINS, landscape
from fedhpo_gym.cli import BAD, ERROR, main
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, UnknownNameError
from fedhpo_gym.records.files import write_record


def tried(*trials: tuple[float, float, float, int]) -> RunRecord:
    """Return a record of trials with these x, y, validation losses and rounds."""
    made = make_record()
    first, last = made.steps[0], made.steps[-1]
    steps = []
    for number, (x, y, loss, rounds) in enumerate(trials, start=1):
        step = last if number == len(trials) else first
        steps.append(
            replace(
                step,
                configuration={"x": x, "y": y, "word": "a"},
                objectives={**step.objectives, "val_loss": loss},
                fidelity={"round": rounds},
                incumbent={**step.incumbent, "trial": 1},
                elapsed_s=float(number),
            )
        )
    return RunRecord(made.header, tuple(steps))


def test_cells_are_medians_of_the_highest_fidelity() -> None:
    one = tried((1.0, 0.1, 5.0, 9), (1.0, 0.1, 3.0, 9), (1.0, 0.2, 0.1, 3), (2.0, 0.2, 4.0, 9))
    other = tried((1.0, 0.1, 1.0, 9), (2.0, 0.2, 6.0, 9))
    found = landscape([one, other], ("x", "y"))
    assert found.ticks == (["1", "2"], ["0.1", "0.2"])
    np.testing.assert_array_equal(found.loss, [[3.0, np.nan], [np.nan, 5.0]])
    assert found.trials.tolist() == [[3, 0], [0, 2]]


def test_many_values_become_ranges_with_equally_many_trials() -> None:
    values = np.linspace(0.0, 1.0, 64)
    found = landscape([tried(*((v, 0.0, v, 9) for v in values.tolist()))], ("x", "y"))
    assert found.trials.tolist() == [[64 // BINS] * BINS]
    assert found.loss[0, 0] == pytest.approx(np.median(values[:8]))
    assert found.ticks[0][0] == "0 to 0.12"


def test_what_is_no_landscape_is_refused() -> None:
    record = tried((1.0, 0.1, 5.0, 9))
    with pytest.raises(UnknownNameError, match="hyperparameter"):
        landscape([record], ("x", "z"))
    with pytest.raises(InvalidArgumentError, match="numbers"):
        landscape([record], ("x", "word"))
    with pytest.raises(MissingDataError):
        landscape([], ("x", "y"))
    other = RunRecord(replace(record.header, id="Other-v0"), record.steps)
    with pytest.raises(InvalidArgumentError, match="one problem"):
        landscape([record, other], ("x", "y"))


def test_the_command_draws_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    write_record(tmp_path / "a.jsonl", tried((1.0, 0.1, 5.0, 9), (2.0, 0.2, 4.0, 9)))
    words = ["report", str(tmp_path), "--landscape", "x,y", "--out"]
    for suffix, begin in ((".pdf", b"%PDF"), (".svg", b"<?xml"), (".csv", b"x,y,median")):
        target = tmp_path / f"landscape{suffix}"
        assert main([*words, str(target)]) == 0
        assert target.read_bytes().startswith(begin)
    assert main(["report", str(tmp_path), "--landscape", "x"]) in (BAD, ERROR)
    assert "two names" in capsys.readouterr().err
