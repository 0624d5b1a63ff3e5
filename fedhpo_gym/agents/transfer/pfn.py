"""A prior-fitted network (Müller et al., 2022 and 2023) whose prior has the source tasks in it."""

from __future__ import annotations

from typing import Final

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import (
    GaussianProcessSearch,
    log_expected_improvement,
    made_once,
    normal_scores,
)
from fedhpo_gym.agents.transfer.networks import nn, perceptron, seeded, tensor, torch, train

WIDTH, HEADS, LAYERS = 64, 4, 3
STEPS: Final = 2000
RATE: Final = 1e-3
BATCH, QUERIES, LONGEST = 16, 40, 50
WAVES: Final = 64
LEAST: Final = 0.02


class Block(nn.Module):
    """Attention to what is known, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.tell = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.after = perceptron((WIDTH, 2 * WIDTH, WIDTH), nn.GELU)

    def forward(self, tokens: torch.Tensor, known: int) -> torch.Tensor:
        """Return (B, L, `WIDTH`) tokens after attending to the first `known` of them."""
        normed = self.norms[0](tokens)
        parts = [self.ask(normed), *self.tell(normed[:, :known]).chunk(2, dim=-1)]
        heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts]
        seen = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        tokens = tokens + self.out(seen)
        return torch.as_tensor(tokens + self.after(self.norms[1](tokens)))


class PriorFitted(nn.Module):
    """Says mean and deviation of quantiles, given others that are known."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.point, self.score = perceptron((width, WIDTH, WIDTH), nn.GELU), nn.Linear(1, WIDTH)
        self.nothing = nn.Parameter(torch.zeros(WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.end = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, m) means and deviations of (B, n + m, F) points, given (B, n) scores."""
        known = y.shape[1]
        tokens = self.point(x)
        told = tokens[:, :known] + self.score(y[..., None])
        first = self.nothing.expand(len(x), 1, WIDTH)
        tokens = torch.cat([first, told, tokens[:, known:]], dim=1)
        for block in self.blocks:
            tokens = block(tokens, known + 1)
        mean, spread = self.end(tokens[:, known + 1 :]).unbind(-1)
        return mean, nn.functional.softplus(spread) + LEAST


def drawn_function(points: Array, rng: np.random.Generator) -> Array:
    """Return (n,) values of a draw from a Gaussian process, or from a network of random weights."""
    relevance = np.asarray(rng.gamma(0.5, 2.0, points.shape[1]) * rng.uniform(0.5, 3.0))
    weights = rng.standard_normal((points.shape[1], WAVES)) * relevance[:, None]
    shifts = rng.uniform(0.0, 2.0 * np.pi, WAVES)
    wave = np.cos if rng.random() < 0.5 else np.tanh
    values = wave((points - 0.5) @ weights + shifts) @ rng.standard_normal(WAVES)
    return np.asarray((values - values.mean()) / max(values.std(), 1e-9))


class PriorFittedSearch(GaussianProcessSearch):
    """Expected improvement of a transformer.

    Half of the functions it is trained on are source tasks; the others are mixtures of one with a
    draw from a prior, from none of it to all.
    """

    @property
    def needs(self) -> int:
        return 0 if self.sources else self._initial

    def prefer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        if not self.sources:
            return super().prefer(own, candidates, rng)
        network = made_once("pfn", self.sources, self._trained)
        x = tensor(np.concatenate([own.points, candidates, own.points])[None])
        y = tensor(normal_scores(own.scores)[None])
        with torch.no_grad():
            mean, deviation = (one[0].double().numpy() for one in network(x, y))
        count = len(candidates)
        if count == len(mean):
            return np.asarray(mean)
        best = float(mean[count:].max())
        return log_expected_improvement(mean[:count], deviation[:count], best)

    def _trained(self) -> PriorFitted:
        quantiles = [normal_scores(one.scores) for one in self.sources]
        with seeded("transfer pfn") as rng:
            network = PriorFitted(self.sources[0].points.shape[1])

            def loss() -> torch.Tensor:
                known = int(rng.integers(LONGEST + 1))
                points, scores = [], []
                for task in rng.integers(len(quantiles), size=BATCH):
                    values, one = quantiles[task], self.sources[task].points
                    if rng.random() < 0.5:
                        share = rng.random()
                        noise = 0.1 * rng.standard_normal(len(one))
                        other = drawn_function(one, rng) + noise
                        values = normal_scores(share * values + (1.0 - share) * other)
                    rows = rng.integers(len(one), size=known + QUERIES)
                    points.append(one[rows])
                    told = normal_scores(values[rows[:known]])
                    scores.append(np.append(told, values[rows[known:]]))
                x, y = tensor(np.array(points)), tensor(np.array(scores))
                mean, deviation = network(x, y[:, :known])
                away = (y[:, known:] - mean) / deviation
                return torch.as_tensor((0.5 * away**2 + torch.log(deviation)).mean())

            train("pfn", [*network.parameters()], loss, STEPS, RATE)
        return network.eval()
