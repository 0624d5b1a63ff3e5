"""Graph convolutional networks of the paper (Appendix D), for one graph or for sets of graphs.

`get_model("GNN")` loads `GCN`, which classifies the nodes of one graph that is split over clients.
`get_model("Hetero")` loads `HeteroGCN`, which classifies graphs of clients with different features
and classes. Steps are written out and not left to autograd, because propagated features are
constant and can be computed once. Rows of minibatches are numbers of nodes or graphs; the model
holds the graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.graph_federations import GraphFederation, HeteroFederation
from fedhpo_gym.data.graphs import from_entries
from fedhpo_gym.data.records import Features, SparseRows
from fedhpo_gym.fl.models.torch_model import Minibatch, Parameters, TorchModel

HIDDEN = 64
"""Hidden units (paper, Appendix D)."""


@dataclass(frozen=True, eq=False)
class _Subgraph:
    """The data of one client for training: m training nodes and their n neighbours."""

    first: SparseMatrix  # (n, inputs + 1) propagated features of the neighbours, and ones
    first_t: SparseMatrix  # its transpose
    second: SparseMatrix  # (m, n) propagation from the neighbours to the training nodes
    second_t: SparseMatrix  # its transpose
    targets: Tensor  # (classes, m) one-hot labels


class GCN(TorchModel):
    """Graph convolution to 64 units, dropout, ReLU, graph convolution (Kipf and Welling, 2017).

    A row of a minibatch is the number of a node: a step takes the mean loss of the nodes in it, on
    the graph of their client. Configurations without `batch_size` take full-batch steps.

    The propagated features of the first layer are constant and nearly all zero, so a step is bound
    by two sparse products; it is written out for one course, whose weights stay in the cache.
    Parameters: `weight1` (1, items, inputs + 1, 64), its last row the bias, `weight2` (1, items,
    64, classes) and `bias2` (1, items, classes).
    """

    hyperparameters: ClassVar[Mapping[str, float]] = {"dropout": 0.0, "clip_norm": math.inf}

    def __init__(self, federation: GraphFederation, device: torch.device) -> None:
        labels = np.eye(federation.num_classes, dtype=np.float32)[federation.labels]
        self.device = device
        self._num_inputs = federation.features.shape[1]
        self._num_classes = federation.num_classes
        self._clients = [
            _subgraph(federation, rows[0], labels, device) for rows in federation.clients
        ]
        position = np.zeros(len(labels), dtype=np.int64)
        for rows in federation.clients:
            position[rows[0]] = np.arange(len(rows[0]))
        self._owner = torch.from_numpy(federation.owner).to(device)
        self._position = torch.from_numpy(position).to(device)
        self._first = SparseMatrix(with_ones(federation.propagated), device)
        self._second = SparseMatrix(federation.adjacency, device)
        self._width = max(client.first.shape[0] for client in self._clients)
        outputs = HIDDEN * self._num_classes + self._num_classes
        self.num_parameters = (self._num_inputs + 1) * HIDDEN + outputs

    @classmethod
    def for_federation(cls, federation: Federation, device: torch.device, **shape: Any) -> GCN:
        del shape
        if not isinstance(federation, GraphFederation):
            raise InvalidArgumentError(
                "the model GNN needs `federation` to be a graph's, got a "
                f'{type(federation).__name__}; partition a graph with "community"'
            )
        return cls(federation, device)

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw weights as `glorot` does; biases are zero."""
        weight1 = np.zeros((1, self._num_inputs + 1, HIDDEN), dtype=np.float32)
        weight1[0, :-1] = glorot(rng, self._num_inputs, HIDDEN)
        return {
            "weight1": weight1,
            "weight2": glorot(rng, HIDDEN, self._num_classes)[None],
            "bias2": np.zeros((1, self._num_classes), dtype=np.float32),
        }

    def inputs(self, features: Features) -> Tensor:
        """Number the nodes, (n, 1): the model holds the graph."""
        return torch.arange(len(features), device=self.device)[:, None]

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        dropout = batch.settings["dropout"].tolist()
        uniforms = None
        if max(dropout) > 0.0:
            uniforms = batch.uniform((self._width, HIDDEN)).to(self.device)
        decay = batch.decay.tolist()
        clip_norm = batch.settings["clip_norm"].tolist()
        owner = self._owner[batch.x[:, 0, 0]].tolist()
        sizes = batch.sizes.tolist()
        # Client after client: its graph stays in the cache.
        for item in sorted(range(len(sizes)), key=owner.__getitem__):
            if size := sizes[item]:
                client = self._clients[owner[item]]
                rates = torch.zeros(client.targets.shape[1], device=self.device)
                rates[self._position[batch.x[item, :size, 0]]] = batch.rates[item, :size]
                _step(
                    {name: value[0, item] for name, value in parameters.items()},
                    client,
                    rates,
                    decay[item],
                    None if uniforms is None or not dropout[item] else uniforms[item],
                    dropout[item],
                    clip_norm[item],
                )

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """Show every node with the edges of its own client alone."""
        out = []
        for item in range(parameters["bias2"].shape[1]):
            weights = {name: value[0, item] for name, value in parameters.items()}
            hidden = (self._first @ weights["weight1"]).relu_()
            out.append(
                (self._second @ (hidden @ weights["weight2"])).add_(weights["bias2"])[x[:, 0]]
            )
        return torch.stack(out).permute(2, 0, 1).contiguous()


def _subgraph(
    federation: GraphFederation,
    train: NDArray[np.int64],
    labels: NDArray[np.float32],
    device: torch.device,
) -> _Subgraph:
    near = np.unique(take_sparse_rows(federation.adjacency, train).indices).astype(np.int64)
    first = with_ones(take_sparse_rows(federation.propagated, near))
    second = take_sparse_rows(federation.adjacency, train, near)
    return _Subgraph(
        SparseMatrix(first, device),
        SparseMatrix(transpose(first), device),
        SparseMatrix(second, device),
        SparseMatrix(transpose(second), device),
        torch.from_numpy(np.ascontiguousarray(labels[train].T)).to(device),
    )


def _step(
    weights: Parameters,
    graph: _Subgraph,
    rates: Tensor,
    decay: float,
    uniforms: Tensor | None,
    dropout: float,
    clip_norm: float,
) -> None:
    """Take one SGD step of one course on one client in place; `rates` include the learning rate."""
    weight1, weight2, bias2 = weights["weight1"], weights["weight2"], weights["bias2"]
    hidden = graph.first @ weight1
    if uniforms is not None:
        hidden = where_above(hidden, uniforms[: len(hidden)], dropout)
    hidden.relu_()
    # Dropout scales units by 1 / keep; applying the factor to smaller matrices is cheaper.
    keep = 1.0 - dropout
    scaled = weight2 / keep
    logits = (graph.second @ (hidden @ scaled)).add_(bias2)
    # Reductions over the few classes are several times as fast along the first axis.
    logits = logits.t().contiguous()
    # Smaller exponentials would be denormal, ten times as slow, and vanish in the sum anyway.
    residual = logits.sub_(logits.amax(0)).clamp_(min=-60.0).exp_()
    residual.mul_(rates / residual.sum(0)).addcmul_(graph.targets, rates, value=-1.0)
    back = graph.second_t @ residual.t().contiguous()
    # Units are zero after dropout and after ReLU; neither kind has a gradient.
    inner = where_above(back @ scaled.t(), hidden, 0.0)
    if math.isfinite(clip_norm):
        parts = (graph.first_t @ inner, hidden.t() @ back / keep, residual.sum(1))
        square = torch.stack([gradient.square().sum() for gradient in parts]).sum().clamp(min=1e-60)
        factor = (clip_norm * rates.sum() / square.sqrt()).clamp(max=1.0)
        for value in (inner, back, residual):
            value.mul_(factor)
    weight2.addmm_(hidden.t(), back, beta=decay, alpha=-1.0 / keep)
    bias2.mul_(decay).sub_(residual.sum(1))
    torch.sub(weight1.mul_(decay), graph.first_t @ inner, out=weight1)


def where_above(values: Tensor, reference: Tensor, threshold: float) -> Tensor:
    """Return the values where a reference is above a threshold, and 0 elsewhere."""
    masked: Tensor = torch.ops.aten.threshold_backward(values, reference, threshold)
    return masked


def glorot(rng: np.random.Generator, fan_in: int, fan_out: int) -> NDArray[np.float32]:
    """Draw (fan-in, fan-out) weights from U(-a, a), a = sqrt(6 / (fan-in + fan-out)).

    This is the standard initialisation of graph convolutions (Glorot and Bengio, AISTATS 2010).
    """
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    return rng.uniform(-bound, bound, (fan_in, fan_out)).astype(np.float32)


class SparseMatrix:
    """A constant sparse matrix that multiplies from the left, summed in order of columns."""

    def __init__(self, rows: SparseRows, device: torch.device) -> None:
        self.shape = rows.shape
        self._columns = torch.from_numpy(rows.indices.astype(np.int32)).to(device)
        self._offsets = torch.from_numpy(rows.indptr.astype(np.int32)).to(device)
        self._values = torch.from_numpy(rows.values.astype(np.float32)).to(device)

    def __matmul__(self, dense: Tensor) -> Tensor:
        """Return the (n, k) product with a contiguous (d, k) matrix."""
        return torch.embedding_bag(
            dense, self._columns, self._offsets, False, 0, False, self._values, True
        )[0]


def take_sparse_rows(
    matrix: SparseRows, rows: NDArray[np.int64], columns: NDArray[np.int64] | None = None
) -> SparseRows:
    """Return some rows of a sparse matrix, and of these some columns, in ascending order."""
    counts = np.diff(matrix.indptr)[rows]
    where = np.repeat(np.arange(len(rows)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    stored = matrix.indptr[rows][where] + np.arange(len(where)) - first
    stored_columns, values = matrix.indices[stored].astype(np.int64), matrix.values[stored]
    width = matrix.num_columns
    if columns is not None:
        is_taken = np.isin(stored_columns, columns)
        where, values = where[is_taken], values[is_taken]
        stored_columns, width = np.searchsorted(columns, stored_columns[is_taken]), len(columns)
    return from_entries(where, stored_columns, values, (len(rows), width))


def transpose(matrix: SparseRows) -> SparseRows:
    """Return the transposed matrix."""
    rows = np.repeat(np.arange(len(matrix)), np.diff(matrix.indptr))
    columns = matrix.indices.astype(np.int64)
    return from_entries(columns, rows, matrix.values, (matrix.num_columns, len(matrix)))


def with_ones(matrix: SparseRows) -> SparseRows:
    """Append a column of ones, whose weights are the bias of a linear layer."""
    indptr = matrix.indptr + np.arange(len(matrix) + 1)
    ends = matrix.indptr[1:]
    return SparseRows(
        indptr,
        np.insert(matrix.indices, ends, matrix.num_columns),
        np.insert(matrix.values, ends, 1.0),
        matrix.num_columns + 1,
    )


ABSENT = -1e30
"""Logit of a class that a client lacks."""


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
        joined: dict[tuple[int, ...], _GraphBatch] = {}
        for item, client in enumerate(owner):
            if size := sizes[item]:
                # Many items of a client share their minibatch; those of other rounds do not.
                graphs = batch.x[item, :size, 0]
                graph_key = tuple(graphs.tolist())
                if graph_key not in joined:
                    joined[graph_key] = self._clients[client].join(
                        graphs - int(self._first[client])
                    )
                _step_of_graphs(
                    self._clients[client].own(parameters, item),
                    joined[graph_key],
                    batch.targets[: self._clients[client].num_classes, item, :size].t(),
                    batch.rates[item, :size, None],
                    decay[item],
                )

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """Give classes that a graph's client does not have `ABSENT`."""
        items = parameters["bias3"].shape[1]
        out = torch.full((self._num_classes, items, len(x)), ABSENT, device=self.device)
        owner = self._owner[x[:, 0]]
        for client_index in np.unique(owner.cpu().numpy()).tolist():
            client, rows = self._clients[client_index], torch.nonzero(owner == client_index)[:, 0]
            joined = client.join(x[rows, 0] - int(self._first[client_index]))
            for item in range(items):
                logits = _forward(client.own(parameters, item), joined)[-1]
                out[: client.num_classes, item, rows] = logits.t()
        return out


@dataclass(frozen=True, eq=False)
class _GraphBatch:
    """Some graphs of a client, concatenated: g graphs with n nodes in all."""

    nodes: Tensor  # (n, features + 1) normalised adjacency times (ones, features)
    pool: Tensor  # (n,) weight of a node in the mean of the second convolution over its graph
    graph: Tensor  # (n,) graph of each node
    bounds: Tensor  # (g + 1,) int32, graph i has the nodes bounds[i]..bounds[i + 1]

    def mean(self, values: Tensor) -> Tensor:
        """Return the (g, k) means over each graph of adjacency times (n, k) values."""
        every = torch.arange(len(values), dtype=torch.int32, device=values.device)
        return torch.embedding_bag(values, every, self.bounds, False, 0, False, self.pool, True)[0]


class _Client:
    """The graphs of one client."""

    def __init__(self, federation: HeteroFederation, client: int, device: torch.device) -> None:
        graph_set, adjacency = federation.sets[client], federation.adjacency[client]
        every, sizes = np.arange(len(adjacency)), np.diff(graph_set.offsets)
        # Every row has an entry, because a node is its own neighbour. The matrix is symmetric.
        sums = np.add.reduceat(adjacency.values, adjacency.indptr[:-1])
        propagated = np.hstack([sums[:, None], federation.propagated[client][every]])
        pool = sums / sizes[graph_set.graph_of_node]
        self.num_classes = graph_set.num_classes
        self._nodes = torch.from_numpy(propagated.astype(np.float32)).to(device)
        self._pool = torch.from_numpy(pool.astype(np.float32)).to(device)
        self._start = torch.from_numpy(graph_set.offsets[:-1].copy()).to(device)
        self._size = torch.from_numpy(sizes).to(device)

    def join(self, graphs: Tensor) -> _GraphBatch:
        """Concatenate some of the graphs."""
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


def _forward(weights: Parameters, graphs: _GraphBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden units of nodes, their means, the rectified second layer, and the logits."""
    first = weights["encoder"] @ weights["weight1"]  # both are linear
    hidden = torch.addmm(weights["bias1"], graphs.nodes, first).relu_()
    mean = graphs.mean(hidden)
    pooled = torch.addmm(weights["bias2"], mean, weights["weight2"]).relu_()
    return hidden, mean, pooled, torch.addmm(weights["bias3"], pooled, weights["weight3"])


def _step_of_graphs(
    weights: Parameters, graphs: _GraphBatch, targets: Tensor, rates: Tensor, decay: float
) -> None:
    """Take one SGD step of one course on one client in place; `rates` include the learning rate."""
    hidden, mean, pooled, logits = _forward(weights, graphs)
    residual = torch.softmax(logits, 1).sub_(targets).mul_(rates)
    back = where_above(residual @ weights["weight3"].t(), pooled, 0.0)
    inner = (back @ weights["weight2"].t())[graphs.graph].mul_(graphs.pool[:, None])
    inner = where_above(inner, hidden, 0.0)
    first = graphs.nodes.t() @ inner
    gradients = {
        "encoder": first @ weights["weight1"].t(),
        "weight1": weights["encoder"].t() @ first,
        "bias1": inner.sum(0),
        "weight2": mean.t() @ back,
        "bias2": back.sum(0),
        "weight3": pooled.t() @ residual,
        "bias3": residual.sum(0),
    }
    for name, gradient in gradients.items():
        weights[name].mul_(decay).sub_(gradient)
