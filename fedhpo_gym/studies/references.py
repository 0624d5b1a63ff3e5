"""References of round environments: returns of policies that learn nothing, and of hindsight.

`fedhpo-gym references` calls `find_references` and stores the result. Every reference is a sequence
of actions, one per step, played on instances. With increasing knowledge, they are: random actions;
the default, the middle of the action space; the best static action and the best named schedule,
both searched on train instances; and for each test instance the best sequence that an evolution
finds on it, a lower bound of what can be reached. Scores are linear in returns: the default has 0,
the best static action 1. Names of axes: B episodes, S sequences, I instances, n coordinates.
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
        space: search space of an action.
        instances: number of instances.
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

        `act` takes the rows that act, the step, and the used shares of their budgets.
        """
        count = len(instances)
        returns = np.zeros(count)
        actions = np.zeros((count, self.steps, len(self.space)), np.float32)
        for first in range(0, count, self._width):
            rows = np.minimum(first + np.arange(self._width), count - 1)
            total, used_budget = np.zeros(self._width), np.zeros(self._width)
            lengths = np.zeros(self._width, dtype=np.intp)
            chosen = partial(self._chosen, act, rows)
            options = {"instance": instances[rows]}
            for t, (observation, played, rewards, alive) in enumerate(
                play(self._envs, chosen, options=options)
            ):
                actions[rows, t] = played
                total, lengths = total + rewards, lengths + alive
                used_budget = np.where(alive, _used_budget(observation), used_budget)
            # A sequence is complete, as if an episode that ended early had continued.
            for t in range(int(lengths.min()), self.steps):
                missing = t >= lengths
                actions[rows[missing], t] = act(rows[missing], t, used_budget[missing])
            returns[rows] = total
            self._progress(len({*rows.tolist()}))
        return returns, actions

    @staticmethod
    def _chosen(act: Any, rows: Integers, t: int, observation: Any) -> Any:
        return act(rows, t, _used_budget(observation))

    def follow(self, schedules: Sequence[Schedule], instances: Indices) -> tuple[Floats, Actions]:
        """Return (S, I) returns of S schedules on I instances, and (S, I, steps, n) actions."""
        count = len(instances)

        def act(rows: Integers, t: int, used_budget: Floats) -> Actions:
            shares = np.maximum(t / self.steps, used_budget).tolist()
            pairs = zip((rows // count).tolist(), shares, strict=True)
            return np.stack([schedules[index].at(share) for index, share in pairs])

        returns, actions = self._play(np.tile(instances, len(schedules)), act)
        shape = len(schedules), count
        return returns.reshape(shape), actions.reshape(*shape, *actions.shape[1:])

    def warm_up(self) -> None:
        """Play the default once in all environments."""
        size = len(self.space)
        self.play([0] * self._width, np.zeros((self._width, self.steps, size), np.float32))

    def close(self) -> None:
        self._envs.close()


def _used_budget(observation: Mapping[str, Any]) -> Floats:
    return np.asarray(1.0 - observation["remaining_budget"][:, 0].astype(np.float64))


def _make_schedules(space: SearchSpace, kind: str, actions: Actions) -> list[Schedule]:
    """Return the schedules of a kind that begin with each of (S, n) actions."""
    return [Schedule(space, space.decode(action), kind) for action in actions]


@dataclass(frozen=True)
class SearchBudget:
    """Size of a search: courses are `configurations` x (`few` instances), and so on.

    References store the fields by name, so their names are part of the file format.
    """

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
        search = kinds * (self.configurations * self.few + 3 * self.kept * self.train)
        starts = kinds + 1 + self.kept + RANDOM
        return search + self.test * (starts + self.generations * self.children)


def evenly_spaced(total: int, count: int) -> list[int]:
    """Return `number` indices below a total, evenly spaced."""
    indices: list[int] = np.linspace(0, total - 1, min(count, total)).round().astype(int).tolist()
    return indices


def evolve(
    player: Player,
    instances: Indices,
    begin: Actions,
    begin_returns: Floats,
    effort: SearchBudget,
    rng: np.random.Generator,
) -> tuple[Floats, Actions]:
    """Return for each of I instances the best return found, (I,), and its sequence.

    Args:
        begin: (S, I, steps, n) sequences to begin with.
        begin_returns: (S, I) their returns.
    """
    parents = 4
    steps, size = begin.shape[2:]
    best = np.argsort(-begin_returns, axis=0)[:parents].T
    pool = begin[best, np.arange(len(best))[:, None]]  # (I, parents, steps, n)
    fitness = np.take_along_axis(begin_returns.T, best, axis=1)
    for _ in range(effort.generations):
        choices = rng.integers(pool.shape[1], size=(len(instances), effort.children))
        bases: Any = np.take_along_axis(pool, choices[:, :, None, None], axis=1)
        mutated = bases + _smooth_noise(rng, bases.shape)
        children = np.clip(mutated, -1.0, 1.0).astype(np.float32)
        flat = children.reshape(-1, steps, size)
        returns = player.play(np.repeat(instances, effort.children), flat)
        candidates = np.concatenate([pool, children], axis=1)
        values = np.concatenate([fitness, returns.reshape(len(instances), -1)], axis=1)
        order = np.argsort(-values, axis=1, kind="stable")[:, :parents]
        pool = np.take_along_axis(candidates, order[:, :, None, None], axis=1)
        fitness = np.take_along_axis(values, order, axis=1)
    return fitness[:, 0], pool[:, 0]


def _smooth_noise(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return changes of sequences: lines through few random knots, of few of the dimensions."""
    *_, steps, size = shape
    noise = np.zeros(shape)
    for child in noise.reshape(-1, steps, size):
        knots = int(rng.integers(1, 6))
        scale = 10.0 ** rng.uniform(-1.5, 0.0)
        is_moved = rng.random(size) < 0.6
        is_moved[rng.integers(size)] = True
        knot_steps = np.sort(rng.integers(steps, size=knots))
        for column in np.flatnonzero(is_moved):
            child[:, column] = np.interp(
                np.arange(steps), knot_steps, rng.normal(0.0, scale, knots)
            )
        if rng.random() < 0.5:  # only the rest of the course
            first = int(rng.integers(steps))
            child[:first] = 0.0
    return noise


SEARCH_BUDGETS: Final[Mapping[str, SearchBudget]] = {
    "full": SearchBudget(),
    "half": SearchBudget(48, 4, 8, 8, 16, 12, 16),
    "small": SearchBudget(24, 2, 4, 4, 8, 6, 8),
    "least": SearchBudget(8, 1, 2, 2, 4, 2, 4),
}
"""Sizes by name: slow environments use a smaller one. Kinds of references are the same in all."""


def find_references(
    env_id: str, effort: SearchBudget, *, width: int = 64, progress: Progress = lambda _: None
) -> References:
    """Play and search the references of a round environment with its default arguments.

    Args:
        env_id: with its version.
        width: environments side by side, fewer for little effort; it changes no number.
        progress: called with the number of episodes played since the last call.
    """
    rng = stream(0, f"references {env_id}")
    width = min(width, effort.configurations)
    train, test = (Player(env_id, split, width, progress) for split in ("train", "test"))
    size, steps = len(train.space), train.steps
    random_actions = rng.uniform(-1.0, 1.0, (effort.configurations - 1, size))
    middle = np.zeros((1, size), dtype=np.float32)
    actions = np.concatenate([middle, random_actions]).astype(np.float32)
    few, many = (
        evenly_spaced(train.instances, effort.few),
        evenly_spaced(train.instances, effort.train),
    )

    def searched(schedule_kind: str) -> tuple[Actions, float]:
        """Return the (K, n) best actions of a kind on train instances, and the return of the first.

        Random ones, and then neighbours of the best three.
        """

        def means_of(candidates: Actions, instances: Indices) -> Floats:
            schedules = _make_schedules(train.space, schedule_kind, candidates)
            return np.asarray(train.follow(schedules, instances)[0].mean(axis=1))

        pool = actions[np.argsort(-means_of(actions, few), kind="stable")[: effort.kept]]
        means = means_of(pool, many)
        for scale in (0.3, 0.1):
            best = pool[np.argsort(-means, kind="stable")[:3]]
            noise = scale * rng.standard_normal((effort.kept, size))
            mutated = best[rng.integers(len(best), size=effort.kept)] + noise
            neighbours = np.clip(mutated, -1.0, 1.0).astype(np.float32)
            pool = np.concatenate([pool, neighbours])
            means = np.concatenate([means, means_of(neighbours, many)])
        order = np.argsort(-means, kind="stable")
        return pool[order[: effort.kept]], float(means[order[0]])

    kinds = [
        schedule_kind
        for schedule_kind, factors in KINDS.items()
        if set(factors) <= set(train.space.names)
    ]
    best_of_kind = {schedule_kind: searched(schedule_kind) for schedule_kind in kinds}
    stated = {"default": _make_schedules(train.space, "static", middle)[0]}
    stated |= {
        k: _make_schedules(train.space, k, own[:1])[0] for k, (own, _) in best_of_kind.items()
    }
    others = _make_schedules(train.space, "static", best_of_kind["static"][0][1:])
    best_schedule = max(
        kinds[1:], key=lambda schedule_kind: best_of_kind[schedule_kind][1], default=None
    )
    held_out = evenly_spaced(test.instances, effort.test)
    starts, begin = test.follow([*stated.values(), *others], held_out)
    random_sequences = rng.uniform(-1.0, 1.0, (RANDOM, steps, size)).astype(np.float32)
    random_returns = test.play(
        np.tile(held_out, RANDOM), random_sequences.repeat(len(held_out), axis=0)
    )
    returns = {"random": random_returns.reshape(RANDOM, -1).mean(axis=0)}
    returns |= dict(zip(stated, starts, strict=False))
    returns[HINDSIGHT] = evolve(test, held_out, begin, starts, effort, rng)[0]
    train.close()
    test.close()
    return References(
        env_id,
        tuple(held_out),
        {name: tuple(values.tolist()) for name, values in returns.items()},
        {
            schedule_kind: train.space.decode(best[0])
            for schedule_kind, (best, _) in best_of_kind.items()
        },
        best_schedule,
        vars(effort),
    )


def round_ids(names: Sequence[str]) -> list[str]:
    """Return the round ids that ids and suites name; of `all`, the newest versions."""
    resolved: list[str] = []
    for name in names or ("dac",):
        if name == "all":
            ids = (env_id for env_id in gym.registry if env_id.startswith("FedHPO-DAC-"))
            resolved += map(resolve_id, dict.fromkeys(env_id.rpartition("-v")[0] for env_id in ids))
        else:
            resolved += [resolve_id(name)] if name.startswith("FedHPO-") else suite(name)
    for env_id in resolved:
        if not env_id.startswith("FedHPO-DAC-"):
            raise InvalidArgumentError(
                f"`ids` must be of round environments, `FedHPO-DAC-*`, got {env_id!r}; see "
                "`fedhpo-gym list dac`"
            )
    return list(dict.fromkeys(resolved))
