"""A `torch.nn.Module` as a model: the laws of the engine, and FedAvg written with torch's parts."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.fl.models import REGISTERED
from fedhpo_gym.space import Dimension
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing import ModelConformance

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.raw


def net(shape: tuple[int, ...], classes: int, width: int = 8) -> Any:
    return nn.Sequential(nn.Linear(*shape, width), nn.ReLU(inplace=True), nn.Linear(width, classes))


def rich(shape: tuple[int, ...], classes: int) -> Any:
    """Return what is easily got wrong: running statistics, dropout, frozen and tied parameters."""
    first, tied = nn.Linear(*shape, 6), nn.Linear(6, 6)
    twin = nn.Linear(6, 6)
    twin.weight = tied.weight
    frozen = nn.Linear(6, 6)
    frozen.weight.requires_grad_(False)
    return nn.Sequential(
        first, nn.BatchNorm1d(6), nn.Dropout(0.3), tied, nn.GELU(), twin, frozen, nn.LayerNorm(6),
        nn.Linear(6, classes),
    )  # fmt: skip


def image(shape: tuple[int, ...], classes: int) -> Any:
    return nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.Flatten(), nn.LazyLinear(classes))


class _Registered(ModelConformance):
    @pytest.fixture(autouse=True)
    def _registered(self, own_folder: Any) -> None:
        del own_folder
        fedhpo_gym.register_model("Net", net, dimensions=[Dimension("width", 4, 32, "int")])
        fedhpo_gym.register_model("Rich", rich)


class TestNet(_Registered):
    model, settings = "Net", {"width": 8}


class TestRich(_Registered):
    model = "Rich"


def test_it_trains_as_a_plain_loop_of_torch() -> None:
    """One client, one batch, one round: a step of `torch.optim.SGD` on the same initial module."""
    from fedhpo_gym.algorithms import get_algorithm
    from fedhpo_gym.core.seeding import stream
    from fedhpo_gym.data.federation import make_federation
    from fedhpo_gym.fl.course import Course
    from fedhpo_gym.fl.engine import CourseBatch
    from fedhpo_gym.fl.models import get_model
    from fedhpo_gym.testing.conformance import made_table

    fedhpo_gym.register_model("Net", net)
    data = made_table()
    federation = make_federation(data, 1, num_clients=1)
    values = {"learning_rate": 0.5, "weight_decay": 0.1, "batch_size": 4096, "step_size": 3}
    batch = CourseBatch(
        {1: federation}, get_model("Net"), get_algorithm("fedavg"), [Course(values, 1.0, 1)]
    )
    batch.advance(1)
    state = batch.snapshot()[0]
    assert state is not None
    torch.manual_seed(int(stream(1, "init").integers(2**63 - 1)))
    plain = net((5,), 2)
    optimizer = torch.optim.SGD(plain.parameters(), 0.5, weight_decay=0.1)
    rows = federation.clients[0][0]
    x = torch.from_numpy(np.asarray(federation.features[rows], dtype=np.float32))
    y = torch.from_numpy(federation.labels[rows])
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
    for name, value in plain.state_dict().items():
        np.testing.assert_allclose(state.parameters[name][0], value.numpy(), rtol=2e-4, atol=2e-6)


def test_frozen_parameters_stay_and_tied_ones_stay_tied() -> None:
    from fedhpo_gym.data.federation import make_federation
    from fedhpo_gym.fl.models import get_model
    from fedhpo_gym.testing.conformance import made_table

    fedhpo_gym.register_model("Rich", rich)
    model: Any = get_model("Rich")
    made = model.for_federation(make_federation(made_table(), 1), torch.device("cpu"))
    names = set(made.init(np.random.default_rng(0)))
    assert "6.weight" not in names, "it is frozen"
    assert "5.weight" not in names, "it is that of layer 3"
    assert made.buffers == {"1.running_mean", "1.running_var"}
    assert made.norms == {*made.buffers, "1.weight", "1.bias", "7.weight", "7.bias"}


def test_its_ids_price_what_a_configuration_is_large() -> None:
    dimensions = [Dimension("width", 4, 32, "int", log=True, bins=4)]
    ids = fedhpo_gym.register_model("Net", net, ["LR-BreastCancer", "LR-TunaUnseen"], dimensions)
    assert ids == ("FedHPO-Net-BreastCancer-v1", "FedHPO-Net-TunaUnseen-v1")
    task = get_task("Net-BreastCancer")
    assert task.space.names[-1] == "width"
    assert task.num_parameters == (30 + 1) * 32 + (32 + 1) * 2
    assert task.parameters_of({"width": 4}) == (30 + 1) * 4 + (4 + 1) * 2
    assert pickle.loads(pickle.dumps(task)) == task
    fidelity = {"round": 2, "client_sample_rate": 1.0}
    env = gym.make(ids[0], fidelity=fidelity, seed=1)
    env.reset(seed=0)
    env.action_space.seed(0)
    twin = copy.deepcopy(env)
    action = env.action_space.sample()
    info = env.step(action)[-1]
    assert math.isfinite(info["objectives"]["val_loss"])
    assert twin.step(action)[-1]["objectives"] == info["objectives"]
    course = gym.make("FedHPO-DAC-Net-BreastCancer-v1", horizon=5)
    course.reset(seed=0)
    assert math.isfinite(course.step(course.action_space.sample())[1])


def test_neither_a_neighbour_nor_a_hash_seed_changes_it(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    """A module may change its input in place, and draw when it is evaluated."""
    (tmp_path / "odd.py").write_text(
        "import torch, fedhpo_gym\n"
        "class Odd(torch.nn.Sequential):\n"
        "    def forward(self, x): return super().forward(x.add_(0.1)) + torch.rand(1)\n"
        "def build(shape, classes):\n"
        "    hidden = torch.nn.Linear(*shape, 8)\n"
        "    return Odd(hidden, torch.nn.Tanh(), torch.nn.Linear(8, classes))\n"
        "fedhpo_gym.register_model('Odd', build, ['LR-BreastCancer'])\n",
        encoding="utf-8",
    )
    code = """
import odd, gymnasium as gym, numpy as np
made = dict(backend="raw", seed=1, fidelity=dict(round=3, client_sample_rate=1.0))
many = gym.make_vec("FedHPO-Odd-BreastCancer-v1", num_envs=3, **made)
many.reset(seed=0)
moves = (np.linspace(-0.9, 0.9, 3)[:, None] * np.ones(4)).astype(np.float32)
told = many.step(moves)[4]["objectives"]["val_loss"]
for move, loss in zip(moves, told):
    env = gym.make("FedHPO-Odd-BreastCancer-v1", **made)
    env.reset(seed=0)
    assert env.step(move)[4]["objectives"]["val_loss"] == loss
course = gym.make("FedHPO-DAC-Odd-BreastCancer-v1", horizon=4, rounds_per_step=1)
course.reset(seed=5)
print({k: v.tolist() for k, v in course.step(course.action_space.low)[0].items()}, told)
"""
    told = {
        run_python(code, {"PYTHONHASHSEED": seed, "PYTHONPATH": str(tmp_path)})
        for seed in ("1", "2")
    }
    assert len(told) == 1


class Cut(nn.Linear):
    """Leaves torch on its way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(super().forward(x).numpy())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda _, __: 3, "must return a torch.nn.Module, got 3"),
        (lambda shape, _: nn.Linear(*shape, 7), r"returns \(rows, 2\) logits, got \(2, 7\)"),
        (lambda _, classes: nn.LazyLinear(classes), "got the lazy"),
        (
            lambda shape, classes: nn.Linear(*shape, classes).double(),
            "of float32, got torch.float64",
        ),
        (lambda *_: nn.Identity(), "a module with parameters to train, got none"),
        (lambda shape, classes: nn.Linear(*shape, classes).half(), "of float32, got torch.float16"),
        (lambda shape, classes: Cut(*shape, classes), "Can't call numpy"),
        (
            lambda shape, classes: nn.Linear(shape[0] + 1, classes),
            "can differentiate, but it raised",
        ),
    ],
)
def test_what_is_no_classifier_is_refused_by_name(build: Any, words: str) -> None:
    fedhpo_gym.register_model("Net", build, ["LR-BreastCancer"])
    with pytest.raises(InvalidArgumentError, match=words):
        gym.make("FedHPO-Net-BreastCancer-v1")
    with pytest.raises(InvalidArgumentError, match="none of this package, got 'CNN'"):
        fedhpo_gym.register_model("CNN", net)
    assert [*REGISTERED] == ["Net"]
    with pytest.raises(InvalidArgumentError, match="must not begin with one of"):
        fedhpo_gym.register_model("DAC-LR", net, ["LR-BreastCancer"])


def test_an_environment_in_mid_episode_is_pickled(shared_datasets: Any) -> None:
    del shared_datasets
    fedhpo_gym.register_model("Net", net, ["LR-BreastCancer"])
    env: Any = gym.make("FedHPO-DAC-Net-BreastCancer-v1", horizon=20, disable_env_checker=True)
    env.reset(seed=0)
    action = np.full(env.action_space.shape, -0.5, dtype=np.float32)
    env.step(action)
    twin = pickle.loads(pickle.dumps(env))
    assert twin.step(action)[4]["objectives"] == env.step(action)[4]["objectives"]
