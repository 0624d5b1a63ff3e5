"""What the updates of a cohort look like to the server."""

from __future__ import annotations

import importlib
from typing import Any


class Updates:
    """Updates of the clients of a round: norms, and cosines with their mean."""

    def __init__(self, server: Any) -> None:
        """Watch what clients send to a server."""
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
        heard, self._heard = self._heard, []
        measured, self._measured = self._measured, {}
        total = sum(weight for _, weight, _ in heard)
        mean = sum(update * (weight / total) for _, weight, update in heard)
        return {
            sender: {**_beside(update, mean), **measured.get(sender, {})}
            for sender, _, update in heard
        }


def _beside(update: Any, mean: Any) -> dict[str, float]:
    norm, length = float(update.norm()), float(mean.norm())
    cosine = float(update @ mean) / (norm * length) if norm * length > 0 else 0.0
    known = max(-1.0, min(1.0, cosine)) if cosine == cosine else 0.0
    return {"norm": norm, "alignment": known}
