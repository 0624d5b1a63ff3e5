"""Translate tasks into FederatedScope's configuration, and its messages into arrays.

`backend` and `courses` call `course_entries` before training and the parsers after it. Versions of
FederatedScope name their configuration keys in two layouts, `CURRENT` and `FIRST` (version 0.1), so
that every table of keys has one entry per layout. Messages come from another process. The parsers
therefore check every value and raise `WorkerLostError` instead of passing on wrong numbers.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import as_number, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, WorkerLostError
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.space.per_client import base_name
from fedhpo_gym.tasks import Task

Entries = dict[str, Any]
CURRENT, FIRST = "current", "v0.1"

ALGORITHMS = ("fedavg", "fedopt", "fedprox")
"""Algorithms that FederatedScope implements with the same meaning."""
MODELS = ("LR", "MLP", "CNN", "GNN")
IMAGES_WIDTH, DIGITS_WIDTH, GRAPH_WIDTH = 128, 2048, 64
"""Hidden units of the networks of the paper (Appendix D)."""
CLIPPED_NORM = 5.0
"""Norm to which gradients of the CNN are clipped, as in the scripts of the benchmark."""

# Hyperparameters of local training -> FederatedScope's keys, by layout.
LOCAL: Mapping[str, Mapping[str, str]] = {
    CURRENT: {
        "learning_rate": "train.optimizer.lr",
        "weight_decay": "train.optimizer.weight_decay",
        "step_size": "train.local_update_steps",
        "batch_size": "dataloader.batch_size",
        "dropout": "model.dropout",
    },
    FIRST: {
        "learning_rate": "optimizer.lr",
        "weight_decay": "optimizer.weight_decay",
        "step_size": "federate.local_update_steps",
        "batch_size": "data.batch_size",
        "dropout": "model.dropout",
    },
}
UNIT: Mapping[str, str] = {CURRENT: "train.batch_or_epoch", FIRST: "federate.batch_or_epoch"}
CLIP: Mapping[str, str] = {CURRENT: "grad.grad_clip", FIRST: "optimizer.grad_clip"}
SERVER: Mapping[str, Mapping[str, str]] = {
    CURRENT: {
        "server_learning_rate": "fedopt.optimizer.lr",
        "server_momentum": "fedopt.optimizer.momentum",
    },
    FIRST: {
        "server_learning_rate": "fedopt.lr_server",
        "server_momentum": "fedopt.momentum_server",
    },
}


def require_supported(task: Task) -> None:
    """Reject a task that FederatedScope cannot train as it is defined."""
    if reason := unsupported(task):
        raise InvalidArgumentError(f'backend="federatedscope" does not support {task.id}: {reason}')


def unsupported(task: Task) -> str:
    """Return why FederatedScope cannot train a task; "" if it can."""
    if task.model not in MODELS:
        return (
            f"the bridge supports the models {', '.join(MODELS)} of FederatedScope, not "
            f"{task.model}; "
            'train it with backend="raw"'
        )
    if task.algorithm not in ALGORITHMS:
        return (
            f"of the algorithms, FederatedScope has {', '.join(ALGORITHMS)} with the meaning they "
            f"have here, not {task.algorithm}"
        )
    if task.precision != "float32":
        return f"FederatedScope computes in float32, not in {task.precision}"
    if task.tuned:
        return "`tune` needs settings of algorithms that the bridge does not support"
    supported = {*LOCAL[CURRENT], *SERVER[CURRENT], "mu"}
    names = {*task.all_settings, *(base_name(name) for name in task.space.names)}
    if unknown := sorted(names & {"momentum", "rate_decay", "clip_norm"} - supported):
        return f"the bridge does not support the settings {', '.join(unknown)}"
    return ""


def require_layout(task: Task, layout: str) -> None:
    """Reject a version of FederatedScope that cannot train a task."""
    if layout not in LOCAL:
        raise InvalidArgumentError(
            f"`source` must be FederatedScope 0.1 or newer, got a layout of keys {layout!r}"
        )
    if layout == FIRST and task.algorithm == "fedprox":
        raise InvalidArgumentError(
            "`source` must be newer than FederatedScope 0.1 for 'fedprox', which that version "
            "cannot run: it writes into a configuration that it has frozen"
        )


def course_entries(
    task: Task,
    configuration: Mapping[str, Value],
    client_sample_rate: float,
    seed: int,
    layout: str,
    rounds: int | None = None,
) -> Entries:
    """Return the configuration entries of a course, by dotted key."""
    values = {**task.all_settings, **configuration}
    shares = task.algorithm != "fedopt"  # as in the scripts of the benchmark
    common = {
        "backend": "torch",
        "use_gpu": False,
        "seed": seed,
        "federate.mode": "standalone",
        "federate.method": {"fedopt": "FedOpt"}.get(task.algorithm, "FedAvg"),
        "federate.total_round_num": task.max_round if rounds is None else rounds,
        "federate.client_num": task.num_clients,
        "federate.sample_client_num": cohort_size(task, client_sample_rate),
        "federate.share_local_model": shares,
        "federate.online_aggr": shares,
        "federate.make_global_eval": False,
        "criterion.type": "CrossEntropyLoss",
        "eval.freq": 1,
        "eval.metrics": ["acc", "correct", "f1"],
        "eval.split": list(SPLITS),
        "early_stop.patience": 0,
        UNIT[layout]: "batch" if task.model == "GNN" else "epoch",
    }
    return {
        **common,
        **_model_entries(task, values, layout),
        **local_entries(values, layout),
        **_algorithm_entries(task, values, layout),
    }


def cohort_size(task: Task, client_sample_rate: float) -> int:
    """Return how many clients train in a round."""
    return Fidelity(1, client_sample_rate).sampled_clients(task.num_clients)


def local_entries(values: Mapping[str, Value], layout: str) -> Entries:
    """Return the entries of local training for some hyperparameters."""
    keys = LOCAL[layout]
    integers = ("step_size", "batch_size")
    entries: Entries = {}
    for name, key in keys.items():
        if name in values:
            entries[key] = int(values[name]) if name in integers else float(values[name])
    return entries


def server_values(values: Mapping[str, Value]) -> dict[str, float]:
    """Return the hyperparameters of the server's optimizer, under torch's names."""
    names = {"server_learning_rate": "lr", "server_momentum": "momentum"}
    return {ours: float(values[name]) for name, ours in names.items() if name in values}


def _model_entries(task: Task, values: Mapping[str, Value], layout: str) -> Entries:
    common: Entries = {"model.out_channels": task.num_classes, "trainer.type": "general"}
    if task.model == "LR":
        return {**common, "model.type": "lr"}
    if task.model == "MLP":
        return {
            **common,
            "model.type": "mlp",
            "model.layer": int(values["model_depth"]) + 1,
            "model.hidden": int(values["model_width"]),
            "model.dropout": 0.0,
        }
    if task.model == "CNN":
        width = DIGITS_WIDTH if task.dataset == "FEMNIST" else IMAGES_WIDTH
        trainer = {"trainer.type": "cvtrainer"}
        return {
            **common, **trainer, "model.type": "convnet2", "model.hidden": width,
            CLIP[layout]: CLIPPED_NORM,
        }  # fmt: skip
    return {
        **common,
        "trainer.type": "nodefullbatch_trainer",
        "model.type": "gcn",
        "model.task": "node",
        "model.hidden": GRAPH_WIDTH,
        "model.layer": 2,
    }


def _algorithm_entries(task: Task, values: Mapping[str, Value], layout: str) -> Entries:
    if task.algorithm == "fedprox":
        return {"fedprox.use": True, "fedprox.mu": float(values["mu"])}
    if task.algorithm == "fedopt":
        keys = SERVER[layout]
        return {"fedopt.use": True, **{key: float(values[name]) for name, key in keys.items()}}
    return {}


NAMES: Mapping[str, str] = {"loss": "avg_loss", "accuracy": "acc", "f1": "f1"}
"""Metrics -> their names in FederatedScope, where they follow the split."""
SLACK = 1e-6
"""Excess over 1 that rounding may cause in a mean of shares."""
BOUNDS: Mapping[str, tuple[float, float]] = {
    "loss": (0.0, math.inf),
    "accuracy": (0.0, 1.0 + SLACK),
    "f1": (0.0, 1.0 + SLACK),
}
"""Bounds of each metric: losses of the tasks are not negative."""
MOST_SAMPLES = 2**53
MAX_NORM = 1e30
"""Cap of the reported norm of an update, as in the engine of this package."""


def client_metrics(clients: object, num_samples: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return (clients, splits, metrics) of a message after a round, 0 without samples."""
    metrics = np.zeros((len(num_samples), len(SPLITS), len(METRICS)), dtype=np.float32)
    for client, entry in enumerate(_by_client(clients, len(num_samples))):
        for at, split in enumerate(SPLITS):
            if num_samples[client, at]:
                values = [bounded_value(entry, f"{split}_{NAMES[m]}", *BOUNDS[m]) for m in METRICS]
                with np.errstate(over="ignore"):  # a loss beyond float32 is infinite
                    metrics[client, at] = values
    return metrics


def first_metrics(clients: object, num_samples: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return `client_metrics` of an untrained model, which must be finite."""
    metrics = client_metrics(clients, num_samples)
    if not is_finite(metrics):
        raise unreadable("clients", "must have finite metrics before the first round")
    return metrics


def sample_counts(clients: object, num_clients: int) -> NDArray[np.int64]:
    """Return (clients, splits) sample counts of FederatedScope."""
    by_client = _by_client(clients, num_clients)
    counts = [[_count(entry, f"{split}_total") for split in SPLITS] for entry in by_client]
    return np.array(counts, dtype=np.int64)


def _by_client(clients: object, num_clients: int) -> list[Mapping[str, Any]]:
    """Return the entry of each client, in order."""
    entries = _mapping("clients", clients)
    if set(entries) != {str(client) for client in range(1, num_clients + 1)}:
        raise unreadable(
            "clients", f"must be 1 to {num_clients}, got {short_repr(sorted(entries)[:10])}"
        )
    return [_mapping(f"client {i}", entries[str(i)]) for i in range(1, num_clients + 1)]


def client_updates(
    message: Mapping[str, Any], num_clients: int
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the clients that trained in a round, counted from 0, and their entries."""
    numbers = {str(client + 1): client for client in range(num_clients)}
    for name, entry in _mapping("clients", message.get("clients")).items():
        if name not in numbers:
            raise unreadable("clients", f"must be 1 to {num_clients}, got {short_repr(name)}")
        yield numbers[name], _mapping(f"client {name}", entry)


def parse_cohorts(answer: object, rounds: int, num_clients: int) -> list[list[int]]:
    """Return the clients, counted from 0, that will train in each of some rounds."""
    clients = range(1, num_clients + 1)
    each: list[Any] = answer if isinstance(answer, list) else [None]
    if len(each) != rounds or not all(
        isinstance(cohort, list)
        and all(type(client) is int and client in clients for client in cohort)
        and 0 < len(cohort) == len({*cohort})
        for cohort in each
    ):
        raise unreadable(
            "cohorts",
            f"must be {rounds} lists of clients from 1 to {num_clients}, got {short_repr(answer)}",
        )
    return [[client - 1 for client in cohort] for cohort in each]


def bounded_norm(entry: Mapping[str, Any]) -> float:
    """Return the norm of an update for a report, made finite as in the engine of this package."""
    norm = bounded_value(entry, "norm", 0.0)
    return min(norm, MAX_NORM) if norm == norm else 0.0


def is_finite(metrics: NDArray[np.floating]) -> bool:
    """Return whether all metrics are finite, that is, whether the course has not diverged."""
    return bool(np.isfinite(metrics).all())


def whole(message: Mapping[str, Any], name: str) -> int:
    """Return an integer of a message."""
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise unreadable(name, f"must be a whole number, got {short_repr(value)}")
    return value


def bounded_value(
    entry: Mapping[str, Any], name: str, low: float = -math.inf, high: float = math.inf
) -> float:
    """Return a number from `low` to `high`, or NaN, which a course that diverged sends."""
    value = entry.get(name)
    real = value if isinstance(value, float) else as_number(value)  # `as_number` rejects NaN
    if real is None:
        raise unreadable(name, f"must be a number, got {short_repr(value)}")
    if real < low or real > high:
        raise unreadable(
            name, f"must be a number from {low:g} to {high:g}, got {short_repr(value)}"
        )
    return float(real)


def _count(entry: Mapping[str, Any], name: str) -> int:
    """Return a sample count; FederatedScope may write it as a float."""
    count = bounded_value(entry, name, 0, MOST_SAMPLES) if name in entry else 0
    if count != count or count % 1:
        raise unreadable(name, f"must be a whole number, got {short_repr(count)}")
    return int(count)


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise unreadable(name, f"must be an object, got {short_repr(value)}")
    return value


def unreadable(name: str, rule: str) -> WorkerLostError:
    """Return (not raise) the error for a value that breaks a rule."""
    return WorkerLostError(f"FederatedScope sent an unreadable message: `{name}` {rule}")
