"""Drawing an episode; the only file of this folder that knows matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import MissingDependencyError, needing

Plot = Callable[[Any], None]
"""Draws into a matplotlib figure."""


def draw(plot: Plot) -> NDArray[np.uint8]:
    """Return (height, width, 3) pixels of what `plot` draws into a figure.

    Raises:
        MissingDependencyError: the extra `plot` is not installed.
    """
    _require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=100)
    canvas: Any = FigureCanvasAgg(figure)
    plot(figure)
    figure.tight_layout()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def show(plot: Plot, window: int | None) -> int:
    """Draw into a window that stays open between calls.

    Args:
        plot: draws into a figure.
        window: what the last call returned; None opens a window.

    Returns:
        Number of the window, for the next call and for `close`.

    Raises:
        MissingDependencyError: the extra `plot` is not installed, or there is no display.
    """
    _require()
    import matplotlib.pyplot as plt

    # What matplotlib falls back to without a display or a toolkit: it would draw to nowhere.
    if plt.get_backend().lower() == "agg":
        raise MissingDependencyError(
            "`render_mode` 'human' needs a display and a window toolkit that matplotlib can use, "
            "found backend 'agg' only; install one (tkinter or PySide6), or use 'rgb_array'"
        )
    with plt.ion():
        figure = plt.figure(window, clear=True)
        plot(figure)
        figure.tight_layout()
        figure.canvas.draw_idle()
        figure.canvas.flush_events()
    return int(figure.number)


def close(window: int) -> None:
    """Close a window of `show`; nothing happens when the user closed it before."""
    import matplotlib.pyplot as plt

    plt.close(window)


def _require() -> None:
    with needing("rendering", "matplotlib", "plot", "matplotlib"):
        import matplotlib  # noqa: F401
