"""A stored table as a Parquet file and a Croissant file that describes it (Akhtar et al., 2024)."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import short_repr, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_optional
from fedhpo_gym.core.files import write_text
from fedhpo_gym.stored.catalogue import open_table

if TYPE_CHECKING:
    from fedhpo_gym.stored.table import Table

ROWS: Final = "rows"
FIXED: Final = {
    "round": "rounds of training",
    "client_sample_rate": "share of the clients that train in a round",
    "seed": "of the repetition",
    "diverged": "whether training diverged by this round; metrics are of the best round before",
    "time_s": "simulated seconds of training",
}


@validate_call
def write_table(env_id: str, folder: Path, **arguments: Any) -> Path:
    """Write `<name>.parquet` and `<name>.json`, and return the latter, which is the Croissant file.

    A row is a configuration, a fidelity and a seed, with the mean of every metric over the clients,
    weighted by their samples, at the best round so far. `mlcroissant validate --jsonld` checks it.

    Args:
        env_id: an id of trials with a table.
        folder: where to write; it is made where it is missing.
        arguments: of `gymnasium.make`, such as `algorithm` and `alpha`, which choose the table.

    Raises:
        InvalidArgumentError: `arguments` hold a backend or a fidelity.
        MissingDataError: there is no table.
        MissingDependencyError: mlcroissant or pyarrow is not installed.
        OSError: a file cannot be written.
    """
    for name in ("backend", "fidelity"):
        if name in arguments:
            raise InvalidArgumentError(
                f"`{name}` must be left out, as the file holds the table at every fidelity, got "
                f"{short_repr(arguments[name])}"
            )
    with require_optional("a Croissant file", "mlcroissant", "croissant", "mlcroissant", "pyarrow"):
        import mlcroissant as mlc
        import pyarrow as pa
        import pyarrow.parquet as pq
    with gym.make(env_id, disable_env_checker=True, backend="tabular", **arguments) as env:
        table = open_table(env.get_wrapper_attr("task").identity)
    # The time of a trial depends on its configuration and fidelity, not on a seed.
    time_arguments = {**arguments, "backend": "tabular", "objectives": ["time_s"]}
    with gym.make(env_id, disable_env_checker=True, **time_arguments) as env:
        times: NDArray[np.float64] = env.get_wrapper_attr("truth").values[:, 0]
    columns = _make_columns(table, times)
    folder.mkdir(parents=True, exist_ok=True)
    data, file = folder / f"{table.name}.parquet", folder / f"{table.name}.json"
    pq.write_table(pa.table(columns), data)
    card = table.card
    data_file = mlc.FileObject(
        id=data.name,
        name=data.name,
        content_url=data.name,
        encoding_formats=["application/x-parquet"],
        sha256=hashlib.sha256(data.read_bytes()).hexdigest(),
    )
    types = mlc.DataType
    kinds = {"i": types.INTEGER, "f": types.FLOAT, "b": types.BOOL, "U": types.TEXT}
    fields = [
        mlc.Field(
            id=f"{ROWS}/{name}",
            name=name,
            description="hyperparameter"
            if name in table.space
            else FIXED.get(name, "mean over the clients"),
            data_types=kinds[values.dtype.kind],
            source=mlc.Source(file_object=data_file.id, extract=mlc.Extract(column=name)),
        )
        for name, values in columns.items()
    ]
    metadata = mlc.Metadata(
        name=table.name,
        description=f"Learning curves of {env_id}: every configuration of a grid, under "
        f"{len(table.rates)} client sample rates and {len(table.seeds)} seeds, after "
        f"{len(table.rounds)} numbers of rounds. Data: {card['data_citation']}",
        license=[card["licence"], card["data_licence"]],
        cite_as=card["problem_citation"],
        date_published=card["created"],
        version=f"{card['version']}.0.0",
        url=f"urn:fedhpo-gym:{table.digest}",
        distribution=[data_file],
        record_sets=[mlc.RecordSet(id=ROWS, name=ROWS, fields=fields)],
    )
    write_text(file, f"{json.dumps(metadata.to_json(), indent=1, default=str)}\n")
    return file


def _make_columns(table: "Table", times: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """Return the columns of all rows; seeds, the last axis, vary fastest."""
    diverged_at = table.codes("diverged_at")
    names = [*table.space.names, "client_sample_rate", "seed"]
    grids = [d.grid for d in table.space.dimensions]
    axes = [table.rounds, *grids, table.rates, table.seeds]
    shape = tuple(map(len, axes))
    axis_values = dict(zip(["round", *names], np.meshgrid(*axes, indexing="ij"), strict=True))
    columns = {
        name: axis_values[name] for name in (*table.space.names, *FIXED) if name in axis_values
    }
    columns["diverged"] = (diverged_at > 0) & (diverged_at <= axis_values["round"])
    # The truth has the order of the search space: (*configuration, rounds, rates).
    time_s = times.reshape(*shape[1:-2], shape[0], shape[-2])
    time_s = np.moveaxis(time_s, -2, 0)[..., None]
    columns["time_s"] = np.broadcast_to(time_s, shape)
    for split in table.splits:
        for metric in table.metrics:
            columns[f"{split}_{metric}"] = table.objective(split, metric)
    return {name: values.reshape(-1) for name, values in columns.items()}
