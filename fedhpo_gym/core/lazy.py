"""A dictionary of what is made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TypeVar

from fedhpo_gym.core.checks import shown

V = TypeVar("V")


class Lazy(MutableMapping[str, V]):
    """What behaves like a dictionary, and makes each value when it is first asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], V]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, V] = {}

    def __getitem__(self, key: str) -> V:
        if key not in self._made:
            self._made[key] = self._makers[key]()
        return self._made[key]

    def __setitem__(self, key: str, value: V) -> None:
        self._makers[key] = lambda: value
        self._made[key] = value

    def __delitem__(self, key: str) -> None:
        del self._makers[key]
        self._made.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {shown(list(self))}"
