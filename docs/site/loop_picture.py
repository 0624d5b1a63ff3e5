"""Draws `docs/pictures/loop.svg`: the loop of agent and environment, and a measured regret.

    fedhpo-gym compare FedHPO-LR-CreditG --agents random,hyperband --seeds 20 --out runs/picture
    python docs/site/loop_picture.py runs/picture

The first command takes a minute on one core. The report that it writes holds the curves of regret
over simulated time with their 95 % intervals (`REGRET`), and this program draws them unchanged.
Text is drawn as outlines, so that the picture looks the same wherever it is shown.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from numpy.typing import NDArray

PICTURE: Final = Path(__file__).resolve().parents[1] / "pictures" / "loop.svg"
REGRET: Final = "report_files/problem-1-regret.csv"
COLUMNS: Final = ("time_s", "mean", "lower", "upper")
INK, GREY, PAPER = "#1b1f24", "#57606a", "#f6f8fa"
BLUE, ORANGE = "#0072B2", "#D55E00"
AGENTS: Final = {
    "hyperband": (BLUE, "Hyperband", (3.0, 0.0075)),
    "random": (ORANGE, "random search", (3.0, 0.0285)),
}
"""Colour and label of each curve, and where the label stands: (hours, regret)."""
BACKENDS: Final = (
    ("Simulated federation", "stored results or training"),
    ("Clock", "simulated seconds and bytes"),
    ("Objectives", "loss, fairness, privacy, ..."),
)
"""Parts of the environment, in the order in which a query passes them."""


def read_curves(folder: Path) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return the columns of each agent's curve, (points,) each."""
    rows: dict[str, list[list[float]]] = defaultdict(list)
    with (folder / REGRET).open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle):
            rows[row["agent"]].append([float(row[name]) for name in COLUMNS])
    return {
        agent: dict(zip(COLUMNS, np.array(points).T, strict=True)) for agent, points in rows.items()
    }


def draw_box(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], *, edge: str, face: str
) -> None:
    """Draw a rounded box, in inches from the lower left corner of the axes."""
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(
        FancyBboxPatch(corner, *size, boxstyle=style, edgecolor=edge, facecolor=face, linewidth=1.3)
    )


def draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow between two points, in inches."""
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, color=INK, linewidth=1.5)
    )


def draw_loop(axes: Axes, width: float, height: float) -> None:
    """Draw the agent, the environment with its parts, and what they exchange."""
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    middle = height / 2
    draw_box(axes, (0.05, middle - 0.55), (1.3, 1.1), edge=BLUE, face="#e8f2f9")
    axes.text(0.7, middle + 0.12, "Agent", ha="center", va="center", weight="bold")
    axes.text(
        0.7, middle - 0.2, "optimizer\nor policy", ha="center", va="center", color=GREY, size=10.5
    )

    left, inner = 3.4, 2.35
    draw_box(axes, (left, 0.1), (inner + 0.3, height - 0.2), edge=GREY, face=PAPER)
    axes.text(left + 0.15 + inner / 2, height - 0.34, "Environment", ha="center", weight="bold")
    step, tall = 0.98, 0.7
    for index, (name, detail) in enumerate(BACKENDS):
        top = height - 0.5 - index * step
        draw_box(axes, (left + 0.15, top - tall), (inner, tall), edge=GREY, face="white")
        centre = left + 0.15 + inner / 2
        axes.text(centre, top - 0.25, name, ha="center", va="center", size=11.5)
        axes.text(centre, top - 0.49, detail, ha="center", va="center", color=GREY, size=10)
        if index:
            draw_arrow(axes, (centre, top + step - tall), (centre, top))

    over, under = middle + 0.33, middle - 0.33
    draw_arrow(axes, (1.4, over), (left - 0.05, over))
    draw_arrow(axes, (left - 0.05, under), (1.4, under))
    centre = (1.4 + left - 0.05) / 2
    axes.text(centre, over + 0.62, "action", ha="center", va="center", weight="bold", size=11.5)
    axes.text(
        centre, over + 0.29, "hyperparameters,\nrounds, clients", ha="center", va="center",
        color=GREY, size=10,
    )  # fmt: skip
    axes.text(
        centre, under - 0.2, "observation, reward", ha="center", va="center", weight="bold",
        size=11.5,
    )  # fmt: skip
    axes.text(
        centre, under - 0.52, "results and costs\nof all steps so far", ha="center", va="center",
        color=GREY, size=10,
    )  # fmt: skip


def draw_regret(axes: Axes, curves: dict[str, dict[str, NDArray[np.float64]]]) -> None:
    """Draw the mean regret of each agent over simulated hours, with its 95 % interval."""
    for agent, (colour, label, place) in AGENTS.items():
        curve = curves[agent]
        hours = curve["time_s"] / 3600
        axes.fill_between(
            hours, curve["lower"], curve["upper"], step="post", color=colour, alpha=0.2, linewidth=0
        )
        axes.step(hours, curve["mean"], where="post", color=colour, linewidth=2)
        axes.text(*place, label, color=colour, weight="bold", size=11.5)
    axes.set_title("Regret on LR-CreditG-v1", size=12, loc="left", weight="bold")
    axes.set_xlabel("simulated hours", size=11)
    axes.set_ylabel("validation loss above the best (nats)", size=11)
    axes.set(xlim=(0, 6), ylim=(0, None), yticks=np.arange(0, 0.05, 0.01))
    axes.tick_params(labelsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d0d7de", linewidth=0.6)
    axes.set_axisbelow(True)


def draw(folder: Path, path: Path = PICTURE) -> None:
    """Draw the picture from the folder of a comparison."""
    mpl.rcParams.update({"font.size": 12.5, "svg.hashsalt": "fedhpo_gym", "text.color": INK})
    width, height, loop = 10.0, 3.5, 6.2
    figure = Figure((width, height), facecolor="white")
    draw_loop(figure.add_axes((0, 0, loop / width, 1)), loop, height)
    draw_regret(figure.add_axes((0.7, 0.165, 0.29, 0.73)), read_curves(folder))
    figure.savefig(path, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
