"""One federated course of any torch module as a plain loop: autograd, `torch.optim.SGD`, no frills.

Local training, the weighted average of all parameters and running statistics, and loss, accuracy
and macro-F1 of every client and split.
"""

from __future__ import annotations

import copy

import torch
from families import Family
from networks import NETWORKS
from plain_loop import Evaluator, TorchDraws
from torch import Tensor, nn
from torch.nn import functional

from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import Fidelity

ROWS = 512
"""Rows that are evaluated at once."""


@torch.no_grad()
def _draw(module: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights as torch's layers do, but from a generator of their own."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = layer.weight[0].numel() ** -0.5
            for values in layer.parameters():
                values.uniform_(-bound, bound, generator=generator)


class PlainModuleCourse:
    """One course of a family; `advance` goes on from where the last call stopped."""

    def __init__(self, family: Family, federation: Federation) -> None:
        """Create the course at round 0."""
        self._family = family
        inputs, network = family.compared.inputs, NETWORKS[family.compared.network]
        x, y = inputs(federation.features), torch.tensor(federation.labels)
        self._module = network(x.shape[1], federation.num_classes)
        _draw(self._module, torch.Generator().manual_seed(federation.seed))
        self._local = copy.deepcopy(self._module)
        self._train = [(x[rows[0]], y[rows[0]]) for rows in federation.clients]
        self._evaluate = Evaluator(federation, x, y)
        fidelity = Fidelity(0, family.client_sample_rate)
        self._sampled = fidelity.sampled_clients(federation.num_clients)
        self._draws = TorchDraws(federation.seed)
        self._round = 0

    def advance(self, rounds: int) -> None:
        """Train some more rounds, and evaluate as often as the family does."""
        for _ in range(rounds):
            self._one_round()
            self._round += 1
            if self._round % self._family.every == 0:
                self.metrics = self._evaluate(self._logits())

    def _one_round(self) -> None:
        sampled = self._draws.clients(self._round, len(self._train), self._sampled)
        total = sum(len(self._train[client][1]) for client in sampled)
        average = {k: torch.zeros_like(v) for k, v in self._module.state_dict().items()}
        for client in sampled:
            self._train_locally(client)
            for name, value in self._local.state_dict().items():
                if value.is_floating_point():
                    average[name].add_(value, alpha=len(self._train[client][1]) / total)
        self._module.load_state_dict(average)

    def _train_locally(self, client: int) -> None:
        x, y = self._train[client]
        setting, local = self._family.configuration, self._local.train()
        local.load_state_dict(self._module.state_dict())
        optimizer = torch.optim.SGD(
            local.parameters(), setting["learning_rate"], weight_decay=setting["weight_decay"]
        )
        epochs, size = int(setting["step_size"]), int(setting["batch_size"])
        for order in self._draws.orders(self._round, client, len(y), epochs):
            for rows in torch.split(order, size):
                if len(rows) > 1:  # batch normalisation refuses a single row
                    self._step(local, optimizer, x[rows], y[rows])

    def _step(self, local: nn.Module, optimizer: torch.optim.SGD, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with torch.enable_grad():
            functional.cross_entropy(local(x), y).backward()
        if self._family.compared.max_norm is not None:
            nn.utils.clip_grad_norm_(local.parameters(), self._family.compared.max_norm)
        optimizer.step()

    def _logits(self) -> Tensor:
        self._module.eval()
        return torch.cat([self._module(x) for x in torch.split(self._evaluate.x, ROWS)])
