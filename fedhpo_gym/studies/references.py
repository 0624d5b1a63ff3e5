"""References of round environments: returns of actions that learn nothing, and of hindsight.

Every reference is a sequence of actions, one per step, played on instances. From the least to the
most that it knows: actions drawn at random; the default, the middle of the action space; the best
static action and the best stated schedule, both searched on train instances; and for each test
instance the best sequence that an evolution finds on it, which is an estimate from below of what
can be reached. Scores say where a return stands: 0 is the default's, 1 the best static action's.
"""

from collections.abc import Callable, Mapping, Sequence
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
        return self._play(np.asarray(instances), lambda rows, t, _: sequences[rows, t])[0]

    def _play(
        self, instances: Integers, act: Callable[[Integers, int, Floats], Actions]
    ) -> tuple[Floats, Actions]:
        """Return the (B,) returns and (B, steps, n) actions of episodes on B instances.

        `act` is given who acts, the step, and which parts of their budgets are spent.
        """
        number = len(instances)
        returns = np.zeros(number)
        actions = np.zeros((number, self.steps, len(self.space)), np.float32)
        for first in range(0, number, self._width):
            rows = np.minimum(first + np.arange(self._width), number - 1)
            total, spent = np.zeros(self._width), np.zeros(self._width)
            ended = np.zeros(self._width, dtype=np.intp)
            chosen = partial(self._chosen, act, rows)
            where = {"instance": instances[rows]}
            for t, (seen, taken, rewards, alive) in enumerate(
                play(self._envs, chosen, options=where)
            ):
                actions[rows, t] = taken
                total, ended = total + rewards, ended + alive
                spent = np.where(alive, _spent(seen), spent)
            for t in range(int(ended.min()), self.steps):  # as if it had gone on
                late = t >= ended
                actions[rows[late], t] = act(rows[late], t, spent[late])
            returns[rows] = total
            self._progress(len({*rows.tolist()}))
        return returns, actions

    @staticmethod
    def _chosen(act: Any, rows: Integers, t: int, seen: Any) -> Any:
        return act(rows, t, _spent(seen))

    def follow(self, schedules: Sequence[Schedule], instances: Indices) -> tuple[Floats, Actions]:
        """Return (S, I) returns of S schedules on I instances, and (S, I, steps, n) actions."""
        number = len(instances)

        def act(rows: Integers, t: int, spent: Floats) -> Actions:
            done = np.maximum(t / self.steps, spent).tolist()
            pairs = zip((rows // number).tolist(), done, strict=True)
            return np.stack([schedules[own].at(share) for own, share in pairs])

        returns, actions = self._play(np.tile(instances, len(schedules)), act)
        shape = len(schedules), number
        return returns.reshape(shape), actions.reshape(*shape, *actions.shape[1:])

    def warm_up(self) -> None:
        """Play the default once in all environments."""
        size = len(self.space)
        self.play([0] * self._width, np.zeros((self._width, self.steps, size), np.float32))

    def close(self) -> None:
        self._envs.close()


def _spent(seen: Mapping[str, Any]) -> Floats:
    return np.asarray(1.0 - seen["remaining_budget"][:, 0].astype(np.float64))


def _schedules(space: SearchSpace, kind: str, actions: Actions) -> list[Schedule]:
    """Return the schedules of a kind that begin with each of (S, n) actions."""
    return [Schedule(space, space.decode(action), kind) for action in actions]


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
        begin: (S, I, steps, n) sequences to begin with.
        known: (S, I) their returns.
    """
    parents = 4
    steps, size = begin.shape[2:]
    best = np.argsort(-known, axis=0)[:parents].T
    pool = begin[best, np.arange(len(best))[:, None]]  # (I, parents, steps, n)
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
        width: environments side by side, fewer for little effort; it changes no number.
        progress: called with the number of episodes played since the last call.
    """
    rng = stream(0, f"references {env_id}")
    width = min(width, effort.configurations)
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

        def means_of(tried: Actions, instances: Indices) -> Floats:
            schedules = _schedules(train.space, kind, tried)
            return np.asarray(train.follow(schedules, instances)[0].mean(axis=1))

        pool = actions[np.argsort(-means_of(actions, few), kind="stable")[: effort.kept]]
        means = means_of(pool, many)
        for scale in (0.3, 0.1):
            best = pool[np.argsort(-means, kind="stable")[:3]]
            noise = scale * rng.standard_normal((effort.kept, size))
            moved = best[rng.integers(len(best), size=effort.kept)] + noise
            near = np.clip(moved, -1.0, 1.0).astype(np.float32)
            pool = np.concatenate([pool, near])
            means = np.concatenate([means, means_of(near, many)])
        order = np.argsort(-means, kind="stable")
        return pool[order[: effort.kept]], float(means[order[0]])

    kinds = [kind for kind, changed in KINDS.items() if set(changed) <= set(train.space.names)]
    found = {kind: searched(kind) for kind in kinds}
    stated = {"default": _schedules(train.space, "static", middle)[0]}
    stated |= {k: _schedules(train.space, k, own[:1])[0] for k, (own, _) in found.items()}
    others = _schedules(train.space, "static", found["static"][0][1:])
    best_schedule = max(kinds[1:], key=lambda kind: found[kind][1], default=None)
    held_out = spread(test.instances, effort.test)
    known, begin = test.follow([*stated.values(), *others], held_out)
    anything = rng.uniform(-1.0, 1.0, (RANDOM, steps, size)).astype(np.float32)
    played = test.play(np.tile(held_out, RANDOM), anything.repeat(len(held_out), axis=0))
    returns = {"random": played.reshape(RANDOM, -1).mean(axis=0)}
    returns |= dict(zip(stated, known, strict=False))
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
