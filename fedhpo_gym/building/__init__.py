"""Computing tables and samples, in units that survive a crash, and fitting surrogates."""

from typing import TYPE_CHECKING

from fedhpo_gym.core import lazy_names

if TYPE_CHECKING:
    from fedhpo_gym.building.build import Estimate, build_sample, build_table, tell

__getattr__ = lazy_names(__name__, {"build": "Estimate, build_sample, build_table, tell"})

__all__ = ["Estimate", "build_sample", "build_table", "tell"]
