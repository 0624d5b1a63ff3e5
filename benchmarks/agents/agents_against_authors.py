r"""Our agents beside their authors' packages: the same functions, budgets and seeds.

    python -m venv peer && peer/bin/pip install "numpy<2" scipy pandas ConfigSpace statsmodels \
        cma optuna loguru dask distributed serpent Pyro4 setuptools
    peer/bin/pip install --no-deps DEHB==0.1.2 hpbandster==0.7.4
    python -m venv smac && smac/bin/pip install smac
    python benchmarks/agents/agents_against_authors.py --peer peer/bin/python \
        --peer-of bo-rf=smac/bin/python

Packages that are not there are skipped, and the page says so. The peer's process asks over pipes
(`agents_peer.py`), so that this process alone knows functions and budgets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import gymnasium as gym
import measuring
import numpy as np
from agents_peer import PEERS
from measuring import number
from numpy.typing import NDArray

import fedhpo_gym
from fedhpo_gym.agents import SearchProblem, agent_class
from fedhpo_gym.agents.base import Step
from fedhpo_gym.agents.multi_fidelity import LadderSearch
from fedhpo_gym.space import Dimension, SearchSpace

Array = NDArray[np.float64]
Loss = Callable[[Array, int], float]
PEER = Path(__file__).with_name("agents_peer.py")
FUNCTIONS = ("Hartmann6", "Branin", "FedHPO-LR-CreditG-v1", "FedHPO-MLP-Car-v1")
PARTS = (0.25, 0.5, 1.0)
RESAMPLES = 10_000
HARTMANN_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
HARTMANN_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


@dataclass(frozen=True)
class Function:
    """What is minimised.

    Attributes:
        name: of the function, or the id of an environment.
        space: of configurations; its last dimension is the rounds.
        rungs: rounds of each rung.
        loss: of a point of the unit cube and a number of rounds.
        lowest: the least loss of the highest rung.
    """

    name: str
    space: SearchSpace
    rungs: tuple[int, ...]
    loss: Loss
    lowest: float


def hartmann(x: Array, rounds: int) -> float:
    """Return the multi-fidelity Hartmann6 of Kandasamy et al. (2017), z = rounds / 27."""
    alpha = np.array([1.0, 1.2, 3.0, 3.2]) - 0.1 * (1.0 - rounds / 27)
    return -float(alpha @ np.exp(-(HARTMANN_A * (x - HARTMANN_P) ** 2).sum(axis=1)))


def branin(x: Array, rounds: int) -> float:
    """Return the multi-fidelity Branin of Kandasamy et al. (2017), z = rounds / 27."""
    lacking = 1.0 - rounds / 27
    a, b = 15.0 * x[0] - 5.0, 15.0 * x[1]
    curve = (5.1 / (4 * np.pi**2) - 0.01 * lacking) * a**2
    bowl = (b - curve + (5.0 / np.pi - 0.1 * lacking) * a - 6.0) ** 2
    return float(bowl + 10.0 * (1.0 - 1.0 / (8 * np.pi) - 0.05 * lacking) * np.cos(a) + 10.0)


def synthetic(name: str, loss: Loss, width: int, lowest: float) -> Function:
    """Return a function of 27 rounds."""
    axes = tuple(Dimension(f"x{i}", 0.0, 1.0, "float") for i in range(width))
    space = SearchSpace((*axes, Dimension("round", 1, 27, "int")))
    return Function(name, space, (1, 3, 9, 27), loss, lowest)


def stored(env_id: str) -> Function:
    """Return an environment of stored answers as a function; its rungs are four."""
    env = gym.make(env_id, fidelity={"client_sample_rate": 1.0}, budget_s=1e15)
    env.reset(seed=0)
    space: SearchSpace = env.get_wrapper_attr("search_space")
    rounds = space.dimensions[-1]

    def loss(x: Array, trained: int) -> float:
        action = np.array([*(2.0 * x - 1.0), rounds.encode(trained)], dtype=np.float32)
        return -float(env.step(action)[4]["score"])

    rungs = tuple(int(rounds.high / 3**below + 0.5) for below in (3, 2, 1, 0))
    return Function(env_id, space, rungs, loss, float(fedhpo_gym.truth(env_id).ideal()[0]))


def ours(agent: str, function: Function, seed: int) -> Iterator[tuple[Array, int, Any]]:
    """Yield what our agent asks: a point, its rounds, and how it is told the loss."""
    kind, rounds = agent_class(agent), function.space.dimensions[-1]
    climbs = issubclass(kind, LadderSearch)
    space = function.space if climbs else SearchSpace(function.space.dimensions[:-1])
    made: Any = kind(
        SearchProblem(
            gym.spaces.Box(-1.0, 1.0, (len(space),), np.float32),
            space,
            SearchSpace((rounds,)) if climbs else SearchSpace(()),
            seed,
        ),
        **({"low": _bottom(rounds, len(function.rungs))} if climbs else {}),
    )
    if climbs and made.rungs != function.rungs:
        raise RuntimeError(f"{agent} must have the rungs {function.rungs}, got {made.rungs}")
    width = len(function.space) - 1
    while True:
        action = made.ask({})
        trained = int(rounds.decode(float(action[-1]))) if climbs else function.rungs[-1]
        point = (action[:width].astype(np.float64) + 1.0) / 2.0
        yield point, trained, lambda loss, a=action: made.tell(Step(a, -loss))


def _bottom(rounds: Dimension, number: int) -> int:
    """Return the largest legal number of rounds from which a ladder has as many rungs."""
    wanted = rounds.high / 3 ** (number - 1)
    known = rounds.values or range(int(rounds.low), int(rounds.high) + 1)
    return max(int(value) for value in known if float(value) <= wanted)


def theirs(
    python: Path, agent: str, function: Function, seed: int
) -> Iterator[tuple[Array, int, Any]]:
    """Yield what the authors' package asks, see `ours`."""
    command = [
        python, PEER, agent, seed, len(function.space) - 1, len(function.rungs),
    ]  # fmt: skip
    settings = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=settings,
    ) as process:  # fmt: skip
        heard, said, failed = process.stdout, process.stdin, process.stderr
        if heard is None or said is None or failed is None:
            raise RuntimeError("there are no pipes")
        try:
            for line in heard:
                point, rung = json.loads(line)

                def tell(loss: float) -> None:
                    said.write(f"{json.dumps(loss)}\n")
                    said.flush()

                yield np.array(point), function.rungs[rung], tell
            raise RuntimeError(f"{agent}'s peer ended early: {failed.read()[-2000:]}")
        finally:
            process.kill()


def regrets(
    asking: Iterator[tuple[Array, int, Any]], function: Function, trials: int
) -> list[float]:
    """Return the regret after each part of a budget of as many full trials.

    It is that of the best configuration of the highest fidelity so far, at full fidelity.
    """
    budget, spent = trials * function.rungs[-1], 0
    found: list[float] = []
    level, best, incumbent = -1, np.inf, np.empty(0)
    with closing(asking):  # type: ignore[type-var]
        for point, rounds, tell in asking:
            if spent + rounds > budget:
                break
            loss = function.loss(point, rounds)
            spent += rounds
            if (rounds > level) or (rounds == level and loss < best):
                level, best, incumbent = rounds, loss, point
            tell(loss)
            while len(found) < len(PARTS) - 1 and spent >= PARTS[len(found)] * budget:
                found.append(function.loss(incumbent, function.rungs[-1]) - function.lowest)
    found.append(function.loss(incumbent, function.rungs[-1]) - function.lowest)
    return found


def function_of(name: str) -> Function:
    """Return a function by its name, or an environment by its id."""
    if name == "Hartmann6":
        return synthetic(name, hartmann, 6, -3.322368)
    return synthetic(name, branin, 2, 0.397887) if name == "Branin" else stored(name)


def both(job: tuple[str, str, Path, int, int]) -> tuple[Array, Array]:
    """Return (seeds, parts) regrets of ours and of theirs; runs in a process of its own."""
    agent, name, python, seeds, trials = job
    function = function_of(name)
    own = [regrets(ours(agent, function, s), function, trials) for s in range(seeds)]
    peer = [regrets(theirs(python, agent, function, s), function, trials) for s in range(seeds)]
    return np.array(own), np.array(peer)


def row_of(name: str, agent: str, own: Array, peer: Array) -> list[str]:
    """Return a row of the table, which says whether ours is worse beyond the interval."""
    means = zip(own.mean(axis=0), peer.mean(axis=0), strict=True)
    row = [f"`{agent}`", name, *(f"{number(us)} / {number(them)}" for us, them in means)]
    # Seeds of ours and theirs have nothing in common: both are drawn anew.
    rng = np.random.default_rng(0)
    draws = [
        side[rng.integers(len(side), size=(RESAMPLES, len(side))), -1].mean(axis=1)
        for side in (own, peer)
    ]
    low, high = np.quantile(draws[0] - draws[1], (0.025, 0.975))
    return [*row, f"{number(low)} to {number(high)}", "worse" if low > 0 else ""]


def versions(agents: Sequence[str], pythons: Mapping[str, Path | None]) -> dict[str, str]:
    """Return the package and version of the peer of each agent whose package is there."""
    found = {}
    for agent in agents:
        if python := pythons[agent]:
            done = subprocess.run(
                [python, PEER, agent], capture_output=True, text=True, check=False
            )
            if not done.returncode:
                found[agent] = f"{PEERS[agent][0]} {done.stdout}"
    return found


def main(argv: Sequence[str] | None = None) -> str:
    """Compare, and write the page."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--peer", type=Path, help="interpreter that has the authors' packages")
    parser.add_argument("--peer-of", action="append", default=[], metavar="AGENT=PYTHON")
    parser.add_argument("--agents", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--functions", nargs="+", default=FUNCTIONS, help="or ids")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trials", type=int, default=40, help="budget, in trials of all rounds")
    options = parser.parse_args(argv)
    pythons: dict[str, Path | None] = dict.fromkeys(options.agents, options.peer)
    pythons |= {
        name: Path(path) for name, _, path in (one.partition("=") for one in options.peer_of)
    }
    there = versions(options.agents, pythons)
    skipped = [f"`{agent}` ({PEERS[agent][0]})" for agent in options.agents if agent not in there]
    todo = [
        (agent, name, pythons[agent], options.seeds, options.trials)
        for agent in there
        for name in options.functions
    ]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        found = zip(todo, pool.map(both, todo), strict=True)
        rows = [row_of(name, agent, *regrets) for (agent, name, *_), regrets in found]
    return measuring.write_report(
        options,
        "Agents beside their authors' packages",
        f"Packages: {', '.join(dict.fromkeys(there.values())) or 'none'}. Skipped, because the "
        f"package was not there: {', '.join(skipped) or 'none'}.",
        f"Means of the regret over {options.seeds} seeds, ours / theirs, after a quarter, a half "
        f"and all of a budget of {options.trials} trials of all rounds. The regret is that of "
        "the best configuration of the highest fidelity so far. Every trial pays all its "
        "rounds. The interval is the 95 % bootstrap interval of ours minus theirs at the end; "
        "ours is worse where all of it is above zero.",
        measuring.table(["agent", "function", "25 %", "50 %", "100 %", "difference", ""], rows),
    )


if __name__ == "__main__":
    measuring.run(main)
