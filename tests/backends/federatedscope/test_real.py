"""FederatedScope itself, where it is installed: the laws of a backend, and what it is taken for.

They run where the environment variable FEDHPO_GYM_FEDERATEDSCOPE names what `fedhpo-gym
federatedscope install` made.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from federatedscope_peer import LARGE, LR, RECORDINGS, SERVER, SMALL
from fedhpo_gym.analysis import read_record
from fedhpo_gym.backends import Backend
from fedhpo_gym.backends.federatedscope.backend import CourseRequest, RemoteCourse
from fedhpo_gym.backends.federatedscope.installation import VARIABLE, find_installation
from fedhpo_gym.backends.federatedscope.process import Peer
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import PeerError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing import BackendConformance, RoundConformance
from fedhpo_gym.testing.rollout import rollout

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends.federatedscope.backend import FederatedScope
from fedhpo_gym.backends.raw import Raw

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no installation"),
]


class TestRealCourses(BackendConformance):
    def make(self) -> Backend:
        return FederatedScope(LR, seed=1)

    def configurations(self, backend: Backend) -> list[dict[str, Value]]:
        return [SMALL, {**SMALL, "learning_rate": 0.02}]


class TestRealCoursesOfFedOptUnderAllSeeds(BackendConformance):
    rounds = (1, 2, 3)
    rate = 0.4

    def make(self) -> Backend:
        return FederatedScope(LR.variant(algorithm="fedopt", preprocessing="standardized"))

    def configurations(self, backend: Backend) -> list[dict[str, Value]]:
        return [{**SMALL, **SERVER}, {**SMALL, **SERVER, "server_learning_rate": 0.3}]


@pytest.fixture
def peer() -> Any:
    one = Peer(find_installation())
    yield one
    one.close()


def request(**changes: Any) -> CourseRequest:
    given = {
        "task": LR, "configuration": {**SMALL, "batch_size": 16}, "client_sample_rate": 0.4,
        "seed": 1, "rounds": 6, "evaluated": range(1, 7), **changes,
    }  # fmt: skip
    return CourseRequest(**given)


def losses(course: RemoteCourse, *stops: int) -> list[Any]:
    said: list[Any] = []
    for stop in stops:
        course.advance(stop, said.append)
    return [message["clients"] for message in said if "round" in message]


def test_courses_that_take_turns_say_what_each_says_alone(peer: Peer) -> None:
    alone = losses(RemoteCourse(peer, request(), 60.0), 6)
    one, other = (RemoteCourse(peer, request(seed=s), 60.0) for s in (1, 2))
    turns = []
    for stop in (1, 3, 6):
        turns += losses(one, stop)
        losses(other, stop)
        if stop < 6:
            one.evaluate()
            one.cohorts(3)
    assert turns == alone


def test_it_says_who_will_train_before_they_do(peer: Peer) -> None:
    course = RemoteCourse(peer, request(watched=True), 60.0)
    said: list[Any] = []
    for stop in (2, 4):
        foreseen = course.cohorts(2)
        course.advance(stop, said.append)
        trained = [sorted(map(int, m["clients"])) for m in said if "trained" in m][-2:]
        assert trained == foreseen
    assert all(len(cohort) == 2 for cohort in trained)


@pytest.mark.parametrize("key", ["federate.local_update_stepz", "optimizer.lr", "data.batch_size"])
def test_a_key_that_it_would_ignore_is_an_error(peer: Peer, key: str) -> None:
    message = request().message(0, peer)
    message["entries"][key] = 1
    with pytest.raises(PeerError, match=r"would (ignore|not follow)"):
        peer.ask(message, 60.0, lambda _: None)
    losses(RemoteCourse(peer, request(), 60.0), 1)  # it goes on


def test_it_still_says_what_was_recorded(peer: Peer) -> None:
    """Where versions are those of the recording; processors round float32 differently."""
    recorded = json.loads(
        (Path(__file__).parents[2] / "data" / "federatedscope" / "current.json").read_text()
    )
    if peer.versions != recorded["versions"]:
        pytest.skip(f"recorded with {recorded['versions']}, here is {peer.versions}")
    for (task, configuration, rate), course in zip(
        RECORDINGS["current"][:3], recorded["courses"][:3], strict=True
    ):
        asked = request(task=task, configuration=configuration, client_sample_rate=rate, rounds=500)
        found = losses(RemoteCourse(peer, asked, 60.0), 6)
        for clients, message in zip(found, course["rounds"], strict=True):
            assert clients.keys() == message["clients"].keys()
            for key, metrics in message["clients"].items():
                assert clients[key] == pytest.approx(metrics, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["LR-BreastCancer-v1", "MLP-BreastCancer-v1", "GNN-Cora-v1"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedopt", "fedprox"])
def test_models_learn_as_ours_do(name: str, algorithm: str, request: pytest.FixtureRequest) -> None:
    if name.startswith("GNN"):
        request.getfixturevalue("shared_datasets")
    task = get_task(name).variant(algorithm=algorithm)
    configuration = {d.name: d.decode(0.3) for d in task.space.dimensions}
    configuration |= {"mu": 0.1} if algorithm == "fedprox" else {}
    fidelity = Fidelity(9, 1.0)
    theirs, ours = (b(task, seed=1) for b in (FederatedScope, Raw))
    one, other = (b.evaluate(configuration, fidelity) for b in (theirs, ours))
    np.testing.assert_array_equal(one.num_samples, other.num_samples)
    start, end = task.chance_loss, other.mean("train", "loss", "current")
    assert abs(one.mean("train", "loss", "current") - end) < 0.35 * max(abs(start - end), 0.2)


CONTRIBUTED = """
import numpy as np
from federatedscope.core.data import ClientData
from federatedscope.register import register_data

def load(config, client_cfgs=None):
    if config.data.type != "ours":
        return None
    rng = np.random.default_rng(7)
    data = {}
    for client in range(1, 6):
        x = rng.normal(size=(40 + client, 4)).astype(np.float32)
        rows = list(zip(x, (x[:, 0] > 0).astype(np.int64)))
        data[client] = ClientData(config, train=rows[:20], val=rows[20:30], test=rows[30:])
    return data, config

register_data("ours", load)
"""


def test_data_that_its_users_contributed(tmp_path: Path) -> None:
    where = find_installation()
    shutil.copytree(where.source / "federatedscope", tmp_path / "federatedscope")
    added = tmp_path / "federatedscope" / "contrib" / "data" / "ours.py"
    added.write_text(CONTRIBUTED, encoding="utf-8")
    env = gym.make(
        "FedHPO-LR-BreastCancer-v0",
        backend="federatedscope",
        source=str(tmp_path),
        interpreter=str(where.interpreter),
        seed=1,
        own_data={"data.type": "ours"},
        fidelity={"round": 2, "client_sample_rate": 1.0},
    )
    env.reset(seed=0)
    env.action_space.seed(0)
    *_, info = env.step(env.action_space.sample())
    assert np.isfinite(info["objectives"]["val_loss"])
    trial: Any = env.unwrapped
    answer = trial.setup.backend.evaluate(SMALL, Fidelity(1, 1.0))
    assert answer.num_samples[0].tolist() == [[20, 10, 10 + client] for client in range(1, 6)]
    env.close()


def test_a_diverged_course_keeps_the_untrained_model() -> None:
    backend = FederatedScope(LR.variant(algorithm="fedprox"), seed=1)
    answer = backend.evaluate({**LARGE, "mu": 5.0}, Fidelity(3, 1.0))
    assert answer.has_diverged
    assert np.isfinite(answer.best).all()
    backend.close()


class TestRealRounds(RoundConformance):
    task_id = "FedHPO-LR-BreastCancer-v1"
    backend = "federatedscope"

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "backend": self.backend}

    def test_another_process_with_another_hash_seed_agrees(self) -> None:
        """All but the working folder, which every process has of its own."""
        found = self.rollout_elsewhere(), rollout(self.make())
        one, other = (re.sub(r"[^\"]*fedhpo-federatedscope-\w+", "", json.dumps(x)) for x in found)
        assert one == other


def test_what_it_says_of_updates_is_what_ours_says() -> None:
    """Norms and cosines, and what is measured before and after local training, in full batches."""
    env: Any = gym.make(
        "FedHPO-DAC-LR-BreastCancer-v1",
        backend="federatedscope",
        per_client=True,
        instances=[[0.5, 3]],
        horizon=3,
        configuration={"batch_size": 256},
        dynamic=["learning_rate"],
    )
    env.reset(seed=0)
    courses = env.unwrapped.process.courses
    action = np.zeros(env.action_space.shape, dtype=np.float32)
    configuration = env.unwrapped.process.controls.decode(action)
    rate = configuration.pop("client_sample_rate")
    courses.configure([configuration], [rate])
    foreseen = courses.sampled(1)
    report = courses.advance(1)
    np.testing.assert_array_equal(report.feedback.sampled[:, 0], foreseen)
    assert report.feedback.sampled.all()
    assert (report.feedback.update_norm > 0).all()
    assert (np.abs(report.feedback.alignment) <= 1).all()
    # All clients received the untrained model, and each became better on its own training data.
    # Training samples come in another order, and sums of their losses are rounded in another way.
    first = courses.first_metrics([0])[0]
    np.testing.assert_allclose(report.feedback.before[0, 0], first, rtol=1e-5)
    assert (report.feedback.after[0, 0, :, 0, 0] < report.feedback.before[0, 0, :, 0, 0]).all()
    env.close()


def test_our_fedex_acts_on_its_courses(tmp_path: Path) -> None:
    words = ["run", "FedHPO-DAC-LR-BreastCancer-v1", "--agent", "fedex", "--seeds", "1"]
    words += ["--backend", "federatedscope", "--out", str(tmp_path), "--set", "horizon=4"]
    assert main(words) == 0
    [record] = [read_record(path) for path in tmp_path.rglob("*.jsonl")]
    assert record.header.kwargs["backend"] == "federatedscope"
