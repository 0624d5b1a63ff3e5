"""Drawing with matplotlib: SVG text for a page, and PDF files for a paper.

`fedhpo_gym.analysis.figures` and `landscape` draw through this module. `draw` calls a function that
fills one axes, and returns the picture in both forms. An agent has the same colour and line style
in every figure and every report (`line_styles`), whichever other agents are drawn.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np

from fedhpo_gym.analysis.problems import QuartileCurve
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import require_optional

# Okabe and Ito (2008): distinct under every common colour blindness; the pale ones are left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
STYLES = ("-", "--", "-.", ":")
PAINTS = (*COLOURS[:4], "#56B4E9", "#E69F00", "#8C6BC8")
"""Colours of agents: readable on white and on black."""
DASHES = ((0, (5, 1, 1, 1, 1, 1)), (0, (9, 3)), (0, (1, 3, 5, 3)))
GREY = "#8A8A8A"
ORDER = (
    "optuna-tpe", "hyperband", "cma-es", "bo-gp", "sobol", "bohb", "de",
    "asha", "dehb", "grid", "bo-rf", "latin-hypercube", "bo-kde", "tpe-md",
    "tpe-hb", "successive-halving", "priorband", "proxy", "policy", "nsga2", "motpe",
    "parego", "qlognehvi", "fedex", "fedtune", "fts", "flora", "fedpop",
    "fedhyper", "schedule", "auto-fedrl", "dp-fts-de", "fedex-personalised", "gp", "rgpe",
    "tst-r", "taf-r", "cts", "zero-shot", "bounding-box", "ablr", "fsbo", "pfn",
)  # fmt: skip
"""Agents by their place among colours, then line styles."""
SIZE, TALL = (4.9, 3.5), 4.6
"""Inches of a figure, and the height of one with its legend below."""
LineStyles: TypeAlias = Mapping[str, tuple[str, Any]]
CROWD = 4
"""Most agents whose legend fits inside the axes."""
INK = "#1a1a1a"
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, selected and read aloud
    "pdf.fonttype": 42,  # so it does in a paper, and publishers ask for it
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Picture(NamedTuple):
    """One `<svg>` element that scales with the page, and what makes a file for a paper."""

    svg: str
    pdf: Callable[[], bytes]


def draw_curves(
    curves: Mapping[str, QuartileCurve], name: str, given_styles: LineStyles | None = None
) -> Picture:
    """Draw the incumbent validation loss of every agent: median, and a band between quartiles."""
    styles = given_styles or line_styles(curves)
    is_crowded = len(curves) > CROWD

    def fill(axes: Any) -> None:
        unit, seconds = time_unit(max((float(c.time_s[-1]) for c in curves.values()), default=1.0))
        for agent, curve in curves.items():
            colour, style = styles[agent]
            times, median, lower, upper = step_corners(
                curve.time_s, curve.median, curve.lower, curve.upper
            )
            band = {"step": "post", "color": colour, "alpha": 0.18, "lw": 0}
            axes.fill_between(times / seconds, lower, upper, **band)
            line = {"where": "post", "color": colour, "ls": style, "lw": 2}
            axes.step(times / seconds, median, label=label(agent), **line)
        low, high = _shown_range(curves)
        margin = 0.06 * (high - low)
        axes.set_ylim(low - margin, high + margin)
        ylabel = "validation loss of the incumbent"
        finish(axes, f"simulated time ({unit})", ylabel, below=is_crowded)

    return draw(name, fill, (SIZE[0], TALL if is_crowded else SIZE[1]))


def draw(name: str, fill: Callable[[Any], None], size: tuple[float, float] = SIZE) -> Picture:
    """Return the picture that a function draws into axes."""
    with require_optional("drawing a report", "matplotlib", "plot", "matplotlib"):
        import matplotlib as mpl
        from matplotlib.figure import Figure
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        fill(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    figure.set_layout_engine("none")  # it is laid out: once is enough

    def pdf() -> bytes:
        with mpl.rc_context(SETTINGS):
            paper = io.BytesIO()
            figure.savefig(paper, format="pdf", metadata={"CreationDate": None, "Creator": None})
        return paper.getvalue()

    return Picture(_extract_svg(buffer.getvalue(), name), pdf)


def step_corners(times: Floats, *values: Floats) -> list[Floats]:
    """Return points of step functions where one of them changes, and the first and last."""
    changes = np.any([np.diff(value, prepend=np.nan) != 0 for value in values], axis=0)
    changes[-1:] = True
    return [array[changes] for array in (times, *values)]


def line_styles(agents: Iterable[str]) -> LineStyles:
    """Return colour and line style of each agent.

    Random search is grey. Each agent of `ORDER` has a fixed style; with settings in parentheses it
    has the next free one. Others have the first free style from one that their name determines.
    """
    styles: dict[str, tuple[str, Any]] = {}
    slots = [(colour, style) for style in (*STYLES, *DASHES) for colour in PAINTS]
    for agent in sorted(set(agents), key=lambda label: (label not in ORDER, label)):
        name = agent.split(" (")[0]
        if agent == "random":
            styles[agent] = GREY, "-"
            continue
        first = ORDER.index(name) if name in ORDER else crc32(name.encode())
        candidates = slots[first % len(slots) :] + slots[: first % len(slots)]
        styles[agent] = next(
            (look for look in candidates if look not in styles.values()), candidates[0]
        )
    return styles


def label(agent: str) -> str:
    """Return a name as matplotlib shows it: a dollar sign would begin a formula."""
    return agent.replace("$", r"\$")


def plain_log(axis: Any, format_value: Callable[[float], str] = "{:g}".format) -> None:
    """Write the powers of a logarithmic axis as plain numbers."""
    axis.set_major_formatter(lambda value, _place: format_value(value))
    axis.set_minor_formatter(lambda _value, _place: "")


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between two numbers; where they are few, twice and five times, too."""
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [float(f"{p * f:.0e}") for p in powers for f in factors if low <= p * f <= high]
        if len(ticks) > 2:
            break
    return ticks


def format_percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:g} %"


def finish(axes: Any, xlabel: str, ylabel: str, below: bool) -> None:
    """Name the axes, and put the legend inside them, or below where it hides nothing."""
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(visible=True, color="#d9d9d9", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if not axes.get_legend_handles_labels()[0]:
        reason = "no agent keeps the constraints in all runs"
        axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center")
    elif below:
        options = {"loc": "outside lower center", "ncols": 2, "fontsize": 11}
        axes.figure.legend(frameon=False, handlelength=3.2, **options)
    else:
        axes.legend(frameon=False, handlelength=3.2)


def _shown_range(curves: Mapping[str, QuartileCurve]) -> tuple[float, float]:
    """Return the range of the loss axis: up to above the worst median at a quarter of the time."""
    if not curves:
        return 0.0, 1.0
    low = min(float(curve.lower.min()) for curve in curves.values())
    high = max(float(curve.upper.max()) for curve in curves.values())
    end = max(float(curve.time_s[-1]) for curve in curves.values())
    # A curve ends where a run recommends a configuration that breaks a constraint.
    medians = [c.median[np.searchsorted(c.time_s[:-1], end / 4)] for c in curves.values()]
    limit = low + 1.5 * (float(max(medians)) - low)
    high = min(high, limit) if limit > low else high
    margin = 0.05 + 1e-6 * abs(low)  # of 3.4e38, where every trial diverged, 0.05 is nothing
    return (low, high) if high > low else (low - margin, low + margin)


def time_unit(longest_s: float) -> tuple[str, float]:
    """Return the unit in which times are read easily, and its seconds."""
    if longest_s >= 7200:
        return "hours", 3600.0
    return ("minutes", 60.0) if longest_s >= 120 else ("seconds", 1.0)


def show_window(axes: Any, values: Floats) -> None:
    """End an axis where most values end, and mark at its rim that there are others beyond."""
    typical = values[values < 100 * max(float(np.median(values)), 1e-12)]
    if len(typical) and len(typical) < len(values):
        axes.set_ylim(0.95 * float(typical.min()), 1.05 * float(typical.max()))
        axes.text(0.01, 0.99, "▲ beyond", transform=axes.transAxes, va="top", color=INK)


def _extract_svg(svg: str, name: str) -> str:
    """Return the `<svg>` element of a file, without its size, metadata and global ids."""
    opening, body = svg[svg.index("<svg") :].split(">", maxsplit=1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # Coordinates are points: digits beyond a hundredth are invisible.
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), body)
    # Ids are global to the page; matplotlib numbers them from 1 in every figure.
    for pattern in (r'(id=")', r'(href="#)', r"(url\(#)"):
        body = re.sub(pattern, rf"\g<1>{name}-", body)
    return f"{opening}>{body}".strip()
