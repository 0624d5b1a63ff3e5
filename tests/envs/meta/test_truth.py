"""What can be reached in a task of FedHPO-B, and studies that judge by task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.analysis import group
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError
from fedhpo_gym.records.files import read_record
from fedhpo_gym.stored.meta_data import open_meta_data
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.regret import known_of, regret_of
from fedhpo_gym.studies.replay import replay
from fedhpo_gym.studies.run import do_run

ID = "FedHPO-B-LR-v1"

pytestmark = pytest.mark.usefixtures("only_made_meta_data")


def task() -> str:
    data = open_meta_data("LR")
    return data.names[data.where("test")[0]]


@pytest.mark.parametrize("prefix", ["", "MO-"])
def test_the_truth_of_a_task_is_its_pool(prefix: str) -> None:
    data = open_meta_data("LR")
    truth = fedhpo_gym.truth(prefix + ID, instances=task(), trials=4)
    index = data.index(task())
    stored = data.values[index, :, -1, -1]
    names = [one.name for one in truth.objectives]
    expected = stored[:, [data.objectives.index(name) for name in names]]
    np.testing.assert_array_equal(truth.values, expected)
    assert truth.exact
    assert truth.optimum == expected[:, 0].argmin()
    configurations = [truth.query(place)[0] for place in range(len(expected))]
    assert configurations[3] == data.configuration(index, 3)
    with pytest.raises(InvalidArgumentError, match="`index` must be a whole number"):
        truth.query(len(expected))
    np.testing.assert_array_equal(truth.values_at(configurations), expected)
    assert truth.values_at([]).shape == (0, len(names))
    with pytest.raises(OffGridError, match="`configurations` must be in the pool of"):
        truth.values_at([configurations[0], data.space.decode(np.full(len(data.space), 0.123))])
    regret, relative = truth.regret_at(configurations)
    np.testing.assert_array_equal(regret, expected[:, 0] - expected[:, 0].min())
    np.testing.assert_array_equal(truth.regret_of(data.actions[index]), regret)
    assert relative.min() == 0.0 < relative.max() <= 1.0
    assert truth.hypervolume_regret(truth.values)[-1] == pytest.approx(0.0, abs=1e-12)


def test_the_truth_of_an_environment_is_made_once() -> None:
    with gym.make(ID, instances=task(), trials=4, fidelity={"round": 1}) as env:
        for name in ("truth", "full_truth"):
            assert env.get_wrapper_attr(name) is env.get_wrapper_attr(name)


def test_the_truth_is_of_one_task_without_constraints() -> None:
    with pytest.raises(InvalidArgumentError, match="`instances` must be one task"):
        fedhpo_gym.truth(ID, instances="test", trials=4)
    with pytest.raises(InvalidArgumentError, match="`constraints` must be left out"):
        fedhpo_gym.truth(ID, instances=task(), trials=4).under({"fairness_std": 0.1})


def test_each_task_is_a_problem_of_a_study(tmp_path: Path) -> None:
    data = open_meta_data("LR")
    low = {"round": data.rounds[0]}  # regret is of full fidelity all the same
    arguments = {"trials": 4}
    plans = make_plans(Request([ID], ["random", "gp"], 2, fidelity=low, arguments=arguments))
    tasks = [data.names[i] for i in data.where("test")]
    assert sorted({plan.kwargs["instances"] for plan in plans}) == sorted(tasks)
    assert len({*map(str, plans)}) == len(plans) == 4 * len(tasks)
    for plan in plans:
        assert do_run(plan, tmp_path, lambda _: None, pytest.fail)
    records = [(path, read_record(path)) for path in tmp_path.rglob("*.jsonl")]
    problems = group(records, known=known_of)
    assert len(problems) == len(tasks)
    lowest: dict[str, Any] = {
        name: data.values[data.index(name), :, -1, -1, data.objectives.index("val_loss")].min()
        for name in tasks
    }
    for problem in problems:
        assert problem.known is not None
        assert problem.known.best == lowest[problem.kwargs["instances"]]
    _, record = records[0]
    name = record.header.kwargs["instances"]
    truth = fedhpo_gym.truth(ID, instances=name, trials=4)
    assert truth.fidelity["round"] == data.rounds[-1] > record.steps[0].fidelity["round"]
    best = [record.steps[step.best_step - 1].configuration for step in record.steps]
    expected = truth.values_at(best)[:, 0] - lowest[name]
    np.testing.assert_array_equal(regret_of(record).regret, expected)
    assert replay(record) is None


def test_commands_know_the_ids(capsys: pytest.CaptureFixture[str]) -> None:
    data = open_meta_data("LR")
    assert main(["list", "FedHPO-B-LR"]) == 0
    assert f"{len(data.names)} tasks" in capsys.readouterr().out
    assert main(["difficulty", "FedHPO-B-LR"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "instances=" in line]
    assert len(rows) == len(data.where("test"))
    loss = data.values[data.index(task()), :, -1, -1, data.objectives.index("val_loss")]
    scale = (data.label_entropy[data.index(task())] - loss.min()) * 0.05
    near = float(np.mean(loss <= loss.min() + scale))
    assert rows[0].split(" | ")[10] == f"{100 * near:.0f} %"
    assert main(["health", ID]) == 2
    assert f"fedhpo-gym difficulty {ID}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("agent", "asked", "said"),
    [
        ("hyperband", {}, "`--agent hyperband` must act where trials have a 'round'"),
        ("random", {"workers": 2}, "`--simulated-workers` must be 1 for FedHPO-B-LR-v1"),
        ("random", {"fidelity": {"round": 0}}, "`fidelity\\['round'\\]` must be one of"),
    ],
)
def test_a_study_refuses_what_pools_do_not_have(agent: str, asked: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        make_plans(Request([ID], [agent], 1, arguments={"trials": 4}, **asked))
