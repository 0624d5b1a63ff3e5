"""Sampled builds: evenly spread, extensible, mergeable, and equal to single courses."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stored_files import arrays_of

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends import make_backend
from fedhpo_gym.building.build import build_sample, build_table, compute_unit
from fedhpo_gym.building.design import UNIT_NUMBERS, Design, GridDesign, read_unit, write_unit
from fedhpo_gym.building.sample import (
    MOST_POINTS,
    WINDOW,
    SampleDesign,
    SampleUnit,
    balanced,
    halton,
)
from fedhpo_gym.cli import main
from fedhpo_gym.core.archive import DIGEST_ENTRY, write_archive
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.catalogue import ENV_VAR, open_sample, open_table
from fedhpo_gym.stored.table import ENDS, LAST_ROUND, Sample
from fedhpo_gym.tasks import Task, get_task

pytestmark = pytest.mark.raw

TASK = get_task("LR-BreastCancer-v0")
NAME = TASK.table_name
SIZE, ROUNDS, RATES = 60, 6, (0.4, 1.0)
COMMAND = ["build", "FedHPO-LR-BreastCancer-v0", "--sample", str(SIZE), "--rounds", str(ROUNDS)]
COMMAND += ["--rates", "0.4,1"]


def design(size: int = SIZE) -> SampleDesign:
    return SampleDesign(TASK, size, ROUNDS, RATES)


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(design: SampleDesign, units: list[SampleUnit], parts: Path, *_: object) -> None:
        for unit in units:
            compute_unit(design, unit, parts)

    monkeypatch.setattr("fedhpo_gym.building.build.compute_units", compute)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished sample."""
    folder = tmp_path_factory.mktemp("sample")
    plan = design()
    parts = folder / "parts" / plan.parts_name
    parts.mkdir(parents=True)
    for unit in plan.units():
        compute_unit(plan, unit, parts)
    build_sample(TASK, SIZE, rounds=ROUNDS, rates=RATES, folder=folder, workers=1)
    return folder


def parts_of(folder: Path) -> Path:
    return folder / "parts" / design().parts_name


def assert_same(one: Path, two: Path) -> None:
    arrays = (arrays_of(folder / f"{NAME}.sample.json") for folder in (one, two))
    first, second = (path.read_bytes() for path in arrays)
    assert first == second
    cards = [json.loads((folder / f"{NAME}.sample.json").read_text()) for folder in (one, two)]
    assert cards[0] == cards[1]


# ------------------------------------------------------------------------------------ design


def test_a_larger_design_begins_with_the_smaller_one() -> None:
    large, small = design(300)._points, design(37)._points
    assert large[:37] == small
    np.testing.assert_array_equal(halton(300, 5)[:37], halton(37, 5))


@pytest.mark.parametrize("dimensions", [2, 4, 8])
@pytest.mark.parametrize("count", [24, 64, 200])
def test_points_fill_the_cube_more_evenly_than_random_ones(dimensions: int, count: int) -> None:
    qmc = pytest.importorskip("scipy.stats.qmc")
    ours = qmc.discrepancy(halton(count, dimensions))
    rng = np.random.default_rng(0)
    random = np.mean([qmc.discrepancy(rng.random((count, dimensions))) for _ in range(5)])
    assert ours < 0.6 * random


def test_every_coordinate_visits_every_interval() -> None:
    points = halton(2 * 3 * 5 * 7, 4)
    assert points.min() >= 0
    assert points.max() < 1
    for axis, base in enumerate((2, 3, 5, 7)):
        counts = np.bincount((points[:, axis] * base).astype(int), minlength=base)
        assert (counts == counts[0]).all()


def test_seeds_and_rates_are_balanced_and_not_in_step_with_a_coordinate() -> None:
    count = 6 * 24 * 5
    courses = design(count)._points
    pairs = Counter((course.seed, course.client_sample_rate) for course in courses)
    assert pairs == {(seed, rate): 24 * 5 for seed in TASK.seeds for rate in RATES}
    number = balanced(count, 2)
    assert abs(np.corrcoef(number, halton(count, 1)[:, 0])[0, 1]) < 0.2


def test_configurations_are_legal_and_integers_are_those_of_the_grid() -> None:
    for course in design(50)._points:
        TASK.space.validate(course.configuration)
        for dimension in TASK.space.dimensions:
            if dimension.kind == "int":
                assert course.configuration[dimension.name] in dimension.grid
    rates = [course.configuration["learning_rate"] for course in design(50)._points]
    assert len(set(rates)) == 50


@pytest.mark.parametrize("size", [1, WINDOW - 1, WINDOW + 30])
def test_units_hold_every_point_once_and_share_minibatches(size: int) -> None:
    plan = design(size)
    units = plan.units()
    assert sorted(point for unit in units for point in unit.points) == list(range(size))
    for unit in units:
        courses = plan.courses(unit)
        assert len(courses) <= max(UNIT_NUMBERS // TASK.num_parameters, 1)
        assert len({(c.seed, c.configuration["batch_size"]) for c in courses}) == 1


@pytest.mark.parametrize("kind", [GridDesign, lambda task: SampleDesign(task, 200, 3)])
def test_units_of_large_models_are_small(kind: Callable[[Task], Design[Any]]) -> None:
    small, large = kind(TASK), kind(TASK.variant(num_parameters=UNIT_NUMBERS // 20))
    counts = [[len(plan.courses(unit)) for unit in plan.units()] for plan in (small, large)]
    assert sum(counts[0]) == sum(counts[1])
    assert max(counts[1]) <= 20
    assert max(counts[0]) > max(counts[1]) or max(counts[0]) < 20


@pytest.mark.parametrize("name", ["LR-Twitter", "GNN-Cora", "LR-CreditG", "MLP-Car"])
def test_names_of_units_fit_into_a_file_system(name: str) -> None:
    units = SampleDesign(get_task(name), 12_000).units()
    assert max(len(unit.name) for unit in units) < 220


@given(st.sets(st.integers(0, 40), min_size=1))
def test_the_name_of_a_unit_says_its_points(points: set[int]) -> None:
    name = SampleUnit(tuple(sorted(points))).name
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{name}.npz").touch()
        finished = SampleDesign(TASK, 41).finished(Path(folder))
    assert finished == {name: dict(enumerate(sorted(points)))}


def test_the_last_round_is_the_one_that_was_asked_for() -> None:
    sparse = replace(TASK.fidelity_space["round"], values=(1, 3, 9, 500))
    task = TASK.variant(
        fidelity_space=SearchSpace((sparse, TASK.fidelity_space["client_sample_rate"]))
    )
    assert SampleDesign(task, 5, 7).task.evaluated_rounds == (1, 3, 7)
    assert SampleDesign(task, 5, 9).task.evaluated_rounds == (1, 3, 9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "`size`.*at least 1"),
        ({"size": 5, "rounds": 1}, r"`rounds`.*\[2, 500\].*got 1"),
        ({"size": 5, "rounds": 501}, r"`rounds`.*\[2, 500\].*got 501"),
        ({"size": 5, "rates": [0.1]}, r"rates\['client_sample_rate'\].*0\.1"),
        ({"size": 5, "rates": []}, "`rates`.*at least one"),
    ],
)
def test_what_cannot_be_sampled_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        SampleDesign(TASK, **arguments)  # type: ignore[arg-type]


def test_another_plan_has_other_parts_but_another_size_has_the_same() -> None:
    others = [
        design(),
        SampleDesign(TASK, SIZE, ROUNDS + 1, RATES),
        SampleDesign(TASK, SIZE, ROUNDS, (1.0,)),
        SampleDesign(TASK.variant(algorithm="fedopt"), SIZE, ROUNDS, RATES),
        GridDesign(TASK),
    ]
    assert len({plan.parts_name for plan in others}) == len(others)
    assert design(1000).parts_name == design().parts_name


# ------------------------------------------------------------------------------------- build


def test_a_course_of_the_sample_is_the_course_alone(built: Path) -> None:
    sample = Sample(built / f"{NAME}.sample.json")
    assert len(sample) == SIZE
    assert sample.rounds == (1, 2, 3, 4, 6)
    assert sample.rates == RATES
    assert_trained_alone(sample, TASK)


def test_noise_is_planned_for_the_whole_course_however_far_it_is_trained(tmp_path: Path) -> None:
    task = TASK.variant(algorithm="nbafl")
    card = build_sample(task, 24, rounds=ROUNDS, rates=RATES, folder=tmp_path, workers=1)
    assert_trained_alone(Sample(card), task)


def test_courses_may_end_at_different_rounds(tmp_path: Path) -> None:
    size, depths = 6 * 24, (3, 3, ROUNDS)
    card = build_sample(TASK, size, rounds=depths, rates=RATES, folder=tmp_path, workers=1)
    sample = Sample(card)
    assert sample.rounds == (1, 2, 3, 4, 6)
    assert_trained_alone(sample, TASK)
    last = sample.codes(LAST_ROUND)
    assert sample.card[ENDS] == {"3": int((last == 3).sum()), "6": int((last == 6).sum())}
    assert f"--sample {size} --rounds 3,3,6 --rates 0.4,1.0" in sample.card["build_command"]
    beyond = ~sample.trained
    assert 0 < beyond.sum() < beyond.size
    for name in ("best_val_loss", "current_test_f1", "best_round"):
        codes = sample.codes(name)
        end = codes[np.arange(size), sample.trained.sum(axis=1) - 1]
        assert (codes[beyond] == np.repeat(end[:, None], 5, axis=1)[beyond]).all()
    for path in sorted((tmp_path / "parts").glob("*/*.npz")):  # only short courses are left
        with np.load(path) as unit:
            if unit["rounds"][-1] == ROUNDS:
                path.unlink()
    few = build_sample(
        TASK, size, rounds=depths, rates=RATES, folder=tmp_path, workers=1, only_finished=True
    )
    short = Sample(few)
    assert short.rounds == (1, 2, 3)
    assert short.trained.all()
    assert short.card[ENDS] == {"3": int((last == 3).sum())}


def test_some_configurations_come_under_all_seeds() -> None:
    plain, every = design(), SampleDesign(TASK, SIZE * 2, ROUNDS, RATES, repeat_every=1)
    assert plain.plan() != every.plan()
    slots = 24
    courses = every._points
    blocks = [courses[i : i + slots] for i in range(0, len(courses), slots)]
    first = [[c.configuration for c in block] for block in blocks[:3]]
    assert first[0] == first[1] == first[2] == [c.configuration for c in plain._points[:slots]]
    assert {block[0].seed for block in blocks[:3]} == set(TASK.seeds)
    assert len({block[0].client_sample_rate for block in blocks[:3]}) == 1
    rare = SampleDesign(TASK, 10 * slots, ROUNDS, RATES, repeat_every=4)
    configs = [rare._points[i].configuration for i in range(0, 10 * slots, slots)]
    others = [SampleDesign(TASK, 8 * slots, ROUNDS, RATES)._points[i].configuration
              for i in range(0, 8 * slots, slots)]  # fmt: skip
    assert configs == [others[i] for i in (0, 0, 0, 1, 2, 3, 4, 4, 4, 5)]
    assert (
        rare._points[: 5 * slots]
        == SampleDesign(TASK, 5 * slots, ROUNDS, RATES, repeat_every=4)._points
    )


def test_samples_of_conditional_spaces_hold_what_is_active(tmp_path: Path) -> None:
    task = TASK.variant(algorithm="serveropt")
    card = build_sample(
        task, 8 * 24, rounds=3, rates=RATES, folder=tmp_path, workers=1, repeat_every=2
    )
    sample = Sample(card)
    configurations = sample.configurations()
    kinds = {str(one["server_optimizer"]) for one in configurations}
    assert kinds == {"none", "sgd", "adam", "yogi"}
    for one in configurations:
        assert ("server_learning_rate" in one) == (one["server_optimizer"] != "none")
        assert ("adaptivity" in one) == (one["server_optimizer"] in ("adam", "yogi"))
    assert_trained_alone(sample, task)
    assert "--repeat-every 2" in sample.card["build_command"]


def assert_trained_alone(sample: Sample, task: Task) -> None:
    raw = make_backend("raw", task)
    configurations, rates = sample.configurations(), sample.codes("client_sample_rate")
    seeds, best_round = sample.codes("seed"), sample.codes("best_round")
    for course in (0, 13, len(sample) - 1):
        seed = task.seeds[seeds[course]]
        for index, rounds in enumerate(sample.rounds):
            if not sample.trained[course, index]:
                assert np.isnan(sample.objective()[course, index])
                continue
            truth = raw.evaluate(configurations[course], Fidelity(rounds, rates[course]))
            row = truth.seeds.index(seed)
            assert best_round[course, index] == truth.best_round[row]
            for s, split in enumerate(SPLITS):
                for m, metric in enumerate(METRICS):
                    for which, values in (("best", truth.best), ("current", truth.current)):
                        found = sample.values(which, split, metric)[course, index]
                        assert values is not None
                        tolerance = 2e-3 if metric != "accuracy" else 1e-6
                        np.testing.assert_allclose(
                            found, values[row, :, s, m], rtol=2e-3, atol=tolerance
                        )
            objective = sample.objective()[course, index]
            weights = truth.num_samples[row, :, 1] / truth.num_samples[row, :, 1].sum()
            expected = (truth.best[row, :, 1, 0] * weights).sum()
            assert objective == pytest.approx(expected, rel=2e-3)


def test_the_card_says_what_is_there_and_what_is_not(built: Path) -> None:
    card = Sample(built / f"{NAME}.sample.json").card
    assert (card["courses"], card["courses_planned"]) == (SIZE, SIZE)
    assert card["rounds_trained"] == ROUNDS
    assert "not drawn" in card["missing"]
    assert f"0 of {SIZE}" in card["missing"]
    assert card["build_command"] == (
        "fedhpo-gym build FedHPO-LR-BreastCancer-v0 --algorithm fedavg --alpha 0.5 "
        "--preprocessing label_encoded "
        f"--sample {SIZE} --rounds {ROUNDS} --rates 0.4,1.0"
    )
    assert {"hardware", "data_fingerprint", "engine_version", "data_licence", "seeds"} <= set(card)


def test_a_larger_sample_extends_a_smaller_one(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    build_sample(TASK, 5, rounds=ROUNDS, rates=RATES, folder=small, workers=1)
    kept = {path.name: path.stat().st_mtime_ns for path in parts_of(small).iterdir()}
    build_sample(TASK, SIZE, rounds=ROUNDS, rates=RATES, folder=small, workers=1)
    now = {path.name: path.stat().st_mtime_ns for path in parts_of(small).iterdir()}
    assert {name: now[name] for name in kept} == kept
    found = SampleDesign(TASK, SIZE, ROUNDS, RATES).finished(parts_of(small))
    assert sorted(p for rows in found.values() for p in rows.values()) == list(range(SIZE))
    assert_same(small, built)
    monkeypatch.setattr("fedhpo_gym.building.build.compute_units", None)
    again = build_sample(TASK, 5, rounds=ROUNDS, rates=RATES, folder=small, workers=1)
    assert len(Sample(again)) == 5


def test_units_of_other_machines_are_merged(built: Path, tmp_path: Path) -> None:
    units = sorted(parts_of(built).glob("*.npz"))
    for index, name in enumerate(("one", "two")):
        parts = parts_of(tmp_path / name)
        parts.mkdir(parents=True)
        for path in units[index::2]:
            shutil.copy(path, parts / path.name)
    words = ["--merge", str(tmp_path / "one"), str(parts_of(tmp_path / "two"))]
    out = tmp_path / "all"
    assert main([*COMMAND, *words, "--only-finished", "--out", str(out)]) == 0
    assert_same(out, built)
    assert not list(parts_of(out).glob("*.part*"))


def test_units_in_overlapping_files_count_once(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built / "parts", tmp_path / "parts")
    plan = design()
    first = plan._points[0]
    same_seed = [i for i, course in enumerate(plan._points) if course.seed == first.seed]
    twice = SampleUnit(tuple(same_seed[:3]))
    assert twice not in plan.units()
    compute_unit(plan, twice, parts_of(tmp_path))
    build_sample(TASK, SIZE, rounds=ROUNDS, rates=RATES, folder=tmp_path, workers=1)
    assert_same(tmp_path, built)


def test_what_is_finished_can_be_stored_early(built: Path, tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    parts.mkdir(parents=True)
    first = sorted(parts_of(built).glob("*.npz"))[0]
    shutil.copy(first, parts / first.name)
    assert main([*COMMAND, "--only-finished", "--out", str(tmp_path)]) == 0
    sample = Sample(tmp_path / f"{NAME}.sample.json")
    assert 0 < len(sample) < SIZE
    assert f"{SIZE - len(sample)} of {SIZE}" in sample.card["missing"]
    whole = Sample(built / f"{NAME}.sample.json")
    for name in ("point", "configuration", "best_val_loss", "diverged_at"):
        rows = np.isin(whole.codes("point"), sample.codes("point"))
        np.testing.assert_array_equal(whole.codes(name)[rows], sample.codes(name))


def test_nothing_finished_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="only-finished"):
        build_sample(TASK, 3, rounds=4, folder=tmp_path, workers=1, only_finished=True)


def test_a_folder_without_units_is_not_merged(built: Path, tmp_path: Path) -> None:
    for source in (tmp_path, built.parent / "nowhere", built / "parts"):
        with pytest.raises(InvalidArgumentError, match=r"`merge`.*same task, rounds"):
            build_sample(TASK, 3, rounds=4, folder=tmp_path, workers=1, merge=[source])


def test_a_damaged_unit_is_not_merged(built: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(built / "parts", source / "parts")
    damaged = sorted(parts_of(source).glob("*.npz"))[0]
    damaged.write_bytes(damaged.read_bytes()[:500])
    with pytest.raises(DamagedDataError, match=re.escape(damaged.name)):
        build_sample(
            TASK, SIZE, rounds=ROUNDS, rates=RATES, folder=tmp_path, workers=1, merge=[source]
        )
    assert not (parts_of(tmp_path) / damaged.name).exists()


# --------------------------------------------------------------------------------- finding it


def test_a_variant_with_a_sample_only_has_no_table(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_VAR, str(built))
    monkeypatch.setattr("fedhpo_gym.stored.catalogue.EMBEDDED_FOLDER", built)
    assert len(open_sample(NAME)) == SIZE
    with pytest.raises(
        MissingDataError, match=r"use its pool, which backend=\"tabular\" opens.*fedhpo-gym build"
    ):
        open_table(NAME)
    with pytest.raises(MissingDataError, match=r"fedhpo-gym build .* --sample N"):
        open_sample("LR-Nothing-fedavg")


@pytest.mark.parametrize("position", [-1, 127])
def test_a_course_of_no_seed_is_damage(built: Path, tmp_path: Path, position: int) -> None:
    card = built / f"{NAME}.sample.json"
    content = json.loads(card.read_text(encoding="utf-8"))
    with np.load(arrays_of(card)) as stored:
        arrays = dict(stored)
    arrays["seed"] = np.full_like(arrays["seed"], position)
    for key in ("arrays", "bytes", "sha256", DIGEST_ENTRY):
        content.pop(key, None)
    sample = Sample(write_archive(tmp_path, f"{NAME}.sample", content, arrays))
    with pytest.raises(DamagedDataError, match="'seed' must hold positions among"):
        sample.objective()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "4"], "`--rounds` is for samples"),
        (["--only-finished"], "`--only-finished` is for samples"),
        (["--sample", "4", "--rates", "a,b"], "`--rates` must be numbers"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "FedHPO-LR-BreastCancer-v0", *words]) != 0
    assert message in capsys.readouterr().err


def test_a_table_takes_units_over_too(tmp_path: Path) -> None:
    from stored_files import tiny_folder, tiny_task

    task = tiny_task()
    card = build_table(task, tmp_path, workers=1, merge=[tiny_folder()])
    assert card.parent == tmp_path
    theirs = tiny_folder() / card.name
    assert arrays_of(card).read_bytes() == arrays_of(theirs).read_bytes()


# ------------------------------------------------------------------------------ units and names


def test_a_unit_under_another_name_is_refused(tmp_path: Path) -> None:
    arrays = {"metrics": np.zeros((3, 2, 5, 3, 3), np.float32), "rounds": np.array([1, 4])}
    arrays |= {"diverged_at": np.zeros(3, np.int64), "hardware": np.array("a machine")}
    write_unit(tmp_path, "points-3_5", arrays)
    (tmp_path / "points-3_5.npz").rename(tmp_path / "points-0_2.npz")
    with pytest.raises(DamagedDataError, match="not that of the results of unit 'points-0_2'"):
        read_unit(tmp_path, "points-0_2", 3, (1, 4), (5, 3, 3))


@pytest.mark.parametrize(
    "stem",
    [
        "points-",
        "points-x",
        "points-03",
        "points-5_3",
        "points-3-3",
        "points-1_2_3",
        "points-0_9999999999",
        "points-0_5999-7000_12999",
        f"points-{'9' * 100}",
        f"points-0_{MOST_POINTS}",
    ],
)
def test_a_name_stands_for_few_points_or_for_none(stem: str, tmp_path: Path) -> None:
    design = SampleDesign(get_task("LR-CreditG-v0"), 10, 6)
    (tmp_path / f"{stem}.npz").touch()
    tracemalloc.start()
    assert design.finished(tmp_path) == {}
    assert design.stored(tmp_path) == {stem: 0}
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    with pytest.raises(DamagedDataError, match="is damaged"):
        design.read(tmp_path, stem, 0)
