"""The command line: `fedhpo-gym list | run | report | replay | build | download | ...`.

Subcommands are imported when they are called: `fedhpo-gym list` needs neither torch nor matplotlib.
`python -m fedhpo_gym` is the same.

The exit status says what came of it:

| status | meaning |
|---|---|
| 0 | done |
| 1 | done, with a bad outcome: a number differs, a check, download or run failed, a bad record |
|   | (`replay`: numbers that another processor rounded otherwise are 0, and 1 under `--exact`) |
| 2 | not done: a wrong word, missing data or packages, files that cannot be read or written |
| 130 | interrupted, or ended by SIGTERM; it says whether the same command resumes |

An error is one line on the standard error output.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from tqdm import tqdm

from fedhpo_gym.cli.console import complain
from fedhpo_gym.errors import FedHPOError
from fedhpo_gym.processes import terminated_as_interrupted
from fedhpo_gym.version import __version__

DESCRIPTION = "Benchmark agents on federated hyperparameter optimization."
BAD, ERROR, INTERRUPTED = 1, 2, 130
"""Exit statuses besides 0; see above."""
KEEPING = frozenset({"build", "compare", "download", "run"})
"""Subcommands that keep what they have finished when they are interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        arguments: words of the command line; by default those of this process.

    Returns:
        The exit status; see the docstring of this module.
    """
    options = make_parser().parse_args(arguments)
    if options.command == "run":
        options.progress = tqdm
    try:
        with terminated_as_interrupted():
            module = importlib.import_module(f"fedhpo_gym.cli.{options.module}")
            status: int = module.main(options)
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has stopped, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except (FedHPOError, OSError) as error:
        complain(options.command, error)
        return ERROR
    except KeyboardInterrupt:
        again = "resumes from here" if options.command in KEEPING else "starts over"
        sys.stderr.write(f"\nInterrupted; the same command {again}.\n")
        return INTERRUPTED
    return status


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    parser = argparse.ArgumentParser(prog="fedhpo-gym", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module, text in (
        ("list", "listing", "list the environments and what can answer them"),
        ("agents", "agents", "list the agents and what each can do"),
    ):
        sub = _add(commands, name, module, text)
        sub.add_argument("filter", nargs="?", metavar="WORD", help="only lines that hold this word")
    _add_show(commands)
    _add_run(commands)
    _add_compare(commands)
    _add_report(commands)
    _add_regret(commands)
    _add_replay(commands)
    _add_build(commands)
    _add_download(commands)
    _add_leaf(commands)
    _add_surrogate(commands)
    _add_health(commands)
    _add_difficulty(commands)
    _add_repack(commands)
    _add_check(commands)
    _add_federatedscope(commands)
    return parser


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add(commands: Commands, name: str, module: str, text: str) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text}.")
    sub.set_defaults(module=module)
    return sub


def _add_run(commands: Commands) -> None:
    sub = _add(commands, "run", "run", "run agents, and write one record per run")
    sub.add_argument("ids", nargs="+", metavar="ID", help="environment ids, version optional")
    sub.add_argument(
        "--agent", action="append", required=True, dest="agents", metavar="NAME",
        help="an agent, for example `random` or `optuna-tpe`; may be given several times",
    )  # fmt: skip
    sub.add_argument("--seeds", type=int, default=5, metavar="N", help="runs per agent (5)")
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="(runs)")
    _add_asked(sub)


def _add_compare(commands: Commands) -> None:
    text = "compare agents on a suite of problems, many runs at a time, and make the report"
    sub = _add(commands, "compare", "compare", text)
    sub.add_argument(
        "problems", nargs="+", metavar="SUITE",
        help="a suite, such as lr, paper, small or natural (docs/arena.md), or environment ids",
    )  # fmt: skip
    sub.add_argument("--agents", required=True, metavar="A,B,C", help="names of agents")
    sub.add_argument("--seeds", type=int, default=30, metavar="N", help="runs per agent (30)")
    sub.add_argument("--workers", type=int, default=1, metavar="N", help="processes here (1)")
    _add_executor(sub)
    sub.add_argument(
        "--timeout-s", type=float, metavar="X", help="real seconds that a run may take"
    )
    sub.add_argument(
        "--records", choices=("parquet", "jsonl"),
        help="kind of record files (parquet where pyarrow is installed)",
    )  # fmt: skip
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="(runs)")
    sub.add_argument("--no-report", action="store_false", dest="report", help="only run")
    sub.add_argument(
        "--noise", nargs="+", action="extend", default=[], metavar="NAME=VALUE",
        help="what evaluations lack, for example `clients=0.01`: clients, bias, iid, epsilon",
    )  # fmt: skip
    sub.set_defaults(figure=None, landscape=None)
    _add_rule(sub)
    _add_asked(sub)


def _add_executor(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--executor", default="processes", metavar="NAME",
        help="processes of this machine, or dask, on a cluster (processes)",
    )  # fmt: skip
    sub.add_argument("--address", metavar="URL", help="of the cluster's scheduler")


def _add_asked(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--backend", metavar="NAME",
        help="tabular, surrogate, raw or federatedscope; by default the first of the former two "
        "with numbers",
    )  # fmt: skip
    sub.add_argument(
        "--fidelity", nargs="+", action="extend", default=[], metavar="NAME=VALUE",
        help="fidelity of every trial; full by default, `NAME=free` leaves it to the agent",
    )  # fmt: skip
    sub.add_argument("--budget-s", type=float, metavar="X", help="simulated seconds of a run")
    sub.add_argument(
        "--simulated-workers", type=int, default=1, metavar="N",
        help="run N trials side by side on the simulated clock (1)",
    )  # fmt: skip
    sub.add_argument(
        "--set", action="append", default=[], dest="settings", metavar="KEY=VALUE",
        help="any other argument of the environment, for example `algorithm=fedopt`; numbers, "
        "lists and objects are JSON: `--set 'constraints={\"fairness_std\": 0.1}'`",
    )  # fmt: skip
    sub.add_argument(
        "--track", action="append", default=[], metavar="NAME",
        help="follow the runs in tensorboard or wandb (offline); may be given several times",
    )  # fmt: skip


def _add_report(commands: Commands) -> None:
    sub = _add(commands, "report", "report", "make one HTML page of run records")
    sub.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="folders or records")
    sub.add_argument(
        "--table", action="append", default=[], dest="tables", type=Path, metavar="FILE",
        help="runs of another program: a CSV file with problem, agent, seed, time, value and, if "
        "known, level (how much of a course was trained) and test; may be given several times",
    )  # fmt: skip
    sub.add_argument(
        "--figure", metavar="NAME",
        help="write one figure only, for example `rank-over-time`; --out ends with .pdf or .svg, "
        "or with .csv for the numbers behind it",
    )  # fmt: skip
    sub.add_argument(
        "--landscape", metavar="X,Y",
        help="draw the losses of one problem over two hyperparameters instead; --out as above",
    )  # fmt: skip
    _add_rule(sub)
    sub.add_argument("--out", type=Path, metavar="FILE", help="(report.html in the folder)")


def _add_rule(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--rule", choices=("highest_fidelity", "full_fidelity", "best_seen"),
        default="highest_fidelity",
        help="which trial is the incumbent: the best of the highest fidelity so far, of full "
        "fidelity alone, or of all",
    )  # fmt: skip


def _add_regret(commands: Commands) -> None:
    text = "say how far recorded runs are from the best that stored numbers know"
    sub = _add(commands, "regret", "regret", text)
    sub.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folders or records")
    sub.add_argument(
        "--out", type=Path, metavar="FILE", help="a CSV file of the regret after every trial"
    )
    _add_named(sub)


def _add_named(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--set", action="append", default=[], dest="settings", metavar="KEY=VALUE",
        help="a program or a file that the records need and may not choose themselves: source, "
        'interpreter, own_data, or `system={"path": "FILE"}`',
    )  # fmt: skip


def _add_replay(commands: Commands) -> None:
    sub = _add(commands, "replay", "replay", "run records again and demand equal numbers")
    sub.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="records or folders")
    _add_named(sub)
    sub.add_argument(
        "--exact", action="store_true",
        help="demand equal bits of records that another processor computed, too",
    )  # fmt: skip


def _add_build(commands: Commands) -> None:
    sub = _add_variant(commands, "build", "compute the table of a problem, or a sample of it")
    sub.add_argument(
        "--sample", type=int, metavar="N",
        help="N courses spread evenly over the space instead of the whole grid",
    )  # fmt: skip
    sub.add_argument(
        "--rounds", metavar="R,S",
        help="rounds of a sample's courses (all); 27,27,81: two of three end after 27",
    )  # fmt: skip
    sub.add_argument(
        "--rates", metavar="A,B",
        help="client sample rates of a sample (the grid's); what is named twice comes twice",
    )  # fmt: skip
    sub.add_argument(
        "--repeat-every", type=int, metavar="N",
        help="of N configurations of a sample, the first comes under all seeds (none does)",
    )  # fmt: skip
    sub.add_argument(
        "--only-finished", action="store_true",
        help="compute nothing: store those courses of the sample that are finished",
    )  # fmt: skip
    sub.add_argument(
        "--merge", type=Path, nargs="+", default=[], metavar="DIR",
        help="folders of the same build on other machines, to take finished courses from",
    )  # fmt: skip
    sub.add_argument("--workers", type=int, metavar="N", help="processes (one per core)")
    _add_executor(sub)
    sub.add_argument("--device", default="cpu", help="torch device (cpu)")
    sub.add_argument("--out", type=Path, metavar="DIR", help="folder (that of your own tables)")
    sub.add_argument(
        "--yes", action="store_true",
        help="start a build of more than an hour; without it, you are told what it will cost",
    )  # fmt: skip


def _add_download(commands: Commands) -> None:
    sub = _add(commands, "download", "data", "fetch training data into the cache")
    sub.add_argument(
        "names",
        nargs="+",
        metavar="DATASET",
        help="names of data sets, `all` of them, or BERT-Tiny",
    )


def _add_leaf(commands: Commands) -> None:
    sub = _add(commands, "leaf-preprocess", "leaf", "sample and split data in LEAF's json format")
    sub.add_argument("folder", type=Path, metavar="DIR", help="json files, or LEAF's data/<name>")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="must not exist yet")
    sub.add_argument("-s", choices=("iid", "niid"), dest="sampling", help="sample; else keep all")
    sub.add_argument("--sf", type=float, default=0.1, dest="fraction", help="of the samples (0.1)")
    sub.add_argument(
        "--iu", type=float, default=0.01, dest="iid_users",
        help="users made by iid sampling: a share below 1, else a number (0.01)",
    )  # fmt: skip
    sub.add_argument("-k", type=int, dest="min_samples", help="fewest samples of a user")
    sub.add_argument("-t", choices=("user", "sample"), dest="split", help="split by user or sample")
    sub.add_argument("--tf", type=float, default=0.9, dest="train_fraction", help="(0.9)")
    sub.add_argument("--gap", type=int, help="samples between training and test (Shakespeare: 79)")
    sub.add_argument("--smplseed", type=int, default=0, dest="sampling_seed", help="(0)")
    sub.add_argument("--spltseed", type=int, default=0, dest="split_seed", help="(0)")


def _add_surrogate(commands: Commands) -> None:
    text = "fit a surrogate on the table or the sample of a problem, or of `all` that are stored"
    sub = _add_variant(commands, "surrogate", text, "surrogates")
    sub.add_argument("--candidate", metavar="NAME", help="write this one, whatever its error")
    sub.add_argument(
        "--keep", action="store_true",
        help="write it even if its errors are not accepted; its card says so",
    )  # fmt: skip
    sub.add_argument(
        "--measure", action="store_true",
        help="fit none to keep: hold courses out again, and write onto the card of the stored one "
        "how far each objective is off; what its courses are not stored for is left as it is",
    )  # fmt: skip
    sub.add_argument("--out", type=Path, metavar="DIR", help="folder (that of your own tables)")


def _add_health(commands: Commands) -> None:
    sub = _add(commands, "health", "health", "compare the health on cards with their numbers")
    sub.add_argument("ids", nargs="*", metavar="ID", help="environment ids; all by default")
    sub.add_argument("--write", action="store_true", help="write it onto the cards")
    sub.add_argument(
        "--survival", action="store_true",
        help="train the best of tables anew, with initial weights moved by 1e-8, instead",
    )  # fmt: skip


def _add_difficulty(commands: Commands) -> None:
    text = "say what random search leaves on stored problems"
    sub = _add(commands, "difficulty", "difficulty", text)
    sub.add_argument("ids", nargs="*", metavar="ID", help="environment ids; all by default")
    sub.add_argument(
        "--train", type=int, metavar="N",
        help="really train N random configurations of each id, instead of asking stored numbers",
    )  # fmt: skip


def _add_repack(commands: Commands) -> None:
    sub = _add(commands, "repack", "repack", "write stored tables in the newest, smaller format")
    sub.add_argument("ids", nargs="*", metavar="ID", help="environment ids; all by default")
    sub.add_argument(
        "--least", type=float, default=0.25, metavar="SHARE",
        help="of its bytes that a table must save (0.25): it takes longer to read afterwards",
    )  # fmt: skip


def _add_show(commands: Commands) -> None:
    text = "say what an environment asks and how healthy it is; `all` sets them side by side"
    sub = _add_variant(commands, "show", text)
    sub.set_defaults(module="show")
    sub.add_argument("--backend", metavar="NAME", help="tabular, surrogate, raw or federatedscope")
    sub.add_argument("--json", action="store_true", help="print JSON, for machines")


def _add_check(commands: Commands) -> None:
    text = "ask other libraries' checkers about environments, or try the engine on this processor"
    sub = _add(commands, "check", "check", text)
    sub.add_argument(
        "ids", nargs="*", metavar="ID", help="ids, patterns like `FedHPO-DAC-*`, or `all`"
    )
    sub.add_argument(
        "--truth", action="store_true",
        help="search 100,000 queries of each id with stored numbers for one that beats its truth",
    )  # fmt: skip
    sub.add_argument(
        "--engine", action="store_true",
        help="say whether courses have the same bits in any company here, and follow the gradient",
    )  # fmt: skip


def _add_federatedscope(commands: Commands) -> None:
    text = "install what FederatedScope needs, or say what is wrong with it"
    sub = _add(commands, "federatedscope", "federatedscope", text)
    actions = sub.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = actions.add_parser("install", help="make an interpreter with fixed versions")
    made.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    made.add_argument(
        "--source", type=Path, required=True, metavar="TREE", help="FederatedScope's source tree"
    )
    made.add_argument("--dry-run", action="store_true", help="only say what it needs")
    tried = actions.add_parser("doctor", help="start it, train three rounds, say what is wrong")
    tried.add_argument("--source", metavar="TREE", help="(that of FEDHPO_GYM_FEDERATEDSCOPE)")
    tried.add_argument("--interpreter", metavar="PYTHON", help="(likewise)")


def _add_variant(
    commands: Commands, name: str, text: str, module: str = "data"
) -> argparse.ArgumentParser:
    sub = _add(commands, name, module, text)
    sub.add_argument("id", metavar="ID", help="an environment id, version optional")
    sub.add_argument("--algorithm", help="for example fedopt (that of the problem: fedavg)")
    sub.add_argument("--alpha", type=float, help="concentration of the partition (0.5)")
    sub.add_argument("--preprocessing", help="label_encoded or standardized (the id's)")
    sub.add_argument("--precision", help="float32 or, where the model can, bfloat16")
    sub.add_argument(
        "--setting", action="append", default=[], dest="settings", metavar="NAME=VALUE",
        help="a hyperparameter fixed, for example `epsilon=10` of nbafl",
    )  # fmt: skip
    return sub
