"""A table of finished courses, as CSV, Parquet or a data frame, becomes a problem with numbers.

`fedhpo_gym.import_results` calls `import_frame`. It renames the columns, checks every value, groups
the rows into courses, and hands these to `write_results` of `building/results.py`, which writes
the numbers. Beside them it writes a task file (`tasks/results.py`), through which the problem gets
its id. Every error says which column or row is wrong, and how to mend it. pandas is needed here,
and nowhere else in `building`.
"""

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import tomli_w
from numpy.typing import NDArray

from fedhpo_gym.building.results import PSEUDO, UNMEASURED, ImportedCourse, Results, write_results
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.core.checks import Range, coerce_record, short_repr, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.files import load_toml, new_text
from fedhpo_gym.core.identity import IMPORTED
from fedhpo_gym.data.frames import NUMBER, NUMBER_MARKS, read_frame, separator_advice
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.stored.pool import Pool
from fedhpo_gym.stored.table import Sample
from fedhpo_gym.tasks.own import ENV_VAR, SUFFIX, own_folder
from fedhpo_gym.tasks.results import ResultsFile

ROUND, RATE, SEED, CLIENT = "round", "client_sample_rate", "seed", "client"
MEASURED: Final = {f"{s}_{m}": (i, j) for i, s in enumerate(SPLITS) for j, m in enumerate(METRICS)}
SAMPLES: Final = tuple(f"{split}_samples" for split in SPLITS)
LOSS: Final = "val_loss"
MOST_VALUES: Final = 50
"""Values of a hyperparameter that a task file lists; of more, it says the ends."""
WIDE: Final = 100.0
"""Positive values are on a logarithmic scale if the highest is as many times the lowest."""


@validate_call
def import_frame(
    data: Any,
    name: str,
    parameters: Annotated[int, Range(1)],
    *,
    clients: Annotated[int, Range(1)] | None = None,
    classes: Annotated[int, Range(2)] = 2,
    rounds: Annotated[int, Range(1)] | None = None,
    columns: Mapping[str, str] | None = None,
    leave_out: Sequence[str] = (),
    version: Annotated[int, Range(0)] = 0,
    budget_s: float = 21_600.0,
    citation: str = "results of your own",
    folder: Path | None = None,
) -> tuple[Path, Path]:
    """Write a task file and the numbers of a table of results; return it and the card.

    Args:
        data: a path of a CSV or Parquet file, or a pandas DataFrame. A row is what one course, or
            one client of it, had after a round. `round`, `client_sample_rate`, `seed`, `client`,
            metrics such as `val_loss` and counts such as `val_samples` have these names; all other
            columns are hyperparameters.
        name: what ids call it: `FedHPO-Results-<name>-v<version>`.
        parameters: numbers of the model, all of which travel in a round.
        clients: of the federation; not needed where a column tells them apart.
        classes: how many are told apart; the loss of guessing follows.
        rounds: of every course, where no column says it.
        columns: their names of columns -> ours.
        leave_out: columns that mean nothing here.
        version: raised when the results change.
        budget_s: simulated seconds of one run of an optimizer.
        citation: where the results are from.
        folder: of the numbers; by default that of the user's own tables.

    Raises:
        InvalidArgumentError: a column is missing, or a value is none that it can have.
        MissingDataError: there is no such file.
        MissingDependencyError: pandas is not installed.
    """
    frame = _rename_columns(read_frame(data), columns or {}, leave_out, rounds)
    hyperparameters = [
        column for column in frame if column not in KNOWN and frame[column].nunique() > 1
    ]
    if not hyperparameters:
        raise InvalidArgumentError(
            f"`data` must have a hyperparameter that varies, got the columns {list(frame)}"
        )
    frame = _with_shared_seed(frame, hyperparameters)
    metric_columns = [column for column in MEASURED if column in frame]
    samples, lacks = _client_samples(frame), _list_gaps(frame)
    results_file = ResultsFile(
        name=name,
        parameters=parameters,
        clients=_count_clients(frame, clients),
        classes=classes,
        rounds=sorted(map(int, frame[ROUND].unique())),
        client_sample_rates=sorted(map(float, frame[RATE].unique())),
        seeds=sorted(samples),
        space={column: _describe_dimension(column, frame[column]) for column in hyperparameters},
        version=version,
        budget_s=budget_s,
        citation=citation,
    )
    _check_metrics(frame, metric_columns)
    require_writable(own_folder(), f"`{ENV_VAR}` (else `XDG_DATA_HOME`, else ~/.local/share)")
    task = results_file.task
    _format_task_file(results_file)  # what does not fit is refused before anything is computed
    names = tuple(hyperparameters)
    courses = _group_courses(frame, names, metric_columns, results_file.rounds)
    constant = {c: str(frame[c].iloc[0]) for c in frame if c not in (*KNOWN, *names)}
    card_entries = {IMPORTED: {"from": "a table of results", "fixed": constant}}
    results = Results(
        task, names, courses, tuple(results_file.rounds), samples, None, lacks, card_entries
    )
    path = own_folder() / f"{task.key}{SUFFIX}"

    def task_file(digest: str) -> AbstractContextManager[None]:
        return new_text(path, _format_task_file(replace(results_file, numbers_sha256=digest)))

    # On the disk before numbers replace others, and read only with the numbers that it names.
    card = write_results(results, folder, task_file)
    if note := _describe_coverage(card, frame[[*hyperparameters, RATE, SEED]].drop_duplicates()):
        warnings.warn(note, stacklevel=2)
    return path, card


KNOWN: Final = frozenset({ROUND, RATE, SEED, CLIENT, *MEASURED, *SAMPLES})


def _rename_columns(
    frame: Any, columns: Mapping[str, str], leave_out: Sequence[str], rounds: int | None
) -> Any:
    """Return a frame whose columns have our names, with those that have defaults."""
    for column in (*columns, *leave_out):
        if column not in frame:
            raise InvalidArgumentError(
                f"`data` must have the column {column!r}, got {list(frame)}."
                f"{separator_advice(column, frame)}"
            )
    frame = frame.drop(columns=list(leave_out)).rename(columns=dict(columns))
    bare = {metric: f"val_{metric}" for metric in METRICS if f"val_{metric}" not in frame}
    frame = frame.rename(columns=bare)
    if len({*frame}) < len(list(frame)):
        raise InvalidArgumentError(f"`columns` must give different names, got {list(frame)}")
    if twice := [metric for metric in METRICS if metric in frame]:
        raise InvalidArgumentError(
            f"`data` must have one column of {twice[0]!r}, got 'val_{twice[0]}', too. Leave one "
            "of them out."
        )
    if ROUND not in frame and rounds is None:
        raise InvalidArgumentError(
            "`rounds` must say how long courses were trained, where no column `round` does"
        )
    if LOSS not in frame:
        raise InvalidArgumentError(
            f"`data` must have a column `val_loss`, got {list(frame)}."
            f"{separator_advice(LOSS, frame)}"
        )
    for column, value in ((ROUND, rounds), (RATE, 1.0), (SEED, 0), (CLIENT, "all")):
        if column not in frame:
            frame[column] = value
    _check_kinds(frame)
    return frame


def _with_shared_seed(frame: Any, hyperparameters: Sequence[str]) -> Any:
    """Return a frame of one seed where no configuration was run under two.

    A pool answers under one seed, because luck would decide between configurations of two. Where
    each trial had a seed of its own, luck has decided already, and every pool would hold one trial.
    """
    courses = frame[[*hyperparameters, RATE, SEED]].drop_duplicates()
    counts = frame.groupby(CLIENT)[[name for name in SAMPLES if name in frame]].nunique()
    repeated = courses.duplicated([*hyperparameters, RATE]).any()
    if frame[SEED].nunique() == 1 or repeated or (counts > 1).any(axis=None):
        return frame
    warnings.warn(
        f"No configuration was run under two of the {frame[SEED].nunique():,} seeds, so all "
        f"{len(courses):,} courses answer together, under seed 0: differences between "
        "configurations include the noise of seeds.",
        stacklevel=2,
    )
    return frame.assign(**{SEED: 0})


def _describe_coverage(card: Path, courses: Any) -> str:
    """Return which courses answer where they are of several seeds; "" where all do.

    Args:
        card: of the numbers.
        courses: a frame with one row for each, and the columns of hyperparameters, rate and seed.
    """
    coverage = "" if card.name.endswith(".table.json") else Pool(Sample(card)).coverage
    axes = [sorted(courses[name].unique().tolist()) for name in courses]
    size = math.prod(map(len, axes))
    if not coverage or size > 2 * len(courses):  # no grid with holes, but points in a space
        return coverage
    present = set(courses.itertuples(index=False, name=None))
    holes = (cell for cell in itertools.product(*axes) if cell not in present)
    first = [f"{dict(zip(courses, cell, strict=True))}" for cell in itertools.islice(holes, 3)]
    lack = f"The grid lacks {size - len(courses):,} of {size:,} courses: "
    lack += "; ".join([*first, "..."] if size - len(courses) > len(first) else first)
    return (
        f"{coverage} {lack if first else 'Some courses have fewer rounds than others'}. Fill the "
        "gaps, or leave out the values that have them, and import again: a complete grid answers "
        "with means over seeds."
    )


def _check_kinds(frame: Any) -> None:
    """Refuse holes, and words in the place of numbers; whole numbers become int64."""
    for column in frame:
        if column not in MEASURED and frame[column].isna().any():
            raise InvalidArgumentError(
                f"`data` must have a value in each row of {column!r}, got none in "
                f"{int(frame[column].isna().sum()):,} of {len(frame):,}. Fill it in, also where it "
                "has no effect, or leave the column out by `leave_out`."
            )
        cells = frame[column]
        if column in KNOWN - {CLIENT} and cells.dtype.kind not in "if":
            odd = next((x for x in cells.dropna() if not NUMBER.fullmatch(x)), cells.iloc[0])
            raise InvalidArgumentError(
                f"`data` must have numbers in {column!r}, got {odd!r:.40}. Write them as 1234.5."
            )
        if column in (ROUND, SEED, *SAMPLES):
            if not (is_whole := (cells % 1 == 0) & (cells.abs() < 2**53)).all():
                raise InvalidArgumentError(
                    f"`data` must have whole numbers in {column!r}, got "
                    f"{cells[~is_whole].iloc[0]:g}"
                )
            frame[column] = cells.astype(np.int64)


def _count_clients(frame: Any, num_clients: int | None) -> int:
    num_in_column = int(frame[CLIENT].nunique())
    if num_clients is None and num_in_column == 1:
        raise InvalidArgumentError(
            "`clients` must say how many the federation has where no column `client` tells two or "
            "more apart, got None"
        )
    if num_clients not in (None, num_in_column) and num_in_column > 1:
        raise InvalidArgumentError(
            f"`clients` must be left out where a column tells {num_in_column} apart, got "
            f"{num_clients}"
        )
    return num_clients or num_in_column


def _list_gaps(frame: Any) -> dict[str, str]:
    """Return what the results do not say, and why."""
    lacks = {n: f"the imported results have no column {n!r}" for n in MEASURED if n not in frame}
    if frame[CLIENT].nunique() == 1:
        lacks["clients"] = "the imported results hold means over clients only"
    if not {*SAMPLES} <= {*frame}:
        lacks["samples"] = f"the imported results lack one of the columns {', '.join(SAMPLES)}"
    return lacks


def _client_samples(frame: Any) -> dict[int, NDArray[np.int64]]:
    """Return (clients, splits) samples by seed; equally many where the results do not say it."""
    counts_by_seed, clients = {}, int(frame[CLIENT].nunique())
    for seed, rows in frame.groupby(SEED):
        counts = np.full((clients, len(SPLITS)), PSEUDO, np.int64)
        for column, name in enumerate(SAMPLES):
            if name in frame:
                each = rows.groupby(CLIENT)[name]
                if (each.nunique() > 1).any() or len(each) != clients or rows[name].min() < 0:
                    raise InvalidArgumentError(
                        f"`data` must say one count of {name!r} for every client of a seed"
                    )
                counts[:, column] = each.first()
        counts_by_seed[int(seed)] = counts
    return counts_by_seed


def _check_metrics(frame: Any, metric_columns: Sequence[str]) -> None:
    """Refuse values that no metric has, and accuracies that are no share of the samples."""
    for name in metric_columns:
        values, is_loss = frame[name].to_numpy(np.float64), name.endswith("loss")
        with np.errstate(invalid="ignore"):
            wrong = (values < 0) | ((values > 1) & (not is_loss))
        if wrong.any():
            bounds = "at least 0" if is_loss else "in [0, 1]"
            raise InvalidArgumentError(f"{name!r} must be {bounds}, got {values[wrong][0]:g}")
        samples = name.replace("accuracy", "samples")
        if name == LOSS and not np.isfinite(values).any():
            raise InvalidArgumentError(f"{name!r} must be finite in one row at least, got none")
        if name.endswith("accuracy") and samples in frame:
            counts = frame[samples].to_numpy(np.float64)
            rounding = 5.1e-5 * counts  # of four decimals, as long as they tell hits apart
            close = np.where((rounding > 0.01) & (rounding < 0.25), rounding, 0.01)
            wrong = np.abs(values * counts - np.rint(values * counts)) > close
            if wrong.any():
                raise InvalidArgumentError(
                    f"{name!r} must be a share of {samples!r}, got {values[wrong][0]:g} of "
                    f"{counts[wrong][0]:g}. Write more decimals, or leave {samples!r} out."
                )


def _describe_dimension(name: str, column: Any) -> dict[str, Any]:
    """Return the values of a hyperparameter, and whether their scale is logarithmic."""
    values = sorted(column.unique().tolist())
    if column.dtype.kind not in "if":
        odd = [value for value in values if not NUMBER.fullmatch(value)]
        if odd and all(NUMBER.fullmatch(NUMBER_MARKS.sub("", value)) for value in odd):
            raise InvalidArgumentError(
                f"`data` must have numbers in {name!r} without marks, got {odd[0]!r:.40}. Write "
                "them as 1234.5, and words that are no numbers otherwise, such as 64x32."
            )
        return {"values": list(map(str, values))}
    if not np.isfinite(values).all():
        raise InvalidArgumentError(f"`data` must have finite numbers in {name!r}")
    scale = {"log": _is_geometric(values)}
    many = len(values) > MOST_VALUES
    return {**({"low": values[0], "high": values[-1]} if many else {"values": values}), **scale}


def _is_geometric(values: Sequence[float]) -> bool:
    """Return whether positive values have equal ratios, or span two orders of magnitude."""
    if values[0] <= 0:
        return False
    ratios = np.array(values[1:]) / np.array(values[:-1])
    even = len(values) > 2 and bool(np.ptp(ratios) <= 0.05 * ratios.mean())
    steps = np.diff(values)
    uneven = bool(np.ptp(steps) > 0.05 * steps.mean())
    return (even and uneven) or values[-1] / values[0] >= WIDE


def _group_courses(
    frame: Any, names: tuple[str, ...], metric_columns: Sequence[str], rounds: Sequence[int]
) -> Iterator[ImportedCourse]:
    """Yield the courses: all rows of equal hyperparameters, rate and seed."""
    clients = sorted(frame[CLIENT].unique().tolist())
    ordered = frame.sort_values([ROUND, CLIENT], kind="stable")
    for key, rows in ordered.groupby([*names, RATE, SEED], sort=True):
        course_rounds = rows[ROUND].to_numpy()[:: len(clients)]
        expected = [*itertools.product(rounds[: len(course_rounds)], clients)]
        measured = [*zip(rows[ROUND].tolist(), rows[CLIENT].tolist(), strict=True)]
        if measured != expected:
            twice = [pair for pair, count in Counter(measured).items() if count > 1]
            at, client = twice[0] if twice else min({*expected} - {*measured})
            raise InvalidArgumentError(
                "`data` must have one row for each client and round of a course, and no round left "
                f"out before its last, got {'several' if twice else 'none'} of client {client!r} "
                f"in round {at} of {dict(zip((*names, RATE, SEED), key, strict=True))}"
            )
        metrics = np.tile(UNMEASURED, (len(course_rounds), len(clients), len(SPLITS), 1))
        for name in metric_columns:
            metrics[:, :, *MEASURED[name]] = (
                rows[name].to_numpy(float).reshape(len(course_rounds), -1)
            )
        _check_holes(
            metrics, metric_columns, rows, f"{dict(zip((*names, RATE, SEED), key, strict=True))}"
        )
        values = tuple(v.item() if isinstance(v, np.generic) else v for v in key[:-2])
        yield ImportedCourse(
            values, float(key[-2]), int(key[-1]), course_rounds.astype(np.int64), metrics
        )


def _check_holes(
    metrics: NDArray[np.float64], metric_columns: Sequence[str], rows: Any, course: str
) -> None:
    """Refuse metrics that are missing beside a finite loss, and losses after a divergence."""
    lost = np.asarray((~np.isfinite(metrics[:, :, *MEASURED[LOSS]])).any(axis=1))
    if lost.any() and not lost[lost.argmax() :].all():
        raise InvalidArgumentError(
            f"{LOSS!r} must be finite in no round after one in which it is not, which is a "
            f"divergence, got finite ones in {course}. Fill the gap, or leave the course out."
        )
    for name in metric_columns:
        holes = ~np.isfinite(metrics[~lost][:, :, *MEASURED[name]])
        if holes.any():
            at = int(np.unique(rows[ROUND])[~lost][holes.any(axis=1)][0])
            raise InvalidArgumentError(
                f"{name!r} must be finite wherever {LOSS!r} is, and is not in round {at} of "
                f"{course}. Fill it in, or leave the column out."
            )


def _format_task_file(results_file: ResultsFile) -> str:
    """Return a task file, which has been read again: it says the same."""
    plain = {f.name: getattr(results_file, f.name) for f in fields(results_file)}
    text = tomli_w.dumps({"kind": "results", **plain})
    try:
        content = load_toml(text.encode("utf-8"))
    except ValueError as error:  # a lone surrogate, or thousands of values
        raise InvalidArgumentError(f"`data` must fit into a task file: {error}") from error
    del content["kind"]
    if coerce_record("a task file", ResultsFile, content) != results_file:
        raise InvalidArgumentError(
            f"`data` must fit into a task file, got {short_repr(results_file)}"
        )
    return text
