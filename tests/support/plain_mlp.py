"""Plain federated training of the perceptron for one course: `torch.nn`, autograd, `torch.optim`.

An independent implementation to check the engine against: it shares only the draws (federation,
client order, minibatches, initial weights), not the arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import nn
from torch.nn.functional import cross_entropy

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import FULL_BATCH, Course
from fedhpo_gym.fl.models import Perceptron, PlainPerceptron
from plain_draws import client_order, draw_round

State = dict[str, torch.Tensor]


def plain_mlp(
    federation: Federation, course: Course, rounds: int, normalised: bool = True
) -> NDArray[np.float64]:
    """Return (rounds, clients, splits, metrics) learning curves of one course."""
    config = course.configuration
    momentum = config.get("server_momentum", 0.0)
    rate = config.get("server_learning_rate", 1.0)
    shape = int(config["model_depth"]), int(config["model_width"])
    model = initial_model(federation, *shape, normalised)
    buffer: State = {}
    curves = []
    sampled = Fidelity(0, course.client_sample_rate).sampled_clients(federation.num_clients)
    for index in range(rounds):
        clients = np.sort(client_order(course.seed, index, federation.num_clients)[:sampled])
        sizes = [len(federation.clients[client][0]) for client in clients]
        states = [_train_locally(federation, course, model, index, client) for client in clients]
        average = {
            name: sum(s[name] * (n / sum(sizes)) for s, n in zip(states, sizes, strict=True))
            for name in states[0]
        }
        for name, value in dict(model.named_parameters()).items():
            step = value.detach() - average[name]
            buffer[name] = momentum * buffer[name] + step if name in buffer else step
            average[name] = value.detach() - rate * buffer[name]
        model.load_state_dict(average)
        curves.append(_evaluate(model, federation))
    return np.array(curves)


def initial_model(
    federation: Federation, depth: int, width: int, normalised: bool = True
) -> nn.Sequential:
    """Return the module with the weights that the engine's courses start from."""
    inputs, classes = federation.features.shape[1], federation.num_classes
    engine = (Perceptron if normalised else PlainPerceptron)(inputs, classes, depth, width)
    drawn = engine.init(stream(federation.seed, "init"))
    layers: list[nn.Module] = []
    for layer in range(1, depth + 1):
        linear = nn.Linear(inputs, width)
        _set(linear, drawn[f"weight{layer}"][0].T, drawn[f"bias{layer}"][0])
        layers += [linear, *([nn.BatchNorm1d(width)] if normalised else []), nn.ReLU()]
        inputs = width
    out = nn.Linear(width, classes)
    _set(out, drawn[f"weight{depth + 1}"][0], drawn[f"bias{depth + 1}"][0])
    return nn.Sequential(*layers, out)


@torch.no_grad()
def _set(linear: nn.Linear, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> None:
    linear.weight.copy_(torch.from_numpy(weight))
    linear.bias.copy_(torch.from_numpy(bias))


def _train_locally(
    federation: Federation, course: Course, model: nn.Sequential, index: int, client: int
) -> State:
    config: Mapping[str, float] = course.configuration
    x, y = torch.from_numpy(federation.features), torch.from_numpy(federation.labels)
    local = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(
        local.parameters(), config["learning_rate"], weight_decay=config["weight_decay"]
    )
    batches = draw_round(
        federation,
        index,
        np.array([client]),
        course.value("batch_size", FULL_BATCH),
        int(config["step_size"]),
    )
    for rows, count in zip(batches.rows[:, 0], batches.sizes[:, 0], strict=True):
        rows = rows[:count]
        if len(rows) < 2 and any(isinstance(one, nn.BatchNorm1d) for one in local):
            continue  # torch's BatchNorm refuses it
        optimizer.zero_grad()
        loss = cross_entropy(local(x[rows]), y[rows])
        if "mu" in config:
            pairs = zip(local.parameters(), model.parameters(), strict=True)
            loss = loss + config["mu"] / 2 * sum(((a - b.detach()) ** 2).sum() for a, b in pairs)
        loss.backward()
        optimizer.step()
    return local.state_dict()


@torch.no_grad()
def _evaluate(model: nn.Sequential, federation: Federation) -> list[list[list[float]]]:
    x, y = torch.from_numpy(federation.features), torch.from_numpy(federation.labels)
    model.eval()
    table: list[list[list[float]]] = []
    for client in federation.clients:
        table.append([])
        for rows in client:
            logits = model(x[rows])
            guess = logits.argmax(1)
            f1 = f1_score(y[rows], guess, average="macro", zero_division=0)
            loss = cross_entropy(logits, y[rows]).item()
            table[-1].append([loss, (guess == y[rows]).float().mean().item(), f1])
    return table
