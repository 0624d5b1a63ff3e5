"""Asking FederatedScope: the same samples, in an interpreter of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedhpo_gym.backends.federatedscope.backend import arrays_of, graph_arrays
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.graph_federations import GraphFederation
from fedhpo_gym.fl.course import Course

SCRIPT = Path(__file__).with_name("federatedscope_course.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two options that say where FederatedScope is."""
    parser.add_argument(
        "--federatedscope", type=Path, help="FederatedScope's source tree; without it, no peer"
    )
    parser.add_argument(
        "--federatedscope-python",
        type=Path,
        default=Path(sys.executable),
        help="interpreter that has FederatedScope's dependencies",
    )


def run_courses(
    source: Path,
    python: Path,
    federation: Federation,
    courses: Sequence[Course],
    rounds: int,
    settings: Mapping[str, Any] | None = None,
    *,
    console: bool = True,
) -> dict[str, Any]:
    """Run courses one after the other in one FederatedScope process.

    Args:
        source: FederatedScope's source tree.
        python: interpreter.
        federation: the data of every client; all courses use it, whatever their seed.
        courses: what to run; a course's seed is FederatedScope's.
        rounds: rounds of each.
        settings: entries of FederatedScope's configuration that differ from those of `scripts/lr`,
            by dotted name.
        console: whether it prints what it logs, too, as it does for its users.

    Returns:
        The answer of `federatedscope_course.py`.

    Raises:
        RuntimeError: FederatedScope failed; holds the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_data(folder / "data.npz", federation)
        request = {
            "data": str(folder / "data.npz"),
            "console": console,
            "courses": [
                {
                    "configuration": dict(course.configuration),
                    "client_sample_rate": course.client_sample_rate,
                    "seed": course.seed,
                    "rounds": rounds,
                    "settings": dict(settings or {}),
                }
                for course in courses
            ],
        }
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        _run(source, python, folder)
        answer: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
        return answer


def describe(answer: dict[str, Any]) -> str:
    """Return the versions an answer was made with."""
    return ", ".join(f"{name} {version}" for name, version in answer["versions"].items())


def _write_data(path: Path, federation: Federation) -> None:
    arrays: dict[str, Any] = {**arrays_of(federation), "num_classes": federation.num_classes}
    if isinstance(federation, GraphFederation):
        everything = np.arange(len(federation.labels))
        rows = [np.concatenate(split) for split in zip(*federation.clients, strict=True)]
        edges = federation.graph.edges
        arrays |= graph_arrays(federation, 0, everything, edges, rows)  # what the server evaluates
    np.savez(path, **arrays)


def _run(source: Path, python: Path, folder: Path) -> None:
    if not (source / "federatedscope").is_dir():
        raise RuntimeError(f"--federatedscope must name FederatedScope's source tree, got {source}")
    environment = {
        **os.environ,
        "PYTHONPATH": str(source.resolve()),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
    }
    # The log goes to a file: what FederatedScope prints costs it what it costs its users.
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        command = [python, SCRIPT, folder / "request.json", folder / "answer.json"]
        done = subprocess.run(
            command, env=environment, cwd=folder, stdout=log, stderr=log, check=False
        )
    if done.returncode:
        end = (folder / "log.txt").read_text(encoding="utf-8")[-2000:]
        raise RuntimeError(f"FederatedScope ended with {done.returncode}:\n{end}")
