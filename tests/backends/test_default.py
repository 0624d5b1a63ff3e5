"""Which backend answers when none is named."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.backends import default_backend
from fedhpo_gym.errors import MissingDataError
from fedhpo_gym.tables.locate import ENV_VAR
from fedhpo_gym.tasks import get_task

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
    ],
)
def test_stored_numbers_answer_tables_first(folder: Path, files: list[str], expected: str) -> None:
    for kind in files:
        (folder / f"{TASK.table_name}.{kind}.json").write_text("{}", encoding="utf-8")
    assert default_backend(TASK) == expected


def test_without_numbers_nothing_trains_unasked() -> None:
    with pytest.raises(MissingDataError, match=r"fedhpo-gym build FedHPO-LR-CreditG-v0 .*0\.123"):
        gym.make("FedHPO-LR-CreditG-v0", alpha=0.123)


def test_an_id_of_the_package_answers_by_itself() -> None:
    env = gym.make("FedHPO-LR-CreditG-v0")
    assert env.reset(seed=0)[1]["backend"] == "tabular"
