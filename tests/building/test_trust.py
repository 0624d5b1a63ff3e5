"""What a surrogate must show: skill, ranks, divergence, and the client sample rate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("sklearn")

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.backends import default_backend, make_backend
from fedhpo_gym.building import surrogate_fit
from fedhpo_gym.building.surrogate_data import FittingSample
from fedhpo_gym.building.surrogate_verdicts import kendall_tau, verdict, yardstick
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.surrogate import Surrogate, claim_on, held_on
from fedhpo_gym.stored.table import Sample
from fedhpo_gym.tasks import get_task
from stored_files import (
    SAMPLE_COUNT,
    SAMPLE_NAME,
    SAMPLE_ROUNDS,
    SAMPLE_TASK,
    check_law,
    fit_quickly,
    fit_sample,
    write_made_up_sample,
    written_with,
)

OLD = get_task("LR-CreditG-v0").variant(alpha=0.25)


def learning_rates(sample: Sample) -> np.ndarray[Any, Any]:
    where = sample.space.names.index("learning_rate")
    return sample.codes("configuration")[:, where]


# ------------------------------------------------------------------------------------ divergence


@pytest.mark.slow
def test_a_course_that_diverges_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_made_up_sample(tmp_path / "made")
    rates = learning_rates(made)
    steep = rates > np.median(rates)
    at = np.where(steep, SAMPLE_ROUNDS[1] + 1, 0).astype(np.uint16)
    written_with(made, tmp_path, diverged_at=at)
    surrogate = fit_sample(tmp_path, monkeypatch, keep=True)
    stated = surrogate.card["errors_of_the_stored_model"]["diverged"]
    assert stated["share"] == 0.5
    assert stated["both"] > 0.4
    query = {d.name: d.decode(0.0) for d in surrogate.space.dimensions}
    for rate, expected in ((rates.max(), True), (rates.min(), False)):
        asked = {**query, "learning_rate": float(rate)}
        early, late = (
            surrogate.evaluate(asked, Fidelity(rounds, 0.4), (1,)).has_diverged
            for rounds in (SAMPLE_ROUNDS[1], SAMPLE_ROUNDS[2])
        )
        assert not early
        assert late is expected
    with gymnasium.make(OLD.id, backend="surrogate", alpha=0.25) as env:
        env.reset(seed=0)
        names = env.get_wrapper_attr("search_space").names
        action = [1.0 if name in ("learning_rate", "round") else 0.0 for name in names]
        assert env.step(np.array(action, np.float32))[4]["diverged"]


# ------------------------------------------------------------------------- the client sample rate


@pytest.mark.slow
def test_the_rate_matters_where_it_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = write_made_up_sample(tmp_path / "made")
    high = sample.codes("client_sample_rate") > 0.5
    loss = np.broadcast_to(
        np.where(high, 0.5, 2.0)[:, None, None], (SAMPLE_COUNT, len(SAMPLE_ROUNDS), 5)
    )
    losses = {name for name in sample._codes if name.startswith("best_") and "loss" in name}
    flat = codec.encode("loss", loss, np.ones(5, np.int64))
    written_with(sample, tmp_path, **dict.fromkeys(losses, flat))
    surrogate = fit_sample(tmp_path, monkeypatch, keep=True)
    query = {d.name: d.decode(0.0) for d in surrogate.space.dimensions}
    low, high_loss = (
        surrogate.evaluate(query, Fidelity(20, rate), (1, 2, 3)).mean("val", "loss")
        for rate in (0.4, 0.8)
    )
    assert low == pytest.approx(2.0, rel=0.1)
    assert high_loss == pytest.approx(0.5, rel=0.1)


# ----------------------------------------------------------------------------- skill and verdict


def test_the_yardstick_knows_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = FittingSample(write_made_up_sample(tmp_path)).rows(6, stream(0, "test"))
    curve = np.arange(len(SAMPLE_ROUNDS)) * 10.0
    values = curve[:, None] + np.array([0.0, 0.0, 0.0, 3.0, 3.0, 3.0])[:, None, None]
    values = np.repeat(values, 2, axis=2)
    truth = surrogate_fit.Claims(values, np.zeros(values.shape[:2], np.bool_))
    monkeypatch.setattr("fedhpo_gym.building.surrogate_verdicts.truths", lambda _: truth)
    errors = yardstick(rows, np.array([0, 0, 1, 1, 2, 2]))
    # The mean of the other four: 2.25 at the first round, 1.5, then 0.75, whatever the curve.
    np.testing.assert_allclose(errors[:, -1, 0], [2.25, 2.25, 1.5, 1.5, 2.25, 2.25])


def test_kendalls_tau_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    truth = rng.normal(size=80)
    claim = np.round(truth + rng.normal(size=80), 1)  # with ties
    together = np.zeros(80, np.int64)
    assert kendall_tau(truth, claim, together) == pytest.approx(stats.kendalltau(truth, claim)[0])
    apart = np.where(np.arange(80) < 40, 0, -1)
    first = stats.kendalltau(truth[:40], claim[:40])[0]
    assert kendall_tau(truth, claim, apart) == pytest.approx(first)
    assert np.isnan(kendall_tau(truth, np.zeros(80), together))


@pytest.mark.parametrize(
    ("error", "tau", "passed"),
    [(0.5, 0.6, True), (0.51, 0.9, False), (0.1, 0.59, False), (0.1, float("nan"), False)],
)
def test_a_surrogate_needs_both_skill_and_ranks(error: float, tau: float, passed: bool) -> None:
    errors = {"log_val_loss": {"mae": error}}
    assert verdict(errors, {"log_val_loss": 1.0}, tau)["passed"] is passed


def noise(tmp_path: Path) -> None:
    """Write a sample of which nothing can be learned."""
    rng = np.random.default_rng(0)
    loss = np.exp(rng.normal(size=(SAMPLE_COUNT, 1, 1))) * np.ones((1, len(SAMPLE_ROUNDS), 5))
    flat = codec.encode("loss", loss, np.ones(5, np.int64))
    names = [f"best_{split}_loss" for split in ("train", "val", "test")]
    written_with(write_made_up_sample(tmp_path / "made"), tmp_path, **dict.fromkeys(names, flat))


@pytest.mark.slow
def test_what_is_no_better_than_a_constant_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"--keep.*constant.*Kendall"):
        fit_sample(tmp_path, monkeypatch)
    assert not list(tmp_path.glob("*.surrogate.*"))
    kept = fit_sample(tmp_path, monkeypatch, keep=True)
    assert not kept.card["errors_of_the_stored_model"]["verdict"]["passed"]


# ------------------------------------------------------------------- old and new, side by side


@pytest.mark.slow
def test_a_surrogate_of_its_own_goes_before_a_shared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_made_up_sample(tmp_path)
    shared = get_task("LR-CreditG-v0").variant(alpha=0.25)
    own = shared.variant(version=1, numbers=0)
    old = fit_sample(tmp_path, monkeypatch)
    assert default_backend(own) == "surrogate"
    before = make_backend("surrogate", own).fingerprint
    assert (
        before == make_backend("surrogate", shared).fingerprint == f"surrogate-sha256:{old.digest}"
    )
    first, second = own.surrogate_identities
    assert (first.version, second) == (1, shared.identity)
    new = Surrogate(surrogate_fit.fit_surrogate(SAMPLE_NAME, identity=first))
    assert new.identity == first
    assert make_backend("surrogate", own).fingerprint == f"surrogate-sha256:{new.digest}"
    assert make_backend("surrogate", shared).fingerprint == before
    check_law(new, 0)


@pytest.mark.slow
def test_one_command_fits_all_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    noise(tmp_path)
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(tmp_path))
    fit_quickly(monkeypatch)
    few = {"gaussian_process": surrogate_fit.CANDIDATES["gaussian_process"]}
    monkeypatch.setattr(surrogate_fit, "CANDIDATES", few)
    commands = sys.modules.get("fedhpo_gym.cli.surrogates") or __import__(
        "fedhpo_gym.cli.surrogates", fromlist=["list_tables"]
    )
    monkeypatch.setattr(commands, "list_tables", tuple)
    monkeypatch.setattr(commands, "list_samples", lambda: (SAMPLE_NAME,))
    words = ["surrogate", "all", "--out", str(tmp_path / "new")]
    assert main(words) == 1
    assert "--keep" in capfd.readouterr().err
    assert main([*words, "--keep"]) == 0
    [card] = (tmp_path / "new").glob("*.surrogate.json")
    written = card.stat().st_mtime_ns
    assert main([*words, "--keep"]) == 0
    assert card.stat().st_mtime_ns == written
    assert main([*words, "--alpha", "0.1"]) == 2
    assert SAMPLE_TASK.identity.name == SAMPLE_NAME


# ----------------------------------------------------------------------------------- claimed best


def claimed(surrogate: Surrogate) -> float:
    return float(surrogate.card["health"]["optimum"]["val_loss"])


def test_a_claim_that_training_misses_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_made_up_sample(tmp_path)
    files = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidArgumentError, match=r"claimed best.*--keep|--keep.*claimed best"):
        fit_sample(tmp_path, monkeypatch, train=lambda one: 3.0 * claimed(one))
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.slow
def test_a_claim_that_training_reaches_is_on_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_made_up_sample(tmp_path)
    surrogate = fit_sample(tmp_path, monkeypatch, train=claimed)
    claim = claim_on(surrogate.card)
    assert claim is not None
    assert claim.passed
    assert claim.claimed == claimed(surrogate)
    assert claim.trained == pytest.approx(claim.claimed, rel=1e-3)
    held = held_on(surrogate.card)
    assert held is not None
    assert held["val_loss"].passed
    assert held["val_loss"].spread == claim.spread
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".fit-")] == []
