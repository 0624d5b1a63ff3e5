"""The only door to BERT-Tiny's pretrained weights: a file of safetensors, which runs no code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import DamagedDataError, MissingDataError
from fedhpo_gym.data import cache
from fedhpo_gym.data.cache import again, fetch, fetched, reading

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
