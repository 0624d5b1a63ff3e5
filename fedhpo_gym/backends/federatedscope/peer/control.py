"""What is done to a course that stands still: evaluate it, change it, look ahead."""

from __future__ import annotations

import importlib
import inspect
import logging
import random
from typing import Any


def plain(metrics: dict[str, Any]) -> dict[str, float]:
    """Return a client's metrics as numbers that JSON can hold."""
    return {str(name): float(value) for name, value in metrics.items() if value is not None}


def evaluate(runner: Any) -> dict[int, dict[str, float]]:
    """Return every client's metrics for the server's model."""
    kept = save_state()
    found = {}
    for number, client in runner.client.items():
        client.trainer.update(runner.server.models[0].state_dict())
        found[number] = plain(metrics_of(client))
    restore_state(kept)
    return found


def metrics_of(client: Any) -> dict[str, Any]:
    """Return a client's metrics of its model as it is."""
    metrics: dict[str, Any] = {}
    for split in client._cfg.eval.split:
        metrics.update(client.trainer.evaluate(target_data_split_name=split))
    return metrics


def cohorts(server: Any, rounds: int) -> list[list[int]]:
    """Return who will be sampled in the next rounds; only the sampler draws from numpy."""
    kept, states = save_state(), server.sampler.client_state.copy()
    found = []
    for _ in range(rounds):
        found.append(sorted(server.sampler.sample(size=server.sample_client_num)))
        server.sampler.client_state = states.copy()
    restore_state(kept)
    return found


def configure(runner: Any, request: dict[str, Any]) -> None:
    """Change hyperparameters of clients and server, as FederatedScope's own FedEx does."""
    for number, client in runner.client.items():
        own = request["clients"].get(str(number), {})
        _reconfigure(client, {**request["entries"], **own})
    server = runner.server
    server.sample_client_num = request["sample_client_num"]
    server._cfg.defrost()
    server._cfg.federate.sample_client_num = request["sample_client_num"]
    server._cfg.freeze(inform=False, save=False, check_cfg=False)
    for name, value in request["server"].items():
        for group in server.aggregator.optimizer.param_groups:
            group[name] = value


def _reconfigure(client: Any, wanted: dict[str, Any]) -> None:
    config = client._cfg
    config.defrost()
    write_entries(config, wanted)
    config.freeze(inform=False, save=False, check_cfg=False)
    client.trainer.cfg = config


def leave_out_lone_rows(runner: Any) -> None:
    """Let clients take no step on a minibatch of one row, which batch normalisation refuses."""
    torch = importlib.import_module("torch")
    rates: dict[int, list[float]] = {}

    def leave_out(ctx: Any) -> None:
        if len(ctx.data_batch[-1]) == 1:
            groups = ctx.optimizer.param_groups
            rates[id(ctx)] = [group["lr"] for group in groups]
            for group in groups:
                group["lr"] = 0.0
            _norms(torch, ctx.model, training=False)

    def go_on(ctx: Any) -> None:
        for group, rate in zip(ctx.optimizer.param_groups, rates.pop(id(ctx), [])):  # noqa: B905
            group["lr"] = rate
            _norms(torch, ctx.model, training=True)

    for client in runner.client.values():
        client.trainer.register_hook_in_train(leave_out, "on_batch_start")
        client.trainer.register_hook_in_train(go_on, "on_batch_end")


def _norms(torch: Any, model: Any, training: bool) -> None:
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm1d):
            part.train(training)


def put_initial(runner: Any, data: Any, names: dict[str, str]) -> None:
    """Start from weights that were handed over: names of parameters -> names of arrays."""
    torch = importlib.import_module("torch")
    parameters = runner.server.model.state_dict()
    for name, array in names.items():
        parameters[name].copy_(torch.from_numpy(data[array]))


_OPTIMIZERS = ("train.optimizer", "fedopt.optimizer")
"""Where FederatedScope takes any name, and hands it to the optimizer of torch."""


def write_entries(config: Any, entries: dict[str, Any]) -> None:
    """Write entries, by dotted name."""
    for key, value in entries.items():
        path, _, name = key.rpartition(".")
        node = config
        for part in filter(None, path.split(".")):
            if part not in node:
                raise KeyError(_unknown(key))
            node = node[part]
        if name not in node and not (path in _OPTIMIZERS and _takes(entries, path, name)):
            raise KeyError(_unknown(key))
        setattr(node, name, value)


def require_unchanged(config: Any, entries: dict[str, Any]) -> None:
    """Check that a configuration that is ready still says what was written."""
    for key, value in entries.items():
        node = config
        for part in key.split("."):
            node = node.get(part) if hasattr(node, "get") else None
        if node != value and not (isinstance(value, list) and list(node or ()) == value):
            raise ValueError(
                f"FederatedScope would not follow its configuration entry {key!r}: {value!r} was "
                f"written, and it holds {node!r}"
            )


def _takes(entries: dict[str, Any], path: str, name: str) -> bool:
    kind = getattr(importlib.import_module("torch.optim"), entries.get(path + ".type", "SGD"), None)
    return kind is not None and name in inspect.signature(kind).parameters


def _unknown(key: str) -> str:
    return f"FederatedScope knows no configuration entry {key!r}, and would ignore it"


Kept = tuple[Any, Any, Any, list[Any]]


def save_state() -> Kept:
    """Return the state of the random generators, and the handlers of the log."""
    numpy, torch = importlib.import_module("numpy"), importlib.import_module("torch")
    handlers = list(_log().handlers)
    return random.getstate(), numpy.random.get_state(), torch.get_rng_state(), handlers


def restore_state(kept: Kept) -> None:
    """Put back what was saved."""
    numpy, torch = importlib.import_module("numpy"), importlib.import_module("torch")
    random.setstate(kept[0])
    numpy.random.set_state(kept[1])
    torch.set_rng_state(kept[2])
    _log().handlers[:] = kept[3]


def quieten() -> None:
    """Log into the course's own file alone; what is printed as well would grow for ever."""
    log = _log()
    log.handlers[:] = [one for one in log.handlers if isinstance(one, logging.FileHandler)]


def close_log() -> None:
    """Close the log of the course that runs."""
    for handler in _log().handlers:
        handler.close()
    _log().handlers[:] = []


def monitors() -> list[Any]:
    """Return FederatedScope's list of the monitors of all courses; it never forgets one."""
    module = importlib.import_module("federatedscope.core.monitors.monitor")
    known: list[Any] = getattr(module, "global_all_monitors", [])
    return known


def _log() -> logging.Logger:
    return logging.getLogger("federatedscope")
