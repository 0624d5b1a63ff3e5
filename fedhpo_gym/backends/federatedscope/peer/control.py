"""What is done to a course that stands still: evaluate it, change it, look ahead."""

from __future__ import annotations

import importlib
from typing import Any

from fedhpo_gym.backends.federatedscope.peer import entries, state


def plain(metrics: dict[str, Any]) -> dict[str, float]:
    """Return a client's metrics as numbers that JSON can hold."""
    return {str(name): float(value) for name, value in metrics.items() if value is not None}


def evaluate(runner: Any) -> dict[int, dict[str, float]]:
    """Return every client's metrics for the server's model."""
    kept = state.save()
    found = {}
    for number, client in runner.client.items():
        client.trainer.update(runner.server.models[0].state_dict())
        found[number] = plain(metrics_of(client))
    state.restore(kept)
    return found


def metrics_of(client: Any) -> dict[str, Any]:
    """Return a client's metrics of its model as it is."""
    metrics: dict[str, Any] = {}
    for split in client._cfg.eval.split:
        metrics.update(client.trainer.evaluate(target_data_split_name=split))
    return metrics


def cohorts(server: Any, rounds: int) -> list[list[int]]:
    """Return who will be sampled in the next rounds; only the sampler draws from numpy."""
    kept, states = state.save(), server.sampler.client_state.copy()
    found = []
    for _ in range(rounds):
        found.append(sorted(server.sampler.sample(size=server.sample_client_num)))
        server.sampler.client_state = states.copy()
    state.restore(kept)
    return found


def configure(runner: Any, request: dict[str, Any]) -> None:
    """Change hyperparameters of clients and server.

    The clients' way is that of FederatedScope's own FedEx: a new configuration for their trainers.
    """
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
    entries.write(config, wanted)
    config.freeze(inform=False, save=False, check_cfg=False)
    client.trainer.cfg = config


def leave_out_lone_rows(runner: Any) -> None:
    """Let clients take no step on a minibatch of one row, which has no variance.

    Batch normalisation refuses it, and FederatedScope would end with that error.
    """
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
