"""Scalarisations: one number from a vector of rewards, in one environment or in many.

Users wrap `MO-` environments in a subclass of `Scalarization`, and vector environments in
`VectorScalarization`. Both apply a `Rule` to errors (m,), which are negated rewards, and to the
front of the episode so far (k, m). Errors are normalised between an ideal and a nadir point, whose
source is a choice of the user (`ReferencePoints`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from fedhpo_gym.core.arrays import Bools, Floats
from fedhpo_gym.core.checks import Range, as_number, coerce, short_repr, to_json_data
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, unknown_name
from fedhpo_gym.evaluation.multi_objective import hypervolume, non_dominated
from fedhpo_gym.wrappers.checks import check_env

Points = str | Mapping[str, Sequence[float]]
Objectives = Sequence[Any]
Weights = Sequence[float] | None
Limits = Mapping[str, float] | None

SOURCES: Final = ("learned", "truth", "bounds")
"""Sources of ideal and nadir point, besides explicit ones."""


class Front:
    """The front of an episode so far, (k, m) errors, between (m,) ideal and nadir points."""

    def __init__(self, source: "ReferencePoints", truth: Any) -> None:
        self._learns = source.kind == "learned"
        size = len(source.objectives)
        self.points = np.empty((0, size))
        self.ideal, self.nadir = np.zeros((2, size)) if self._learns else source.find(truth)

    def add(self, error: Floats) -> None:
        if not (self.points <= error).all(axis=1).any():
            points = np.vstack([self.points, error])
            self.points = points[non_dominated(points)]
        if self._learns:
            self.ideal, self.nadir = self.points.min(axis=0), self.points.max(axis=0)

    def normalised(self, error: Floats) -> Floats:
        """Return (m,) errors in units of the way from ideal to nadir point, where they differ."""
        extent = self.nadir - self.ideal
        return (error - self.ideal) / np.where(extent > 0, extent, 1.0)


class ReferencePoints:
    """The source of ideal and nadir point.

    `points` are "learned" (of the front so far in the episode, so the reward of a trial depends on
    those before it), "truth" (of the true front, where numbers are stored), "bounds" (of the
    objectives' values), or `{"ideal": [...], "nadir": [...]}` in the objectives' units.
    """

    def __init__(self, objectives: Objectives, points: Points, end: str = "nadir") -> None:
        self.objectives = tuple(objectives)
        self.kind, self._end = points if isinstance(points, str) else "given", end
        if isinstance(points, str):
            require_known("source of `points`", points, SOURCES)
            return
        if not isinstance(points, Mapping) or set(points) != {"ideal", "nadir"}:
            raise InvalidArgumentError(
                f"`points` must be one of {SOURCES} or {{'ideal': [...], 'nadir': [...]}}, got "
                f"{short_repr(points)}"
            )
        self._given = [
            self.errors(validate_numbers(f"points: {name}", points[name], len(objectives)))
            for name in ("ideal", "nadir")
        ]
        if not (self._given[0] <= self._given[1]).all():
            raise InvalidArgumentError(
                "`points` must have a nadir point that is nowhere better than the ideal one, got "
                f"{short_repr(points)}"
            )

    def errors(self, values: Sequence[float] | Floats) -> Floats:
        return np.array([o.error(float(v)) for o, v in zip(self.objectives, values, strict=True)])

    def find(self, truth: Any) -> tuple[Floats, Floats]:
        """Return the (m,) errors of the ideal and the nadir point of a new episode."""
        if self.kind == "truth":
            reference = truth()
            return self.errors(reference.ideal()), self.errors(getattr(reference, self._end)())
        if self.kind == "bounds":
            low, high = np.array([objective.error_bounds for objective in self.objectives]).T
            return low, high
        return self._given[0], self._given[1]


class Rule(NamedTuple):
    """The source of ideal and nadir point, and the value of a trial: higher is better.

    `value` takes the (m,) errors of a trial, the (k, m) front before it, and the front with it.
    """

    source: ReferencePoints
    value: Callable[[Floats, Floats, Front], float]


class ScalarizedEpisodes:
    """N episodes that are scalarised by one rule, each by itself."""

    def __init__(self, rule: Rule, num_episodes: int) -> None:
        self._rule = rule
        self._fronts: list[Front | None] = [None] * num_episodes

    def restart(self, index: int, truth: Any) -> None:
        """Start an episode; `truth` returns the `Truth` of it."""
        self._fronts[index] = Front(self._rule.source, truth)

    def value(self, index: int, scores: Any) -> float:
        """Return the reward of a trial with (m,) scores, and add it to the front."""
        error = -np.asarray(scores, dtype=np.float64)
        size = len(self._rule.source.objectives)
        if error.shape != (size,):
            raise InvalidArgumentError(
                f"`env` must return {size} rewards, one per objective, got the shape "
                f"{error.shape}; use the MO- id"
            )
        front = self._fronts[index]
        if front is None:
            raise gym.error.ResetNeeded("call `reset` before `step`: an episode starts there")
        before = front.points
        front.add(error)
        return self._rule.value(error, before, front)


class Scalarization(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """A vector reward made one number; subclasses define the rule.

    `info["score"]` is the same number, which agents maximise; `info["objectives"]` stays.

    Raises:
        InvalidArgumentError: an argument is out of its range, or `env` is not of an `MO-` id.
        UnknownNameError: a name does not exist.

    Attributes:
        vector_reward: False: this wrapper returns a number, the wrapped environment a vector.
    """

    vector_reward = False
    rule: ClassVar[Callable[..., Rule]]  # takes the objectives, and every argument of `__init__`

    def __init__(self, env: gym.Env[Any, Any], **arguments: Any) -> None:
        check_env(env, "objectives")
        if env.has_wrapper_attr("vector_reward") and not env.get_wrapper_attr("vector_reward"):
            raise InvalidArgumentError(
                f"`env` must return a vector of rewards, got {env}; use the MO- id"
            )
        objectives = env.get_wrapper_attr("objectives")
        self._episodes = ScalarizedEpisodes(self.rule(objectives, **arguments), 1)
        gym.utils.RecordConstructorArgs.__init__(self, **to_json_data(arguments))
        gym.Wrapper.__init__(self, env)

    @classmethod
    def rule_of(cls, objectives: Objectives, **arguments: Any) -> Rule:
        """Return the rule that `__init__` makes of some of its arguments."""
        bound = inspect.signature(cls).bind(None, **arguments)
        bound.apply_defaults()
        _, *values = bound.arguments.values()
        return cls.rule(objectives, *values)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, and forget the front of the last episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._episodes.restart(0, lambda: self.get_wrapper_attr("truth"))
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, scores, terminated, truncated, info = self.env.step(action)
        value = self._episodes.value(0, scores)
        return observation, value, terminated, truncated, {**info, "score": value}


if TYPE_CHECKING:
    _VectorWrapper = gym.vector.VectorWrapper[Any, Any, Any, Any, Any]
else:  # it is generic from Gymnasium 1.4 on
    _VectorWrapper = gym.vector.VectorWrapper


class VectorScalarization(_VectorWrapper):
    """A scalarisation of N environments, bit for bit equal to wrapping each of them alone.

    Every episode is scalarised by itself, in a loop over environments.
    """

    def __init__(
        self, env: gym.vector.VectorEnv[Any, Any, Any], kind: type[Scalarization], **arguments: Any
    ) -> None:
        """Wrap the result of `gymnasium.make_vec` for an `MO-` id.

        Args:
            env: the vector environment.
            kind: the scalarisation, such as `Chebyshev`.
            arguments: of the scalarisation.

        Raises:
            InvalidArgumentError: `env` is of another kind, or an argument is out of its range.
            UnknownNameError: a name does not exist.
        """
        objectives = getattr(getattr(env, "unwrapped", None), "objectives", None)
        if not isinstance(env, gym.vector.VectorEnv) or objectives is None:
            raise InvalidArgumentError(
                f"`env` must be what `gymnasium.make_vec` makes of an MO-FedHPO-* id, got "
                f"{short_repr(env)}"
            )
        super().__init__(env)
        self._episodes = ScalarizedEpisodes(kind.rule_of(objectives, **arguments), self.num_envs)
        self._done = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset some or all environments, and forget the fronts of their last episodes."""
        observations, infos = self.env.reset(seed=seed, options=options)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        self._restart(mask)
        self._done[mask] = False
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step with (N,) rewards; `infos["score"]` holds them, too."""
        observations, scores, terminated, truncated, infos = self.env.step(actions)
        stepped = ~self._done
        values = np.zeros(self.num_envs)
        for index in np.flatnonzero(stepped).tolist():
            values[index] = self._episodes.value(index, scores[index])
        done = terminated | truncated
        if self.env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
            self._restart(done)
        else:
            self._restart(self._done)
            self._done = done
        return (
            observations,
            values,
            terminated,
            truncated,
            {**infos, "score": values.copy(), "_score": stepped},
        )

    def _restart(self, mask: Bools) -> None:
        env: Any = self.env.unwrapped
        for index in np.flatnonzero(mask).tolist():
            self._episodes.restart(index, partial(env.truth, index))


def validate_weights(objectives: Objectives, weights: Sequence[float] | None) -> Floats:
    """Return (m,) weights that sum to 1; equal ones by default."""
    size = len(objectives)
    if weights is None:
        return np.full(size, 1.0 / size)
    values = validate_numbers("weights", weights, size)
    if values.min() < 0 or not values.sum() > 0:
        raise InvalidArgumentError(
            f"`weights` must not be negative, and one must be positive, got {short_repr(weights)}"
        )
    return np.asarray(values / values.sum())


def validate_numbers(name: str, values: object, size: int) -> Floats:
    """Return (size,) finite numbers."""
    items = list(values) if isinstance(values, Sequence | np.ndarray) else []
    numbers = [as_number(value) for value in items]
    if len(numbers) != size or any(number is None or not np.isfinite(number) for number in numbers):
        raise InvalidArgumentError(
            f"`{name}` must be {size} finite numbers, one per objective, got {short_repr(values)}"
        )
    return np.array(numbers, dtype=np.float64)


def numbers_by_name(name: str, objectives: Objectives, entries: object) -> dict[str, float]:
    """Return finite numbers of some objectives, by name."""
    names = [key.name for key in objectives]
    if not isinstance(entries, Mapping):
        raise InvalidArgumentError(
            f"`{name}` must be a mapping from objectives to numbers, got {short_repr(entries)}"
        )
    for key in entries:
        require_known(f"objective in `{name}`", key, names)
    numbers = validate_numbers(name, list(entries.values()), len(entries))
    return dict(zip(entries, numbers.tolist(), strict=True))


class WeightedSum(Scalarization):
    """Reward = -sum_i w_i z_i, z the errors from the ideal point (0) to the nadir point (1).

    Its optima are on the convex hull of a front only: points in a dent are best under no weights
    (Miettinen, 1999, Section 3.1).

    Args:
        weights: one per objective, scaled to sum to 1; equal ones by default.
        points: where ideal and nadir point come from, as `ReferencePoints` takes it.
    """

    def __init__(
        self, env: gym.Env[Any, Any], weights: Weights = None, *, points: Points = "learned"
    ) -> None:
        super().__init__(env, weights=weights, points=points)

    @staticmethod
    def rule(objectives: Objectives, weights: Weights, points: Points) -> Rule:
        source, w = ReferencePoints(objectives, points), validate_weights(objectives, weights)
        return Rule(source, lambda error, _, front: -float((w * front.normalised(error)).sum()))


class Chebyshev(Scalarization):
    """Reward = -(max_i w_i z_i + rho sum_i w_i z_i), z the errors from ideal (0) to nadir (1).

    The augmented weighted Chebyshev distance from the ideal point (Steuer and Choo, 1983), as
    ParEGO uses it (Knowles, 2006, Equation 2, rho = 0.05). Every point of a front is best under
    some weights, also in a dent; the sum keeps points away that are only weakly optimal.

    Args:
        weights: one per objective, scaled to sum to 1; equal ones by default.
        rho: weight of the sum; 0 leaves the plain distance.
        points: where ideal and nadir point come from, as `ReferencePoints` takes it.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        weights: Weights = None,
        *,
        rho: float = 0.05,
        points: Points = "learned",
    ) -> None:
        super().__init__(env, weights=weights, rho=rho, points=points)

    @staticmethod
    def rule(objectives: Objectives, weights: Weights, rho: float, points: Points) -> Rule:
        source, w = ReferencePoints(objectives, points), validate_weights(objectives, weights)
        share = float(coerce("rho", rho, Annotated[float, Range(0, np.inf, "[)")]))

        def value(error: Floats, _: Floats, front: Front) -> float:
            weighted = w * front.normalised(error)
            return -float(weighted.max() + share * weighted.sum())

        return Rule(source, value)


class Achievement(Scalarization):
    """Reward = -(max_i (z_i - a_i) + rho sum_i (z_i - a_i)).

    The achievement function of Wierzbicki (1980): z are the errors from ideal (0) to nadir (1), a
    those of an aspiration. The reward is positive where the aspiration is exceeded in every
    objective. No aspiration is too high or too low: the best trial is always on the front.

    Args:
        aspiration: the value to reach, of every objective, in its unit.
        rho: weight of the sum.
        points: where ideal and nadir point come from, as `ReferencePoints` takes it.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        aspiration: Limits = None,
        *,
        rho: float = 0.05,
        points: Points = "learned",
    ) -> None:
        super().__init__(env, aspiration=aspiration, rho=rho, points=points)

    @staticmethod
    def rule(objectives: Objectives, aspiration: Limits, rho: float, points: Points) -> Rule:
        source = ReferencePoints(objectives, points)
        aspirations = numbers_by_name("aspiration", objectives, aspiration)
        if missing := [
            objective.name for objective in objectives if objective.name not in aspirations
        ]:
            raise InvalidArgumentError(
                f"`aspiration` must have a value of every objective, got none of {missing} in "
                f"{short_repr(aspiration)}"
            )
        aspired = source.errors([aspirations[objective.name] for objective in objectives])
        share = float(coerce("rho", rho, Annotated[float, Range(0, np.inf, "[)")]))

        def value(error: Floats, _: Floats, front: Front) -> float:
            lacking = front.normalised(error) - front.normalised(aspired)
            return -float(lacking.max() + share * lacking.sum())

        return Rule(source, value)


class EpsilonConstraint(Scalarization):
    """Reward = -z_k where no limit of another objective is exceeded, else -(1 + v).

    The epsilon-constraint method (Haimes, Lasdon and Wismer, 1971): z_k is the error of one
    objective within its bounds, in [0, 1], and v the sum of what exceeds the limits, in units of
    the bounds. So no trial that exceeds a limit is better than one that keeps all, and of those
    that exceed limits the nearest is best. `ScalarizePenalty` is the soft form.

    Args:
        limits: the worst value that is allowed, by objective, in its unit.
        objective: what is optimised; the first objective by default.
    """

    def __init__(
        self, env: gym.Env[Any, Any], limits: Limits = None, *, objective: str | None = None
    ) -> None:
        super().__init__(env, limits=limits, objective=objective)

    @staticmethod
    def rule(objectives: Objectives, limits: Limits, objective: str | None) -> Rule:
        names = [each.name for each in objectives]
        if objective is not None and objective not in names:
            raise unknown_name("`objective`", str(objective), names)
        position = 0 if objective is None else names.index(objective)
        highest = np.full(len(names), np.inf)
        for name, limit in numbers_by_name("limits", objectives, limits).items():
            index = names.index(name)
            if index == position:
                raise InvalidArgumentError(
                    f"`limits` must be of other objectives than the one that is optimised, "
                    f"{name!r}, got {short_repr(limits)}"
                )
            highest[index] = objectives[index].limit_error(limit)

        def value(error: Floats, _: Floats, front: Front) -> float:
            excess = np.maximum(error - highest, 0.0) / (front.nadir - front.ideal)
            if excess.any():
                return -1.0 - float(excess.sum())
            return -float(front.normalised(error)[position])

        return Rule(ReferencePoints(objectives, "bounds"), value)


class HypervolumeImprovement(Scalarization):
    """Reward = what the trial adds to the hypervolume of the episode.

    The return of an episode is the share that its front dominates of the box between two points, in
    [0, 1]; it is never worth less to have made one trial more. The points are best and worst
    bounds of the objectives by default. With `points="truth"` they are the ideal point and
    `Truth.reference`, with `{"ideal": [...], "nadir": [...]}` what is given. Exact, by `moocore`.

    Args:
        points: the corners of the box.
    """

    def __init__(self, env: gym.Env[Any, Any], *, points: Points = "bounds") -> None:
        super().__init__(env, points=points)

    @staticmethod
    def rule(objectives: Objectives, points: Points) -> Rule:
        source = ReferencePoints(objectives, points, end="reference")
        if source.kind == "learned":
            raise InvalidArgumentError(
                "`points` must not be 'learned' for volumes, whose ends would move: use 'bounds', "
                "'truth', or {'ideal': [...], 'nadir': [...]}"
            )
        return Rule(
            source, lambda _, before, front: volume(front.points, front) - volume(before, front)
        )


def volume(points: Floats, front: Front) -> float:
    """Return the share of the box between ideal and nadir point that points dominate."""
    alive = front.nadir > front.ideal
    if not len(points) or not alive.any():
        return 0.0
    scaled = np.array([front.normalised(point) for point in points])[:, alive]
    return hypervolume(np.unique(np.maximum(scaled, 0.0), axis=0), np.ones(alive.sum()))
