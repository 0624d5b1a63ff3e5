"""Evolution of the weights of small networks by CMA-ES, the library `cmaes`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.policy import Policy, forward
from fedhpo_gym.agents.training import Judge, Progress, Training, Vectors, make_vector, play
from fedhpo_gym.core.errors import needing
from fedhpo_gym.core.seeding import stream

with needing("evolving a policy", "cmaes", "agents", "cmaes"):
    import cmaes

Layers = tuple[tuple[NDArray[np.float32], ...], tuple[NDArray[np.float32], ...]]


def evolve_policy(
    env_ids: str | Sequence[str],
    *,
    steps: int,
    seed: int,
    layers: Sequence[int] = (8,),
    entries: Sequence[str] | None = None,
    population: int | None = None,
    episodes: int = 4,
    sigma: float = 0.3,
    env_arguments: Mapping[str, Any] | None = None,
    made_by: str = "fedhpo_gym.agents.evolution.evolve_policy",
    progress: Progress | None = None,
    judge: Judge | None = None,
    judge_every: int = 10_000,
) -> Training:
    """Search the weights of one policy for one environment, or for several with equal spaces.

    All candidates of a generation play the same episodes: environments of all candidates are
    side by side, with the same seeds. A fitness is the mean of returns. The search begins where
    all weights are 0, the middle of the action space; the policy is where it ends: its mean.

    Args:
        steps: of all environments together; rounded up to whole generations.
        seed: source of all randomness, the environments' included.
        layers: widths of the hidden layers; few weights are searched faster.
        entries: of observations that the policy reads; by default all, as they are.
        population: candidates of a generation; by default the library's.
        episodes: of each candidate in each environment.
        sigma: standard deviation of weights in the first generation.
        env_arguments: arguments of `gymnasium.make_vec`.
        made_by: command that repeats the training, for messages about damaged files.
        progress: called with the number of steps done since the last call.
        judge: called with the number of steps so far and the policy of then.
        judge_every: steps between two such calls, at least.
    """
    ids = [env_ids] if isinstance(env_ids, str) else list(env_ids)
    template = make_vector(ids[0], 1, env_arguments or {})
    spaces: Any = template.single_observation_space.spaces  # type: ignore[attr-defined]
    box: Any = template.single_action_space
    template.close()
    shapes = {name: spaces[name].shape for name in entries or spaces}
    widths = [sum(map(math.prod, shapes.values())), *layers, box.low.size]
    number = sum((one + 1) * other for one, other in pairwise(widths))
    search = cmaes.CMA(
        mean=np.zeros(number),
        sigma=sigma,
        population_size=population,
        seed=int(stream(seed, "evolve_policy").integers(2**31)),
    )
    size = search.population_size
    parts = [make_vector(one, size * episodes, env_arguments or {}) for one in ids]
    returns: list[NDArray[np.float64]] = []
    done = judged = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(more)

    def learned() -> Policy:
        weights, biases = _network(search.mean[None], widths)
        return Policy(
            entries=shapes,
            low=box.low,
            high=box.high,
            weights=tuple(weight[0] for weight in weights),
            biases=tuple(bias[0, 0] for bias in biases),
            activation="tanh",
            output="clip",
            mean=np.zeros(widths[0]),
            deviation=np.ones(widths[0]),
            limit=1e6,
            made_by=made_by,
            origin={
                "algorithm": "CMA-ES",
                "steps": done,
                "seed": seed,
                "environments": ids,
                "population": size,
                "episodes": episodes,
                "sigma": sigma,
                "env_arguments": dict(env_arguments or {}),
                "layers": list(layers),
            },
        )

    while done < steps:
        candidates = np.stack([search.ask() for _ in range(size)])
        network = _network(np.repeat(candidates, episodes, axis=0), widths)
        found = []
        for j, part in enumerate(parts):
            rng = stream(seed, "evolve_policy_reset", search.generation, j)
            found.append(_returns(part, network, shapes, rng.integers(2**31, size=episodes), count))
        returns.append(np.concatenate(found))
        fitness = np.mean(found, axis=0).reshape(size, episodes).mean(axis=1)
        search.tell(list(zip(candidates, -fitness, strict=True)))
        if judge is not None and done - judged >= judge_every:
            judged = done
            judge(done, learned())
    for part in parts:
        part.close()
    return Training(learned(), np.concatenate(returns))


def _network(genes: NDArray[np.float64], widths: Sequence[int]) -> Layers:
    """Return (P, inputs, outputs) weights and (P, 1, outputs) biases of (P, number) genes."""
    weights, biases, start = [], [], 0
    for inputs, outputs in pairwise(widths):
        end = start + (inputs + 1) * outputs
        layer = genes[:, start:end].reshape(-1, inputs + 1, outputs).astype(np.float32)
        weights.append(layer[:, :-1])
        biases.append(layer[:, -1:])
        start = end
    return tuple(weights), tuple(biases)


def _returns(
    env: Vectors,
    network: Layers,
    shapes: Mapping[str, tuple[int, ...]],
    seeds: NDArray[np.int64],
    count: Progress,
) -> NDArray[np.float64]:
    """Return what each of N networks gains in its environment; seeds repeat."""
    box: Any = env.single_action_space
    low: NDArray[np.float32] = box.low
    high: NDArray[np.float32] = box.high

    def act(_: int, shown: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        rows = np.concatenate([shown[name].reshape(env.num_envs, -1) for name in shapes], axis=1)
        raw = forward(rows[:, None], *network, "tanh").reshape(env.num_envs, *low.shape)
        return np.clip(raw, low, high)

    every = seeds.tolist() * (env.num_envs // len(seeds))
    played = play(env, act, count, seed=every)
    returns: NDArray[np.float64] = np.sum([rewards for _, _, rewards, _ in played], axis=0)
    return returns
