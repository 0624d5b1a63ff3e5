"""A prior-fitted network (Müller et al., 2022 and 2023) whose prior has the source tasks in it."""

import numpy as np

from fedhpo_gym.agents.transfer import gaussian_process as process
from fedhpo_gym.agents.transfer import networks
from fedhpo_gym.agents.transfer.base import ObservedData
from fedhpo_gym.agents.transfer.networks import nn, torch
from fedhpo_gym.core.arrays import Floats

WIDTH, HEADS, LAYERS = 64, 4, 3
STEPS, RATE = 1500, 1e-3
BATCH, QUERIES, LONGEST = 8, 40, 50
WAVES, LEAST = 64, 0.02


class Block(nn.Module):
    """Attention to known points, and a perceptron.

    Attention weights depend on points alone, as in a Gaussian process. If they depended on tokens,
    which include scores, so short a training would not learn to use scores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.nothing = nn.Parameter(torch.zeros(HEADS))  # weight of attention to no point
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.after = networks.perceptron((WIDTH, 2 * WIDTH, WIDTH), nn.GELU)

    def forward(self, tokens: torch.Tensor, points: torch.Tensor, num_known: int) -> torch.Tensor:
        """Return (B, L, `WIDTH`) tokens after attending to the first `known` of them."""
        keys, values = self.place(points), self.value(self.norms[0](tokens[:, :num_known]))
        heads = (len(tokens), -1, HEADS, WIDTH // HEADS)
        keys, values = (projected.view(heads).transpose(1, 2) for projected in (keys, values))
        similarity = -(torch.cdist(keys, keys[:, :, :num_known]) ** 2)
        nothing = self.nothing[:, None, None].expand(*similarity.shape[:3], 1)
        weights = torch.cat([similarity, nothing], dim=-1).softmax(dim=-1)[..., :num_known]
        tokens = tokens + self.out((weights @ values).transpose(1, 2).flatten(2))
        return torch.as_tensor(tokens + self.after(self.norms[1](tokens)))


class PriorFitted(nn.Module):
    """Predicts mean and deviation of quantiles, given those of known points."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.point = networks.perceptron((width, WIDTH, WIDTH), nn.GELU)
        self.norm, self.score = nn.LayerNorm(WIDTH), nn.Linear(1, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.end = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, m) means and deviations of (B, n + m, F) points, given (B, n) scores."""
        num_known, points = y.shape[1], self.point(x)
        scored = points[:, :num_known] + self.score(y[..., None])
        tokens, points = torch.cat([scored, points[:, num_known:]], dim=1), self.norm(points)
        for block in self.blocks:
            tokens = block(tokens, points, num_known)
        mean, spread = self.end(tokens[:, num_known:]).unbind(-1)
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

    def transfer(
        self, trials: ObservedData, candidates: Floats, rng: np.random.Generator
    ) -> Floats:
        network = process.cached_by_sources("pfn", self.sources, self._train)
        x = networks.tensor(np.concatenate([trials.points, candidates, trials.points])[None])
        y = networks.tensor(process.normal_scores(trials.scores)[None])
        with networks.single_thread():
            mean, deviation = (output[0].double().numpy() for output in network(x, y))
        count = len(candidates)
        best = float(mean[count:].max(initial=-3.0))
        return process.log_expected_improvement(mean[:count], deviation[:count], best)

    def _train(self) -> PriorFitted:
        quantiles = [process.normal_scores(task_points.scores) for task_points in self.sources]
        with networks.seeded_torch("transfer pfn") as rng:
            network = PriorFitted(self.sources[0].points.shape[1])

            def loss() -> torch.Tensor:
                num_known = int(rng.integers(LONGEST + 1))
                points, scores = [], []
                for task in rng.integers(len(quantiles), size=BATCH):
                    values, task_points = quantiles[task], self.sources[task].points
                    if rng.random() < 0.5:
                        share = rng.random()
                        prior_values = drawn_function(task_points, rng)
                        values = process.normal_scores(
                            share * values + (1.0 - share) * prior_values
                        )
                    rows = rng.integers(len(task_points), size=num_known + QUERIES)
                    points.append(task_points[rows])
                    known_scores = process.normal_scores(values[rows[:num_known]])
                    scores.append(np.append(known_scores, values[rows[num_known:]]))
                x, y = networks.tensor(np.array(points)), networks.tensor(np.array(scores))
                mean, deviation = network(x, y[:, :num_known])
                z = (y[:, num_known:] - mean) / deviation
                return torch.as_tensor((0.5 * z**2 + torch.log(deviation)).mean())

            networks.minimise(network, loss, STEPS, RATE)
        return network.eval()
