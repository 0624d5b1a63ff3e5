"""Evolution of the weights of small networks by CMA-ES (Hansen, 2016), by the library `cmaes`."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.policy import Policy, apply_layers
from fedhpo_gym.agents.training import Judge, Progress, Training, make_vector, play
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("evolving a policy", "cmaes", "agents", "cmaes"):
    import cmaes


@validate_call
def evolve_policy(
    env_ids: str | Sequence[str],
    *,
    steps: Annotated[int, Range(1)],
    seed: int,
    layers: Sequence[int] = (8,),
    entries: Sequence[str] | None = None,
    population: int = 24,
    episodes: int = 8,
    sigma: float = 0.1,
    env_arguments: Mapping[str, Any] | None = None,
    made_by: str = "fedhpo_gym.agents.evolution.evolve_policy",
    progress: Progress | None = None,
    judge: Judge | None = None,
    judge_every: int = 10_000,
) -> Training:
    """Search the weights of one policy for one environment, or for several with equal spaces.

    All candidates of a generation play the same episodes, side by side. The search begins where
    weights are 0, the middle of the action space; the policy is the mean of where it ends.

    Args:
        steps: of all environments together; rounded up to whole generations.
        entries: of observations that the policy reads, as they are; by default all.
        episodes: of each candidate in each environment; its fitness is the mean return.
        sigma: standard deviation of weights in the first generation.
        judge: called with the steps so far and the policy of then, to follow its learning.
        judge_every: steps between two calls of `judge`, at least.

    Raises:
        InvalidArgumentError: no environment is named, or `steps` are none.
    """
    ids = [env_ids] if isinstance(env_ids, str) else list(env_ids)
    if not ids:
        raise InvalidArgumentError("`env_ids` must name at least one environment, got none")
    total = population * episodes
    envs = [make_vector(inputs, total, env_arguments or {}) for inputs in ids]
    spaces: Any = envs[0].single_observation_space
    box: Any = envs[0].single_action_space
    for name in entries or ():
        require_known("entry", name, spaces.spaces)
    shapes = {name: spaces[name].shape for name in entries or spaces}
    sizes = [sum(map(math.prod, shapes.values())), *layers, box.low.size]
    num_weights = sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))
    search = cmaes.CMA(
        mean=np.zeros(num_weights),
        sigma=sigma,
        population_size=population,
        seed=int(stream(seed, "evolve_policy").integers(2**31)),
    )
    origin = {
        "algorithm": "CMA-ES",
        "seed": seed,
        "environments": ids,
        "env_arguments": dict(env_arguments or {}),
        "layers": list(layers),
        "settings": {"population": population, "episodes": episodes, "sigma": sigma},
    }

    def learned() -> Policy:
        network = _split_layers(search.mean[None], sizes)
        return Policy(
            entries=shapes,
            low=box.low,
            high=box.high,
            weights=tuple(layer[0, :-1] for layer in network),
            biases=tuple(layer[0, -1] for layer in network),
            activation="tanh",
            output="clip",
            mean=np.zeros(sizes[0]),
            deviation=np.ones(sizes[0]),
            limit=1e6,
            made_by=made_by,
            origin={**origin, "steps": done},
        )

    returns: list[NDArray[np.float64]] = []
    done = last_judged = 0
    while done < steps:
        candidates = np.stack([search.ask() for _ in range(population)])
        network = _split_layers(candidates.repeat(episodes, axis=0), sizes)
        weights, biases = (
            [inputs[:, :-1] for inputs in network],
            [inputs[:, -1:] for inputs in network],
        )

        def act(_: int, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
            rows = np.concatenate(
                [observation[name].reshape(total, 1, -1) for name in shapes], axis=2
            )
            raw = apply_layers(rows, weights, biases, "tanh").reshape(total, *box.shape)  # noqa: B023
            return np.clip(raw, box.low, box.high)

        fitness = np.zeros(population)
        for j, env in enumerate(envs):
            rng = stream(seed, "evolve_policy_reset", search.generation, j)
            seeds = rng.integers(2**31, size=episodes).tolist() * population
            episode_returns = np.zeros(total)
            for _, _, rewards, _ in play(env, act, progress, seed=seeds):
                episode_returns += rewards
                done += total
            returns.append(episode_returns)
            fitness += episode_returns.reshape(population, episodes).mean(axis=1) / len(envs)
        search.tell(list(zip(candidates, -fitness, strict=True)))
        if judge is not None and done - last_judged >= judge_every:
            last_judged = done
            judge(done, learned())
    for env in envs:
        env.close()
    return Training(learned(), np.concatenate(returns))


def _split_layers(genes: NDArray[np.float64], sizes: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return (P, inputs + 1, outputs) of every layer of P networks: weights, and last the bias."""
    shapes = [(inputs + 1, outputs) for inputs, outputs in pairwise(sizes)]
    pieces = np.split(genes, np.cumsum([math.prod(shape) for shape in shapes])[:-1], axis=1)
    return [
        piece.reshape(-1, *shape).astype(np.float32)
        for piece, shape in zip(pieces, shapes, strict=True)
    ]
