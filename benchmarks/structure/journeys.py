"""How the package is built: what `gym.make` and a step touch, and how many files know one thing.

- Journeys: files, calls and crossings between files that `gym.make`, steps and a comparison take.
  A call is one of a function of the package; it crosses where the nearest frame of the package
  below it lies in another file.
- A warm step on a table, whose cells are all scored after the first hundreds, beside a step of
  CartPole in the same process, in turns.
- Lines by kind, by Python's own parser.
- Files of the package that one other file imports: some are parts that were not worth a file.
- Files of the package that name one thing of each kind: how many places know of it.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import gymnasium as gym
import measuring
import numpy as np

import fedhpo_gym

CHECKOUT = measuring.RESULTS.parents[1]
sys.path.append(str(CHECKOUT / "tests" / "support"))
PACKAGE = str(Path(fedhpo_gym.__file__).parent)
TASK, TRAINED = "FedHPO-LR-CreditG-v1", "FedHPO-LR-BreastCancer-v1"
FOLDERS = ("fedhpo_gym", "tests", "benchmarks", "examples")
KINDS = ("code", "docstrings", "comments", "imports", "blank")
THINGS: Mapping[str, str] = {
    "agent": "fedpop", "algorithm": "fednova", "backend": "tuned", "command": "difficulty",
    "data set": "PubMed", "objective": "fairness_jain", "task": "Hetero", "wrapper": "WeightedSum",
}  # fmt: skip
"""One thing of each kind that CONTRIBUTING.md says how to add; tasks go by their family."""
Journey = Callable[[], object]


def traced(journey: Journey) -> tuple[int, int, int]:
    """Return the files, the calls and the crossings of a journey."""
    files: set[str] = set()
    counts = [0, 0]

    def listen(frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(PACKAGE):
            return
        files.add(file)
        below = frame.f_back
        while below is not None and not below.f_code.co_filename.startswith(PACKAGE):
            below = below.f_back
        counts[0] += 1
        counts[1] += below is not None and below.f_code.co_filename != file

    sys.setprofile(listen)
    try:
        journey()
    finally:
        sys.setprofile(None)
    return len(files), *counts


def stepping(env_id: str, steps: int = 1, **arguments: Any) -> Journey:
    """Return the journey of a step, after a reset and some steps that have warmed everything."""
    env = gym.make(env_id, **arguments)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    action = env.action_space.sample()
    return lambda: env.step(action)


def many(number: int) -> Journey:
    """Return the journey of a step of many environments on a table."""
    env = gym.make_vec(TASK, number, backend="tabular")
    env.reset(seed=0)
    actions = np.zeros((number, *env.single_action_space.shape), dtype=np.float32)  # type: ignore[misc]
    for _ in range(200 // number):
        env.step(actions)
    return lambda: env.step(actions)


def comparing() -> Journey:
    """Return the journey of `fedhpo-gym compare`, whose one run is done in this process."""
    from fedhpo_gym.cli import main
    from fedhpo_gym.studies import comparison as module
    from workers import CrewHere

    module.WorkerPool = CrewHere  # type: ignore[misc,assignment]
    words = ["compare", TASK, "--agents", "random", "--seeds", "1", "--out"]

    def journey() -> None:
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as out, redirect_stdout(said), redirect_stderr(said):
            if main([*words, out]):
                raise RuntimeError(said.getvalue())

    return journey


def journeys() -> Iterator[list[str]]:
    """Yield a row of each journey; what another one has loaded before is not loaded again."""
    still = {"fidelity": {"round": 9}, "seed": 0}
    prepared: dict[str, Callable[[], Journey]] = {
        "`gym.make`, table": lambda: lambda: gym.make(TASK, backend="tabular"),
        "table step that scores a cell": lambda: stepping(TASK, backend="tabular"),
        "table step": lambda: stepping(TASK, steps=200, backend="tabular"),
        "table step of 64": lambda: many(64),
        "surrogate step": lambda: stepping(TASK, backend="surrogate"),
        "raw trial of nine rounds": lambda: stepping(TRAINED, backend="raw", **still),
        "DAC step of five rounds": lambda: stepping(TRAINED.replace("FedHPO", "FedHPO-DAC")),
        "`fedhpo-gym compare`, one run": comparing,
    }
    for name, prepare in prepared.items():
        yield [name, *(f"{n:,}" for n in traced(prepare()))]


def beside_cartpole(turns: int, steps: int = 500) -> tuple[float, float, float]:
    """Return microseconds of a table's and of CartPole's step, and the median ratio in a turn."""
    seconds: dict[str, list[float]] = {TASK: [], "CartPole-v1": []}
    for _ in range(turns):
        for env_id, found in seconds.items():
            env = gym.make(env_id)
            env.reset(seed=0)
            env.action_space.seed(0)
            actions = [env.action_space.sample() for _ in range(steps)]
            with measuring.stopwatch() as spent:
                for action in actions:
                    _, _, terminated, truncated, _ = env.step(action)
                    if terminated or truncated:
                        env.reset()
            found.append(1e6 * spent.cpu_s / steps)
    ours, theirs = (np.array(found[1:]) for found in seconds.values())  # the first turn warms up
    return statistics.median(ours), statistics.median(theirs), statistics.median(ours / theirs)


def lines_of(source: str) -> Counter[str]:
    """Return how many lines of each kind a file has; text that is assigned to nothing documents."""
    kinds = ["code" if line.strip() else "blank" for line in source.splitlines()]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            kinds[token.start[0] - 1] = "comments"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            kind = "imports"
        elif isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            kind = "docstrings"
        else:
            continue
        length = (node.end_lineno or node.lineno) + 1 - node.lineno
        kinds[node.lineno - 1 : node.lineno - 1 + length] = [kind] * length
    return Counter(kinds, files=1, total=len(kinds))


def sources(folder: str) -> dict[str, str]:
    """Return the Python files of a folder, by the names of their modules."""
    found = {}
    for path in sorted((CHECKOUT / folder).rglob("*.py")):
        parts = path.relative_to(CHECKOUT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return found


def importers(package: Mapping[str, str]) -> Counter[str]:
    """Return how many files of the package import each of its files."""
    counts = Counter(dict.fromkeys(package, 0))
    for source in package.values():
        named = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {name if name in package else str(node.module) for name in inner}
        counts.update(named & package.keys())
    return counts


def main() -> str:
    """Trace, count, and write the page."""
    parser = measuring.Parser(__file__, __doc__)
    parser.set_defaults(out=measuring.RESULTS / "structure.md")
    parser.add_argument("--turns", type=int, default=21, help="of both steps")
    options = parser.parse_args()
    rows = list(journeys())
    ours, theirs, ratio = beside_cartpole(options.turns)
    package, sizes = sources("fedhpo_gym"), []
    for folder in FOLDERS:
        counts = sum(map(lines_of, sources(folder).values()), Counter[str]())
        sizes.append([folder, *(f"{counts[kind]:,}" for kind in ("files", "total", *KINDS))])
    alone = sum(count == 1 for count in importers(package).values())
    knowing = []
    for kind, word in THINGS.items():
        named = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
        files = sum(bool(named.search(source)) for source in package.values())
        knowing.append([kind, f"`{word}`", str(files)])
    return measuring.write_report(
        options,
        "The structure of the package",
        measuring.table(("journey", "files", "calls", "crossings"), rows),
        f"A warm step on a table takes {ours:.0f} µs, {ratio:.1f} times as long as one of CartPole "
        f"({theirs:.1f} µs): medians of {options.turns - 1} turns, of the ratio within a turn.",
        measuring.table(("folder", "files", "lines", *KINDS), sizes),
        f"Of {len(package)} files of the package, {alone} are imported by one other.",
        measuring.table(("one thing of a kind", "its name", "files that name it"), knowing),
    )


if __name__ == "__main__":
    measuring.run(main)
