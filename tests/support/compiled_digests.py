"""Prints the digests of what compiled code makes of some courses: equal ones on every processor.

A program of its own, because a processor is chosen before anything is compiled. It takes neither
torch nor a data set.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Iterator, Mapping

import numpy as np

from fedhpo_gym.datasets.records import Dataset, SparseRows, make_dataset
from fedhpo_gym.federations.federation import Federation, make_user_federation
from fedhpo_gym.fl.algorithms import ALGORITHMS, get_algorithm
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.seeding import stream

ROUNDS = 3
GIVEN: Mapping[str, Mapping[str, float]] = {
    "fedprox": {"mu": 0.7, "momentum": 0.5, "rate_decay": 0.1},
    "fedopt": {"server_momentum": 0.9, "server_learning_rate": 0.5},
    "fedadam": {"server_learning_rate": 0.1},
    "fedyogi": {"server_learning_rate": 0.1},
    "nbafl": {"mu": 0.5},
    "ditto": {"regularization": 2.0},
    "fedasync": {"mixing": 0.6, "staleness_exponent": 0.7},
    "fedbuff": {"buffer_size": 2, "server_learning_rate": 0.8},
    "serveropt": {"mu": 0.1, "server_optimizer": 3, "server_learning_rate": 0.1},
}


def rows(classes: int, sparse: bool = False) -> Federation:
    """Return clients of unequal sizes; features are multiples of 1/64, and so exact."""
    rng, users = stream(classes, "rows"), np.repeat(np.arange(4), (61, 40, 23, 2))
    labels = rng.integers(classes, size=len(users))
    features = rng.integers(-128, 128, (len(users), 11)) / 64 + labels[:, None]
    if not sparse:
        return make_user_federation(make_dataset("rows", features, labels, classes, users), 1)
    kept = rng.random(features.shape) < 0.3
    stored = SparseRows(
        np.concatenate([[0], np.cumsum(kept.sum(1))]),
        np.nonzero(kept)[1].astype(np.int32),
        features[kept].astype(np.float32),
        features.shape[1],
    )
    return make_user_federation(Dataset("rows", stored, labels, classes, "", users=users), 1)


def courses(**more: float) -> list[Course]:
    """Return some courses of every way to train."""
    found = []
    for size, epochs, share in ((4, 2, 1.0), (16, 1, 0.6), (256, 2, 1.0)):
        config = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": size}
        found.append(
            Course({**config, "step_size": epochs, "learning_rate@1": 0.2, **more}, share, 1)
        )
    return found


def digests() -> Iterator[tuple[str, str]]:
    """Yield the name of a case, and the digest of its curves, feedback and parameters."""
    dense = [("LR", 2), ("LR", 5), ("LeafLR", 3), ("MLP", 3)]
    cases = [(*case, "fedavg", False) for case in dense] + [("LR", 2, "fedavg", True)]
    others = [name for name in ALGORITHMS if name != "fedavg"]
    cases += [
        (model, classes, name, False)
        for (model, classes), name in itertools.product((("LR", 3), ("MLP", 2)), others)
    ]
    for model, classes, algorithm, sparse in cases:
        shape = {"model_depth": 2, "model_width": 19} if model == "MLP" else {}
        chosen = courses(**shape, **GIVEN.get(algorithm, {}))
        known = {1: rows(classes, sparse)}
        batch = CourseBatch(
            known, get_model(model), get_algorithm(algorithm), chosen, observe=True, horizon=ROUNDS
        )
        curves = batch.advance(ROUNDS)
        digest = hashlib.sha256(curves.metrics.tobytes())
        for values in vars(curves.feedback).values():
            digest.update(values.tobytes())
        for state in batch.snapshot():
            assert state is not None
            for value in state.parameters.values():
                digest.update(np.ascontiguousarray(value).tobytes())
        yield f"{model} {classes} {algorithm}{' sparse' * sparse}", digest.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dict(digests())) + "\n")
