"""Twitter (Sentiment140): tweets by user as bags of words, with positive or negative sentiment.

The catalogue lists the source. Tweets come from LEAF's JSON in the data folder, or from the
publisher's archive. The vocabulary is the most frequent words of these tweets.
"""

import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.files import require_zip_growth
from fedhpo_gym.data import cache
from fedhpo_gym.data.cache import reporting_damage, verified_file
from fedhpo_gym.data.leaf import find_dataset_files, read_file, require_integer
from fedhpo_gym.data.records import Dataset, PublishedSource, SparseRows, make_dataset

TEXT = 4  # column of the text in a sample of LEAF's json
MEMBERS = ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv")
LABELS = {"0": 0, "4": 1}
NEUTRAL = "2"  # in the manual file only; such tweets are skipped

Tweet = tuple[str, str, int]
"""User, text, label."""


@dataclass(frozen=True, kw_only=True)
class TwitterSource(PublishedSource):
    """Tweets of many users as bags of words.

    The data folder is searched for LEAF's output (`sent140/` or `sent140_leaf/`), whose options
    determine the users; otherwise the publisher's archive is downloaded, with all users. The
    vocabulary is the `max_words` most frequent words of these tweets. Values are counts.
    """

    max_words: int = 10_000  # size of the vocabulary at most

    def read(self) -> Dataset:
        """Return `SparseRows` (tweets, words); users are numbered in the sorted order of names."""
        root = cache.data_folder()
        files = find_dataset_files(root, "sent140", "sent140_leaf")
        if files:
            arrays = self._derive(files, read_leaf_tweets)
        else:
            archive = root / "sent140" / "sentiment140.zip"
            with verified_file(self.url, archive, None, self.repair):
                arrays = self._derive([archive], read_tweet_archive)
        features = SparseRows(
            arrays["indptr"], arrays["indices"], arrays["values"], int(arrays["num_words"])
        )
        return make_dataset(
            self.name, features, arrays["labels"], self.num_classes, arrays["users"]
        )

    def _derive(
        self, files: Sequence[Path], read: Callable[[Sequence[Path]], Iterator[Tweet]]
    ) -> dict[str, NDArray[Any]]:
        name = f"twitter-{self.max_words}"
        make = partial(_build_arrays, files, read, self.max_words)
        return cache.derive_arrays(name, files, make, self.repair)


def read_leaf_tweets(files: Sequence[Path]) -> Iterator[Tweet]:
    """Read LEAF's JSON, where a sample is a list of columns and the fifth is the text."""
    for path in files:
        for user, samples in read_file(path).users.items():
            for columns, label in zip(samples.x, samples.y, strict=True):
                yield user, *_check_tweet(path, user, columns, label)


def _check_tweet(path: Path, user: str, columns: Any, label: Any) -> tuple[str, int]:
    with reporting_damage(
        f"{path}: a tweet of {user}", "run LEAF's preprocess.sh for sent140 again"
    ):
        text = columns[TEXT] if isinstance(columns, list) and len(columns) > TEXT else None
        if not isinstance(text, str) or require_integer(label) not in (0, 1):
            raise InvalidArgumentError(
                f"it must have at least {TEXT + 1} columns, the fifth its text, and the label 0 or "
                f"1, got {columns!r} and {label!r}"
            )
        return text, label


def read_tweet_archive(files: Sequence[Path]) -> Iterator[Tweet]:
    """Read the publisher's archive: two csv files of label, id, date, query, user, text."""
    with zipfile.ZipFile(files[0]) as archive:
        require_zip_growth(archive)
        for name in MEMBERS:
            with archive.open(name) as handle:
                text = io.TextIOWrapper(handle, encoding="latin-1", newline="")
                for label, _, _, _, user, tweet in csv.reader(text):
                    if label != NEUTRAL:
                        yield user, tweet, LABELS[label]


def _build_arrays(
    files: Sequence[Path], read: Callable[[Sequence[Path]], Iterator[Tweet]], max_words: int
) -> dict[str, NDArray[Any]]:
    ordered = sorted(read(files), key=lambda tweet: tweet[0])  # stable for the tweets of a user
    texts = [text for _, text, _ in ordered]
    rows = bags_of_words(texts, make_vocabulary(texts, max_words))
    users = np.unique([user for user, _, _ in ordered], return_inverse=True)[1]
    return {
        "indptr": rows.indptr,
        "indices": rows.indices,
        "values": rows.values,
        "num_words": np.array(rows.num_columns),
        "labels": np.array([label for _, _, label in ordered], dtype=np.int64),
        "users": users.astype(np.int64),
    }


TWITTER = TwitterSource(
    name="Twitter",
    num_classes=2,
    licence="none stated; the publisher asks for the citation",
    citation="A. Go, R. Bhayani, L. Huang: Twitter Sentiment Classification using Distant "
    "Supervision, 2009; S. Caldas et al.: LEAF, 2018",
    url="https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
)


_WORD = re.compile(r"\w+(?:'\w+)*")


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case; an apostrophe inside a word belongs to it."""
    return _WORD.findall(text.lower())


def make_vocabulary(texts: Sequence[str], max_words: int) -> tuple[str, ...]:
    """Return the most frequent words, the most frequent first, ties in alphabetical order."""
    counts = Counter(word for text in texts for word in split_words(text))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(word for word, _ in ranked[:max_words])


def bags_of_words(texts: Sequence[str], vocabulary: Sequence[str]) -> SparseRows:
    """Return the counts of the vocabulary's words: (texts, words)."""
    columns = {word: column for column, word in enumerate(vocabulary)}
    indptr, indices, values = [0], [], []
    for text in texts:
        word_columns = (columns[word] for word in split_words(text) if word in columns)
        for column, count in sorted(Counter(word_columns).items()):
            indices.append(column)
            values.append(count)
        indptr.append(len(indices))
    return SparseRows(
        np.array(indptr, dtype=np.int64),
        np.array(indices, dtype=np.int32),
        np.array(values, dtype=np.float32),
        len(vocabulary),
    )
