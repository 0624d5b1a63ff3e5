"""Handing over a federation as a data set of FederatedScope, in the form of its own loaders."""

from __future__ import annotations

import importlib
from typing import Any

SPLITS = ("train", "val", "test")
KIND = "fedhpo_gym"
"""`data.type` of a federation that is handed over."""


class Federations:
    """The federations that were handed over, by the file they came in."""

    def __init__(self) -> None:
        """Register the data set with FederatedScope."""
        self._known: dict[str, Any] = {}
        self._current: Any = None
        importlib.import_module("federatedscope.register").register_data(KIND, self._load)

    def use(self, path: str | None) -> Any:
        """Take a federation for the courses that start from here on; return its arrays."""
        numpy = importlib.import_module("numpy")
        if path is not None and path not in self._known:
            with numpy.load(path, allow_pickle=False) as archive:
                self._known[path] = {name: archive[name] for name in archive.files}
        self._current = None if path is None else self._known[path]
        return self._current

    def _load(self, config: Any, _of_clients: Any = None) -> tuple[dict[int, Any], Any] | None:
        """Return the data of every client, as FederatedScope asks for it."""
        data = self._current
        if config.data.type != KIND or data is None:
            return None
        clients = range(1, int(data["num_clients"]) + 1)
        recent = hasattr(config, "train")
        if "edges_1" in data:
            return {i: _graphs(data, i, recent) for i in clients}, config
        make = _client_data if recent else _loaders
        return {i: make(data, i, config) for i in clients}, config


def _samples(data: Any, client: int, split: str) -> Any:
    x, y = data[f"x_{client}_{split}"], data[f"y_{client}_{split}"]
    return list(zip(x, y))  # noqa: B905 - `strict` needs Python 3.10


def _client_data(data: Any, client: int, config: Any) -> Any:
    kind = importlib.import_module("federatedscope.core.data").ClientData
    return kind(config, **{split: _samples(data, client, split) for split in SPLITS})


def _loaders(data: Any, client: int, config: Any) -> Any:
    loader = importlib.import_module("torch.utils.data").DataLoader
    size, made = config.data.batch_size, {}
    for split in SPLITS:
        if samples := _samples(data, client, split):
            made[split] = loader(samples, batch_size=size, shuffle=split == "train")
    return made


def _graphs(data: Any, client: int, recent: bool) -> Any:
    torch = importlib.import_module("torch")
    masks = {f"{split}_mask": torch.from_numpy(data[f"{split}_{client}"]) for split in SPLITS}
    graph = importlib.import_module("torch_geometric.data").Data(
        x=torch.from_numpy(data[f"x_{client}"]),
        edge_index=torch.from_numpy(data[f"edges_{client}"]),
        y=torch.from_numpy(data[f"y_{client}"]),
        **masks,
    )
    if not recent:
        return graph
    loader = importlib.import_module("torch_geometric.loader").DataLoader
    return {"data": graph, **{split: loader([graph]) for split in SPLITS}}
