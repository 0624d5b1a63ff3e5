"""`fedhpo-gym report | export | regret | tuning-cost`: results of finished runs.

Each function is a subcommand (`fedhpo_gym.cli.COMMANDS`) and returns its exit status. Damaged
records are named, set aside and left out, and make the status 1. The analysis itself is in
`fedhpo_gym.analysis` and `fedhpo_gym.studies.regret`; this module reads arguments and writes files.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tqdm import tqdm

from fedhpo_gym.analysis import Report, RunRecord, build_report, group, read_folder, set_aside
from fedhpo_gym.analysis.comparison import count_noun
from fedhpo_gym.analysis.figures import File
from fedhpo_gym.analysis.landscape import landscape as landscape_of
from fedhpo_gym.analysis.landscape import landscape_figure
from fedhpo_gym.analysis.page import csv_text
from fedhpo_gym.analysis.problems import ReferenceValues
from fedhpo_gym.analysis.report import sentences
from fedhpo_gym.analysis.tuning_cost import (
    WEIGHTS,
    Runs,
    expected_curve,
    omega_tunability,
    probability_of_best,
    read_library,
    relative_performance,
)
from fedhpo_gym.cli.console import (
    Arg,
    Named,
    Records,
    Rule,
    echo,
    echo_error,
    echo_table,
    parse_pairs,
)
from fedhpo_gym.core import __version__
from fedhpo_gym.core.archive import require_writable_file
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    unknown_name,
)
from fedhpo_gym.core.files import new_file, write_text
from fedhpo_gym.evaluation.multi_objective import can_compute_volumes
from fedhpo_gym.records.files import read_each, read_judged
from fedhpo_gym.records.incumbents import RULE, read_table
from fedhpo_gym.records.record import Header
from fedhpo_gym.records.runs import problem_of, run_arguments
from fedhpo_gym.studies.export import check_values, to_optuna
from fedhpo_gym.studies.plan import problem_name
from fedhpo_gym.studies.regret import hypervolume_regret_of, known_of, regret_of
from fedhpo_gym.studies.replay import from_stored_numbers, present_fingerprint
from fedhpo_gym.studies.run import GOOD, read_log

_OURS = re.compile(r"(study|problem)-\d+-[a-z0-9-]+\.(csv|tex|svg|pdf)")
_KINDS = (".pdf", ".svg", ".csv")


def report(
    paths: Records = (),
    *,
    tables: Annotated[
        Sequence[Path],
        Arg(
            "runs of another program: a CSV file with problem, agent, seed, time, value and, if "
            "known, level (how much of a course was trained) and test; may be given several times",
            "FILE",
            "--table",
        ),
    ] = (),
    figure: Annotated[
        str | None,
        Arg(
            "write one figure only, such as `rank-over-time`; --out ends with .pdf, .svg or .csv",
            "NAME",
        ),
    ] = None,
    landscape: Annotated[
        str | None, Arg("draw the losses of one problem over two hyperparameters instead", "X,Y")
    ] = None,
    rule: Rule = "recommended",
    out: Annotated[Path | None, Arg("(report.html in the folder)", "FILE")] = None,
    settings: Named = (),
    named: Mapping[str, Any] | None = None,
    tell: bool = False,
) -> int:
    """Read all records and write the page; 1 if one of them is damaged and not on it."""
    damaged: list[Path] = []
    named = {**(named or {}), **dict(parse_pairs("--set", settings))}
    sources = [*paths, *tables]
    if not sources:
        raise MissingDataError("there is nothing to report; name folders of records, or `--table`")
    if landscape is not None:
        return _draw_landscape(landscape, paths, out)
    foreign = [(path, run) for path in tables for run in read_table(path, rule)]
    records = read_each(paths, read_judged, _make_handler("report", damaged)) if paths else ()
    with tqdm(unit=" optima", disable=None, leave=False) as bar:

        def optimum_of(header: Header) -> ReferenceValues | None:
            bar.set_postfix_str(
                header.id
            )  # under unusual arguments it is searched, for a minute or so
            values = known_of(header, named, partial(echo_error, "report"))
            bar.update()
            return values

        present = partial(present_fingerprint, named=named)
        problems = group(records, foreign, present, rule, optimum_of)
    folder = sources[0] if sources[0].is_dir() else sources[0].parent
    target = _figure_file(figure, out) if figure else out or folder / "report.html"
    require_writable_file(target, "`--out`")
    if tell and not find_spec("matplotlib"):  # the verdict needs no figures
        echo("\n".join(sentences(problems)))
        command = f"fedhpo-gym report {sources[0]}{f' --rule {rule}' if rule != RULE else ''}"
        echo(f"For the page: `pip install '.[plot]'`, then `{command}`")
        return 1 if damaged else 0
    report = build_report(problems, __version__, unfinished=_unfinished(paths), rule=rule)
    if figure is None:
        _write_page(report, target)
    else:
        _write_figure(report, figure, target)
    if tell:
        echo("\n".join(report.words))
    echo(str(target))
    return 1 if damaged else 0


def _draw_landscape(names: str, paths: Sequence[Path], out: Path | None) -> int:
    """Draw the losses of one problem over two hyperparameters."""
    first, _, second = names.partition(",")
    if not (first and second) or "," in second:
        raise InvalidArgumentError(
            f"`--landscape` must be two names with a comma between them, got {names!r}"
        )
    target = _figure_file("landscape", out)
    require_writable_file(target, "`--out`")
    records, damaged = whole_records("report", paths)
    result = landscape_of([record for _, record in records], (first, second))
    drawing = landscape_figure(result, f"Validation loss over {first} and {second}")
    _write_file(target, drawing.files()[f"landscape{target.suffix}"])
    echo(str(target))
    return 1 if damaged else 0


def _write_page(report: Report, target: Path) -> None:
    folder = target.with_name(f"{target.stem}_files")
    folder.mkdir(exist_ok=True)
    for former in folder.iterdir():  # stale files of a former report of more problems
        if _OURS.fullmatch(former.name) and former.name not in report.files:
            former.unlink()
    for name, content in report.files.items():
        _write_file(folder / name, content)
    write_text(target, report.html)


def _write_file(path: Path, content: File) -> None:
    with new_file(path) as handle:
        handle.write(content.encode("utf-8") if isinstance(content, str) else content())


def _figure_file(name: str, out: Path | None) -> Path:
    target = out or Path(f"{name}.pdf")
    if target.suffix not in _KINDS:
        raise InvalidArgumentError(f"`--out` of a figure must end with one of {_KINDS}, got {out}")
    return target


def _write_figure(report: Report, name: str, target: Path) -> None:
    """Write one figure: of the largest study unless the name says which, or of a problem."""
    for candidate in (name, f"study-1-{name}", f"problem-1-{name}"):
        if f"{candidate}.pdf" in report.files:
            _write_file(target, report.files[f"{candidate}{target.suffix}"])
            return
    names = {file.removesuffix(".pdf") for file in report.files if file.endswith(".pdf")}
    raise unknown_name("figure", name, names | {n.removeprefix("study-1-") for n in names})


def _unfinished(paths: Sequence[Path]) -> list[list[str]]:
    """Return the runs that studies in these folders have logged and left no record of."""
    return [
        [
            problem_name(cell["plan"]["id"], cell["plan"]["kwargs"]), cell["plan"]["agent"],
            str(cell["plan"]["seed"]), cell["status"], cell["words"],
        ]
        for path in paths
        if path.is_dir()
        for cell in read_log(path)
        if cell["status"] not in GOOD
    ]  # fmt: skip


def whole_records(
    command: str, paths: Sequence[Path]
) -> tuple[list[tuple[Path, RunRecord]], list[Path]]:
    """Read every record in some files and folders; a damaged one is named and set aside."""
    damaged: list[Path] = []
    return list(read_folder(paths, _make_handler(command, damaged))), damaged


def _make_handler(command: str, damaged: list[Path]) -> Callable[[Path, DamagedDataError], None]:
    def tell(path: Path, error: DamagedDataError) -> None:
        echo_error(command, set_aside(path, error))
        damaged.append(path)

    return tell


def export(
    paths: Records, *, optuna: Annotated[Path, Arg("a new SQLite file of Optuna's", "FILE")]
) -> int:
    """Write all whole records as studies of Optuna; 1 if one is damaged."""
    require_writable_file(optuna, "`--optuna`")
    records, damaged = whole_records("export", paths)
    for path, record in records:
        check_values(path, record)
    for name in to_optuna([record for _, record in records], optuna):
        echo(name)
    echo(f"{optuna}: open it with `optuna-dashboard sqlite:///{optuna}`")
    return 1 if damaged else 0


REGRET_HEADS = ("id", "agent", "seed", "trials", "regret", "relative", "of the hypervolume")
COLUMNS = (
    *("problem", "variant", "agent", "seed", "trial", "time"),
    *("regret", "relative_regret", "hypervolume_regret"),
)


def regret(
    paths: Records,
    *,
    out: Annotated[Path | None, Arg("a CSV file of the regret after every trial", "FILE")] = None,
    settings: Named = (),
) -> int:
    """Print the final regret of every record; 1 if one is damaged or cannot be judged.

    Runs of courses that are trained have none that anybody knows: they are counted and left out.
    """
    named = dict(parse_pairs("--set", settings))
    if out is not None:
        require_writable_file(out, "`--out`")
    records, damaged = whole_records("regret", paths)
    table: list[Sequence[object]] = [COLUMNS]
    rows, problems, failed, trained = [], set(), 0, 0
    for path, record in records:
        if not from_stored_numbers(record.header):
            trained += 1
            continue
        try:
            lines = list(_regret_rows(record, named))
        except FedHPOError as error:
            echo_error("regret", f"{path}: {error}")
            failed += 1
            continue
        table += lines
        env_id, variant, *identity, trial, _, regret, relative, missing = lines[-1]
        numbers = [f"{value:.4g}" if value != "" else "–" for value in (regret, relative, missing)]
        rows.append([env_id, *map(str, identity), str(trial), *numbers, variant])
        problems.add((env_id, json.dumps(problem_of(record.header), sort_keys=True)))
    if rows or not trained:
        runs = {tuple(row[:3]) for row in rows}
        is_ambiguous = len(problems) > len({row[0] for row in rows}) or len(runs) < len(rows)
        heads = (*REGRET_HEADS, "arguments") if is_ambiguous else REGRET_HEADS
        echo_table(heads, [row[: len(heads)] for row in rows])
    if not can_compute_volumes() and any(
        isinstance(r.final.reward, list | tuple) for _, r in records
    ):
        echo("the last column needs moocore: install the extra `fronts`")
    if trained:
        echo(
            f"left out: {count_noun(trained, 'run')} of courses that were trained; what those can "
            "reach, nobody knows"
        )
    if out is not None:
        write_text(out, csv_text(table))
        echo(str(out))
    return 1 if damaged or failed else 0


def _regret_rows(record: RunRecord, named: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield a row of `COLUMNS` per trial; for one objective, the hypervolume is empty."""
    header, result = record.header, regret_of(record, named=named)
    variant = json.dumps(run_arguments(header), sort_keys=True)
    missing: list[Any] = [""] * len(record.steps)
    if isinstance(record.final.reward, list | tuple) and can_compute_volumes():
        missing = hypervolume_regret_of(record, named=named)[1].tolist()
    columns = (result.elapsed_s.tolist(), result.regret.tolist(), result.relative.tolist(), missing)
    for trial, row in enumerate(zip(*columns, strict=True), start=1):
        yield (header.id, variant, header.agent, header.seed, trial, *row)


def tuning_cost(
    runs: Annotated[
        Path,
        Arg("CSV, a line per trial: algorithm, problem, validation; test, cost if known", "FILE"),
    ],
    *,
    trials: Annotated[int, Arg("trials of the largest search (100)")] = 100,
) -> int:
    """Print the expected loss of each algorithm after k random trials, and which is likely best."""
    if trials < 1:
        raise InvalidArgumentError(f"`--trials` must be at least 1, got {trials}")
    library = read_library(runs)
    budgets = sorted({k for k in (1, 4, 16, 64) if k < trials} | {trials})
    heads = ("algorithm", *(f"k = {k}" for k in budgets), "CPE", "CPL", f"best, k = {trials}")
    expected = []
    for problem in library.problems:
        runs_of = {name: library.of(name, problem) for name in library.algorithms}
        curves = {
            name: expected_curve(found, range(1, trials + 1)) for name, found in runs_of.items()
        }
        echo(f"{problem}: expected test loss after k trials, chosen by validation")
        echo_table(heads, _cost_rows(runs_of, curves, budgets))
        expected.append([curve[[k - 1 for k in budgets]] for curve in curves.values()])
    found = np.array(expected).swapaxes(0, 1)
    if np.all(found > 0):
        echo("S(o, k): the best expected loss over that of the algorithm, mean over problems")
        shares = relative_performance(found)
        rows = [
            (name, *(f"{share:.3f}" for share in row))
            for name, row in zip(library.algorithms, shares, strict=True)
        ]
        echo_table(heads[: 1 + len(budgets)], rows)
    return 0


def _cost_rows(
    runs: Mapping[str, Runs], curves: Mapping[str, np.ndarray], budgets: list[int]
) -> list[tuple[str, ...]]:
    """Return a row per algorithm: expected losses, means with early and late weight, a chance."""
    chances = probability_of_best(runs, budgets[-1])
    rows = []
    for name, curve in curves.items():
        means = [
            float(omega_tunability(curve, WEIGHTS[weighting](len(curve))))
            for weighting in ("cpe", "cpl")
        ]
        values = [*(float(curve[k - 1]) for k in budgets), *means]
        rows.append((name, *(f"{value:.4g}" for value in values), f"{100 * chances[name]:.0f} %"))
    return rows
