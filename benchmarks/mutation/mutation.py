"""Do the tests notice when the code is wrong? A seeded sample of mutants, run on the fast tests.

cosmic-ray (`pip install cosmic-ray`) makes the mutants. Each is tried on the tests of its own part,
and those that survive on the tests of all the other parts. A mutant that no test can tell from the
original is listed in `mutation_equivalents.toml`, with the reason.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
from mutants import Copy, Mutant, changed_lines, mutants_of

CHECKOUT = Path(__file__).resolve().parents[2]
EQUIVALENTS = Path(__file__).with_name("mutation_equivalents.toml")
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "evaluation": ("tests/evaluation",),
        "objectives": ("tests/objectives",),
        "systems": ("tests/systems",),
        "space": ("tests/space",),
        "stored": ("tests/stored",),
        "envs/trial": ("tests/envs/trial", "tests/envs/test_rendering.py"),
        "envs/vector.py": ("tests/envs/trial", "tests/envs/round/test_vector.py"),
        "envs/round": ("tests/envs/round", "tests/envs/test_rendering.py"),
        "algorithms": ("tests/fl/test_algorithms.py",),
        "evaluation/noise.py": ("tests/evaluation/test_noise.py",),
        "building/design.py": ("tests/building/test_sample.py",),
        "studies/environments.py": ("tests/studies/test_trust.py",),
        "stored/health.py": (
            "tests/cli/test_show.py",
            "tests/stored/test_health.py",
            "tests/stored/test_difficulty.py",
        ),
        "core/archive.py": (
            "tests/test_archive.py",
            "tests/stored/test_health.py",
            "tests/test_damage.py",
        ),
        "backends/federatedscope": (
            "tests/backends/federatedscope/test_conversations.py",
            "tests/backends/federatedscope/test_parsing.py",
            "tests/backends/federatedscope/test_configuration.py",
            "tests/backends/federatedscope/test_recorded.py",
        ),
    }
)
"""Folders and modules of the package, and the tests of each."""
LEFT_OUT = "fedhpo_gym/backends/federatedscope/peer"
"""Modules that run in FederatedScope's interpreter only: where it is installed, tests try them."""
ELSEWHERE = ("tests/envs/trial", "tests/wrappers", "tests/backends")
"""Tests of what stands on the parts."""
SLACK, LEAST_S = 4.0, 30.0
"""Tests hang that take so many times what they take without a mutant, and so many seconds."""


Drawn = Mapping[str, Sequence[tuple[Mutant, str]]]


def sources(part: str) -> list[str]:
    """Return the modules of a part, from the top of the checkout."""
    top = CHECKOUT / "fedhpo_gym" / part
    found = [top] if top.suffix == ".py" else top.rglob("*.py")
    paths = (str(path.relative_to(CHECKOUT)) for path in found)
    return sorted(path for path in paths if not path.startswith(LEFT_OUT))


def draw(part: str, count: int, seed: int) -> list[tuple[Mutant, str]]:
    """Return some mutants of a part that change what runs, and the changed modules."""
    # Here: processes that test a mutant are forked from one that never saw the package.
    from fedhpo_gym.core.seeding import stream

    texts = {path: (CHECKOUT / path).read_text(encoding="utf-8") for path in sources(part)}
    mutants = [mutant for path, text in texts.items() for mutant in mutants_of(path, text)]
    drawn: list[tuple[Mutant, str]] = []
    for i in stream(seed, "mutants", list(PARTS).index(part)).permutation(len(mutants)):
        changed = mutants[i].source(texts[mutants[i].path])
        if changed is not None:
            drawn.append((mutants[i], changed))
        if len(drawn) == count:
            break
    return drawn


def tried(
    drawn: Drawn, copy: Copy, journal: Path, minutes: float, *, own: bool
) -> list[dict[str, Any]]:
    """Return what became of each mutant, the first of every part before the second of any.

    Args:
        drawn: mutants by part, with the changed modules.
        copy: where they are tried.
        journal: outcomes of a run that ended; what it knows is not tried again.
        minutes: nothing is tried any more after so long.
        own: whether survivors are left at the tests of their own part.
    """
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    known = {(e["path"], e["before"], e["after"]): e for e in map(json.loads, lines)}
    results, end = [], time.monotonic() + 60.0 * minutes
    rows = zip_longest(*([(part, *one) for one in mutants] for part, mutants in drawn.items()))
    for part, mutant, changed in filter(None, chain.from_iterable(rows)):
        path = copy.folder / mutant.path
        key = (mutant.path, *changed_lines(path.read_text(encoding="utf-8"), changed))
        if key not in known and time.monotonic() < end:
            stages = [PARTS[part], *(() if own else [_elsewhere(part)])]
            outcome = copy.run_changed(mutant, changed, stages, [limit_of(copy, t) for t in stages])
            said = zip(
                ("path", "before", "after", "part", "outcome"), (*key, part, outcome), strict=True
            )
            known[key] = dict(said)
            with journal.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(known[key]) + "\n")
        if key in known:
            results.append(known[key])
    return results


def _elsewhere(part: str) -> tuple[str, ...]:
    return tuple(tests for tests in ELSEWHERE if tests not in PARTS[part])


@cache
def limit_of(copy: Copy, tests: tuple[str, ...]) -> float:
    """Return how long the tests may take; without a mutant they pass."""
    outcome, seconds = copy.run(tests, float("inf"))
    if outcome != "passed":
        raise SystemExit(f"{' '.join(tests)} fail without any mutant; repair them first")
    return LEAST_S + SLACK * seconds


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return why mutants are no faults, by module, lines before and lines after."""
    listed = tomllib.loads(EQUIVALENTS.read_text(encoding="utf-8"))
    return {(e["path"], e["before"], e["after"]): e["why"] for e in listed.get("mutant", [])}


def sections(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of scores, and the lists of survivors."""
    why = equivalents()
    rows, lists = [], {"survivors": list[str](), "equivalent": list[str]()}
    total = Counter[str]()
    for part in PARTS:
        counts = Counter[str]()
        for e in (one for one in results if one["part"] == part):
            reason = why.get((e["path"], e["before"], e["after"]))
            kind = e["outcome"] if e["outcome"] != "passed" else "equivalent" if reason else "lives"
            counts[kind] += 1
            if e["outcome"] == "passed":
                change = f"- `{e['path']}`: `{e['before']}` → `{e['after']}`"
                lists["equivalent" if reason else "survivors"].append(
                    f"{change}: {reason}" if reason else change
                )
        total += counts
        if counts:
            rows.append(_row(f"`{part}`", counts))
    rows.append(_row("all", total))
    header = ("part", "mutants", "a test fails", "tests hang", "equivalent", "survivors", "score")
    made = [measuring.table(header, rows)]
    for title, lines in (("Survivors", "survivors"), ("Equivalent mutants", "equivalent")):
        made.append("\n".join([f"## {title}", "", *(lists[lines] or ["None."])]))
    return made


def _row(name: str, counts: Mapping[str, int]) -> list[str]:
    dead, all_ = counts.get("failed", 0) + counts.get("hung", 0), sum(counts.values())
    score = dead / max(1, all_ - counts.get("equivalent", 0))
    kinds = [counts.get(kind, 0) for kind in ("failed", "hung", "equivalent", "lives")]
    return [name, *map(str, (all_, *kinds)), f"{score:.1%}"]


def main(argv: Sequence[str] | None = None) -> str:
    """Draw, try, and write the report."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--sample", type=int, default=200, help="mutants, an equal share per part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--journal", type=Path, help="file of outcomes: an ended run goes on from it"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none later")
    parser.add_argument("--own", action="store_true", help="only the tests of the part itself")
    options = parser.parse_args(argv)
    os.environ.update(OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    share = -(-options.sample // len(PARTS))
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(CHECKOUT, Path(folder) / "copy")
        drawn = {
            part: measuring.in_fresh_process(draw, part, share, options.seed)[0]
            for part in options.parts
        }
        journal = options.journal or Path(folder) / "journal.jsonl"
        results = tried(drawn, copy, journal, options.minutes, own=options.own)
    return measuring.write_report(
        options,
        "Do the tests notice?",
        f"{len(results)} mutants, at most {share} per part, drawn with seed {options.seed} among "
        "all that cosmic-ray's operators make and that change what runs. The score is the share of "
        "the mutants that are not equivalent at which a fast test fails or hangs.",
        *sections(results),
    )


if __name__ == "__main__":
    main()  # not by `measuring.run`, which imports the package
