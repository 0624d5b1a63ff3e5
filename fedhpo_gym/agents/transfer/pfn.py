"""A prior-fitted network (Müller et al., 2022 and 2023) whose prior has the source tasks in it."""

import numpy as np

from fedhpo_gym.agents.transfer import gaussian_process as process
from fedhpo_gym.agents.transfer import networks
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.networks import nn, torch
from fedhpo_gym.core.arrays import Floats

WIDTH, HEADS, LAYERS = 64, 4, 3
STEPS, RATE = 1500, 1e-3
BATCH, QUERIES, LONGEST = 8, 40, 50
WAVES, LEAST = 64, 0.02


class Block(nn.Module):
    """Attention to what is known, and a perceptron.

    Where points are alone decides weights of attention, as in a Gaussian process. Where tokens do
    so, which have scores in them, so short a training does not learn to use scores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.nothing = nn.Parameter(torch.zeros(HEADS))  # weight of attention to no point
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.after = networks.perceptron((WIDTH, 2 * WIDTH, WIDTH), nn.GELU)

    def forward(self, tokens: torch.Tensor, points: torch.Tensor, known: int) -> torch.Tensor:
        """Return (B, L, `WIDTH`) tokens after attending to the first `known` of them."""
        places, values = self.place(points), self.value(self.norms[0](tokens[:, :known]))
        heads = (len(tokens), -1, HEADS, WIDTH // HEADS)
        places, values = (one.view(heads).transpose(1, 2) for one in (places, values))
        near = -(torch.cdist(places, places[:, :, :known]) ** 2)
        nothing = self.nothing[:, None, None].expand(*near.shape[:3], 1)
        weights = torch.cat([near, nothing], dim=-1).softmax(dim=-1)[..., :known]
        tokens = tokens + self.out((weights @ values).transpose(1, 2).flatten(2))
        return torch.as_tensor(tokens + self.after(self.norms[1](tokens)))


class PriorFitted(nn.Module):
    """Says mean and deviation of quantiles, given others that are known."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.point = networks.perceptron((width, WIDTH, WIDTH), nn.GELU)
        self.norm, self.score = nn.LayerNorm(WIDTH), nn.Linear(1, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.end = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, m) means and deviations of (B, n + m, F) points, given (B, n) scores."""
        known, points = y.shape[1], self.point(x)
        told = points[:, :known] + self.score(y[..., None])
        tokens, points = torch.cat([told, points[:, known:]], dim=1), self.norm(points)
        for block in self.blocks:
            tokens = block(tokens, points, known)
        mean, spread = self.end(tokens[:, known:]).unbind(-1)
        return mean, nn.functional.softplus(spread) + LEAST


def drawn_function(points: Floats, rng: np.random.Generator) -> Floats:
    """Return (n,) noisy values of a Gaussian process, or of a network of random weights."""
    relevance = np.asarray(rng.gamma(0.5, 2.0, points.shape[1]) * rng.uniform(0.5, 3.0))
    weights = rng.standard_normal((points.shape[1], WAVES)) * relevance[:, None]
    shifts = rng.uniform(0.0, 2.0 * np.pi, WAVES)
    wave = np.cos if rng.random() < 0.5 else np.tanh
    values = wave((points - 0.5) @ weights + shifts) @ rng.standard_normal(WAVES)
    values /= max(values.std(), 1e-9)
    return np.asarray(values - values.mean() + 0.1 * rng.standard_normal(len(values)))


class PriorFittedSearch(process.EnsembleSearch):
    """Expected improvement of a transformer.

    Half of the functions it is trained on are source tasks; the others are mixtures of one with a
    draw from a prior, from none of it to all.
    """

    eager = True

    def transfer(self, own: Known, candidates: Floats, rng: np.random.Generator) -> Floats:
        network = process.made_once("pfn", self.sources, self._trained)
        x = networks.tensor(np.concatenate([own.points, candidates, own.points])[None])
        y = networks.tensor(process.normal_scores(own.scores)[None])
        with networks.one_thread():
            mean, deviation = (one[0].double().numpy() for one in network(x, y))
        count = len(candidates)
        best = float(mean[count:].max(initial=-3.0))
        return process.log_expected_improvement(mean[:count], deviation[:count], best)

    def _trained(self) -> PriorFitted:
        quantiles = [process.normal_scores(one.scores) for one in self.sources]
        with networks.seeded("transfer pfn") as rng:
            network = PriorFitted(self.sources[0].points.shape[1])

            def loss() -> torch.Tensor:
                known = int(rng.integers(LONGEST + 1))
                points, scores = [], []
                for task in rng.integers(len(quantiles), size=BATCH):
                    values, one = quantiles[task], self.sources[task].points
                    if rng.random() < 0.5:
                        share = rng.random()
                        other = drawn_function(one, rng)
                        values = process.normal_scores(share * values + (1.0 - share) * other)
                    rows = rng.integers(len(one), size=known + QUERIES)
                    points.append(one[rows])
                    told = process.normal_scores(values[rows[:known]])
                    scores.append(np.append(told, values[rows[known:]]))
                x, y = networks.tensor(np.array(points)), networks.tensor(np.array(scores))
                mean, deviation = network(x, y[:, :known])
                away = (y[:, known:] - mean) / deviation
                return torch.as_tensor((0.5 * away**2 + torch.log(deviation)).mean())

            networks.train(network, loss, STEPS, RATE)
        return network.eval()
