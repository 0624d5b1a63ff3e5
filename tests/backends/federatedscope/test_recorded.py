"""The laws of every backend, on what FederatedScope really said of some courses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from federatedscope_peer import LARGE, LR, RECORDED, SERVER, SMALL, pretend
from fedhpo_gym.backends import Backend
from fedhpo_gym.core.errors import InvalidArgumentError, PeerError
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.testing import BackendConformance
from fedhpo_gym.wrappers import FederatedScopeBackend, RawBackend

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends.federatedscope import backend as module
from fedhpo_gym.backends.federatedscope.backend import FederatedScope

OTHER = {**SMALL, "learning_rate": 0.02}


class TestRecordedCourses(BackendConformance):
    recording: ClassVar[str] = "current"

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.arguments = pretend(tmp_path, "replay", RECORDED / f"{self.recording}.json")

    def make(self) -> Backend:
        return FederatedScope(LR, seed=1, **self.arguments)

    def configurations(self, backend: Backend) -> list[dict[str, Value]]:
        return [SMALL, OTHER]


class TestRecordedCoursesOfTheFirstVersion(TestRecordedCourses):
    recording = "v0.1"


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, str]:
    return pretend(tmp_path, "replay", RECORDED / "current.json")


def recorded(index: int) -> dict[str, Any]:
    courses = json.loads((RECORDED / "current.json").read_text(encoding="utf-8"))["courses"]
    course: dict[str, Any] = courses[index]
    return course


def test_numbers_are_those_of_the_clients(arguments: dict[str, str]) -> None:
    answer = FederatedScope(LR, seed=1, **arguments).evaluate(SMALL, Fidelity(3, 1.0))
    said = recorded(0)["rounds"][2]["clients"]
    names = {"loss": "avg_loss", "accuracy": "acc", "f1": "f1"}
    for client in range(5):
        for s, split in enumerate(SPLITS):
            assert said[str(client + 1)][f"{split}_total"] == answer.num_samples[0, client, s]
            for m, metric in enumerate(METRICS):
                number = np.float32(said[str(client + 1)][f"{split}_{names[metric]}"])
                assert answer.current is not None
                assert answer.current[0, client, s, m] == number


def test_a_course_that_diverges_keeps_its_last_finite_numbers(arguments: dict[str, str]) -> None:
    backend = FederatedScope(LR.variant(algorithm="fedprox"), seed=1, **arguments)
    configuration = {**LARGE, "mu": 5.0}
    rounds = (1, 2, 3, 4, 6)
    answers = [backend.evaluate(configuration, Fidelity(r, 1.0)) for r in rounds]
    losses = [
        [c["train_avg_loss"] for c in message["clients"].values()]
        for message in recorded(3)["rounds"]
    ]
    lost = [not np.isfinite(np.float32(each)).all() for each in losses]
    assert any(lost)
    since = np.logical_or.accumulate(lost)
    assert [bool(answer.diverged[0]) for answer in answers] == [since[r - 1] for r in rounds]
    assert all(np.isfinite(answer.best).all() for answer in answers)
    assert answers[-1].has_diverged


def test_a_course_is_not_trained_again(
    arguments: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    advance = module.RemoteCourse.advance

    def spy(self: Any, rounds: int, *others: Any) -> None:
        asked.append((self.rounds, rounds))
        advance(self, rounds, *others)

    monkeypatch.setattr(module.RemoteCourse, "advance", spy)
    backend = FederatedScope(LR, seed=1, **arguments)
    for rounds in (2, 1, 4, 3, 4):
        backend.evaluate(SMALL, Fidelity(rounds, 1.0))
    assert asked == [(0, 1), (1, 2), (2, 3), (3, 4)]  # every round once, whatever is asked


def test_curves_outlive_courses_and_courses_start_over(
    arguments: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LIVE", 1)
    backend = FederatedScope(LR, seed=1, **arguments)
    first = backend.evaluate(SMALL, Fidelity(3, 1.0))
    backend.evaluate(OTHER, Fidelity(3, 1.0))
    again = backend.evaluate(SMALL, Fidelity(3, 1.0))
    np.testing.assert_array_equal(first.best, again.best)
    whole = FederatedScope(LR, seed=1, **arguments).evaluate(SMALL, Fidelity(6, 1.0))
    np.testing.assert_array_equal(backend.evaluate(SMALL, Fidelity(6, 1.0)).best, whole.best)


def test_environments_take_its_arguments_and_info_names_where_it_runs(
    arguments: dict[str, str],
) -> None:
    env = gym.make(
        "FedHPO-LR-BreastCancer-v0",
        backend="federatedscope",
        seed=1,
        fidelity={"round": 6, "client_sample_rate": 1.0},
        **arguments,
    )
    _, info = env.reset(seed=0)
    where = info["federatedscope"]
    assert (where["version"], where["interpreter"]) == ("0.3.0", arguments["interpreter"])
    folder = Path(where["folder"])
    assert folder.is_dir()
    # Of a configuration that nobody recorded, the program says so, and goes on.
    with pytest.raises(PeerError, match="nothing was recorded"):
        env.step(env.action_space.sample())
    env.close()


def test_the_folder_is_deleted_with_the_last_environment(arguments: dict[str, str]) -> None:
    one, other = (FederatedScope(LR, seed=1, **arguments) for _ in range(2))
    folders = {one.describe()["federatedscope"]["folder"] for one in (one, other)}  # type: ignore[index]
    assert len(folders) == 1  # one process for both
    folder = Path(folders.pop())
    one.close()
    assert folder.is_dir()
    other.close()
    assert not folder.exists()
    assert one.evaluate(SMALL, Fidelity(1, 1.0)).best.shape == (1, 5, 3, 3)  # asked again
    one.close()


def test_the_wrapper_exchanges_the_backend(arguments: dict[str, str]) -> None:
    plain = gym.make("FedHPO-LR-BreastCancer-v0", seed=1)
    env = FederatedScopeBackend(plain, seed=1, **arguments)  # type: ignore[arg-type]
    _, info = env.reset(seed=0)
    assert info["backend"] == "federatedscope"
    folder = Path(info["federatedscope"]["folder"])
    RawBackend(env, seed=1)  # ends what the former one started
    assert not folder.exists()
    with pytest.raises(InvalidArgumentError, match="time_limit_s"):
        FederatedScopeBackend(plain, time_limit_s=0.0, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0.4])
def test_fedopt_writes_its_server(arguments: dict[str, str], rate: float) -> None:
    backend = FederatedScope(LR.variant(algorithm="fedopt"), seed=1, **arguments)
    answer = backend.evaluate({**SMALL, **SERVER}, Fidelity(6, rate))
    assert not answer.has_diverged
