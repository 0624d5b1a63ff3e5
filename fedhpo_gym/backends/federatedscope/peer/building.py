"""Building the runner of a course, as FederatedScope's own `main.py` does."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fedhpo_gym.backends.federatedscope.peer import control, entries, hooks, state


class Building:
    """What was made for a course, to be taken down with it."""

    def __init__(self, request: dict[str, Any], federations: Any, folder: Path) -> None:
        """Build nothing yet."""
        self._request, self._federations, self._folder = request, federations, folder
        self._monitors: list[Any] = []

    def build(self, of: Any) -> Any:
        """Return the runner of a course.

        Raises:
            KeyError: FederatedScope would ignore an entry of the configuration.
            ValueError: it would not follow one.
        """
        utils = hooks.module("utils")
        logs = utils if hasattr(utils, "update_logger") else hooks.module("logging")
        config = importlib.import_module("federatedscope.core.configs.config").global_cfg.clone()
        wanted = self._request["entries"]
        entries.write(config, wanted)
        config.outdir, config.expname = str(self._folder.parent), self._folder.name
        logs.update_logger(config, clear_before_add=True)
        state.quieten()
        utils.setup_seed(config.seed)
        self._federations.use(self._request["data"])
        data, changed = hooks.module("data_builder").get_data(config=config.clone())
        config.merge_from_other_cfg(changed)
        config.freeze()
        entries.require_unchanged(config, wanted)
        utils.setup_seed(config.seed)
        known = state.monitors()
        before = len(known)
        workers = hooks.module("worker_builder")
        server = hooks.hooked(workers.get_server_cls(config), of)
        client = hooks.hooked_client(workers.get_client_cls(config), of)
        runner = _runner(data, server, client, config)
        self._monitors = known[before:]
        if self._request.get("initial"):
            arrays = self._federations.use(self._request["data"])
            control.put_initial(runner, arrays, self._request["initial"])
        if self._request["lone_rows"]:
            control.leave_out_lone_rows(runner)
        return runner

    def close(self) -> None:
        """Close the log, and forget what FederatedScope keeps of all courses of a process."""
        state.close_log()
        known = state.monitors()
        own = set(map(id, self._monitors))
        known[:] = [monitor for monitor in known if id(monitor) not in own]


def _runner(data: Any, server: Any, client: Any, config: Any) -> Any:
    if hasattr(config, "train"):
        build = hooks.module("runner_builder").get_runner
    else:
        build = importlib.import_module("federatedscope.core.fed_runner").FedRunner
    return build(data=data, server_class=server, client_class=client, config=config.clone())
