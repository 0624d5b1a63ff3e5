"""`fedhpo-gym build | download`: getting and making what backends answer from."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fedhpo_gym.cli.console import complain, parse_pairs, say
from fedhpo_gym.cluster import check_executor
from fedhpo_gym.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.identity import OPTIONS
from fedhpo_gym.tasks import Task, get_task

if TYPE_CHECKING:
    from fedhpo_gym.building import Estimate


N = TypeVar("N", int, float)

LONG_H = 1.0
"""A build that takes more hours is started with `--yes` only, unless by a script."""


def main(options: argparse.Namespace) -> int:
    """Do one of the two."""
    return {"build": build, "download": download}[options.command](options)


def build(options: argparse.Namespace) -> int:
    """Compute the table of a problem, or a sample of it."""
    from fedhpo_gym.building import build_sample, build_table

    check_executor(options.executor, options.address)
    task = asked_task(options)
    where = {name: getattr(options, name) for name in ("workers", "merge", "device", "address")}
    where["announce"] = partial(_announce, options)
    if options.sample is None:
        _refuse_without_sample(options)
        card = build_table(task, folder=options.out, **where)
    else:
        card = build_sample(
            task,
            options.sample,
            rounds=_numbers("rounds", options.rounds, int),
            rates=_numbers("rates", options.rates, float),
            repeat_every=options.repeat_every,
            folder=options.out,
            only_finished=options.only_finished,
            **where,
        )
    say(str(card))
    return 0


def _announce(options: argparse.Namespace, found: Estimate) -> None:
    """Say what a build will cost; a long one needs `--yes` when somebody is there to give it."""
    from fedhpo_gym.building import tell

    tell(found)
    if found.hours > LONG_H and not options.yes and sys.stdin.isatty():
        raise InvalidArgumentError(
            f"`--yes` must be given for a build of more than {LONG_H:g} hour, and nothing was "
            "computed; `--sample N` computes N courses instead, enough to fit a surrogate on"
        )


def _refuse_without_sample(options: argparse.Namespace) -> None:
    for name in ("rounds", "rates", "repeat_every", "only_finished"):
        if value := getattr(options, name):
            word = f"--{name.replace('_', '-')}"
            raise InvalidArgumentError(
                f"`{word}` is for samples, got {value!r}; add `--sample N`: a table is whole"
            )


def _numbers(name: str, words: str | None, kind: type[N]) -> list[N] | None:
    try:
        return None if words is None else [kind(word) for word in words.split(",")]
    except ValueError as error:
        raise InvalidArgumentError(
            f"`--{name}` must be numbers with commas between them, got {words!r}"
        ) from error


def download(options: argparse.Namespace) -> int:
    """Fetch data sets; those that cannot be had do not keep the others from coming."""
    from fedhpo_gym.datasets import SOURCES
    from fedhpo_gym.datasets.bert_weights import NAME as WEIGHTS

    names = list(SOURCES) if "all" in options.names else options.names
    failed = 0
    for name in names:
        try:
            say(_fetch_weights() if name == WEIGHTS else _fetch_data(name))
        except FedHPOError as error:
            complain("download", error)
            failed += 1
    return 1 if failed else 0


def _fetch_data(name: str) -> str:
    from fedhpo_gym.datasets import SOURCES, load_dataset

    dataset = load_dataset(name)
    rows, *shape = dataset.features.shape
    columns = "x".join(map(str, shape))
    found = f"{name}: {rows} rows, {columns} features, {dataset.num_classes} classes"
    if SOURCES[name].open_licence:
        return found
    return f"{found}; no open licence ({SOURCES[name].licence})"


def _fetch_weights() -> str:
    from fedhpo_gym.datasets.bert_weights import NAME, fetch_weights

    return f"{NAME}: {fetch_weights()}"


def asked_task(options: argparse.Namespace) -> Task:
    """Return the variant of a task that the command line names."""
    wanted = {name: getattr(options, name) for name in OPTIONS}
    given = {name: value for name, value in wanted.items() if value is not None}
    task = get_task(options.id).variant(**given)
    return task.fix(dict(parse_pairs("--setting", options.settings)))
