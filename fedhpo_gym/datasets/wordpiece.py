"""The only door to the BERT tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets import cache
from fedhpo_gym.datasets.download import fetch

PADDING = 0
VOCABULARY_SIZE = 30_522
_URL = "https://huggingface.co/google/bert_uncased_L-2_H-128_A-2/resolve/main/vocab.txt"
_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


def vocabulary_file(repair: str) -> Path:
    """Return BERT's verified vocabulary: from the data folder, else downloaded into it.

    Raises:
        MissingDataError: it is in neither place.
        DamagedDataError: it has another checksum.
    """
    path = cache.find("bert_tiny/vocab.txt")
    return fetch(_URL, path or cache.data_folder() / "bert_tiny" / "vocab.txt", _SHA256, repair)


def tokenize(sentences: Sequence[str], vocabulary: Path, max_len: int) -> NDArray[np.int32]:
    """Return the WordPiece tokens of sentences, in lower case, between [CLS] and [SEP].

    Args:
        sentences: the texts.
        vocabulary: one token per line.
        max_len: tokens kept of a sentence, the two special ones included.

    Returns:
        (sentences, max_len) int32; what is behind a sentence is `PADDING`, no sentence contains it.

    Raises:
        MissingDependencyError: the extra `bert` is not installed.
    """
    library: Any = cache.require("tokenizers", "bert")
    tokenizer = library.BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    tokenizer.enable_truncation(max_len)
    tokenizer.enable_padding(length=max_len, pad_id=PADDING)
    encoded = tokenizer.encode_batch(list(sentences))
    return np.array([sentence.ids for sentence in encoded], dtype=np.int32)
