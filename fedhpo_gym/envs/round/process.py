"""The decision process of round environments, for N courses at once.

`RoundEnv` runs it with N = 1 and `RoundVectorEnv` with any N, so both return the same bits. A step
decodes the actions, trains some rounds of all courses together (`Courses` of `backends/base.py`),
charges them on the simulated clock, and evaluates the models. The state of the episodes is in
`RoundEpisodes` of `envs/round/observation.py`, which also computes the observations. What the
server receives may be noisy; the noise-free values are kept beside it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.base import (
    OF_CLIENTS,
    Courses,
    CourseSnapshot,
    Metrics,
    TrainingReport,
    one_validates,
)
from fedhpo_gym.core.arrays import Bools, Indices, Integers
from fedhpo_gym.core.checks import short_repr
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import streams
from fedhpo_gym.envs.round import observation
from fedhpo_gym.envs.round.observation import (
    Measurement,
    RoundEpisodes,
    Row,
    Where,
    log_norms,
    mean_and_spread,
    measurement_of,
)
from fedhpo_gym.envs.round.settings import (
    AMOUNTS,
    POTENTIALS,
    RATE,
    Controls,
    RoundSettings,
    measured_objectives,
)
from fedhpo_gym.envs.vector import (
    EpisodeDraws,
    ObservationLayout,
    masked_columns,
    row_of,
    unnamed_stream,
)
from fedhpo_gym.evaluation.client_feedback import ClientFeedback
from fedhpo_gym.evaluation.noise import NOISE_STREAM
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Cost, Evaluations, Fidelity
from fedhpo_gym.objectives import FLOPS_PER_PARAMETER, SEARCH_ORDERS, Objective
from fedhpo_gym.objectives.base import LARGEST
from fedhpo_gym.objectives.privacy import conversion_terms
from fedhpo_gym.space import Value
from fedhpo_gym.systems import NEEDS_SAMPLES, CourseHistory, Work
from fedhpo_gym.tasks import Instance, Task
from fedhpo_gym.tasks.privacy import DELTA, renyi_spent
from fedhpo_gym.tasks.work import works_of

TRAIN, VAL, TEST = (SPLITS.index(split) for split in ("train", "val", "test"))
LOSS, ACCURACY, F1 = (METRICS.index(metric) for metric in ("loss", "accuracy", "f1"))
SEEN: Final = slice(TRAIN, VAL + 1)
_ALL: Final = slice(None)


OF_ACTION: Final = frozenset({"configuration", "action", "steps", "cost"})
"""Entries of the state that describe the last action, whether or not its model is released."""
COMPARED: Final = ("elapsed_s", "upload_bytes", "potential", "client_spread", "measured")
"""Entries of the state whose change is rewarded."""


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """What a step of N episodes brought: (N,) rewards, and float32 (N, rewards) vectors."""

    scalars: NDArray[np.float64]
    vectors: NDArray[np.float32]
    terminated: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class EpisodeSnapshot:
    """Where an episode and its course stand, and what their process was made with."""

    row: Row
    course: CourseSnapshot
    made: Mapping[str, object]


class RoundProcess:
    """N episodes on N courses that take their rounds together."""

    def __init__(
        self,
        task: Task,
        controls: Controls,
        instances: Sequence[Instance],
        settings: RoundSettings,
        courses: Courses,
        num_envs: int = 1,
    ) -> None:
        self.task = task
        self.controls = controls
        self.instances = tuple(instances)
        self.settings = settings
        self.courses, self._fingerprint = courses, courses.fingerprint
        constant = sorted({"fairness", *OF_CLIENTS} & {*settings.names})
        if constant and one_validates(courses.num_samples):
            raise InvalidArgumentError(
                f"`rewards` must be able to vary, got {constant}, but one client alone is "
                f"validated in {task.id}; leave them out"
            )
        # The rules that count samples must know all instances; the others spare their making.
        counted = task.system.compute in NEEDS_SAMPLES or "flops" in settings.names
        self._most_samples = courses.most_samples if counted else None
        largest = controls.largest_work(settings.horizon, self._most_samples)
        cost = task.system.cost(largest)
        self._largest = {name: self._amount(name, largest, cost) or 1.0 for name in AMOUNTS}
        history, size, private = settings.history, controls.size, settings.epsilon is not None
        shapes = history, size, task.num_clients, len(self.measured), private * len(SEARCH_ORDERS)
        self.episodes = RoundEpisodes.start(num_envs, *shapes)
        rows = controls.num_rows
        self.observation_space = observation.round_observation_space(
            history, size, rows, private=private
        )
        self.layout = ObservationLayout(self.observation_space)
        self._alphas, self._seeds = np.array(
            [(instance.alpha, instance.seed) for instance in instances]
        ).T
        self.reward_space = self._reward_space()

    @cached_property
    def measured(self) -> tuple[Objective, ...]:
        return measured_objectives(self.task, self.settings.rewards)

    @cached_property
    def made(self) -> dict[str, object]:
        """What the numbers of an episode depend on besides its state, by the arguments' names."""
        task = {field.name: getattr(self.task, field.name) for field in fields(self.task)}
        del task["budget_s"]  # that of trials
        settings = {
            field.name: getattr(self.settings, field.name) for field in fields(self.settings)
        }
        return {
            "task": self.task.key,
            **task,
            "instances": self.instances,
            "per_client": self.controls.num_rows is not None,
            "dynamic": self.controls.space,
            "configuration": dict(self.controls.fixed),
            **settings,
            "rewards": self.settings.names,
            "backend": self.courses.name,
        }

    def __getstate__(self) -> dict[str, object]:
        """Leave out what is derived: objectives hold functions, which cannot be pickled."""
        derived = ("measured", "made")
        return {name: value for name, value in vars(self).items() if name not in derived}

    def _amount(self, name: str, work: Work, cost: Cost) -> float:
        """Return bytes, operations or joules of some work; 0 if unknown."""
        if name == "flops":
            return FLOPS_PER_PARAMETER * work.num_parameters * (work.samples_read or 0.0)
        if name == "energy":
            has_energy = self.task.system.knows_energy and not work.reports
            return self.task.system.energy_j(work) if has_energy else 0.0
        return cost.upload_bytes if name == "upload" else cost.download_bytes

    def draws(self) -> EpisodeDraws:
        noisy, num_envs = self.settings.noise is not None, len(self.episodes.over)
        return EpisodeDraws(num_envs, len(self.instances), unnamed_stream, noisy=noisy)

    def restart(
        self, where: Indices, instances: Sequence[int], keys: Integers | None = None
    ) -> None:
        if not len(where):
            return
        self.courses.start(where.tolist(), instances)
        state = self.episodes
        state.restart(where)
        state.instance[where] = instances
        if keys is not None:
            state.noise_key[where] = keys
        state.num_samples[where] = self.courses.num_samples[where]
        measurement = self._evaluate(self.courses.first_metrics(where.tolist()), where)
        state.loss[where] = measurement.means[:, None, SEEN, LOSS]
        state.accuracy[where] = measurement.means[:, None, SEEN, ACCURACY]
        self._store(measurement, where)

    def _evaluate(self, metrics: Metrics, where: Where) -> Measurement:
        """Return what the server receives of an evaluation of some episodes."""
        state, noise, rngs = self.episodes, self.settings.noise, list[np.random.Generator]()
        evaluations = self._evaluations(metrics, where)
        if noise is not None:
            pairs = zip(state.noise_key[where].tolist(), state.steps[where].tolist(), strict=True)
            rngs += streams(NOISE_STREAM, list(pairs))
        names, count = self.settings.reported_names, self.settings.evaluations
        return measurement_of(noise, self.task, names, count, evaluations, rngs, self.measured)

    def _evaluations(self, metrics: Metrics, where: Where) -> Evaluations:
        state, default_rate = self.episodes, self.controls.default[RATE]
        per_seed = metrics[:, None]  # (N, 1, clients, splits, metrics)
        rates = [
            float(configuration.get(RATE, default_rate))
            for configuration in state.configuration[where]
        ]
        return Evaluations(
            per_seed,
            state.num_samples[where, None],
            state.rounds[where, None],
            state.diverged[where, None],
            np.array(
                [self.instances[configuration].seed for configuration in state.instance[where]]
            )[:, None],
            {"round": state.rounds[where], "client_sample_rate": np.array(rates)},
            lambda: per_seed,
        )

    def _store(self, measurement: Measurement, where: Where) -> None:
        state, means = self.episodes, measurement.means
        state.test[where], state.f1[where] = measurement.noise_free[:, TEST], means[:, VAL, F1]
        state.client_spread[where] = measurement.spread
        measure = POTENTIALS[self.settings.potential].measure
        loss, accuracy = means[:, VAL, LOSS], means[:, VAL, ACCURACY]
        state.potential[where] = measure(loss, accuracy, self.task.chance_loss)
        state.true_loss[where] = measurement.noise_free[:, VAL, LOSS]
        state.true_accuracy[where] = measurement.noise_free[:, VAL, ACCURACY]
        state.measured[where] = measurement.measured
        state.true_measured[where] = measurement.true_measured

    def step(self, actions: NDArray[np.floating]) -> RoundOutcome:
        """Train `rounds_per_step` rounds of every course; outcomes of ended episodes mean nothing.

        Args:
            actions: (N, ...) one action of each episode.
        """
        state = self.episodes
        before = {name: getattr(state, name).copy() for name in COMPARED}
        configurations, fidelities = self._configure(actions)
        unaffordable = self._spend_privacy(configurations, fidelities)
        report = self.courses.advance(self.settings.rounds_per_step)
        trained = np.logical_or.reduce(report.feedback.sampled, axis=1)  # (N, clients)
        charges = self._charge(configurations, fidelities, report.feedback, trained)
        self._record_actions(actions, configurations, trained)
        state.diverged[:] = report.diverged
        self._measure(report, trained)
        withheld = self._withhold(unaffordable)
        is_spent = state.rounds >= self.settings.horizon
        is_spent |= state.elapsed_s >= self.settings.budget_s
        state.over[:] = terminated = is_spent | state.diverged | withheld
        outcome = self._reward(before, charges, terminated)
        outcome.vectors[withheld] = 0.0
        return outcome

    def _configure(
        self, actions: NDArray[np.floating]
    ) -> tuple[list[dict[str, Value]], list[Fidelity]]:
        """Give the courses the hyperparameters of the actions."""
        configurations = [*map(self.controls.decode, actions)]
        rounds = self.settings.rounds_per_step
        fidelities = [
            Fidelity(rounds, float(configuration[RATE])) for configuration in configurations
        ]
        self.courses.configure(
            [
                {k: v for k, v in configuration.items() if k != RATE}
                for configuration in configurations
            ],
            [fidelity.client_sample_rate for fidelity in fidelities],
        )
        return configurations, fidelities

    def _charge(
        self,
        configurations: Sequence[Mapping[str, Value]],
        fidelities: Sequence[Fidelity],
        feedback: ClientFeedback,
        trained: Bools,
    ) -> list[tuple[Work, Cost]]:
        """Add the cost of the rounds to the clocks; return work and cost of every course."""
        state = self.episodes
        samples, histories = state.num_samples[:, :, TRAIN], self._histories(feedback)
        works = works_of(self.task, configurations, fidelities, trained, samples, histories)
        costs = [*map(self.task.system.cost, works)]
        state.elapsed_s += [cost.time_s for cost in costs]
        state.upload_bytes += [cost.upload_bytes for cost in costs]
        state.cost[:] = [{**vars(cost)} for cost in costs]
        return [*zip(works, costs, strict=True)]

    def _record_actions(
        self,
        actions: NDArray[np.floating],
        configurations: Sequence[Mapping[str, Value]],
        trained: Bools,
    ) -> None:
        """Count the step and store its actions."""
        state = self.episodes
        state.configuration[:] = configurations
        state.steps += 1
        state.rounds += self.settings.rounds_per_step
        last = np.asarray(actions, dtype=np.float32)
        if self.controls.num_rows is not None:  # a client that did not train keeps its row
            last = np.where(trained[:, :, None], last, state.action.reshape(last.shape))
        state.action[:] = last.reshape(len(last), -1)

    def _withhold(self, rows: Mapping[int, Row]) -> Bools:
        """Restore episodes that cannot afford the step, whose model the server does not release.

        Returns:
            (N,) whether an episode was restored.
        """
        state = self.episodes
        withheld = np.zeros(len(state.over), dtype=np.bool_)
        for index, row in rows.items():
            state.put(index, {name: row[name] for name in row.keys() - OF_ACTION})
            state.cost[index] = dict.fromkeys(state.cost[index], 0.0)
            withheld[index] = True
        return withheld

    def _spend_privacy(
        self, configurations: Sequence[Mapping[str, Value]], fidelities: Sequence[Fidelity]
    ) -> dict[int, Row]:
        """Spend the privacy of the next rounds; return the state of episodes that cannot afford it.

        Rounds go on while some Renyi order affords them. This is a privacy filter, so noise may
        depend on what was released before (Lecuyer, 2021, "Practical privacy filters and odometers
        with Renyi differential privacy").
        """
        state, limit = self.episodes, self.settings.epsilon
        if limit is None:
            return {}
        planned = {"horizon": self.settings.horizon, "steps": 64}
        divergences = state.divergences + [
            renyi_spent(self.task, values, fidelity.round, fidelity.client_sample_rate, **planned)
            for values, fidelity in zip(configurations, fidelities, strict=True)
        ]  # (N, orders)
        epsilon = _epsilons(divergences)
        affordable = epsilon <= limit
        rows = {index: state.row(index) for index in np.flatnonzero(~affordable).tolist()}
        state.divergences[affordable] = divergences[affordable]
        state.epsilon[affordable] = epsilon[affordable]
        return rows

    def observe(self) -> NDArray[np.float32]:
        sampled = None
        if self.controls.num_rows is not None:
            sampled = self.courses.sampled(self.settings.rounds_per_step)
        return observation.observe(
            self.layout,
            self.episodes,
            chance=self.task.chance_loss,
            horizon=self.settings.horizon,
            budget_s=self.settings.budget_s,
            epsilon=self.settings.epsilon,
            sampled=sampled,
        )

    def describe(self, index: int) -> dict[str, Any]:
        """Return the `info` of `reset`: the course of an episode and the source of its numbers."""
        instance, noise = self._instance(index), self.settings.noise
        info = {
            "task": self.task.name,
            "backend": self.courses.name,
            **self.courses.describe(),
            "fingerprint": self._fingerprint,
            "seeds": [instance["seed"]],
            "instance": instance,
            "objective_names": list(self.settings.names),
        }
        if noise is not None:
            shared = {"evaluations": self.settings.evaluations} if noise.private else {}
            info["noise"] = {**noise.describe(), **shared}
        return info

    def _instance(self, index: int) -> dict[str, Any]:
        instance_index = int(self.episodes.instance[index])
        return {"index": instance_index, **vars(self.instances[instance_index])}

    def infos(self, names: Collection[str] = ()) -> dict[str, Any]:
        """Return the infos of last steps, (N, ...) nested; losses in nats, 0 for idle clients."""
        state = self.episodes
        loss, accuracy = np.minimum(state.loss[:, -1], LARGEST), state.accuracy[:, -1]
        test = np.minimum(state.test, LARGEST)
        info: dict[str, Any] = {
            "step": state.steps,
            "fidelity": {"round": state.rounds},
            "objectives": {
                "val_loss": loss[:, 1],
                "val_error": 1.0 - accuracy[:, 1],
                **self._named(state.measured),
            },
            "cost": {
                key: np.array([cost[key] for cost in state.cost]) for key in ("time_s", "rounds")
            },
            "elapsed_s": state.elapsed_s,
            "incumbent": {"step": state.best_step, "val_loss": state.best_loss},
            "test": {metric: test[:, column] for column, metric in enumerate(METRICS)},
            "train_loss": loss[:, 0],
            "val_loss": loss[:, 1],
            "train_accuracy": accuracy[:, 0],
            "val_accuracy": accuracy[:, 1],
            "diverged": state.diverged,
            "instance": {
                "index": state.instance,
                "alpha": self._alphas[state.instance],
                "seed": self._seeds[state.instance].astype(np.int64),
            },
            "num_train_samples": np.where(state.trained, state.num_samples[:, :, 0], 0),
            "num_val_samples": np.where(state.trained, state.num_samples[:, :, 1], 0),
        }
        if self.settings.noise is not None:
            info["truth"] = {
                "objectives": {
                    "val_loss": np.minimum(state.true_loss, LARGEST),
                    "val_error": 1.0 - state.true_accuracy,
                    **self._named(state.true_measured),
                },
                "incumbent": {"val_loss": state.best_true_loss},
            }
        if self.settings.epsilon is not None:
            info["epsilon"] = state.epsilon
        if self.settings.report_moves:
            info["move_product"] = state.move_product
        if self.controls.num_rows is not None:
            info["val_loss_before"] = state.val_loss_before
            info["val_loss_after"] = state.val_loss_after
        if "configuration" in names:
            info["configuration"] = masked_columns(state.configuration.tolist())
        if "fidelity" in names:
            rates = [configuration[RATE] for configuration in state.configuration]
            info["fidelity"][RATE] = np.array(rates, dtype=np.float64)
        return info

    def _named(self, values: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        return {objective.name: values[:, column] for column, objective in enumerate(self.measured)}

    def info(self, index: int) -> dict[str, Any]:
        """Return the `info` of an episode's last step as plain data."""
        state = self.episodes
        shared = row_of(self.infos(("fidelity",)), index)
        best = shared["incumbent"]
        configuration = dict(state.best_configuration[index])
        return {
            **shared,
            "configuration": dict(state.configuration[index]),
            "cost": dict(state.cost[index]),
            "incumbent": {"step": best["step"], "configuration": configuration, **best},
            "instance": self._instance(index),
            "ended_by": self._ended_by(index),
        }

    def _ended_by(self, index: int) -> str | None:
        """Return what ended an episode, None while it goes on."""
        state = self.episodes
        ends = {
            "divergence": state.diverged[index],
            "horizon": state.rounds[index] >= self.settings.horizon,
            "budget": state.elapsed_s[index] >= self.settings.budget_s,
            "privacy": state.over[index],  # nothing else ends an episode
        }
        return next((name for name, so in ends.items() if so), None)

    def close(self) -> None:
        self.courses.close()

    def snapshot(self, index: int) -> EpisodeSnapshot:
        """Return where an episode stands; it can be restored any number of times."""
        return EpisodeSnapshot(self.episodes.row(index), self.courses.snapshot(index), self.made)

    def restore(self, index: int, snapshot: EpisodeSnapshot) -> None:
        """Go back to a snapshot of an episode of this process, or of one made alike."""
        for name, value in self.made.items():
            other = snapshot.made.get(name)
            if other != value:
                raise InvalidArgumentError(
                    f"`snapshot` must be of an environment made alike, got one with another "
                    f"{name!r}: {short_repr(other)}, which is {short_repr(value)} here; restore it "
                    "where it was taken, or make an environment with the arguments of that one"
                )
        self.courses.restore(index, snapshot.course)
        self.episodes.put(index, snapshot.row)

    def _histories(self, feedback: ClientFeedback) -> list[CourseHistory]:
        """Return the rounds of every episode's step, before its clock goes on."""
        state = self.episodes
        columns = (state.instance.tolist(), state.rounds.tolist(), state.elapsed_s.tolist())
        # The clock of the system decides how long rounds of synchronous algorithms take.
        seconds = feedback.seconds if self.task.asynchronous else [None] * len(state.over)
        return [
            CourseHistory(self.instances[instance].seed, *past)
            for instance, *past in zip(*columns, feedback.sampled, seconds, strict=True)
        ]

    def _measure(self, report: TrainingReport, trained: NDArray[np.bool_]) -> None:
        """Take in what the clients and the evaluation report."""
        state = self.episodes
        measurement = self._evaluate(report.metrics, _ALL)
        means = measurement.means
        state.loss[:, :-1], state.accuracy[:, :-1] = state.loss[:, 1:], state.accuracy[:, 1:]
        state.loss[:, -1], state.accuracy[:, -1] = means[:, SEEN, LOSS], means[:, SEEN, ACCURACY]
        self._store(measurement, _ALL)
        state.potential[state.diverged] = POTENTIALS[self.settings.potential].low
        sampled = report.feedback.sampled.reshape(len(trained), -1)
        norms = log_norms(report.feedback.update_norm.reshape(sampled.shape))
        distances = 1.0 - report.feedback.alignment.reshape(sampled.shape).astype(np.float64)
        statistics = mean_and_spread(np.array([norms, distances]), sampled)
        state.update_norm, state.disagreement = statistics.swapaxes(0, 1)
        state.trained[:] = trained
        if report.move_product is not None:
            state.move_product[:] = report.move_product
        if self.controls.num_rows is not None:  # else nobody has asked for them
            rows, clients = np.ogrid[: trained.shape[0], : trained.shape[1]]
            for losses, metrics, direction in (
                (state.val_loss_before, report.feedback.before, 1),
                (state.val_loss_after, report.feedback.after, -1),
            ):
                first = report.feedback.sampled[:, ::direction].argmax(axis=1)
                losses_of_clients = metrics[:, ::direction, :, VAL, LOSS][
                    rows, first, clients
                ].astype(np.float64)
                losses[:] = np.where(trained, np.fmin(losses_of_clients, LARGEST), 0.0)
        (better,) = (state.loss[:, -1, 1] < state.best_loss).nonzero()
        if len(better):
            state.best_loss[better] = state.loss[better, -1, 1]
            state.best_true_loss[better] = state.true_loss[better]
            state.best_step[better] = state.steps[better]
            state.best_configuration[better] = state.configuration[better]

    def _reward(
        self,
        before: Mapping[str, NDArray[np.float64]],
        charged: Sequence[tuple[Work, Cost]],
        terminated: NDArray[np.bool_],
    ) -> RoundOutcome:
        """Return the rewards of a step, from what the state was before it."""
        settings, state = self.settings, self.episodes
        elapsed_s, measured = before["elapsed_s"], before["measured"]
        improvement = settings.reward_scale * (state.potential - before["potential"])
        improvement -= settings.divergence_penalty * state.diverged
        # What a course that diverged saves is not earned: it pays for the rest of the budget, too.
        time = (state.elapsed_s - elapsed_s) / settings.budget_s
        remaining = np.maximum(1.0 - elapsed_s / settings.budget_s, 0.0)
        time = np.where(state.diverged, np.maximum(time, remaining), time)
        columns = {
            **{
                name: -np.array([self._amount(name, *objective) for objective in charged])
                / self._largest[name]
                for name in settings.names
                if name in AMOUNTS
            },
            "improvement": improvement,
            "time": -time,
            "upload": -(state.upload_bytes - before["upload_bytes"]) / self._largest["upload"],
            "fairness": before["client_spread"] - state.client_spread,
            **{
                objective.name: objective.errors(measured[:, column])
                - objective.errors(state.measured[:, column])
                for column, objective in enumerate(self.measured)
            },
        }
        vectors = np.array([columns[name] for name in settings.names]).T
        space = self.reward_space
        vectors = vectors.clip(space.low, space.high).astype(np.float32, order="C")
        return RoundOutcome(improvement - settings.time_price * time, vectors, terminated)

    def _reward_space(self) -> gym.spaces.Box:
        settings = self.settings
        potential = POTENTIALS[settings.potential]
        reach = settings.reward_scale * (potential.high - potential.low)
        work = self.controls.largest_work(settings.rounds_per_step, self._most_samples)
        step = self.task.system.cost(work)
        widths = {objective.name: objective.error_bounds for objective in self.measured}
        bounds = {
            **dict.fromkeys(AMOUNTS, (-1.0, 0.0)),
            "improvement": (-reach - settings.divergence_penalty, reach),
            "time": (-max(1.0, step.time_s / settings.budget_s), 0.0),
            "fairness": (-0.5, 0.5),
            **{name: (low - high, high - low) for name, (low, high) in widths.items()},
        }
        low, high = np.array([bounds[name] for name in settings.names], dtype=np.float32).T
        return gym.spaces.Box(low, high, dtype=np.float32)


_ADDED: Final = np.subtract(*conversion_terms(tuple(SEARCH_ORDERS), DELTA))


def _epsilons(divergences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (N,) epsilons that (N, orders) divergences prove, as `epsilon_from_renyi` does."""
    return np.asarray(np.maximum((divergences + _ADDED).min(axis=1), 0.0))
