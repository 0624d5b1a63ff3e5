"""Names of array types, which every module shares: what an array holds, and its precision."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Reals = NDArray[np.floating]
"""Real numbers of either precision."""
Integers = NDArray[np.int64]
AnyIntegers = NDArray[np.integer]
"""Integers of any size."""
Indices = NDArray[np.intp]
"""Positions, as numpy returns them."""
Bools = NDArray[np.bool_]
