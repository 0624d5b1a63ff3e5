"""The state of N courses, and their observations: flat dictionaries of float32 arrays.

`RoundProcess` owns the `RoundEpisodes` and writes into them; `observe` turns them into rows of an
`ObservationLayout`. `measurement_of` computes what the server receives of an evaluation. All
functions take a leading axis of courses, and every course gets the bits that it would get alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.envs.round.settings import DECADES, decades
from fedhpo_gym.envs.trial.observation import box
from fedhpo_gym.envs.vector import ObservationLayout
from fedhpo_gym.evaluation.noise import Noise
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Evaluations
from fedhpo_gym.objectives import FAIRNESS_NAMES, NO_PRIVACY, Objective, fairness_vector, values_of
from fedhpo_gym.objectives.base import LARGEST
from fedhpo_gym.objectives.performance import WORST_FAIRNESS
from fedhpo_gym.tasks import Task

Row = Mapping[str, Any]
Where = NDArray[np.intp] | slice
"""Which of N episodes."""
_STD = FAIRNESS_NAMES.index("std")
_WORST = np.array([LARGEST, 0.0, 0.0])
"""Loss, accuracy and F1 where training diverged."""


@dataclass
class RoundEpisodes:
    """N episodes; the first axis of every array counts them.

    Attributes:
        loss: (N, history, 2) train and validation loss of the last evaluations, nats; the oldest
            first, and the one before the first round in place of those that have not been.
        update_norm: (N, 2) mean and standard deviation of log10 of the updates' norms.
        disagreement: (N, 2) mean and standard deviation of 1 - cosine to the mean update.
        action: (N, n) the last action; zeros before the first.
        trained: (N, clients) who trained in the last step.
        val_loss_before: (N, clients) validation loss of the model a client received first, nats.
        val_loss_after: (N, clients) of the model a client made last.
        noise_key: (N,) keys of the noise of evaluations, of `EpisodeDraws`.
        true_loss: (N,) validation loss of the last evaluation without noise, nats.
        measured: (N, objectives) values of the objectives that the reward reads off the model.
        true_measured: (N, objectives) these without noise.
        move_product: (N,) inner product of the model's moves in the last two steps; 0 after the
            first, and where it is not reported.
        divergences: (N, orders) Renyi divergences that the rounds have spent, at `SEARCH_ORDERS`.
        epsilon: (N,) what they prove.
    """

    instance: NDArray[np.int64]
    steps: NDArray[np.int64]
    rounds: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    upload_bytes: NDArray[np.float64]
    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    test: NDArray[np.float64]
    f1: NDArray[np.float64]
    client_spread: NDArray[np.float64]
    update_norm: NDArray[np.float64]
    disagreement: NDArray[np.float64]
    action: NDArray[np.float32]
    potential: NDArray[np.float64]
    diverged: NDArray[np.bool_]
    over: NDArray[np.bool_]
    best_loss: NDArray[np.float64]
    best_step: NDArray[np.int64]
    num_samples: NDArray[np.int64]
    trained: NDArray[np.bool_]
    val_loss_before: NDArray[np.float64]
    val_loss_after: NDArray[np.float64]
    configuration: NDArray[np.object_]
    best_configuration: NDArray[np.object_]
    cost: NDArray[np.object_]
    noise_key: NDArray[np.int64]
    true_loss: NDArray[np.float64]
    true_accuracy: NDArray[np.float64]
    best_true_loss: NDArray[np.float64]
    measured: NDArray[np.float64]
    true_measured: NDArray[np.float64]
    move_product: NDArray[np.float64]
    divergences: NDArray[np.float64]
    epsilon: NDArray[np.float64]

    @classmethod
    def start(
        cls,
        num_envs: int,
        history: int,
        action_size: int,
        num_clients: int,
        measured: int,
        orders: int,
    ) -> Self:
        """Return N episodes that have ended before they began."""
        shapes: dict[str, tuple[int, ...]] = {
            "loss": (history, 2),
            "accuracy": (history, 2),
            "test": (3,),
            "update_norm": (2,),
            "disagreement": (2,),
            "action": (action_size,),
            "num_samples": (num_clients, 3),
            "trained": (num_clients,),
            "val_loss_before": (num_clients,),
            "val_loss_after": (num_clients,),
            "measured": (measured,),
            "true_measured": (measured,),
            "divergences": (orders,),
        }
        arrays = {}
        for field in fields(cls):
            kind = getattr(np, str(field.type).removeprefix("NDArray[np.").removesuffix("]"))
            arrays[field.name] = np.zeros((num_envs, *shapes.get(field.name, ())), kind)
        state = cls(**arrays)
        state.restart(slice(None))
        state.over[:] = True
        return state

    def restart(self, where: Where) -> None:
        for array in vars(self).values():
            array[where] = {} if array.dtype == object else 0
        self.best_loss[where] = np.inf

    def row(self, index: int) -> Row:
        return {name: array[index].copy() for name, array in vars(self).items()}

    def put(self, index: int, row: Row) -> None:
        for name, value in row.items():
            getattr(self, name)[index] = value


NORM_DECADES = 6.0
"""Norms of updates are clipped to between 10^-6 and 10^6."""


def client_means(metrics: NDArray[np.floating], num_samples: NDArray[np.integer]) -> Floats:
    """Return (N, splits, metrics) sample-weighted means of (N, clients, splits, metrics)."""
    weights = num_samples[..., None].astype(np.float64)
    shares = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1.0)
    return np.asarray((np.where(weights > 0, metrics, 0.0) * shares).sum(axis=1))


def mean_and_spread(values: NDArray[np.floating], mask: NDArray[np.bool_]) -> Floats:
    """Return (N, 2), mean and deviation of the chosen of (N, m) values; (N, k, 2) of (k, N, m)."""
    count = np.maximum(mask.sum(axis=-1), 1)
    exact = np.where(mask, np.asarray(values, dtype=np.float64), 0.0)
    mean = exact.sum(axis=-1) / count
    squares = np.where(mask, (exact - mean[..., None]) ** 2, 0.0)
    return np.array([mean, np.sqrt(squares.sum(axis=-1) / count)]).T  # 0 where none is chosen


def log_norms(norms: NDArray[np.floating]) -> Floats:
    """Return log10 of norms, clipped to +-`NORM_DECADES`."""
    exact = np.maximum(np.asarray(norms, dtype=np.float64), 10.0**-NORM_DECADES)
    return np.asarray(np.log10(exact).clip(-NORM_DECADES, NORM_DECADES))


OBSERVED_SPLITS = {"train": 0, "val": 1}
"""Splits in observations, with their columns in `RoundEpisodes.loss` and `.accuracy`."""


def round_observation_space(
    history: int, action_size: int, num_clients: int | None, *, private: bool = False
) -> gym.spaces.Dict:
    """Return the observation space; `private` where there is an epsilon to spend."""
    boxes: dict[str, gym.Space[Any]] = {
        **{f"{split}_loss": box(-1.0, 1.0, history) for split in OBSERVED_SPLITS},
        **{f"{split}_accuracy": box(0.0, 1.0, history) for split in OBSERVED_SPLITS},
        "client_spread": box(0.0, 0.5, 1),
        "update_norm": box(-1.0, 1.0, 2),
        "disagreement": box(0.0, 1.0, 2),
        "remaining_rounds": box(0.0, 1.0, 1),
        "remaining_budget": box(0.0, 1.0, 1),
        "last_action": box(-1.0, 1.0, action_size),
    }
    if private:
        boxes["remaining_privacy"] = box(0.0, 1.0, 1)
    if num_clients is not None:
        boxes["sampled"] = box(0.0, 1.0, num_clients)
        boxes["num_val_samples"] = box(0.0, 1.0, num_clients)
        boxes["val_loss_before"] = box(-1.0, 1.0, num_clients)
        boxes["val_loss_after"] = box(-1.0, 1.0, num_clients)
    return gym.spaces.Dict(boxes)


def observe(
    layout: ObservationLayout,
    episodes: RoundEpisodes,
    *,
    chance: float,
    horizon: int,
    budget_s: float,
    epsilon: float | None,
    sampled: NDArray[np.bool_] | None,
) -> NDArray[np.float32]:
    """Return N observations as rows of a layout; `sampled` is (N, clients)."""
    losses = decades(episodes.loss, chance) / DECADES
    raw: dict[str, Any] = {
        "client_spread": episodes.client_spread[:, None],
        "update_norm": episodes.update_norm / NORM_DECADES,
        "disagreement": episodes.disagreement / 2.0,
        "remaining_rounds": 1.0 - episodes.rounds[:, None] / horizon,
        "remaining_budget": 1.0 - episodes.elapsed_s[:, None] / budget_s,
        "last_action": episodes.action,
    }
    for split, column in OBSERVED_SPLITS.items():
        raw[f"{split}_loss"] = losses[:, :, column]
        raw[f"{split}_accuracy"] = episodes.accuracy[:, :, column]
    if epsilon is not None:
        raw["remaining_privacy"] = 1.0 - episodes.epsilon[:, None] / epsilon
    if sampled is not None:
        raw.update(_clients(episodes, chance, sampled))
    return layout.rows(raw)


def _clients(
    episodes: RoundEpisodes, chance: float, sampled: NDArray[np.bool_]
) -> Mapping[str, NDArray[np.floating]]:
    trained = episodes.trained
    samples = episodes.num_samples[:, :, 1]
    share = samples / np.maximum(samples.sum(axis=1, keepdims=True), 1)
    before, after = (
        np.where(trained, decades(losses, chance) / DECADES, 0.0)
        for losses in (episodes.val_loss_before, episodes.val_loss_after)
    )
    return {
        "sampled": sampled.astype(np.float32),
        "num_val_samples": np.where(trained, share, 0.0),
        "val_loss_before": before,
        "val_loss_after": after,
    }


TRAIN, VAL = SPLITS.index("train"), SPLITS.index("val")
LOSS, ACCURACY, F1 = (METRICS.index(metric) for metric in ("loss", "accuracy", "f1"))


@dataclass(frozen=True, eq=False)
class Measurement:
    """An evaluation of N models, as the server receives it and without noise."""

    means: Floats  # (N, splits, metrics) as reported
    spread: Floats  # (N,) standard deviation over clients of the reported validation accuracy
    noise_free: Floats  # (N, splits, metrics)
    measured: Floats  # (N, objectives) as reported
    true_measured: Floats  # (N, objectives) without noise


def measurement_of(
    noise: Noise | None,
    task: Task,
    reported_names: Sequence[str],
    num_evaluations: int,
    exact: Evaluations,
    rngs: Sequence[np.random.Generator],
    measured: Sequence[Objective],
) -> Measurement:
    """Return what the server receives of N evaluations; withheld values are those of a guess.

    A course that has diverged has the worst values, whatever its last finite model was.

    Args:
        noise: of the evaluations.
        task: the task.
        reported_names: values that are reported where the noise withholds the others.
        num_evaluations: evaluations of an episode, which share an epsilon.
        exact: evaluations without noise.
        rngs: (N,) generators of the noise.
        measured: objectives that the reward reads off the model.
    """
    reported, diverged = exact, exact.has_diverged  # (N,)
    if noise is not None:
        reported = noise.apply(exact, rngs, np.array([metric.bounds for metric in task.metrics]))
    noise_free = client_means(exact.best[:, 0], exact.num_samples[:, 0])
    noise_free[diverged] = _WORST
    true_measured = values_of(measured, exact, NO_PRIVACY)
    accuracy = reported.best[:, 0, :, VAL, ACCURACY]  # (N, clients)
    present = reported.num_samples[:, 0, :, VAL] > 0  # (N, clients)
    if noise is None or reported is exact:
        spread = mean_and_spread(accuracy, present)[:, 1]
        spread = np.where(diverged, WORST_FAIRNESS[_STD], spread)
        return Measurement(noise_free, spread, noise_free, true_measured, true_measured)
    means = client_means(reported.best[:, 0], reported.num_samples[:, 0])
    means[diverged] = _WORST
    spread = fairness_vector(np.where(present, accuracy, np.nan)[:, None])
    spread = np.where(diverged, WORST_FAIRNESS[_STD], spread[:, _STD])
    objective_values = values_of(measured, reported, NO_PRIVACY)
    if not noise.withholds:
        return Measurement(means, spread, noise_free, objective_values, true_measured)
    values = {"val_loss": means[:, VAL, LOSS], "val_error": 1.0 - means[:, VAL, ACCURACY]}
    values["fairness_std"] = spread
    if noise.private:
        objectives = [*(task.objectives[name] for name in reported_names), *measured]
        columns = np.column_stack([*(values[name] for name in reported_names), objective_values])
        noisy = noise.private_values(objectives, columns, reported, num_evaluations, rngs)
        noisy = np.where(diverged[:, None], columns, noisy)
        values = dict(zip(reported_names, noisy.T, strict=False))
        objective_values = noisy[:, len(reported_names) :]
    guess = np.zeros_like(means)
    guess[..., LOSS] = task.chance_loss
    if "val_loss" in reported_names:
        guess[:, VAL, LOSS] = values["val_loss"]
    if "val_error" in reported_names:
        guess[:, VAL, ACCURACY] = 1.0 - values["val_error"]
    is_reported = "fairness_std" in reported_names
    spread = values["fairness_std"] if is_reported else np.zeros_like(spread)
    return Measurement(guess, spread, noise_free, objective_values, true_measured)
