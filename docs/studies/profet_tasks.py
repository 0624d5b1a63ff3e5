"""What `profet_study.py` and its report share: how much is done, and which functions there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.profet import Family, ProfetModel, forrester

Array = NDArray[np.float64]
METHODS = ("random", "de", "optuna-tpe", "bo-rf", "bohamiann", "gp")
"""The paper's order: RS, DE, TPE, SMAC, BOHAMIANN, BO-GP."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {"de": {"members": 10}}
SCENARIOS = ("real", "nine", "generated")
HIGHEST: Mapping[str, tuple[float, float]] = {"paper": (1.0, 1.0), "wavy": (12.0, 24.0)}
"""Ends of alpha and beta: the paper's, and twice Forrester's own 6 and 12."""
Task = Callable[[Array], Array]


@dataclass(frozen=True)
class Study:
    """How much of the paper's study is done."""

    family: str = "paper"
    methods: Sequence[str] = METHODS
    tasks: int = 100
    runs: int = 3
    evaluations: int = 50
    given: int = 9
    steps: int | None = None  # of both fits, the model's defaults where None
    seed: int = 0


def forrester_parameters(
    tasks: int, seed: int = 0, highest: tuple[float, float] = (1.0, 1.0)
) -> Array:
    """Return (T, 2): alpha and beta of the functions that `forrester` has on a grid."""
    return stream(seed, "forrester").random((tasks, 2)) * highest


def forrester_values(parameters: Array, x: Array) -> Array:
    """Return (T, n) values (alpha x - 2)^2 sin(beta x - 4) at (n,) points, or at (T, n) own."""
    alpha, beta = parameters[:, :1], parameters[:, 1:]
    return np.asarray((alpha * x - 2.0) ** 2 * np.sin(beta * x - 4.0))


def given(study: Study) -> Array:
    """Return which of the real tasks are the few that a realistic study has."""
    chosen = stream(study.seed, "given").choice(study.tasks, study.given, replace=False)
    return np.sort(chosen)


def parameters(study: Study) -> Array:
    """Return alpha and beta of all real tasks."""
    return forrester_parameters(study.tasks, study.seed, HIGHEST[study.family])


def family_of(study: Study) -> Family:
    """Return the few real tasks on the Sobol grid."""
    whole = forrester(study.tasks, study.seed, highest=HIGHEST[study.family])
    some = given(study)
    return replace(whole, values=whole.values[some], tasks=tuple(map(str, some)))


def functions(study: Study, out: Path, scenario: str) -> list[Task]:
    """Return the functions of a scenario."""
    if scenario == "generated":
        model = ProfetModel.load(out / f"model-{study.family}")
        return [model.task(i).value for i in range(study.tasks)]
    found = [partial(real, own[None]) for own in parameters(study)]
    return [found[i] for i in given(study)] if scenario == "nine" else found


def real(own: Array, x: Array) -> Array:
    """Return (n,) values of one function, of (1, 2) alpha and beta, at (n, 1) points."""
    return forrester_values(own, x[:, 0])[0]


def runs_of(study: Study, scenario: str) -> int:
    """Return how many runs of a task there are: few tasks have as many runs in all as many."""
    return study.runs * (study.tasks // study.given if scenario == "nine" else 1)
