"""Behaviour cloning: a network that imitates sequences of actions that are known to be good."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.policy import Policy
from fedhpo_gym.agents.training import Progress, make_vector, play
from fedhpo_gym.core.errors import InvalidArgumentError, require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("cloning a policy", "scikit-learn", "agents", "sklearn"):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

Observations = dict[str, NDArray[np.float32]]


def demonstrate(
    env_id: str,
    instances: Sequence[int],
    sequences: NDArray[np.float32],
    *,
    noise: float = 0.0,
    seed: int = 0,
    env_arguments: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> tuple[Observations, NDArray[np.float32]]:
    """Play sequences of actions in a round environment; return observations and targets, (B, ...).

    With noise, the played actions differ from the targets, so that a clone learns to recover, and
    cannot just repeat `last_action` (Laskey et al., 2017, with one level of noise).

    Args:
        instances: (S,) instances that the sequences are played on.
        sequences: (S, T, ...) actions of S episodes, which are played side by side.
        noise: standard deviation of noise that is added to actions.
    """
    env = make_vector(env_id, len(sequences), env_arguments or {})
    moves = stream(seed, "demonstrate").normal(0.0, noise, sequences.shape)
    noisy_sequences = np.clip(sequences + moves, -1.0, 1.0).astype(np.float32)
    observed: list[Observations] = []
    targets: list[NDArray[np.float32]] = []
    options = {"instance": [*instances]}

    def act(step: int, _: object) -> NDArray[np.float32]:
        if step == noisy_sequences.shape[1]:
            raise InvalidArgumentError(
                f"`sequences` must go on until episodes end, got {step} actions in each"
            )
        return noisy_sequences[:, step]

    for observation, _, _, alive in play(env, act, progress, options=options):
        targets.append(sequences[alive, len(targets)])
        observed.append({name: values[alive] for name, values in observation.items()})
    env.close()
    observations = {
        name: np.concatenate([entries[name] for entries in observed]) for name in observed[0]
    }
    return observations, np.concatenate(targets)


def clone(
    observations: Mapping[str, NDArray[np.floating]],
    actions: NDArray[np.floating],
    *,
    seed: int,
    layers: Sequence[int] = (32,),
    entries: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    made_by: str = "fedhpo_gym.agents.cloning.clone",
) -> Policy:
    """Fit a policy to (B, ...) actions and the observations that they followed, by least squares.

    Args:
        observations: (B, ...) each, as `demonstrate` returns them.
        actions: in [-1, 1].
        layers: widths of the hidden layers; none is a linear policy.
        entries: of observations that the policy reads; by default all.
        settings: further arguments of scikit-learn's `MLPRegressor`.
    """
    shapes = {name: observations[name].shape[1:] for name in entries or observations}
    num_pairs = len(actions)
    rows = np.concatenate([observations[name].reshape(num_pairs, -1) for name in shapes], axis=1)
    mean, deviation = rows.mean(axis=0, dtype=float), rows.std(axis=0, dtype=float)
    deviation = np.where(deviation < 1e-2, 1.0, deviation)  # small differences are not blown up
    network = MLPRegressor(
        hidden_layer_sizes=tuple(layers),
        random_state=int(stream(seed, "clone").integers(2**32)),
        **{"activation": "tanh", "max_iter": 500, **(settings or {})},
    )
    targets = actions.reshape(num_pairs, -1).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the caller says how long it is fitted
        network.fit((rows - mean) / deviation, targets[:, 0] if targets.shape[1] == 1 else targets)
    bound = np.ones(actions.shape[1:], dtype=np.float32)
    return Policy(
        entries=shapes,
        low=-bound,
        high=bound,
        weights=tuple(weight.astype(np.float32) for weight in network.coefs_),
        biases=tuple(bias.astype(np.float32) for bias in network.intercepts_),
        activation=network.activation,
        output="clip",
        mean=mean,
        deviation=deviation,
        limit=10.0,
        made_by=made_by,
        origin={"algorithm": "cloning", "pairs": num_pairs, "seed": seed, "layers": list(layers)},
    )
