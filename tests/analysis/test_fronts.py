"""Hypervolume regret and empirical attainment: by hand, by their definitions, in the report."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("moocore")

from fedhpo_gym.analysis import build_report, group
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.multi_objective import attainment_surfaces
from fedhpo_gym.records.files import read_judged, read_record, write_record
from fedhpo_gym.records.record import RunRecord
from fedhpo_gym.records.runs import ScoredTrials, at_full_level, scale_errors, volume_regret
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.run import do_run

pytestmark = pytest.mark.usefixtures("no_pictures")


def scored(errors: list[list[float]], level: list[float] | None = None) -> ScoredTrials:
    points = np.array(errors, dtype=np.float64)
    names = tuple(f"o{i}" for i in range(points.shape[1]))
    levels = np.ones(len(points)) if level is None else np.array(level)
    return ScoredTrials(np.arange(1.0, len(points) + 1), points, levels, names)


def test_hypervolume_regret_by_hand() -> None:
    first, second = scored([[10.0, 4.0], [4.0, 2.0], [3.0, 3.0]]), scored([[2.0, 4.0]])
    # The best known front is (2, 4), (3, 3), (4, 2): the scale is 2 to 4 in both.
    assert scale_errors([first, second])[1].tolist() == [[0.0, 1.0]]
    # With 1.1 as the corner: (0, 1), (0.5, 0.5), (1, 0) dominate 1.1 x 0.1 + 0.6 x 0.5 + 0.1 x 0.5;
    # (1, 0) alone 0.1 x 1.1; with (0.5, 0.5) 0.6 x 0.6 + 0.1 x 0.5; (0, 1) alone 1.1 x 0.1.
    whole = 0.11 + 0.3 + 0.05
    one, other = volume_regret([first, second])
    assert one.tolist() == pytest.approx([1.0, 1 - 0.11 / whole, 1 - 0.41 / whole])
    assert other.tolist() == pytest.approx([1 - 0.11 / whole])


def test_an_objective_that_does_not_vary_changes_nothing() -> None:
    points = [[3.0, 1.0], [1.0, 2.0], [2.0, 1.5]]
    flat = [[*point, 7.0] for point in points]
    assert scale_errors([scored(flat)])[0][:, 2].tolist() == [0.0] * 3
    expected = volume_regret([scored(points)])[0].tolist()
    assert volume_regret([scored(flat)])[0].tolist() == pytest.approx(expected)


def test_only_the_highest_level_counts() -> None:
    runs = [scored([[0.0, 0.0], [2.0, 2.0]], [3.0, 9.0]), scored([[1.0, 1.0]], [3.0])]
    high, none = at_full_level(runs)
    assert high.errors.tolist() == [[2.0, 2.0]]
    assert not len(none.time_s)
    other = ScoredTrials(np.ones(1), np.ones((1, 2)), np.ones(1), ("loss", "time"))
    with pytest.raises(InvalidArgumentError, match="same objectives"):
        at_full_level([runs[0], other])


def test_under_noise_a_front_is_believed_and_counts_as_it_is() -> None:
    truth, told = [[2.0, 2.0], [1.0, 3.0], [3.0, 1.0]], [[2.0, 2.0], [3.0, 3.0], [1.0, 1.0]]
    noisy = replace(scored(truth), observed=np.array(told))
    # The scale is 1 to 3. (0.5, 0.5) alone has 0.36; then (1, 0) takes its place, with 0.11.
    whole = 0.11 + 0.3 + 0.05
    (regret,) = volume_regret([noisy])
    assert regret.tolist() == pytest.approx([1 - 0.36 / whole, 1 - 0.36 / whole, 1 - 0.11 / whole])
    assert noisy.presented().tolist() == [[3.0, 1.0]]
    high = replace(noisy, level=np.array([2.0, 3.0, 2.0]))
    (kept,) = at_full_level([high])
    assert kept.observed is not None
    assert kept.observed.tolist() == [[3.0, 3.0]]


POINTS = st.lists(st.lists(st.integers(0, 6), min_size=2, max_size=2), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(st.lists(POINTS, min_size=1, max_size=5), st.sampled_from([0.25, 0.5, 0.75, 1.0]))
def test_attainment_is_its_definition(runs: list[list[list[int]]], share: float) -> None:
    errors = [np.array(run, dtype=np.float64) for run in runs]
    surface = attainment_surfaces(errors, [share])[share]
    for point in np.ndindex(8, 8):
        reached = np.mean([(run <= point).all(axis=1).any() for run in errors]) >= share - 1e-9
        assert (surface <= point).all(axis=1).any() == reached


@pytest.mark.slow
def test_the_report_judges_vectors_from_records_alone(tmp_path: Path) -> None:
    request = Request(["MO-FedHPO-LR-CreditG-v0"], ["random", "grid"], 2, budget_s=6000.0)
    for plan in make_plans(request):
        do_run(plan, tmp_path, lambda _: None, lambda _: None, columnar=True)
    paths = sorted(tmp_path.rglob("*.parquet"))
    records = [(path, read_judged(path)) for path in paths]
    (problem,) = group(records)
    volumes = problem.volumes()
    assert [(line.agent, line.seed) for line in volumes] == [
        ("grid", 0), ("grid", 1), ("random", 0), ("random", 1),
    ]  # fmt: skip
    every = problem.scored()
    assert min(line.final for line in volumes) < 1.0
    assert all(line.final <= line.value[0] for line in volumes)
    assert every["grid"][0].names[0] == "val_loss"
    report = build_report((problem,), "0", rule="highest_fidelity")
    assert "2 agents on 1 problem, by hypervolume regret at the end" in report.html
    assert {"study-1-finals.csv", "problem-1-attainment-1-2.csv"} <= {*report.files}
    assert "Hypervolume regret at the end" in report.html
    lines = problem_of_lines(paths, tmp_path / "again")
    assert [line.value.tolist() for line in lines] == [line.value.tolist() for line in volumes]


def random_run(folder: Path, **arguments: Any) -> Path:
    """Return the record of a run whose actions do not depend on rewards."""
    (plan,) = make_plans(
        Request(["MO-FedHPO-LR-CreditG-v1"], ["random"], 1, budget_s=43200.0, arguments=arguments)
    )
    do_run(plan, folder, lambda _: None, lambda _: None, columnar=True)
    (path,) = folder.rglob("*.parquet")
    return path


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_run(tmp_path_factory.mktemp("noisy"), noise={"clients": 0.2})


def test_noisy_records_say_what_was_true_and_what_was_told(noisy: Path, tmp_path: Path) -> None:
    record, judged = read_record(noisy), read_judged(noisy).scored
    assert judged is not None
    assert judged.observed is not None
    steps = record.steps
    assert max(step.true_objectives["val_loss"] for step in steps) > 10.0
    calm = read_judged(random_run(tmp_path / "calm")).scored
    assert calm is not None
    assert judged.errors == pytest.approx(calm.errors)
    assert judged.observed.tolist() == [[-score for score in step.reward] for step in steps]
    assert (judged.observed != judged.errors).any()
    with pytest.raises(InvalidArgumentError, match=r"an entry per objective.* agent 'random'"):
        ScoredTrials.of(replace(record, steps=[replace(step, reward=[1.0] * 9) for step in steps]))
    again = tmp_path / "again.jsonl"
    write_record(again, record)
    assert read_judged(again).scored.observed.tolist() == judged.observed.tolist()  # type: ignore[union-attr]


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("told", "rewards", "truth", "errors"),
    [
        ([0.3, 40.0, 0.1], [-0.3, -10.0, -0.1], [0.2, 99.0, 0.1], [0.2, 10.0, 0.1]),
        ([0.3, LARGEST, 0.1], [-0.3, -10.0, -0.1], [0.2, LARGEST, 30.0], [0.2, 10.0, 10.0]),
        ([0.3, 2.0, 0.1], [-0.3, -2.0, -0.1], [0.2, 2.5, 0.0], [0.2, 2.5, 0.0]),
        ([0.3, 0.9, -0.1], [0.3, 0.9, 0.0], [0.2, 0.8, -0.4], [-0.2, -0.8, 0.0]),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.2, 0.3, 0.1], [-0.2, -0.3, -0.1]),
        ([0.0, 0.0, 0.0], [-0.0, -0.0, -0.0], [0.2, 0.3, 0.1], [0.2, 0.3, 0.1]),
        ([0.3, 40.0, 0.1], [-0.21, -0.79, -0.09], [0.2, 99.0, 0.1], [0.2, 99.0, 0.1]),
        ([0.3, 0.9, 0.1], [-0.5, 1.5, -1.0], [0.2, 0.8, 0.1], [-0.2, -0.8, -0.1]),
    ],
    ids=[
        *("cut off", "diverged", "in bounds", "to be high, cut off", "to be high, all 0"),
        *("to be low, all 0", "squashed", "to be high, standardised"),
    ],
)
def test_what_is_true_under_noise_counts_as_rewards_without_noise_do(
    noisy: Path, told: list[float], rewards: list[float], truth: list[float], errors: list[float]
) -> None:
    record, trials = read_record(noisy), [*zip(told, rewards, truth, strict=True)]
    steps = [
        replace(
            step,
            objectives={"val_loss": 0.5, "it": saw},
            reward=[-0.5, float(np.float32(reward))],
            truth={"objectives": {"val_loss": 0.5, "it": true}},
        )
        for step, (saw, reward, true) in zip(record.steps, cycle(trials), strict=False)
    ]
    found = ScoredTrials.of(replace(record, steps=steps))
    assert found is not None
    assert found.errors[:3, 1].tolist() == pytest.approx(errors)


def problem_of_lines(paths: list[Path], folder: Path) -> tuple:  # type: ignore[type-arg]
    """Return the regrets of the same records, written as JSON lines."""
    folder.mkdir()
    again = []
    for number, path in enumerate(paths):
        record: RunRecord = read_record(path)
        target = folder / f"{number}.jsonl"
        write_record(target, record)
        again.append((target, read_judged(target)))
    (problem,) = group(again)
    return problem.volumes()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 4))
def test_hypervolume_regret_is_that_of_moocore_on_all_trials(seed: int, width: int) -> None:
    import moocore

    rng = stream(seed, "test_fronts")
    runs = [scored(rng.random((size, width)).tolist()) for size in (1, 4, 9)]
    points = scale_errors(runs)
    corner = np.full(width, 1.1)
    whole = moocore.hypervolume(np.concatenate(points), ref=corner)
    for own, regret in zip(points, volume_regret(runs), strict=True):
        for count in range(1, len(own) + 1):
            share = 1 - moocore.hypervolume(own[:count], ref=corner) / whole
            assert regret[count - 1] == pytest.approx(share, abs=1e-9)
        # Rounding of a sum of boxes is all that may lie outside.
        assert ((regret > -1e-9) & (regret <= 1.0)).all()
