"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import parse_pairs
from fedhpo_gym.core.identity import OPTIONS
from fedhpo_gym.tasks import Task, get_task

Word = Annotated[str | None, Arg("only lines that hold this word", "WORD")]
Ids = Annotated[Sequence[str], Arg("environment ids; all by default", "ID")]
Records = Annotated[Sequence[Path], Arg("folders or records", "PATH")]
Runs = Annotated[Path, Arg("(runs)", "DIR")]
OwnTables = Annotated[Path | None, Arg("folder (that of your own tables)", "DIR")]
Rule = Annotated[
    Literal["recommended", "highest_fidelity", "full_fidelity"],
    Arg(
        "which trial is the incumbent: the one that the run recommends, the best of the highest "
        "fidelity so far, or of full fidelity alone"
    ),
]
Named = Annotated[
    Sequence[str],
    Arg(
        "a program or a file that the records need and may not choose themselves: source, "
        'interpreter, own_data, or `system={"path": "FILE"}`',
        "KEY=VALUE",
        "--set",
    ),
]


@dataclass(frozen=True)
class Asked:
    """What runs are asked for, besides who acts where."""

    backend: Annotated[
        str | None,
        Arg(
            "tabular, surrogate, raw or federatedscope; by default the first of the former two "
            "with numbers, and raw for ids that are there to be trained",
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
        Arg(
            "follow the runs in tensorboard or wandb (offline); may be given several times", "NAME"
        ),
    ] = ()


@dataclass(frozen=True)
class Cluster:
    """Where many processes run."""

    executor: Annotated[
        str, Arg("processes of this machine, or dask, on a cluster (processes)", "NAME")
    ] = "processes"
    address: Annotated[str | None, Arg("of the cluster's scheduler", "URL")] = None


Algorithm = Annotated[str | None, Arg("for example fedopt (that of the problem: fedavg)")]
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
    settings: Settings = ()


def asked_task(variant: Variant) -> Task:
    """Return the variant of a task that the command line names."""
    wanted = {name: getattr(variant, name) for name in OPTIONS}
    given = {name: value for name, value in wanted.items() if value is not None}
    task = get_task(variant.id).variant(**given)
    return task.fix(dict(parse_pairs("--setting", variant.settings)))
