"""Run records as studies of Optuna, for its plots and dashboard, and as a pandas DataFrame.

`fedhpo-gym export` calls `to_optuna`, and users call `load_runs` (`fedhpo_gym.load_runs`). Records
may have been edited or written by other programs, so their values are checked against the search
space before anything is written (`check_values`).
"""

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
from fedhpo_gym.records.runs import CourseProgress, problem_of, run_arguments
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

    `check_values` must have accepted the records.

    Each trial of a run is a trial of Optuna. A run of a round environment is one trial, whose
    intermediate values are the losses of its course. Values are those reported to the agent;
    noise-free values, fidelity, seed and simulated seconds are user attributes. Trials that
    diverged have the state FAIL and no value, because 3.4e38 would distort every plot.
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
        runs.setdefault(_study_name(record), []).append(record)
    # Written beside the file and renamed, so that it appears complete. Without syncing each trial,
    # which a rename makes useless, a trial takes a tenth of a second less.
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        unfinished = Path(folder) / file.name
        storage = optuna.storages.RDBStorage(f"sqlite:///{unfinished}")
        event.listen(storage.engine, "connect", lambda db, _: db.execute("PRAGMA synchronous=OFF"))
        storage.engine.dispose()
        with quiet():
            for name, of_study in tqdm(runs.items(), desc="export", unit="study", disable=None):
                _write_study(storage, name, of_study)
        storage.engine.dispose()
        unfinished.rename(file)
    return list(runs)


def check_values(path: Path, record: RunRecord) -> None:
    """Refuse a record whose values no environment returns, such as one that was edited.

    Raises:
        DamagedDataError: it names the file.
    """
    space = _space_of(record)
    try:
        # SQLite cannot store half of a surrogate pair.
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


def _write_study(
    storage: "optuna.storages.BaseStorage", name: str, runs: Sequence[RunRecord]
) -> None:
    """Write the runs of an agent on a problem as one study."""
    import optuna

    names = _value_names(runs[0])
    maximised = {n for n in names if n in OBJECTIVES and not OBJECTIVES[n].minimize}
    directions = [
        optuna.study.StudyDirection["MAXIMIZE" if n in maximised else "MINIMIZE"] for n in names
    ]
    study_id = storage.create_new_study(directions, name)
    storage.set_study_system_attr(study_id, "study:metric_names", list(names))
    arguments = json.dumps(problem_of(runs[0].header), sort_keys=True)
    storage.set_study_user_attr(study_id, "arguments", arguments)
    spaces = _distributions(runs)
    for record in runs:
        is_course = "step" in record.final.incumbent
        for step in [record.final] if is_course else record.steps:
            course = record.steps if is_course else ()
            storage.create_new_trial(study_id, _make_trial(record, step, spaces, course))


def _study_name(record: RunRecord) -> str:
    header = record.header
    arguments = {k: v for k, v in problem_of(header).items() if k != "task"}
    settings = ", ".join(f"{name}={value}" for name, value in sorted(arguments.items()))
    return f"{header.id}{f' ({settings})' if settings else ''}: {header.agent}"


def _value_names(record: RunRecord) -> tuple[str, ...]:
    """Return the objectives that are the values of a trial: all of a vector, else the first."""
    first = record.steps[0]
    names = tuple(first.objectives)
    return names if isinstance(first.reward, Sequence) else names[:1]


def _make_trial(
    record: RunRecord, step: StepRecord, spaces: Mapping[str, Any], course: Sequence[StepRecord]
) -> "optuna.trial.FrozenTrial":
    """Return one trial; of a course, that of its end, with the loss after each step."""
    import optuna

    names = _value_names(record)
    values = [float(step.objectives[name]) for name in names]
    diverged = step.true_objectives.get("val_loss", 0.0) >= LARGEST
    parameters = {name: step.configuration[name] for name in spaces if name in step.configuration}
    rounds = int(step.fidelity.get("round", 0))
    intermediate = {i: float(other.objectives[names[0]]) for i, other in enumerate(course, start=1)}
    if not course and rounds and len(names) == 1 and not diverged:
        intermediate = {rounds: values[0]}
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
        intermediate_values={} if diverged else intermediate,
    )


def _distributions(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the distribution of each hyperparameter: of the task's space, else of the values."""
    values_by_name: dict[str, list[Any]] = {}
    for record in records:
        for step in record.steps:
            for name, value in step.configuration.items():
                values_by_name.setdefault(name, []).append(value)
    space = _space_of(records[0])
    return {
        name: _from_dimension(space[name])
        if space is not None and name in space
        else _from_values(values)
        for name, values in values_by_name.items()
    }


def _space_of(record: RunRecord) -> SearchSpace | None:
    """Return the search space of a run's task; None where its id has no task."""
    try:
        return get_task(str(record.header.kwargs.get("task", ""))).space
    except FedHPOError:
        return None


def _from_dimension(dimension: Dimension) -> Any:
    import optuna

    if dimension.kind == "category":
        return optuna.distributions.CategoricalDistribution(dimension.values or ())
    low, high, log = dimension.low, dimension.high, dimension.log
    if dimension.kind == "int":
        return optuna.distributions.IntDistribution(int(low), int(high), log=log)
    return optuna.distributions.FloatDistribution(low, high, log=log)


def _from_values(values: Sequence[Any]) -> Any:
    import optuna

    if any(isinstance(value, str) for value in values):
        return optuna.distributions.CategoricalDistribution(sorted({*values}, key=str))
    return optuna.distributions.FloatDistribution(float(min(values)), float(max(values)))


VARIANT: Final = ("algorithm", "alpha", "preprocessing", "precision", "table", "instances")
"""Arguments that identify the variant of a problem."""


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
    rows = [row for _, record in records for row in _trial_rows(record, named, reasons)]
    for reason in reasons:
        warnings.warn(reason, stacklevel=2)
    return pd.DataFrame(rows)


def _trial_rows(
    record: RunRecord, named: Mapping[str, Any] | None, reasons: dict[str, None]
) -> Iterator[dict[str, Any]]:
    """Yield a row per trial; reasons of unknown regrets are added to `reasons`."""
    header, unknown = record.header, np.full(len(record.steps), np.nan)
    regret = relative = volumes = unknown
    is_vector = isinstance(record.final.reward, Sequence)
    try:
        result = regret_of(record, named=named)
        regret, relative = result.regret, result.relative
        if is_vector:
            volumes = hypervolume_regret_of(record, named=named)[1]
    except FedHPOError as error:
        if may_be_known(header):
            reasons[f"a regret on {header.id} is unknown, and NaN here: {error}"] = None
    course = CourseProgress.of(record)
    returns = None if course is None else course.returns
    shared = {
        "id": header.id,
        "variant": ", ".join(f"{n}={header.kwargs[n]}" for n in VARIANT if n in header.kwargs),
        "arguments": json.dumps(run_arguments(header), sort_keys=True),
        "fingerprint": header.fingerprint,
        "agent": header.agent,
        "seed": header.seed,
    }
    for index, step in enumerate(record.steps):
        violation = float(step.extra.get("violation", 0.0))
        groups = {
            "fidelity": step.fidelity,
            "configuration": step.configuration,
            "heard": step.objectives,
            "true": step.true_objectives,
            "test": {"loss": math.nan, "accuracy": math.nan, **step.test},
        }
        yield {
            **shared,
            "trial": index + 1,
            **{
                f"{group}.{name}": v
                for group, values in groups.items()
                for name, v in values.items()
            },
            "violation": violation,
            "feasible": violation == 0.0,
            "incumbent": step.best_step,
            "regret": float(regret[index]),
            "relative_regret": float(relative[index]),
            **({"hypervolume_regret": float(volumes[index])} if is_vector else {}),
            **({} if returns is None else {"return": float(returns[index])}),
            "trial_s": step.cost["time_s"],
            "elapsed_s": step.elapsed_s,
        }
