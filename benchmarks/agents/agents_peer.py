"""One optimizer by its authors, asked over pipes: the other half of `agents_against_authors.py`.

Imports nothing of this suite, so that an interpreter with the authors' package alone can run it.
Every trial is a line on standard output, `[[x, ...], rung]` with x in [0, 1]; the answer is its
loss, or `null` when the budget is spent. Rungs count from 0 and are three times one another.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np

ETA = 3


class Spent(Exception):  # noqa: N818 - no error: how an optimizer's own loop is left
    """The budget is spent."""


class Asking:
    """The function to minimise, at the other end of the pipes."""

    def __init__(self, dimensions: int, rungs: int) -> None:
        """Take how many coordinates a point has, and how many rungs there are."""
        self.dimensions, self.rungs = dimensions, rungs
        self._out = os.fdopen(os.dup(1), "w", buffering=1)

    def __call__(self, point: Any, rung: int | None = None) -> float:
        """Return the loss of a point on a rung, by default the highest."""
        top = self.rungs - 1 if rung is None else int(rung)
        unit = [float(min(max(x, 0.0), 1.0)) for x in point]
        self._out.write(json.dumps([unit, top]) + "\n")
        answer = json.loads(sys.stdin.readline())
        if answer is None:
            raise Spent
        return float(answer)

    @property
    def names(self) -> list[str]:
        """A name for every coordinate."""
        return [f"x{i}" for i in range(self.dimensions)]


def _space(loss: Asking, seed: int) -> Any:
    from ConfigSpace import ConfigurationSpace, Float

    space = ConfigurationSpace(seed=seed)
    space.add([Float(name, (0.0, 1.0)) for name in loss.names])
    return space


def dehb(loss: Asking, seed: int) -> None:
    """DEHB's package, asked and told."""
    from dehb import DEHB

    with tempfile.TemporaryDirectory() as folder:
        made = DEHB(
            f=None, cs=_space(loss, seed), min_fidelity=1, max_fidelity=ETA ** (loss.rungs - 1),
            eta=ETA, n_workers=1, output_path=folder, seed=seed, log_level="ERROR",
        )  # fmt: skip
        while True:
            job = made.ask()
            rung = round(float(np.log(job["fidelity"]) / np.log(ETA)))
            value = loss([job["config"][name] for name in loss.names], rung)
            made.tell(job, {"fitness": value, "cost": 1.0})


def _densities(loss: Asking, seed: int) -> Callable[[int], tuple[list[float], Callable[..., None]]]:
    """Return hpbandster's generator as a function: rung -> a point, and how its loss is told."""
    sys.modules.setdefault("netifaces", ModuleType("netifaces"))  # asked for, and not used
    from hpbandster.core.dispatcher import Job
    from hpbandster.optimizers.config_generators.bohb import BOHB

    np.random.seed(seed)  # noqa: NPY002 - the package draws from the global generator
    made = BOHB(configspace=_space(loss, seed))

    def drawn(rung: int) -> tuple[list[float], Callable[..., None]]:
        config, _ = made.get_config(ETA**rung)

        def told(rung: int, value: float) -> None:
            job = Job((0, 0, 0), config=config, budget=ETA**rung)
            job.result, job.exception, job.timestamps = {"loss": value}, None, {}
            made.new_result(job)

        return [float(config[name]) for name in loss.names], told

    return drawn


def bohb(loss: Asking, seed: int) -> None:
    """Its generator in brackets of Hyperband, as hpbandster counts them."""
    drawn, turn = _densities(loss, seed), 0
    while True:
        below = loss.rungs - 1 - turn % loss.rungs
        number, turn = loss.rungs // (below + 1) * ETA**below, turn + 1
        alive: list[tuple[float, Any]] = []
        for rung in range(loss.rungs - 1 - below, loss.rungs):
            trying = [None] * number if not alive else [one for _, one in alive[:number]]
            alive = []
            for one in trying:
                point, told = drawn(rung) if one is None else one
                value = loss(point, rung)
                told(rung, value)
                alive.append((value, (point, told)))
            alive.sort(key=lambda pair: pair[0])
            number //= ETA


def bo_kde(loss: Asking, seed: int) -> None:
    """The same generator at the highest fidelity only."""
    drawn = _densities(loss, seed)
    while True:
        point, told = drawn(loss.rungs - 1)
        told(loss.rungs - 1, loss(point))


def cma_es(loss: Asking, seed: int) -> None:
    """The package cma with its defaults, from the middle with a quarter of the range; restarts."""
    import cma

    rng, start = np.random.default_rng(seed), np.full(loss.dimensions, 0.5)
    while True:
        options = {"bounds": [0, 1], "seed": int(rng.integers(1, 2**31)), "verbose": -9}
        made = cma.CMAEvolutionStrategy(start, 0.25, options)
        while not made.stop():
            points = made.ask()
            made.tell(points, [loss(point) for point in points])
        start = rng.random(loss.dimensions)


def optuna_tpe(loss: Asking, seed: int) -> None:
    """Optuna's TPE with its defaults."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(lambda t: loss([t.suggest_float(name, 0.0, 1.0) for name in loss.names]))


def bo_rf(loss: Asking, seed: int) -> None:
    """SMAC's facade for hyperparameters: a random forest."""
    from smac import HyperparameterOptimizationFacade, Scenario
    from smac.runhistory.dataclasses import TrialValue

    with tempfile.TemporaryDirectory() as folder:
        scenario = Scenario(
            _space(loss, seed), deterministic=True, n_trials=100, seed=seed, output_directory=folder
        )
        made = HyperparameterOptimizationFacade(
            scenario, lambda _, seed=0: float(seed), overwrite=True, logging_level=40
        )
        while True:
            trial = made.ask()
            value = loss([trial.config[name] for name in loss.names])
            made.tell(trial, TrialValue(cost=value, time=0.1))


PEERS: dict[str, tuple[str, Callable[[Asking, int], None]]] = {
    "dehb": ("dehb", dehb),
    "bohb": ("hpbandster", bohb),
    "bo-kde": ("hpbandster", bo_kde),
    "bo-rf": ("smac", bo_rf),
    "cma-es": ("cma", cma_es),
    "optuna-tpe": ("optuna", optuna_tpe),
}
"""Name of one of our agents -> its authors' package, and the function that runs it."""


def main() -> int:
    """Minimise for one seed, or tell the version of the package of an agent."""
    if len(sys.argv) == 2:
        sys.stdout.write(version(PEERS[sys.argv[1]][0]))
        return 0
    agent, seed, dimensions, rungs = sys.argv[1], *map(int, sys.argv[2:5])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    loss = Asking(dimensions, rungs)
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Spent):
        PEERS[agent][1](loss, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
