"""One course of FederatedScope that waits between rounds until the next request.

Its runner runs in a thread of its own. Only one thread runs at a time: the main one waits while a
course trains, and a course that stands still has put FederatedScope's global random generators
away. So courses that take turns give the same numbers as each alone.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Say = Callable[..., None]


class StopCourse(BaseException):
    """Ends a course from inside; nothing of FederatedScope catches it."""


class PeerCourse:
    """A course, from before its first round to its last one."""

    def __init__(
        self, number: int, request: dict[str, Any], federations: Any, folder: Path, say: Say
    ) -> None:
        self.number = number
        self._request, self._federations, self._say = request, federations, say
        self._folder = folder / f"course{number}"
        stops = request["evaluated"]
        self._evaluated = None if stops is None else set(stops)  # None: where it stands still
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._command: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._target = 0
        self._over = False
        self._runner: Any = None
        self._monitors: list[Any] = []
        self._updates: Updates | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._resume(None)

    def advance(self, target: int) -> None:
        """Train until so many rounds are finished."""

        def go_on() -> None:
            self._target = target

        self._resume(go_on)

    def evaluate(self) -> dict[str, Any]:
        """Return the metrics of every client for the model as it is; this draws nothing."""
        metrics: dict[str, Any] = self._resume(lambda: metrics_by_client(self._runner))
        return metrics

    def configure(self, request: dict[str, Any]) -> None:
        """Change hyperparameters from the next round on."""
        self._resume(lambda: configure(self._runner, request))

    def cohorts(self, rounds: int) -> Any:
        """Return who will train in each of the next rounds; this draws nothing."""
        return self._resume(lambda: sample_cohorts(self._runner.server, rounds))

    def drop(self) -> None:
        """End the course and remove what FederatedScope wrote of it."""

        def end() -> None:
            raise StopCourse

        if not self._over:
            self._resume(end)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _resume(self, command: Callable[[], Any] | None) -> Any:
        if self._over:
            raise RuntimeError("the course is over")
        self._command, self._result = command, None
        self._go.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._result

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._runner = self._build()
            if self._request["watched"]:
                self._updates = Updates(self._runner.server)
            self._runner.run()
        except StopCourse:
            pass
        except BaseException as error:  # noqa: BLE001 - the main thread raises it again
            self._error = error
        finally:
            self._over = True
            self._close()
            self._runner = None
            self._back.release()

    def _build(self) -> Any:
        utils = module("utils")
        logs = utils if hasattr(utils, "update_logger") else module("logging")
        config = importlib.import_module("federatedscope.core.configs.config").global_cfg.clone()
        entries = self._request["entries"]
        write_entries(config, entries)
        config.outdir, config.expname = str(self._folder.parent), self._folder.name
        logs.update_logger(config, clear_before_add=True)
        # Into the course's own file alone; what is printed as well would grow for ever.
        log = _log()
        log.handlers[:] = [
            handler for handler in log.handlers if isinstance(handler, logging.FileHandler)
        ]
        utils.setup_seed(config.seed)
        self._federations.use(self._request["data"])
        data, changed = module("data_builder").get_data(config=config.clone())
        config.merge_from_other_cfg(changed)
        config.freeze()
        require_unchanged(config, entries)
        utils.setup_seed(config.seed)
        all_monitors = monitors()
        before = len(all_monitors)
        workers = module("worker_builder")
        server = hooked(workers.get_server_cls(config), self)
        client = hooked_client(workers.get_client_cls(config), self)
        runner = _runner(data, server, client, config)
        self._monitors = all_monitors[before:]
        if self._request["lone_rows"]:
            leave_out_lone_rows(runner)
        return runner

    def _close(self) -> None:
        """Close the log, and forget what FederatedScope keeps of all courses of a process."""
        for handler in _log().handlers:
            handler.close()
        _log().handlers[:] = []
        all_monitors = monitors()
        ids = set(map(id, self._monitors))
        all_monitors[:] = [monitor for monitor in all_monitors if id(monitor) not in ids]

    def wants(self, finished: int) -> bool:
        """Return whether the model is evaluated after so many rounds; called after every round."""
        updates = {} if self._updates is None else {"clients": self._updates.take()}
        self._say(course=self.number, trained=finished, **updates)
        if self._evaluated is None:
            return finished == self._target
        return finished in self._evaluated

    def hear(self, sender: int, content: Any) -> None:
        """Take note of a client's update before the server does."""
        if self._updates is not None:
            self._updates.add(sender, content)

    def measure(self, sender: int, when: str, metrics: Callable[[], dict[str, Any]]) -> None:
        """Note what a client's model is like before or after training; this draws nothing."""
        if self._updates is not None and self._request["measured"]:
            random_state = save_state()
            self._updates.measure(sender, when, to_plain(metrics()))
            restore_state(random_state)

    def report(self, finished: int, of_clients: dict[int, dict[str, Any]]) -> None:
        """Send the metrics of all clients after so many rounds."""
        clients = {client: to_plain(metrics) for client, metrics in of_clients.items()}
        self._say(course=self.number, round=finished, clients=clients, cpu_s=time.process_time())

    def stand(self, finished: int) -> None:
        """Wait before a round until a request needs it."""
        queue = self._runner.shared_comm_queue
        while queue:  # the evaluation of the last round comes first
            self._runner._handle_msg(queue.popleft())
        while finished >= self._target:
            random_state = save_state()
            self._back.release()
            self._go.acquire()
            restore_state(random_state)
            if self._command is not None:
                try:
                    self._result = self._command()
                except Exception as error:  # noqa: BLE001 - the course goes on
                    self._error = error


def _runner(data: Any, server: Any, client: Any, config: Any) -> Any:
    if hasattr(config, "train"):
        build = module("runner_builder").get_runner
    else:
        build = importlib.import_module("federatedscope.core.fed_runner").FedRunner
    return build(data=data, server_class=server, client_class=client, config=config.clone())


def hooked(base: Any, course: Any) -> Any:
    """Return a subclass of a server that reports its events to a course."""

    class Server(base):  # type: ignore[misc]  # its type is known in that interpreter only
        def eval(self) -> None:
            if course.wants(self.state):
                super().eval()

        def broadcast_model_para(self, *args: Any, **words: Any) -> Any:
            if (args[0] if args else words.get("msg_type", "model_para")) == "model_para":
                course.stand(self.state)
            return super().broadcast_model_para(*args, **words)

        def callback_funcs_model_para(self, message: Any) -> Any:
            course.hear(message.sender, message.content)
            return super().callback_funcs_model_para(message)

        def merge_eval_results_from_all_clients(self) -> Any:
            buffer = self.msg_buffer["eval"]
            course.report(self.state, buffer[max(buffer)])
            return super().merge_eval_results_from_all_clients()

    return Server


def hooked_client(base: Any, course: Any) -> Any:
    """Return a class of clients that are measured before and after they train."""

    class Client(base):  # type: ignore[misc]  # likewise
        def callback_funcs_for_model_para(self, message: Any) -> Any:
            dropout = getattr(self._cfg.model, "dropout", None)
            if hasattr(self.trainer.ctx.model, "dropout"):  # read for good when it was made
                self.trainer.ctx.model.dropout = dropout

            def received() -> Any:
                self.trainer.update(message.content)
                return metrics_of(self)

            course.measure(self.ID, "before", received)
            parameters = super().callback_funcs_for_model_para(message)
            course.measure(self.ID, "after", lambda: metrics_of(self))
            return parameters

    return Client


def module(name: str) -> Any:
    """Return a module of FederatedScope's `core.auxiliaries`."""
    return importlib.import_module(f"federatedscope.core.auxiliaries.{name}")


class Updates:
    """Updates of the clients of a round: norms, and cosines with their mean."""

    def __init__(self, server: Any) -> None:
        self._model = server.models[0]
        self._names = [name for name, _ in self._model.named_parameters()]
        self._heard: list[tuple[int, float, Any]] = []
        self._measured: dict[int, dict[str, Any]] = {}

    def add(self, sender: int, content: Any) -> None:
        """Take note of what a client sent, before the next one overwrites a shared model."""
        torch = importlib.import_module("torch")
        before, (weight, after) = self._model.state_dict(), content[:2]
        parts = [
            torch.as_tensor(after[name]).detach().double().flatten()
            - before[name].double().flatten()
            for name in self._names
            if name in after
        ]
        self._heard.append((int(sender), float(weight), torch.cat(parts)))

    def measure(self, sender: int, when: str, metrics: dict[str, float]) -> None:
        """Take note of a client's metrics "before" or "after" it trained."""
        self._measured.setdefault(sender, {})[when] = metrics

    def take(self) -> dict[int, dict[str, Any]]:
        """Return norm, cosine and what was measured of every client of the round; forget them."""
        updates, self._heard = self._heard, []
        measured, self._measured = self._measured, {}
        total = sum(weight for _, weight, _ in updates)
        mean = sum(update * (weight / total) for _, weight, update in updates)
        return {
            sender: {**_beside(update, mean), **measured.get(sender, {})}
            for sender, _, update in updates
        }


def _beside(update: Any, mean: Any) -> dict[str, float]:
    norm, length = float(update.norm()), float(mean.norm())
    cosine = float(update @ mean) / (norm * length) if norm * length > 0 else 0.0
    clipped = max(-1.0, min(1.0, cosine)) if cosine == cosine else 0.0
    return {"norm": norm, "alignment": clipped}


def to_plain(metrics: dict[str, Any]) -> dict[str, float]:
    """Return a client's metrics as numbers that JSON can hold."""
    return {str(name): float(value) for name, value in metrics.items() if value is not None}


def metrics_by_client(runner: Any) -> dict[int, dict[str, float]]:
    """Return every client's metrics for the server's model."""
    random_state = save_state()
    metrics = {}
    for client_number, client in runner.client.items():
        client.trainer.update(runner.server.models[0].state_dict())
        metrics[client_number] = to_plain(metrics_of(client))
    restore_state(random_state)
    return metrics


def metrics_of(client: Any) -> dict[str, Any]:
    """Return a client's metrics of its model as it is."""
    metrics: dict[str, Any] = {}
    for split in client._cfg.eval.split:
        metrics.update(client.trainer.evaluate(target_data_split_name=split))
    return metrics


def sample_cohorts(server: Any, rounds: int) -> list[list[int]]:
    """Return who will be sampled in the next rounds; only the sampler draws from numpy."""
    random_state, states = save_state(), server.sampler.client_state.copy()
    cohorts = []
    for _ in range(rounds):
        cohorts.append(sorted(server.sampler.sample(size=server.sample_client_num)))
        server.sampler.client_state = states.copy()
    restore_state(random_state)
    return cohorts


def configure(runner: Any, request: dict[str, Any]) -> None:
    """Change hyperparameters of clients and server, as FederatedScope's own FedEx does."""
    for client_number, client in runner.client.items():
        config = client._cfg
        config.defrost()
        write_entries(
            config, {**request["entries"], **request["clients"].get(str(client_number), {})}
        )
        config.freeze(inform=False, save=False, check_cfg=False)
        client.trainer.cfg = config
    server = runner.server
    server.sample_client_num = request["sample_client_num"]
    server._cfg.defrost()
    server._cfg.federate.sample_client_num = request["sample_client_num"]
    server._cfg.freeze(inform=False, save=False, check_cfg=False)
    for name, value in request["server"].items():
        for group in server.aggregator.optimizer.param_groups:
            group[name] = value


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
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.train(training)


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
    """Check that a final configuration still has the entries that were set."""
    for key, value in entries.items():
        node = config
        for name in key.split("."):
            node = node.get(name) if hasattr(node, "get") else None
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


def restore_state(state: Kept) -> None:
    """Put back what was saved."""
    numpy, torch = importlib.import_module("numpy"), importlib.import_module("torch")
    random.setstate(state[0])
    numpy.random.set_state(state[1])
    torch.set_rng_state(state[2])
    _log().handlers[:] = state[3]


def monitors() -> list[Any]:
    """Return FederatedScope's list of the monitors of all courses; it never forgets one."""
    module = importlib.import_module("federatedscope.core.monitors.monitor")
    return getattr(module, "global_all_monitors", [])


def _log() -> logging.Logger:
    return logging.getLogger("federatedscope")
