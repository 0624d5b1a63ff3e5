"""One step of every client, written plainly, in float64 and differentiated by autograd."""

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.data.graph_federations import GraphFederation, HeteroFederation
from fedhpo_gym.fl.models.bert import WORDS, BertTiny
from fedhpo_gym.fl.models.cnn import EPSILON, MAX_NORM, MEAN, PADDING, STD
from fedhpo_gym.fl.models.torch_model import TorchModel
from fedhpo_gym.fl.self_check import Case

Arrays = Mapping[str, NDArray[np.float32]]
Values = Mapping[str, Tensor]


def exact_step(case: Case, start: Arrays, rate: float) -> dict[str, NDArray[np.float64]]:
    """Return by how much one step on all rows of every client moves the server's parameters."""
    federation, logits = case.federation, LOGITS[case.family]
    steps = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in start.items()}
    sizes = federation.num_samples[:, 0]
    for client, size in enumerate(sizes.tolist()):
        leaves = {
            name: torch.from_numpy(value).double().requires_grad_() for name, value in start.items()
        }
        rows = federation.clients[client][0]
        with torch.enable_grad():
            labels = torch.from_numpy(np.asarray(federation.labels[rows]))
            loss = functional.cross_entropy(logits(case, leaves, client, rows), labels)
        raw_gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        gradients = {n: g for n, g in zip(leaves, raw_gradients, strict=True) if g is not None}
        scale = rate * size / sizes.sum()
        if case.family == "CNN":  # the only one that shortens long gradients
            length = float(torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt())
            scale *= min(1.0, MAX_NORM / length)
        for name, gradient in gradients.items():
            steps[name] -= scale * gradient
    kind = cast("type[TorchModel]", case.model)
    model = kind.for_federation(
        federation, torch.device("cpu"), **dict.fromkeys(kind.architecture, 0)
    )
    left_out = model.buffers | model.personal
    return {
        name: value.numpy()
        for name, value in steps.items()
        if name not in left_out and not name.endswith(_WITHOUT.get(case.family, ()))
    }


_WITHOUT = {"CNN": ("bias1", "bias2"), "BERT": ("attention.self.key.bias",)}
"""How parameters end that normalisation or softmax takes out again: their gradient is rounding."""


def _convolutional(case: Case, p: Values, _: int, rows: NDArray[np.int64]) -> Tensor:
    pixels = torch.from_numpy(np.asarray(case.federation.features[rows]))
    x = ((pixels.double() / 255.0 - MEAN) / STD)[:, None]
    for layer in ("1", "2"):
        x = functional.conv2d(x, p["kernel" + layer], p["bias" + layer], padding=PADDING)
        x = functional.batch_norm(
            x, None, None, p["scale" + layer], p["shift" + layer], training=True, eps=EPSILON
        )
        x = functional.max_pool2d(x, 2).relu()
    flat = x.permute(0, 2, 3, 1).flatten(1)  # places first, channels last
    hidden = functional.linear(flat, p["weight3"], p["bias3"]).relu()
    return functional.linear(hidden, p["weight4"], p["bias4"])


def _graph(case: Case, p: Values, client: int, rows: NDArray[np.int64]) -> Tensor:
    federation = cast(GraphFederation, case.federation)
    nodes = federation.client_nodes(client)
    edges = torch.from_numpy(federation.client_adjacency(client)[np.arange(len(nodes))]).double()
    x = torch.from_numpy(np.asarray(federation.features[nodes])).double()
    hidden = (edges @ x @ p["weight1"][:-1] + p["weight1"][-1]).relu()
    out = edges @ hidden @ p["weight2"] + p["bias2"]
    return out[np.searchsorted(nodes, rows)]


def _graphs(case: Case, p: Values, client: int, rows: NDArray[np.int64]) -> Tensor:
    federation = cast(HeteroFederation, case.federation)
    graph_set, width = federation.sets[client], federation.num_features[client]
    every = np.arange(len(graph_set.node_features))
    edges = torch.from_numpy(federation.adjacency[client][every]).double()
    x = torch.from_numpy(graph_set.node_features[every]).double()
    x = x @ p["encoder"][1 : width + 1] + p["encoder"][0]
    x = (edges @ x @ p["weight1"] + p["bias1"]).relu()
    x = edges @ x @ p["weight2"] + p["bias2"]
    graphs = rows - federation.first[client]
    spans = [slice(graph_set.offsets[g], graph_set.offsets[g + 1]) for g in graphs.tolist()]
    means = torch.stack([x[span].mean(0) for span in spans]).relu()
    classes = graph_set.num_classes
    return means @ p["weight3"][:, :classes] + p["bias3"][:classes]


def _transformer(case: Case, p: Values, _: int, rows: NDArray[np.int64]) -> Tensor:
    tokens = torch.from_numpy(np.asarray(case.federation.features[rows]))
    kind = cast("type[BertTiny]", case.model)
    model = kind(case.federation.num_classes, torch.device("cpu"))
    return model._forward(dict(p), p[WORDS][tokens.long()], tokens, lambda x: x)


LOGITS: Mapping[str, Callable[[Case, Values, int, NDArray[np.int64]], Tensor]] = {
    "CNN": _convolutional,
    "GNN": _graph,
    "Hetero": _graphs,
    "BERT": _transformer,
}
"""The plain form of a family, where it has one."""
