"""Plain FedAvg of a graph convolutional network, with dense matrices and torch's autograd.

It shares the engine's draws (clients, minibatches, dropout, initial weights), not its arithmetic.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.graph_federations import GraphFederation
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import FULL_BATCH, Course
from plain_draws import client_order, draw_round

HIDDEN = 64


class PlainGCN(torch.nn.Module):
    """A (D^-1/2 (A + I) D^-1/2) X W + b, dropout, ReLU, and once more."""

    def __init__(self, federation: GraphFederation) -> None:
        super().__init__()
        rng = stream(federation.seed, "init")
        shapes = [(federation.features.shape[1], HIDDEN), (HIDDEN, federation.num_classes)]
        drawn = [rng.uniform(-(b := np.sqrt(6 / sum(s))), b, s) for s in shapes]
        self.weights = torch.nn.ParameterList(torch.tensor(w, dtype=torch.float32) for w in drawn)
        self.biases = torch.nn.ParameterList(torch.zeros(shape[1]) for shape in shapes)

    def forward(self, adjacency: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = adjacency @ x @ self.weights[0] + self.biases[0]
        hidden = (hidden if mask is None else hidden * mask).relu()
        out: Tensor = adjacency @ hidden @ self.weights[1] + self.biases[1]
        return out


def dropout_mask(rng: np.random.Generator, near: NDArray[np.bool_], width: int, p: float) -> Tensor:
    """The engine's mask: drawn for the neighbours of training nodes, irrelevant elsewhere."""
    mask = np.zeros((len(near), HIDDEN), dtype=np.float32)
    mask[near] = (rng.random((width, HIDDEN), dtype=np.float32) > p)[: near.sum()] / (1 - p)
    return torch.from_numpy(mask)


def plain_gcn(
    federation: GraphFederation, course: Course, rounds: int, mu: float = 0.0
) -> NDArray[np.float64]:
    """Return (rounds, clients, splits, metrics) learning curves of one course."""
    config = course.configuration
    model = PlainGCN(federation)
    graphs = []
    for client in range(federation.num_clients):
        nodes = federation.client_nodes(client)
        adjacency = federation.client_adjacency(client)[np.arange(len(nodes))]
        train = np.searchsorted(nodes, federation.clients[client][0])
        near = (adjacency[train] > 0).any(0)
        graphs.append((nodes, torch.from_numpy(adjacency), near))
    width = max(near.sum() for *_, near in graphs)
    x, y = torch.tensor(federation.features), torch.tensor(federation.labels)
    sampled = Fidelity(0, course.client_sample_rate).sampled_clients(federation.num_clients)
    dropout, curves = config.get("dropout", 0.0), []
    for index in range(rounds):
        clients = np.sort(client_order(course.seed, index, federation.num_clients)[:sampled])
        locals_, sizes = [], []
        received = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        for client in clients:
            nodes, adjacency, near = graphs[client]
            local = copy.deepcopy(model)
            rng = stream(federation.seed, "local training", index, int(client))
            optimizer = torch.optim.SGD(
                local.parameters(),
                config["learning_rate"] * config.get("rate_decay", 1.0) ** (index / (rounds - 1)),
                config.get("momentum", 0.0),
                weight_decay=config["weight_decay"],
            )
            size = course.value("batch_size", FULL_BATCH)
            epochs = int(config["step_size"])
            drawn = draw_round(federation, index, np.array([client]), size, epochs)
            for rows, count in zip(drawn.rows[:, 0], drawn.sizes[:, 0], strict=True):
                rows = rows[:count]
                optimizer.zero_grad()
                mask = dropout_mask(rng, near, width, dropout) if dropout else None
                logits = local(adjacency, x[nodes], mask)[np.searchsorted(nodes, rows)]
                loss = functional.cross_entropy(logits, y[rows])
                own = torch.nn.utils.parameters_to_vector(local.parameters())
                (loss + mu / 2 * (own - received).square().sum()).backward()
                clip = config.get("clip_norm", float("inf"))
                torch.nn.utils.clip_grad_norm_(local.parameters(), clip)
                optimizer.step()
            locals_.append(torch.nn.utils.parameters_to_vector(local.parameters()).detach())
            sizes.append(len(federation.clients[client][0]))
        share = torch.tensor(sizes, dtype=torch.float32) / sum(sizes)
        torch.nn.utils.vector_to_parameters(
            (torch.stack(locals_) * share[:, None]).sum(0), model.parameters()
        )
        curves.append(_evaluate(model, federation, graphs, x, y))
    return np.array(curves)


@torch.no_grad()
def _evaluate(
    model: PlainGCN, federation: GraphFederation, graphs: list, x: Tensor, y: Tensor
) -> list[list[list[float]]]:
    table: list[list[list[float]]] = []
    for (nodes, adjacency, _), client in zip(graphs, federation.clients, strict=True):
        table.append([])
        logits = model(adjacency, x[nodes])
        for rows in client:
            own = logits[np.searchsorted(nodes, rows)]
            guess = own.argmax(1)
            f1 = f1_score(y[rows], guess, average="macro", zero_division=0)
            loss = functional.cross_entropy(own, y[rows]).item()
            table[-1].append([loss, (guess == y[rows]).float().mean().item(), f1])
    return table
