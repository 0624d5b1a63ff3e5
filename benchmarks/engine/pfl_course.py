"""Train one course with pfl, some rounds at a time, and report the processor time of each time.

A program of its own, started by `turns.py` with the interpreter that has pfl (pfl-research, 0.6).
It imports nothing of this suite but `networks.py`. pfl runs as it is: its algorithm, simulated
backend, user data sets, local training, weighting and aggregation. It evaluates in its first round
only, and prints no metrics.

    python pfl_course.py REQUEST.json

The request names the settings of the course, the clients of every round, and an .npz file with the
training samples of every client. Every line of standard input is a number of rounds, and every line
of standard output the answer.
"""

from __future__ import annotations

import functools
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from networks import NETWORKS
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

NEVER = 2**31
"""Rounds from one evaluation to the next: pfl evaluates in round 0, and then no more."""


class Network(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy of a minibatch."""
        return functional.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Return the loss."""
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Course:
    """One course; `advance` goes on from where the last call stopped."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Create the course at round 0."""
        settings = request["settings"]
        data = np.load(request["data"])
        users = {
            str(index): _user(data, index, int(settings["batch_size"]))
            for index in range(request["clients"])
        }
        cohorts = request["cohorts"]
        order = iter([str(client) for cohort in cohorts for client in cohort])
        self._cohort_size = len(cohorts[0])
        dataset = FederatedDataset(users.__getitem__, order.__next__)
        self._backend = SimulatedBackend(dataset, dataset, [WeightByDatapoints()])
        network = Network(NETWORKS[request["network"]](request["inputs"], request["classes"]))
        precision = request["precision"]
        self._model = PyTorchModel(
            network,
            functools.partial(torch.optim.SGD, weight_decay=settings["weight_decay"]),
            torch.optim.SGD(network.parameters(), lr=1.0),
            amp_dtype=None if precision == "float32" else getattr(torch, precision),
        )
        self._training = NNTrainHyperParams(
            local_batch_size=int(settings["batch_size"]),
            local_num_epochs=int(settings["step_size"]),
            local_learning_rate=settings["learning_rate"],
            local_max_grad_norm=request["max_norm"],
        )
        self._algorithm = FederatedAveraging()
        self._rounds = 0

    def advance(self, rounds: int) -> None:
        """Train some more rounds."""
        self._rounds += rounds
        parameters = NNAlgorithmParams(
            central_num_iterations=self._rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=self._cohort_size,
            val_cohort_size=None,
        )
        parts = (self._backend, self._model, self._training, self._training)
        self._algorithm.run(parameters, *parts, send_metrics_to_platform=False)


def _user(data: Any, index: int, batch_size: int) -> PyTorchTensorDataset:
    """Return a client's samples, without a last minibatch of one: normalisation refuses it."""
    y = torch.from_numpy(data[f"y_{index}"])
    kept = len(y) - (len(y) % batch_size == 1 and len(y) > 1)
    tensors = (torch.from_numpy(data[f"x_{index}"])[:kept], y[:kept])
    return PyTorchTensorDataset(tensors, user_id=str(index))


def versions() -> dict[str, str]:
    """Return what runs."""
    found = {name: version(name) for name in ("pfl", "torch", "numpy")}
    return {"pfl": found.pop("pfl"), "Python": platform.python_version(), **found}


def serve(course: Course, requests: TextIO, answers: TextIO) -> None:
    """Answer until there are no more requests."""
    print(json.dumps({"versions": versions()}), file=answers, flush=True)
    for line in requests:
        before = time.process_time()
        course.advance(int(line))
        answer = {"cpu_s": time.process_time() - before}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    channel, sys.stdout = sys.stdout, sys.stderr  # what pfl prints is no answer
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.manual_seed(asked["seed"])
    np.random.seed(asked["seed"])  # noqa: NPY002 - what pfl draws its seeds from
    serve(Course(asked), sys.stdin, channel)
