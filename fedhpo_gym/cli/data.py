"""`fedhpo-gym build | queue | download`: getting and making what backends answer from.

`build_numbers` prints what a table or a sample costs, and `building/build.py` computes it; a long
build needs `--yes`. `queue` trains a list of samples. `download` fetches data sets, and `leaf`
converts the files of LEAF. `make` and `doctor` install FederatedScope and check the installation.
Errors of one data set or sample are printed and the others go on; the exit status says whether
there was one.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from fedhpo_gym.backends.federatedscope.installation import (
    VARIABLE,
    describe_requirements,
    find_installation,
    install,
)
from fedhpo_gym.cli.console import (
    Arg,
    Cluster,
    OwnTables,
    Variant,
    echo,
    echo_error,
    echo_table,
    parse_task,
)
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.core.errors import (
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    require_optional,
)
from fedhpo_gym.core.files import new_folder
from fedhpo_gym.core.processes import check_executor
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.tasks import get_task

if TYPE_CHECKING:
    from fedhpo_gym.building.build import Estimate
    from fedhpo_gym.building.compute_queue import Progress

N = TypeVar("N", int, float)

LONG_H = 1.0
"""A build that takes more hours is started with `--yes` only, unless by a script."""


def build_numbers(
    variant: Variant,
    *,
    sample: Annotated[int | None, Arg("N courses spread evenly instead of the grid", "N")] = None,
    rounds: Annotated[
        str | None, Arg("rounds of a sample (all); 27,27,81: two of three end after 27", "R,S")
    ] = None,
    rates: Annotated[str | None, Arg("client sample rates of a sample (the grid's)", "A,B")] = None,
    repeat_every: Annotated[
        int | None, Arg("of N configurations of a sample, the first comes under all seeds", "N")
    ] = None,
    crossed: Annotated[
        bool, Arg("train N configurations at every one of the rates, under the first seed")
    ] = False,
    only_finished: Annotated[
        bool, Arg("compute nothing: store those courses of the sample that are finished")
    ] = False,
    merge: Annotated[
        Sequence[Path], Arg("folders of the same build on other machines", "DIR", several=True)
    ] = (),
    workers: Annotated[int | None, Arg("processes (one per core)", "N")] = None,
    cluster: Cluster,
    device: Annotated[str, Arg("torch device (cpu)")] = "cpu",
    out: OwnTables = None,
    yes: Annotated[bool, Arg("start a build of more than an hour")] = False,
) -> int:
    """Compute the table of a problem, or a sample of it."""
    from fedhpo_gym.building.build import build_sample, build_table

    check_executor(cluster.executor, cluster.address)
    task = parse_task(variant)
    shared_options: dict[str, Any] = {
        "workers": workers, "merge": merge, "device": device, "address": cluster.address,
        "announce": partial(_announce, yes), "folder": out,
    }  # fmt: skip
    sample_options: dict[str, Any] = {
        "rounds": rounds, "rates": rates, "repeat_every": repeat_every, "crossed": crossed,
        "only_finished": only_finished,
    }  # fmt: skip
    if sample is None:
        for name, value in sample_options.items():
            if value:
                raise InvalidArgumentError(
                    f"`--{name.replace('_', '-')}` is for samples, got {value!r}; add "
                    "`--sample N`: a table is whole"
                )
        card = build_table(task, **shared_options)
    else:
        sample_options["rounds"] = _parse_numbers("rounds", rounds, int)
        sample_options["rates"] = _parse_numbers("rates", rates, float)
        card = build_sample(task, sample, **sample_options, **shared_options)
    echo(str(card))
    return 0


def _announce(yes: bool, estimate: "Estimate") -> None:
    """Print the cost of a build; a long one needs `--yes` in an interactive terminal."""
    from fedhpo_gym.building.build import tell

    tell(estimate)
    if estimate.hours > LONG_H and not yes and sys.stdin.isatty():
        raise InvalidArgumentError(
            f"`--yes` must be given for a build of more than {LONG_H:g} hour, and nothing was "
            "computed; `--sample N` computes N courses instead, enough to fit a surrogate on"
        )


def queue(
    file: Annotated[Path, Arg("the list: TOML with tables `[[sample]]`", "FILE")],
    *,
    workers: Annotated[int, Arg("processes (1)", "N")] = 1,
    device: Annotated[str, Arg("torch device (cpu)")] = "cpu",
    out: OwnTables = None,
    only: Annotated[str | None, Arg("only problems whose name holds this word", "WORD")] = None,
    status: Annotated[bool, Arg("train nothing: say what is done, running and left")] = False,
    store: Annotated[
        Path | None, Arg("train nothing: write the cards of what is done", "DIR")
    ] = None,
    arrays: Annotated[Path | None, Arg("folder of the arrays that `--store` writes", "DIR")] = None,
    fewest: Annotated[
        int, Arg("`--store` unfinished samples of N configurations, too (40)", "N")
    ] = 40,
) -> int:
    """Train the samples of a list, in its order; the same command goes on after what is done."""
    from fedhpo_gym.building.compute_queue import progress_of, read_queue, store_queue, train_queue
    from fedhpo_gym.stored.catalogue import table_folder

    if (status and store is not None) or (arrays is not None and store is None):
        raise InvalidArgumentError("`--arrays` must come with `--store`, and `--status` without it")
    folder = table_folder() if out is None else out
    designs = [
        design for design in read_queue(file) if only is None or only in design.task.table_name
    ]
    if not designs:
        raise InvalidArgumentError(
            f"`--only` must be a part of the name of a sample that {file} lists, got {only!r}; "
            "`--status` prints the names"
        )
    if status:
        say_progress([progress_of(design, folder) for design in designs])
        return 0
    if store is not None:
        warn = partial(echo_error, "queue")
        for card in store_queue(designs, folder, store, arrays or store, fewest, warn):
            echo(str(card))
        return 0
    return 1 if train_queue(designs, folder, workers, device, partial(echo_error, "queue")) else 0


def say_progress(rows: "Sequence[Progress]") -> None:
    """Print a line for each sample of a queue, and the used and remaining core-hours of all."""
    hours = [(row.core_s / 3600, (row.left_s or 0.0) / 3600) for row in rows]
    echo_table(
        ("sample", "courses", "state", "core-hours", "left"),
        [
            (
                row.design.task.table_name,
                f"{row.trained}/{row.design.size}",
                row.state,
                f"{used_h:.2f}",
                f"{left_h:.2f}" if row.left_s is not None else "not known",
            )
            for row, (used_h, left_h) in zip(rows, hours, strict=True)
        ],
    )
    done = sum(row.state == "done" for row in rows)
    unknown = sum(row.left_s is None and row.state != "done" for row in rows)
    used_h, left_h = (sum(pair[column] for pair in hours) for column in (0, 1))
    echo(
        f"{done} of {len(rows)} samples done, {used_h:.1f} core-hours spent here, {left_h:.1f} "
        f"left, and {unknown} samples whose cost is not known yet."
    )


def _parse_numbers(name: str, words: str | None, kind: type[N]) -> list[N] | None:
    try:
        return None if words is None else [kind(word) for word in words.split(",")]
    except ValueError as error:
        raise InvalidArgumentError(
            f"`--{name}` must be numbers with commas between them, got {words!r}"
        ) from error


def download(
    names: Annotated[Sequence[str], Arg("data sets, `all` of them, or BERT-Tiny", "DATASET")],
) -> int:
    """Fetch data sets; errors of some do not stop the others."""
    from fedhpo_gym.data import SOURCES, get_source, load_dataset
    from fedhpo_gym.data.sentences import NAME as WEIGHTS
    from fedhpo_gym.data.sentences import fetch_weights

    failed = 0
    for name in SOURCES if "all" in names else names:
        try:
            if name == WEIGHTS:
                echo(f"{name}: {fetch_weights()}")
                continue
            dataset = load_dataset(name)
        except FedHPOError as error:
            echo_error("download", error)
            failed += 1
            continue
        rows, *shape = dataset.features.shape
        columns, source = "x".join(map(str, shape)), get_source(name)
        closed = "" if source.open_licence else f"; no open licence ({source.licence})"
        echo(f"{name}: {rows} rows, {columns} features, {dataset.num_classes} classes{closed}")
    return 1 if failed else 0


def leaf(
    folder: Annotated[Path, Arg("json files, or LEAF's data/<name>", "DIR")],
    *,
    out: Annotated[Path, Arg("must not exist yet", "DIR")],
    sampling: Annotated[
        Literal["iid", "niid"] | None, Arg("sample; else keep all", flag="-s")
    ] = None,
    fraction: Annotated[float, Arg("of the samples (0.1)", flag="--sf")] = 0.1,
    iid_users: Annotated[
        float | None, Arg("users made by iid sampling, a share or a number (0.01)", flag="--iu")
    ] = None,
    min_samples: Annotated[int | None, Arg("fewest samples of a user", flag="-k")] = None,
    split: Annotated[
        Literal["user", "sample"] | None, Arg("split by user or sample", flag="-t")
    ] = None,
    train_fraction: Annotated[float, Arg("(0.9)", flag="--tf")] = 0.9,
    gap: Annotated[int | None, Arg("samples between training and test (Shakespeare: 79)")] = None,
    sampling_seed: Annotated[int, Arg("(0)", flag="--smplseed")] = 0,
    split_seed: Annotated[int, Arg("(0)", flag="--spltseed")] = 0,
) -> int:
    """Read, sample, split and write; a manifest records options and files."""
    from fedhpo_gym.data import leaf
    from fedhpo_gym.data.leaf import Options, preprocess

    files = leaf.find_files(folder)
    if not files:
        raise MissingDataError(
            f"{folder} has no LEAF json files; run LEAF's preprocess.sh for the data set"
        )
    if out.exists():
        raise InvalidArgumentError(f"`--out` must not exist yet, got {out}")
    require_writable(out.parent, "`--out`, without its last part,")
    options = Options(
        sampling=sampling, fraction=fraction, iid_users=iid_users, min_samples=min_samples,
        split=split, train_fraction=train_fraction, gap=gap, sampling_seed=sampling_seed,
        split_seed=split_seed,
    )  # fmt: skip
    marks, paths = {leaf.MANIFEST_KEY: leaf.MANIFEST}, []
    with new_folder(out) as new:
        for name, data in preprocess(leaf.read_files(files), options).items():
            paths += leaf.write_files(new / name, "all_data", data, marks=marks)
            echo(f"{name}: {len(data.users)} users, {data.num_samples} samples")
        leaf.write_manifest(new, asdict(options), paths)
    return 0


def make(
    folder: Annotated[Path, Arg("a new folder", "DIR")],
    *,
    source: Annotated[Path, Arg("FederatedScope's source tree", "TREE")],
    dry_run: Annotated[bool, Arg("only say what it needs")] = False,
) -> int:
    """Make an interpreter that can run FederatedScope."""
    echo(describe_requirements(folder, source))
    if not dry_run:
        installation = install(folder, source, echo)
        echo(f"Done: {installation.interpreter}\nNow `export {VARIABLE}={folder.absolute()}`,")
        echo("and `fedhpo-gym federatedscope doctor` tries it.")
    return 0


_TRIED_TASK = "LR-BreastCancer-v1"
"""Its data comes with scikit-learn."""
_TRIED_ROUNDS = 3


def _examine(source: str | None, interpreter: str | None) -> Iterator[tuple[str, bool, str]]:
    """Yield each part, whether it works, and a description; stop at the first fault."""
    try:
        where = find_installation(source, interpreter)
    except FedHPOError as error:
        yield "source and interpreter", False, str(error)
        return
    yield "source and interpreter", True, f"{where.source}, {where.interpreter}"
    from fedhpo_gym.backends.federatedscope.backend import FederatedScope

    task = get_task(_TRIED_TASK)
    begun = time.monotonic()
    try:
        backend = FederatedScope(task, 1, str(where.source), str(where.interpreter))
    except (FedHPOError, OSError) as error:
        yield "imports", False, str(error)
        return
    versions = ", ".join(f"{name} {version}" for name, version in backend.versions.items())
    yield "imports", True, f"{versions}; {time.monotonic() - begun:.1f} s"
    begun = time.monotonic()
    middle = {d.name: d.decode(0.5) for d in task.space.dimensions}
    try:
        loss = backend.evaluate(middle, Fidelity(_TRIED_ROUNDS, 1.0)).mean("val", "loss", "current")
        took = f"{time.monotonic() - begun:.1f} s"
        yield "a course", True, f"{_TRIED_ROUNDS} rounds, loss {loss:.3f}, {took}"
    except (FedHPOError, OSError) as error:
        yield "a course", False, str(error)
    finally:
        backend.close()


def doctor(
    *,
    source: Annotated[str | None, Arg("(that of FEDHPO_GYM_FEDERATEDSCOPE)", "TREE")] = None,
    interpreter: Annotated[str | None, Arg("(likewise)", "PYTHON")] = None,
) -> int:
    """Print what works; 1 where there is a fault."""
    all_work = True
    with require_optional("the doctor's course", "torch", "raw", "torch"):
        for component, works, reason in _examine(source, interpreter):
            echo(f"{'ok   ' if works else 'FAULT'}  {component}: {reason}")
            all_work = all_work and works
    echo("FederatedScope can be used." if all_work else "FederatedScope cannot be used yet.")
    return 0 if all_work else 1


FEDERATEDSCOPE: Final = {
    "install": (make, "make an interpreter with fixed versions"),
    "doctor": (doctor, "start it, train three rounds, say what is wrong"),
}
