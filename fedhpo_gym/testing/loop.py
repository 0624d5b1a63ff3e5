"""A plain loop over rounds and clients, in double precision, to check an algorithm against.

It shares draws with the engine (federation, client sampling, minibatches, initial weights) but no
arithmetic. A reference of an algorithm subclasses nothing: it makes a `ReferenceLoop`, and writes
out the rounds with `update`, in some ten lines.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import Fidelity

if TYPE_CHECKING:  # the engine needs an extra
    from fedhpo_gym.fl.course import Course

Weights = NDArray[np.float64]


class ReferenceLoop:
    """A course of logistic regression, client after client.

    Hyperparameters of the course are attributes: `loop.learning_rate`.

    Attributes:
        weights: (classes, features + 1) the global model; the last column is the bias.
        sizes: (clients,) training samples.
    """

    def __init__(self, federation: Federation, course: "Course", horizon: int) -> None:
        """Begin a course that is planned for `horizon` rounds."""
        bound = 1 / np.sqrt(federation.features.shape[1])
        shape = federation.num_classes, federation.features.shape[1] + 1
        initial = stream(federation.seed, "init").uniform(-bound, bound, shape)
        self.weights: Weights = initial.astype(np.float32).astype(float)
        self.federation, self.course, self.horizon = federation, course, horizon
        self.sizes = federation.num_samples[:, 0]
        ones = np.ones((len(federation.features), 1))
        self._x = np.hstack([np.asarray(federation.features), ones]).astype(float)

    def __getattr__(self, name: str) -> Any:
        """Return a hyperparameter."""
        try:
            return self.course.configuration[name]
        except KeyError as error:
            raise AttributeError(name) from error

    def value_of(self, name: str, default: float = 0.0) -> float:
        """Return a hyperparameter, or a default where the course has none of that name."""
        return float(self.course.configuration.get(name, default))

    def rate(self, index: int) -> float:
        """Return the local learning rate of a round, counted from 0."""
        decay = self.value_of("rate_decay", 1.0) ** (index / max(self.horizon - 1, 1))
        return float(self.learning_rate * decay)

    def clients(self, index: int, poisson: bool = False) -> list[int]:
        """Return the clients that train in a round; of a `poisson` algorithm, if that is said."""
        from fedhpo_gym.fl.participants import client_orders, poisson_clients

        count = Fidelity(0, self.course.client_sample_rate).sampled_clients(len(self.sizes))
        if poisson:
            name = self.federation.seed, index
            return [*map(int, poisson_clients(name, count, len(self.sizes)))]
        [order] = client_orders([(self.federation.seed, index)], len(self.sizes))
        return sorted(order[:count].tolist())

    def error(self, weights: Weights, rows: NDArray[np.integer]) -> tuple[Weights, float]:
        """Return the gradient and the value of the mean cross-entropy over rows, in nats."""
        z = self._x[rows] @ weights.T
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        hits = np.eye(len(weights))[self.federation.labels[rows]]
        slope: Weights = (p - hits).T @ self._x[rows] / len(rows)
        return slope, float(-np.log(p[hits > 0]).mean())

    def update(
        self, client: int, index: int, shift: Weights | float = 0.0, pull: float = 0.0
    ) -> tuple[Weights, int]:
        """Return how a client moves the weights in a round, and in how many steps.

        Args:
            client: index of the client.
            index: the round, counted from 0.
            shift: what is added to every gradient, in the shape of the weights.
            pull: the coefficient mu of the term mu / 2 ||w - w_global||^2.
        """
        from fedhpo_gym.fl.participants import RoundLayout, batch_rows, client_streams

        size = self.course.value("batch_size", 8)
        layout = RoundLayout(
            [self.federation.clients[client][0]],
            np.array([int(dict(size.own).get(client, size.base))]),
            np.array([int(self.step_size)]),
            batch_rows(self.federation, size),
        )
        draws = layout.draw(client_streams([(self.federation.seed, index, client)]))
        local, move, steps = self.weights.copy(), np.zeros_like(self.weights), 0
        for rows, count in zip(draws[0], layout.sizes[:, 0], strict=True):
            slope = self.error(local, rows[:count])[0] + self.weight_decay * local + shift
            move = self.value_of("momentum") * move + slope + pull * (local - self.weights)
            local -= self.rate(index) * move
            steps += 1
        return local - self.weights, steps

    def losses(self) -> list[list[float]]:
        """Return the losses of the global model on each client's splits, (clients, splits)."""
        clients = self.federation.clients
        return [[self.error(self.weights, rows)[1] for rows in splits] for splits in clients]
