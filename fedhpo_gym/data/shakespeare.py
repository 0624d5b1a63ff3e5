"""Shakespeare: the next character in the text of a role, from LEAF's JSON or from plays in XML.

The catalogue lists the source. A sample is a sequence of 80 characters, its label the next one, and
its user a role of a play. Characters are coded by their index in `LETTERS`, as in LEAF.
"""

import tarfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedhpo_gym.core.errors import DamagedDataError, MissingDataError
from fedhpo_gym.core.files import matching_files, path_exists
from fedhpo_gym.data import cache
from fedhpo_gym.data.cache import reporting_damage
from fedhpo_gym.data.leaf import find_dataset_files, read_file
from fedhpo_gym.data.records import Dataset, PublishedSource, make_dataset

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # characters of an input, as in LEAF
REPAIR = "run LEAF's preprocess.sh for shakespeare again"
_CODES = {letter: code for code, letter in enumerate(LETTERS)}
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-"})  # noqa: RUF001

RoleSamples = tuple[str, NDArray[np.int16], NDArray[np.int16]]
"""User, inputs (n, 80), targets (n,)."""


@dataclass(frozen=True, kw_only=True)
class ShakespeareSource(PublishedSource):
    """Sequences of 80 characters and the next one; users are roles of plays.

    The folder `shakespeare/` of the data folder is searched for LEAF's output, then for plays in
    XML: the archive `file`, or a clone of their repository, `playshakespeare_editions`. LEAF uses
    another edition, so numbers of users and samples differ.
    """

    file: str  # archive of the editions in the repository `url`
    sha256: str  # checksum of `file`
    stride: int = 20  # characters between the starts of sequences; LEAF uses 1

    def read(self) -> Dataset:
        """Return (n, 80) int16 codes of characters, which are indices in `LETTERS`."""
        folder = cache.data_folder() / "shakespeare"
        files = find_dataset_files(cache.data_folder(), "shakespeare")
        if files:
            name, read = "shakespeare", read_leaf_plays
        else:
            files = self._find_editions(folder)
            name, read = f"shakespeare-{self.stride}", self._read_xml
        arrays = cache.derive_arrays(name, files, lambda: _build_arrays(read(files)), self.repair)
        return make_dataset(self.name, arrays["x"], arrays["y"], self.num_classes, arrays["users"])

    def _find_editions(self, folder: Path) -> list[Path]:
        archive = folder / self.file
        plays = matching_files(folder / "playshakespeare_editions", "*.xml")
        if path_exists(archive):
            cache.verify(archive, self.sha256, self.repair)
            return [archive]
        if not plays:
            raise MissingDataError(
                f"{self.name} needs LEAF's output or plays in XML in {folder}; run "
                f"`git clone {self.url} {folder}` and then `{self.repair}` to check it"
            )
        return plays

    def _read_xml(self, files: Sequence[Path]) -> Iterator[RoleSamples]:
        for role, text in sorted(read_plays(files).items()):
            if len(text) > LENGTH:
                windows = sliding_window_view(encode_text(text), LENGTH + 1)[:: self.stride]
                yield " / ".join(role), windows[:, :-1], windows[:, -1]


def to_leaf_letters(text: str) -> str:
    """Return text in LEAF's 80 characters: accents are removed, others become spaces."""
    letters = unicodedata.normalize("NFKD", text.translate(_PLAIN))
    base_letters = (
        letter for letter in letters if unicodedata.category(letter) not in ("Mn", "Cf")
    )
    return "".join(letter if letter in _CODES else " " for letter in base_letters)


def encode_text(text: str) -> NDArray[np.int16]:
    """Return the codes of the characters of `to_leaf_letters(text)`: (characters,) int16."""
    return np.array([_CODES[letter] for letter in to_leaf_letters(text)], dtype=np.int16)


def read_leaf_plays(files: Sequence[Path]) -> Iterator[RoleSamples]:
    """Read LEAF's json: a sample is 80 characters, its target the next one."""
    for path in files:
        for user, samples in read_file(path).users.items():
            with reporting_damage(f"{path}: the samples of {user}", REPAIR):
                x = [encode_text(text) for text in samples.x]
                y = [encode_text(letter) for letter in samples.y]
            if {len(codes) for codes in x} - {LENGTH} or {len(codes) for codes in y} - {1}:
                raise DamagedDataError(
                    f"{path}: samples of {user} must be {LENGTH} characters and the next one; "
                    f"{REPAIR}"
                )
            if x:
                yield user, np.stack(x), np.concatenate(y)


def read_plays(files: Sequence[Path]) -> dict[tuple[str, str], str]:
    """Return the text of each (play, role) in LEAF's characters, lines joined by line breaks."""
    lines: dict[tuple[str, str], list[str]] = {}
    for name, content in _read_xml_files(files):
        with reporting_damage(name, "get the editions again"):
            play = ElementTree.fromstring(content)  # noqa: S314 - the user's own files
        # Elements as the editions name them: a speech <sp>, its <speaker>, its lines <l>.
        for speech in play.iter("sp"):
            speaker = speech.find("speaker")
            role = "" if speaker is None else speaker.get("long") or speaker.text or ""
            texts = ("".join(line.itertext()) for line in speech.iter("l"))
            lines.setdefault((PurePath(name).stem, role), []).extend(
                " ".join(text_of_line.split()) for text_of_line in texts
            )
    return {role: to_leaf_letters("\n".join(text)) for role, text in lines.items()}


def _read_xml_files(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    for path in files:
        if path.suffix == ".xml":
            yield str(path), path.read_bytes()
            continue
        with tarfile.open(path) as archive:
            for member in archive:
                handle = archive.extractfile(member) if member.name.endswith(".xml") else None
                if handle is not None:
                    yield member.name, handle.read()


def _build_arrays(samples: Iterable[RoleSamples]) -> dict[str, NDArray[Any]]:
    ordered = sorted(samples, key=lambda sample: sample[0])
    names = [user for user, _, y in ordered for _ in range(len(y))]
    return {
        "x": np.concatenate([x for _, x, _ in ordered]),
        "y": np.concatenate([y for _, _, y in ordered]).astype(np.int64),
        "users": np.unique(names, return_inverse=True)[1].astype(np.int64),
    }


SHAKESPEARE = ShakespeareSource(
    name="Shakespeare",
    num_classes=len(LETTERS),
    open_licence=True,
    licence="texts: public domain; XML editions: GFDL 1.3; LEAF's preparation: BSD-2-Clause",
    citation="W. Shakespeare; R. Severdia (ed.): PlayShakespeare.com; S. Caldas et al.: LEAF, 2018",
    url="https://github.com/severdia/PlayShakespeare.com-XML",
    file="playshakespeare_editions.tar.xz",
    sha256="a76147370d156428c9d056f570dd0d6d220dd12a9c4fda831f76adcd2318af26",
)
