"""Tune a strategy of Flower: its simulation is a function, and a function is a problem.

`pip install flwr`, into an environment of its own: it wants older packages than some extras here.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import ERROR, getLogger
from typing import Any

import gymnasium as gym
import numpy as np
from flwr.client import NumPyClient
from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import Server
from flwr.server.strategy import FedAvgM

import fedhpo_gym
from fedhpo_gym.space import Dimension, SearchSpace

CLIENTS, ROWS, WIDTH = 5, 40, 3
SPACE = SearchSpace(
    (
        Dimension("learning_rate", 0.01, 10.0, "float", log=True),
        Dimension("server_momentum", 0.0, 0.9, "float"),
    )
)
OK = Status(Code.OK, "")


class Client(NumPyClient):
    """Logistic regression by one step of gradient descent a round; the last rows validate."""

    def __init__(self, number: int, learning_rate: float) -> None:
        """Make the data of a client."""
        rng = np.random.default_rng(number)
        self.y = rng.integers(2, size=ROWS).astype(float)
        self.x = rng.normal(size=(ROWS, WIDTH)) + self.y[:, None]
        self.learning_rate = learning_rate

    def fit(self, parameters: Any, config: Any) -> Any:
        """Return the weights after a step, and how many rows made it."""
        del config
        (weights,), half = parameters, ROWS // 2
        chance = 1 / (1 + np.exp(-self.x[:half] @ weights))
        gradient = self.x[:half].T @ (chance - self.y[:half]) / half
        return [weights - self.learning_rate * gradient], half, {}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Return the cross-entropy of the rows that nobody trained on."""
        del config
        (weights,), half = parameters, ROWS // 2
        margin = (2 * self.y[half:] - 1) * (self.x[half:] @ weights)
        return float(np.logaddexp(0, -margin).mean()), half, {}


class InProcess(ClientProxy):
    """A client that Flower's server calls in this process."""

    def __init__(self, number: int, client: Client) -> None:
        """Name the client by its number."""
        super().__init__(f"{number:03d}")
        self._client = client

    def fit(self, ins: Any, timeout: Any, group_id: Any) -> FitRes:
        """Train."""
        arrays, rows, metrics = self._client.fit(parameters_to_ndarrays(ins.parameters), ins.config)
        return FitRes(OK, ndarrays_to_parameters(arrays), rows, metrics)

    def evaluate(self, ins: Any, timeout: Any, group_id: Any) -> EvaluateRes:
        """Evaluate."""
        found = self._client.evaluate(parameters_to_ndarrays(ins.parameters), ins.config)
        loss, rows, metrics = found
        return EvaluateRes(OK, loss, rows, metrics)

    get_properties = get_parameters = reconnect = None  # type: ignore[assignment]


def simulate(configuration: Mapping[str, Any], fidelity: Mapping[str, Any]) -> dict[str, float]:
    """Return the best validation loss of some rounds of Flower's FedAvgM."""
    getLogger("flwr").setLevel(ERROR)
    manager = SimpleClientManager()
    for number in range(CLIENTS):
        manager.register(InProcess(number, Client(number, configuration["learning_rate"])))
    strategy = FedAvgM(
        min_fit_clients=CLIENTS,
        min_evaluate_clients=CLIENTS,
        min_available_clients=CLIENTS,
        server_momentum=configuration["server_momentum"],
        initial_parameters=ndarrays_to_parameters([np.zeros(WIDTH)]),
    )
    server = Server(client_manager=manager, strategy=strategy)
    history, _ = server.fit(num_rounds=fidelity["round"], timeout=None)
    return {"val_loss": min(loss for _, loss in history.losses_distributed)}


ID = fedhpo_gym.register_function("Flower-Logistic", simulate, SPACE, rounds=[5, 10, 20])

if __name__ == "__main__":
    env = gym.make(ID, budget_trials=20)
    env.reset(seed=0)
    env.action_space.seed(0)
    done = False
    while not done:
        _, _, done, _, info = env.step(env.action_space.sample())
    print(info["incumbent"])
