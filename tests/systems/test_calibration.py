"""Fitting Eq. 1 to measured rounds, and the clock that looks them up."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.evaluation.records import Evaluation, Fidelity
from fedhpo_gym.systems import (
    CROSS_DEVICE,
    CROSS_SILO,
    RoundRecord,
    SystemModel,
    Work,
    calibrate,
    changed_system,
)
from fedhpo_gym.systems.leaf import (
    StatRow,
    SysRow,
    local_computations,
    stat_rows,
    sys_rows,
    write_metrics,
)
from fedhpo_gym.systems.model import RecordedModel, read_records

TRUTH = replace(
    CROSS_SILO,
    client_upload_bytes_per_s=3e5,
    client_download_bytes_per_s=1e12,
    server_upload_bytes_per_s=2e6,
    client_compute_mean_s=0.7,
    server_compute_s=1.3,
    compute="epochs",
)


def measured(system: SystemModel, noise: float = 0.0, part: float = 0.0) -> list[RoundRecord]:
    """Rounds of different models, cohorts and epochs, timed by a system.

    Rates ask for `part` of a client more: Eq. 1 counts it in messages.
    """
    rng = np.random.default_rng(4)
    found = []
    for parameters, clients, epochs in product((1000, 50_000, 900_000), (1, 3, 10), (1.0, 4.0)):
        fidelity = Fidelity(1, (clients + part) / 12)
        work = Work.of_course(parameters, 12, fidelity, local_epochs=epochs)
        cost = system.cost(work)
        up, down = np.exp(noise * rng.standard_normal(2))
        found.append(RoundRecord(work, cost.communication_s * up, cost.computation_s * down))
    return found


def test_known_parameters_are_recovered() -> None:
    fit = calibrate(measured(TRUTH, part=0.4), replace(CROSS_SILO, compute="epochs"))
    for name in (
        "client_upload_bytes_per_s",
        "server_upload_bytes_per_s",
        "client_compute_mean_s",
        "server_compute_s",
    ):
        assert getattr(fit.system, name) == pytest.approx(getattr(TRUTH, name), rel=1e-6), name
    assert fit.rmse_s < 1e-6
    assert fit.residuals_s.shape == (18, 2)
    assert changed_system(CROSS_SILO, fit.parameters) == fit.system


def test_broadcasts_have_one_bandwidth() -> None:
    truth = replace(CROSS_DEVICE, client_upload_bytes_per_s=2e5, client_download_bytes_per_s=2e5)
    fit = calibrate(measured(truth), CROSS_DEVICE)
    assert fit.tied == ("client_upload_bytes_per_s", "client_download_bytes_per_s")
    assert fit.system.client_upload_bytes_per_s == pytest.approx(2e5)
    assert fit.system.client_download_bytes_per_s == pytest.approx(2e5)
    unequal = replace(truth, client_upload_bytes_per_s=1e5, client_download_bytes_per_s=3e5)
    fit = calibrate(measured(unequal), CROSS_DEVICE)
    assert fit.rmse_s < 1e-6  # the sum is the same: 1/1e5 + 1/3e5 = 2/1.5e5
    assert fit.system.client_upload_bytes_per_s == pytest.approx(1.5e5)


def test_noise_is_left_in_the_residuals() -> None:
    records = measured(TRUTH, noise=0.1)
    fit = calibrate(records, replace(CROSS_SILO, compute="epochs"))
    assert fit.system.client_compute_mean_s == pytest.approx(0.7, rel=0.2)
    said = [fit.system.cost(record.work) for record in records]
    for index, (record, cost) in enumerate(zip(records, said, strict=True)):
        assert fit.residuals_s[index, 0] == pytest.approx(
            record.communication_s - cost.communication_s, abs=1e-6
        )
        assert fit.residuals_s[index, 1] == pytest.approx(
            record.computation_s - cost.computation_s, abs=1e-6
        )
    assert 0 < fit.rmse_s < 5


def test_no_time_becomes_negative() -> None:
    # Less computation for more clients: both free factors would be of different signs.
    works = [Work.of_course(100, n, Fidelity(1, 1.0)) for n in (1, 2, 5)]
    records = [RoundRecord(w, 1.0, t) for w, t in zip(works, (3.0, 2.0, 1.0), strict=True)]
    fit = calibrate(records)
    assert fit.system.client_compute_mean_s == 0.0
    assert fit.system.server_compute_s == pytest.approx(2.0)  # the mean


@pytest.mark.parametrize(
    ("records", "base", "message"),
    [
        ([], CROSS_SILO, "`records` must hold at least one"),
        (
            measured(TRUTH)[:1] * 3,
            CROSS_SILO,
            "`records` must distinguish client and server bandwidths",
        ),
        (measured(TRUTH)[::6], CROSS_DEVICE, "`records` must distinguish `client_compute_mean_s`"),
        (measured(TRUTH), replace(CROSS_SILO, mode="point_to_point"), "`base` must be cross-silo"),
        (measured(TRUTH), replace(CROSS_SILO, compute="steps"), "`compute` must be"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    records: list[RoundRecord], base: SystemModel, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        calibrate(records, base)


CSV = """num_parameters,local_epochs,communication_s,computation_s
100,1,2.0,3.0
100,1,4.0,5.0
100,2,1.0,8.0
"""


def written(folder: Path, text: str) -> str:
    path = folder / "rounds.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_recorded_rounds_by_hand(tmp_path: Path) -> None:
    model = RecordedModel(path=written(tmp_path, CSV))
    cost = model.cost(Work.of_course(100, 5, Fidelity(10, 0.4)))
    assert (cost.communication_s, cost.computation_s) == (10 * 3.0, 10 * 4.0)
    assert cost.time_s == 70.0
    assert cost.upload_bytes == cost.download_bytes == 10 * 2 * 400
    two = model.cost(Work.of_course(100, 5, Fidelity(1, 0.4), local_epochs=2.0))
    assert two.time_s == 9.0
    with pytest.raises(InvalidArgumentError, match=r"none with num_parameters=100.0, local_ep"):
        model.cost(Work.of_course(100, 5, Fidelity(1, 0.4), local_epochs=3.0))
    anything = RecordedModel(path=written(tmp_path, "communication_s,computation_s\n1,2\n"))
    assert anything.cost(Work.of_course(7, 5, Fidelity(2, 1.0))).time_s == 6.0


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    with_mark = written(tmp_path, "\ufeff" + CSV)
    work = Work.of_course(100, 5, Fidelity(10, 0.4))
    assert RecordedModel(path=with_mark).cost(work).time_s == 70.0
    one_is_zero = written(tmp_path, "communication_s,computation_s\n0,2\n")
    assert RecordedModel(path=one_is_zero).cost(work).time_s == 20.0


def test_recorded_rounds_calibrate(tmp_path: Path) -> None:
    lines = ["num_parameters,sampled_clients,local_epochs,communication_s,computation_s"]
    for one in measured(TRUTH):
        work = one.work
        times = float(one.communication_s), float(one.computation_s)
        numbers = (work.num_parameters, work.sampled_clients, work.local_epochs, *times)
        lines.append(",".join(map(repr, numbers)))
    records = read_records(written(tmp_path, "\n".join(lines)))
    fit = calibrate(records, replace(CROSS_SILO, compute="epochs"))
    assert fit.system.client_upload_bytes_per_s == pytest.approx(3e5)
    assert fit.system.client_compute_mean_s == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rounds"),
        ("communication_s,computation_s\n", "has no rounds"),
        ("communication_s\n1\n", "no column `computation_s`"),
        ("communication_s,computation_s,colour\n1,2,3\n", "unknown column 'colour'"),
        ("communication_s,computation_s\n1,x\n", "could not convert"),
        ("communication_s,computation_s\n1\n", "could not convert"),
        ("communication_s,computation_s\n1,2,3\n", "unknown column|has more"),
        ("communication_s,computation_s\n1,-2\n", "`computation_s` of round 0 is -2.0"),
        ("communication_s,computation_s\nnan,2\n", "`communication_s` of round 0 is nan"),
        ("communication_s,communication_s,computation_s\n1,2,3\n", "twice"),
        ("communication_s,computation_s\n1,2\n0,0.0\n", "round 1 takes no time"),
        ("communication_s,computation_s\n1e308,0\n1e308,0\n", "round 0 is 1e[+]308"),
    ],
)
def test_damaged_records_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DamagedDataError, match=rf"rounds.csv is no file .*({message})"):
        RecordedModel(path=written(tmp_path, text))


def test_records_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"nothing\.csv"):
        RecordedModel(path=str(tmp_path / "nothing.csv"))
    with pytest.raises(MissingDataError, match="cannot be read"):
        RecordedModel(path="a\0b")
    with pytest.raises(InvalidArgumentError, match="`path` must name a file"):
        RecordedModel()
    with pytest.raises(DamagedDataError, match="no column `num_parameters`"):
        read_records(written(tmp_path, "communication_s,computation_s\n1,2\n"))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "clock"}, LookupError, "Unknown system model 'clock'"),
        ({"model": 3}, InvalidArgumentError, "`model` must be a string"),
        ({"model": "devices", "mode": "cross_silo"}, InvalidArgumentError, "parameter 'mode'"),
        ({"dropout": 0.1}, InvalidArgumentError, "unknown system parameter 'dropout'"),
    ],
)
def test_impossible_choices_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        changed_system(CROSS_SILO, changes)


def test_another_kind_takes_over_what_all_have() -> None:
    base = replace(CROSS_DEVICE, compute="epochs", server_compute_s=2.0, bytes_per_parameter=2)
    devices = changed_system(base, {"model": "devices", "server_compute_s": 3.0})
    assert (devices.compute, devices.server_compute_s, devices.bytes_per_parameter) == (
        "epochs",
        3.0,
        2,
    )
    assert changed_system(base, {"model": "analytic"}) == base
    assert changed_system(base, {}) == base
    again = changed_system(devices, {"dropout": 0.1})
    assert again == changed_system(devices, {"model": "devices", "dropout": 0.1})


# --------------------------------------------------------------- system metrics as LEAF counts them


def test_operations_by_hand() -> None:
    # Two epochs of 25 samples in minibatches of 10: two whole ones each, the five left over do not
    # count.
    assert local_computations(2, 25, 10, 7.0) == 2 * 2 * 10 * 7
    assert local_computations(3, 9, 10, 7.0) == 0
    for arguments in ((-1, 5, 1, 1.0), (1, -5, 1, 1.0), (1, 5, 0, 1.0), (1, 5, 1, -1.0)):
        with pytest.raises(InvalidArgumentError):
            local_computations(*arguments)


def test_both_files_have_leafs_columns(tmp_path: Path) -> None:
    common = {"client_id": "f0001_41", "round_number": 3, "num_samples": 25}
    paths = write_metrics(
        tmp_path / "new",
        [StatRow(**common, set="test", accuracy=0.5, loss=1.25)],
        [SysRow(**common, bytes_written=400, bytes_read=800, local_computations=280.0)],
    )
    assert [path.name for path in paths] == ["metrics_stat.csv", "metrics_sys.csv"]
    rows = [list(csv.reader(path.read_text(encoding="utf-8").splitlines())) for path in paths]
    first = ["client_id", "round_number", "hierarchy", "num_samples", "set"]
    assert rows[0] == [
        [*first, "accuracy", "loss"],
        ["f0001_41", "3", "", "25", "test", "0.5", "1.25"],
    ]
    assert rows[1] == [
        [*first, "bytes_written", "bytes_read", "local_computations"],
        ["f0001_41", "3", "", "25", "train", "400", "800", "280.0"],
    ]


def test_rows_of_a_round() -> None:
    rows = sys_rows(
        [25, 0, 9],
        first_round=4,
        epochs=2,
        batch_size=10,
        flops_per_sample=7.0,
        message_bytes=(100.0, 400.0),
    )
    assert [(row.client_id, row.round_number, row.num_samples) for row in rows] == [
        ("0", 4, 25),
        ("2", 4, 9),
    ]
    assert [row.local_computations for row in rows] == [280.0, 0.0]
    assert {(row.bytes_written, row.bytes_read) for row in rows} == {(100.0, 400.0)}


def test_rows_of_a_model() -> None:
    metrics = np.arange(2 * 2 * 3 * 3, dtype=float).reshape(2, 2, 3, 3)
    samples = np.arange(2 * 2 * 3).reshape(2, 2, 3)
    fidelity, seeds = Fidelity(9, 1.0), (1, 5)
    best_round, diverged = np.array([3, 7]), np.zeros(2, np.bool_)
    best = Evaluation(metrics, None, samples, best_round, diverged, seeds, fidelity)
    rows = stat_rows(best, 5)
    # Seed 5 is the second; losses and accuracies are the first two metrics, test the third split.
    assert [(row.set, row.client_id, row.loss, row.accuracy) for row in rows] == [
        ("train", "0", 18.0, 19.0),
        ("train", "1", 27.0, 28.0),
        ("test", "0", 24.0, 25.0),
        ("test", "1", 33.0, 34.0),
    ]
    assert [row.num_samples for row in rows] == [6, 9, 8, 11]
    assert {row.round_number for row in rows} == {7}
    last = Evaluation(metrics, 2 * metrics, samples, best_round, diverged, seeds, fidelity)
    assert (stat_rows(last, 5)[0].loss, stat_rows(last, 5)[0].round_number) == (36.0, 9)
    with pytest.raises(InvalidArgumentError, match="`seed` must be one of"):
        stat_rows(best, 2)
