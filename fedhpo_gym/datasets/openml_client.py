"""The only door to the OpenML client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets import cache
from fedhpo_gym.datasets.parsing import Column, Nominal, encode_columns
from fedhpo_gym.errors import MissingDataError


def download(task_id: int, advice: str) -> dict[str, NDArray[Any]]:
    """Download the table of an OpenML task (the client verifies the server's checksum).

    Args:
        task_id: the number of the task.
        advice: what to do when it fails, a sentence for the error.

    Returns:
        `features` (n, d) float64 and `labels` (n,) int64.

    Raises:
        MissingDependencyError: the extra `data` is not installed.
        MissingDataError: the download failed.
    """
    openml: Any = cache.require("openml", "data")
    openml.config.set_root_cache_directory(str(cache.data_folder() / "openml-client"))
    try:
        task = openml.tasks.get_task(task_id, download_splits=False)
        frame, target, _, _ = task.get_dataset().get_data(target=task.target_name)
    except Exception as error:
        raise MissingDataError(
            f"OpenML task {task_id} could not be downloaded: {error}. {advice}"
        ) from error
    columns: list[Column] = [_column(frame[name]) for name in frame.columns]
    features, labels = encode_columns([*columns, _column(target)])
    return {"features": features, "labels": labels}


def _column(series: Any) -> Column:
    if hasattr(series, "cat"):
        order = tuple(str(category) for category in series.cat.categories)
        return Nominal([str(value) for value in series], order)
    return np.asarray(series, dtype=np.float64)
