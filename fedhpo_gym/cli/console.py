"""Shared parts of subcommands: arguments from the signature of a function, and output.

`fedhpo_gym.cli.make_parser` calls `take_arguments` for every command. Positional parameters are
arguments, keyword-only ones are options. A parameter of a dataclass type contributes its fields;
one without `Arg` is for callers in Python. Output escapes control characters and fits the terminal.
"""

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill, wrap
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from fedhpo_gym.algorithms import algorithm_name
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.core.identity import OPTIONS
from fedhpo_gym.studies.environments import resolve_id
from fedhpo_gym.tasks import Task, get_task

Command = Callable[..., int]


@dataclass(frozen=True)
class Arg:
    """A parameter on the command line.

    Attributes:
        metavar: placeholder of its value in the help.
        flag: the option, if its name differs from the parameter's.
        several: whether several values may follow an option at once.
    """

    help: str | None = None
    metavar: str | None = None
    flag: str | None = None
    several: bool = False


class _Parameter(NamedTuple):
    name: str
    hint: Any
    default: Any
    is_option: bool


def take_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add the arguments of a command to a parser; its default `call` then runs the command."""
    parameters = list(_parameters(command))
    for entry in parameters:
        for parameter in _field_parameters(entry.hint) if is_dataclass(entry.hint) else [entry]:
            _add_argument(parser, parameter)
    parser.set_defaults(call=partial(_call_command, command, parameters))


def _call_command(
    command: Command, parameters: Sequence[_Parameter], options: argparse.Namespace
) -> int:
    values = {}
    for name, hint, *_ in parameters:
        if get_origin(hint) is Annotated:
            values[name] = getattr(options, name)
        else:
            values[name] = hint(
                **{entry.name: getattr(options, entry.name) for entry in fields(hint)}
            )
    return command(**values)


def _parameters(command: Command) -> Iterator[_Parameter]:
    hints = hints_of(command, include_extras=True)
    for name, entry in inspect.signature(command).parameters.items():
        hint = hints[name]
        if get_origin(hint) is Annotated or is_dataclass(hint):
            yield _Parameter(name, hint, entry.default, entry.kind is entry.KEYWORD_ONLY)


def _field_parameters(kind: Any) -> Iterator[_Parameter]:
    hints: Mapping[str, Any] = hints_of(kind, include_extras=True)
    for entry in fields(kind):
        default = inspect.Parameter.empty if entry.default is MISSING else entry.default
        yield _Parameter(entry.name, hints[entry.name], default, entry.default is not MISSING)


def _add_argument(parser: argparse.ArgumentParser, entry: _Parameter) -> None:
    hint, arg = get_args(entry.hint)
    if get_origin(hint) in (Union, UnionType):
        hint = next(member for member in get_args(hint) if member is not NoneType)
    has_default = entry.default is not inspect.Parameter.empty
    settings: dict[str, Any] = {"help": arg.help}
    if hint is bool:
        settings["action"] = "store_false" if entry.default else "store_true"
    else:
        settings |= {
            "metavar": arg.metavar,
            **_value_options(hint, entry, has_default=has_default, arg=arg),
        }
    if not entry.is_option:
        parser.add_argument(entry.name, **settings)
        return
    if hint is not bool:
        settings |= {"required": not has_default}
        default = list(entry.default) if isinstance(entry.default, tuple) else entry.default
        settings |= {"default": default} if has_default else {}
    flag = arg.flag or f"--{entry.name.replace('_', '-')}"
    parser.add_argument(flag, dest=entry.name, **settings)


def _value_options(hint: Any, entry: _Parameter, *, has_default: bool, arg: Arg) -> dict[str, Any]:
    """Return the options of argparse for the number and type of values."""
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is not Sequence:
        count = (
            {} if entry.is_option or not has_default else {"nargs": "?", "default": entry.default}
        )
        return {"type": hint, **count}
    item_type = get_args(hint)[0]
    if not entry.is_option:
        return {"type": item_type, "nargs": "*" if has_default else "+"}
    return {
        "type": item_type,
        **({"action": "extend", "nargs": "+"} if arg.several else {"action": "append"}),
    }


NARROWEST, FEWEST = 40, 12
"""Least columns of a terminal, and of the last column of a table."""


def echo(text: str) -> None:
    """Write one line of output; unprintable characters and control characters are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    line = f"{_printable(text)}\n"
    sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))


def _printable(text: str) -> str:
    """Return a text without characters that move the cursor or change the terminal."""
    escaped = (c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    return text if text.isprintable() else "".join(escaped)


def echo_error(command: str, error: Exception | str) -> None:
    """Write an error as one line."""
    message = str(error)
    if isinstance(error, OSError) and not isinstance(error, FedHPOError) and error.strerror:
        message = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    sys.stderr.write(f"fedhpo-gym {command}: {_printable(' '.join(message.splitlines()))}\n")


def width_of_terminal() -> int:
    """Return the columns of the terminal, at least 40; a file or a pipe has room for everything."""
    return max(get_terminal_size((sys.maxsize, 24)).columns, NARROWEST)


def echo_prose(text: str) -> None:
    """Write a paragraph, broken into lines where the terminal ends."""
    echo(fill(text, min(width_of_terminal(), len(text) + 1), break_on_hyphens=False))


def echo_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table of fitting columns; in narrow terminals, the last goes on in further lines."""
    lines = [tuple(heads), *map(tuple, rows)]
    *widths, last = (max(map(len, column)) for column in zip(*lines, strict=True))
    indent = sum(widths) + 2 * len(widths)
    width_of_last = min(last, max(width_of_terminal() - indent, FEWEST))
    for *first, end in lines:
        cells = [cell.ljust(width) for cell, width in zip(first, widths, strict=True)]
        lines_of_cell = (
            wrap(end, width_of_last, break_on_hyphens=False) if len(end) > width_of_last else [end]
        )
        echo("  ".join([*cells, lines_of_cell[0]]).rstrip())
        for line in lines_of_cell[1:]:
            echo(" " * indent + line)


def parse_pairs(option: str, words: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the (name, value) pairs of words `name=value`; values are JSON, else plain text."""
    pairs: list[tuple[str, Any]] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise InvalidArgumentError(f"`{option}` must be of the form name=value, got {word!r}")
        if name in dict(pairs):
            raise InvalidArgumentError(f"`{option}` names {name!r} twice")
        pairs.append((name, _parse_value(option, name, value)))
    return pairs


def _parse_value(option: str, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if text[0] not in "{[\"'":
            return text
        raise InvalidArgumentError(
            f"`{option} {name}` must be JSON, with names in double quotation marks and the whole "
            f"word in single ones, such as '{name}={{\"key\": 0.1}}', got {text} ({error})"
        ) from error


Word = Annotated[str | None, Arg("only lines that hold this word", "WORD")]
Ids = Annotated[Sequence[str], Arg("environment ids; all by default", "ID")]
Records = Annotated[Sequence[Path], Arg("folders or records", "PATH")]
Runs = Annotated[Path, Arg("(runs)", "DIR")]
OwnTables = Annotated[Path | None, Arg("folder (that of your own tables)", "DIR")]
Rule = Annotated[
    Literal["recommended", "highest_fidelity", "full_fidelity"],
    Arg("the incumbent: what the run recommends, or the best of the highest or of full fidelity"),
]
Named = Annotated[
    Sequence[str],
    Arg(
        "what the records need and may not choose themselves: source, interpreter, own_data, "
        "algorithm=module:Class or a list of them, "
        '`objectives=["module:name"]`, or `system={"path": "FILE"}`',
        "KEY=VALUE",
        "--set",
    ),
]


@dataclass(frozen=True)
class RunOptions:
    """Options of runs, besides ids, agents and seeds."""

    backend: Annotated[
        str | None,
        Arg(
            "tabular, surrogate, raw or federatedscope; by default the table, else the surrogate, "
            "else the pool, and raw for ids that are there to be trained",
            "NAME",
        ),
    ] = None
    fidelity: Annotated[
        Sequence[str],
        Arg(
            "fidelity of every trial; full by default, `NAME=free` leaves it to the agent",
            "NAME=VALUE",
            several=True,
        ),
    ] = ()
    budget_s: Annotated[float | None, Arg("simulated seconds of a run", "X")] = None
    simulated_workers: Annotated[
        int, Arg("run N trials side by side on the simulated clock (1)", "N")
    ] = 1
    shared_start: Annotated[
        int, Arg("let all agents of a seed try the same N configurations first (0)", "N")
    ] = 0
    settings: Annotated[
        Sequence[str],
        Arg(
            "any other argument of the environment, for example `algorithm=fedopt`; numbers, lists "
            "and objects are JSON: `--set 'constraints={\"fairness_std\": 0.1}'`",
            "KEY=VALUE",
            "--set",
        ),
    ] = ()
    track: Annotated[
        Sequence[str],
        Arg("follow the runs in tensorboard or wandb (offline); may come twice", "NAME"),
    ] = ()


@dataclass(frozen=True)
class Cluster:
    """Options of the cluster where processes run."""

    executor: Annotated[str, Arg("processes here, or dask (processes)", "NAME")] = "processes"
    address: Annotated[str | None, Arg("of the cluster's scheduler", "URL")] = None


Algorithm = Annotated[
    str | None, Arg("for example fedopt, or module:Class of yours (that of the problem: fedavg)")
]
Settings = Annotated[
    Sequence[str],
    Arg("a hyperparameter fixed, for example `epsilon=10` of nbafl", "NAME=VALUE", "--setting"),
]


@dataclass(frozen=True)
class Variant:
    """A variant of a task, as the command line names it."""

    id: Annotated[str, Arg("an environment id, version optional", "ID")]
    algorithm: Algorithm = None
    alpha: Annotated[float | None, Arg("concentration of the partition (0.5)")] = None
    preprocessing: Annotated[str | None, Arg("label_encoded or standardized (the id's)")] = None
    precision: Annotated[str | None, Arg("float32 or, where the model can, bfloat16")] = None
    table: Annotated[str | None, Arg("fedhpo-bench for an imported table")] = None
    settings: Settings = ()
    tune: Annotated[
        Sequence[str],
        Arg(
            "a setting that is searched, for example `epsilon=[1,16]` of dpfedavg",
            "NAME=[LOW,HIGH]",
        ),
    ] = ()


def parse_task(variant: Variant) -> Task:
    """Return the variant of a task that the command line names."""
    options = {name: getattr(variant, name) for name in OPTIONS}
    chosen_options = {name: value for name, value in options.items() if value is not None}
    if variant.algorithm is not None:
        chosen_options["algorithm"] = algorithm_name(variant.algorithm)
    name = resolve_id(variant.id) if ":" in variant.id else variant.id
    task = get_task(name).variant(**chosen_options)
    task = task.fix(dict(parse_pairs("--setting", variant.settings)))
    return task.tune(dict(parse_pairs("--tune", variant.tune)))
