"""Learned policies as plain arrays, with numpy alone; loading one runs no code from the file.

Training with stable-baselines3, evolution and cloning all return a `Policy`; `PolicyAgent` and
examples use it. It is a fully connected network that reads named entries of an observation. Actions
are equal bit for bit for single observations and for batches (..., entry), which vector
environments rely on.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, SearchProblem
from fedhpo_gym.core.archive import MODEL_GROWTH, checked_card, write_archive
from fedhpo_gym.core.arrays import Floats, Singles
from fedhpo_gym.core.checks import coerce, short_repr
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError

FORMAT: Final = 1
STEM: Final = "policy"
MAX_LAYERS: Final = 1000
ACTIVATIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "tanh": np.tanh,
    "relu": lambda values: np.maximum(values, 0.0),
}
OUTPUTS: Final = ("clip", "tanh", "argmax")


@dataclass(frozen=True, eq=False)
class Policy:
    """A fully connected network from normalised observations to actions.

    Attributes:
        entries: shape of every entry of an observation, in the order the network reads them.
        weights: (inputs, outputs) of every layer, float32; `biases` are (outputs,).
        activation: between layers, a key of `ACTIVATIONS`.
        output: "clip" cuts the last layer's output off at the bounds, `low` and `high`; "tanh"
            spreads its tangent over them; "argmax" adds the row of `moves` with the highest
            output to the last action.
        mean: (inputs,) subtracted from observations, which `deviation` (inputs,) then divides.
        limit: largest magnitude of a normalised observation.
        moves: (K, ...) what "argmax" chooses among.
        made_by: command that trains it again, for the message about a damaged file.
        origin: what it was trained on and how, as JSON data.
    """

    entries: Mapping[str, tuple[int, ...]]
    low: Singles
    high: Singles
    weights: tuple[Singles, ...]
    biases: tuple[Singles, ...]
    activation: str
    output: str
    mean: Floats
    deviation: Floats
    limit: float
    made_by: str
    origin: Mapping[str, Any] = field(default_factory=dict)
    moves: Singles | None = None

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS or self.output not in OUTPUTS:
            raise InvalidArgumentError(
                f"`activation` must be one of {sorted(ACTIVATIONS)} and `output` one of {OUTPUTS}, "
                f"got {self.activation!r} and {self.output!r}."
            )
        arrays: list[NDArray[Any]] = [self.low, self.high, self.mean, self.deviation]
        arrays += [*self.weights, *self.biases, *([] if self.moves is None else [self.moves])]
        if kinds := {array.dtype.str for array in arrays if array.dtype.kind != "f"}:
            raise InvalidArgumentError(f"arrays of a policy must be floats, got {sorted(kinds)}.")
        inputs = sum(math.prod(shape) for shape in self.entries.values())
        widths = [inputs, *(weight.shape[-1] for weight in self.weights)]
        shapes = [(widths[i], widths[i + 1]) for i in range(len(self.weights))]
        outputs = self.low.size if self.moves is None else len(self.moves)
        fits = (
            [weight.shape for weight in self.weights] == shapes
            and [bias.shape for bias in self.biases] == [shape[1:] for shape in shapes]
            and self.mean.shape == self.deviation.shape == (inputs,)
            and widths[-1] == outputs
            and self.low.shape == self.high.shape
            and (self.output == "argmax") == (self.moves is not None)
            and (self.moves is None or self.moves.shape[1:] == self.low.shape)
        )
        if not self.weights or not fits:
            raise InvalidArgumentError(
                f"`weights` must lead from {inputs} inputs to {outputs} outputs, got "
                f"{[weight.shape for weight in self.weights]} with biases "
                f"{[bias.shape for bias in self.biases]} and {self.mean.shape} means; `moves` "
                "are for the output 'argmax'."
            )

    @property
    def action_space(self) -> gym.spaces.Box:
        return gym.spaces.Box(self.low, self.high, dtype=np.float32)

    def act(self, observation: Observation) -> Singles:
        """Return the most likely action for an observation, or for many along leading axes.

        Raises:
            InvalidArgumentError: an entry is missing or has another shape.
        """
        rows = self._rows(observation)
        # One vector at a time: a matrix product over many rows rounds otherwise.
        outputs = apply_layers(rows[..., None, :], self.weights, self.biases, self.activation)[
            ..., 0, :
        ]
        if self.moves is not None:
            return move_last_action(
                observation, self.moves[outputs.argmax(axis=-1)], self.action_space
            )
        outputs = outputs.reshape(*rows.shape[:-1], *self.low.shape)
        if self.output == "tanh":
            outputs = self.low + 0.5 * (np.tanh(outputs) + 1.0) * (self.high - self.low)
        return np.clip(outputs, self.low, self.high).astype(np.float32)

    def _rows(self, observation: Observation) -> Singles:
        """Return (..., inputs): the normalised entries side by side."""
        parts = []
        for name, shape in self.entries.items():
            if name not in observation:
                raise InvalidArgumentError(
                    f"`observation` must have {name!r}, got {sorted(observation)}; the policy was "
                    "trained in another environment."
                )
            value = np.asarray(observation[name], dtype=np.float64)
            leading = value.shape[: value.ndim - len(shape)]
            if value.shape[len(leading) :] != shape:
                raise InvalidArgumentError(
                    f"`observation[{name!r}]` must have shape (..., {shape}), got {value.shape}; "
                    "the policy was trained in another environment."
                )
            parts.append(value.reshape(*leading, math.prod(shape)))
        rows = (np.concatenate(parts, axis=-1) - self.mean) / self.deviation
        return np.clip(rows, -self.limit, self.limit).astype(np.float32)


def apply_layers(
    rows: Singles, weights: Sequence[Singles], biases: Sequence[Singles], activation: str
) -> Singles:
    """Return the last layer's (..., 1, outputs) of (..., 1, inputs), for a network or a stack."""
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        rows = (ACTIVATIONS[activation](rows) if index else rows) @ weight + bias
    return rows


def move_last_action(observation: Observation, moves: Singles, space: gym.spaces.Box) -> Singles:
    """Return last actions plus (...) moves, clipped to the space."""
    last = np.asarray(observation["last_action"], dtype=np.float32).reshape(moves.shape)
    return np.asarray(np.clip(last + moves, space.low, space.high))


def save_policy(policy: Policy, folder: Path | str) -> Path:
    """Write a policy as `policy.json` and the arrays it names; return the path of the former.

    Raises:
        InvalidArgumentError: `policy` is none, such as the `Training` that holds it.
    """
    if not isinstance(policy, Policy):
        advice = ": give its `policy`" if hasattr(policy, "policy") else ""
        raise InvalidArgumentError(
            f"`policy` must be a Policy, got a {type(policy).__name__}{advice}"
        )
    coerce("folder", folder, Path | str)
    card = {
        "format": FORMAT,
        "entries": [[name, list(shape)] for name, shape in policy.entries.items()],
        "activation": policy.activation,
        "output": policy.output,
        "limit": policy.limit,
        "layers": len(policy.weights),
        "made_by": policy.made_by,
        "origin": dict(policy.origin),
    }
    arrays = {name: getattr(policy, name) for name in ("low", "high", "mean", "deviation")}
    for index, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        arrays |= {f"weight_{index}": weight, f"bias_{index}": bias}
    if policy.moves is not None:
        arrays["moves"] = policy.moves
    return write_archive(Path(folder), STEM, card, arrays)


def load_policy(folder: Path | str) -> Policy:
    """Read what `save_policy` wrote: a policy with the same actions, bit for bit.

    Raises:
        MissingDataError: there is no policy in the folder.
        DamagedDataError: a file is damaged; names it and the command that makes it again.
    """
    card = Path(folder) / f"{STEM}.json"
    if not os.path.isfile(card):  # noqa: PTH113 - false for names that no file can have
        raise MissingDataError(
            f"there is no policy in {short_repr(str(folder))}; save one there with `save_policy`"
        )
    with checked_card(card, "policy", FORMAT, "train the policy again") as (content, stored):
        command, sha256, layers = content["made_by"], content["sha256"], int(content["layers"])
        if not 1 <= layers <= MAX_LAYERS:
            raise ValueError(f"`layers` must be in [1, {MAX_LAYERS}], got {layers}")
        entries = {str(name): tuple(map(int, shape)) for name, shape in content["entries"]}
        options = {name: content[name] for name in ("activation", "output", "origin")}
        options |= {"entries": entries, "limit": float(content["limit"]), "made_by": str(command)}
    arrays = stored.read(sha256, command, growth=MODEL_GROWTH)
    try:
        options |= {name: arrays[name] for name in ("low", "high", "mean", "deviation")}
        return Policy(
            weights=tuple(arrays[f"weight_{index}"] for index in range(layers)),
            biases=tuple(arrays[f"bias_{index}"] for index in range(layers)),
            moves=arrays.get("moves"),
            **options,
        )
    except (LookupError, ValueError, TypeError) as error:
        raise DamagedDataError(
            f"{stored.path} does not hold the policy its card describes ({error}); delete it and "
            f"run `{command}`"
        ) from error


@runtime_checkable
class Actor(Protocol):
    """An object with `act`: a learned `Policy` or a hand-made `Schedule`."""

    @property
    def action_space(self) -> gym.spaces.Box: ...
    def act(self, observation: Observation) -> Singles: ...


class PolicyAgent(Agent):
    """Follows a policy, and learns nothing more."""

    learned = "policy"
    seeded = False

    def __init__(self, problem: SearchProblem, *, policy: Actor | Path | str | None = None) -> None:
        """Take a policy, or the folder it was saved in; nothing is random: the seed is unused."""
        super().__init__(problem)
        if policy is None:
            raise InvalidArgumentError(
                "`policy` must be a policy or the folder of a saved one, got None; train one with "
                "`fedhpo_gym.agents.sb3.train`."
            )
        self.policy = load_policy(Path(policy)) if isinstance(policy, str | Path) else policy
        space = getattr(self.policy, "action_space", None)
        if space != self.action_space:
            raise InvalidArgumentError(
                f"`policy` must act in {self.action_space}, got {type(self.policy).__name__} for "
                f"{space}; make one for this environment."
            )

    def ask(self, observation: Observation) -> Singles:
        return self.policy.act(observation)
