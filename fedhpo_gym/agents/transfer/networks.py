"""How networks are trained on source tasks: with seeds of their own, once per process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import normal_scores
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("an agent with a network", "torch", "torch", "torch"):
    import torch
    from torch import Tensor, nn

__all__ = ["nn", "torch"]


@contextmanager
def seeded(name: str, seed: int = 0) -> Iterator[np.random.Generator]:
    """Give torch, and the generator that is yielded, random numbers of a name, and no other's."""
    rng = stream(seed, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        yield rng


@contextmanager
def one_thread(*, learns: bool = False) -> Iterator[None]:
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


def train(model: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float) -> None:
    """Minimise a loss by Adam, whose rate ends at 0 along a cosine."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with one_thread(learns=True):
        for _ in tqdm(range(steps), desc="source tasks", unit="step", disable=None, delay=5.0):
            optimizer.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def tensor(array: Floats) -> Tensor:
    """Return the numbers of an array in single precision."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def drawn_tasks(
    sources: Sequence[Known], number: int, shots: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Tensor, Tensor]:
    """Return which T tasks were drawn, (T, n, F) of their points and (T, n) normal scores."""
    tasks, n = rng.integers(len(sources), size=number), min(len(one.scores) for one in sources)
    rows = [rng.permutation(len(sources[task].scores))[: min(n, shots)] for task in tasks]
    drawn = [(sources[task], row) for task, row in zip(tasks, rows, strict=True)]
    scores = np.array([normal_scores(one.scores[row]) for one, row in drawn])
    return tasks, tensor(np.array([one.points[row] for one, row in drawn])), tensor(scores)
