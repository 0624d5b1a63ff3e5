"""Plain models: the paper's convolutional network, the perceptron and a graph network of torch's.

They share the engine's draws (clients, minibatches, dropout, initial weights), not its arithmetic.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.graph_federations import GraphFederation
from fedhpo_gym.data.records import Dataset, make_dataset
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import FULL_BATCH, Course
from fedhpo_gym.fl.models.cnn import MAX_NORM, MEAN, STD, ConvNet
from fedhpo_gym.fl.models.mlp import Perceptron, PlainPerceptron
from plain_course import Network, client_order, draw_round, plain_course

Drawn = dict[str, NDArray[np.float32]]

LAYERS = {
    "kernel1": "0.weight", "bias1": "0.bias", "scale1": "1.weight", "shift1": "1.bias",
    "mean1": "1.running_mean", "variance1": "1.running_var",
    "kernel2": "4.weight", "bias2": "4.bias", "scale2": "5.weight", "shift2": "5.bias",
    "mean2": "5.running_mean", "variance2": "5.running_var",
    "weight3": "9.weight", "bias3": "9.bias", "weight4": "11.weight", "bias4": "11.bias",
}  # fmt: skip


class Rows(nn.Module):
    """Flattens feature maps with the channels last, the order of our weights."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.permute(0, 2, 3, 1).flatten(1)


def plain_network(drawn: Drawn, channels: int) -> nn.Sequential:
    """Return the network with given parameters."""
    hidden, flat = drawn["weight3"].shape[1:]
    network = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        Rows(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, drawn["bias4"].shape[1]),
    )  # fmt: skip
    state = network.state_dict()
    for ours, theirs in LAYERS.items():
        state[theirs] = torch.from_numpy(drawn[ours][0])
    network.load_state_dict(state)
    return network


def images(pixels: NDArray[np.uint8]) -> Tensor:
    """Return normalised (n, channels, height, width) images of (n, height, width, ...) pixels."""
    scaled = torch.from_numpy(pixels).float() / 255.0
    scaled = scaled[:, None] if scaled.ndim == 3 else scaled.permute(0, 3, 1, 2)
    return (scaled - MEAN) / STD


NORMS = ("scale1", "shift1", "mean1", "variance1", "scale2", "shift2", "mean2", "variance2")


def _convolutional(federation: Federation) -> nn.Sequential:
    model = ConvNet.for_federation(federation, torch.device("cpu"))
    drawn = model.init(stream(federation.seed, "init"))
    return plain_network(drawn, *(federation.features.shape[3:] or (1,)))


CONVOLUTIONAL = Network(_convolutional, images, tuple(LAYERS[name] for name in NORMS), MAX_NORM)


def small_images(shape: tuple[int, ...] = (8, 8)) -> Dataset:
    """Return 66 images of 3 classes by 4 users of 24, 20, 17 and 5 images."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(4), (24, 20, 17, 5))
    labels = rng.integers(3, size=len(users))
    pixels = rng.integers(0, 120, (len(users), *shape), dtype=np.uint8)
    pixels[np.arange(len(users)), labels * 2] += 100
    return make_dataset("small", pixels, labels, 3, users)


def course(
    rate: float = 0.05,
    decay: float = 0.001,
    dropout: float = 0.0,
    batch: int = 4,
    epochs: int = 1,
    sampled: float = 1.0,
    **more: float,
) -> Course:
    """Return a course of seed 1; `more` is what the algorithm reads."""
    configuration = {
        "learning_rate": rate,
        "weight_decay": decay,
        "dropout": dropout,
        "batch_size": batch,
        "step_size": epochs,
        **more,
    }
    return Course(configuration, sampled, 1)


def plain_mlp(
    federation: Federation,
    course: Course,
    rounds: int,
    algorithm: str = "fedavg",
    normalised: bool = True,
) -> list[list[list[list[float]]]]:
    """Return metrics of one course of the perceptron, per round, client and split."""
    shape = (int(course.configuration[name]) for name in ("model_depth", "model_width"))
    made = initial_model(federation, *shape, normalised)
    network = Network(lambda _: made, torch.from_numpy)
    return plain_course(federation, [course] * rounds, algorithm, network=network).metrics


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
