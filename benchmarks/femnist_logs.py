"""Reading FederatedScope's FEMNIST runs: the settings and the learning curves of their clients."""

from __future__ import annotations

import ast
import gzip
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import DamagedDataError
from fedhpo_gym.evaluation.records import SPLITS

CONFIG, RAW = "config.yaml.gz", "eval_results.raw.gz"
TOLERANCE = 1e-6
"""Between a client's summed loss and its mean loss times its samples."""


@dataclass(frozen=True)
class Settings:
    """What a configuration file says about training; mu is 0 for FedAvg."""

    algorithm: str
    num_clients: int
    rounds: int
    learning_rate: float
    weight_decay: float
    batch_size: int
    local_epochs: int
    dropout: float
    mu: float
    hidden_width: int
    max_norm: float
    mean: float
    std: float


@dataclass(frozen=True, eq=False)
class Log:
    """Learning curves of one run.

    Attributes:
        metrics: (rounds, clients, splits, 2) mean loss in nats and accuracy after rounds 1, 2, ...;
            of the training split, what the local model had on the minibatches it learned from.
        samples: (clients, splits) number of samples.
    """

    metrics: NDArray[np.float64]
    samples: NDArray[np.int64]


def read_settings(folder: Path) -> Settings:
    """Read the settings of a run.

    Raises:
        DamagedDataError: the file does not say what is needed, or says what cannot be compared.
    """
    path = folder / CONFIG
    with gzip.open(path, "rt", encoding="utf-8") as file:
        said = flatten(file.read())
    try:
        settings = Settings(
            algorithm=said["federate.method"].lower(),
            num_clients=int(said["federate.client_num"]),
            rounds=int(said["federate.total_round_num"]),
            learning_rate=float(said["train.optimizer.lr"]),
            weight_decay=float(said["train.optimizer.weight_decay"]),
            batch_size=int(said["dataloader.batch_size"]),
            local_epochs=int(said["train.local_update_steps"]),
            dropout=float(said["model.dropout"]),
            mu=float(said["regularizer.mu"]),
            hidden_width=int(said["model.hidden"]),
            max_norm=float(said["grad.grad_clip"]),
            mean=float(said["data.transform.mean"]),
            std=float(said["data.transform.std"]),
        )
    except KeyError as error:
        raise DamagedDataError(f"{path} must say {error}; copy the run again") from error
    need = {
        "train.optimizer.type": "SGD",
        "train.batch_or_epoch": "epoch",
        "federate.sample_client_num": said["federate.client_num"],
        "eval.freq": "1",
    }
    wrong = {key: said.get(key) for key, value in need.items() if said.get(key) != value}
    if wrong:
        raise DamagedDataError(f"{path} must say {need} to be compared, it says {wrong}")
    return settings


def flatten(text: str) -> dict[str, str]:
    """Return the scalars of a nested yaml file by dotted key.

    A list counts as its only scalar, and a list of pairs of a name and options (the transforms of
    the images) as its options: this is what FederatedScope's dumps hold, and no general yaml.
    """
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        content = line.lstrip(" -")
        if not content:
            continue
        indent = len(line) - len(content)
        while path and path[-1][0] >= indent:
            path.pop()
        key, separator, value = content.partition(":")
        parents = ".".join(name for _, name in path)
        if not separator:
            found[parents] = content
        elif value.strip():
            found[f"{parents}.{key}".lstrip(".")] = value.strip()
        else:
            path.append((indent, key))
    return found


def read_log(folder: Path) -> Log:
    """Read the curves of a run, up to the last round in which every client trained.

    Lines that FederatedScope labels with round r describe the model after r + 1 rounds; the last
    evaluation of a finished run, which repeats the one before, is left out.

    Raises:
        DamagedDataError: a line cannot be read, or contradicts the others.
    """
    path = folder / RAW
    seen: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record: Mapping[str, Any] = ast.literal_eval(line)
                role, index = str(record["Role"]), record["Round"]
                results: Mapping[str, float] = record["Results_raw"]
            except (SyntaxError, ValueError, KeyError, TypeError) as error:
                raise DamagedDataError(f"{path}, line {number}: not a result ({error})") from error
            if role.startswith("Client #"):
                seen[index][int(role.partition("#")[2])].update(results)
    clients = sorted(seen[0])
    if not clients:
        raise DamagedDataError(
            f"{path} must hold results of clients in round 0; copy the run again"
        )
    complete = [f"{split}_avg_loss" for split in SPLITS]
    rounds = 0
    while all(key in seen[rounds][client] for client in clients for key in complete):
        rounds += 1
    if not rounds:
        raise DamagedDataError(f"{path} must hold a whole round of {len(clients)} clients")
    results = [[seen[index][client] for client in clients] for index in range(rounds)]
    samples = _column(results, "total")
    if not (samples == samples[0]).all():
        raise DamagedDataError(f"{path}: the samples of a client must not change between rounds")
    loss = _column(results, "avg_loss")
    if not np.allclose(loss * samples, _column(results, "loss"), rtol=TOLERANCE):
        raise DamagedDataError(f"{path}: a loss must be the mean loss times the samples")
    metrics = np.stack([loss, _column(results, "acc")], axis=-1)
    return Log(metrics, samples[0].astype(np.int64))


def _column(results: list[list[dict[str, float]]], name: str) -> NDArray[np.float64]:
    return np.array(
        [[[found[f"{split}_{name}"] for split in SPLITS] for found in row] for row in results]
    )


def weighted(metrics: NDArray[Any], samples: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average (.., clients, splits, metrics) over the clients by samples: (.., splits, metrics)."""
    shares = samples / samples.sum(axis=0)
    mean: NDArray[np.float64] = (metrics.astype(np.float64) * shares[..., None]).sum(axis=-3)
    return mean
