"""A program that copies Arrow and Parquet files for `frames`, whose process they may end.

Arrow trusts what files declare, so that changed bytes can end its process and few bytes can ask for
gigabytes. This process has a limit of memory, validates every batch in full, and copies it without
compression. It imports nothing of this package, and prints in one line what is wrong.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

TOO_LARGE = 3
"""Exit status, as `frames` reads it."""
ROWS = 1 << 14
_ROOM = 1 << 29
"""Bytes that decoding may take besides: pages, dictionaries and their copies."""


def batches(path: Path) -> Iterator[Any]:
    """Yield the schema of a file, then its record batches."""
    from pyarrow import ipc, parquet

    if path.suffix in (".parquet", ".pq"):
        with parquet.ParquetFile(path) as file:
            yield file.schema_arrow
            yield from file.iter_batches(ROWS, use_threads=False)
        return
    with path.open("rb") as handle, ipc.open_stream(handle) as reader:
        yield reader.schema
        yield from reader


def size_of(batch: Any) -> int:
    """Return the bytes of a batch where no stored value stands for several rows."""
    import pyarrow as arrow

    size = 0
    for column in batch.columns:
        if arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        elif "view" in str(column.type):
            column = column.cast(arrow.large_string())
        size += max(column.nbytes, 8 * len(column))
    return size


def limit_memory(size: int) -> None:
    """Give this process so much memory besides what it has, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = held * resource.getpagesize() + size
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    """Copy the files that standard input names to `0`, `1`, ... in a folder.

    Raises:
        MemoryError: the data would take more memory than they may.
    """
    import pyarrow as arrow
    from pyarrow import ipc

    asked = json.loads(sys.stdin.read())
    arrow.set_memory_pool(arrow.system_memory_pool())
    arrow.set_cpu_count(1)
    limit_memory(_ROOM + 2 * asked["limit"])
    left = asked["limit"]
    for number, name in enumerate(asked["files"]):
        found = batches(Path(name))
        schema = next(found)
        with ipc.new_stream(str(Path(asked["folder"]) / str(number)), schema) as copy:
            for batch in found:
                batch.validate(full=True)
                left -= size_of(batch)
                if left < 0:
                    raise MemoryError
                copy.write_batch(batch)


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        sys.exit(TOO_LARGE)
    except Exception as error:  # noqa: BLE001 - whatever Arrow raises is about the content
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
