"""What FederatedScope's configuration says of a course, in both of its layouts of keys."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import SPLITS, Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task

Entries = dict[str, Any]
CURRENT, FIRST = "current", "v0.1"

ALGORITHMS = ("fedavg", "fedopt", "fedprox")
"""Algorithms of ours that FederatedScope has with the same meaning."""
MODELS = ("LR", "MLP", "CNN", "GNN")
IMAGES_WIDTH, DIGITS_WIDTH, GRAPH_WIDTH = 128, 2048, 64
"""Hidden units of the networks of the paper (Appendix D)."""
MAX_NORM = 5.0
"""Where gradients of the convolutional network are cut, as in the benchmark's scripts."""

# Our name of what local training reads -> FederatedScope's key, by layout.
LOCAL: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
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
)
UNIT: Mapping[str, str] = MappingProxyType(
    {CURRENT: "train.batch_or_epoch", FIRST: "federate.batch_or_epoch"}
)
CLIP: Mapping[str, str] = MappingProxyType(
    {CURRENT: "grad.grad_clip", FIRST: "optimizer.grad_clip"}
)
SERVER: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        CURRENT: {
            "server_learning_rate": "fedopt.optimizer.lr",
            "server_momentum": "fedopt.optimizer.momentum",
        },
        FIRST: {
            "server_learning_rate": "fedopt.lr_server",
            "server_momentum": "fedopt.momentum_server",
        },
    }
)


def require_supported(task: Task) -> None:
    """Refuse what FederatedScope cannot train as the task asks for it.

    Raises:
        InvalidArgumentError: says what, and why.
    """
    if reason := unsupported(task):
        raise InvalidArgumentError(f'backend="federatedscope" cannot answer {task.id}: {reason}')


def unsupported(task: Task) -> str:
    """Return why FederatedScope cannot train a task, or nothing where it can."""
    if task.model not in MODELS:
        return (
            f"the bridge knows the models {', '.join(MODELS)} of FederatedScope, not {task.model}; "
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
        return "`tune` needs settings of algorithms that the bridge does not know"
    known = {*LOCAL[CURRENT], *SERVER[CURRENT], "mu"}
    names = {*task.all_settings, *(name.partition("@")[0] for name in task.space.names)}
    if unknown := sorted(names & {"momentum", "rate_decay", "clip_norm"} - known):
        return f"the bridge does not know the settings {', '.join(unknown)}"
    return ""


def require_layout(task: Task, layout: str) -> None:
    """Refuse what a version of FederatedScope cannot do.

    Raises:
        InvalidArgumentError: the layout is unknown, or this version cannot run the algorithm.
    """
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
    """Return the entries of a course's configuration, by dotted key.

    Args:
        task: the task.
        configuration: hyperparameters.
        client_sample_rate: fraction of clients sampled per round.
        seed: FederatedScope's; it draws initial weights, cohorts and minibatches.
        layout: "current" or "v0.1".
        rounds: of the whole course; the task's by default.
    """
    values = {**task.all_settings, **configuration}
    shares = task.algorithm != "fedopt"  # as the scripts of the benchmark: see `docs`
    found = {
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
        **found,
        **_model_entries(task, values, layout),
        **local_entries(values, layout),
        **_algorithm_entries(task, values, layout),
    }


def cohort_size(task: Task, client_sample_rate: float) -> int:
    """Return how many clients train in a round."""
    return Fidelity(1, client_sample_rate).sampled_clients(task.num_clients)


def local_entries(values: Mapping[str, Value], layout: str) -> Entries:
    """Return what local training reads of some hyperparameters."""
    keys = LOCAL[layout]
    whole = ("step_size", "batch_size")
    found: Entries = {}
    for name, key in keys.items():
        if name in values:
            found[key] = int(values[name]) if name in whole else float(values[name])
    return found


def server_values(values: Mapping[str, Value]) -> dict[str, float]:
    """Return what torch's optimizer on the server is called to take, of some hyperparameters."""
    names = {"server_learning_rate": "lr", "server_momentum": "momentum"}
    return {ours: float(values[name]) for name, ours in names.items() if name in values}


def proximal_entries(values: Mapping[str, Value]) -> Entries:
    """Return what FedProx reads in the middle of a course: its wrapper has copied `fedprox.mu`."""
    return {"regularizer.mu": float(values["mu"])} if "mu" in values else {}


def _model_entries(task: Task, values: Mapping[str, Value], layout: str) -> Entries:
    found: Entries = {"model.out_channels": task.num_classes, "trainer.type": "general"}
    if task.model == "LR":
        return {**found, "model.type": "lr"}
    if task.model == "MLP":
        return {
            **found,
            "model.type": "mlp",
            "model.layer": int(values["model_depth"]) + 1,
            "model.hidden": int(values["model_width"]),
            "model.dropout": 0.0,
        }
    if task.model == "CNN":
        width = DIGITS_WIDTH if task.dataset == "FEMNIST" else IMAGES_WIDTH
        trainer = {"trainer.type": "cvtrainer"}
        return {
            **found, **trainer, "model.type": "convnet2", "model.hidden": width,
            CLIP[layout]: MAX_NORM,
        }  # fmt: skip
    return {
        **found,
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
