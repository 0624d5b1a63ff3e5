"""Run courses with FederatedScope and report the time of every round.

A program of its own, started by `peer.py` with the interpreter and the source tree of
FederatedScope; it imports nothing of this suite, and works on Python 3.8 and newer. It runs
FederatedScope as it is: its runner, server, clients, messages, evaluation and log. Two versions
are known: 0.1 (commit a653102, which made the tables of FedHPO-Bench) and 0.3 (the newest).

    python federatedscope_course.py REQUEST.json ANSWER.json

The request names a list of courses and an .npz file with the samples of every client.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import resource
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

SPLITS = ("train", "val", "test")
CORRECTNESS = ["acc", "correct", "f1"]


def stand_in(name: str, **attributes: Any) -> None:
    """Put an empty module where FederatedScope imports one that these courses never use."""
    if name in sys.modules or _exists(name):
        return
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def prepare() -> None:
    """Make FederatedScope importable on newer Pythons, and torch as fast as it can be for it."""
    torch.set_num_threads(1)
    stand_in("torchvision", datasets=types.ModuleType("torchvision.datasets"))
    sparse = importlib.import_module("scipy.sparse")
    stand_in("scipy.sparse.csc", csc_matrix=sparse.csc_matrix)


def configure(course: dict[str, Any], name: str, folder: Path, data: Any) -> Any:
    """Return FederatedScope's configuration: the settings of FedHPO-Bench's scripts/lr.

    Early stopping is off, so that every course has the rounds it was asked for.
    """
    config = importlib.import_module("federatedscope.core.configs.config").global_cfg.clone()
    wanted = course["configuration"]
    recent = hasattr(config, "train")
    optimizer = config.train.optimizer if recent else config.optimizer
    local = config.train if recent else config.federate
    loader = config.dataloader if recent else config.data
    optimizer.lr, optimizer.weight_decay = wanted["learning_rate"], wanted["weight_decay"]
    local.batch_or_epoch, local.local_update_steps = "epoch", int(wanted["step_size"])
    loader.batch_size = int(wanted.get("batch_size", 1))
    config.federate.mode, config.federate.total_round_num = "standalone", course["rounds"]
    config.federate.client_num = int(data["num_clients"])
    config.federate.sample_client_rate = course["client_sample_rate"]
    config.federate.share_local_model = config.federate.online_aggr = True
    config.trainer.type, config.criterion.type = "general", "CrossEntropyLoss"
    config.eval.freq, config.eval.metrics, config.eval.split = 1, CORRECTNESS, list(SPLITS)
    config.early_stop.patience = 0
    config.model.type, config.model.out_channels = "lr", int(data["num_classes"])
    config.data.type, config.seed = "registered", course["seed"]
    config.outdir, config.expname = str(folder), name
    config.merge_from_list([x for pair in course.get("settings", {}).items() for x in pair])
    return config


def register(data: Any) -> None:
    """Register the clients' data as a data set, in the form FederatedScope's own loaders use."""

    def samples(client: int, split: str) -> list[tuple[Any, Any]]:
        x, y = data[f"x_{client}_{split}"], data[f"y_{client}_{split}"]
        return list(zip(x, y))  # noqa: B905 - `strict` needs Python 3.10

    def load(config: Any, _client_configs: Any = None) -> tuple[dict[int, Any], Any]:
        clients = range(1, int(data["num_clients"]) + 1)
        if "edges_0" in data:
            return {i: graph(data, i) for i in (0, *clients)}, config
        if hasattr(config, "train"):
            module = importlib.import_module("federatedscope.core.data")
            made = {i: {split: samples(i, split) for split in SPLITS} for i in clients}
            kind = module.ClientData
            return {i: kind(config, **splits) for i, splits in made.items()}, config
        loader: Any = torch.utils.data.DataLoader
        size = config.data.batch_size
        return {
            i: {
                split: loader(samples(i, split), batch_size=size, shuffle=split == "train")
                for split in SPLITS
            }
            for i in clients
        }, config

    importlib.import_module("federatedscope.register").register_data("registered", load)


def graph(data: Any, client: int) -> Any:
    """Return the graph of a client, or, as number 0, the whole one that the server evaluates."""
    masks = {f"{split}_mask": torch.from_numpy(data[f"{split}_{client}"]) for split in SPLITS}
    return importlib.import_module("torch_geometric.data").Data(
        x=torch.from_numpy(data[f"x_{client}"]),
        edge_index=torch.from_numpy(data[f"edges_{client}"]),
        y=torch.from_numpy(data[f"y_{client}"]),
        **masks,
    )


def run_course(course: dict[str, Any], name: str, folder: Path, data: Any) -> dict[str, Any]:
    """Run one course.

    Returns:
        `cpu_s`: processor seconds from the start of one evaluation to that of the next.
    """
    part = "federatedscope.core.auxiliaries."
    workers = importlib.import_module(f"{part}worker_builder")
    utils = importlib.import_module(f"{part}utils")
    logs = utils if hasattr(utils, "update_logger") else importlib.import_module(f"{part}logging")
    config = configure(course, name, folder, data)
    logs.update_logger(config, clear_before_add=True)
    if not course["console"]:
        log = logging.getLogger("federatedscope")
        log.handlers = [one for one in log.handlers if isinstance(one, logging.FileHandler)]
    utils.setup_seed(config.seed)
    load = importlib.import_module(f"{part}data_builder").get_data
    clients, changed = load(config=config.clone())
    config.merge_from_other_cfg(changed)
    config.freeze()
    utils.setup_seed(config.seed)
    times: list[float] = []

    class Timed(workers.get_server_cls(config)):  # type: ignore[misc]
        def eval(self) -> None:
            times.append(time.process_time())
            super().eval()

    runner = _make_runner(clients, Timed, workers.get_client_cls(config), config)
    runner.run()
    return {"cpu_s": np.diff(times).tolist()}


def _make_runner(clients: Any, server: Any, client: Any, config: Any) -> Any:
    if hasattr(config, "train"):
        build = importlib.import_module("federatedscope.core.auxiliaries.runner_builder").get_runner
    else:
        build = importlib.import_module("federatedscope.core.fed_runner").FedRunner
    return build(data=clients, server_class=server, client_class=client, config=config.clone())


def peak_rss_mb() -> float:
    """Return the largest resident set of this process so far, in MB of 10^6 bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return next(int(x.split()[1]) * 1024 / 1e6 for x in lines if x.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main(arguments: list[str]) -> None:
    """Run the courses of a request."""
    if len(arguments) != 2:
        print(__doc__)
        return
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    prepare()
    with np.load(request["data"], allow_pickle=False) as archive:
        data = {name: archive[name] for name in archive.files}
    register(data)
    folder = Path(arguments[0]).parent / "output"
    courses = []
    for index, course in enumerate(request["courses"]):
        course["console"] = request["console"]
        courses.append(run_course(course, f"course{index}", folder, data))
        for handler in logging.getLogger("federatedscope").handlers:
            handler.close()
    answer = {
        "courses": courses,
        "peak_rss_mb": peak_rss_mb(),
        "versions": {
            "FederatedScope": importlib.import_module("federatedscope").__version__,
            "Python": ".".join(map(str, sys.version_info[:3])),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }
    Path(arguments[1]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
