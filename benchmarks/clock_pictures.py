"""Draw rounds under each clock: `python benchmarks/clock_pictures.py`.

Bars are computed by the clocks themselves: a model of 25,000 parameters, three clients of five, and
links of 50 kB/s, so that messages, computation and waiting can be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedhpo_gym.analysis.plot import COLOURS, SETTINGS
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.flights import Queue, until_aggregation
from fedhpo_gym.systems import CROSS_SILO, DeviceModel, JobClock, SystemModel, Work, harmonic
from fedhpo_gym.systems.availability import DAY_S
from fedhpo_gym.systems.cohorts import invite
from fedhpo_gym.systems.device_model import PLANNED_ROUNDS
from fedhpo_gym.systems.draw import Draw
from fedhpo_gym.systems.rounds import client_seconds, endings

PATH = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "clocks.svg"
BESIDE = PATH.with_name("asynchronous.svg")
WORK = Work.of_course(25_000, 5, Fidelity(1, 0.6))
LINK = 50_000.0
EQUATION = replace(
    CROSS_SILO,
    client_upload_bytes_per_s=LINK,
    client_download_bytes_per_s=LINK,
    server_upload_bytes_per_s=LINK,
    server_download_bytes_per_s=LINK,
)
DEVICES = DeviceModel(
    upload_median_bytes_per_s=LINK, download_median_bytes_per_s=LINK, client_compute_s=2.0, seed=1
)
PARTS = {"wait": COLOURS[-1], "download": COLOURS[0], "compute": COLOURS[1], "upload": COLOURS[2]}

Bar = tuple[str, float, float]
"""What it is, when it begins, and how long it takes, in seconds."""


@dataclass(frozen=True)
class Panel:
    """One clock.

    Attributes:
        title: its name.
        rows: who, and what they do.
        end_s: the end of the round.
        more_s: ends of later rounds.
    """

    title: str
    rows: Sequence[tuple[str, Sequence[Bar]]]
    end_s: float
    more_s: Sequence[float] = ()


def equation(title: str, system: SystemModel) -> Panel:
    """Return a round of Eq. 1: the straggler of N computes for H_N times the mean."""
    up, down = (size / LINK for size in system.message_bytes(WORK))
    clients = WORK.sampled_clients
    one_by_one = system.mode != "cross_device"
    gathers = system.mode == "point_to_point"
    downloads = [down * (index + 1 if one_by_one else 1) for index in range(clients)]
    # All wait for the last message; the i-th to finish takes H_N - H_(N-i) on average.
    begin, rest = max(downloads), [0.0, *[harmonic(n) for n in range(1, clients + 1)]]
    busy = [rest[clients] - rest[clients - index - 1] for index in range(clients)]
    rows = []
    for index, received in enumerate(downloads):
        sent = up * (index + 1 if gathers else 1)
        bars: list[Bar] = [
            ("wait", 0.0, received - down),
            ("download", received - down, down),
            ("wait", received, begin - received),
            ("compute", begin, busy[index]),
            ("wait", begin + busy[index], max(busy) - busy[index] + sent - up),
            ("upload", begin + max(busy) + sent - up, up),
        ]
        rows.append((f"client {index}", bars))
    return Panel(title, rows, system.cost(WORK).time_s)


def devices(title: str, system: DeviceModel, index: int) -> Panel:
    """Return one of the planned rounds of a clock of devices."""
    who = invite(
        system.population(5),
        system.hours(5),
        WORK.sampled_clients,
        DAY_S * index / PLANNED_ROUNDS,
        Draw(system.seed, (index,)),
        over_selection=system.over_selection,
        dropout=system.dropout,
    )
    up, down = system.message_bytes(WORK)
    units = np.ones(who.clients.shape)
    nothing = (0.0, who.upload)
    compute_s, download_s = client_seconds(
        units, system.client_compute_s, who.compute, nothing, (down, who.download)
    )
    upload_s = up / who.upload
    report_s = who.wait_s + compute_s + download_s + upload_s
    deadline_s = system.deadline_s or np.inf
    end = endings(report_s, who.survives, who.wanted, deadline_s)
    rows = []
    for place, client in enumerate(who.clients[0].tolist()):
        bars: list[Bar] = []
        at = 0.0
        for name, length in (
            ("wait", who.wait_s),
            ("download", download_s),
            ("compute", compute_s),
            ("upload", upload_s if who.survives[0, place] else 0 * upload_s),
        ):
            bars.append((name, at, float(length[0, place])))
            at += float(length[0, place])
        lost = "" if who.survives[0, place] else ", drops out"
        extra = " extra" if place >= who.wanted else ""
        rows.append((f"client {client}{extra}{lost}", bars))
    return Panel(title, rows, float(end.after_s[0]))


def recorded() -> Panel:
    """Return a round that was measured: 5 s of messages, 3 s of computation."""
    return Panel("recorded", [("the round", [("upload", 0.0, 5.0), ("compute", 5.0, 3.0)])], 8.0)


def asynchronous(title: str, system: DeviceModel, reports: int, until_s: float) -> Panel:
    """Return the aggregations of a time: three clients train at once, nobody waits."""
    work = replace(WORK, reports=reports)
    clock, means = JobClock(system, work), system.job_means(work)
    queue, version = Queue(), 0
    bars: list[list[Bar]] = [[] for _ in range(5)]
    ends: list[float] = []
    while queue.now_s < until_s:
        queue, begun, _ = until_aggregation(
            queue, version, reports=reports, at_once=3, num_clients=5, clock=clock, seed=1
        )
        for job in begun:
            busy = float(means.compute_s[job.client])
            transfers = float(means.other_s[job.client])
            down = transfers * system.population(5).upload[job.client]
            down /= (
                system.population(5).upload[job.client] + system.population(5).download[job.client]
            )
            at = job.done_s - busy - transfers
            for name, length in (
                ("download", down),
                ("compute", busy),
                ("upload", transfers - down),
            ):
                bars[job.client].append((name, at, length))
                at += length
        ends.append(queue.now_s)
        version += 1
    rows = [(f"client {client}", own) for client, own in enumerate(bars)]
    return Panel(title, rows, ends[0], ends[1:])


def beside() -> None:
    """Write the picture of synchronous rounds beside asynchronous ones."""
    until_s = 60.0
    rows: list[list[Bar]] = [[] for _ in range(5)]
    ends: list[float] = []
    index = 0
    while not ends or ends[-1] < until_s:
        panel = devices("", DEVICES, index)
        begin = ends[-1] if ends else 0.0
        for name, own in panel.rows:
            rows[int(name.split()[1])] += [(part, begin + at, long) for part, at, long in own]
        ends.append(begin + panel.end_s)
        index += 1
    synchronous = Panel(
        "synchronous rounds of 3",
        [(f"client {client}", own) for client, own in enumerate(rows)],
        ends[0],
        ends[1:],
    )
    panels = [
        synchronous,
        asynchronous("FedBuff, 3 at once, K = 3", DEVICES, 3, until_s),
        asynchronous("FedAsync, 3 at once", DEVICES, 1, until_s),
    ]
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": "asynchronous", "font.size": 9}):
        figure = Figure(figsize=(10, 6.0), layout="constrained")
        axes: Any = figure.subplots(3, 1, sharex=True)
        for panel, axis in zip(panels, axes.flat, strict=True):
            _draw(axis, panel)
            axis.set_title(panel.title)
            axis.set_xlim(0, until_s)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(BESIDE, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Write the pictures."""
    beside()
    faulty = replace(DEVICES, over_selection=0.6, dropout=0.3, deadline_s=20.0)
    panels = [
        equation("analytic, cross-silo", EQUATION),
        equation("analytic, cross-device", replace(EQUATION, mode="cross_device")),
        equation("analytic, point-to-point", replace(EQUATION, mode="point_to_point")),
        devices("devices", DEVICES, 0),
        devices("devices with faults", faulty, 3),
        recorded(),
    ]
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": "clocks", "font.size": 9}):
        figure = Figure(figsize=(10, 5.6), layout="constrained")
        axes: Any = figure.subplots(2, 3)
        for panel, axis in zip(panels, axes.flat, strict=True):
            _draw(axis, panel)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(PATH, metadata={"Date": None, "Creator": None})


def _draw(axis: Any, panel: Panel) -> None:
    seen: set[str] = set()
    for row, (_, bars) in enumerate(panel.rows):
        for name, begin, length in bars:
            label = "_nolegend_" if name in seen else name
            seen.add(name)
            alpha = 0.3 if name == "wait" else 1.0
            axis.barh(
                row, length, left=begin, height=0.6, color=PARTS[name], alpha=alpha, label=label
            )
    axis.axvline(panel.end_s, color="black", linewidth=1, linestyle="--", label="end of the round")
    for end_s in panel.more_s:
        axis.axvline(end_s, color="black", linewidth=1, linestyle="--")
    axis.set_yticks(range(len(panel.rows)), [name for name, _ in panel.rows])
    axis.invert_yaxis()
    axis.set_xlabel("seconds")
    axis.set_title(f"{panel.title}: {panel.end_s:.1f} s")
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
