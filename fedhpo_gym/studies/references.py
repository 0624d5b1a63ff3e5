"""References of round environments: returns of actions that learn nothing, and of hindsight.

Every reference is a sequence of actions, one per step, played on instances. From the least to the
most that it knows: actions drawn at random; the default, the middle of the action space; the best
static action and the best stated schedule, both searched on train instances; and for each test
instance the best sequence that an evolution finds on it, which is an estimate from below of what
can be reached. Scores say where a return stands: 0 is the default's, 1 the best static action's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import gymnasium as gym
import numpy as np

from fedhpo_gym.agents.schedule import KINDS, Schedule
from fedhpo_gym.agents.training import Progress, play
from fedhpo_gym.core.arrays import Floats, Integers, Singles
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.references import HINDSIGHT, References
from fedhpo_gym.studies.environments import resolve_id
from fedhpo_gym.studies.suites import suite

Actions = Singles
Indices = Sequence[int] | Integers
RANDOM: Final = 4
"""Random sequences on each instance, whose mean return counts."""


class Player:
    """Plays sequences of actions on instances of a round environment, many side by side.

    Attributes:
        steps: most steps of an episode.
        space: what an action is decoded to.
        instances: how many there are.
    """

    def __init__(
        self, env_id: str, instances: str, width: int, progress: Progress = lambda _: None
    ) -> None:
        envs: Any = gym.make_vec(env_id, width, "vector_entry_point", instances=instances)
        self._envs, self._progress, process = envs, progress, envs.process
        self.steps = process.settings.horizon // process.settings.rounds_per_step
        self.space: SearchSpace = process.controls.space
        self.instances = len(process.instances)
        self._width = width

    def play(self, instances: Indices, sequences: Actions) -> Floats:
        """Return the (B,) returns of (B, steps, n) sequences on B instances."""
        parts = [
            self._play(np.asarray(instances[k : k + self._width]), sequences[k : k + self._width])
            for k in range(0, len(sequences), self._width)
        ]
        return np.concatenate(parts)

    def _play(self, instances: Integers, sequences: Actions) -> Floats:
        number = len(instances)
        rows = np.minimum(np.arange(self._width), number - 1)
        where = {"instance": instances[rows]}
        returns = np.zeros(self._width)
        for _, _, rewards, _ in play(self._envs, lambda t, _: sequences[rows, t], options=where):
            returns += rewards
        self._progress(number)
        return returns[:number]

    def warm_up(self) -> None:
        """Play the default once in all environments."""
        size = len(self.space)
        self.play([0] * self._width, np.zeros((self._width, self.steps, size), np.float32))

    def everywhere(self, sequences: Actions, instances: Indices) -> Floats:
        """Return (S, I) returns of S sequences on each of I instances."""
        many = np.repeat(sequences, len(instances), axis=0)
        found = self.play(np.tile(instances, len(sequences)), many)
        return found.reshape(len(sequences), len(instances))

    def close(self) -> None:
        self._envs.close()


def _sequences(space: SearchSpace, kind: str, steps: int, actions: Actions) -> Actions:
    """Return the (S, steps, n) sequences of a schedule that begins with each of (S, n) actions."""
    if kind == "static":
        return np.repeat(actions[:, None], steps, axis=1)
    found = [Schedule(space, space.decode(action), kind) for action in actions]
    return np.stack([one.sequence(steps) for one in found])


@dataclass(frozen=True)
class Effort:
    """How much is searched: courses are `configurations` x (`few` instances), and so on."""

    configurations: int = 96
    few: int = 4
    kept: int = 12
    train: int = 16
    test: int = 16
    generations: int = 24
    children: int = 24

    @property
    def episodes(self) -> int:
        """Courses that are played at most."""
        kinds = len(KINDS)
        searched = kinds * (self.configurations * self.few + 3 * self.kept * self.train)
        begun = kinds + 1 + self.kept + RANDOM
        return searched + self.test * (begun + self.generations * self.children)


def spread(total: int, number: int) -> list[int]:
    """Return so many of the indices below a total, evenly spread."""
    found: list[int] = np.linspace(0, total - 1, min(number, total)).round().astype(int).tolist()
    return found


def evolve(
    player: Player,
    instances: Indices,
    begin: Actions,
    known: Floats,
    effort: Effort,
    rng: np.random.Generator,
) -> tuple[Floats, Actions]:
    """Return for each of I instances the best return found, (I,), and its sequence.

    Args:
        begin: (S, steps, n) sequences to begin with.
        known: (S, I) their returns.
    """
    parents = 4
    steps, size = begin.shape[1:]
    best = np.argsort(-known, axis=0)[:parents].T
    pool = begin[best]  # (I, parents, steps, n)
    fitness = np.take_along_axis(known.T, best, axis=1)
    for _ in range(effort.generations):
        picked = rng.integers(pool.shape[1], size=(len(instances), effort.children))
        chosen: Any = np.take_along_axis(pool, picked[:, :, None, None], axis=1)
        moved = chosen + _smooth_noise(rng, chosen.shape)
        children = np.clip(moved, -1.0, 1.0).astype(np.float32)
        flat = children.reshape(-1, steps, size)
        found = player.play(np.repeat(instances, effort.children), flat)
        both = np.concatenate([pool, children], axis=1)
        values = np.concatenate([fitness, found.reshape(len(instances), -1)], axis=1)
        order = np.argsort(-values, axis=1, kind="stable")[:, :parents]
        pool = np.take_along_axis(both, order[:, :, None, None], axis=1)
        fitness = np.take_along_axis(values, order, axis=1)
    return fitness[:, 0], pool[:, 0]


def _smooth_noise(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return changes of sequences: lines through few random knots, of few of the dimensions."""
    *_, steps, size = shape
    noise = np.zeros(shape)
    for child in noise.reshape(-1, steps, size):
        knots = int(rng.integers(1, 6))
        scale = 10.0 ** rng.uniform(-1.5, 0.0)
        moved = rng.random(size) < 0.6
        moved[rng.integers(size)] = True
        at = np.sort(rng.integers(steps, size=knots))
        for column in np.flatnonzero(moved):
            child[:, column] = np.interp(np.arange(steps), at, rng.normal(0.0, scale, knots))
        if rng.random() < 0.5:  # only a part of the course
            first = int(rng.integers(steps))
            child[:first] = 0.0
    return noise


EFFORTS: Final[Mapping[str, Effort]] = {
    "full": Effort(),
    "half": Effort(48, 4, 8, 8, 16, 12, 16),
    "small": Effort(24, 2, 4, 4, 8, 6, 8),
    "least": Effort(8, 1, 2, 2, 4, 2, 4),
}
"""How much is searched; what is slow gets less. Kinds of references are the same in all."""


def find_references(
    env_id: str, effort: Effort, *, width: int = 64, progress: Progress = lambda _: None
) -> References:
    """Play and search the references of a round environment with its default arguments.

    Args:
        env_id: with its version.
        width: environments that are played side by side; it changes no number.
        progress: called with the number of episodes played since the last call.
    """
    rng = stream(0, f"references {env_id}")
    train, test = (Player(env_id, one, width, progress) for one in ("train", "test"))
    size, steps = len(train.space), train.steps
    drawn = rng.uniform(-1.0, 1.0, (effort.configurations - 1, size))
    middle = np.zeros((1, size), dtype=np.float32)
    actions = np.concatenate([middle, drawn]).astype(np.float32)
    few, many = spread(train.instances, effort.few), spread(train.instances, effort.train)

    def searched(kind: str) -> tuple[Actions, float]:
        """Return the (K, n) best actions of a kind on train instances, and the return of the first.

        Random ones, and then neighbours of the best three.
        """
        played = partial(_sequences, train.space, kind, steps)
        first = np.argsort(-train.everywhere(played(actions), few).mean(axis=1), kind="stable")
        pool = actions[first[: effort.kept]]
        means = train.everywhere(played(pool), many).mean(axis=1)
        for scale in (0.3, 0.1):
            best = pool[np.argsort(-means, kind="stable")[:3]]
            noise = scale * rng.standard_normal((effort.kept, size))
            moved = best[rng.integers(len(best), size=effort.kept)] + noise
            near = np.clip(moved, -1.0, 1.0).astype(np.float32)
            pool = np.concatenate([pool, near])
            means = np.concatenate([means, train.everywhere(played(near), many).mean(axis=1)])
        order = np.argsort(-means, kind="stable")
        return pool[order[: effort.kept]], float(means[order[0]])

    kinds = [kind for kind, changed in KINDS.items() if set(changed) <= set(train.space.names)]
    found = {kind: searched(kind) for kind in kinds}
    sequences = {"default": _sequences(train.space, "static", steps, middle)[0]}
    sequences |= {k: _sequences(train.space, k, steps, own[:1])[0] for k, (own, _) in found.items()}
    others = _sequences(train.space, "static", steps, found["static"][0][1:])
    best_schedule = max(kinds[1:], key=lambda kind: found[kind][1], default=None)
    held_out = spread(test.instances, effort.test)
    begin = np.stack([*sequences.values(), *others])
    known = test.everywhere(begin, held_out)
    anything = rng.uniform(-1.0, 1.0, (RANDOM, steps, size)).astype(np.float32)
    returns = {"random": test.everywhere(anything, held_out).mean(axis=0)}
    returns |= dict(zip(sequences, known, strict=False))
    returns[HINDSIGHT] = evolve(test, held_out, begin, known, effort, rng)[0]
    train.close()
    test.close()
    return References(
        env_id,
        tuple(held_out),
        {name: tuple(values.tolist()) for name, values in returns.items()},
        {kind: train.space.decode(best[0]) for kind, (best, _) in found.items()},
        best_schedule,
        vars(effort),
    )


def round_ids(words: Sequence[str]) -> list[str]:
    """Return the round ids that ids and suites name; of `all`, the newest versions."""
    found: list[str] = []
    for word in words or ("dac",):
        if word == "all":
            ids = (one for one in gym.registry if one.startswith("FedHPO-DAC-"))
            found += map(resolve_id, dict.fromkeys(one.rpartition("-v")[0] for one in ids))
        else:
            found += [resolve_id(word)] if word.startswith("FedHPO-") else suite(word)
    for one in found:
        if not one.startswith("FedHPO-DAC-"):
            raise InvalidArgumentError(
                f"`ids` must be of round environments, `FedHPO-DAC-*`, got {one!r}; see "
                "`fedhpo-gym list dac`"
            )
    return list(dict.fromkeys(found))
