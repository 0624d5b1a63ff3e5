"""The best schedules of `FedHPO-DAC-Quadratic-v1`, computed: no schedule has a lower expected loss.

Let x be the model before a round, y after it, S the m of C clients that are drawn, A_i = a_i^E,
b_i = (1 - A_i) c_i, and v_i the variance of a coordinate's noise after E steps. Neither S nor the
noise depends on x, and mirrored cohorts are equally likely, so E[mean_S A mean_S b] = 0 and

    E|y|^2 = E[(mean_S A)^2] E|x|^2 + E|mean_S b|^2 + d mean(v) / m,
    E[(mean_S A)^2] = mean(A)^2 + r var(A),
    E|mean_S b|^2 = r mean(|b|^2),  r = (C - m) / (m (C - 1)),

by the variance of a mean drawn without replacement. Losses are |y|^2 times a constant. Their
expectation rises with that before, so of all schedules that take the same time the best begins with
the best of those that took the time before its last round: a dynamic programme over elapsed time.

A schedule is fixed in advance. An agent that looks at the loss it has reached can do better still.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.quadratic import Quadratics, local_steps
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Instance, work_of
from fedhpo_gym.tasks.quadratic import QUADRATIC, QuadraticTask

Round = Mapping[str, Value]
"""A "learning_rate" and a "step_size", the local steps of a client."""

POINTS = 2049
"""Step sizes that are tried, evenly on a logarithmic scale; a parabola finds the best between."""


def expected_loss(
    instance: Instance, schedule: Sequence[Round], task: QuadraticTask = QUADRATIC
) -> float:
    """Return the expected loss at the end of an episode, exactly; the first model has 1.

    Args:
        instance: its clients; its own draws of cohorts and noise are what is averaged over.
        schedule: what the rounds do, in order; the last of it goes on until the budget is reached,
            and what comes after that is not read.
        task: budget, clock and ranges, at the highest client sample rate.
    """
    if not schedule:
        raise InvalidArgumentError("`schedule` must hold at least one round, got none")
    space = task.client_space
    searched = ({name: entry[name] for name in space.names if name in entry} for entry in schedule)
    rounds = [space.validate(entry, "schedule") for entry in searched]
    clients, seconds = Quadratics.of(task, instance), _seconds(task)
    loss, elapsed_s, finished = task.chance_loss, 0.0, 0
    while elapsed_s < task.budget_s:
        settings = rounds[min(finished, len(rounds) - 1)]
        rate, steps = float(settings["learning_rate"]), int(settings["step_size"])
        factor, added = moments(task, clients, np.array(rate), np.array(steps))
        loss, elapsed_s, finished = (
            float(factor * loss + added),
            elapsed_s + seconds[steps],
            finished + 1,
        )
    return loss


def best_schedule(
    instance: Instance, task: QuadraticTask = QUADRATIC
) -> tuple[tuple[Round, ...], float]:
    """Return the schedule with the least expected loss at the end, and that loss.

    It is exact but for step sizes, which are found to about 1e-6 of themselves; the loss is that of
    the schedule returned, and above the least by less than 1e-9 of it.
    """
    clients, seconds = Quadratics.of(task, instance), _seconds(task)
    steps = np.array([*seconds])
    grid = _grid(task)[:, None]
    factors_of_grid, added = moments(task, clients, grid, steps)
    least: dict[float, tuple[float, tuple[Round, ...]]] = {0.0: (task.chance_loss, ())}
    waiting = [0.0]
    while (elapsed_s := heapq.heappop(waiting)) < task.budget_s:
        loss, before = least[elapsed_s]
        rates = _least_rates(grid[:, 0], factors_of_grid * loss + added)
        factors, terms = moments(task, clients, rates, steps)
        for rate, num_steps, after in zip(rates, steps, factors * loss + terms, strict=True):
            then_s, settings = elapsed_s + seconds[int(num_steps)], _round(rate, num_steps)
            if then_s not in least:
                heapq.heappush(waiting, then_s)
            if then_s not in least or after < least[then_s][0]:
                least[then_s] = float(after), (*before, settings)
    loss, schedule = min(
        candidate for then_s, candidate in least.items() if then_s >= task.budget_s
    )
    return schedule, loss


def best_static(
    instances: Sequence[Instance], task: QuadraticTask = QUADRATIC
) -> tuple[Round, float]:
    """Return the one configuration with the least mean expected loss at the end, and that mean."""
    seconds = _seconds(task)
    steps, rounds = np.array([*seconds]), np.ceil(task.budget_s / np.array([*seconds.values()]))
    every = [Quadratics.of(task, instance) for instance in instances]

    def means(rates: Floats) -> Floats:
        sums = np.zeros(np.broadcast_shapes(rates.shape, steps.shape))
        for clients in every:
            factor, added = moments(task, clients, rates, steps)
            losses = np.full_like(sums, task.chance_loss)
            for finished in range(int(rounds.max())):
                losses = np.where(finished < rounds, factor * losses + added, losses)
            sums += losses / len(every)
        return sums

    grid = _grid(task)
    rates = _least_rates(grid, means(grid[:, None]))
    losses = means(rates)
    best = int(losses.argmin())
    return _round(rates[best], steps[best]), float(losses[best])


def moments(
    task: QuadraticTask, clients: Quadratics, rates: Floats, steps: NDArray[Any]
) -> tuple[Floats, Floats]:
    """Return what a round multiplies the expected loss by, and what it adds, for each of (...).

    Args:
        task: how many clients are drawn, by its highest client sample rate.
        clients: the federation.
        rates: (...) step sizes.
        steps: (...) local steps.
    """
    total, highest = task.num_clients, float(task.fidelity_space["client_sample_rate"].high)
    cohort = Fidelity(1, highest).sampled_clients(total)
    correction = (total - cohort) / (cohort * total - cohort)
    power, variance = local_steps(
        1.0 - rates[..., None] * clients.curvature, np.asarray(steps)[..., None]
    )
    factor = power.mean(axis=-1) ** 2 + correction * power.var(axis=-1)
    apart = (1.0 - power) ** 2 * (clients.optima**2).sum(axis=1)
    noise = (rates * clients.noise) ** 2 * variance.mean(axis=-1) * task.num_parameters / cohort
    return factor, clients.scale * (correction * apart.mean(axis=-1) + noise)


def _round(rate: float, steps: int) -> Round:
    return {"learning_rate": float(rate), "step_size": int(steps)}


def _seconds(task: QuadraticTask) -> dict[int, float]:
    """Return the seconds of a round, by its local steps."""
    rate, steps = task.fidelity_space["client_sample_rate"].high, task.space["step_size"]
    seconds = {
        num_steps: task.system.cost(work_of(task, {"step_size": num_steps}, 1, float(rate))).time_s
        for num_steps in range(int(steps.low), int(steps.high) + 1)
    }
    if min(seconds.values()) * task.max_round < task.budget_s:
        raise InvalidArgumentError(
            "`task` must have a budget that is reached within its rounds, got "
            f"{task.budget_s} s and {task.max_round} rounds of {min(seconds.values())} s or more"
        )
    return seconds


def _grid(task: QuadraticTask) -> Floats:
    rates = task.space["learning_rate"]
    return np.geomspace(float(rates.low), float(rates.high), POINTS)


def _least_rates(grid: Floats, losses: Floats) -> Floats:
    """Return where (points, steps) losses are least: the vertex of a parabola, in log rates."""
    at = np.clip(losses.argmin(axis=0), 1, len(grid) - 2)
    column = np.arange(losses.shape[1])
    before, middle, right = (losses[at + shift, column] for shift in (-1, 0, 1))
    bend = before - 2.0 * middle + right
    shift = np.where(bend > 0, (before - right) / np.where(bend > 0, 2.0 * bend, 1.0), 0.0)
    rates: Floats = grid[at] * np.exp(np.clip(shift, -1.0, 1.0) * np.log(grid[1] / grid[0]))
    return np.clip(rates, grid[0], grid[-1])
