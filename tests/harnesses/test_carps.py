"""A task of CARP-S, also under its own command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("carps", reason="run `pip install '.[carps]'`")
pytestmark = pytest.mark.filterwarnings("ignore")

import ConfigSpace  # noqa: E402
from carps.utils.trials import TrialInfo  # noqa: E402

from fedhpo_gym.harnesses.carps import Function, write_task  # noqa: E402
from known_optimum import BEST, CREDIT, DIVERGING, OPTIMUM  # noqa: E402


def test_the_optimum_comes_out_and_budgets_are_the_nearest_rounds() -> None:
    function = Function(CREDIT)
    best = ConfigSpace.Configuration(function.configspace, values=BEST)
    whole = function.evaluate(TrialInfo(config=best))
    assert whole.cost == function.evaluate(TrialInfo(config=best, budget=500.0)).cost == OPTIMUM
    some, six = (function.evaluate(TrialInfo(config=best, budget=b)) for b in (6.17, 6))
    assert (some.cost, some.virtual_time) == (six.cost, six.virtual_time)
    assert some.virtual_time < whole.virtual_time / 10
    assert function.evaluate(TrialInfo(config=best, seed=218_175_338)).cost == OPTIMUM
    vector = Function(f"MO-{CREDIT}").evaluate(TrialInfo(config=best))
    assert vector.cost[0] == OPTIMUM
    assert vector.cost[2] == vector.virtual_time


def test_a_trial_that_diverged_has_crashed() -> None:
    function = Function(CREDIT)
    for values, cost, status in ((DIVERGING, 10.0, "CRASHED"), (BEST, OPTIMUM, "SUCCESS")):
        configuration = ConfigSpace.Configuration(function.configspace, values=values)
        found = function.evaluate(TrialInfo(config=configuration))
        assert (found.cost, found.status.name) == (cost, status)


@pytest.mark.slow
def test_its_command_runs_a_task_and_logs_our_numbers(tmp_path: Path) -> None:
    write_task(CREDIT, tmp_path, n_trials=15)
    words = f"hydra.searchpath=[file://{tmp_path}] +task/fedhpo={CREDIT} seed=3"
    command = [sys.executable, "-m", "carps.run", *words.split()]
    run = [*command, "+optimizer/randomsearch=config"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(run, cwd=tmp_path, env=env, check=True, timeout=200, capture_output=True)
    (log,) = tmp_path.rglob("trial_logs.jsonl")
    trials = [json.loads(line) for line in log.read_text().splitlines()]
    function = Function(CREDIT, space_seed=3)
    assert len(trials) == 15
    for trial in trials:
        values = dict(zip(function.configspace, trial["trial_info"]["config"], strict=True))
        assert trial["trial_value"]["cost"] == function.problem.evaluate(values).losses["val_loss"]
