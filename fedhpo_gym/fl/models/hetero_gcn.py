"""A graph convolutional network whose clients classify graphs of different kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.graph_federations import HeteroFederation
from fedhpo_gym.data.records import Features
from fedhpo_gym.fl.models.gcn import HIDDEN, glorot, where_above
from fedhpo_gym.fl.models.torch_model import Minibatch, Parameters, TorchModel

ABSENT = -1e30
"""Logit of a class that a client does not have."""


class HeteroGCN(TorchModel):
    """Linear encoder, two graph convolutions of 64 units, mean over the nodes, linear classifier.

    ReLU follows the first convolution and the mean. Encoder and classifier stay with the client;
    the convolutions are averaged. A row of a minibatch is the number of a graph.

    Parameters: `encoder` (1, items, features + 1, 64), its first row the bias, of which a client
    with fewer features uses the first rows; `weight1`, `weight2` (1, items, 64, 64) with `bias1`,
    `bias2`; `weight3` (1, items, 64, classes) with `bias3`, of which a client with fewer classes
    uses the first columns.
    """

    personal = frozenset({"encoder", "weight3", "bias3"})

    def __init__(self, federation: HeteroFederation, device: torch.device) -> None:
        self.device = device
        self._clients = [_Client(federation, i, device) for i in range(federation.num_clients)]
        self._num_inputs = max(federation.num_features)
        self._num_classes = federation.num_classes
        self._first = federation.first
        owner = np.repeat(np.arange(federation.num_clients), np.diff(federation.first))
        self._owner = torch.from_numpy(owner).to(device)
        self.num_parameters = sum(v.size for v in self.init(np.random.default_rng(0)).values())

    @classmethod
    def for_federation(
        cls, federation: Federation, device: torch.device, **shape: Any
    ) -> HeteroGCN:
        del shape
        if not isinstance(federation, HeteroFederation):
            raise InvalidArgumentError(
                "the model Hetero needs a `federation` whose clients have sets of graphs of their "
                f'own, got a {type(federation).__name__}; use the partition "task"'
            )
        return cls(federation, device)

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw weights as `glorot` does; biases are zero. Clients start alike."""
        width, classes = self._num_inputs, self._num_classes
        bias = np.zeros((1, HIDDEN), dtype=np.float32)
        return {
            "encoder": np.concatenate([bias, glorot(rng, width, HIDDEN)])[None],
            "weight1": glorot(rng, HIDDEN, HIDDEN)[None],
            "bias1": bias,
            "weight2": glorot(rng, HIDDEN, HIDDEN)[None],
            "bias2": bias,
            "weight3": glorot(rng, HIDDEN, classes)[None],
            "bias3": np.zeros((1, classes), dtype=np.float32),
        }

    def inputs(self, features: Features) -> Tensor:
        """Number the graphs, (n, 1): the model holds them."""
        return torch.arange(len(features), device=self.device)[:, None]

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        owner = self._owner[batch.x[:, 0, 0]].tolist()
        decay, sizes = batch.decay.tolist(), batch.sizes.tolist()
        joined: dict[int, _GraphBatch] = {}
        for item, client in enumerate(owner):
            if size := sizes[item]:
                if client not in joined:  # items of one client share their minibatch
                    graphs = batch.x[item, :size, 0] - int(self._first[client])
                    joined[client] = self._clients[client].join(graphs)
                _step(
                    self._clients[client].own(parameters, item),
                    joined[client],
                    batch.targets[: self._clients[client].num_classes, item, :size].t(),
                    batch.rates[item, :size, None],
                    decay[item],
                )

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """Give classes that a graph's client does not have `ABSENT`."""
        items = parameters["bias3"].shape[1]
        out = torch.full((self._num_classes, items, len(x)), ABSENT, device=self.device)
        owner = self._owner[x[:, 0]]
        for number in np.unique(owner.cpu().numpy()).tolist():
            client, rows = self._clients[number], torch.nonzero(owner == number)[:, 0]
            joined = client.join(x[rows, 0] - int(self._first[number]))
            for item in range(items):
                logits = _forward(client.own(parameters, item), joined)[-1]
                out[: client.num_classes, item, rows] = logits.t()
        return out


@dataclass(frozen=True, eq=False)
class _GraphBatch:
    """Some graphs of a client, end to end: g graphs with n nodes."""

    nodes: Tensor  # (n, features + 1) normalised adjacency times (ones, features)
    pool: Tensor  # (n,) weight of a node in the mean of the second convolution over its graph
    graph: Tensor  # (n,) graph of each node
    bounds: Tensor  # (g + 1,) int32, graph i has the nodes bounds[i]..bounds[i + 1]

    def mean(self, values: Tensor) -> Tensor:
        """Return the (g, k) means over each graph of adjacency times (n, k) values."""
        every = torch.arange(len(values), dtype=torch.int32, device=values.device)
        pooled: Tensor = torch.embedding_bag(
            values, every, self.bounds, False, 0, False, self.pool, True
        )[0]
        return pooled


class _Client:
    """The graphs of one client."""

    def __init__(self, federation: HeteroFederation, client: int, device: torch.device) -> None:
        own, adjacency = federation.sets[client], federation.adjacency[client]
        every, sizes = np.arange(len(adjacency)), np.diff(own.offsets)
        # No node is without an entry: it is its own neighbour. The matrix is symmetric.
        sums = np.add.reduceat(adjacency.values, adjacency.indptr[:-1])
        propagated = np.hstack([sums[:, None], federation.propagated[client][every]])
        pool = sums / sizes[own.graph_of_node]
        self.num_classes = own.num_classes
        self._nodes = torch.from_numpy(propagated.astype(np.float32)).to(device)
        self._pool = torch.from_numpy(pool.astype(np.float32)).to(device)
        self._start = torch.from_numpy(own.offsets[:-1].copy()).to(device)
        self._size = torch.from_numpy(sizes).to(device)

    def join(self, graphs: Tensor) -> _GraphBatch:
        """Lay some of the graphs end to end."""
        size = self._size[graphs]
        end = size.cumsum(0)
        graph = torch.repeat_interleave(size)
        index = torch.arange(len(graph), device=size.device)
        index = index - (end - size)[graph] + self._start[graphs][graph]
        bounds = torch.nn.functional.pad(end, (1, 0)).int()
        return _GraphBatch(self._nodes[index], self._pool[index], graph, bounds)

    def own(self, parameters: Parameters, item: int) -> Parameters:
        """Return views of the parameters of one item that the client uses, without padding."""
        values = {name: value[0, item] for name, value in parameters.items()}
        values["encoder"] = values["encoder"][: self._nodes.shape[1]]
        for name in ("weight3", "bias3"):
            values[name] = values[name][..., : self.num_classes]
        return values


def _forward(own: Parameters, graphs: _GraphBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden units of nodes, their means, the rectified second layer, and the logits."""
    first = own["encoder"] @ own["weight1"]  # both are linear
    hidden = torch.addmm(own["bias1"], graphs.nodes, first).relu_()
    mean = graphs.mean(hidden)
    pooled = torch.addmm(own["bias2"], mean, own["weight2"]).relu_()
    return hidden, mean, pooled, torch.addmm(own["bias3"], pooled, own["weight3"])


def _step(
    own: Parameters, graphs: _GraphBatch, targets: Tensor, rates: Tensor, decay: float
) -> None:
    """Take one SGD step of one course on one client in place; `rates` include the learning rate."""
    hidden, mean, pooled, logits = _forward(own, graphs)
    residual = torch.softmax(logits, 1).sub_(targets).mul_(rates)
    back = where_above(residual @ own["weight3"].t(), pooled, 0.0)
    inner = (back @ own["weight2"].t())[graphs.graph].mul_(graphs.pool[:, None])
    inner = where_above(inner, hidden, 0.0)
    first = graphs.nodes.t() @ inner
    gradients = {
        "encoder": first @ own["weight1"].t(),
        "weight1": own["encoder"].t() @ first,
        "bias1": inner.sum(0),
        "weight2": mean.t() @ back,
        "bias2": back.sum(0),
        "weight3": pooled.t() @ residual,
        "bias3": residual.sum(0),
    }
    for name, gradient in gradients.items():
        own[name].mul_(decay).sub_(gradient)
