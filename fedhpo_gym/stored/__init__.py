"""Stored numbers: tables, samples, surrogates fitted on them, and what is known of all three."""

from typing import TYPE_CHECKING

from fedhpo_gym.core import lazy_names

if TYPE_CHECKING:
    from fedhpo_gym.stored.catalogue import (
        list_samples,
        list_tables,
        open_sample,
        open_table,
        table_folder,
        writable_table_folder,
    )
    from fedhpo_gym.stored.health import (
        HEALTH,
        LABELS,
        health_of,
        health_on,
        labels_on,
        write_health,
    )
    from fedhpo_gym.stored.sample import Sample
    from fedhpo_gym.stored.surrogate import (
        Surrogate,
        has_surrogate,
        list_surrogates,
        open_preferred,
        open_surrogate,
    )
    from fedhpo_gym.stored.table import Table

__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": "list_samples, list_tables, open_sample, "
        "open_table, table_folder, writable_table_folder",
        "health": "HEALTH, LABELS, health_of, health_on, labels_on, write_health",
        "sample": "Sample",
        "surrogate": "Surrogate, has_surrogate, list_surrogates, open_preferred, open_surrogate",
        "table": "Table",
    },
)

__all__ = [
    "HEALTH",
    "LABELS",
    "Sample",
    "Surrogate",
    "Table",
    "has_surrogate",
    "health_of",
    "health_on",
    "labels_on",
    "list_samples",
    "list_surrogates",
    "list_tables",
    "open_preferred",
    "open_sample",
    "open_surrogate",
    "open_table",
    "table_folder",
    "writable_table_folder",
    "write_health",
]
