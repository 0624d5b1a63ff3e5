"""Courses that end early: what they lack is no data, whatever is written there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("sklearn")

from fedhpo_gym.building.candidates import train_network
from fedhpo_gym.building.surrogate_data import FittingRows, FittingSample, completed, prepare
from fedhpo_gym.building.surrogate_fit import LOSS
from fedhpo_gym.building.surrogate_verdicts import (
    Claims,
    compression_summary,
    divergence_summary,
    optimism,
    outcome_spread,
    summary,
    tau_at,
    truths,
    yardstick,
)
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.stored.table import ENDS, LAST_ROUND, Sample, write_sample
from stored_files import (
    SAMPLE_COUNT,
    SAMPLE_NAME,
    SAMPLE_ROUNDS,
    arrays_of,
    fit_sample,
    write_made_up_sample,
)

SHORT = SAMPLE_ROUNDS[1]
Codes = dict[str, NDArray[Any]]


def ragged(folder: Path, last: NDArray[Any], noise: int | None = None, clients: int = 5) -> Sample:
    """Write a sample whose courses end at some rounds; beyond lies the last entry, or noise."""
    whole = write_made_up_sample(folder / "whole", clients)
    codes: Codes = {name: whole.codes(name).copy() for name in whole._codes}
    beyond = np.array(SAMPLE_ROUNDS) > last[:, None]
    rng = np.random.default_rng(noise)
    for name, array in codes.items():
        if array.ndim > 1 and name != "configuration":
            kept = np.minimum(np.arange(len(SAMPLE_ROUNDS)), (~beyond).sum(axis=1)[:, None] - 1)
            filler = array[np.arange(SAMPLE_COUNT)[:, None], kept]
            if noise is not None:
                filler = rng.permutation(array.ravel()).reshape(array.shape)
            array[beyond] = filler[beyond]
    codes[LAST_ROUND] = last.astype(np.uint16)
    found, counts = np.unique(last, return_counts=True)
    card = {**whole.card, ENDS: dict(zip(map(str, found.tolist()), counts.tolist(), strict=True))}
    return Sample(write_sample(folder, card, codes))


def ends(short: int = 2) -> NDArray[np.int64]:
    """Return where courses end: all but every third early."""
    return np.where(np.arange(SAMPLE_COUNT) % 3 < short, SHORT, SAMPLE_ROUNDS[-1])


def rows_of(sample: Sample) -> FittingRows:
    return FittingSample(sample).rows(10**9, stream(0, "test"))


def figures(card: Mapping[str, Any]) -> dict[str, Any]:
    return {key: card[key] for key in ("model", "comparison", "errors_of_the_stored_model")}


# ---------------------------------------------------------------------------------- the reader


def test_rounds_that_were_not_trained_are_never_shown(tmp_path: Path) -> None:
    last = ends()
    sample = ragged(tmp_path, last, noise=1)
    expected = np.array(SAMPLE_ROUNDS) <= last[:, None]
    np.testing.assert_array_equal(sample.trained, expected)
    for values in (sample.objective(), *np.moveaxis(sample.values("best", "test", "f1"), 2, 0)):
        np.testing.assert_array_equal(~np.isnan(values), expected)
    whole = Sample(tmp_path / "whole" / f"{SAMPLE_NAME}.sample.json")
    assert whole.trained.all()
    np.testing.assert_array_equal(sample.objective()[expected], whole.objective()[expected])


def test_the_last_entry_repeated_takes_little_room(tmp_path: Path) -> None:
    sizes = [
        arrays_of(tmp_path / name / f"{SAMPLE_NAME}.sample.json").stat().st_size
        for name, noise in (("repeated", None), ("noise", 1))
        if ragged(tmp_path / name, ends(3), noise)
    ]
    assert sizes[0] < 0.7 * sizes[1]


def test_an_end_at_no_stored_round_is_damage(tmp_path: Path) -> None:
    last = ends()
    last[3] = SHORT + 1
    with pytest.raises(DamagedDataError, match="'last_round' must hold stored rounds"):
        _ = ragged(tmp_path, last).trained


# ------------------------------------------------------------------------------------- the fit


@pytest.mark.parametrize("clients", [5, 60])
def test_rows_of_complete_courses_are_the_very_same(tmp_path: Path, clients: int) -> None:
    one = prepare(rows_of(ragged(tmp_path, ends(0), clients=clients)))
    two = prepare(rows_of(Sample(tmp_path / "whole" / f"{SAMPLE_NAME}.sample.json")))
    for name, array in vars(one).items():
        other = vars(two)[name]
        assert np.asarray(array).tobytes() == np.asarray(other).tobytes() or name == "scales"
    assert all(one.scales[key].tobytes() == two.scales[key].tobytes() for key in one.scales)


@pytest.mark.slow
def test_a_sample_of_complete_courses_gives_the_very_same_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ragged(tmp_path, ends(0))
    one, two = (
        fit_sample(tmp_path, monkeypatch, keep=True),
        fit_sample(tmp_path / "whole", monkeypatch, keep=True),
    )
    assert one.sha256 == two.sha256
    assert figures(one.card) == figures(two.card)


@pytest.mark.slow
def test_what_lies_beyond_the_end_never_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for noise in (None, 1):
        folder = tmp_path / str(noise)
        ragged(folder, ends(), noise)
        found.append(fit_sample(folder, monkeypatch, keep=True))
    assert found[0].sha256 == found[1].sha256
    assert figures(found[0].card) == figures(found[1].card)


def test_it_matters_which_rounds_were_trained(tmp_path: Path) -> None:
    """The repeated entries, taken for data, would be another fit."""
    known = prepare(rows_of(ragged(tmp_path, ends())))
    codes = Sample(tmp_path / f"{SAMPLE_NAME}.sample.json")
    plain = {name: codes.codes(name) for name in codes._codes if name != LAST_ROUND}
    card = {key: value for key, value in codes.card.items() if key != ENDS}
    taken = prepare(rows_of(Sample(write_sample(tmp_path / "taken", card, plain))))
    assert np.abs(known.centre - taken.centre).max() > 0.1


def test_a_network_ignores_what_was_filled_in(tmp_path: Path) -> None:
    prepared = prepare(rows_of(ragged(tmp_path, ends())))
    assert not prepared.known.all()
    first = train_network(prepared, steps=20, batch=16)
    prepared.curves[~prepared.known] += 7.0
    second = train_network(prepared, steps=20, batch=16)
    assert all(first.arrays[n].tobytes() == a.tobytes() for n, a in second.arrays.items())
    prepared.curves[prepared.known] += 7.0
    third = train_network(prepared, steps=20, batch=16)
    assert first.arrays["heads"].tobytes() != third.arrays["heads"].tobytes()


def test_early_courses_help(tmp_path: Path) -> None:
    """What ends early, and goes on as the others do, is filled in nearly as it was."""
    whole = rows_of(write_made_up_sample(tmp_path))
    curves = whole.outputs.astype(np.float32)
    trained = np.array(SAMPLE_ROUNDS) <= ends()[:, None]
    holes = np.where(trained[..., None], curves, np.float32(np.nan))
    found = completed(holes, trained, whole.inputs[:, 0, :-3])
    np.testing.assert_array_equal(found[trained], curves[trained])
    loss = np.s_[..., 1]
    missed = np.abs(found[loss] - curves[loss])[~trained].mean()
    stayed = np.abs(curves[:, 1, None][..., 1] - curves[loss])[~trained].mean()
    assert missed < 0.2 * stayed


def test_what_saturates_is_not_drawn_on_as_a_line() -> None:
    """Good courses end alike, however good they began; a line would let the best go on falling."""
    early = np.random.default_rng(0).permutation(np.linspace(0.0, 3.0, 60))
    late = np.maximum(early - 1.0, 0.5)
    curves = np.stack([early, late], axis=1)[..., None].astype(np.float32)
    trained = np.ones((60, 2), np.bool_)
    trained[:40, 1] = False
    holes = np.where(trained[..., None], curves, np.float32(np.nan))
    settings = np.zeros((60, 1), np.float32)
    found = completed(holes, trained, settings)[:40, 1, 0]
    by_line = np.polyval(np.polyfit(early[40:], late[40:], 1), early[:40])
    assert found.min() > 0.4 > by_line.min()
    assert np.abs(found - late[:40]).mean() < 0.3 * np.abs(by_line - late[:40]).mean()


def test_what_is_filled_in_stays_near_the_range_of_those_that_go_on() -> None:
    """Last values that hardly differ draw a steep line, which a course apart must not follow."""
    rng = np.random.default_rng(0)
    last = np.append(1.0 + 1e-4 * rng.standard_normal(9), 3.0)
    curves = np.stack([last, rng.uniform(0.0, 1.0, 10)], axis=1)[..., None].astype(np.float32)
    trained = np.ones((10, 2), np.bool_)
    trained[9, 1] = False
    found = completed(curves, trained, np.zeros((10, 1), np.float32))[9, 1, 0]
    assert -2.0 <= found <= 3.0


def test_curves_go_on_step_by_step_and_stay_where_none_does() -> None:
    start = np.arange(6.0)[:, None]
    curves = (start + np.array([0.0, 1.0, 2.0, 9.0])).astype(np.float32)[..., None]
    trained = np.arange(4) < np.array([1, 1, 2, 3, 3, 3])[:, None]
    settings = np.zeros((6, 1), np.float32)
    holes = np.where(trained[..., None], curves, np.nan)
    found = completed(holes, trained, settings)[..., 0]
    # All rise by 1 a round; nobody was trained for the last one.
    expected = start + np.array([0.0, 1.0, 2.0, 2.0])
    np.testing.assert_allclose(found, expected, atol=1e-3)
    all_trained = np.ones((6, 4), np.bool_)
    np.testing.assert_array_equal(completed(curves, all_trained, settings), curves)


# --------------------------------------------------------------------------------- the figures


def test_errors_and_ranks_are_of_the_rounds_that_were_trained(tmp_path: Path) -> None:
    rows = rows_of(ragged(tmp_path, ends()))
    truth = truths(rows)
    assert rows.shared_knot == 1
    off = Claims(np.where(np.isnan(truth.values), 99.0, truth.values + 0.5), truth.diverged)
    assert summary(np.abs(off.values - truth.values), {})["log_val_loss"]["max"] == 0.5
    late = ~rows.trained[:, -1]
    wrong = off.values.copy()
    wrong[late, -1] *= -1.0
    assert tau_at(rows, Claims(wrong, truth.diverged)) == 1.0
    wrong[late, 1] *= -1.0
    assert tau_at(rows, Claims(wrong, truth.diverged), 1) < 0.9
    complete = truth.values[~late]
    fold = np.arange(SAMPLE_COUNT) // 3 % 2
    errors = yardstick(rows, fold)
    np.testing.assert_array_equal(np.isnan(errors[..., 0]), ~rows.trained)
    others = complete[fold[~late] == 1][:, -1]
    np.testing.assert_allclose(errors[2, -1], np.abs(truth.values[2, -1] - others.mean(axis=0)))
    assert np.isfinite([*outcome_spread(rows).values()]).all()
    assert compression_summary(rows)["share_of_variance_lost"] < 0.01
    ended = Claims(truth.values, rows.trained & ~np.roll(rows.trained, -1, axis=1))
    ended.diverged[:, -1] |= rows.trained[:, -1]
    assert divergence_summary(rows, ended)["claimed"] == 1.0


def test_optimism_is_of_the_courses_that_are_claimed_best(tmp_path: Path) -> None:
    rows = rows_of(ragged(tmp_path, ends()))
    truth = truths(rows)
    deep = np.flatnonzero(rows.trained[:, -1])
    losses = truth.values[deep, -1, LOSS]
    number = -(-len(deep) // 10)
    exact = optimism(rows, truth)
    assert (exact["courses"], exact["above"]) == (number, 0.0)
    assert exact["claimed"] == pytest.approx(np.sort(losses)[:number].mean(), abs=1e-3)
    lucky = truth.values.copy()
    worst = deep[np.argsort(losses)[-number:]]
    lucky[worst, -1, LOSS] = losses.min() - 2.0
    lucky[~rows.trained[:, -1], -1, LOSS] = -99.0  # nobody knows what became of these
    found = optimism(rows, Claims(lucky, truth.diverged))
    expected = np.sort(losses)[-number:].mean() - losses.min() + 2.0
    assert found["above"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_the_cards_say_where_courses_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = ragged(tmp_path, ends())
    said = {str(SHORT): int((ends() == SHORT).sum()), str(SAMPLE_ROUNDS[-1]): SAMPLE_COUNT // 3}
    assert sample.card[ENDS] == said
    surrogate = fit_sample(tmp_path, monkeypatch, keep=True)
    assert surrogate.card[ENDS] == said
    assert surrogate.card["errors_of_the_stored_model"]["optimism"]["courses"] > 0
    shared = surrogate.card["errors_of_the_stored_model"]["kendall_tau_at_shared_round"]
    assert shared["round"] == SHORT
    assert shared["kendall_tau"] > 0.5
    words = ["show", "FedHPO-LR-CreditG-v0", "--alpha", "0.25", "--backend", "surrogate"]
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stored"][ENDS] == said
    assert main(words) == 0
    assert f"courses by last round: {said['3']} at 3, {said['20']} at 20" in capsys.readouterr().out
