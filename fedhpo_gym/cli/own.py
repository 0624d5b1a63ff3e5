"""`fedhpo-gym new | import`: data of one's own, and results that others computed."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import fedhpo_gym
from fedhpo_gym.cli.console import Arg, OwnTables, echo, echo_error, echo_prose
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError, MissingDataError
from fedhpo_gym.core.files import read_toml
from fedhpo_gym.data.frames import name_without_endings
from fedhpo_gym.tasks import TRIALS_ONLY
from fedhpo_gym.tasks.own import own_folder


def new(
    data: Annotated[Path, Arg("CSV, Parquet, LEAF's json, or a folder of Hugging Face's datasets")],
    *,
    target: Annotated[str | None, Arg("column that is predicted (label)", "COLUMN")] = None,
    client: Annotated[
        str | None, Arg("column that says who holds a row (client, if there is one)", "COLUMN")
    ] = None,
    clients: Annotated[int | None, Arg("deal the rows to so many clients instead", "N")] = None,
    alpha: Annotated[
        float | None, Arg("concentration of the labels where rows are dealt (0.5)")
    ] = None,
    name: Annotated[str | None, Arg("what ids call it (the file's name)")] = None,
    leave_out: Annotated[
        Sequence[str], Arg("columns that nobody may learn from", "COLUMN", several=True)
    ] = (),
    split: Annotated[str | None, Arg("of a client's rows: 60/20/20 or 80/10/10 (60/20/20)")] = None,
    out: Annotated[Path | None, Arg("folder of the task file (the user's own)", "DIR")] = None,
    overwrite: Annotated[bool, Arg("replace a task file of that name")] = False,
) -> int:
    """Write a task file, and say what was done and what can be run."""
    task_files = fedhpo_gym.new_task(
        data,
        target,
        client=client,
        clients=clients,
        alpha=alpha,
        name=name,
        leave_out=leave_out,
        split=split,
        folder=out,
        overwrite=overwrite,
    )
    for note in task_files.notes:
        echo_prose(note)
    echo_prose(
        f"{task_files.path} says all this: encodings, clients, split, ranges. Change it, raise its "
        "`version`, and the next import has the new ids."
    )
    if out is not None and out.resolve() != own_folder().resolve():
        echo_prose(f"Commands find it where FEDHPO_GYM_TASKS={out.resolve()} is set.")
    echo("\nIds, each also as MO-...:")
    for env_id in task_files.ids:
        rounds = env_id.removeprefix("FedHPO-").startswith(TRIALS_ONLY)
        echo(f"  {env_id}" + ("" if rounds else f"  {env_id.replace('FedHPO-', 'FedHPO-DAC-')}"))
    first = task_files.ids[0].rpartition("-v")[0]
    echo("\nWhat to run next:")
    for line, purpose in (
        (f"compare {first} --agents random,de --seeds 3", "train trials, and compare agents"),
        (f"transfer {first}", "tune it with what other federations taught"),
        (f"difficulty {first} --train 60", "say what random search leaves to be gained"),
        (f"build {first} --sample 2000", "train a sample; it says first what it costs"),
        (f"surrogate {first}", "fit a surrogate to it, and hear how far off it is"),
    ):
        echo(f"  fedhpo-gym {line}\n      {purpose}")
    return 0


TABLES = (".csv", ".parquet", ".pq")
Source = Annotated[
    Path, Arg("zip file, folder or tabular.csv.gz of FedHPO-Bench; or CSV or Parquet", "PATH")
]
Description = Annotated[
    Path | None, Arg("TOML that describes a table of results (*.toml beside it)", "FILE")
]


def import_files(path: Source, *, description: Description = None, out: OwnTables = None) -> int:
    """Import every table of an archive, or a table of results; refused ones keep none back."""
    from fedhpo_gym.building.fedhpo_bench import FILE, find_archives, import_archive

    if (path.suffix in TABLES or path.stem.endswith(".csv")) and path.name != FILE:
        if not path.is_file():
            raise MissingDataError(f"`path` must be a file, {path} is none")
        description_values = _read_description(
            description or path.with_name(f"{name_without_endings(path)}.toml")
        )
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            env_id, card = fedhpo_gym.import_results(path, **description_values, folder=out)
        for note in notes:
            echo_prose(str(note.message))
        echo(str(card))
        echo(f"fedhpo-gym surrogate {env_id}" if card.name.endswith(".sample.json") else env_id)
        return 0
    if description is not None:
        raise InvalidArgumentError(
            f"`--description` is for tables of results, {', '.join(TABLES)}, got {path}"
        )
    failed = 0
    for archive in find_archives(path):
        try:
            echo(str(import_archive(archive, out)))
        except FedHPOError as error:
            echo_error("import", error)
            failed += 1
    return 1 if failed else 0


def _read_description(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingDataError(
            f'{path} must describe the results: lines `name = "Mine"` and `parameters = 5000` '
            "(numbers of the model), and where no column says it `rounds` and `clients`"
        )
    try:
        values = read_toml(path)
    except ValueError as error:
        raise InvalidArgumentError(f"{path} must be TOML: {error}") from error
    for name in ("name", "parameters"):
        if name not in values:
            raise InvalidArgumentError(f"{path} must have a line `{name} = ...`")
    if unknown := {"data", "folder"} & {*values}:
        raise InvalidArgumentError(f"{path} must not have {sorted(unknown)}: the command says it")
    return values
