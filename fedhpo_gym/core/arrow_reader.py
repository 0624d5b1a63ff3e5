"""A program that validates Arrow and Parquet files, in a process that a damaged file may crash.

Arrow trusts the sizes that files declare: changed bytes can crash its process, and few bytes can
request gigabytes. `core.arrow_files` runs this program. It limits its memory, validates every batch
in full, and writes uncompressed copies if a folder is given. It imports nothing of this package.
It reads requests from standard input, one JSON object a line, and answers each in one line.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

SOUND, TOO_LARGE = "sound", "too large"
"""Answers; any other is the description of a fault."""
ROWS = 1 << 14
_ROOM = 1 << 29
"""Bytes that decoding needs in addition: pages, dictionaries and their copies."""


def read_batches(path: Path) -> Iterator[Any]:
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


def batch_bytes(batch: Any) -> int:
    """Return the bytes of a batch once every row has a copy of its value."""
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
    """Limit the additional memory of this process, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, hard))


def check(limit: int, files: list[str], folder: str | None) -> None:
    """Read files in full, and copy them to `0`, `1`, ... in a folder, if one is given.

    Raises:
        MemoryError: the data would take more memory than they may.
    """
    from pyarrow import ipc

    limit_memory(_ROOM + 2 * limit)
    for index, name in enumerate(files):
        batches = read_batches(Path(name))
        schema = next(batches)
        with ExitStack() as stack:
            path = Path(folder) / str(index) if folder else None
            copy = stack.enter_context(ipc.new_stream(str(path), schema)) if path else None
            for batch in batches:
                batch.validate(full=True)
                limit -= batch_bytes(batch)
                if limit < 0:
                    raise MemoryError
                if copy is not None:
                    copy.write_batch(batch)


def main() -> None:
    """Answer the requests of standard input until it ends."""
    import pyarrow as arrow

    arrow.set_memory_pool(arrow.system_memory_pool())
    arrow.set_cpu_count(1)
    for line in sys.stdin:
        try:
            check(**json.loads(line))
            answer = SOUND
        except MemoryError:
            answer = TOO_LARGE
        except Exception as error:  # noqa: BLE001 - whatever Arrow raises is about the content
            answer = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
