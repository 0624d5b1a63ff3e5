"""Training of networks on source tasks: with seeds of their own, once per process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.agents.transfer.base import ObservedData
from fedhpo_gym.agents.transfer.gaussian_process import normal_scores
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("an agent with a network", "torch", "torch", "torch"):
    import torch
    from torch import Tensor, nn

__all__ = ["nn", "torch"]


@contextmanager
def seeded_torch(name: str, seed: int = 0) -> Iterator[np.random.Generator]:
    """Seed torch, and the generator that is yielded, by a name; global state is restored."""
    rng = stream(seed, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        yield rng


@contextmanager
def single_thread(*, learns: bool = False) -> Iterator[None]:
    """Run torch on one thread: small networks are faster so, and round the same everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.set_grad_enabled(learns):
            yield
    finally:
        torch.set_num_threads(before)


def perceptron(widths: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Return a network of layers of some widths, with an activation after all but the last."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def minimise(model: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float) -> None:
    """Minimise a loss by Adam, whose rate ends at 0 along a cosine."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with single_thread(learns=True):
        for _ in tqdm(range(steps), desc="source tasks", unit="step", disable=None, delay=5.0):
            optimizer.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def tensor(array: Floats) -> Tensor:
    """Return the numbers of an array in single precision."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def draw_tasks(
    sources: Sequence[ObservedData], count: int, shots: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Tensor, Tensor]:
    """Return (T,) indices of drawn tasks, their (T, n, F) points and (T, n) normal scores."""
    tasks, n = rng.integers(len(sources), size=count), min(len(source.scores) for source in sources)
    rows = [rng.permutation(len(sources[task].scores))[: min(n, shots)] for task in tasks]
    sampled = [(sources[task], row) for task, row in zip(tasks, rows, strict=True)]
    scores = np.array([normal_scores(source.scores[row]) for source, row in sampled])
    return tasks, tensor(np.array([source.points[row] for source, row in sampled])), tensor(scores)
