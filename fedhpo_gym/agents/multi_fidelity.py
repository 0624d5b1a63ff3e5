"""Optimizers that choose how long a configuration is trained, on a ladder of fidelities (rungs).

Hyperband, successive halving, ASHA and DEHB are here; BOHB, PriorBand and the pruned TPEs build on
`LadderSearch` and `Hyperband`. A configuration is an (n,) point of [-1, 1]^n without the fidelity;
`on_rung` appends the coordinates of a rung to make an action. Points are rounded to float32, so
that a promoted configuration has bit for bit the same coordinates on every rung.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.black_box import CROSSOVER, FACTOR
from fedhpo_gym.agents.search import Row, TrialSearch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space.dimension import Dimension, Value

ROUND = ("round",)


class LadderSearch(TrialSearch):
    """A search that chooses the fidelity of its trials, the last coordinates of every action.

    A trial on a rung asks for the complete fidelity of the rung: an environment with
    `freeze_thaw=True` charges only rounds not trained yet (resume), another charges all (restart).

    Where `round` and `client_sample_rate` are chosen together, both fall by eta from rung to rung,
    the rate no further than to its lowest value; a rung then costs about eta^2 times the one below
    it. Rates of a stored grid are the nearest ones.

    Attributes:
        rungs: values of the first fidelity, lowest first.
        width: coordinates of a configuration.
    """

    fidelity = "round"

    @validate_call
    def __init__(
        self,
        problem: SearchProblem,
        *,
        low: Value | None = None,
        high: Value | None = None,
        eta: Annotated[int, Range(2)] = 3,
        fidelities: Sequence[str] = ROUND,
    ) -> None:
        """Build the ladder.

        Args:
            low: the lowest rung of the first fidelity is at least this; by default the lowest.
            high: its highest rung; by default the highest.
            eta: a rung is this many times the one below it.
            fidelities: which ones are chosen: `round`, `client_sample_rate`, or both.
        """
        self.fidelities = tuple(fidelities)
        super().__init__(problem)
        box, num_fidelities = self.action_space, len(self.fidelities)
        if box.shape[0] <= num_fidelities or (box.low != -1).any() or (box.high != 1).any():
            raise InvalidArgumentError(
                "`action_space` must be a Box in [-1, 1] of a configuration's coordinates and then "
                f"the fidelity's, got {box}"
            )
        self._eta = eta
        self.width = box.shape[0] - num_fidelities
        first, *others = (problem.fidelities[name] for name in self.fidelities)
        self.rungs = rungs(first, low, high, eta)
        columns = [[first.encode(rung) for rung in self.rungs]]
        columns += [_shares_by_rung(other, len(self.rungs), eta) for other in others]
        # In the order of the action's coordinates, which is that of the problem's fidelities.
        order = [self.fidelities.index(name) for name in problem.fidelities.names]
        self._coordinates = np.array(columns)[order].T
        # Starting configurations replace new ones, on the rung where new ones begin.
        self._first = self._first[:0]
        self._given = [*map(np.array, problem.start)]
        self._begin()

    def _begin(self) -> None:
        """Initialise the state of a search; `rungs` are set before."""

    def next_given(self) -> "Point | None":
        """Return the next configuration of `problem.start`; None where all were tried."""
        return round_to_float32(self._given.pop(0)) if self._given else None

    def on_rung(self, point: Sequence[float] | np.ndarray, rung: int) -> Row:
        """Return the action of a configuration's coordinates on a rung."""
        return np.array([*point, *self._coordinates[rung]], dtype=np.float32)

    def _check_fidelity(self, problem: SearchProblem) -> None:
        self._check_free(problem, self.fidelities)


def rungs(
    fidelity: Dimension, low: Value | None, high: Value | None, eta: int
) -> tuple[Value, ...]:
    """Return the values high / eta^k that are at least `low`, lowest first; nearest on a grid."""
    bottom = float(fidelity.validate(fidelity.low if low is None else low, "low"))
    top = float(fidelity.validate(fidelity.high if high is None else high, "high"))
    if not 0 < bottom <= top:
        raise InvalidArgumentError(
            f"`low` must be positive and at most `high`, got low={bottom:g}, high={top:g}"
        )
    count = math.floor(math.log(top / bottom, eta) + 1e-9) + 1
    targets = [top / eta**below for below in reversed(range(count))]
    return tuple(dict.fromkeys(_nearest_value(fidelity, rung) for rung in targets))


def _shares_by_rung(fidelity: Dimension, count: int, eta: int) -> list[float]:
    """Return the coordinates of another fidelity on each rung of a ladder of `number`."""
    targets = [fidelity.high / eta**below for below in reversed(range(count))]
    return [fidelity.encode(_nearest_value(fidelity, max(fidelity.low, rung))) for rung in targets]


def _nearest_value(fidelity: Dimension, target: float) -> Value:
    if fidelity.values is not None:
        return min(fidelity.values, key=lambda value: abs(float(value) - target))
    value = math.floor(target + 0.5) if fidelity.kind == "int" else target
    return fidelity.validate(value, "rungs")


Point = NDArray[np.float64]


class Bracket:
    """One round of successive halving: a rung is complete before the next one begins.

    `waiting` are configurations to try on `rung`, None for one that is still to be drawn; `start`
    is the first rung, and `turn` counts the brackets begun before.
    """

    def __init__(self, rung: int, count: int, top: int, eta: int, turn: int) -> None:
        self.rung, self.start, self.turn, self._top, self._eta = rung, rung, turn, top, eta
        self.waiting: list[Point | None] = [None] * count
        self.over = False
        self._told: list[tuple[float, Point]] = []
        self._open = 0

    def take(self) -> Point | None:
        """Return the next configuration; None for one that is still to be drawn."""
        self._open += 1
        return self.waiting.pop(0)

    def report(self, score: float, point: Point) -> None:
        """Record the score of a configuration; when the rung is full, promote the best 1/eta."""
        self._told.append((score, point))
        self._open -= 1
        if self.waiting or self._open:
            return
        best = sorted(self._told, key=lambda result: -result[0])[: len(self._told) // self._eta]
        self._told = []
        self.over = not best or self.rung == self._top
        if not self.over:
            self.rung += 1
            self.waiting = [point for _, point in best]


class Hyperband(LadderSearch):
    """Brackets of successive halving over one fidelity, the last coordinate of every action.

    Li, Jamieson, DeSalvo, Rostamizadeh, Talwalkar, "Hyperband: a novel bandit-based approach to
    hyperparameter optimization", JMLR 18 (2018), Algorithm 1.

    A bracket starts with many configurations on a low rung, or few on a high one; a rung is asked
    for entirely before the best 1/eta of it go on to the next. The brackets take turns, without
    end. Each one takes about as many rounds as any other. Where more trials are asked for than a
    rung has, the next bracket begins.

    Differs from the paper: a bracket that starts s rungs below the top has
    floor((s_max + 1) / (s + 1)) eta^s configurations instead of the ceiling of the unrounded
    number, as in the authors of BOHB's implementation, so that every rung divides by eta.
    """

    def _begin(self) -> None:
        self._rng = stream(self.seed, "hyperband")
        self._brackets: list[Bracket] = []
        self._begun = 0
        self._jobs: dict[int, tuple[Bracket, int, Point]] = {}
        self._seen: list[list[tuple[float, Point]]] = [[] for _ in self.rungs]

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        bracket = next((candidate for candidate in self._brackets if candidate.waiting), None)
        if bracket is None:
            bracket = self._bracket(self._begun)
            self._begun += 1
            self._brackets.append(bracket)
        # A new configuration is drawn when its turn comes: BOHB has learned more by then.
        point = self._point(trial_index, bracket, bracket.take())
        self._jobs[trial_index] = (bracket, bracket.rung, point)
        return self.on_rung(point, bracket.rung)

    def _learn(self, trial_index: int, scores: Floats) -> None:
        bracket, rung, point = self._jobs.pop(trial_index)
        score = float(scores[0])
        bracket.report(score, point)
        self._brackets = [running for running in self._brackets if not running.over]
        self._observe(trial_index, rung, point, score)

    def _bracket(self, turn: int) -> Bracket:
        """Return the bracket of a turn, counted from 0."""
        start, top = turn % len(self.rungs), len(self.rungs) - 1
        count = (top + 1) // (top - start + 1) * self._eta ** (top - start)
        return Bracket(start, count, top, self._eta, turn)

    def _point(self, trial_index: int, bracket: Bracket, promoted: Point | None) -> Point:
        """Return the point of a trial: the promoted configuration if there is one, or a new one."""
        point = self.next_given() if promoted is None else promoted
        return self._draw(bracket.rung) if point is None else point

    def _draw(self, rung: int) -> Point:
        """Return a new configuration; here, from the prior of the space."""
        return round_to_float32(self._rng.uniform(-1.0, 1.0, self.width))

    def _observe(self, trial_index: int, rung: int, point: Point, score: float) -> None:
        """Record the score of a trial on a rung, for agents that model it."""
        self._seen[rung].append((score, point))


class SuccessiveHalving(Hyperband):
    """The first bracket of Hyperband, of the most configurations, again and again.

    Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter
    optimization", AISTATS 2016. Differs from the paper: eta is 3 instead of 2.
    """

    def _bracket(self, turn: int) -> Bracket:
        top = len(self.rungs) - 1
        return Bracket(0, self._eta**top, top, self._eta, turn)


def round_to_float32(point: NDArray[np.float64]) -> Point:
    """Return the point of its action: actions are float32."""
    return point.astype(np.float32).astype(np.float64)


class ASHA(LadderSearch):
    """Promotes whatever is in the best 1/eta of its rung so far, from the highest rung down.

    Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar, "A system for massively
    parallel hyperparameter tuning", MLSys 2020, Algorithm 2.

    Where nothing can be promoted, a new configuration starts on the lowest rung. Any number of
    trials may be in flight.
    """

    def _begin(self) -> None:
        self._rng = stream(self.seed, "asha")
        self._points: list[Point] = []
        # (loss, order of report, index of configuration): sorted, and a heap of those to promote.
        self._seen: list[list[tuple[float, int, int]]] = [[] for _ in self.rungs]
        self._staying: list[list[tuple[float, int, int]]] = [[] for _ in self.rungs]
        self._jobs: dict[int, tuple[int, int]] = {}

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        rung, index = self._next()
        self._jobs[trial_index] = (rung, index)
        return self.on_rung(self._points[index], rung)

    def _learn(self, trial_index: int, scores: Floats) -> None:
        rung, index = self._jobs.pop(trial_index)
        result = (-float(scores[0]), len(self.results), index)
        insort(self._seen[rung], result)
        heapq.heappush(self._staying[rung], result)

    def _next(self) -> tuple[int, int]:
        for rung in reversed(range(len(self.rungs) - 1)):
            results, promotable = self._seen[rung], self._staying[rung]
            if promotable and bisect_left(results, promotable[0]) < len(results) // self._eta:
                return rung + 1, heapq.heappop(promotable)[2]
        start = self.next_given()
        point = (
            round_to_float32(self._rng.uniform(-1.0, 1.0, self.width)) if start is None else start
        )
        self._points.append(point)
        return 0, len(self._points) - 1


PARENTS = 3


class DEHB(Hyperband):
    """Every rung has a population; rand1/bin with F = CR = 0.5 (FedHPO-Bench, Appendix C).

    Awad, Mallik, Hutter, "DEHB: evolutionary Hyperband for scalable, robust and efficient
    hyperparameter optimization", IJCAI 2021, Algorithm 1.

    The target of a trial is the next member of its rung's population, in turns that go on from
    bracket to bracket. In the first brackets, one from every rung, what comes up to a rung are the
    best members of the rung below that are not yet on it. All else are trial points: parents are
    the best members of the rung below, as many as the rung has trials, or of the rung itself where
    the bracket starts. Where they are fewer than three, mutants of the members of all rungs are
    added. What is at least as good as its target replaces it.

    A population is as large as the largest number of configurations that a bracket has on its rung.
    Appendix C's 20 members are those of DE alone.

    Follows the authors' package (DEHB 0.1.2) where the paper says something else or nothing.
    Differs from it with workers: which brackets are the first ones is told by the bracket of a
    trial, not by the newest bracket, so that what came up does not depend on who is waiting.
    """

    def _begin(self) -> None:
        super()._begin()
        self._evolution_rng = stream(self.seed, "dehb")
        self.populations = [self._evolution_rng.random((n, self.width)) for n in self._most()]
        self._fitness = [np.full(len(members), -np.inf) for members in self.populations]
        self._turns = [0] * len(self.rungs)
        self._targets: dict[int, int] = {}
        self._coming: list[list[Floats]] = [[] for _ in self.rungs]

    def _most(self) -> list[int]:
        """Return the largest number of configurations that a bracket has on each rung."""
        rungs = range(len(self.rungs))
        brackets = [self._bracket(turn) for turn in rungs]
        return [max(self._size(b, r) for b in brackets if b.rung <= r) for r in rungs]

    def _size(self, bracket: Bracket, rung: int) -> int:
        """Return how many trials a bracket has on a rung."""
        return len(self._bracket(bracket.turn).waiting) // int(self._eta ** (rung - bracket.start))

    def _point(self, trial_index: int, bracket: Bracket, promoted: Point | None) -> Point:
        rung = bracket.rung
        below, size = max(rung - 1, bracket.start), self._size(bracket, rung)
        member = self._targets[trial_index] = self._turns[rung]
        self._turns[rung] = (member + 1) % len(self.populations[rung])
        if rung == bracket.start and (start := self.next_given()) is not None:
            return start
        if bracket.turn < len(self.rungs) and rung > bracket.start:
            return round_to_float32(2.0 * self._next_promoted(below, rung, size) - 1.0)
        best = np.argsort(-self._fitness[below], kind="stable")[:size]
        target, parents = self.populations[rung][member], self.populations[below][best]
        if len(parents) < PARENTS:
            everyone = np.concatenate(self.populations)
            mutants = [self._mutant(target, everyone) for _ in range(PARENTS + 1 - len(parents))]
            parents = np.concatenate([parents, mutants])
        return round_to_float32(2.0 * self._offspring(target, parents) - 1.0)

    def _next_promoted(self, below: int, rung: int, size: int) -> Floats:
        """Return the next member of the rung below to promote to a rung."""
        order = np.argsort(-self._fitness[below], kind="stable")
        evaluated = self.populations[below][order[np.isfinite(self._fitness[below][order])]]
        if not self._coming[rung]:
            members = self.populations[rung]
            self._coming[rung] = [
                point for point in evaluated if not (point == members).all(axis=1).any()
            ]
            del self._coming[rung][size:]
        if self._coming[rung]:
            return self._coming[rung].pop(0)
        return np.asarray(self.populations[below][order[0]])

    def _mutant(self, target: Floats, pool: Floats) -> Floats:
        """Return (n,) a + F (b - c) of points of a pool without the target."""
        duplicates = np.flatnonzero((pool == target).all(axis=1))
        if len(duplicates) and len(pool) > 1:
            pool = np.delete(pool, duplicates[0], axis=0)
        num_missing = max(PARENTS - len(pool), 0)
        pool = np.concatenate([pool, self._evolution_rng.random((num_missing, pool.shape[1]))])
        first, second, third = pool[self._evolution_rng.choice(len(pool), PARENTS, replace=False)]
        return np.asarray(first + FACTOR * (second - third))

    def _offspring(self, target: Floats, parents: Floats) -> Floats:
        """Return (n,) a mutant crossed with the target; one coordinate at least is the mutant's."""
        rng, mutant = self._evolution_rng, self._mutant(target, parents)
        is_crossed = rng.random(len(target)) < CROSSOVER
        if not is_crossed.any():
            is_crossed[rng.integers(len(target))] = True
        point = np.where(is_crossed, mutant, target)
        return np.where((point < 0.0) | (point > 1.0), rng.random(len(point)), point)

    def _observe(self, trial_index: int, rung: int, point: Point, score: float) -> None:
        member = self._targets.pop(trial_index)
        if score >= self._fitness[rung][member]:
            self.populations[rung][member] = (point + 1.0) / 2.0
            self._fitness[rung][member] = score
