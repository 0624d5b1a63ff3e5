"""Models fitted on tables that answer any point of a space, with their held-out error."""

from fedhpo_gym.surrogates.locate import (
    has_surrogate,
    list_surrogates,
    open_preferred,
    open_surrogate,
)
from fedhpo_gym.surrogates.surrogate import Surrogate

__all__ = ["Surrogate", "has_surrogate", "list_surrogates", "open_preferred", "open_surrogate"]
