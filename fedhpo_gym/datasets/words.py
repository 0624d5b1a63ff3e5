"""Bags of words: texts as sparse counts over the most frequent words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedhpo_gym.datasets.records import SparseRows

_WORD = re.compile(r"\w+(?:'\w+)*")


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case; an apostrophe inside a word belongs to it."""
    return _WORD.findall(text.lower())


def make_vocabulary(texts: Sequence[str], max_words: int) -> tuple[str, ...]:
    """Return the most frequent words, the most frequent first, ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_words(text))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(word for word, _ in ranked[:max_words])


def bags_of_words(texts: Sequence[str], vocabulary: Sequence[str]) -> SparseRows:
    """Return how often each word of the vocabulary occurs in each text; other words are left out.

    Returns:
        (texts, words) counts; columns are in the order of the vocabulary.
    """
    columns = {word: column for column, word in enumerate(vocabulary)}
    indptr, indices, values = [0], [], []
    for text in texts:
        known = (columns[word] for word in split_words(text) if word in columns)
        for column, count in sorted(Counter(known).items()):
            indices.append(column)
            values.append(count)
        indptr.append(len(indices))
    return SparseRows(
        np.array(indptr, dtype=np.int64),
        np.array(indices, dtype=np.int32),
        np.array(values, dtype=np.float32),
        len(vocabulary),
    )
