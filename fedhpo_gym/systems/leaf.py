"""System metrics as LEAF counts them, and the two CSV files that it writes.

Caldas et al. (2018), LEAF, section 2; `models/metrics/writer.py` of TalwalkarLab/leaf
(BSD-2-Clause) for the columns.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.files import write_text
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Evaluation

Amount: TypeAlias = Annotated[float, Range(0)]


@dataclass(frozen=True, kw_only=True)
class StatRow:
    """How the model of a round does on a client's data: a line of LEAF's file of statistics."""

    client_id: str
    round_number: int
    hierarchy: str = ""
    num_samples: int
    set: Literal["train", "test"]
    accuracy: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class SysRow:
    """What a client spent in a round in which it trained: a line of LEAF's file of systems."""

    client_id: str
    round_number: int
    hierarchy: str = ""
    num_samples: int
    set: Literal["train"] = "train"
    bytes_written: float
    bytes_read: float
    local_computations: float


@validate_call
def local_computations(
    epochs: Amount,
    num_samples: Amount,
    batch_size: Annotated[int, Range(1)],
    flops_per_sample: Amount,
) -> float:
    """Return a client's floating point operations in a round, of whole minibatches as in LEAF."""
    return epochs * (num_samples // batch_size) * batch_size * flops_per_sample


def stat_rows(evaluation: Evaluation, seed: int) -> list[StatRow]:
    """Return the rows of a model: its accuracy and loss on every client's train and test data."""
    if seed not in evaluation.seeds:
        raise InvalidArgumentError(f"`seed` must be one of {evaluation.seeds}, got {seed!r}.")
    at = evaluation.seeds.index(seed)
    current_metrics = evaluation.current
    round_number = (
        evaluation.fidelity.round if current_metrics is not None else int(evaluation.best_round[at])
    )
    metrics = (evaluation.best if current_metrics is None else current_metrics)[at]
    rows = []
    splits: tuple[Literal["train", "test"], ...] = ("train", "test")
    for split in splits:
        for client, row in enumerate(metrics[:, SPLITS.index(split)]):
            samples = int(evaluation.num_samples[at, client, SPLITS.index(split)])
            loss, accuracy = (float(row[METRICS.index(name)]) for name in ("loss", "accuracy"))
            rows.append(
                StatRow(
                    client_id=str(client), round_number=round_number, num_samples=samples,
                    set=split, accuracy=accuracy, loss=loss,
                )
            )  # fmt: skip
    return rows


def sys_rows(
    num_samples: Sequence[int],
    *,
    first_round: int,
    epochs: int,
    batch_size: int,
    flops_per_sample: float,
    message_bytes: tuple[float, float],
    rounds: int = 1,
) -> list[SysRow]:
    """Return the rows of some rounds of which each had the same cohort, of (clients,) samples."""
    return [
        SysRow(
            client_id=str(client),
            round_number=first_round + index,
            num_samples=samples,
            bytes_written=message_bytes[0],
            bytes_read=message_bytes[1],
            local_computations=local_computations(epochs, samples, batch_size, flops_per_sample),
        )
        for index in range(rounds)
        for client, samples in enumerate(num_samples)
        if samples
    ]


def write_metrics(
    folder: Path, stat: Iterable[StatRow], system: Iterable[SysRow], name: str = "metrics"
) -> tuple[Path, Path]:
    """Write `<name>_stat.csv` and `<name>_sys.csv`; each replaces an older one as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    parts: tuple[tuple[str, Any, Iterable[Any]], ...] = (
        ("stat", StatRow, stat), ("sys", SysRow, system)
    )  # fmt: skip
    for file_kind, kind, rows in parts:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
        paths.append(folder / f"{name}_{file_kind}.csv")
        write_text(paths[-1], text.getvalue())
    return paths[0], paths[1]
