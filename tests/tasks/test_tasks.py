"""The catalogue: names, spaces of the paper, variants, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym import register_all
from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.cli import make_parser
from fedhpo_gym.cli.console import parse_task
from fedhpo_gym.core.errors import (
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    UnknownNameError,
)
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.data import SOURCES
from fedhpo_gym.stored.catalogue import list_samples, list_tables, open_sample, open_table
from fedhpo_gym.stored.surrogate import list_surrogates, open_surrogate
from fedhpo_gym.studies.environments import remake_environment, resolve_id
from fedhpo_gym.tasks import TASKS, Task, get_task, make_catalogue, task_of, with_version_one
from fedhpo_gym.tasks.federated import STORED_ROUNDS

ALPHAS = (0.1, 0.5, 0.7, 1.0, 2, 1e-5, 0.1234567, 12345678.0, 1e20)
VARIANTS = [
    {"algorithm": algorithm, "alpha": alpha, "preprocessing": preprocessing}
    for algorithm in ALGORITHMS
    for alpha in ALPHAS
    for preprocessing in ("label_encoded", "standardized")
]


def test_every_task_agrees_with_its_data_and_its_model() -> None:
    for key, task in TASKS.items():
        source, inputs = SOURCES[task.dataset], task.num_features + 1
        assert task.num_classes == source.num_classes, key
        if task.model == "LR":
            assert task.num_parameters == inputs * task.num_classes, key
        if task.model == "GNN":
            assert task.num_parameters == inputs * 64 + 65 * task.num_classes, key
        assert task.citation, key
        assert task.seeds == (1, 2, 3), key


WEIGHT_DECAYS = (0.0, 0.000333333333333, 0.000666666666667, 0.001)
CNN_RATES = tuple(float(f"{0.01 * 100 ** (i / 9):.12g}") for i in range(10))
TABLE_8: dict[str, dict[str, tuple[float, ...]]] = {
    "LR": {
        "learning_rate": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        "weight_decay": WEIGHT_DECAYS,
        "batch_size": (4, 8, 16, 32, 64, 128, 256),
        "step_size": (1, 2, 3, 4),
    },
    "LR-Twitter": {  # Appendix H.1 names what is searched, not the intervals
        "learning_rate": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        "weight_decay": WEIGHT_DECAYS,
        "step_size": (1, 2, 3, 4),
    },
    "MLP": {
        "learning_rate": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        "weight_decay": WEIGHT_DECAYS,
        "batch_size": (4, 8, 16, 32, 64, 128, 256),
        "step_size": (1, 2, 3, 4),
        "model_depth": (1, 2, 3),
        "model_width": (16, 32, 64, 128, 256, 512, 1024),
    },
    "BERT": {
        "learning_rate": CNN_RATES,
        "weight_decay": WEIGHT_DECAYS,
        "dropout": (0.0, 0.5),
        "batch_size": (8, 16, 32, 64, 128),
        "step_size": (1, 2, 3, 4),
    },
    "CNN": {
        "learning_rate": CNN_RATES,
        "weight_decay": WEIGHT_DECAYS,
        "dropout": (0.0, 0.5),
        "batch_size": (16, 32, 64),
        "step_size": (1, 2, 3, 4),
    },
    "GNN": {
        "learning_rate": CNN_RATES,
        "weight_decay": WEIGHT_DECAYS,
        "dropout": (0.0, 0.5),
        "step_size": (1, 2, 3, 4, 5, 6, 7, 8),
    },
}


@pytest.mark.parametrize(
    "task",
    [t for t in TASKS.values() if t.model in TABLE_8 and not t.version],
    ids=lambda task: task.name,
)
def test_spaces_are_those_of_the_papers_table_8(task: Task) -> None:
    expected = TABLE_8.get(task.name, TABLE_8[task.model])
    assert {d.name: d.grid for d in task.space.dimensions} == expected
    fedopt = task.variant(algorithm="fedopt").space
    assert fedopt["server_momentum"].grid == (0.0, 0.9)
    assert fedopt["server_learning_rate"].grid == (0.1, 0.55, 1.0)
    cross_device = "cross-device" in task.tags
    rates = (0.005, 0.01, 0.02, 0.05) if cross_device else (0.2, 0.4, 0.6, 0.8, 1.0)
    assert task.fidelity_space["client_sample_rate"].grid == rates
    assert task.max_round == (40 if task.model == "BERT" else 500)
    assert task.stored_fidelity_space()["round"].high == task.max_round


VERSION_1 = [t for t in TASKS.values() if t.model in ("LR", "MLP") and "tabular-data" in t.tags]


@pytest.mark.parametrize("task", [t for t in VERSION_1 if t.version], ids=lambda task: task.name)
def test_version_1_of_tables_is_standardized_and_has_a_space_and_numbers_of_its_own(
    task: Task,
) -> None:
    old = get_task(f"{task.name}-v0")
    assert (task.preprocessing, task.reward, task.numbers_version) == (
        "standardized",
        "improvement",
        1,
    )
    assert task.space.names == old.space.names
    assert all(task.space[name].log for name in task.space.names if name != "model_depth")
    assert task.table_name != old.table_name
    assert task.table_name != old.variant(preprocessing="standardized").table_name
    largest = {dimension.name: dimension.high for dimension in task.space.dimensions}
    assert task.parameters_of(largest) == task.num_parameters
    raw = task.variant(preprocessing="label_encoded")
    assert raw.table_name == f"{task.name}-v1-fedavg"


def test_the_space_of_clients_with_problems_of_their_own_is_the_product_of_their_spaces() -> None:
    task = get_task("Hetero-GraphDC")
    own = [
        {d.name: d.grid for d in task.space.dimensions if d.name.endswith(f"@{i}")}
        for i in range(5)
    ]
    assert own == [
        {f"learning_rate@{i}": (0.001, 0.01), f"step_size@{i}": (1, 4)} for i in range(5)
    ]
    assert task.space.grid_size == 4**5
    assert task.max_round == 500


def test_stored_rounds_hold_the_rungs_of_multi_fidelity_ladders() -> None:
    assert list(STORED_ROUNDS) == sorted(set(STORED_ROUNDS))
    assert {1, 3, 9, 27, 81} <= set(STORED_ROUNDS)
    assert {500, 250, 125} <= set(STORED_ROUNDS)
    stored = get_task("LR-CreditG-v0").stored_fidelity_space()
    assert stored["round"].values == STORED_ROUNDS


@pytest.mark.parametrize(
    "name", ["LR-Car", "LR-Car-v1", "FedHPO-LR-Car", "MO-FedHPO-LR-Car-v1", "FedHPO-DAC-LR-Car-v1"]
)
def test_a_task_answers_to_all_its_names(name: str) -> None:
    assert get_task(name) is TASKS["LR-Car-v1"]
    assert get_task(name.removesuffix("-v1") + "-v0") is TASKS["LR-Car-v0"]


def test_the_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TASKS["LR-Car-v0"] = TASKS["LR-KC1-v0"]  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        TASKS["LR-Car-v0"].alpha = 1.0  # type: ignore[misc]


def test_no_two_variants_share_a_table() -> None:
    names = [get_task("LR-Car-v0").variant(**changes).table_name for changes in VARIANTS]
    assert len(set(names)) == len(VARIANTS)
    assert get_task("LR-Car-v0").table_name == "LR-Car-fedavg"


def test_the_command_that_builds_a_table_names_its_variant() -> None:
    parser = make_parser()
    for changes in VARIANTS:
        task = get_task("LR-Car-v0").variant(**changes)
        words = f"build {task.identity.arguments}".split()
        assert parse_task(parser.parse_args(words)) == task


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("nbafl", {"epsilon": 1}),
        ("nbafl", {"epsilon": 10, "w_clip": 0.5, "mu": 1e-5}),
        ("fedyogi", {"first_decay": 0.5, "second_decay": 0.999, "adaptivity": 0.01}),
    ],
)
def test_what_is_held_still_is_part_of_the_name(algorithm: str, settings: dict[str, float]) -> None:
    plain = get_task("LR-Car-v0").variant(algorithm=algorithm)
    task = plain.fix(settings)
    assert task.table_name != plain.table_name
    words = f"build {task.identity.arguments}".split()
    assert parse_task(make_parser().parse_args(words)) == task


def test_defaults_are_left_out_of_the_name_and_reach_training() -> None:
    task = get_task("LR-Car").variant(algorithm="nbafl")
    assert task.fix({"epsilon": 20, "mu": 0}) == task
    assert task.fix({"epsilon": 1}).fix({"epsilon": 20}) == task
    assert task.all_settings == {"epsilon": 20.0, "w_clip": 0.1, "constant": 1.0, "mu": 0.0}
    assert task.fix({"epsilon": 1}).all_settings == {**task.all_settings, "epsilon": 1.0}
    assert get_task("LR-Car").all_settings == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilom": 1}, ["`settings`", "nbafl", "epsilon", "w_clip", "epsilom=1"]),
        ({"dropout": 0.1}, ["`settings`", "LR-Car", "dropout=0.1"]),
        ({"adaptivity": 0.1}, ["`settings`", "nbafl", "adaptivity=0.1"]),
        ({"learning_rate": 0.1}, ["`settings`", "search space", "learning_rate=0.1"]),
        ({"epsilon": 0.0}, ["'epsilon'", "[1e-06, 1e+12]", "0.0"]),
        ({"epsilon": float("nan")}, ["'epsilon'", "nan"]),
        ({"epsilon": "10"}, ["'epsilon'", "number", "'10'"]),
        ({"w_clip": True}, ["'w_clip'", "number", "True"]),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        get_task("LR-Car").variant(algorithm="nbafl").fix(settings)
    for word in words:
        assert word in str(caught.value)


def test_an_algorithm_that_is_no_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`algorithm` must be a string, got array"):
        get_task("LR-Car").variant(algorithm=np.ones(3))


def test_a_variant_keeps_no_setting_of_another_algorithm() -> None:
    plain = get_task("LR-Car")
    task = plain.variant(algorithm="nbafl").fix({"epsilon": 1, "momentum": 0.5})
    assert task.variant(algorithm="fedavg") == plain.fix({"momentum": 0.5})
    assert task.variant(algorithm="dpfedavg").settings == (("epsilon", 1.0), ("momentum", 0.5))
    private = get_task("JointPrivate-ExamLondon")
    assert private.variant(algorithm="fedavg").settings == ()


def test_what_another_setting_decides_in_the_place_of_is_refused() -> None:
    task = get_task("LR-Car").variant(algorithm="dpfedavg")
    assert task.silent == {}
    for deciding in (task.fix({"epsilon": 8}), task.tune({"epsilon": (0.1, 8)})):
        assert deciding.silent == {"noise_multiplier": "epsilon"}
        with pytest.raises(InvalidArgumentError, match=r"`noise_multiplier`.*`epsilon` decides"):
            deciding.fix({"noise_multiplier": 3})
    with pytest.raises(InvalidArgumentError, match=r"`noise_multiplier`.*`epsilon` decides"):
        task.fix({"epsilon": 8}).tune({"noise_multiplier": (1, 3)})
    assert task.fix({"epsilon": 8}).fix({"epsilon": 0, "noise_multiplier": 3}).silent == {}
    with pytest.raises(InvalidArgumentError, match=r"`tune`.*'epsilon'.*above 0.*'noise_multip"):
        task.tune({"epsilon": (0, 1)})
    with pytest.raises(InvalidArgumentError, match=r"`tune`.*search already.*'clip_rate'"):
        get_task("JointPrivate-ExamLondon").tune({"clip_rate": (0, 1)})


@pytest.mark.parametrize("words", ["--setting epsilon", "--setting epsilon=1 --setting epsilon=2"])
def test_settings_of_the_command_line_are_pairs(words: str) -> None:
    line = f"build FedHPO-LR-Car --algorithm nbafl {words}".split()
    with pytest.raises(InvalidArgumentError, match="--setting"):
        parse_task(make_parser().parse_args(line))


def test_an_unknown_task_suggests_a_known_one() -> None:
    with pytest.raises(UnknownNameError, match="'LR-CreditG'"):
        get_task("LR-CreditX")


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.key)
def test_tasks_and_models_agree_about_shapes_and_sizes(task: Task) -> None:
    torch = pytest.importorskip("torch")
    from fedhpo_gym.data import Dataset
    from fedhpo_gym.data.federation import make_federation
    from fedhpo_gym.fl.models import get_model

    model = get_model(task.model)
    settings = tuple(name for name, _ in task.model_settings)
    assert (*task.architecture, *settings) == model.architecture
    if "tabular-data" not in task.tags:
        return
    labels = np.arange(1000) % task.num_classes
    made = Dataset("made", np.zeros((1000, task.num_features)), labels, task.num_classes, "")
    federation = make_federation(made, 1)
    sizes = []
    for end in ("low", "high"):
        shape = {name: getattr(task.space[name], end) for name in task.architecture}
        sizes.append(task.parameters_of(shape))
        device = [] if model.compiled else [torch.device("cpu")]
        built = model.for_federation(federation, *device, **shape)
        assert built.num_parameters == sizes[-1]
    assert sizes[-1] == task.num_parameters == max(sizes)


def test_instances_are_drawn_alike_from_the_same_data() -> None:
    drawn = {(task.dataset, task.instance_alphas) for task in TASKS.values()}
    assert len(drawn) == len({dataset for dataset, _ in drawn})


# ---------------------------------------------------------------------------------- versions


@pytest.fixture
def two_versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Task]]:
    """A catalogue that holds two versions of a problem, the newer one first, registered."""
    old = get_task("LR-BreastCancer-v0")
    made = make_catalogue((old.variant(version=1, alpha=0.7), old, get_task("LR-Car-v0")))
    monkeypatch.setattr("fedhpo_gym.tasks.TASKS", made)
    before = set(gym.registry)
    register_all(made.values())
    yield made
    for name in set(gym.registry) - before:
        del gym.registry[name]


def test_a_name_without_a_version_is_the_newest(two_versions: Mapping[str, Task]) -> None:
    old, new = two_versions["LR-BreastCancer-v0"], two_versions["LR-BreastCancer-v1"]
    for prefix in ("", "FedHPO-", "MO-FedHPO-", "FedHPO-DAC-", "MO-FedHPO-DAC-"):
        assert get_task(f"{prefix}LR-BreastCancer") is new
        assert get_task(f"{prefix}LR-BreastCancer-v1") is new
        assert get_task(f"{prefix}LR-BreastCancer-v0") is old
        assert get_task(f"{prefix}LR-Car") is two_versions["LR-Car-v0"]
    with pytest.raises(UnknownNameError, match=r"-v2.*'FedHPO-LR-BreastCancer-v[01]'"):
        get_task("FedHPO-LR-BreastCancer-v2")


def test_every_version_has_ids_and_numbers_of_its_own(two_versions: Mapping[str, Task]) -> None:
    old, new = two_versions["LR-BreastCancer-v0"], two_versions["LR-BreastCancer-v1"]
    assert (new.id, new.round_id) == ("FedHPO-LR-BreastCancer-v1", "FedHPO-DAC-LR-BreastCancer-v1")
    assert {new.id, new.round_id, f"MO-{new.id}", f"MO-{new.round_id}"} <= set(gym.registry)
    assert old.table_name == "LR-BreastCancer-fedavg"
    assert new.table_name == "LR-BreastCancer-v1-fedavg-alpha0.7"
    assert gym.make(old.id).unwrapped.task == old  # type: ignore[attr-defined]
    command = f"'LR-BreastCancer-v1-.*`fedhpo-gym build {new.id} "
    with pytest.raises(MissingDataError, match=command):
        gym.make(new.id)
    assert resolve_id("FedHPO-LR-BreastCancer") == new.id


def test_studies_and_commands_know_versions(two_versions: Mapping[str, Task]) -> None:
    old, new = two_versions["LR-BreastCancer-v0"], two_versions["LR-BreastCancer-v1"]
    for wanted, words in ((new, "FedHPO-LR-BreastCancer"), (new, new.id), (old, old.id)):
        assert parse_task(make_parser().parse_args(["build", words])) == wanted
    for task in (old, new, new.variant(algorithm="nbafl").fix({"epsilon": 3})):
        words = f"build {task.identity.arguments}".split()
        assert parse_task(make_parser().parse_args(words)) == task
        assert Identity.from_card(task.identity.to_card()) == task.identity
        assert task_of(task.identity) == task


@pytest.mark.usefixtures("two_versions")
def test_a_record_of_an_old_version_is_not_replayed_on_the_newest() -> None:
    env = gym.make("FedHPO-LR-BreastCancer-v0")
    assert env.spec is not None
    spec = json.loads(env.spec.to_json())
    assert spec["kwargs"]["task"] == "LR-BreastCancer-v0"
    spec["kwargs"]["task"] = "LR-BreastCancer"  # as version 0.1.0 wrote it
    again = remake_environment("FedHPO-LR-BreastCancer-v0", spec)
    assert again.unwrapped.task == env.unwrapped.task  # type: ignore[attr-defined]


def test_every_problem_has_a_version_that_rewards_the_improvement() -> None:
    names = {task.name for task in TASKS.values()}
    assert {f"{name}-v{version}" for name in names for version in (0, 1)} <= set(TASKS)
    for name in names:
        old, new = TASKS[f"{name}-v0"], TASKS[f"{name}-v1"]
        assert (old.reward, new.reward) == ("score", "improvement")
        assert get_task(name).reward == "improvement"
        if new.numbers == 0:
            assert new == old.variant(version=1, numbers=0, reward="improvement")
            assert new.identity == old.identity
            assert new.table_name == old.table_name


def test_a_family_that_brings_its_own_version_one_is_left_alone() -> None:
    old, other = get_task("LR-Car-v0"), get_task("LR-KC1-v0")
    own = old.variant(version=1, alpha=0.1)
    assert list(with_version_one((old, own, other)))[:3] == [old, own, other]
    assert [task.key for task in with_version_one((other, own, old))] == [
        "LR-KC1-v0", "LR-KC1-v1", "LR-Car-v1", "LR-Car-v0",
    ]  # fmt: skip
    later = old.variant(version=2)
    assert [task.version for task in with_version_one((old, later))] == [0, 1, 2]


def test_a_version_is_in_the_catalogue_once() -> None:
    with pytest.raises(InvalidArgumentError, match="two LR-Car-v1"):
        make_catalogue([get_task("LR-Car"), get_task("LR-Car").variant(alpha=0.1)])


STORED: tuple[tuple[Any, str], ...] = (
    *((open_table, name) for name in list_tables()),
    *((open_sample, name) for name in list_samples()),
    *((open_surrogate, name) for name in list_surrogates()),
)


def test_what_a_card_says_leads_to_the_task_whose_files_these_are() -> None:
    for open_, name in STORED:
        identity = open_(name).identity
        task = task_of(identity)
        assert identity in (task.identity, *task.surrogate_identities)
        assert open_(identity).name == identity.name == name


@pytest.mark.parametrize("name", [None, 1.9, ["LR-CreditG"], True])
def test_a_task_has_a_name(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="`name` must be a string"):
        get_task(name)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"algorithm": "fedavgg"}, UnknownNameError, "algorithm.*'fedavgg'.*'fedavg'"),
        ({"preprocessing": "scaled"}, UnknownNameError, "preprocessing.*'scaled'.*standard"),
        ({"reward": "scores"}, UnknownNameError, "reward 'scores'.*'score'"),
        *(
            ({"alpha": alpha}, InvalidArgumentError, f"`alpha`.*{word}.*{alpha!r}")
            for word, alphas in {
                "positive": (0.0, -1, float("nan")),
                "finite": (float("inf"),),
                "number": ("0.5", True),
            }.items()
            for alpha in alphas
        ),
        ({"seeds": ()}, InvalidArgumentError, r"`seeds`.*\(\)"),
        ({"seeds": (1, -2)}, InvalidArgumentError, "`seeds`.*non-negative.*-2"),
        *(
            ({"version": version}, InvalidArgumentError, "`version` must be .*at least 0, got")
            for version in (-1, True, 1.0, "1", None)
        ),
        *(
            ({"numbers": numbers}, InvalidArgumentError, "`numbers`.*a version up to 1")
            for numbers in (-1, 2, True, 0.0, "0")
        ),
    ],
)
def test_errors_name_the_argument_the_rule_and_the_value(
    changes: dict[str, Any], error: type[FedHPOError], words: str
) -> None:
    with pytest.raises(error, match=words):
        get_task("LR-CreditG-v1").variant(**changes)


@pytest.mark.parametrize("name", ["GNN-Cora", "Hetero-GraphDC"])
def test_features_of_graphs_are_not_changed(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"`preprocessing`.*{name}.*'standardized'"):
        get_task(name).variant(preprocessing="standardized")
