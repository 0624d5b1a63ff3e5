"""Problems of one's own, as task files (TOML) say them: read when the package is imported.

A task file describes data beside it; it names no other folder and no code. Its ids are those of a
natural federation.
"""

import hashlib
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import tomli_w

from fedhpo_gym import data
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.core.checks import check_fields, coerce, coerce_record, short_repr, validate_call
from fedhpo_gym.core.errors import (
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    UnknownNameError,
    require_known,
)
from fedhpo_gym.core.files import (
    MAX_TOML_BYTES,
    expand_home,
    load_toml,
    new_text,
    path_exists,
    read_toml,
    sole_writer,
)
from fedhpo_gym.data.frames import CLIENT, LABEL, name_without_endings, read_frame
from fedhpo_gym.data.natural import NaturalTable
from fedhpo_gym.data.own_table import ENCODINGS, SPLITS, OwnSource, OwnTable, inspect_table
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.tasks import natural
from fedhpo_gym.tasks.federated import Task, fidelities
from fedhpo_gym.tasks.results import results_problems

ENV_VAR: Final = "FEDHPO_GYM_TASKS"
SUFFIX: Final = ".toml"
MOST_BYTES: Final = 1 << 21
"""Of all files that an import reads: it shall not be slow, whatever they hold."""
FEWEST_UNSEEN: Final = 5
"""Clients of which three can train while others are left out."""
MANY, AT_ONCE = 1_000, 200
"""From this many clients on, a round samples few of them: at most the second number."""

Maker = Callable[[], Task]


def own_folder() -> Path:
    """Return the folder of task files: `FEDHPO_GYM_TASKS`, else that of the user's data."""
    if folder := os.environ.get(ENV_VAR):
        return expand_home(folder)
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return expand_home(base) / "fedhpo_gym" / "tasks"


def task_files() -> Iterator[Path]:
    """Yield the task files of the user, in the order of their names, up to `MOST_BYTES` in all."""
    folder, total = own_folder(), 0
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    except OSError as error:
        if ENV_VAR in os.environ and not isinstance(error, FileNotFoundError):
            warnings.warn(
                f"`{ENV_VAR}` must name a folder that can be read, got {folder} "
                f"({error.strerror}); its task files are left out",
                stacklevel=2,
            )
        return
    for path in filter(os.path.isfile, paths):
        size = path.stat().st_size
        total += size if size <= MAX_TOML_BYTES else 0  # a larger one is refused before it is read
        if total > MOST_BYTES:
            warnings.warn(
                f"task files from {path} on are left out: those of {folder} have more than "
                f"{MOST_BYTES} bytes; name them to `fedhpo_gym.register_task_file`",
                stacklevel=2,
            )
            return
        yield path


@validate_call
def read_task_file(path: Path) -> Mapping[str, Maker]:
    """Return what makes each problem of a task file, by `<name>-v<version>`; data are not read.

    Raises:
        InvalidArgumentError: an entry is missing, unknown or out of its range.
        MissingDataError: there is no such file, or it cannot be read.
    """
    try:
        return _makers(path, read_toml(path))
    except OSError as error:
        if isinstance(error, FedHPOError):
            raise
        raise MissingDataError(
            f"`path` must be a task file that can be read, got {path} ({error.strerror}); "
            "`fedhpo-gym new` and `fedhpo-gym import` write them"
        ) from error
    except (ValueError, UnknownNameError) as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> InvalidArgumentError:
    return InvalidArgumentError(f"the task file {path} cannot be used: {error}")


def _makers(path: Path, content: dict[str, Any]) -> Mapping[str, Maker]:
    kind = coerce("kind", content.pop("kind", "table"), str)
    require_known("kind of task file", kind, KINDS)
    return KINDS[kind](path, content)


@dataclass(frozen=True)
class TableFile:
    """What a task file says of a table, besides the table itself."""

    rounds: Sequence[int] = natural.ROUNDS
    client_sample_rates: Sequence[float] = (0.1, 1.0)
    space: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        rounds, rates = [*self.rounds], [*self.client_sample_rates]
        if rounds[:1] != [1] or sorted({*rounds}) != rounds:
            raise InvalidArgumentError(
                f"`rounds` must begin with 1 and rise, got {short_repr(rounds)}"
            )
        if len(rates) != 2 or not 0 < rates[0] < rates[1] <= 1:
            raise InvalidArgumentError(
                "`client_sample_rates` must be the lowest and the highest share of the clients, "
                f"such as [0.1, 1.0], got {short_repr(rates)}"
            )
        for model, changes in self.space.items():
            require_known("model of `space`", model, RANGED)
            for name, change in changes.items():
                for entry, value in change.items():
                    require_known(f"entry of {name}", entry, ENTRIES)
                    coerce(f"space.{model}.{name}.{entry}", value, ENTRIES[entry])
                if change.get("high", 0) > (most := LARGEST.get(name, math.inf)):
                    raise InvalidArgumentError(
                        f"`space.{model}.{name}.high` must be at most {most}, got {change['high']}"
                    )

    def apply(self, task: Task, table: OwnTable) -> Task:
        """Return a problem with what is changed of it."""
        values = (
            {"partition": table.partition, "alpha": table.alpha}
            if task.partition != "unseen"
            else {}
        )
        low, high = self.client_sample_rates
        rate = replace(task.fidelity_space["client_sample_rate"], low=low, high=high)
        rounds = tuple(self.rounds) if task.model in RANGED else task.stored_rounds
        return task.variant(
            **values,
            version=table.version,
            citation=table.citation,
            client_space=self._space(task),
            fidelity_space=fidelities(rounds, rate),
            stored_rounds=rounds,
        )

    def _space(self, task: Task) -> SearchSpace:
        changes, space = self.space.get(task.model, {}), task.client_space
        for name in changes:
            require_known("hyperparameter", name, space.names)
        return SearchSpace(tuple(replace(d, **changes.get(d.name, {})) for d in space.dimensions))


ENTRIES: Final[Mapping[str, Any]] = {"low": float, "high": float, "log": bool, "bins": int}
LARGEST: Final = {"model_depth": 16, "model_width": 4096, "batch_size": 65536, "step_size": 1000}
"""The highest values that a task file may tune, where more would never end."""
RANGED: Final = ("LR", "MLP")
"""Models whose ranges and rounds a task file may change."""


def _of_table(path: Path, content: dict[str, Any]) -> Mapping[str, Maker]:
    """Register the data set of a task file, and return what makes its problems."""
    extras = [problem_name.name for problem_name in fields(TableFile)]
    allowed = ["kind", *(problem_name.name for problem_name in fields(OwnTable)), *extras]
    for entry in content:
        require_known("entry of a task file", entry, allowed)
    others = {name: content.pop(name) for name in extras if name in content}
    table = coerce_record("a task file", OwnTable, content)
    extra = coerce_record("a task file", TableFile, others)
    there = data.REGISTERED.get(table.name)
    if isinstance(there, OwnSource) and there.path != path and path_exists(there.path):
        raise InvalidArgumentError(
            f"`name` must be of one task file, {there.path} has {table.name!r}, too; give another"
        )
    name, licence, citation = table.name, table.licence, table.citation
    data.register_source(
        OwnSource(name=name, licence=licence, citation=citation, table=table, path=path)
    )
    like = _like(name)
    ids = (*natural.natural_names(like), *natural.joint_names(like))
    splits = table.client is not None and table.unseen
    names = [problem_name for problem_name in ids if splits or not problem_name.endswith("Unseen")]
    return {
        f"{problem_name}-v{table.version}": partial(_made, path, problem_name, table, extra)
        for problem_name in names
    }


KINDS: Final[dict[str, Callable[[Path, dict[str, Any]], Mapping[str, Maker]]]] = {
    "table": _of_table,
    "results": results_problems,
}
"""What a task file can describe."""


def _like(
    name: str, rows: int = 10, clients: int = 10, classes: int = 2, width: int = 2
) -> NaturalTable:
    """Return what a natural federation of these counts would be described by."""
    return NaturalTable(name, "", "", "", "", (), "", "", rows, clients, classes, width, 0.0, "")


def _made(path: Path, name: str, table: OwnTable, extra: TableFile) -> Task:
    """Read the data, and return the problem of a name."""
    try:
        return _task_of(name, table, extra)
    except (InvalidArgumentError, UnknownNameError) as error:
        raise _unusable(path, error) from error


def _task_of(name: str, table: OwnTable, extra: TableFile) -> Task:
    dataset = data.load_dataset(table.name)
    clients = table.clients or (0 if dataset.users is None else len(np.unique(dataset.users)))
    if name.endswith("Unseen") and clients < FEWEST_UNSEEN:
        raise InvalidArgumentError(
            f"`client` must have {FEWEST_UNSEEN} clients or more where some are never trained on, "
            f"got {clients}; use the id without Unseen"
        )
    rows, width = dataset.features.shape
    like = _like(table.name, rows, clients, dataset.num_classes, width)
    problems = (*natural.natural_tasks(like), *natural.joint_problems(natural.shared_fields(like)))
    return extra.apply(next(task for task in problems if task.name == name), table)


TUNED: Final = (
    *("learning_rate", "weight_decay", "batch_size", "step_size", "rate_decay", "momentum"),
)
"""Hyperparameters that any model has."""


@dataclass(frozen=True, kw_only=True)
class ModelTask(Task):
    """A task whose model is the user's own; `size` counts the parameters of an architecture."""

    size: Callable[..., int] = field(compare=False)

    @property
    def name(self) -> str:
        return super().name + ("Unseen" if self.partition == "unseen" else "")

    def parameters_of(self, configuration: Mapping[str, Value]) -> int:
        return self.size(**{name: configuration[name] for name in self.architecture})

    @classmethod
    def like(
        cls, task: Task, model: str, dimensions: Sequence[Dimension], size: Callable[..., int]
    ) -> "ModelTask":
        """Return the problem of another task, with a model of one's own and what shapes it."""
        values = {field.name: getattr(task, field.name) for field in fields(Task)}
        shared = (one for one in task.client_space.dimensions if one.name in TUNED)
        changed = {
            "model": model,
            "client_space": SearchSpace((*shared, *dimensions)).with_grid(),
            "architecture": tuple(one.name for one in dimensions),
            "num_parameters": size(**{one.name: one.high for one in dimensions}),
            "model_settings": (),
            "settings": (),
            "precision": "float32",
            "precisions": ("float32",),
            "numbers": None,
            "unstored": "raw",
            "tags": task.tags | {"own"},
        }
        return cls(**{**values, **changed, "size": size})


@dataclass(frozen=True)
class NewTask:
    """What `new_task` made.

    Attributes:
        path: of the task file.
        ids: of its trial environments; those of rounds have `DAC-` before the model.
        notes: what was done with the data, a sentence each.
    """

    path: Path
    ids: tuple[str, ...]
    notes: tuple[str, ...]


@validate_call
def write_task(
    source: Any,
    target: str | None = None,
    *,
    client: str | None = None,
    clients: int | None = None,
    name: str | None = None,
    alpha: float | None = None,
    split: str | None = None,
    leave_out: Sequence[str] = (),
    folder: Path | None = None,
    overwrite: bool = False,
) -> NewTask:
    """Write a task file and a copy of the data beside it, and say what was done.

    Args:
        source: a path of a CSV or Parquet file, of LEAF's json or of a folder that Hugging Face's
            `save_to_disk` wrote; a pandas DataFrame; or arrays (features, labels, clients).
        target: column that is predicted; "label" by default.
        client: column with the client of each row; "client" if there is one.
        clients: number of clients to which rows are dealt, if no column names them.
        name: its name in ids, such as "Passed"; by default the file's name.
        alpha: concentration of the labels where rows are dealt; 0.5 by default.
        split: of the rows of a client: "60/20/20", the default, or "80/10/10"; dealt rows are
            always split 80/10/10.
        leave_out: columns that nobody may learn from.
        folder: of the task file; by default the user's, where every later import finds it.
        overwrite: replace a task file of that name.

    Raises:
        InvalidArgumentError: a column is not there, the target is no class, or the name is taken.
        MissingDataError: there is no such file.
        MissingDependencyError: pandas is not installed.
    """
    frame, target = read_frame(source), target or LABEL
    if client is None and clients is None and CLIENT in frame:
        client = CLIENT
    dealing = {"clients": clients, "alpha": alpha} if client is not None else {"split": split}
    for argument, value in dealing.items():
        if value is not None:
            raise InvalidArgumentError(
                f"`{argument}` must be left out where `client` "
                f"{'names a column' if client is not None else 'names none'}, got {value}"
            )
    if client is None and clients is None:
        raise InvalidArgumentError(
            "`client` must name the column with the client of each row, or `clients` to how many "
            f"the rows are dealt, got neither; there are {short_repr([*frame])}"
        )
    if name is None:
        stem = name_without_endings(Path(source)) if isinstance(source, str | Path) else "Own"
        name = "".join(word[:1].upper() + word[1:] for word in _words(stem))
        name = f"Data{name}" if not name[:1].isalpha() else name
    inspected = inspect_table(frame, target, client, leave_out)
    count = clients or (frame[client].nunique() if client else 0)
    # By default pandas writes 100,000 cells at once, which is slow where columns are many.
    text = frame.to_csv(index=False, lineterminator="\n", chunksize=10_000)
    try:
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"`data` must have words in UTF-8: {error}") from error
    table = OwnTable(
        name=name,
        data=f"{name}.csv",
        sha256=digest,
        target=target,
        columns=inspected.columns,
        client=client,
        clients=None if client else clients,
        alpha=0.5 if alpha is None else alpha,
        split=split or "60/20/20",
        rare=inspected.rare,
        unseen=client is not None and count >= FEWEST_UNSEEN,
    )
    into = own_folder() if folder is None else folder
    statements = f"`{ENV_VAR}` (else `XDG_DATA_HOME`, else ~/.local/share)"
    require_writable(into, statements if folder is None else "`folder` (`--out`)")
    path, extra = into / f"{name}{SUFFIX}", TableFile(client_sample_rates=_rates(count))
    statement = _text(table, extra)
    try:
        content = load_toml(statement.encode("utf-8"))
    except ValueError as error:  # a lone surrogate, or thousands of columns
        raise InvalidArgumentError(f"`data` must fit into a task file: {error}") from error
    with sole_writer(into):
        if path_exists(path) and not overwrite:
            raise InvalidArgumentError(
                f"`name` must be new, {path} is there; give another (`--name`), or overwrite it"
            )
        with tempfile.TemporaryDirectory(dir=into) as trial_folder:
            # Errors are raised before anything is replaced.
            trial = Path(trial_folder) / table.data
            trial.write_text(text, encoding="utf-8")
            OwnSource(name=name, licence="", citation="", table=table, path=path).encode(trial)
        keys = _makers(path, content)
        # Both are on the disk before one of them replaces anything.
        with new_text(path.with_name(table.data), text), new_text(path, statement):
            pass
    rates = " to ".join(f"{rate:g}" for rate in extra.client_sample_rates)
    notes = [*inspected.notes, f"A round asks a share of {rates} of the clients."]
    return NewTask(path, tuple(f"FedHPO-{key}" for key in keys), tuple(notes))


def _words(stem: str) -> list[str]:
    return "".join(
        character if character.isalnum() and character.isascii() else " " for character in stem
    ).split()


def _rates(clients: int) -> tuple[float, float]:
    """Return the shares of clients that a round may ask."""
    high = 1.0 if clients <= MANY else float(f"{AT_ONCE / clients:.1g}")
    return high / 10, high


def _text(table: OwnTable, extra: TableFile) -> str:
    """Return a task file: TOML that a person can read and change."""
    who = [f"client = {_toml(table.client)}  # column that says who holds a row"]
    if table.client is None:
        who = [
            f"clients = {table.clients}  # rows are dealt to so many",
            f"alpha = {table.alpha!r}",
        ]
    meanings = [f"#   {_toml(name)}: {meaning}" for name, meaning in ENCODINGS.items()]
    columns = [f"{_toml(name)} = {_toml(encoding)}" for name, encoding in table.columns.items()]
    like = _like(table.name)
    spaces = {task.model: task.client_space for task in natural.natural_tasks(like)}
    ranges: list[str] = []
    for model, space in spaces.items():
        ranges += ["", f"[space.{model}]"]
        for d in space.dimensions:
            log = str(d.log).lower()
            ranges.append(f"{d.name} = {{ low = {d.low!r}, high = {d.high!r}, log = {log} }}")
    lines = (
        "# A tuning problem on data of your own, as `fedhpo-gym new` wrote it. Change what you",
        "# like, then raise `version`: ids hold it, and what is stored for one stays true.",
        'kind = "table"',
        f"name = {_toml(table.name)}  # ids: FedHPO-LR-{table.name}-v{table.version} and so on",
        f"version = {table.version}",
        f"data = {_toml(table.data)}  # beside this file",
        f"sha256 = {_toml(table.sha256)}",
        f"target = {_toml(table.target)}  # its values are classes",
        *who,
        f"split = {_toml(table.split)}  # of a client's rows: {' or '.join(SPLITS)}",
        f"fewest = {table.fewest}  # clients of fewer rows are left out",
        f"rare = {table.rare}  # rows that a word must have for a column of its own",
        f"unseen = {str(table.unseen).lower()}  # ids of clients that never train",
        f"licence = {_toml(table.licence)}",
        f"citation = {_toml(table.citation)}",
        f"rounds = {[*extra.rounds]}  # after which models are evaluated; not of joint ids",
        f"client_sample_rates = {[*extra.client_sample_rates]}  # the lowest and the highest",
        "",
        "# What becomes of each column:",
        *meanings,
        "[columns]",
        *columns,
        "",
        "# What is tuned: the lowest and the highest value, and whether the scale is logarithmic.",
        *ranges[1:],
    )
    return "\n".join(lines) + "\n"


def _toml(text: str | None) -> str:
    """Return a text as TOML writes it."""
    return tomli_w.dumps({"a": str(text)}).removeprefix("a = ").rstrip("\n")


__all__ = ["NewTask", "own_folder", "read_task_file", "task_files", "write_task"]
