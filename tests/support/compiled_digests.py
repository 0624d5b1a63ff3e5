"""Prints the digests of what compiled code makes of some courses: equal ones on every processor.

`python tests/support/compiled_digests.py [--apart] [--write] [NAME ...]`; names are how cases
begin. `--apart` trains every course alone, the last round from a snapshot in another batch, which
must change no digest. `--write` records all cases in `tests/data/compiled_digests.json`: a change
of that file is a change of what ids return.

A program of its own, because a processor is chosen before anything is compiled. It takes neither
torch nor a data set.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedhpo_gym.datasets.records import Dataset, SparseRows, make_dataset
from fedhpo_gym.federations.federation import Federation, make_user_federation
from fedhpo_gym.fl.algorithms import ALGORITHMS, get_algorithm
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.seeding import stream

FILE = Path(__file__).resolve().parents[1] / "data" / "compiled_digests.json"
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
    "dpfedavg": {
        "update_clip": 0.3,
        "server_momentum": 0.5,
        "server_learning_rate": 0.9,
        "noise_multiplier": 0.3,
        "clip_rate": 0.2,
    },
    "scaffold": {"server_learning_rate": 0.8, "momentum": 0.5, "rate_decay": 0.1},
    "fednova": {"server_momentum": 0.9, "server_learning_rate": 0.5, "momentum": 0.5},
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


def cases() -> Iterator[tuple[str, str, int, str, Mapping[str, float]]]:
    """Yield (name, model, classes, algorithm, shape)."""
    deep = {"model_depth": 2.0, "model_width": 19.0}
    for model, classes in (("LR", 2), ("LR", 5), ("LeafLR", 3), ("Sparse", 2), ("Sparse", 5)):
        yield f"{model} {classes} fedavg", model, classes, "fedavg", {}
    for depth, width in ((1, 64), (2, 19), (4, 7)):
        shape = {"model_depth": float(depth), "model_width": float(width)}
        for model in ("MLP", "PlainMLP"):
            yield f"{model} 3 fedavg {depth} x {width}", model, 3, "fedavg", shape
    others = [name for name in ALGORITHMS if name != "fedavg"]
    for (model, classes), name in itertools.product((("LR", 3), ("MLP", 2)), others):
        yield f"{model} {classes} {name}", model, classes, name, deep if model == "MLP" else {}
    yield "PlainMLP 2 dpfedavg", "PlainMLP", 2, "dpfedavg", deep


def digests(names: Sequence[str] = ("",), apart: bool = False) -> Iterator[tuple[str, str]]:
    """Yield cases, and the digests of their curves, feedback and parameters.

    Args:
        names: how the cases begin.
        apart: whether every course is trained by itself, and the last round from a snapshot.
    """
    for name, model, classes, algorithm, shape in cases():
        if not name.startswith(tuple(names)):
            continue
        chosen = courses(**shape, **GIVEN.get(algorithm, {}))
        known = {1: rows(classes, model == "Sparse")}
        digest = hashlib.sha256()
        for group in [[course] for course in chosen] if apart else [chosen]:
            batches = [
                CourseBatch(
                    known,
                    get_model("LR" if model == "Sparse" else model),
                    get_algorithm(algorithm),
                    group,
                    observe=True,
                    horizon=ROUNDS,
                )
                for _ in range(2)
            ]
            for part in of_each(*batches, apart):
                digest.update(part)
        yield name, digest.hexdigest()


def of_each(batch: CourseBatch, other: CourseBatch, apart: bool) -> Iterator[bytes]:
    """Yield what came of each course of a batch; its last round is another's if `apart`."""
    curves = [batch.advance(ROUNDS - 1)]
    if apart:
        other.restore(batch.snapshot())
        batch = other
    curves.append(batch.advance(1))
    for row, state in enumerate(batch.snapshot()):
        assert state is not None
        for one in curves:
            yield one.metrics[row].tobytes()
            for values in vars(one.feedback).values():
                yield values[row].tobytes()
        kept = state.parameters, state.server, state.variates
        for value in (value for part in kept for value in part.values()):
            yield np.ascontiguousarray(value).tobytes()


def main() -> None:
    """Print the digests, or record them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[""], help="how the cases begin")
    parser.add_argument("--apart", action="store_true", help="train every course by itself")
    parser.add_argument("--write", action="store_true", help="record the digests of all cases")
    options = parser.parse_args()
    if options.write:
        FILE.write_text(json.dumps(dict(digests()), indent=0) + "\n", encoding="utf-8")
        return
    found = dict(digests(options.names or [""], options.apart))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
