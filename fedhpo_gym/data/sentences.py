"""SST-2 and CoLA as tokens of BERT, and the only door to BERT-Tiny's vocabulary and weights.

Weights are a file of safetensors, which runs no code.
"""

import zipfile
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import DamagedDataError, MissingDataError
from fedhpo_gym.core.files import read_unpacked, require_zip_growth
from fedhpo_gym.data import cache
from fedhpo_gym.data.cache import again, fetch, fetched, reading
from fedhpo_gym.data.records import TEST, TRAIN, VAL, Dataset, PublishedSource, make_dataset

PADDING = 0
VOCABULARY_SIZE = 30_522
_URL = "https://huggingface.co/google/bert_uncased_L-2_H-128_A-2/resolve/main/vocab.txt"
_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
URL = "https://huggingface.co/google/bert_uncased_L-2_H-128_A-2/resolve/main/model.safetensors"
FILE = "bert_tiny/model.safetensors"
NAME = "BERT-Tiny"
"""Name of the weights for `fedhpo-gym download`."""
REPAIR = f"fedhpo-gym download {NAME}"
_EMBEDDINGS = {"embeddings.word_embeddings.weight": (VOCABULARY_SIZE, 128)}
OWN = ("classifier.",)
"""What a checkpoint does not hold: it is made for the task."""

Weights = dict[str, NDArray[np.float32]]


def pretrained_weights(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Return google/bert_uncased_L-2_H-128_A-2, of the data folder or downloaded into it."""
    wanted = {name: shape for name, shape in shapes.items() if not name.startswith(OWN)}
    try:
        return _fetched(wanted)
    except MissingDataError as error:
        raise MissingDataError(
            f"BERT's pretrained weights are not here. {error}. Nothing is trained from random "
            'weights unless asked for: settings={"pretrained": 0}'
        ) from error


def fetch_weights() -> Path:
    """Return the file with the weights: from the data folder, else downloaded into it."""
    _fetched(_EMBEDDINGS)
    return cache.data_folder() / FILE


def _fetched(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    with fetched(URL, cache.data_folder() / FILE, None, REPAIR) as path:
        return read_weights(path, shapes)


def read_weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Read parameters from a file of safetensors, under any of the names that BERT's have had."""
    library: Any = cache.require("safetensors.numpy", "bert")
    with reading(path, again(REPAIR)):
        stored = {_modern(name): value for name, value in library.load_file(str(path)).items()}
    for name, shape in shapes.items():
        found = stored[name].shape if name in stored else "nothing"
        if found != shape:
            raise DamagedDataError(
                f"{path} must hold {name} of shape {shape}, got {found}; {again(REPAIR)}"
            )
    weights = {name: stored[name].astype(np.float32) for name in shapes}
    if not all(np.isfinite(value).all() for value in weights.values()):
        raise DamagedDataError(f"{path} must hold finite numbers; {again(REPAIR)}")
    return weights


def _modern(name: str) -> str:
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def vocabulary_file(repair: str) -> Path:
    """Return BERT's verified vocabulary: from the data folder, else downloaded into it."""
    path = cache.find("bert_tiny/vocab.txt")
    return fetch(_URL, path or cache.data_folder() / "bert_tiny" / "vocab.txt", _SHA256, repair)


def tokenize(sentences: Sequence[str], vocabulary: Path, max_len: int) -> NDArray[np.int32]:
    """Return (sentences, max_len) WordPiece tokens, in lower case, between [CLS] and [SEP]."""
    library: Any = cache.require("tokenizers", "bert")
    tokenizer = library.BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    tokenizer.enable_truncation(max_len)
    tokenizer.enable_padding(length=max_len, pad_id=PADDING)
    encoded = tokenizer.encode_batch(list(sentences))
    return np.array([sentence.ids for sentence in encoded], dtype=np.int32)


Folder = Path | zipfile.Path
Sentence = tuple[str, int]
"""Text and label."""
Row = tuple[str, ...]
"""Cells of one line."""
T = TypeVar("T")
LABELS = ("0", "1")


@dataclass(frozen=True, kw_only=True)
class SentenceSource(PublishedSource):
    """Labelled sentences with the publisher's training and development sets."""

    inside: str  # folder of the files in the archive
    folder: str  # folder of the same files in the data folder, looked for first
    sha256: str | None = None  # checksum of the archive, or None where none is known
    max_len: int = 64  # number of tokens per sentence
    # samples in each file; files not named may have any number.
    sizes: Mapping[str, int] = field(default_factory=dict)

    def read(self) -> Dataset:
        """Return (n, max_len) int32 tokens of sentences with a public label."""
        vocabulary = vocabulary_file(self.repair)
        found = cache.find(self.folder)
        if found is not None:
            files = sorted(path for path in found.iterdir() if ".tsv" in path.name)
            arrays = self._derived(found, files, lambda: found, vocabulary)
        else:
            target = cache.data_folder() / "archives" / self.url.rpartition("/")[2]
            with fetched(self.url, target, self.sha256, self.repair):
                arrays = self._derived(
                    target, [target], lambda: zipfile.Path(target, f"{self.inside}/"), vocabulary
                )
        return make_dataset(
            self.name, arrays["x"], arrays["y"], self.num_classes, fixed_split=arrays["split"]
        )

    def _derived(
        self, what: Path, files: Sequence[Path], place: Callable[[], Folder], vocabulary: Path
    ) -> dict[str, NDArray[Any]]:
        def make() -> Mapping[str, NDArray[Any]]:
            with reading(what, again(self.repair)):
                split = self.split(place())
            everything = [sentence for part in split.values() for sentence in part]
            sizes = [len(part) for part in split.values()]
            return {
                "x": tokenize([text for text, _ in everything], vocabulary, self.max_len),
                "y": np.array([label for _, label in everything], dtype=np.int64),
                "split": np.repeat(np.array(list(split), dtype=np.int8), sizes),
            }

        return cache.derived(f"{self.name}-{self.max_len}", [*files, vocabulary], make, self.repair)

    def counted(self, place: Folder, name: str, samples: list[T]) -> list[T]:
        """Return the samples of a file, if they are as many as the source says."""
        if len(samples) != self.sizes.get(name, len(samples)):
            raise DamagedDataError(
                f"{place / name} must have {self.sizes[name]} samples, got {len(samples)}; "
                f"{_again(place, self.repair)}"
            )
        return samples

    @abstractmethod
    def split(self, place: Folder) -> dict[int, list[Sentence]]:
        """Return the labelled sentences of each split (0, 1, 2) in a folder."""


@dataclass(frozen=True, kw_only=True)
class Sst2Source(SentenceSource):
    """SST-2 in GLUE's layout: `train.tsv`, `dev.tsv`, and a `test.tsv` with labels."""

    def split(self, place: Folder) -> dict[int, list[Sentence]]:
        names = {TRAIN: "train.tsv", VAL: "dev.tsv", TEST: "test.tsv"}
        return {split: self._labelled(place, name) for split, name in names.items()}

    def _labelled(self, place: Folder, name: str) -> list[Sentence]:
        header, *rows = read_tsv(place, name, self.repair)
        texts = [i for i, column in enumerate(header) if column in ("sentence", "content")]
        if len(texts) != 1:
            raise DamagedDataError(
                f"{place / name} must have one column `sentence` or `content`, got "
                f"{str(header)[:99]}; {_again(place, self.repair)}"
            )
        if "label" not in header:
            return []
        label = header.index("label")
        if any(len(row) != len(header) or row[label] not in LABELS for row in rows):
            raise DamagedDataError(
                f"{place / name} must have {len(header)} columns, with 0 or 1 as `label`; "
                f"{_again(place, self.repair)}"
            )
        return self.counted(place, name, [(row[texts[0]].strip(), int(row[label])) for row in rows])


@dataclass(frozen=True, kw_only=True)
class ColaSource(SentenceSource):
    """CoLA's raw files: source, label, the author's mark and the sentence, without a header.

    In- and out-of-domain development sentences are the validation split. Where the complete files
    `in_domain.tsv` and `out_of_domain.tsv` are there, what they have beyond the training and
    development files is the test split.
    """

    def split(self, place: Folder) -> dict[int, list[Sentence]]:
        train = self._rows(place, "in_domain_train.tsv")
        dev = self._rows(place, "in_domain_dev.tsv") + self._rows(place, "out_of_domain_dev.tsv")
        complete = [n for n in ("in_domain.tsv", "out_of_domain.tsv") if (place / n).exists()]
        rows = [row for name in complete for row in self._rows(place, name)]
        test = remaining(rows, train + dev)
        parts = {TRAIN: train, VAL: dev, TEST: test}
        return {s: [(row[3], int(row[1])) for row in part] for s, part in parts.items()}

    def _rows(self, place: Folder, name: str) -> list[Row]:
        rows = [tuple(cell.strip() for cell in row) for row in read_tsv(place, name, self.repair)]
        if any(len(row) != 4 or row[1] not in LABELS for row in rows):
            raise DamagedDataError(
                f"{place / name} must have four columns, the second 0 or 1; "
                f"{_again(place, self.repair)}"
            )
        return self.counted(place, name, rows)


def remaining(complete: Sequence[Row], known: Sequence[Row]) -> list[Row]:
    """Return the rows of CoLA's complete files that are not in its public parts.

    Two known sentences were corrected after the complete files were made: a known row that is not
    there takes the most similar row with its source and label with it.
    """
    left = Counter(complete)
    corrected = Counter(known) - left
    left -= Counter(known)
    for row in corrected.elements():
        alike = {other[3]: other for other in left if other[:2] == row[:2]}
        for text in get_close_matches(row[3], alike, n=1, cutoff=0.7):
            left -= Counter([alike[text]])
    return list(left.elements())


def read_tsv(place: Folder, name: str, repair: str) -> list[list[str]]:
    """Return the cells of tab-separated values, plain or `.gz`; quotation marks mean nothing."""
    packed = place / f"{name}.gz"
    with reading(place / name, _again(place, repair)):
        if isinstance(place, zipfile.Path):
            require_zip_growth(place.root)
        if (place / name).exists():
            content = (place / name).read_bytes()
        elif packed.exists():
            content = read_unpacked(packed)
        else:
            raise DamagedDataError(f"{place / name} is missing; {_again(place, repair)}")
        rows = [line.split("\t") for line in content.decode("utf-8").splitlines() if line]
    if not rows:
        raise DamagedDataError(f"{place / name} is empty; {_again(place, repair)}")
    return rows


def _again(place: Folder, repair: str) -> str:
    """Return what to do: where a file of several is damaged, they are all fetched again."""
    whole = place.root.filename if isinstance(place, zipfile.Path) else place
    return f"delete {whole} and run `{repair}`"


SST2 = Sst2Source(
    name="SST2",
    num_classes=2,
    licence="none stated (Stanford Sentiment Treebank, for research)",
    citation="R. Socher et al.: Recursive Deep Models for Semantic Compositionality Over a "
    "Sentiment Treebank, EMNLP 2013; A. Wang et al.: GLUE, 2018",
    url="https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
    sha256="d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
    inside="SST-2",
    folder="sst2/glue",
    sizes={"train.tsv": 67_349, "dev.tsv": 872, "test.tsv": 1_821},
)

COLA = ColaSource(
    name="CoLA",
    num_classes=2,
    licence="excerpts of published works, whose authors keep the copyright; for research",
    citation="A. Warstadt, A. Singh, S. Bowman: Neural Network Acceptability Judgments, TACL 2019",
    url="https://nyu-mll.github.io/CoLA/cola_public_1.1.zip",
    inside="cola_public/raw",
    folder="cola/raw",
    sizes={
        "in_domain_train.tsv": 8_551,
        "in_domain_dev.tsv": 527,
        "out_of_domain_dev.tsv": 516,
        "in_domain.tsv": 9_608,
        "out_of_domain.tsv": 1_049,
    },
)
