"""What N environments share: seeds and draws of episodes, autoreset, and who owns the arrays.

A subclass keeps the state of all environments in arrays and says how some of them restart and how
all of them advance; this module decides which of them do, as Gymnasium's `SyncVectorEnv` does.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.arrays import Bools, Indices
from fedhpo_gym.core.checks import Range, as_integer, coerce, coerce_reals, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.arguments import PlainSpec, read_options
from fedhpo_gym.evaluation.noise import NOISE_STREAM
from fedhpo_gym.space.dimension import ACTION_SLACK

Observations = dict[str, NDArray[np.float32]]


class ObservationLayout:
    """Where the entries of an observation lie in a row of numbers, as gymnasium flattens it."""

    def __init__(self, space: gym.spaces.Dict) -> None:
        self.columns: dict[str, slice] = {}
        self.size = 0
        for name, box in space.items():
            (size,) = box.shape or ()
            self.columns[name] = slice(self.size, self.size + size)
            self.size += size
        flat: Any = gym.spaces.flatten_space(space)
        self._bounds = flat.low, flat.high

    def rows(self, entries: Mapping[str, NDArray[np.floating]]) -> NDArray[np.float32]:
        """Return the (n, size) matrix of all (n, size of entry) entries, within the bounds."""
        matrix = np.concatenate([entries[name] for name in self.columns], axis=1)
        return matrix.clip(*self._bounds).astype(np.float32, copy=False)

    def views(self, matrix: NDArray[np.float32]) -> Observations:
        """Return the (n, size of entry) views of an (n, size) matrix, or those of one row."""
        return {name: matrix[..., columns] for name, columns in self.columns.items()}

    def fill(self, matrix: NDArray[np.floating], parts: Mapping[str, NDArray[np.floating]]) -> None:
        """Write some entries into an (n, size) matrix, or into one row."""
        for name, values in parts.items():
            matrix[..., self.columns[name]] = values


def masked(info: Mapping[str, Any], mask: Bools) -> dict[str, Any]:
    """Return nested infos with an (n,) mask `_key` beside every `key`; zero where it is False."""
    out: dict[str, Any] = {}
    for key, value in info.items():
        is_set = mask & ~np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else mask
        if isinstance(value, dict):
            out[key] = masked(value, mask)
        else:
            out[key] = np.array(value)
            out[key][~is_set] = None if out[key].dtype == object else 0
        out[f"_{key}"] = is_set.copy()
    return out


def masked_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an (n,) masked array of every key of n rows; of objects where values are strings."""
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        gaps = [name not in row for row in rows]
        example = next(row[name] for row in rows if name in row)
        values = [row.get(name, example) for row in rows]
        kind = object if isinstance(example, str) else None
        columns[name] = np.ma.MaskedArray(np.array(values, dtype=kind), gaps)
    return columns


def row_of(info: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return as plain data what nested infos of arrays say of an environment."""
    return {
        key: row_of(value, index) if isinstance(value, dict) else value[index].tolist()
        for key, value in info.items()
    }


def as_object_arrays(describe: Callable[[int], Mapping[str, Any]], mask: Bools) -> dict[str, Any]:
    """Return infos as (n,) arrays of objects, for the environments of an (n,) mask."""
    out: dict[str, Any] = {}
    for index in np.flatnonzero(mask):
        for key, value in describe(int(index)).items():
            if key not in out:
                out[key] = np.full(len(mask), None, dtype=object)
                out[f"_{key}"] = mask.copy()
            out[key][index] = value
    return out


MAX_ENVS: Final = 2**24
"""Most environments of a vector: their observations alone take more than a gigabyte."""

Seeds = Sequence[int | None]
Actions = NDArray[np.floating]


@dataclass
class StepOutcome:
    """What a step of N environments brings; all arrays but those of `info` are fresh."""

    rewards: NDArray[np.floating]
    terminated: Bools
    truncated: Bools
    info: dict[str, Any]


class BatchedVectorEnv(PlainSpec, VectorEnv[Observations, Actions, NDArray[Any]]):
    """N environments whose states are arrays.

    **Autoreset** (`metadata["autoreset_mode"]`): with "NextStep", Gymnasium's default, the step
    after the last of an episode ignores the action and returns the first observation of the next
    episode with reward 0; with "SameStep" the last step returns it at once, and `info` holds
    `final_obs` and `final_info`; with "Disabled" call `reset(options={"reset_mask": mask})`.

    **Copies**: with `copy=False` the arrays of an observation are overwritten by the next `step` or
    `reset`. Rewards, flags and infos are always the caller's.
    """

    _process: Any
    _draws: "EpisodeDraws"

    def __init__(
        self,
        num_envs: int,
        observation_space: gym.spaces.Dict,
        action_space: gym.spaces.Box | gym.spaces.Discrete,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
    ) -> None:
        self.num_envs = num_envs = checked_number(num_envs)
        self.autoreset_mode = _mode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.layout = ObservationLayout(observation_space)
        self._copy = coerce("copy", copy, bool)
        self._frame = np.zeros((num_envs, self.layout.size), dtype=np.float32)
        self._done = np.zeros(num_envs, dtype=np.bool_)
        self._was_reset = np.zeros(num_envs, dtype=np.bool_)
        self._instances: NDArray[Any] | None = None

    @property
    def _options(self) -> tuple[str, ...]:
        """What the options of `reset` may hold, besides its mask."""
        return ("instance",)

    def _restart(self, where: Indices, seeds: Seeds) -> None:
        """Start the next episode of some environments: state, and rows of `_frame`."""
        instances = self._instances
        options = [None if instances is None else {"instance": instances[index]} for index in where]
        self._process.restart(where, *self._draws.draw(where, seeds, options))

    @abstractmethod
    def _advance(self, actions: Actions, active: Bools) -> StepOutcome:
        """Step active environments: state, and rows of `_frame`; the others restart next."""

    def reset(
        self, *, seed: int | Seeds | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start new episodes."""
        seeds = _spread(seed, self.num_envs)
        entries = read_options(options, (*self._options, "reset_mask"))
        mask = self._reset_mask(entries)
        super().reset(seed=seeds[0])
        where = np.flatnonzero(mask)
        self._instances = _spread_instances(entries.get("instance"), self.num_envs)
        try:
            self._restart(where, [seeds[index] for index in where])
        finally:
            self._instances = None
        self._done[mask] = False
        self._was_reset |= mask
        return self._observations(), as_object_arrays(self._process.describe, mask)

    def step(
        self, actions: ArrayLike
    ) -> tuple[Observations, NDArray[np.floating], Bools, Bools, dict[str, Any]]:
        """Step all environments; the class docstring describes ends of episodes."""
        active = self._active()
        outcome = self._advance(self._checked(actions, active), active)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos = self._finish(outcome)
        else:
            infos = masked(outcome.info, active)
            where = np.flatnonzero(~active)
            if where.size:
                outcome.rewards[where] = 0.0
                outcome.terminated[where] = outcome.truncated[where] = False
                self._restart(where, [None] * len(where))
            self._done = outcome.terminated | outcome.truncated
        return (self._observations(), outcome.rewards, outcome.terminated, outcome.truncated, infos)

    def _check_stepped(self, index: int, steps: NDArray[np.int64]) -> None:
        env_index = as_integer(index)
        if env_index is None or not 0 <= env_index < self.num_envs or not steps[env_index]:
            raise InvalidArgumentError(
                f"`index` must name one of {self.num_envs} environments that has stepped since its "
                f"reset, got {short_repr(index)}"
            )

    def _active(self) -> Bools:
        if not self._was_reset.all():
            raise gym.error.ResetNeeded("call `reset` before `step`")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._done.any():
            raise gym.error.ResetNeeded(
                f"environments {np.flatnonzero(self._done).tolist()} are done; call "
                "`reset(options={'reset_mask': mask})` before `step`, or choose an `autoreset_mode`"
            )
        return ~self._done

    def _finish(self, outcome: StepOutcome) -> dict[str, Any]:
        """Restart what is done within its last step; return the infos of that step."""
        done = outcome.terminated | outcome.truncated
        infos = masked(outcome.info, ~done)
        where = np.flatnonzero(done)
        if where.size:
            infos["final_obs"] = np.full(self.num_envs, None, dtype=object)
            for index in where:
                infos["final_obs"][index] = self.layout.views(self._frame[index].copy())
            infos["final_info"] = masked(outcome.info, done)
            infos["_final_obs"], infos["_final_info"] = done.copy(), done.copy()
            self._restart(where, [None] * len(where))
        return infos

    def _checked(self, actions: ArrayLike, active: Bools) -> Actions:
        array = coerce_reals("actions", actions)
        if array.shape != self.action_space.shape:
            raise InvalidArgumentError(
                f"`actions` must have shape {self.action_space.shape}, got {array.shape}"
            )
        limit = 1.0 + ACTION_SLACK
        if float(array.min()) >= -limit and float(array.max()) <= limit:  # False for NaN
            return array
        bad = np.flatnonzero(active & ~(np.abs(array) <= limit).reshape(len(array), -1).all(axis=1))
        if bad.size:
            raise InvalidArgumentError(
                f"`actions[{bad[0]}]` must be in [-1, 1], got {array[bad[0]].tolist()}"
            )
        rows = active.reshape(-1, *(1,) * (array.ndim - 1))
        return np.where(rows, array, array.dtype.type(0.0))

    def _reset_mask(self, options: Mapping[str, Any]) -> Bools:
        mask = options.get("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_
        if not is_mask or mask.shape != (self.num_envs,) or not mask.any():
            raise InvalidArgumentError(
                f"`options['reset_mask']` must be a boolean array of shape ({self.num_envs},) with "
                f"at least one True, got {short_repr(mask)}"
            )
        return np.asarray(mask, dtype=np.bool_)

    def _observations(self) -> Observations:
        return self.layout.views(self._frame.copy() if self._copy else self._frame)


def checked_number(num_envs: int) -> int:
    """Return a number of environments."""
    count: int = coerce("num_envs", num_envs, Annotated[int, Range(1, MAX_ENVS)])
    return count


def checked_keys(names: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    """Return what infos say on request, of the keys that are known."""
    keys = tuple(coerce("info_keys", names, Sequence[str]))
    for name in keys:
        require_known("info key", name, allowed)
    return keys


def _mode(mode: str | AutoresetMode) -> AutoresetMode:
    coerce("autoreset_mode", mode, str | AutoresetMode)
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        modes = [modes.value for modes in AutoresetMode]
        raise InvalidArgumentError(
            f"`autoreset_mode` must be one of {modes}, got {short_repr(mode)}"
        ) from error


def _spread(seed: int | Seeds | None, num_envs: int) -> list[int | None]:
    """Return one seed per environment."""
    if seed is None:
        return [None] * num_envs
    first = as_integer(seed)
    seeds: Any = seed.tolist() if isinstance(seed, np.ndarray) else seed
    if first is not None:
        seeds = [first + index for index in range(num_envs)]
    if not isinstance(seeds, Sequence) or len(seeds) != num_envs:
        raise InvalidArgumentError(
            f"`seed` must be an integer, or a list with one for each of {num_envs} environments, "
            f"got {short_repr(seed)}"
        )
    integers = [None if value is None else as_integer(value) for value in seeds]
    for value, integer in zip(seeds, integers, strict=True):
        if value is not None and (integer is None or integer < 0):
            raise InvalidArgumentError(
                f"`seed` must be non-negative integers or None, got {short_repr(value)}"
            )
    return integers


def _spread_instances(instances: object, num_envs: int) -> NDArray[Any] | None:
    if instances is None:
        return None
    try:
        return np.broadcast_to(np.asarray(instances, dtype=object), num_envs)
    except ValueError as error:
        raise InvalidArgumentError(
            f"`options['instance']` must be one index, or one for each of {num_envs} environments, "
            f"got {short_repr(instances)}"
        ) from error


KEYS: Final = 2**32
"""Number of keys of episodes, which seed their noise."""

Start = Callable[[int | None], np.random.Generator]


class EpisodeDraws:
    """Draws for each of N environments from streams of its own, which `reset` seeds."""

    def __init__(self, num_envs: int, instances: int, start: Start, *, noisy: bool) -> None:
        """Prepare for N environments whose first `reset` is still to come."""
        self._instances, self._start, self._noisy = instances, start, noisy
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._key_rngs: list[np.random.Generator | None] = [None] * num_envs

    def draw(
        self,
        where: NDArray[np.intp],
        seeds: Sequence[int | None],
        options: Sequence[Mapping[str, Any] | None],
    ) -> tuple[list[int], NDArray[np.int64] | None]:
        """Return the instances and the keys of the next episodes of some environments."""
        keys = np.empty(len(where), dtype=np.int64)
        drawn_instances: list[int] = []
        for row, index in enumerate(where.tolist()):
            if self._noisy:
                rng = _stream_of(
                    self._key_rngs, index, seeds[row], partial(named_stream, NOISE_STREAM)
                )
                keys[row] = rng.integers(KEYS)
            if self._instances:
                rng = _stream_of(self._rngs, index, seeds[row], self._start)
                drawn_instances.append(choose_instance(rng, self._instances, options[row]))
            else:
                read_options(options[row], ())
        return drawn_instances, keys if self._noisy else None


def named_stream(name: str, seed: int | None) -> np.random.Generator:
    """Return the stream of a name and a seed; for None, the system chooses the seed."""
    return stream(int(seeding.np_random(None)[1] if seed is None else seed), name)


def unnamed_stream(seed: int | None) -> np.random.Generator:
    """Return the stream that Gymnasium gives an environment for a seed."""
    return seeding.np_random(seed)[0]


def _stream_of(
    rngs: list[np.random.Generator | None], index: int, seed: int | None, start: Start
) -> np.random.Generator:
    rng = rngs[index]
    if rng is None or seed is not None:
        rng = rngs[index] = start(seed)
    return rng


def choose_instance(
    rng: np.random.Generator, num_instances: int, options: Mapping[str, Any] | None
) -> int:
    """Return the instance of the next episode: drawn, or as the options say."""
    entries = read_options(options, ("instance",))
    if "instance" not in entries:
        return int(rng.integers(num_instances))
    among = Annotated[int, Range(0, num_instances, "[)")]
    index: int = coerce("options['instance']", entries["instance"], among)
    return index
