"""Networks trained to tune, as plain arrays; numpy runs them, and loading one runs no code."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.core.archive import checked_card, write_archive
from fedhpo_gym.core.arrays import Singles
from fedhpo_gym.core.checks import short_repr
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.space import SearchSpace

FORMAT: Final = 1
STORED: Final = Path(__file__).parent / "data"
"""Networks that travel with the package, as <agent>-<search space>.json."""
TRIALS: Final = 25
"""Trials of the episodes that networks are trained on: shares of a budget are of these."""
LARGEST: Final = 1024
"""Largest size of a part of a network."""
PRICE_WIDTH: Final = 32
HIGHEST: Final = 1e6
"""Largest weight."""

Sizes = Mapping[str, int]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class LearnedNetwork:
    """A network for one search space.

    Attributes:
        agent: name of the agent that runs it.
        space: what it tunes.
        sizes: of its parts, by which the shapes of its arrays are known.
        arrays: its weights, float32, named and laid out as torch does.
        made_by: command that trains it again, for the message about a damaged file.
        origin: what it was trained on and how, as JSON data.
    """

    agent: str
    space: SearchSpace
    sizes: Sizes
    arrays: Mapping[str, Singles]
    made_by: str
    origin: Mapping[str, Any] = field(default_factory=dict)

    def linear(self, name: str, rows: Singles) -> Singles:
        """Return a layer's (..., outputs) of (..., inputs)."""
        bias = self.arrays.get(f"{name}.bias", np.float32(0.0))
        return np.asarray(rows @ self.arrays[f"{name}.weight"].T + bias, np.float32)

    def perceptron(self, name: str, rows: Singles) -> Singles:
        """Return what two layers make of (..., inputs), x / (1 + exp(-x)) between them."""
        hidden = self.linear(f"{name}.0", rows)
        return self.linear(f"{name}.2", hidden * logistic(hidden))

    def price(self, points: Singles) -> Singles:
        """Return (...,) costs of (..., F) points, as shares of a random one's."""
        return np.asarray(np.exp(self.perceptron("price", points)[..., 0]))


PolicySource: TypeAlias = LearnedNetwork | Path | str | None
"""Argument of an agent: a network, the path of its card, or None for a stored one."""


def logistic(values: Singles) -> Singles:
    """Return 1 / (1 + exp(-x)) of any x."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)), np.float32)


def linear_shapes(name: str, inputs: int, outputs: int) -> Shapes:
    """Return the shapes of the arrays of a layer."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def perceptron_shapes(name: str, first: int, hidden: int, last: int) -> Shapes:
    """Return the shapes of the arrays of two layers."""
    return linear_shapes(f"{name}.0", first, hidden) | linear_shapes(f"{name}.2", hidden, last)


def save_network(network: LearnedNetwork, folder: Path | str, stem: str) -> Path:
    """Write a network as `<stem>.json` and the arrays it names; return the path of the former."""
    card = {"format": FORMAT, "search_space": network.space.to_dict()}
    card |= {name: getattr(network, name) for name in ("agent", "sizes", "made_by", "origin")}
    return write_archive(Path(folder), stem, card, network.arrays)


def load_network(card: Path | str, agent: str, shapes: Callable[[Sizes], Shapes]) -> LearnedNetwork:
    """Read what `save_network` wrote for an agent; a missing or a damaged file is an error."""
    if not os.path.isfile(card):  # noqa: PTH113 - false for names that no file can have
        raise MissingDataError(
            f"there is no network at {short_repr(str(card))}; leave `policy` out for the stored "
            "ones"
        )
    with checked_card(Path(card), "network", FORMAT, "train it again") as (content, stored):
        if content["agent"] != agent:
            raise ValueError(f"it is one of {short_repr(content['agent'])}, and not of {agent}")
        space, command = SearchSpace.from_dict(content["search_space"]), str(content["made_by"])
        sizes = {str(name): int(size) for name, size in content["sizes"].items()}
        if not all(1 <= size <= LARGEST for size in sizes.values()):
            raise ValueError(f"`sizes` must be from 1 to {LARGEST}, got {sizes}")
        features = space.features(np.zeros((1, len(space)), np.float32)).shape[1]
        sizes |= {"features": features, "dimensions": len(space)}
        array_shapes, origin, sha256 = shapes(sizes), content["origin"], content["sha256"]
    arrays = stored.read(sha256, command, array_shapes)
    if not all(
        array.dtype == np.float32 and (abs(array) <= HIGHEST).all() for array in arrays.values()
    ):
        rule = f"must hold float32 numbers of {HIGHEST:.0e} at most"
        raise DamagedDataError(f"{stored.path} {rule}; delete it and run `{command}`")
    return LearnedNetwork(agent, space, sizes, arrays, command, origin)


def network_for(
    agent: str, shapes: Callable[[Sizes], Shapes], problem: SearchProblem, policy: PolicySource
) -> LearnedNetwork:
    """Return the network that was given, or the stored one, of a problem's search space."""
    if policy is not None:
        network = (
            policy if isinstance(policy, LearnedNetwork) else load_network(policy, agent, shapes)
        )
        if (network.agent, network.space) == (agent, problem.search_space):
            return network
        raise InvalidArgumentError(
            f"`policy` must be a network of {agent!r} for the search space of the environment, "
            f"{list(problem.search_space.names)}, got one of {network.agent!r} for "
            f"{list(network.space.names)}; use it in the environments that it was trained for."
        )
    cards = sorted(STORED.glob(f"{agent}-*.json"))
    for stored in (load_network(card, agent, shapes) for card in cards):
        if stored.space == problem.search_space:
            return stored
    spaces = [card.stem.removeprefix(f"{agent}-") for card in cards]
    free = problem.fidelities.names
    fixing = f", or fix {list(free)}, which none of these chooses" if free else ""
    raise InvalidArgumentError(
        f"`policy` must be the path of a network for {list(problem.search_space.names)}, got None, "
        f"and stored are those for the search spaces {spaces} of FedHPO-B; train one with "
        f"docs/studies/train_learned.py{fixing}."
    )
