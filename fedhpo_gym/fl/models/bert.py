"""BERT-Tiny, a sentence classifier of two transformer layers (Turc et al., 2019).

`get_model("BERT")` loads it for the tasks whose data are sentences. Parameters have the names of
the published checkpoint, whose weights are its start. Items take their steps one after the other,
because one course has millions of parameters. Autograd computes the gradients; that of the word
embeddings is zero except for the words of a minibatch, and only these rows are updated by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.records import Features
from fedhpo_gym.data.sentences import PADDING, VOCABULARY_SIZE, pretrained_weights
from fedhpo_gym.fl.models.torch_model import Minibatch, Parameters, TorchModel

EPSILON = 1e-12
"""Constant of layer normalisation, as in BERT."""
SPREAD = 0.02
"""Standard deviation of BERT's initial weights."""
ROWS = 256
"""Sentences per forward pass of an evaluation."""
WORDS = "embeddings.word_embeddings.weight"

Dropout = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Size:
    """The shape of a BERT; by default that of BERT-Tiny."""

    vocabulary: int = VOCABULARY_SIZE
    hidden: int = 128
    layers: int = 2
    heads: int = 2
    inner: int = 512
    positions: int = 512

    def shapes(self, num_classes: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter, by the names of the published checkpoint."""
        wide = self.hidden
        shapes: dict[str, tuple[int, ...]] = {
            WORDS: (self.vocabulary, wide),
            "embeddings.position_embeddings.weight": (self.positions, wide),
            "embeddings.token_type_embeddings.weight": (2, wide),
            **_layer("embeddings.LayerNorm", wide),
        }
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}."
            for name in ("self.query", "self.key", "self.value", "output.dense"):
                shapes |= _layer(f"{at}attention.{name}", wide, wide)
            shapes |= _layer(f"{at}attention.output.LayerNorm", wide)
            shapes |= _layer(f"{at}intermediate.dense", self.inner, wide)
            shapes |= _layer(f"{at}output.dense", wide, self.inner)
            shapes |= _layer(f"{at}output.LayerNorm", wide)
        shapes |= _layer("pooler.dense", wide, wide)
        return shapes | _layer("classifier", num_classes, wide)


class BertTiny(TorchModel):
    """Pretrained BERT-Tiny with a linear classifier on its pooled first token, all of it trained.

    A course has millions of parameters, so items take their steps one after the other. Parameters
    have shape (1, items, ..) and the names of the published checkpoint. Sentences are as long as
    the longest beside them; of the last layer only the first token is computed, the only one that
    is read. The setting `pretrained` is 1, or 0 for random weights.
    """

    architecture: ClassVar[tuple[str, ...]] = ("pretrained",)
    hyperparameters: ClassVar[Mapping[str, float]] = {"dropout": 0.0}
    rows_at_once: ClassVar[int | None] = 8192
    size: ClassVar[Size] = Size()

    def __init__(
        self,
        num_classes: int,
        device: torch.device,
        weights: Mapping[str, NDArray[np.float32]] | None = None,
        size: Size | None = None,
    ) -> None:
        self.device = device
        self._size = size or self.size
        self._weights = weights or {}
        self._shapes = self._size.shapes(num_classes)
        self.norms = frozenset(name for name in self._shapes if "LayerNorm" in name)
        self.num_parameters = sum(math.prod(shape) for shape in self._shapes.values())

    @classmethod
    def for_federation(cls, federation: Federation, device: torch.device, **shape: Any) -> BertTiny:
        if shape["pretrained"] not in (0, 1):
            raise InvalidArgumentError(f"`pretrained` must be 0 or 1, got {shape['pretrained']!r}")
        weights = None
        if shape["pretrained"]:
            weights = pretrained_weights(Size().shapes(federation.num_classes))
        return cls(federation.num_classes, device, weights)

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Take pretrained parameters, and draw the others from N(0, 0.02²) as BERT does."""
        return {
            name: np.asarray(self._weights.get(name, _drawn(name, shape, rng)))[None]
            for name, shape in self._shapes.items()
        }

    def inputs(self, features: Features) -> Tensor:
        """Return the tokens, (n, length) int32."""
        return torch.from_numpy(np.array(features, dtype=np.int32)).to(self.device)

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        rates = batch.settings["dropout"].tolist()
        seeds = batch.uniform((2,)).tolist() if max(rates) > 0 else [None] * len(rates)
        for item, size in enumerate(batch.sizes.tolist()):
            weights = batch.rates[item, :size]
            if size and weights.any():  # a course that was stopped has nothing to compute
                self._step(
                    {name: value[0, item] for name, value in parameters.items()},
                    _trim(batch.x[item, :size]),
                    batch.targets[:, item, :size].t() * weights[:, None],
                    batch.decay[item],
                    _dropout(rates[item], seeds[item]),
                )

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        # Short sentences pass through together: most of a padded matrix would be padding.
        order = torch.argsort((x != PADDING).sum(1), stable=True)
        items = parameters[WORDS].shape[1]
        out = torch.empty((items, len(x), len(parameters["classifier.bias"][0, 0])))
        out = out.to(self.device)
        for item in range(items):
            weights = {name: value[0, item] for name, value in parameters.items()}
            for rows in torch.split(order, ROWS):
                tokens = _trim(x[rows])
                out[item, rows] = self._forward(
                    weights, weights[WORDS][tokens.long()], tokens, _identity
                )
        return out.permute(2, 0, 1).contiguous()

    def _step(
        self, weights: Parameters, tokens: Tensor, targets: Tensor, decay: Tensor, drop: Dropout
    ) -> None:
        """Update parameters in place; `targets` are one-hot, times learning rate / rows."""
        index = tokens.long()
        leaves = {n: value.detach().requires_grad_() for n, value in weights.items() if n != WORDS}
        word_vectors = weights[WORDS][index].requires_grad_()
        with torch.enable_grad():
            logits = self._forward(leaves, word_vectors, tokens, drop)
            loss = -(targets * torch.log_softmax(logits, 1)).sum()
        of_words, *gradients = torch.autograd.grad(loss, [word_vectors, *leaves.values()])
        for name, gradient in zip(leaves, gradients, strict=True):
            weights[name].mul_(decay).sub_(gradient)
        # The gradient of the word embeddings is zero but for the words that occur.
        weights[WORDS].mul_(decay).index_add_(
            0, index.flatten(), of_words.flatten(0, 1), alpha=-1.0
        )

    def _forward(
        self, weights: Parameters, word_vectors: Tensor, tokens: Tensor, drop: Dropout
    ) -> Tensor:
        """Return (n, classes) logits of sentences (n, length), given their embedded words."""
        n, length = tokens.shape
        x = word_vectors + weights["embeddings.position_embeddings.weight"][:length]
        x = drop(
            _normalise(
                weights, "embeddings", x + weights["embeddings.token_type_embeddings.weight"][0]
            )
        )
        hidden = torch.zeros(tokens.shape, device=tokens.device)
        hidden = hidden.masked_fill_(tokens == PADDING, torch.finfo(torch.float32).min)
        for layer in range(self._size.layers):
            at = f"encoder.layer.{layer}."
            read = x[:, :1] if layer + 1 == self._size.layers else x
            heads = [
                _apply(weights, f"{at}attention.self.{name}", source)
                .view(n, source.shape[1], self._size.heads, -1)
                .transpose(1, 2)
                for name, source in (("query", read), ("key", x), ("value", x))
            ]
            mixed = _attend(heads, hidden[:, None, None, :], drop)
            mixed = mixed.transpose(1, 2).reshape(read.shape)
            mixed = drop(_apply(weights, f"{at}attention.output.dense", mixed))
            x = _normalise(weights, f"{at}attention.output", mixed + read)
            inner = functional.gelu(_apply(weights, f"{at}intermediate.dense", x))
            x = _normalise(
                weights, f"{at}output", drop(_apply(weights, f"{at}output.dense", inner)) + x
            )
        pooled = torch.tanh(_apply(weights, "pooler.dense", x[:, 0]))
        return _apply(weights, "classifier", drop(pooled))


def _attend(heads: Sequence[Tensor], hidden: Tensor, drop: Dropout) -> Tensor:
    """Return (n, heads, length, d) attention: softmax(Q K^T / sqrt(d) + hidden) V.

    `hidden` is the lowest float for keys that are padding, so that their weights are 0.
    """
    query, key, value = heads
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3]) + hidden
    return drop(torch.softmax(scores, -1)) @ value


def _layer(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def _drawn(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    if name.endswith(".bias"):
        return np.zeros(shape, dtype=np.float32)
    if "LayerNorm" in name:
        return np.ones(shape, dtype=np.float32)
    values = rng.normal(0.0, SPREAD, shape).astype(np.float32)
    if name == WORDS:
        values[PADDING] = 0.0
    return values


def _apply(weights: Parameters, name: str, x: Tensor) -> Tensor:
    return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _normalise(weights: Parameters, name: str, x: Tensor) -> Tensor:
    weight, bias = weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"]
    return functional.layer_norm(x, weight.shape, weight, bias, EPSILON)


def _trim(tokens: Tensor) -> Tensor:
    """Cut (n, length) sentences to the longest."""
    return tokens[:, : max(int((tokens != PADDING).sum(1).max()), 1)]


def _identity(x: Tensor) -> Tensor:
    return x


def _dropout(rate: float, seed: list[float] | None) -> Dropout:
    """Return a dropout function; two draws of 24 bits from U[0, 1) are its seed."""
    if rate <= 0 or seed is None:
        return _identity
    generator = torch.Generator().manual_seed(int(seed[0] * 2**24) << 24 | int(seed[1] * 2**24))

    def drop(x: Tensor) -> Tensor:
        mask = (torch.rand(x.shape, generator=generator) >= rate).to(x.device)
        return x * mask / (1.0 - rate)

    return drop
