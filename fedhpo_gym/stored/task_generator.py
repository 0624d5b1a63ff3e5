"""Generated tasks: a meta-model of federations, after Profet (Klein et al., 2019), in plain arrays.

A task is a number. Its stream draws two real tasks and a mixture of them, which is its place in the
latent space, and one of the networks that were sampled. The network reads a configuration and the
place, and answers a score for every objective at every fidelity; the mixture's quantiles turn
scores into values. All sums are exact, so a task is the same in any batch and on every processor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.archive import MODEL_GROWTH, checked_card
from fedhpo_gym.core.arrays import Floats, Singles
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import DamagedDataError, require_known
from fedhpo_gym.core.seeding import stream, streams
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.catalogue import find_stored, open_card
from fedhpo_gym.stored.meta_data import COSTS, LOSS, explained_entropy, smooth_gate
from fedhpo_gym.stored.surrogate_models import (
    HIDDEN_BITS,
    MAX_HIDDEN,
    MAX_ROW,
    MAX_WEIGHT,
    MAX_WIDTH,
    ROW_BITS,
    WEIGHT_BITS,
    Exact,
    on_grid,
)
from fedhpo_gym.tasks.meta import GENERATED_IDS, GENERATED_SPACES

FORMAT: Final = 1
SUFFIX: Final = ".generator"
LOWEST, STEP, KNOTS = -5.0, 0.125, 69
"""Scores at which quantiles are known: from `LOWEST` on, so far apart, and how many."""
DIVERGED: Final = 1e-30
"""Quantiles as 1 / (1 + v) of losses that stand for divergence, at most."""
NOISE_FROM, NOISE_STEP, NOISE_KNOTS = -3.0, 0.5, 13
"""Scores at which the deviation of noise is known."""
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
SEARCH: Final = ((16, 48), (2, 12))
"""Rounds of the search that goes on from the best elite, and steps of each; the last is of the
highest fidelity, of which elites are."""
MOST_ROUNDS: Final = 10**6
MOST: Final = 1024
"""Factors of noise, and elites of a network, at most."""
FACTS: Final = 20.0
"""Bound of what is known of a federation: logarithms of counts, and shares."""
TASKS: Final = 2**32
"""Tasks are numbered below this."""
STREAM: Final = "generated_task"
MIXED: Final = 0.5
"""A task takes so much from the second of its two real ones, at most."""


@dataclass(frozen=True)
class GeneratedTasks:
    """What n tasks are made of, for K knots, Q values, H units and d dimensions."""

    number: NDArray[np.uint64]  # (n,)
    network: NDArray[np.intp]  # (n,) which sample of the networks
    offset: Exact  # (n, H) what its first layer adds for the place
    bounded: Exact  # (n, Q, K) quantiles v as 1 / (1 + v)
    entropy: Exact  # (n,) of the labels
    facts: Exact  # (n, facts) what is known of the federation
    best: Exact  # (n,) the highest score that a search found
    best_action: Singles  # (n, d) and where

    def __len__(self) -> int:
        return len(self.network)

    def replace(self, where: NDArray[np.intp], others: Self) -> None:
        """Write other tasks in some places."""
        for field in fields(self):
            getattr(self, field.name)[where] = getattr(others, field.name)

    def at(self, where: NDArray[np.intp]) -> "GeneratedTasks":
        """Return the tasks of some places."""
        return GeneratedTasks(*(getattr(self, field.name)[where] for field in fields(self)))


class TaskGenerator:
    """Makes tasks of one search space, and answers for them.

    Attributes:
        card: what it was fitted on, and when.
        space: the configurations.
        rounds: (R,) and `rates` (A,) of the fidelities, ascending.
        objectives: names of the Q values of an evaluation, costs last.
    """

    def __init__(self, card: Path) -> None:
        repair = f"fedhpo-gym generator {card.name.partition('.')[0].rpartition('-')[2]}"
        with checked_card(card, "task generator", FORMAT, f"run `{repair}`") as (content, arrays):
            self.card: Mapping[str, Any] = content
            self.space = SearchSpace.from_dict(content["search_space"])
            self.rounds: tuple[int, ...] = tuple(content["rounds"])
            self.rates: tuple[float, ...] = tuple(content["client_sample_rates"])
            self.objectives: tuple[str, ...] = tuple(content["measured"])
            self.name, sha256 = str(content["name"]), content["sha256"]
            rising = all(list(grid) == sorted({*grid}) for grid in (self.rounds, self.rates))
            are_rounds = all(
                type(value) is int and 1 <= value <= MOST_ROUNDS for value in self.rounds
            )
            shares = all(type(value) is float and 0.0 < value <= 1.0 for value in self.rates)
            has_objectives = self.objectives[-len(COSTS) :] == COSTS and LOSS in self.objectives
            has_objectives &= len(set(self.objectives)) == len(self.objectives)
            if not (
                self.rounds and self.rates and rising and are_rounds and shares and has_objectives
            ):
                raise ValueError("rounds, client sample rates or what is measured are wrong")
            facts = len(content["features"])
        self.arrays = arrays.read(sha256, repair, growth=MODEL_GROWTH)
        try:
            self._prepare(facts)
        except (LookupError, ValueError, TypeError) as error:
            raise DamagedDataError(
                f"{arrays.path} does not hold the networks its card describes ({error}); delete it "
                f"and run `{repair}`"
            ) from error

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides a number."""
        return f"generator-sha256:{self.card['card_sha256']}"

    def _prepare(self, facts: int) -> None:
        arrays = self.arrays
        if not all(a.dtype.kind == "f" and np.isfinite(a).all() for a in arrays.values()):
            raise ValueError("an array is not of finite numbers")
        count = sum(name.startswith("weight_") for name in arrays)
        layers = range(count)
        self._weights = [on_grid(arrays[f"weight_{i}"], WEIGHT_BITS, MAX_WEIGHT) for i in layers]
        self._biases = [on_grid(arrays[f"bias_{i}"], WEIGHT_BITS, MAX_WEIGHT) for i in layers]
        self._of_place = on_grid(arrays["place_weight"], WEIGHT_BITS, MAX_WEIGHT)
        self._places, self._spread = arrays["places"].astype(float), arrays["spread"].astype(float)
        self._tables = arrays["bounded"].astype(np.float64)
        self._noise = arrays["noise"].astype(np.float64)
        self._scale = arrays["noise_scale"].astype(np.float64)
        self._elites = arrays["elites"]
        self._entropy, self._facts = (arrays[n].astype(float) for n in ("entropy", "facts"))
        measured, costs = len(self.objectives) - len(COSTS), len(COSTS)
        cells = len(self.rates) * len(self.rounds)
        outputs = cells * measured + len(self.rates) * costs
        networks, inputs, first = self._weights[0].shape
        tasks, width = self._places.shape
        expected = {
            "place_weight": (networks, width, first),
            "spread": (width,),
            "bounded": (tasks, measured + costs, KNOTS),
            "noise": (cells * measured, self._noise.shape[1]),
            "noise_scale": (measured, NOISE_KNOTS),
            "elites": (networks, self._elites.shape[1], len(self.space)),
            "entropy": (tasks,),
            "facts": (tasks, facts),
        }
        ends = [inputs, *(array.shape[2] for array in self._weights)]
        for i in layers:
            expected[f"weight_{i}"] = (networks, ends[i], ends[i + 1])
            expected[f"bias_{i}"] = (networks, ends[i + 1])
        shapes = {name: arrays[name].shape for name in expected}
        if shapes != expected or ends[-1] != outputs or max(ends) > MAX_WIDTH:
            raise ValueError(f"shapes are {shapes}")
        bounds = (
            (self._tables, 0.0, 1.0),
            (self._elites, -1.0, 1.0),
            (self._entropy, 1e-6, FACTS),
            (self._facts, -FACTS, FACTS),
        )
        if not all(
            array.size and low <= array.min() and array.max() <= high for array, low, high in bounds
        ):
            raise ValueError("quantiles, elites, entropies or facts are out of their range")
        most = self._noise.shape[1], self._elites.shape[1]
        if inputs != self.space.rounded_features(self._elites[0]).shape[1] or max(most) > MOST:
            raise ValueError(f"networks read other features, or more than {MOST} are of a kind")
        rounds = np.arange(len(self.rounds))
        self._columns = np.array(
            [
                [
                    *(
                        measured * (rate * len(rounds) + np.minimum(rounds, last))[:, None]
                        + np.arange(measured)
                    ).ravel(),
                    *(cells * measured + costs * rate + np.arange(costs)),
                ]
                for rate in range(len(self.rates))
                for last in rounds
            ]
        )
        self._loss = self.objectives.index(LOSS)
        flat = self._elites.reshape(-1, len(self.space))
        first_layers = self._first(self.space.rounded_features(flat))
        self._known = first_layers.reshape(*self._elites.shape[:2], -1)
        self._steps = [_steps((*size, len(self.space))) for size in SEARCH]

    def cell(self, round_: int, rate: float) -> int:
        """Return the position of a fidelity."""
        return self.rates.index(rate) * len(self.rounds) + self.rounds.index(round_)

    def draw(self, numbers: Sequence[int], cell: int = -1) -> GeneratedTasks:
        """Return the tasks of some numbers, and search each for its optimum without noise.

        The optimum is that of a fidelity: of the highest by default.
        """
        tasks, width = self._places.shape
        draws = [
            (
                *rng.integers((len(self._weights[0]), tasks, tasks, 2**20)).tolist(),
                rng.standard_normal(width),
            )
            for rng in streams(STREAM, [(task_number,) for task_number in numbers])
        ]
        network, first_parent, second_parent, share = (
            np.array([own[i] for own in draws], np.intp).reshape(-1) for i in range(4)
        )
        mixed = 1.0 - share * 2.0**-20 * MIXED

        def mixture(of: Floats) -> Floats:
            share_of_first = mixed.reshape(-1, *[1] * (of.ndim - 1))
            return share_of_first * of[first_parent] + (1.0 - share_of_first) * of[second_parent]

        noise = on_grid(np.array([own[4] for own in draws]).reshape(-1, width), ROW_BITS)
        place = mixture(self._places) + noise * self._spread
        offset = np.empty((len(network), self._of_place.shape[2]))
        for own, rows in _groups(network):
            grid = on_grid(place[rows], ROW_BITS, MAX_ROW)
            offset[rows] = grid @ self._of_place[own] + self._biases[0][own]
        entropy = 1.0 / mixture(1.0 / (1.0 + self._entropy)) - 1.0
        found = GeneratedTasks(
            np.array(numbers, np.uint64),
            network,
            offset,
            # Where the first diverges, so does their mixture.
            np.where(self._tables[first_parent] < DIVERGED, DIVERGED, mixture(self._tables)),
            entropy,
            mixture(self._facts),
            np.zeros(len(network)),
            np.zeros((len(network), len(self.space)), np.float32),
        )
        self._search(found, cell % len(self._columns))
        return found

    def _search(self, tasks: GeneratedTasks, cell: int) -> None:
        """Write the best of the elites of each task's network, after some steps from it."""
        scores = self._scores(tasks, self._known[tasks.network], cell)
        best, rows = scores.argmin(axis=1), np.arange(len(tasks))
        bounded = tasks.bounded[:, self._loss]
        tasks.best[:] = _values(bounded, scores[rows, best])
        tasks.best_action[:] = self._elites[tasks.network, best]
        for steps in self._steps[cell == len(self._columns) - 1]:
            candidates = np.clip(tasks.best_action[:, None] + steps, -1.0, 1.0).astype(np.float32)
            features = self.space.rounded_features(candidates.reshape(-1, len(self.space)))
            inputs = self._first(features).reshape(*candidates.shape[:2], -1)
            losses = _values(bounded, self._scores(tasks, inputs, cell))
            best = losses.argmin(axis=1)
            better = losses[rows, best] < tasks.best
            tasks.best[better] = losses[rows, best][better]
            tasks.best_action[better] = candidates[rows, best][better]
        tasks.best[:] = explained_entropy(tasks.best, tasks.entropy)

    def _scores(self, tasks: GeneratedTasks, inputs: Exact, cell: int) -> Exact:
        """Return what networks answer of the loss of (n, k, F) inputs in n tasks, (n, k)."""
        columns = self._columns[cell, self._loss : -len(COSTS) : len(self.objectives) - len(COSTS)]
        scores = np.empty(inputs.shape[:2])
        for network, rows in _groups(tasks.network):
            sums = inputs[rows] @ self._weights[0][network] + tasks.offset[rows, None]
            scores[rows] = self._onwards(sums, network, columns).min(axis=2)
        return scores

    def evaluate(
        self,
        tasks: GeneratedTasks,
        features: NDArray[np.floating],
        cells: NDArray[np.intp],
        noise: Floats | None = None,
    ) -> tuple[Exact, Exact]:
        """Return what a row of (n, F) features brings in each of n tasks, at (n,) fidelities.

        These are (n, Q) values, and (n,) validation losses without noise. A trial answers with the
        best of its rounds. Noise are (n, factors) numbers of variance 1.
        """
        inputs, rounds = self._first(features), len(self.rounds)
        measured, costs = len(self.objectives) - len(COSTS), len(COSTS)
        scores, true = np.empty((len(features), len(self.objectives))), np.empty(len(features))
        for group, rows in _groups(tasks.network * len(self._columns) + cells):
            network, cell = divmod(group, len(self._columns))
            sums = inputs[rows] @ self._weights[0][network]
            sums += tasks.offset[rows]
            outputs = self._onwards(sums, network, self._columns[cell])
            curve = outputs[:, :-costs].reshape(len(rows), rounds, measured)
            true[rows] = curve[..., self._loss].min(axis=1)
            if noise is not None:
                curve = self._moved(curve, self._columns[cell, :-costs], noise[rows])
            best = curve[..., self._loss].argmin(axis=1)
            scores[rows, :-costs] = curve[np.arange(len(rows)), best]
            scores[rows, -costs:] = outputs[:, -costs:]
        values = np.empty(scores.shape)
        for q in range(len(self.objectives)):
            values[:, q] = _values(tasks.bounded[:, q], scores[:, q])
        # Nothing but rounds makes two trials of a configuration and a rate differ in cost.
        share = np.array(self.rounds)[cells % rounds] / self.rounds[-1]
        values[:, -costs:] *= share[:, None]
        return values, _values(tasks.bounded[:, self._loss], true)

    def true_scores(self, tasks: GeneratedTasks, actions: Singles, cell: int = -1) -> Exact:
        """Return the scores of (n, d) actions in n tasks without noise; by default, at the end."""
        inputs = self._first(self.space.rounded_features(actions))[:, None]
        losses = _values(tasks.bounded[:, self._loss], self._scores(tasks, inputs, cell)[:, 0])
        return explained_entropy(losses, tasks.entropy)

    def _moved(self, curve: Exact, columns: NDArray[np.intp], noise: Exact) -> Exact:
        """Return (n, rounds, measured) scores of another seed."""
        position = np.clip((curve - NOISE_FROM) / NOISE_STEP, 0.0, NOISE_KNOTS - 1.0)
        knot = np.minimum(position.astype(np.intp), NOISE_KNOTS - 2)
        measured = np.arange(curve.shape[2])
        low, high = self._scale[measured, knot], self._scale[measured, knot + 1]
        shifts = np.zeros((len(curve), len(columns)))
        for factor in range(noise.shape[1]):
            shifts += self._noise[columns, factor] * noise[:, factor : factor + 1]
        spread = low + (high - low) * (position - knot)
        return on_grid(curve + spread * shifts.reshape(curve.shape), HIDDEN_BITS)

    def frozen_noise(
        self, task_numbers: NDArray[np.uint64], features: NDArray[np.floating]
    ) -> Exact:
        """Return the (n, factors) noise that configurations always have in tasks of (n,) numbers.

        It is a sum of four uniform numbers each, from a hash of the task and the features, and all
        are made `heavy`.
        """
        rows = (self._first(features) * 2.0**ROW_BITS).astype(np.int64).astype(np.uint64)
        odd = 2 * (np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * GOLDEN) + np.uint64(1)
        mixed = (rows * odd).sum(axis=1, dtype=np.uint64) + (task_numbers + np.uint64(1)) * GOLDEN
        sixteen_bits = np.empty((len(rows), self._noise.shape[1] + 1, 4))
        for factor in range(sixteen_bits.shape[1]):
            mixed = mixed + GOLDEN
            bits = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            bits ^= bits >> np.uint64(31)
            parts = (bits[:, None] >> np.arange(0, 64, 16, dtype=np.uint64)) & np.uint64(0xFFFF)
            sixteen_bits[:, factor] = parts
        normal = (sixteen_bits[:, 1:].sum(axis=2) - 131070.0) / 37837.2
        return heavy(normal, sixteen_bits[:, 0, 0] / 65536.0)

    def _first(self, features: NDArray[np.floating]) -> Exact:
        return on_grid(2.0 * features.astype(np.float64) - 1.0, ROW_BITS, 1.0)

    def _onwards(self, sums: Exact, network: int, columns: NDArray[np.intp]) -> Exact:
        """Return (..., columns) scores of (..., H) sums of the first layer; all sums are exact."""
        last = len(self._weights) - 1
        for layer in range(1, last + 1):
            hidden = on_grid(smooth_gate(sums), HIDDEN_BITS, MAX_HIDDEN)
            weight, bias = self._weights[layer][network], self._biases[layer][network]
            if layer == last:
                weight, bias = weight[:, columns], bias[columns]
            sums = hidden @ weight
            sums += bias
        return sums


def heavy(normal: Exact, uniform: Exact) -> Exact:
    """Return (..., factors) normal numbers with the tails of real noise, of the same variance.

    Most trials hardly move under another seed, and some do by much.
    """
    return np.asarray(normal * (math.sqrt(7.0) * uniform * uniform * uniform)[..., None])


def _steps(size: tuple[int, int, int]) -> Floats:
    """Return (rounds, steps, d) steps of a search, which grow smaller."""
    rng = stream(0, "generated_steps")
    moves = rng.random(size) < np.maximum(0.25, 1.0 / size[-1])
    width = 0.3 * 0.25 ** (np.arange(size[0]) / size[0])[:, None, None]
    return np.where(moves, width * rng.uniform(-2.0, 2.0, size), 0.0)


def _groups(keys: NDArray[np.intp]) -> list[tuple[int, NDArray[np.intp]]]:
    """Return each key with its rows."""
    order = np.argsort(keys, kind="stable")
    distinct, starts = np.unique(keys[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(order, starts[1:]), strict=True))


def _values(bounded: Exact, scores: Exact) -> Exact:
    """Return quantiles at (n, ...) scores of one objective, of (n, K) values as 1 / (1 + v)."""
    position = np.clip((scores - LOWEST) / STEP, 0.0, KNOTS - 1.0)
    knot = np.minimum(position.astype(np.intp), KNOTS - 2)
    rows = np.arange(len(scores)).reshape(-1, *[1] * (scores.ndim - 1))
    low, high = bounded[rows, knot], bounded[rows, knot + 1]
    interpolated = low + (high - low) * (position - knot)
    values = np.where(
        interpolated <= DIVERGED,
        np.finfo(np.float32).max,
        1.0 / np.maximum(interpolated, DIVERGED) - 1.0,
    )
    return np.asarray(np.maximum(values, 0.0))


def generator_stem(space: str) -> str:
    """Return how files of a search space are called."""
    return f"FedHPO-Generated-{space}"


def has_generator(env_id: str) -> bool:
    """Return whether the generator of an id is here."""
    return find_stored(generator_stem(GENERATED_IDS[env_id]), f"{SUFFIX}.json") is not None


@validate_call
def open_generator(space: str) -> TaskGenerator:
    """Open the generator of a search space, "LR" or "Joint".

    Raises:
        UnknownNameError: there is no such search space.
        MissingDataError: there is no card of it.
    """
    require_known("search space", space, GENERATED_SPACES)
    stem = generator_stem(space)
    how = f"there is no generator {stem}; fit one with `fedhpo-gym generator {space}`"
    return open_card(TaskGenerator, stem, f"{SUFFIX}.json", how)
