"""Types are said as people say them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fedhpo_gym.core.checks import as_typed
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.objectives import Objective


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Mapping[str, Any] | None, "a mapping from names or None"),
        (Mapping[str, int], "a mapping from names, each with an integer that fits into 64 bits"),
        (tuple[str | Objective, ...], "a list, each a string or an Objective"),
    ],
)
def test_types_are_said_in_words(hint: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`name` must be {words}, got 5"):
        as_typed("name", 5, hint)
