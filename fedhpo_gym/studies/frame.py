"""Run records as one table: a row a trial, for figures and questions of one's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedhpo_gym.analysis.files import read_folder
from fedhpo_gym.analysis.records import RunRecord
from fedhpo_gym.analysis.runs import Course
from fedhpo_gym.core.errors import FedHPOError, needing
from fedhpo_gym.studies.regret import hypervolume_regret_of, regret_of

VARIANT: Final = ("algorithm", "alpha", "preprocessing", "precision", "instances")
"""Arguments that say which variant of a problem was solved."""


def load_runs(folder: str | Path) -> Any:
    """Return all run records of a folder as a pandas DataFrame, one row a trial.

    ======================= ====================================================================
    column                  meaning
    ======================= ====================================================================
    `id`, `variant`         the environment, and which variant of its problem; "" is the default
    `arguments`             what it was made with, as JSON
    `fingerprint`           of the numbers that answered
    `agent`, `seed`         who ran it
    `trial`                 number of the trial (or step), from 1
    `fidelity.*`            rounds and client sample rate
    `configuration.*`       hyperparameters, in natural units
    `heard.*`, `true.*`     every objective as the agent heard it, and as it truly is
    `test.*`                metrics on test data
    `violation`, `feasible` total violation of constraints, and whether it is 0
    `incumbent`             number of the best feasible trial so far; of the least violation while
                            none is feasible
    `regret`                of the incumbent's configuration at full fidelity, see docs/regret.md;
    `relative_regret`       NaN where nobody knows it
    `hypervolume_regret`    of the trials so far, where rewards are vectors, see docs/regret.md
    `return`                of the course so far, where steps are rounds and rewards are numbers
    `trial_s`, `elapsed_s`  simulated seconds of the trial, and since the start
    ======================= ====================================================================

    Real time is in no record: equal runs are equal files. What a record does not have is missing.

    Args:
        folder: of records, JSON lines or Parquet; or one file.

    Raises:
        MissingDataError: there is no record.
        DamagedDataError: a record is damaged.
        MissingDependencyError: pandas is not installed.
    """
    with needing("tables of runs", "pandas", "data", "pandas"):
        import pandas as pd
    rows = [row for _, record in read_folder([Path(folder)]) for row in _rows(record)]
    return pd.DataFrame(rows)


def _rows(record: RunRecord) -> Iterator[dict[str, Any]]:
    header, unknown = record.header, np.full(len(record.steps), np.nan)
    try:
        found = regret_of(record)
        regret, relative = found.regret, found.relative
    except FedHPOError:
        regret = relative = unknown
    volumes = None
    if isinstance(record.final.reward, Sequence):
        try:
            volumes = hypervolume_regret_of(record)[1]
        except FedHPOError:
            volumes = unknown
    course = Course.of(record)
    returns = None if course is None else course.returns
    about = {
        "id": header.id,
        "variant": ", ".join(f"{n}={header.kwargs[n]}" for n in VARIANT if n in header.kwargs),
        "arguments": json.dumps(header.kwargs, sort_keys=True),
        "fingerprint": header.fingerprint,
        "agent": header.agent,
        "seed": header.seed,
    }
    for number, step in enumerate(record.steps):
        violation = float(step.extra.get("violation", 0.0))
        parts = {
            "fidelity": step.fidelity,
            "configuration": step.configuration,
            "heard": step.objectives,
            "true": step.true_objectives,
            "test": step.test,
        }
        yield {
            **about,
            "trial": number + 1,
            **{f"{part}.{name}": v for part, of in parts.items() for name, v in of.items()},
            "violation": violation,
            "feasible": violation == 0.0,
            "incumbent": step.best_step,
            "regret": float(regret[number]),
            "relative_regret": float(relative[number]),
            **({} if volumes is None else {"hypervolume_regret": float(volumes[number])}),
            **({} if returns is None else {"return": float(returns[number])}),
            "trial_s": step.cost["time_s"],
            "elapsed_s": step.elapsed_s,
        }
