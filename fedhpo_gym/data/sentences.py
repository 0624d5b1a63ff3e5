"""SST-2 and CoLA as tokens of BERT, and access to the vocabulary and weights of BERT-Tiny.

The catalogue lists both data sets, and the BERT model of the engine loads its weights here. Weights
are a safetensors file, which cannot run code. Sentences are read from the data folder or from the
publisher's archive, tokenised once, and cached.
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
from fedhpo_gym.data.cache import fetch_file, repair_advice, reporting_damage, verified_file
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
TASK_PREFIXES = ("classifier.",)
"""Prefixes of parameters that are not in checkpoints, because they depend on the task."""

Weights = dict[str, NDArray[np.float32]]


def pretrained_weights(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Return google/bert_uncased_L-2_H-128_A-2, from the data folder or downloaded into it."""
    needed = {name: shape for name, shape in shapes.items() if not name.startswith(TASK_PREFIXES)}
    try:
        return _fetch_and_read(needed)
    except MissingDataError as error:
        raise MissingDataError(
            f"BERT's pretrained weights are missing. {error}. To train from random weights, use "
            'settings={"pretrained": 0}'
        ) from error


def fetch_weights() -> Path:
    """Return the path of the weights, and download them into the data folder if necessary."""
    _fetch_and_read(_EMBEDDINGS)
    return cache.data_folder() / FILE


def _fetch_and_read(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    with verified_file(URL, cache.data_folder() / FILE, None, REPAIR) as path:
        return read_weights(path, shapes)


def read_weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Read parameters from a safetensors file with current or former names of BERT's parameters."""
    library: Any = cache.import_optional("safetensors.numpy", "bert")
    with reporting_damage(path, repair_advice(REPAIR)):
        stored = {_modern_name(name): value for name, value in library.load_file(str(path)).items()}
    for name, shape in shapes.items():
        shape_in_file = stored[name].shape if name in stored else "nothing"
        if shape_in_file != shape:
            raise DamagedDataError(
                f"{path} must hold {name} of shape {shape}, got {shape_in_file}; "
                f"{repair_advice(REPAIR)}"
            )
    weights = {name: stored[name].astype(np.float32) for name in shapes}
    if not all(np.isfinite(value).all() for value in weights.values()):
        raise DamagedDataError(f"{path} must hold finite numbers; {repair_advice(REPAIR)}")
    return weights


def _modern_name(name: str) -> str:
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def vocabulary_file(repair: str) -> Path:
    """Return the path of BERT's vocabulary, and download it into the data folder if necessary."""
    path = cache.find_data("bert_tiny/vocab.txt")
    return fetch_file(
        _URL, path or cache.data_folder() / "bert_tiny" / "vocab.txt", _SHA256, repair
    )


def tokenize(sentences: Sequence[str], vocabulary: Path, max_len: int) -> NDArray[np.int32]:
    """Return lower-case WordPiece tokens between [CLS] and [SEP]: (sentences, max_len)."""
    library: Any = cache.import_optional("tokenizers", "bert")
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
    folder: str  # folder of the same files in the data folder, which is preferred
    sha256: str | None = None  # checksum of the archive, or None if unknown
    max_len: int = 64  # number of tokens per sentence
    # number of samples of each file; other files may have any number.
    sizes: Mapping[str, int] = field(default_factory=dict)

    def read(self) -> Dataset:
        """Return (n, max_len) int32 tokens of the sentences with public labels."""
        vocabulary = vocabulary_file(self.repair)
        folder = cache.find_data(self.folder)
        if folder is not None:
            files = sorted(path for path in folder.iterdir() if ".tsv" in path.name)
            arrays = self._derive(folder, files, lambda: folder, vocabulary)
        else:
            target = cache.data_folder() / "archives" / self.url.rpartition("/")[2]
            with verified_file(self.url, target, self.sha256, self.repair):
                arrays = self._derive(
                    target, [target], lambda: zipfile.Path(target, f"{self.inside}/"), vocabulary
                )
        return make_dataset(
            self.name, arrays["x"], arrays["y"], self.num_classes, fixed_split=arrays["split"]
        )

    def _derive(
        self, path: Path, files: Sequence[Path], open_folder: Callable[[], Folder], vocabulary: Path
    ) -> dict[str, NDArray[Any]]:
        def make() -> Mapping[str, NDArray[Any]]:
            with reporting_damage(path, repair_advice(self.repair)):
                split = self.split(open_folder())
            everything = [sentence for sentences in split.values() for sentence in sentences]
            sizes = [len(sentences) for sentences in split.values()]
            return {
                "x": tokenize([text for text, _ in everything], vocabulary, self.max_len),
                "y": np.array([label for _, label in everything], dtype=np.int64),
                "split": np.repeat(np.array(list(split), dtype=np.int8), sizes),
            }

        return cache.derive_arrays(
            f"{self.name}-{self.max_len}", [*files, vocabulary], make, self.repair
        )

    def check_count(self, folder: Folder, name: str, samples: list[T]) -> list[T]:
        """Return the samples of a file, after checking their documented number."""
        if len(samples) != self.sizes.get(name, len(samples)):
            raise DamagedDataError(
                f"{folder / name} must have {self.sizes[name]} samples, got {len(samples)}; "
                f"{_folder_advice(folder, self.repair)}"
            )
        return samples

    @abstractmethod
    def split(self, folder: Folder) -> dict[int, list[Sentence]]:
        """Return the labelled sentences of each split (0, 1, 2) in a folder."""


@dataclass(frozen=True, kw_only=True)
class Sst2Source(SentenceSource):
    """SST-2 in GLUE's layout: `train.tsv`, `dev.tsv`, and a `test.tsv` with labels."""

    def split(self, folder: Folder) -> dict[int, list[Sentence]]:
        names = {TRAIN: "train.tsv", VAL: "dev.tsv", TEST: "test.tsv"}
        return {split: self._read_labelled(folder, name) for split, name in names.items()}

    def _read_labelled(self, folder: Folder, name: str) -> list[Sentence]:
        header, *rows = read_tsv(folder, name, self.repair)
        texts = [i for i, column in enumerate(header) if column in ("sentence", "content")]
        if len(texts) != 1:
            raise DamagedDataError(
                f"{folder / name} must have one column `sentence` or `content`, got "
                f"{str(header)[:99]}; {_folder_advice(folder, self.repair)}"
            )
        if "label" not in header:
            return []
        label = header.index("label")
        if any(len(row) != len(header) or row[label] not in LABELS for row in rows):
            raise DamagedDataError(
                f"{folder / name} must have {len(header)} columns, with 0 or 1 as `label`; "
                f"{_folder_advice(folder, self.repair)}"
            )
        return self.check_count(
            folder, name, [(row[texts[0]].strip(), int(row[label])) for row in rows]
        )


@dataclass(frozen=True, kw_only=True)
class ColaSource(SentenceSource):
    """CoLA's raw files: source, label, the author's mark and the sentence, without a header.

    In- and out-of-domain development sentences are the validation split. If the complete files
    `in_domain.tsv` and `out_of_domain.tsv` exist, their other sentences are the test split.
    """

    def split(self, folder: Folder) -> dict[int, list[Sentence]]:
        train = self._read_rows(folder, "in_domain_train.tsv")
        dev_files = ("in_domain_dev.tsv", "out_of_domain_dev.tsv")
        dev = [row for name in dev_files for row in self._read_rows(folder, name)]
        complete = [n for n in ("in_domain.tsv", "out_of_domain.tsv") if (folder / n).exists()]
        rows = [row for name in complete for row in self._read_rows(folder, name)]
        test = remaining_rows(rows, train + dev)
        splits = {TRAIN: train, VAL: dev, TEST: test}
        return {s: [(row[3], int(row[1])) for row in rows] for s, rows in splits.items()}

    def _read_rows(self, folder: Folder, name: str) -> list[Row]:
        rows = [tuple(cell.strip() for cell in row) for row in read_tsv(folder, name, self.repair)]
        if any(len(row) != 4 or row[1] not in LABELS for row in rows):
            raise DamagedDataError(
                f"{folder / name} must have four columns, the second 0 or 1; "
                f"{_folder_advice(folder, self.repair)}"
            )
        return self.check_count(folder, name, rows)


def remaining_rows(complete_rows: Sequence[Row], public: Sequence[Row]) -> list[Row]:
    """Return the rows of CoLA's complete files that are not in its public parts.

    Two public sentences were corrected after the complete files were written. A public row that is
    missing there therefore removes the most similar row with its source and label.
    """
    remaining = Counter(complete_rows)
    corrected = Counter(public) - remaining
    remaining -= Counter(public)
    for row in corrected.elements():
        candidates = {other[3]: other for other in remaining if other[:2] == row[:2]}
        for text in get_close_matches(row[3], candidates, n=1, cutoff=0.7):
            remaining -= Counter([candidates[text]])
    return list(remaining.elements())


def read_tsv(folder: Folder, name: str, repair: str) -> list[list[str]]:
    """Return the cells of tab-separated values, plain or `.gz`; quotation marks are literal."""
    packed = folder / f"{name}.gz"
    with reporting_damage(folder / name, _folder_advice(folder, repair)):
        if isinstance(folder, zipfile.Path):
            require_zip_growth(folder.root)
        if (folder / name).exists():
            content = (folder / name).read_bytes()
        elif packed.exists():
            content = read_unpacked(packed)
        else:
            raise DamagedDataError(f"{folder / name} is missing; {_folder_advice(folder, repair)}")
        rows = [line.split("\t") for line in content.decode("utf-8").splitlines() if line]
    if not rows:
        raise DamagedDataError(f"{folder / name} is empty; {_folder_advice(folder, repair)}")
    return rows


def _folder_advice(folder: Folder, repair: str) -> str:
    """Return advice for error messages: delete the folder or archive and run a command."""
    location = folder.root.filename if isinstance(folder, zipfile.Path) else folder
    return f"delete {location} and run `{repair}`"


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
