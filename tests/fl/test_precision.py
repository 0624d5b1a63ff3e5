"""Laws of precisions: who takes them, what they are called, and that curves stay close."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.core.identity import Identity  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_user_federation  # noqa: E402
from fedhpo_gym.envs.round.arguments import RoundArguments  # noqa: E402
from fedhpo_gym.envs.trial.arguments import TrialArguments  # noqa: E402
from fedhpo_gym.fl import shared_matrices, torch_trainer  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models import LogisticRegression, get_model  # noqa: E402
from fedhpo_gym.fl.models.cnn import ConvNet  # noqa: E402
from fedhpo_gym.tasks import TASKS, get_task, task_of  # noqa: E402
from plain_models import course, small_images  # noqa: E402


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(torch_trainer.EMULATION, "1")


@pytest.fixture(scope="module")
def federation() -> Federation:
    return make_user_federation(small_images(), seed=1)


def run(
    federation: Federation, courses: list[Course], chosen: str = "bfloat16", rounds: int = 3
) -> Curves:
    algorithm = get_algorithm("fedprox")
    batch = CourseBatch({1: federation}, ConvNet, algorithm, courses, precision=chosen)
    return batch.advance(rounds)


COURSES = [
    course(rate=0.1, dropout=0.3, mu=0.1),
    course(rate=0.1, batch=16, epochs=2, sampled=0.5, mu=0.1),
]


@pytest.mark.slow
@pytest.mark.parametrize("sharing", [True, False])
def test_curves_of_both_precisions_are_close(
    federation: Federation, sharing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sharing:
        monkeypatch.setattr(shared_matrices, "worth_sharing", lambda rank, _: rank < 0)
    calm = [course(rate=0.02, batch=16, dropout=0.3, mu=0.1), course(rate=0.01, batch=8, mu=0.1)]
    exact = run(federation, calm, "float32").metrics
    rounded = run(federation, calm).metrics
    assert not np.array_equal(exact, rounded)
    np.testing.assert_allclose(rounded[..., 0], exact[..., 0], rtol=0.05)


@pytest.mark.slow
def test_a_course_in_bfloat16_is_bitwise_the_same_alone(federation: Federation) -> None:
    together = run(federation, COURSES, rounds=2).metrics
    for index, chosen in enumerate(COURSES):
        found = run(federation, [chosen], rounds=2).metrics[0]
        np.testing.assert_array_equal(found, together[index])


def test_master_weights_stay_float32(federation: Federation) -> None:
    batch = CourseBatch(
        {1: federation}, ConvNet, get_algorithm("fedavg"), [course()], precision="bfloat16"
    )
    batch.advance(1, evaluated=())
    state = batch.snapshot()[0]
    assert state is not None
    assert {value.dtype for value in state.parameters.values()} == {torch.float32}


def test_a_processor_without_instructions_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(torch_trainer.EMULATION)
    monkeypatch.setattr(torch_trainer, "has_bfloat16", lambda: False)
    with pytest.raises(InvalidArgumentError, match=rf"set .* {torch_trainer.EMULATION} to 1"):
        torch_trainer.require_precision("bfloat16", ConvNet)
    torch_trainer.require_precision("float32", ConvNet)
    monkeypatch.setattr(torch_trainer, "has_bfloat16", lambda: True)
    torch_trainer.require_precision("bfloat16", ConvNet)


def test_models_refuse_what_they_do_not_compute_in() -> None:
    with pytest.raises(InvalidArgumentError, match="'float32', got 'bfloat16'"):
        torch_trainer.require_precision("bfloat16", LogisticRegression)
    with pytest.raises(InvalidArgumentError, match=r"LR-CreditG.* got 'bfloat16'"):
        get_task("LR-CreditG").variant(precision="bfloat16")


def test_tasks_know_what_their_models_compute_in() -> None:
    for task in TASKS.values():
        assert set(task.precisions) == set(get_model(task.model).precisions)


def test_only_another_precision_has_another_identity() -> None:
    task = get_task("CNN-FEMNIST-v0")
    assert "precision" not in task.identity.to_card()
    rounded = task.variant(precision="bfloat16")
    assert rounded.table_name == f"{task.table_name}-bfloat16"
    card = rounded.identity.to_card()
    assert card["precision"] == "bfloat16"
    assert task_of(Identity.from_card(card)) == rounded
    assert task_of(Identity.from_card(task.identity.to_card())) == task


@pytest.mark.parametrize("kind", [TrialArguments, RoundArguments])
def test_environments_train_in_float32_unless_asked(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"backend": "raw"} if kind is TrialArguments else {}
    task = get_task("CNN-FEMNIST").variant(precision="bfloat16")
    module = "trial" if kind is TrialArguments else "round"
    monkeypatch.setattr(f"fedhpo_gym.envs.{module}.arguments.get_task", lambda _: task)
    assert kind(task="CNN-FEMNIST", **own).variant.precision == "float32"
    asked = kind(task="CNN-FEMNIST", precision="bfloat16", **own).variant
    assert asked.precision == "bfloat16"
