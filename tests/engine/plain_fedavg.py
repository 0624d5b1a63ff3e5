"""Plain FedAvg for one course of logistic regression, with torch's own layers and optimizer.

An independent implementation to check the engine against: it shares only the draws (federation,
client order, minibatches, initial weights), not the arithmetic.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch.nn.functional import cross_entropy

from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.minibatches import client_order, draw_round
from fedhpo_gym.fl.packing import FULL_BATCH, Course
from fedhpo_gym.schema import Fidelity
from fedhpo_gym.seeding import stream


def plain_fedavg(
    federation: Federation,
    course: Course,
    rounds: int,
    server_momentum: float = 0.0,
    server_learning_rate: float = 1.0,
) -> NDArray[np.float64]:
    """Return (rounds, clients, splits, metrics) learning curves of one course."""
    config = course.configuration
    model = _initial_model(federation)
    x, y = torch.from_numpy(federation.features), torch.from_numpy(federation.labels)
    buffer, curves = None, []
    sampled = Fidelity(0, course.client_sample_rate).sampled_clients(federation.num_clients)
    for index in range(rounds):
        clients = np.sort(client_order(course.seed, index, federation.num_clients)[:sampled])
        locals_, sizes = [], []
        for client in clients:
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(
                local.parameters(), config["learning_rate"], weight_decay=config["weight_decay"]
            )
            batches = draw_round(
                federation,
                index,
                np.array([client]),
                course.value("batch_size", FULL_BATCH),
                config["step_size"],
            )
            for rows, weights in zip(batches.rows[:, 0], batches.weights[:, 0], strict=True):
                rows = rows[weights > 0]
                optimizer.zero_grad()
                cross_entropy(local(x[rows]), y[rows]).backward()
                optimizer.step()
            locals_.append(torch.nn.utils.parameters_to_vector(local.parameters()).detach())
            sizes.append(len(federation.clients[client][0]))
        share = torch.tensor(sizes, dtype=torch.float32) / sum(sizes)
        average = (torch.stack(locals_) * share[:, None]).sum(0)
        old = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        buffer = old - average if buffer is None else server_momentum * buffer + (old - average)
        torch.nn.utils.vector_to_parameters(old - server_learning_rate * buffer, model.parameters())
        curves.append(_evaluate(model, federation, x, y))
    return np.array(curves)


def _initial_model(federation: Federation) -> torch.nn.Linear:
    features, classes = federation.features.shape[1], federation.num_classes
    bound = 1 / np.sqrt(features)
    drawn = stream(federation.seed, "init").uniform(-bound, bound, (classes, features + 1))
    model = torch.nn.Linear(features, classes)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(drawn[:, :-1]))
        model.bias.copy_(torch.from_numpy(drawn[:, -1]))
    return model


@torch.no_grad()
def _evaluate(
    model: torch.nn.Linear, federation: Federation, x: torch.Tensor, y: torch.Tensor
) -> list[list[list[float]]]:
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
