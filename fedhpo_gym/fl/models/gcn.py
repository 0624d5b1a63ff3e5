"""The two-layer graph convolutional network of the paper's GNN benchmarks (Appendix D)."""

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
from fedhpo_gym.data.graph_federations import GraphFederation
from fedhpo_gym.data.graphs import from_entries
from fedhpo_gym.data.records import Features, SparseRows
from fedhpo_gym.fl.models.torch_model import Minibatch, Parameters, TorchModel

HIDDEN = 64
"""Hidden units (paper, Appendix D)."""


@dataclass(frozen=True, eq=False)
class _Subgraph:
    """What training reads of one client: with m training nodes and their n neighbours."""

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
        self._width = max(own.first.shape[0] for own in self._clients)
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
        drawn = None
        if max(dropout) > 0.0:
            drawn = batch.uniform((self._width, HIDDEN)).to(self.device)
        decay = batch.decay.tolist()
        clip_norm = batch.settings["clip_norm"].tolist()
        owner = self._owner[batch.x[:, 0, 0]].tolist()
        sizes = batch.sizes.tolist()
        # Client after client: its graph stays in the cache.
        for item in sorted(range(len(sizes)), key=owner.__getitem__):
            if size := sizes[item]:
                own = self._clients[owner[item]]
                rates = torch.zeros(own.targets.shape[1], device=self.device)
                rates[self._position[batch.x[item, :size, 0]]] = batch.rates[item, :size]
                _step(
                    {name: value[0, item] for name, value in parameters.items()},
                    own,
                    rates,
                    decay[item],
                    None if drawn is None or not dropout[item] else drawn[item],
                    dropout[item],
                    clip_norm[item],
                )

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """Show every node with the edges of its own client alone."""
        out = []
        for item in range(parameters["bias2"].shape[1]):
            own = {name: value[0, item] for name, value in parameters.items()}
            hidden = (self._first @ own["weight1"]).relu_()
            out.append((self._second @ (hidden @ own["weight2"])).add_(own["bias2"])[x[:, 0]])
        return torch.stack(out).permute(2, 0, 1).contiguous()


def _subgraph(
    federation: GraphFederation,
    train: NDArray[np.int64],
    labels: NDArray[np.float32],
    device: torch.device,
) -> _Subgraph:
    near = np.unique(take(federation.adjacency, train).indices).astype(np.int64)
    first = with_ones(take(federation.propagated, near))
    second = take(federation.adjacency, train, near)
    return _Subgraph(
        SparseMatrix(first, device),
        SparseMatrix(transpose(first), device),
        SparseMatrix(second, device),
        SparseMatrix(transpose(second), device),
        torch.from_numpy(np.ascontiguousarray(labels[train].T)).to(device),
    )


def _step(
    own: Parameters,
    graph: _Subgraph,
    rates: Tensor,
    decay: float,
    drawn: Tensor | None,
    dropout: float,
    clip_norm: float,
) -> None:
    """Take one SGD step of one course on one client in place; `rates` include the learning rate."""
    weight1, weight2, bias2 = own["weight1"], own["weight2"], own["bias2"]
    hidden = graph.first @ weight1
    if drawn is not None:
        hidden = where_above(hidden, drawn[: len(hidden)], dropout)
    hidden.relu_()
    # What is kept is scaled by 1 / keep; the smaller matrices take that factor.
    keep = 1.0 - dropout
    scaled = weight2 / keep
    logits = (graph.second @ (hidden @ scaled)).add_(bias2)
    # Reductions over the few classes are several times as fast along the first axis.
    logits = logits.t().contiguous()
    # Far smaller exponentials are denormal, ten times as slow, and vanish in the sum anyway.
    residual = logits.sub_(logits.amax(0)).clamp_(min=-60.0).exp_()
    residual.mul_(rates / residual.sum(0)).addcmul_(graph.targets, rates, value=-1.0)
    back = graph.second_t @ residual.t().contiguous()
    # Units that were dropped are zero, as those that ReLU cut off: neither has a gradient.
    inner = where_above(back @ scaled.t(), hidden, 0.0)
    if math.isfinite(clip_norm):
        parts = (graph.first_t @ inner, hidden.t() @ back / keep, residual.sum(1))
        square = torch.stack([part.square().sum() for part in parts]).sum().clamp(min=1e-60)
        factor = (clip_norm * rates.sum() / square.sqrt()).clamp(max=1.0)
        for value in (inner, back, residual):
            value.mul_(factor)
    weight2.addmm_(hidden.t(), back, beta=decay, alpha=-1.0 / keep)
    bias2.mul_(decay).sub_(residual.sum(1))
    torch.sub(weight1.mul_(decay), graph.first_t @ inner, out=weight1)


def where_above(values: Tensor, reference: Tensor, threshold: float) -> Tensor:
    """Return the values where a reference is above a threshold, and 0 elsewhere."""
    kept: Tensor = torch.ops.aten.threshold_backward(values, reference, threshold)
    return kept


def glorot(rng: np.random.Generator, fan_in: int, fan_out: int) -> NDArray[np.float32]:
    """Draw (fan-in, fan-out) weights from U(-a, a), a = sqrt(6 / (fan-in + fan-out)).

    The usual initialisation of graph convolutions (Glorot and Bengio, AISTATS 2010).
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
        product: Tensor = torch.embedding_bag(
            dense, self._columns, self._offsets, False, 0, False, self._values, True
        )[0]
        return product


def take(
    matrix: SparseRows, rows: NDArray[np.int64], columns: NDArray[np.int64] | None = None
) -> SparseRows:
    """Return some rows of a sparse matrix, and of these some columns, in ascending order."""
    counts = np.diff(matrix.indptr)[rows]
    where = np.repeat(np.arange(len(rows)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    stored = matrix.indptr[rows][where] + np.arange(len(where)) - first
    found, values = matrix.indices[stored].astype(np.int64), matrix.values[stored]
    width = matrix.num_columns
    if columns is not None:
        kept = np.isin(found, columns)
        where, values = where[kept], values[kept]
        found, width = np.searchsorted(columns, found[kept]), len(columns)
    return from_entries(where, found, values, (len(rows), width))


def transpose(matrix: SparseRows) -> SparseRows:
    """Return the transposed matrix."""
    rows = np.repeat(np.arange(len(matrix)), np.diff(matrix.indptr))
    columns = matrix.indices.astype(np.int64)
    return from_entries(columns, rows, matrix.values, (matrix.num_columns, len(matrix)))


def with_ones(matrix: SparseRows) -> SparseRows:
    """Append a column of ones: its weights are the bias of a linear layer."""
    indptr = matrix.indptr + np.arange(len(matrix) + 1)
    ends = matrix.indptr[1:]
    return SparseRows(
        indptr,
        np.insert(matrix.indices, ends, matrix.num_columns),
        np.insert(matrix.values, ends, 1.0),
        matrix.num_columns + 1,
    )
