"""Courses that surrogates have not seen: files of them, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.surrogates import open_surrogate
from fedhpo_gym.tables import Sample, open_sample
from fedhpo_gym.tasks import get_task

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
LATER = FOLDER / "results" / "surrogate_later.csv"
ID = "FedHPO-CNN-FEMNIST-v1"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def stored() -> Sample:
    return open_sample(get_task(ID).identity)


def test_a_file_of_courses_says_what_the_sample_says(tmp_path: Path) -> None:
    from heldout_courses import Courses

    # The first and the last are trained for 27 and for 81 rounds: the file has no line for NaN.
    sample = stored()
    found = Courses.of(sample).take(np.array([0, 3, 149, 40]))
    assert np.isnan(found.truth).any()
    found.write(tmp_path / "courses.csv")
    read = Courses.read(tmp_path / "courses.csv")
    order = np.argsort(found.numbers)
    assert read.numbers.tolist() == found.numbers[order].tolist()
    np.testing.assert_allclose(read.truth, found.truth[order], atol=1e-5)
    surrogate = open_surrogate("CNN-FEMNIST-v1-fedavg-bfloat16")
    np.testing.assert_array_equal(read.claims(surrogate), found.claims(surrogate)[order])


def test_a_line_counts_errors_and_ranks() -> None:
    from heldout_courses import line

    truth = np.array([[0.5, 0.1], [0.6, 0.2], [0.7, 0.3]])
    assert line("", truth, truth)[2:] == ["0.0000", "0.0000", "0.0816", "0.0000", "1.00"]
    assert line("", truth, truth[::-1])[2:4] == ["0.1333", "0.2000"]
    assert line("", truth, truth[::-1])[-1] == "-1.00"


def test_later_courses_are_none_of_the_fit() -> None:
    from heldout_courses import Courses

    sample, later = stored(), Courses.read(LATER)
    assert len(later) >= 20
    assert not np.isin(later.numbers, sample.codes("point")).any()
    assert later.rounds == sample.rounds
    assert not np.isnan(later.truth).any()


def test_the_report_of_later_courses_is_what_the_command_writes(tmp_path: Path) -> None:
    import surrogate_heldout

    said = LATER.with_suffix(".md").read_text(encoding="utf-8")
    found = surrogate_heldout.main([ID, f"--courses={LATER}", f"--out={tmp_path / 'report.md'}"])
    assert found.partition("\n\nCNN-")[2] == said.partition("\n\nCNN-")[2]


def test_rates_of_the_fit_that_nobody_was_asked_for_are_named() -> None:
    from heldout_courses import Courses
    from surrogate_heldout import asked_of_stored

    # Later courses are those that were trained, not a random part: a mean hides what is missing.
    sample, later = stored(), Courses.read(LATER)
    own = later.take(np.flatnonzero(later.columns["client_sample_rate"] == 0.2))
    sections, _ = asked_of_stored(own, sample)
    assert "| 1 | 6 | 0 |  |  |" in sections[-1]
    fit = Courses.of(sample)
    ended = ~np.isnan(fit.truth[:, -1, 0])
    cost = [one.columns["client_sample_rate"] * one.columns["step_size"] for one in (own, fit)]
    assert f" {cost[0].mean() / cost[1][ended].mean():.2f} of the work" in sections[1]


def test_the_report_of_later_courses_replaces_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import measuring
    import surrogate_heldout

    monkeypatch.setattr(measuring, "RESULTS", tmp_path)
    surrogate_heldout.main([ID, f"--courses={LATER}"])
    assert [path.name for path in tmp_path.iterdir()] == ["surrogate_later.md"]
