"""The problem of the tuning-cost benchmark is DeepOBS's, and its optimizers are the known ones."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bowl(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("quadratic_deep")


def test_the_bowl_is_that_of_deepobs(bowl: ModuleType) -> None:
    # Numbers computed once from its definition, in another program.
    made = bowl.Bowl.make()
    assert np.trace(made.hessian) == pytest.approx(477.61228, abs=1e-5)
    points = [np.ones(100), np.zeros(100), made.train.mean(axis=0), made.test.mean(axis=0)]
    losses = made.loss(np.stack(points), made.test)
    assert losses == pytest.approx([353.44677, 86.92642, 87.04601, 86.87353], abs=1e-5)
    one = [0.5 * (points[0] - x) @ made.hessian @ (points[0] - x) for x in made.test[:5]]
    assert made.loss(points[0][None], made.test[:5])[0] == pytest.approx(np.mean(one))


@pytest.mark.parametrize("name", ["SGD-MW", "Adagrad", "Adam", "Adam-WCD"])
def test_optimizers_step_as_those_of_torch(bowl: ModuleType, name: str) -> None:
    torch = pytest.importorskip("torch")
    optimizer = bowl.OPTIMIZERS[name]
    values = bowl.draw(optimizer, 3, 0, name)
    rule = bowl.RULES[optimizer.rule](values, (3, 4))
    theirs = [torch.ones(4, requires_grad=True) for _ in range(3)]
    made = [_torch_optimizer(torch, optimizer.rule, theirs[n], values, n) for n in range(3)]
    ours = np.ones((3, 4), dtype=np.float32)
    scale = np.array([3.0, 1.0, 0.3, 0.1], dtype=np.float32)
    for _ in range(5):
        gradient = ours * scale + values["weight_decay"][:, None] * ours
        ours = ours - values["learning_rate"][:, None] * rule(gradient)
        for theta, one in zip(theirs, made, strict=True):
            one.zero_grad()
            (0.5 * (torch.tensor(scale) * theta * theta).sum()).backward()
            one.step()
    np.testing.assert_allclose(ours, [t.detach().numpy() for t in theirs], rtol=2e-4, atol=1e-6)


def _torch_optimizer(torch, rule, theta, values, n):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    picked = {name: float(value[n]) for name, value in values.items()}
    shared = {"lr": picked["learning_rate"], "weight_decay": picked["weight_decay"]}
    if rule == "sgd":
        return torch.optim.SGD([theta], momentum=picked["momentum"], **shared)
    if rule == "adagrad":
        return torch.optim.Adagrad([theta], **shared)
    betas = (picked["beta1"], picked["beta2"])
    return torch.optim.Adam([theta], betas=betas, eps=picked["epsilon"], **shared)


def test_a_run_that_leaves_the_finite_numbers_has_its_first_values(bowl: ModuleType) -> None:
    values = bowl.draw(bowl.OPTIMIZERS["SGD-LR"], 2, 0, "x")
    values["learning_rate"] = np.array([0.01, 10.0], dtype=np.float32)
    validation, test = bowl.train(bowl.Bowl.make(), "sgd", values, 0)
    assert validation.shape == (2, 101)
    assert validation[0, -1] < 0.3 * validation[0, 0]
    assert np.isfinite(validation).all()
    assert test[1, -1] == test[1, 0]
