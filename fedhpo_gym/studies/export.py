"""Run records as studies of Optuna: its pictures and its dashboard then show them."""

import json
import math
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from tqdm import tqdm

from fedhpo_gym.analysis.problems import LARGEST
from fedhpo_gym.core.checks import INT_END, Range, coerce
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    require_optional,
)
from fedhpo_gym.objectives import OBJECTIVES
from fedhpo_gym.records.files import read_folder
from fedhpo_gym.records.record import RunRecord, StepRecord, to_dict
from fedhpo_gym.records.runs import Course, problem_of, run_arguments
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.studies.regret import (
    hypervolume_regret_of,
    may_be_known,
    regret_of,
    validate_values,
)
from fedhpo_gym.tasks import get_task

if TYPE_CHECKING:
    import optuna

_Rounds = Annotated[int, Range(0, INT_END - 1)]  # what SQLite stores


def to_optuna(records: Sequence[RunRecord], file: Path) -> list[str]:
    """Write runs into a new file of Optuna's: a study per problem and agent, with all its seeds.

    `check_values` has seen the records.

    A trial of ours is one of theirs. A run of a round environment is one trial, whose intermediate
    values are the losses of its course. Values are what the agent heard; what they truly are,
    fidelity, seed and simulated seconds are attributes for users. Trials that diverged have failed
    and carry no value, since 3.4e38 would be all that a picture shows.
    """
    with require_optional("studies of Optuna", "optuna", "agents", "optuna"):
        import optuna
        from sqlalchemy import event

        from fedhpo_gym.agents.optuna_agents import quiet
    if not records:
        raise InvalidArgumentError("`records` must hold at least one run, got none")
    if file.exists():
        raise InvalidArgumentError(f"`file` must be new, got {file}; delete it or name another")
    runs: dict[str, list[RunRecord]] = {}
    for record in records:
        runs.setdefault(_name(record), []).append(record)
    # Beside the file, so that it appears whole; what is of no use after a fall of power is not
    # waited for, which takes a tenth of a second a trial.
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        half = Path(folder) / file.name
        storage = optuna.storages.RDBStorage(f"sqlite:///{half}")
        event.listen(storage.engine, "connect", lambda db, _: db.execute("PRAGMA synchronous=OFF"))
        storage.engine.dispose()
        with quiet():
            for name, of in tqdm(runs.items(), desc="export", unit="study", disable=None):
                _write(storage, name, of)
        storage.engine.dispose()
        half.rename(file)
    return list(runs)


def check_values(path: Path, record: RunRecord) -> None:
    """Refuse a record whose values no environment returns, such as one that was edited.

    Raises:
        DamagedDataError: it names the file.
    """
    space = _space_of(record)
    try:
        # Half of a surrogate pair is no name in SQLite.
        for content in (to_dict(record.header), *map(to_dict, record.steps)):
            json.dumps(content, ensure_ascii=False).encode("utf-8")
        for step in record.steps:
            if space is not None:
                validate_values(space, step.configuration)
            coerce("fidelity['round']", step.fidelity.get("round", 0), _Rounds)
    except (InvalidArgumentError, UnicodeEncodeError) as error:
        raise DamagedDataError(
            f"{path}: {str(error).rstrip('.')}; leave the file out, or delete it and run its "
            "`fedhpo-gym run` again"
        ) from error


def _write(storage: "optuna.storages.BaseStorage", name: str, runs: Sequence[RunRecord]) -> None:
    """Write the runs of an agent on a problem as one study."""
    import optuna

    names = _valued(runs[0])
    rising = {one for one in names if one in OBJECTIVES and not OBJECTIVES[one].minimize}
    ways = [optuna.study.StudyDirection["MAXIMIZE" if n in rising else "MINIMIZE"] for n in names]
    number = storage.create_new_study(ways, name)
    storage.set_study_system_attr(number, "study:metric_names", list(names))
    arguments = json.dumps(problem_of(runs[0].header), sort_keys=True)
    storage.set_study_user_attr(number, "arguments", arguments)
    spaces = _distributions(runs)
    for record in runs:
        is_course = "step" in record.final.incumbent
        for step in [record.final] if is_course else record.steps:
            course = record.steps if is_course else ()
            storage.create_new_trial(number, _trial(record, step, spaces, course))


def _name(record: RunRecord) -> str:
    header = record.header
    told = {k: v for k, v in problem_of(header).items() if k != "task"}
    more = ", ".join(f"{name}={value}" for name, value in sorted(told.items()))
    return f"{header.id}{f' ({more})' if more else ''}: {header.agent}"


def _valued(record: RunRecord) -> tuple[str, ...]:
    """Return the objectives that are the values of a trial: all of a vector, else the first."""
    first = record.steps[0]
    names = tuple(first.objectives)
    return names if isinstance(first.reward, Sequence) else names[:1]


def _trial(
    record: RunRecord, step: StepRecord, spaces: Mapping[str, Any], course: Sequence[StepRecord]
) -> "optuna.trial.FrozenTrial":
    """Return one trial; of a course, that of its end, with the loss after each step."""
    import optuna

    names = _valued(record)
    values = [float(step.objectives[name]) for name in names]
    diverged = step.true_objectives.get("val_loss", 0.0) >= LARGEST
    parameters = {name: step.configuration[name] for name in spaces if name in step.configuration}
    rounds = int(step.fidelity.get("round", 0))
    between = {i: float(one.objectives[names[0]]) for i, one in enumerate(course, start=1)}
    if not course and rounds and len(names) == 1 and not diverged:
        between = {rounds: values[0]}
    true = {f"true {n}": v for n, v in step.true_objectives.items() if step.truth is not None}
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.FAIL if diverged else optuna.trial.TrialState.COMPLETE,
        values=None if diverged else values,
        params=parameters,
        distributions={name: spaces[name] for name in parameters},
        user_attrs={
            "seed": record.header.seed,
            "elapsed_s": step.elapsed_s,
            **{f"fidelity {name}": value for name, value in step.fidelity.items()},
            **{name: v for name, v in step.objectives.items() if name not in names},
            **true,
        },
        system_attrs=(
            {"constraints": [float(step.extra["violation"])]} if "violation" in step.extra else {}
        ),
        intermediate_values={} if diverged else between,
    )


def _distributions(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what each hyperparameter is drawn from: the task's space, else what was seen."""
    seen: dict[str, list[Any]] = {}
    for record in records:
        for step in record.steps:
            for name, value in step.configuration.items():
                seen.setdefault(name, []).append(value)
    space = _space_of(records[0])
    return {
        name: _of_dimension(space[name])
        if space is not None and name in space
        else _of_values(values)
        for name, values in seen.items()
    }


def _space_of(record: RunRecord) -> SearchSpace | None:
    """Return the search space of a run's task; None where its id has no task."""
    try:
        return get_task(str(record.header.kwargs.get("task", ""))).space
    except FedHPOError:
        return None


def _of_dimension(dimension: Dimension) -> Any:
    import optuna

    if dimension.kind == "category":
        return optuna.distributions.CategoricalDistribution(dimension.values or ())
    low, high, log = dimension.low, dimension.high, dimension.log
    if dimension.kind == "int":
        return optuna.distributions.IntDistribution(int(low), int(high), log=log)
    return optuna.distributions.FloatDistribution(low, high, log=log)


def _of_values(values: Sequence[Any]) -> Any:
    import optuna

    if any(isinstance(value, str) for value in values):
        return optuna.distributions.CategoricalDistribution(sorted({*values}, key=str))
    return optuna.distributions.FloatDistribution(float(min(values)), float(max(values)))


VARIANT: Final = ("algorithm", "alpha", "preprocessing", "precision", "table", "instances")
"""Arguments that say which variant of a problem was solved."""


def load_runs(folder: str | Path, named: Mapping[str, Any] | None = None) -> Any:
    """Return all run records of a folder as a pandas DataFrame, one row a trial.

    ======================= ====================================================================
    column                  meaning
    ======================= ====================================================================
    `id`, `variant`         the environment, and which variant of its problem; "" is the default
    `arguments`             what it was made with, as JSON, with `workers` of more than one and
                            `shared_start`: runs of one `seed` that differ here are different runs
    `fingerprint`           of the numbers that answered
    `agent`, `seed`         who ran it
    `trial`                 number of the trial (or step), from 1
    `fidelity.*`            rounds and client sample rate
    `configuration.*`       hyperparameters, in natural units
    `heard.*`, `true.*`     every objective as the agent heard it, and as it truly is
    `test.*`                metrics on test data; NaN where nobody knows loss or accuracy
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
        named: what a record may not decide and its regret needs, such as
            `{"algorithm": "module:Class"}`, or a list of them, or `{"objectives":
            ["module:name"]}`; each counts for the records that name such a thing. A warning says
            where one is missing.
    """
    with require_optional("tables of runs", "pandas", "data", "pandas"):
        import pandas as pd
    reasons: dict[str, None] = {}
    records = read_folder([Path(folder)])
    rows = [row for _, record in records for row in _rows(record, named, reasons)]
    for reason in reasons:
        warnings.warn(reason, stacklevel=2)
    return pd.DataFrame(rows)


def _rows(
    record: RunRecord, named: Mapping[str, Any] | None, reasons: dict[str, None]
) -> Iterator[dict[str, Any]]:
    """Yield a row a trial; `reasons` gets why a regret is unknown."""
    header, unknown = record.header, np.full(len(record.steps), np.nan)
    regret = relative = volumes = unknown
    is_vector = isinstance(record.final.reward, Sequence)
    try:
        found = regret_of(record, named=named)
        regret, relative = found.regret, found.relative
        if is_vector:
            volumes = hypervolume_regret_of(record, named=named)[1]
    except FedHPOError as error:
        if may_be_known(header):
            reasons[f"a regret on {header.id} is unknown, and NaN here: {error}"] = None
    course = Course.of(record)
    returns = None if course is None else course.returns
    about = {
        "id": header.id,
        "variant": ", ".join(f"{n}={header.kwargs[n]}" for n in VARIANT if n in header.kwargs),
        "arguments": json.dumps(run_arguments(header), sort_keys=True),
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
            "test": {"loss": math.nan, "accuracy": math.nan, **step.test},
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
            **({"hypervolume_regret": float(volumes[number])} if is_vector else {}),
            **({} if returns is None else {"return": float(returns[number])}),
            "trial_s": step.cost["time_s"],
            "elapsed_s": step.elapsed_s,
        }
