"""Public files of graph data, each known by the id that git gives it."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedhpo_gym.datasets import cache
from fedhpo_gym.datasets.download import fetched
from fedhpo_gym.datasets.reading import again, reading
from fedhpo_gym.errors import DamagedDataError


@dataclass(frozen=True)
class PublicFile:
    """One file in a public repository, plain or compressed with gzip in the data folder.

    Attributes:
        url: https address of the plain file at one fixed commit.
        path: where it is kept below the data folder; found without the first folder, too.
        git_blob: the id that git gives the plain file; it serves as the checksum, as the
            publisher's repository vouches for it.
    """

    url: str
    path: str
    git_blob: str

    def local(self, repair: str) -> Path:
        """Return the verified file, downloaded if it has to be and can.

        Args:
            repair: the command to name in errors.

        Raises:
            DamagedDataError: the file does not have its checksum; a bad download is not kept.
            MissingDataError: the file is neither in the data folder nor downloadable.
        """
        short = str(PurePosixPath(*PurePosixPath(self.path).parts[1:]))
        found = cache.find(self.path, f"{self.path}.gz", short, f"{short}.gz")
        if found is not None:
            self._verify(found, repair)
            return found
        target = cache.data_folder() / self.path
        with fetched(self.url, target, None, repair):
            self._verify(target, repair)
        return target

    def _verify(self, path: Path, repair: str) -> None:
        with reading(path, again(repair)):
            found = git_blob(read_plain(path))
        if found != self.git_blob:
            raise DamagedDataError(
                f"{path} has the git id {found}, expected {self.git_blob}; {again(repair)}"
            )


def read_plain(path: Path) -> bytes:
    """Return the content of a file, decompressed if its name ends in `.gz`.

    What gzip raises about a damaged file goes on: see `reading`.
    """
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def git_blob(content: bytes) -> str:
    """Return the id that git gives a file of this content."""
    whole = b"blob %d\0" % len(content) + content
    return hashlib.sha1(whole, usedforsecurity=False).hexdigest()
