"""The command line: `fedhpo-gym list | run | report | replay | build | download | ...`.

Adding a command is a file with its function, and a line in `COMMANDS`; it is imported when called.

The exit status is:

| status | meaning |
|---|---|
| 0 | done |
| 1 | done, with a bad outcome: a number differs, a check, download or run failed, a bad record |
|   | (`replay`: numbers that another processor rounded otherwise are 0, and 1 under `--exact`) |
| 2 | not done: a wrong word, missing data or packages, files that cannot be read or written |
| 130 | interrupted, or ended by SIGTERM; it says whether the same command resumes |

An error is one line on the standard error output.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from fedhpo_gym.cli.console import echo_error, take_arguments
from fedhpo_gym.core import __version__
from fedhpo_gym.core.errors import FedHPOError, unknown_name
from fedhpo_gym.core.processes import terminated_as_interrupted

DESCRIPTION = "Benchmark agents on federated hyperparameter optimization."
BAD, ERROR, INTERRUPTED = 1, 2, 130
"""Exit statuses besides 0; see above."""
KEEPING = frozenset({"build", "compare", "download", "meta-data", "queue", "references", "run"})
"""Subcommands that keep finished results when they are interrupted."""


COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "list": ("listing:list_ids", "list the environments and what can answer them"),
    "agents": ("listing:list_agents", "list the agents and what each can do"),
    "show": ("show:show_environment", "say what an environment asks and how healthy it is"),
    "new": ("own:new", "make a problem of data of your own: a task file, and its ids"),
    "run": ("run:run", "run agents, and write one record per run"),
    "compare": ("run:run_study", "compare agents on a suite, many runs at a time, and report"),
    "report": ("report:report", "make one HTML page of run records"),
    "regret": ("report:regret", "say how far recorded runs are from the best of stored numbers"),
    "tuning-cost": ("report:tuning_cost", "say which algorithm is best once its tuning is charged"),
    "export": ("report:export", "write run records as studies of Optuna"),
    "replay": ("run:replay_records", "run records again and demand equal numbers"),
    "build": ("data:build_numbers", "compute the table of a problem, or a sample of it"),
    "queue": ("data:queue", "train a list of samples, in order of worth"),
    "import": ("own:import_files", "read tables of FedHPO-Bench, or results of your own"),
    "download": ("data:download", "fetch training data into the cache"),
    "leaf-preprocess": ("data:leaf", "sample and split data in LEAF's json format"),
    "surrogate": (
        "surrogates:fit_surrogates",
        "fit a surrogate on a table or a sample, or on `all` of them",
    ),
    "meta-data": ("transfer:meta_data", "compute the pools of FedHPO-B, a file per search space"),
    "generator": ("transfer:generator", "fit the generators of tasks, a file per search space"),
    "transfer": ("transfer:transfer", "tune a federation with what the tasks of FedHPO-B taught"),
    "health": ("health:health", "compare the health on cards with their numbers"),
    "difficulty": ("health:difficulty", "say what random search leaves on stored problems"),
    "references": ("references:update_references", "find what is reached in round environments"),
    "check": (
        "check:run_checks",
        "ask other libraries' checkers, or try the engine on this processor",
    ),
    "federatedscope": ("data:FEDERATEDSCOPE", "install what FederatedScope needs, or examine it"),
}
"""Name of each command -> `module:function`, and the help text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in words if word in COMMANDS), "fedhpo-gym")
    try:
        with terminated_as_interrupted():
            parser = make_parser(words)
            if words and words[0] not in COMMANDS and not words[0].startswith("-"):
                parser.error(str(unknown_name("command", words[0], COMMANDS)))
            options = parser.parse_args(words)
            status: int = options.call(options)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has stopped, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except (FedHPOError, OSError) as error:
        echo_error(command, error)
        return ERROR
    except KeyboardInterrupt:
        effect = "goes on after what is done" if command in KEEPING else "starts over"
        sys.stderr.write(f"\nInterrupted; the same command {effect}.\n")
        return INTERRUPTED
    return status


def make_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of all subcommands, or of the one that some words name."""
    parser = argparse.ArgumentParser("fedhpo-gym", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (location, text) in COMMANDS.items():
        subparser = commands.add_parser(name, help=text, description=f"{text}.", allow_abbrev=False)
        if words is not None and name not in words[:1]:
            continue
        module, _, function = location.partition(":")
        command = getattr(importlib.import_module(f"fedhpo_gym.cli.{module}"), function)
        if callable(command):
            take_arguments(subparser, command)
            continue
        actions = subparser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for action, (action_command, help_text) in command.items():
            take_arguments(
                actions.add_parser(action, help=help_text, allow_abbrev=False), action_command
            )
    return parser
