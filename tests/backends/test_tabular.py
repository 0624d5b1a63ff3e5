"""Exact look-up keeps the laws of every backend; and which backend answers when none is named."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.backends import Backend, default_backend
from fedhpo_gym.backends.tabular import Tabular
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.stored.catalogue import ENV_VAR
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.testing import BackendConformance
from fedhpo_gym.wrappers import RawBackend, SurrogateBackend, TabularBackend
from stored_files import tiny  # noqa: F401 - a fixture


@pytest.mark.usefixtures("tiny")
class TestTabular(BackendConformance):
    def make(self) -> Backend:
        return Tabular(get_task("LR-BreastCancer-v0"))


@pytest.mark.usefixtures("tiny")
class TestTabularOneSeed(BackendConformance):
    rate = 0.2

    def make(self) -> Backend:
        return Tabular(get_task("LR-BreastCancer-v0"), seed=2)


def test_a_seed_the_table_has_not(tiny: Task) -> None:  # noqa: F811
    with pytest.raises(InvalidArgumentError, match=r"seed.*\(1, 2, 3\).*got \[4.*raw"):
        Tabular(tiny, seed=4)


# --------------------------------------------------------- which backend answers when none is named

TASK = get_task("LR-CreditG").variant(alpha=0.123)  # nobody has built it


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], "tabular"),
        (["surrogate"], "surrogate"),
        (["table"], "tabular"),
        (["surrogate", "table"], "tabular"),
        (["sample"], "tabular"),
        (["sample", "surrogate"], "surrogate"),
    ],
)
def test_stored_numbers_answer_tables_first(folder: Path, files: list[str], expected: str) -> None:
    for kind in files:
        (folder / f"{TASK.table_name}.{kind}.json").write_text("{}", encoding="utf-8")
    assert default_backend(TASK) == expected


def test_without_numbers_nothing_trains_unasked() -> None:
    with pytest.raises(MissingDataError, match=r"fedhpo-gym build FedHPO-LR-CreditG-v0 .*0\.123"):
        gym.make("FedHPO-LR-CreditG-v0", alpha=0.123)


@pytest.mark.parametrize(
    ("env_id", "backend"), [("FedHPO-CNN-CIFAR10-v0", None), ("FedHPO-GNN-PubMed-v0", "tabular")]
)
def test_the_refusal_says_what_a_grid_costs_and_where_a_backend_is_chosen(
    env_id: str, backend: str | None
) -> None:
    with pytest.raises(MissingDataError) as caught:
        gym.make(env_id, backend=backend)
    assert "which first says what that costs (`--sample N`" in str(caught.value)
    assert 'gymnasium.make(..., backend="raw")' in str(caught.value)
    assert "too late" not in str(caught.value), "nobody used a wrapper"


def test_so_does_that_of_a_missing_surrogate() -> None:
    with pytest.raises(MissingDataError, match=r'gymnasium\.make\(\.\.\., backend="raw"\)'):
        gym.make("FedHPO-CNN-CIFAR10-v0", backend="surrogate")


@pytest.mark.parametrize("wrapper", [TabularBackend, SurrogateBackend, RawBackend])
def test_the_wrappers_say_when_they_come_too_late(wrapper: type) -> None:
    words = " ".join((wrapper.__base__.__doc__ or "").split())
    assert "cannot help where an id has no stored numbers: `gymnasium.make` itself" in words


def test_an_id_of_the_package_answers_by_itself() -> None:
    env = gym.make("FedHPO-LR-CreditG-v0")
    assert env.reset(seed=0)[1]["backend"] == "tabular"
