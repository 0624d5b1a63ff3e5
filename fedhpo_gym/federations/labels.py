"""What label frequencies reach as a prediction: the least that training must beat."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.federations.federation import Federation


def label_frequencies(federation: Federation, own: bool, squared: bool) -> dict[str, float]:
    """Return loss and accuracy of predicting how often each label is in the training data.

    A label that is in other data only counts as if it were in the training data once.

    Args:
        federation: the federation.
        own: whether every client predicts its own frequencies; else those of all clients together.
        squared: whether the loss is the squared distance from the mean label, not the cross-entropy
            in nats.

    Returns:
        `val_loss`, `test_loss`, `val_accuracy`, `test_accuracy`: means over the samples of a split,
        which are the sample-weighted means over clients.
    """
    counts = np.stack(list(_counts(federation, own)))
    train = counts[:, SPLITS.index("train")]
    losses = (_squared_errors if squared else _cross_entropies)(train, counts.sum(axis=1) > 0)
    hits = np.eye(federation.num_classes)[train.argmax(axis=-1)]
    found = {}
    for split in ("val", "test"):
        held_out = counts[:, SPLITS.index(split)]
        for metric, values in (("loss", losses), ("accuracy", hits)):
            found[f"{split}_{metric}"] = float((held_out * values).sum() / held_out.sum())
    return found


def _counts(federation: Federation, own: bool) -> Iterator[NDArray[np.int64]]:
    """Yield (splits, classes) labels of every group of clients that shares a prediction."""
    clients = federation.clients
    for group in [[client] for client in clients] if own else [clients]:
        rows = [np.concatenate([client[s] for client in group]) for s in range(len(SPLITS))]
        labels = [federation.labels[r] for r in rows]
        yield np.stack([np.bincount(y, minlength=federation.num_classes) for y in labels])


def _cross_entropies(train: NDArray[np.int64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return (groups, classes) losses of samples of a class."""
    counted = np.where(known, np.maximum(train, 1), 0)
    shares = counted / counted.sum(axis=1, keepdims=True)
    return np.asarray(-np.log(np.where(known, shares, 1.0)))


def _squared_errors(train: NDArray[np.int64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return (groups, classes) squared distances of a class from the mean one."""
    del known
    labels = np.arange(train.shape[1])
    mean = (train * labels).sum(axis=1, keepdims=True) / train.sum(axis=1, keepdims=True)
    return np.asarray((labels - mean) ** 2)
