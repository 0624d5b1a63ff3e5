"""The compute queue: a list of samples to train, in order of worth, that goes on where it was.

`fedhpo-gym queue FILE` and `make numbers` call it. An entry of the list is a `Sample` of some
problems, and its units are those of `building.sample`: each is stored as soon as it is trained, so
that an interruption costs one unit of each process, and several processes, or machines that share
the folder, divide the work. Besides the units, a design's folder holds `seconds`, with one line for
each unit: the seconds it took, on one core. It also holds the fingerprint of the data set, so that
the status of a queue needs no data.
"""

import copy
import glob
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fedhpo_gym.building.build import UnitWork, claim, compute_units, set_damaged_aside
from fedhpo_gym.building.sample import SampleDesign, SampleUnit
from fedhpo_gym.core.archive import EMBEDDED_FOLDER, require_writable, second_folder
from fedhpo_gym.core.checks import CheckedFields, Range, coerce_record, short_repr, validate_call
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.core.files import new_file, read_json, read_toml
from fedhpo_gym.stored.catalogue import find_stored
from fedhpo_gym.stored.surrogate import has_surrogate
from fedhpo_gym.stored.table import SUFFIX, Sample
from fedhpo_gym.tasks import Task, get_task

SECONDS = "seconds"
"""File of a design's folder: name of each unit, and the seconds it took."""
FINGERPRINT = "data_fingerprint"
"""File of a design's folder, and entry of cards: the fingerprint of the data set."""
_SECONDS = re.compile(r"(\S+) (\d+\.\d\d)")
MOST_CONFIGURATIONS = 100_000
"""Of a list, and of an entry: its courses are numbered in memory."""


@dataclass(frozen=True, kw_only=True)
class QueuedSample(CheckedFields):
    """One entry of the list: the same design for some problems.

    Attributes:
        ids: environment ids.
        configurations: how many are trained.
        rounds: how long each is trained.
        rates: client sample rates; every configuration is trained at each of them.
        algorithm: of the problems by default.
        precision: type of the numbers that are computed; of the problems by default.
        repeat_every: of so many configurations, one is trained under all seeds.
        settings: hyperparameters fixed, by name.
        tune: settings that are searched, by the lowest and the highest value.
    """

    ids: Sequence[str]
    configurations: Annotated[int, Range(1, MOST_CONFIGURATIONS)]
    rounds: Annotated[int, Range(1)]
    rates: Sequence[float]
    algorithm: str | None = None
    precision: str | None = None
    repeat_every: Annotated[int, Range(1)] | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    tune: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def designs(self) -> Iterator[SampleDesign]:
        """Yield the designs of the problems, in their order."""
        if not self.ids:
            raise InvalidArgumentError("`ids` must name at least one problem, got none")
        for env_id in self.ids:
            yield SampleDesign(
                self._variant(get_task(env_id)),
                self.configurations,
                self.rounds,
                self.rates,
                self.repeat_every,
                crossed=True,
            )

    def _variant(self, task: Task) -> Task:
        options = {"algorithm": self.algorithm, "precision": self.precision}
        overrides = {name: value for name, value in options.items() if value is not None}
        return task.variant(**overrides).fix(self.settings).tune(self.tune)


@validate_call
def read_queue(path: Path) -> list[SampleDesign]:
    """Return the designs of a list (TOML, tables `[[sample]]`), the most wanted first.

    Raises:
        InvalidArgumentError: no TOML, or an entry is missing, unknown or out of its range.
        OSError: there is no such file, or it cannot be read.
    """
    try:
        content = read_toml(path)
    except ValueError as error:
        raise InvalidArgumentError(f"{path} must be a TOML file: {error}") from error
    entries = content.pop("sample", [])
    if content or not isinstance(entries, list) or not entries:
        raise InvalidArgumentError(
            f"{path} must contain tables `[[sample]]`, in double brackets, and nothing else, got "
            f"{[*content] or short_repr(entries)}"
        )
    designs: list[SampleDesign] = []
    for position, entry in enumerate(entries, 1):
        try:
            designs += coerce_record("`[[sample]]`", QueuedSample, entry).designs()
        except FedHPOError as error:
            raise InvalidArgumentError(f"{path}, entry {position}: {error}") from error
    return designs


@dataclass(frozen=True)
class TimedWork(UnitWork[SampleUnit]):
    """`UnitWork` that notes how long each unit took."""

    def __call__(self, unit: SampleUnit, advance: Callable[[], None] | None = None) -> bool:
        start = time.process_time()  # of this process alone, whatever else the machine does
        stored_before = self.design.is_stored(unit, self.folder)
        is_stored = super().__call__(unit, advance)
        if is_stored and not stored_before:
            with (self.folder / SECONDS).open("a", encoding="utf-8") as handle:
                handle.write(f"{unit.name} {time.process_time() - start:.2f}\n")
        return is_stored


@dataclass(frozen=True)
class Progress:
    """How far a design is; courses that a stored sample holds count as trained."""

    design: SampleDesign
    trained: int  # courses
    running: bool  # whether some process trains a course of it
    core_s: float  # seconds of one core that its units took here
    left_s: float | None  # seconds of one core still to come, None where none is trained here

    @property
    def state(self) -> str:
        """In a word: done, running, begun or waiting."""
        if self.trained >= self.design.size:
            return "done"
        return "running" if self.running else "begun" if self.trained else "waiting"


def progress_of(design: SampleDesign, folder: Path) -> Progress:
    """Return how far a design is on the data of its last training; this needs no data."""
    fingerprint = _recorded_fingerprint(design, folder)
    if fingerprint is None:
        return Progress(design, 0, False, 0.0, None)
    # A copy: what trains or stores must ask the data that are here now.
    trained = copy.copy(design)
    trained.data_fingerprint = fingerprint
    parts = parts_of(trained, folder)
    missing = set(range(design.size)) - trained.done(parts)
    notes = parts / SECONDS
    text = notes.read_text("utf-8", "replace") if notes.is_file() else ""
    lines = map(_SECONDS.fullmatch, text.splitlines())  # the last may be torn
    seconds = {line[1]: float(line[2]) for line in lines if line}
    core_s = sum(seconds.values())
    timed = sum(design.points_in(name) for name in seconds)
    running = parts.is_dir() and not all(_is_free(parts, point) for point in missing)
    left_s = core_s / timed * len(missing) if timed else None if missing else 0.0
    return Progress(design, design.size - len(missing), running, core_s, left_s)


def _is_free(parts: Path, point: int) -> bool:
    with claim(parts, (point,)) as ours:
        return ours


def _recorded_fingerprint(design: SampleDesign, folder: Path) -> str | None:
    """Return the fingerprint of the data that a design was last trained on."""
    name = design.task.table_name
    files = folder.glob(f"parts/{glob.escape(name)}-{design.kind}-*/{FINGERPRINT}")
    if newest := max(files, key=lambda file: file.stat().st_mtime, default=None):
        return newest.read_text("utf-8", "replace").strip()
    card = find_stored(name, f"{SUFFIX}.json")
    return None if card is None else Sample(card).card.get(FINGERPRINT)


def parts_of(design: SampleDesign, folder: Path) -> Path:
    """Return the folder of a design's units."""
    return folder / "parts" / design.parts_name


def make_parts(design: SampleDesign, folder: Path) -> Path:
    """Make and return the folder of a design's units, for the data that are here now."""
    parts = parts_of(design, folder)
    parts.mkdir(parents=True, exist_ok=True)
    with new_file(parts / FINGERPRINT) as handle:
        handle.write(design.data_fingerprint.encode())
    return parts


def train_queue(
    designs: Sequence[SampleDesign],
    folder: Path,
    workers: int,
    device: str,
    tell: Callable[[str], None],
) -> int:
    """Train what is missing, one design after the other; return how many cannot be trained here."""
    require_writable(folder, "`--out`")
    if workers < 1:
        raise InvalidArgumentError(f"`--workers` must be at least 1, got {workers}")
    failed = 0
    for index, design in enumerate(designs, 1):
        name = f"[{index}/{len(designs)}] {design.task.table_name}"
        try:
            if design.is_published:  # reading its units once more would take seconds
                continue
            parts = make_parts(design, folder)
            set_damaged_aside(design, parts)
            if units := design.missing(parts):
                tell(f"{name}: {sum(len(unit.points) for unit in units)} courses to train")
                compute_units(design, units, parts, workers, device, work=TimedWork)
        except FedHPOError as error:
            tell(f"{name}: {error}")
            failed += 1
    return failed


def store_queue(
    designs: Sequence[SampleDesign],
    folder: Path,
    target: Path,
    arrays: Path,
    fewest: int,
    tell: Callable[[str], None],
) -> Iterator[Path]:
    """Store the trained courses of designs that have new ones, and yield their cards.

    Args:
        designs: of several of one name, the last that has enough courses is stored.
        folder: where they were trained.
        target: of the cards.
        arrays: of the arrays.
        fewest: configurations that an unfinished design must have.
        tell: is told of samples that stay, because they have more courses of another plan. Drawn
            ones from which no surrogate was fitted give way to a crossed design of any size.
    """
    if fewest < 1:
        raise InvalidArgumentError(f"`--fewest` must be at least 1, got {fewest}")
    for where, option in ((target, "`--store`"), (arrays, "`--arrays`")):
        require_writable(where, option)
    latest: dict[str, SampleDesign] = {}
    for design in designs:
        if not progress_of(design, folder).trained:  # its data need not be here
            continue
        parts = parts_of(design, folder)
        if parts.is_dir():
            set_damaged_aside(design, parts)
        if len(design.done(parts)) >= min(design.size, design.courses_of(fewest)):
            latest[design.task.table_name] = design
    new = {
        n: candidate
        for n, candidate in latest.items()
        if candidate.finished(parts_of(candidate, folder))
    }
    if not new:
        tell(
            f"no sample has new courses and {fewest} configurations; see `--status` and `--fewest`"
        )
    for name, design in new.items():
        parts = parts_of(design, folder)
        card = target / f"{name}{SUFFIX}.json"
        stored_sample = Sample(card) if card.exists() else None
        trained = len(design.done(parts))
        # Of drawn rates and seeds a pool has one each; a surrogate may still be fitted again.
        is_replaceable = (
            stored_sample is not None and not stored_sample.crossed and not has_surrogate(name)
        )
        if not (
            stored_sample is None
            or is_replaceable
            or design.extends(stored_sample)
            or len(stored_sample) <= trained
        ):
            tell(
                f"{card} stays: it has {len(stored_sample)} courses of another plan, and this "
                f"{trained}; train more, or delete it"
            )
            continue
        design.consolidate(parts, target)
        _move_arrays(card, arrays)
        yield card


def _move_arrays(card: Path, arrays: Path) -> None:
    """Move the arrays of a card to a folder, and remove those that the card named before."""
    file_name = read_json(card)["arrays"]
    if arrays != card.parent:
        shutil.move(card.parent / file_name, arrays / file_name)
    second = second_folder() if card.parent.resolve() == EMBEDDED_FOLDER else None
    for directory in filter(None, (arrays, card.parent, second)):
        for former in directory.glob(f"{card.stem}.*.npz"):
            if former.resolve() != (arrays / file_name).resolve():
                former.unlink()
