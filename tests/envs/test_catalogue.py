"""Every id joins the conformance kit, once for every backend; natural ids are trained."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.backends import STORED
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import (
    FedHPOError,
    MissingDataError,
    MissingDependencyError,
    UnknownNameError,
)
from fedhpo_gym.data import SOURCES, Dataset, load_dataset, make_dataset
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.studies.suites import suite
from fedhpo_gym.tasks import TASKS, TRAINED, Task, get_task
from fedhpo_gym.tasks.natural import REGIMES
from fedhpo_gym.testing import RoundConformance, TaskConformance, rollout
from fedhpo_gym.testing.rollout import go_on, plain
from fedhpo_gym.testing.task import rollouts_in_fresh_process
from fedhpo_gym.wrappers import IncumbentReward

MODULE_ID = "fedhpo_gym:FedHPO-LR-CreditG-v0"


class WithOtherLibraries(TaskConformance):
    """What needs pickles or other libraries, of both environments of a task."""

    def test_a_pickle_made_in_mid_episode_goes_on_alike(self) -> None:
        env = self.make()
        rollout(env, steps=2)
        twin = pickle.loads(pickle.dumps(env))
        assert go_on(twin, 2) == go_on(env, 2)

    def test_stable_baselines_accepts_it(self) -> None:
        checker = pytest.importorskip("stable_baselines3.common.env_checker")
        checker.check_env(self.make(), skip_render_check=True)


class CatalogueConformance(WithOtherLibraries):
    """What the kit demands of trials."""

    def rollout_elsewhere(self) -> Any:
        return everything_elsewhere(type(self).backend, is_fast(self.task))[self.task.id]

    def test_the_vector_twin_follows_mo_gymnasium(self) -> None:
        wrappers = pytest.importorskip("mo_gymnasium.wrappers")
        env = self.make("MO-")
        space = env.unwrapped.reward_space  # type: ignore[attr-defined]
        assert isinstance(space, gym.spaces.Box)
        assert space.is_bounded()
        weights = 0.5 ** np.arange(1.0, space.shape[0] + 1.0)
        linear = wrappers.LinearReward(self.make("MO-"), weight=weights)
        for made in (env, linear):
            made.reset(seed=0)
            made.action_space.seed(0)
        action = env.action_space.sample()
        scores, reward = env.step(action)[1], linear.step(action)[1]
        assert scores.shape == space.shape == (len(weights),)
        assert reward == pytest.approx(float(scores @ weights))


class RoundCatalogueConformance(WithOtherLibraries, RoundConformance):
    """What the kit demands of rounds."""

    def rollout_elsewhere(self) -> Any:
        return rounds_elsewhere()[self.env_id]

    def test_the_vector_twin_follows_mo_gymnasium(self) -> None:
        wrappers = pytest.importorskip("mo_gymnasium.wrappers")
        linear = wrappers.LinearReward(self.make("MO-"), weight=np.array([1.0, 0.1]))
        scalar = self.make()
        for env in (linear, scalar):
            env.reset(seed=0)
            env.action_space.seed(0)
        action = scalar.action_space.sample()
        assert linear.step(action)[1] == pytest.approx(scalar.step(action)[1], rel=1e-5)


@cache
def everything_elsewhere(backend: str, fast: bool) -> dict[str, Any]:
    """Return the rollouts of all ids that a backend answers, from one fresh interpreter.

    Fast tests do not wait for the tables of slow ones.
    """
    wanted = {}
    for task in WITH_NUMBERS:
        if is_fast(task) != fast or task.dataset in LIKE_OTHER_TABLES:
            continue
        if backend == "raw" and not is_trained(task):
            continue
        law = conformance(task, backend)()
        try:
            gym.make(task.id, **law.arguments())
        except (MissingDataError, MissingDependencyError):
            continue
        wanted[task.id] = law.arguments()
    return rollouts_in_fresh_process(wanted)


@cache
def rounds_elsewhere() -> dict[str, Any]:
    """Return the rollouts of rounds that have data here, from one fresh interpreter."""
    wanted = {}
    for law in (globals()[name]() for name in ROUNDS):
        with contextlib.suppress(MissingDataError, MissingDependencyError):
            gym.make(law.env_id, **law.arguments())
            wanted[law.env_id] = law.arguments()
    return rollouts_in_fresh_process(wanted)


@pytest.fixture
def real_data(shared_datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load training data from the folder with the real data sets."""
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))


def is_fast(task: Task) -> bool:
    """Return whether the laws of a task are fast tests."""
    return task is get_task(task.name) and task.name in REPRESENTATIVE


def is_trained(task: Task) -> bool:
    """Return whether all laws are asked of its training: of pairs of model and data."""
    if task.num_parameters > LARGE or task.name == "LR-Synthetic":  # LeafLR trains on its data
        return False
    return task is max((t for t in WITH_NUMBERS if t.name == task.name), key=lambda t: t.version)


def conformance(task: Task, backend: str) -> type[CatalogueConformance]:
    """Return the conformance class of a task on a backend, with the laws that are its own."""
    name = f"Test{task.key.replace('-', '')}{backend.title()}"
    marks = [] if is_fast(task) else [pytest.mark.slow]
    if not is_first_of_its_kind(task, backend):
        marks.append(pytest.mark.nightly)
    if backend == "raw":
        marks.append(pytest.mark.raw)
        if not SOURCES[task.dataset].offline:
            marks.append(pytest.mark.usefixtures("real_data"))
    body: dict[str, Any] = {"task_id": task.id, "backend": backend, "pytestmark": marks}
    if task.dataset in LIKE_OTHER_TABLES or not has_numbers(task, backend):
        body |= dict.fromkeys(LAWS - {"test_it_is_in_the_catalogue_with_its_source"})
    elif backend == "raw" and task.name != "LR-CreditG":
        body |= dict.fromkeys(LAWS_OF_ENVIRONMENTS)
    return type(name, (CatalogueConformance,), {**body, "__module__": __name__})


def is_first_of_its_kind(task: Task, backend: str) -> bool:
    """Return whether a task stands for those of its model and algorithm on a backend."""
    kind = task.model, task.algorithm, task.version == 0
    alike = (t for t in WITH_NUMBERS if (t.model, t.algorithm, t.version == 0) == kind)
    answered = (t for t in alike if t.dataset not in LIKE_OTHER_TABLES and has_numbers(t, backend))
    return is_fast(task) or task is next(answered, None)


@cache
def has_numbers(task: Task, backend: str) -> bool:
    """Return whether there are numbers to ask the laws of; training needs none."""
    if backend == "raw":
        return True
    try:
        gym.make(task.id, backend=backend, disable_env_checker=True)
    except (MissingDataError, MissingDependencyError):
        return False
    return True


LAWS = frozenset(name for name in dir(CatalogueConformance) if name.startswith("test_"))
LAWS_OF_ENVIRONMENTS = {
    "test_its_spec_survives_json",
    "test_a_copy_made_in_mid_episode_goes_on_alike",
    "test_both_rewards_are_the_scores_of_the_objectives",
    "test_the_return_is_how_good_the_incumbent_is",
    "test_it_draws_its_episodes",
    "test_stable_baselines_accepts_it",
    "test_the_vector_twin_follows_mo_gymnasium",
}
"""Laws that no model can break: of training, they are asked of one."""
LARGE = 100_000
"""Parameters from which training is too slow for every law; see `test_a_large_model_trains`."""
REPRESENTATIVE = {"LR-CreditG", "CNN-FEMNIST"}
"""Tasks whose laws are fast tests, in their newest version: a small table, and a surrogate of a
sample."""
LIKE_OTHER_TABLES = {
    "Vehicle", "KC1", "BloodTransfusion", "Australian", "Segment", "BreastCancer", "Digits", "Car",
}  # fmt: skip
"""Data sets whose ids run the code of CreditG's on other numbers: laws are asked of that one and of
all other kinds of data. That each id answers its own numbers is the law of `test_digests.py`; that
these are lawful, of `tables/test_tables.py`; that they vary, of `trial/test_objectives.py`."""
WITH_NUMBERS = [task for task in TASKS.values() if task.numbers is None]
"""Tasks that answer from numbers of their own. The others differ by their reward alone."""


for _task in WITH_NUMBERS:
    for _backend in (*STORED, "raw"):  # FederatedScope has tests of its own
        if _backend == "raw" and not is_trained(_task):
            continue
        _class = conformance(_task, _backend)
        globals()[_class.__name__] = _class
ROUNDS: list[str] = []
"""Classes of laws of round environments."""


for _task in TASKS.values():
    if _task.model == "LR" and "tabular-data" in _task.tags:
        _data = [] if SOURCES[_task.dataset].offline else [pytest.mark.usefixtures("real_data")]
        if _task.dataset in LIKE_OTHER_TABLES:
            _data.append(pytest.mark.nightly)
        _body = {"task_id": _task.id, "pytestmark": [pytest.mark.raw, *_data]}
        ROUNDS.append(f"TestRounds{_task.key.replace('-', '')}")
        globals()[ROUNDS[-1]] = type(
            ROUNDS[-1], (RoundCatalogueConformance,), {**_body, "__module__": __name__}
        )
del _class, _task, _backend, _data, _body
SHARED = [t for t in TASKS.values() if t.numbers is not None]


@pytest.mark.parametrize(
    "task",
    [t for t in SHARED if STORED["surrogate"](TASKS[f"{t.name}-v{t.numbers}"])],
    ids=lambda task: task.key,
)
def test_a_version_that_shares_numbers_differs_by_its_reward_alone(task: Task) -> None:
    assert task.reward == "improvement"
    names = [f"FedHPO-{task.name}-v{version}" for version in (task.numbers, task.version)]
    old, new = (gym.make(name, disable_env_checker=True) for name in names)
    other = IncumbentReward(gym.make(names[1], reward="score", disable_env_checker=True))
    fingerprints = [env.unwrapped.backend.fingerprint for env in (old, new)]
    assert fingerprints[0] == fingerprints[1]
    for env in (old, new, other):
        env.reset(seed=0)
    old.action_space.seed(0)
    for _ in range(4):
        action = old.action_space.sample()
        (seen, score, *over, info), mine, wanted = (one.step(action) for one in (old, new, other))
        assert plain([seen, *over, info]) == plain([mine[0], *mine[2:]])
        assert info["score"] == score
        assert plain(list(mine)) == plain(list(wanted))


TABLES_OF_OPENML = ("CreditG", "Vehicle", "KC1", "BloodTransfusion", "Australian", "Car", "Segment")
PAPER_TABLE_1 = {
    "CNN-FEMNIST", "CNN-CIFAR10", "BERT-SST2", "BERT-CoLA", "GNN-Cora", "GNN-CiteSeer",
    "GNN-PubMed", "Hetero-GraphDC", "LR-Twitter", "MF-FedNetflix",
    *(f"{model}-{dataset}" for model in ("LR", "MLP") for dataset in TABLES_OF_OPENML),
}  # fmt: skip


def test_every_row_of_the_papers_table_1_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert {task.name for task in TASKS.values()} >= PAPER_TABLE_1
    assert main(["list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert {f"FedHPO-{name}-v0" for name in PAPER_TABLE_1} <= listed


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.key)
@pytest.mark.parametrize(("backend", "command"), [("tabular", "build"), ("surrogate", "surrogate")])
def test_an_id_without_numbers_names_the_command_that_makes_them(
    task: Task, backend: str, command: str
) -> None:
    variant = {"alpha": 0.123, "backend": backend}  # nobody has numbers for this one
    belongs_to = task.surrogate_identities[0] if backend == "surrogate" else task.identity
    words = f"fedhpo-gym {command} {belongs_to.id} --algorithm fedavg --alpha 0.123"
    with pytest.raises(MissingDataError, match=re.escape(words)):
        gym.make(task.id, **variant)


def test_raw_refuses_data_that_are_missing_with_the_download_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match="fedhpo-gym download FedNetflix"):
        gym.make("FedHPO-MF-FedNetflix-v0", backend="raw")


def test_every_task_has_both_ids() -> None:
    trials, rounds = (
        {one for task in TASKS.values() for one in (task.id, f"MO-{task.id}")},
        {one for t in TASKS.values() for one in (t.round_id, f"MO-{t.round_id}")},
    )
    assert trials | rounds <= set(gym.registry)
    assert all(gym.spec(name).vector_entry_point for name in trials)
    assert get_task("FedHPO-DAC-LR-BreastCancer-v0") is get_task("LR-BreastCancer-v0")


@pytest.mark.slow
@pytest.mark.raw
@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize(
    "task",
    [TASKS[key] for key in ("CNN-CIFAR10-v1", "MLP-BreastCancer-v1")],
    ids=lambda task: task.key,
)
def test_a_large_model_trains(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each model; FEMNIST's and BERT's train in `test_digests.py`."""
    assert task.num_parameters > LARGE
    if task.dataset == "CIFAR10":  # all of its images are evaluated
        from fedhpo_gym.backends import training

        monkeypatch.setattr(training, "load_dataset", fiftieth_of)
        monkeypatch.setattr(training, "federation", training.federation.__wrapped__)
    law = conformance(task, "raw")()
    env = law.make()
    env.reset(seed=0)
    space = env.unwrapped.search_space  # type: ignore[attr-defined]
    env.action_space.seed(0)
    quick = {"batch_size": space["batch_size"].high, "step_size": space["step_size"].low}
    sampled = space.decode(env.action_space.sample())
    info = env.step(space.encode({**sampled, **quick}))[-1]
    assert info["fidelity"]["round"] == 1
    assert 0 < info["test"]["loss"] < 1e6


def fiftieth_of(name: str) -> Dataset:
    """Return every fiftieth sample of a data set."""
    whole = load_dataset(name)
    fixed = None if whole.fixed_split is None else whole.fixed_split[::50].copy()
    features = np.asarray(whole.features)[::50].copy()
    labels = whole.labels[::50].copy()
    return make_dataset(name, features, labels, whole.num_classes, fixed_split=fixed)


def test_registering_twice_changes_nothing() -> None:
    before = dict(gym.registry)
    fedhpo_gym.register_all()
    assert dict(gym.registry) == before


def test_the_module_form_of_an_id_imports_the_package(run_python: Callable[..., str]) -> None:
    code = (
        "import sys, json, gymnasium as gym\n"
        f"try:\n    gym.make({MODULE_ID!r}, backend='nothing')\n"
        "except Exception as error:\n    print(json.dumps([type(error).__name__, str(error)]))"
    )
    name, message = json.loads(run_python(code))
    assert name == "UnknownNameError"
    assert "nothing" in message


@pytest.mark.slow
def test_a_tabular_environment_needs_no_torch(run_python: Callable[..., str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from stored_files import TINY_ID, tiny_folder

    code = (
        "import sys, gymnasium as gym, fedhpo_gym\n"
        f"env = gym.make({TINY_ID!r}); env.reset(seed=0); env.step(env.action_space.sample())\n"
        "print(*{'torch', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules))"
    )
    assert run_python(code, env={"FEDHPO_GYM_TABLES": str(tiny_folder())}).split() == []


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"backends": "raw"}, ValueError, ["argument", "'backends'", "'backend'"]),
        ({"backend": "tabularr"}, UnknownNameError, ["backend", "tabularr", "'tabular'"]),
        ({"task": "LR-Nope"}, UnknownNameError, ["task", "LR-Nope", "LR-"]),
        ({"algorithm": "fedpot"}, UnknownNameError, ["algorithm", "fedpot", "'fedopt'"]),
        ({"preprocessing": "x"}, UnknownNameError, ["preprocessing", "'x'", "standardized"]),
        ({"settings": {"epsilon": 1}}, ValueError, ["`settings`", "fedavg", "epsilon=1"]),
        ({"settings": 5}, ValueError, ["`settings`", "mapping", "5"]),
        ({"algorithm": 7}, ValueError, ["`algorithm`", "7"]),
        ({"alpha": -0.5}, ValueError, ["`alpha`", "positive", "-0.5"]),
        ({"alpha": "0.5"}, ValueError, ["`alpha`", "number", "'0.5'"]),
        ({"alpha": 1e-300}, ValueError, ["`alpha`", "1e-300"]),
        ({"max_trials": 0}, ValueError, ["`max_trials`", "positive whole number", "0"]),
        ({"budget_s": 10**400}, ValueError, ["`budget_s`", "must be a number"]),
        ({"system": {"mode": "wifi"}}, ValueError, ["`system['mode']`", "cross_silo", "'wifi'"]),
        ({"system": {"client_upload": 1}}, ValueError, ["system", "client_upload", "bytes_per_s"]),
        ({"system": {"server_compute_s": -1}}, ValueError, ["`system['server_compute_s']`", "-1"]),
        ({"device": "cuda"}, ValueError, ["`device`", 'backend="raw"', "'tabular'"]),
        ({"device": "cpu", "backend": "surrogate"}, ValueError, ["`device`", "'surrogate'"]),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_opened(
    arguments: dict[str, Any],
    error: type[Exception],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(tmp_path))
    with pytest.raises(error) as caught:
        gym.make("FedHPO-LR-CreditG-v0", **arguments)
    assert isinstance(caught.value, FedHPOError)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("task", TRAINED.values(), ids=lambda task: task.key)
def test_a_task_agrees_with_its_data_and_its_model(task: Task) -> None:
    source = SOURCES[task.dataset]
    assert task.num_classes == source.num_classes
    largest = {d.name: d.decode(1.0) for d in task.space.dimensions}
    assert task.parameters_of(largest) == task.num_parameters
    assert source.table.origin in task.citation  # type: ignore[attr-defined]
    assert (task.seeds, task.version, task.unstored) == ((1, 2, 3), 1, "raw")
    assert get_task(task.id) is get_task(task.name) is task
    assert task.key not in TASKS
    assert {task.id, f"MO-{task.id}"} <= set(gym.registry)
    rounds = {task.round_id, f"MO-{task.round_id}"} & set(gym.registry)
    assert len(rounds) == (0 if task.model in REGIMES[1:] else 2)
    for name in {task.round_id} - rounds:
        with pytest.raises(UnknownNameError, match=f"Did you mean 'FedHPO-{task.key}'"):
            get_task(name)


def test_every_table_has_its_problems_and_its_suite() -> None:
    within = [f"FedHPO-{m}-{t.name}-v1" for t in NATURAL for m in ("LR", "MLP")]
    assert suite("natural") == tuple(within)
    for table in NATURAL:
        assert get_task(f"MLP-{table.name}").num_clients == table.clients
        unseen = get_task(f"MLP-{table.name}Unseen")
        assert unseen.num_clients == pytest.approx(0.6 * table.clients, abs=0.5)
    assert set(suite("natural-small")) < set(within)


def test_ids_are_registered_before_any_problem_is_made(run_python: Callable[..., str]) -> None:
    code = (
        "import sys, gymnasium, fedhpo_gym\n"
        "from fedhpo_gym.tasks import _tasks_on\n"
        "print(len(gymnasium.registry), _tasks_on.cache_info().currsize,\n"
        "      *{'fedhpo_gym.data.catalogue', 'torch', 'pandas'} & {*sys.modules})"
    )
    number, made, *loaded = run_python(code).split()
    assert int(number) > 3 * len(TRAINED)
    assert (made, loaded) == ("0", [])


@pytest.mark.raw
class TestWithinClients(TaskConformance):
    """Answered by training, without being asked."""

    task_id = "FedHPO-LR-ExamLondon"
    backend = "raw"


@pytest.mark.slow
@pytest.mark.raw
class TestUnseenClients(TaskConformance):
    """Clients that nobody has trained on are evaluated on."""

    task_id = "FedHPO-MLP-ScotsSecondaryUnseen"
    backend = "raw"


@pytest.mark.raw
def test_raw_answers_by_default() -> None:
    env = gym.make("FedHPO-LR-ScotsSecondary-v1", seed=1, fidelity={"round": 3})
    env.reset(seed=0)
    env.action_space.seed(0)
    *_, info = env.step(env.action_space.sample())
    assert env.unwrapped.backend.name == "raw"  # type: ignore[attr-defined]
    assert 0 < info["test"]["accuracy"] < 1
