"""Searches wide spaces of the tabular families, to choose those of version 1."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import measuring
import space_search


def main(argv: Sequence[str] | None = None) -> str:
    """Train what is missing, then print what was found and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--parts", type=Path, default=Path("runs/spaces"), help="finished units")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--searches", nargs="+", default=[*space_search.SEARCHES])
    parser.add_argument("--datasets", nargs="+", default=[*space_search.DATASETS])
    arguments = parser.parse_args(argv)
    for name in arguments.searches:
        for dataset in arguments.datasets:
            search = space_search.SEARCHES[name]
            space_search.compute(search, dataset, arguments.parts, arguments.workers)
    return ""


if __name__ == "__main__":
    main()
