"""The laws of the engine, tried on this machine: equal bits in any company, and right gradients.

Made-up problems of every family are asked through `CourseBatch`. Where a law does not hold, courses
are right up to rounding, but their last digits depend on what is trained beside.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.core.errors import MissingDependencyError, UnequalBitsError, require_optional
from fedhpo_gym.core.processor import SETTING, STRICT, rounding_platform
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation, make_user_federation
from fedhpo_gym.data.graph_federations import make_graph_federation, make_hetero_federation
from fedhpo_gym.data.graph_sets import make_graph_set, make_graph_sets
from fedhpo_gym.data.graphs import from_dense, make_node_graph
from fedhpo_gym.data.ratings import make_ratings, ratings_dataset
from fedhpo_gym.data.records import Dataset, make_dataset
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import MODELS, Model

ROUNDS = 2
ALONE, ORDER, PROCESS, GRADIENT = "alone", "order", "process", "gradient"
LAWS: Mapping[str, str] = {
    ALONE: "a course has the same bits alone and in a batch",
    ORDER: "a course has the same bits wherever it stands in a batch",
    PROCESS: "another process computes the same bits",
    GRADIENT: "a round follows the gradient, computed in float64 by autograd",
}
TOLERANCE = 1e-4
"""Largest error of a round's change over its largest entry. Sums here have at most a thousand terms
of unit roundoff 6e-8, which bounds their relative error by 6e-5. What is stored is a parameter and
not its change, and terms as large as the largest change may cancel: a unit in the last place of
either is allowed on top."""


@dataclass(frozen=True)
class KernelVerdict:
    """What came of trying a law on a family of models."""

    family: str  # name of the model
    law: str  # one of `LAWS`
    holds: bool | None  # whether it does; None where it could not be tried
    words: str = ""  # what was seen, or what is missing


def check_engine(families: Iterable[str] = tuple(MODELS)) -> list[KernelVerdict]:
    """Try every law on some families of models, on this processor; it takes seconds."""
    verdicts: list[KernelVerdict] = []
    cases: dict[str, tuple[Case, NDArray[np.float32]]] = {}
    for family in families:
        try:
            case = make_case(family)
        except MissingDependencyError as error:
            verdicts.append(KernelVerdict(family, ALONE, None, str(error)))
            continue
        together = _trained(case, case.courses)
        cases[family] = case, together
        verdicts += _in_company(case, together)
        verdicts += _gradient(case)
    elsewhere = _digests_of_another_process(tuple(cases))
    for family, (_, together) in cases.items():
        holds = elsewhere.get(family) == _digest(together)
        verdicts.append(KernelVerdict(family, PROCESS, holds, "" if holds else "its bits differ"))
    order = [*MODELS]
    return sorted(verdicts, key=lambda one: (order.index(one.family), [*LAWS].index(one.law)))


def require_equal_bits(model: type[Model], precision: str = "float32") -> str:
    """Try what stored numbers rest on: that a model's courses have the same bits in any company."""
    family = next((name for name in MODELS if _is(name, model)), "")
    if not family:  # a model of the user's own
        return "not tried"
    if broken := _broken(family, precision):
        raise UnequalBitsError(f"{broken}. {advice()}")
    return "equal bits alone and in any batch"


def _is(family: str, model: type[Model]) -> bool:
    try:
        return MODELS[family] is model
    except MissingDependencyError:
        return False


@cache
def _broken(family: str, precision: str) -> str:
    case = make_case(family)
    together = _trained(case, case.courses, precision)
    for verdict in _in_company(case, together, precision):
        if not verdict.holds:
            return (
                f"on this machine it does not hold for {family} that {LAWS[verdict.law]}: "
                f"{verdict.words}"
            )
    return ""


def advice() -> str:
    """Return what to do where courses have other bits beside others."""
    try:
        from fedhpo_gym.fl.torch_trainer import fixed
    except ModuleNotFoundError:  # without torch
        is_fixed = None
    else:
        is_fixed = fixed()
    state = {None: "there is none", True: "they are fixed", False: "they are not fixed"}[is_fixed]
    return (
        f"Start again with the environment variable {SETTING}={STRICT}, or {SETTING}=COMPATIBLE, "
        f"which is slower, and unset what limits oneMKL, oneDNN or ATen (kernels of oneMKL: "
        f"{state}; {rounding_platform().get('settings', 'nothing is set')}); docs/reliability.md "
        "says what is promised where."
    )


def _in_company(
    case: Case, together: NDArray[np.float32], precision: str = "float32"
) -> Iterator[KernelVerdict]:
    alone = np.concatenate([_trained(case, [course], precision) for course in case.courses])
    yield _equal(case.family, ALONE, alone, together)
    order = np.random.default_rng(0).permutation(len(case.courses))
    reordered = np.empty_like(together)
    reordered[order] = _trained(case, [case.courses[i] for i in order], precision)
    yield _equal(case.family, ORDER, reordered, together)


def _equal(
    family: str, law: str, computed: NDArray[np.float32], expected: NDArray[np.float32]
) -> KernelVerdict:
    equal = (computed == expected).reshape(len(computed), -1).all(1)
    if equal.all():
        return KernelVerdict(family, law, holds=True)
    largest = float(np.abs(computed - expected).max())
    message = f"{(~equal).sum()} of {len(equal)} courses differ, by up to {largest:.1e}"
    return KernelVerdict(family, law, holds=False, words=message)


def _batch(case: Case, courses: Sequence[Course], precision: str = "float32") -> CourseBatch:
    federations = {case.federation.seed: case.federation}
    return CourseBatch(
        federations, case.model, get_algorithm("fedavg"), courses, precision=precision
    )


def _trained(
    case: Case, courses: Sequence[Course], precision: str = "float32"
) -> NDArray[np.float32]:
    """Return (courses, rounds, clients, splits, metrics) of what training makes of courses."""
    return _batch(case, courses, precision).advance(ROUNDS).metrics


def _gradient(case: Case) -> Iterator[KernelVerdict]:
    """Compare one full-batch step of all clients with the same in float64."""
    try:
        with require_optional("differentiating in float64", "torch", "torch", "torch"):
            from fedhpo_gym.fl.exact_gradients import LOGITS, exact_step
    except MissingDependencyError as error:
        yield KernelVerdict(case.family, GRADIENT, None, str(error))
        return
    if case.family not in LOGITS:
        return
    settings = {"learning_rate": 0.5, "weight_decay": 0.0, "step_size": 1, "pretrained": 0.0}
    batch = _batch(case, [Course({**settings, "dropout": 0.0}, 1.0, 1)])
    before, _, after = batch.snapshot()[0], batch.advance(1), batch.snapshot()[0]
    assert before is not None  # noqa: S101 - a batch knows its courses
    assert after is not None  # noqa: S101 - likewise
    start = {name: np.asarray(value)[0] for name, value in before.parameters.items()}
    end = {name: np.asarray(value)[0] for name, value in after.parameters.items()}
    step = exact_step(case, start, 0.5)
    largest = np.float32(max(np.abs(change).max() for change in step.values()))
    worst, where = 0.0, ""
    for name, expected in step.items():
        off = float(np.abs(end[name].astype(float) - start[name] - expected).max())
        allowed = TOLERANCE * np.abs(expected).max() + np.spacing(np.abs(end[name]).max())
        allowed += np.spacing(largest)
        if not off / allowed <= worst:
            worst, where = float(off / allowed), name
    yield KernelVerdict(
        case.family, GRADIENT, worst <= 1.0, f"error {worst:.0%} of bound ({where})"
    )


def _digest(metrics: NDArray[np.float32]) -> str:
    return hashlib.sha256(metrics.tobytes()).hexdigest()


def _digests_of_another_process(families: Sequence[str]) -> dict[str, str]:
    """Train the cases in another process, with another hash seed; what fails there is left out."""
    package = Path(__file__).resolve().parents[2]
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "77",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    done = subprocess.run(  # noqa: S603 - this interpreter, on this module
        [sys.executable, "-m", "fedhpo_gym.fl.self_check", *families],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {}


def main(families: Sequence[str]) -> None:
    """Write the digests of what training makes of the cases of some families."""
    write: Callable[[str], object] = sys.stdout.write
    write(json.dumps({f: _digest(_trained(c := make_case(f), c.courses)) for f in families}) + "\n")


BERT_SIZE: Mapping[str, int] = {
    "vocabulary": 60,
    "hidden": 24,
    "layers": 2,
    "heads": 2,
    "inner": 40,
    "positions": 12,
}


@dataclass(frozen=True, eq=False)
class Case:
    """Courses of one family that differ in all that decides how they are grouped."""

    family: str  # name of the model in `MODELS`
    model: type[Model]
    federation: Federation  # its data
    courses: tuple[Course, ...]  # what is trained


@cache
def make_case(family: str) -> Case:
    """Return the case of a family."""
    make, more, num_courses = _FAMILIES[family]
    model = MODELS[family]
    if family == "BERT":
        from fedhpo_gym.fl.models.bert import BertTiny, Size

        class SmallBert(BertTiny):
            """The transformer with fewer of everything."""

            size = Size(**BERT_SIZE)

        model = SmallBert
    return Case(family, model, make(), tuple(_courses(more, num_courses)))


def _courses(more: Sequence[Mapping[str, float]], num_rates: int) -> Iterator[Course]:
    """Yield courses of unequal rates for every shape in `more`; odd sizes fill no vector."""
    rounds = ((4, 1, 1.0), (16, 2, 0.5), (256, 1, 1.0), (7, 1, 0.7))
    for shape, (size, epochs, share) in itertools.product(more, rounds):
        for rate in np.geomspace(0.01, 0.3, num_rates).tolist():
            settings = {"learning_rate": rate, "weight_decay": 0.001, "batch_size": size}
            yield Course({**settings, "step_size": epochs, **shape}, share, 1)


def _users(*sizes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.repeat(np.arange(len(sizes)), sizes)


def _rows() -> Federation:
    rng, users = stream(1, "rows"), _users(97, 61, 40, 23, 12)
    labels = rng.integers(3, size=len(users))
    features = rng.normal(size=(len(users), 7)) * 2 + labels[:, None]
    return make_user_federation(make_dataset("rows", features, labels, 3, users), seed=1)


def _small_images() -> Federation:
    images = _images()
    rows = images.features[np.arange(len(images.labels))].reshape(-1, 64).astype(np.float32)
    return replace(images, features=rows / 16)


def _images() -> Federation:
    rng, users = stream(1, "images"), _users(24, 20, 17, 5)
    labels = rng.integers(3, size=len(users))
    pixels = rng.integers(0, 120, (len(users), 8, 8), dtype=np.uint8)
    pixels[np.arange(len(users)), labels * 2] += 100
    return make_user_federation(make_dataset("images", pixels, labels, 3, users), seed=1)


def _sentences() -> Federation:
    rng, users = stream(1, "sentences"), _users(33, 25, 20, 11)
    n, length = len(users), 11
    tokens = rng.integers(5, BERT_SIZE["vocabulary"], (n, length), dtype=np.int32)
    labels = rng.integers(2, size=n)
    tokens[:, 1] = 3 + labels
    tokens[np.arange(length) >= rng.integers(2, length + 1, n)[:, None]] = 0
    tokens[:, 0] = 2
    return make_user_federation(make_dataset("sentences", tokens, labels, 2, users), seed=1)


def _graph() -> Federation:
    rng, groups = stream(1, "graph"), 7
    group = rng.integers(groups, size=230)
    chance = np.where(group[:, None] == group, 0.2, 0.01)
    edges = np.argwhere(rng.random(chance.shape) < chance).T
    features = (rng.random((230, 7)) < 0.3) * rng.integers(1, 4, (230, 7))
    graph = make_node_graph("graph", from_dense(features), group, edges, groups)
    return make_graph_federation(graph, seed=1, num_clients=3)


def _graph_sets() -> Federation:
    sets = []
    for graphs, width, classes in ((20, 4, 2), (35, 7, 3), (27, 5, 3)):
        first = 3 * np.arange(graphs)  # paths of three nodes
        starts, ends = np.concatenate([first, first + 1]), np.concatenate([first + 1, first + 2])
        nodes = from_dense(stream(graphs, "nodes").integers(0, 2, (3 * graphs, width)))
        labels, offsets = np.arange(graphs) % classes, 3 * np.arange(graphs + 1)
        edges = np.stack([starts, ends])
        sets.append(make_graph_set(f"{graphs} paths", nodes, offsets, edges, labels, classes))
    return make_hetero_federation(make_graph_sets("paths", sets), seed=1)


def _ratings() -> Federation:
    data: Dataset = ratings_dataset(
        "ratings", make_ratings(num_users=40, num_items=30, mean_ratings=12.0)
    )
    return make_user_federation(data, 1, fractions=(0.8, 0.1))


_Shapes = Sequence[Mapping[str, float]]
_DEEP = [{"model_depth": d, "model_width": w} for d, w in ((1, 51), (1, 64), (2, 33))]
_FAMILIES: Mapping[str, tuple[Callable[[], Federation], _Shapes, int]] = {
    # More courses than fill the vectors of a processor, where they are cheap.
    "LR": (_rows, [{}], 29),
    "LeafLR": (_rows, [{}], 29),
    "MLP": (_rows, _DEEP, 7),
    "PlainMLP": (_rows, _DEEP, 7),
    "SmallCNN": (_small_images, [{}], 1),
    "CNN": (_images, [{"dropout": 0.0}, {"dropout": 0.4}], 1),
    "BERT": (_sentences, [{"pretrained": 0.0, "dropout": p} for p in (0.0, 0.3)], 1),
    "GNN": (_graph, [{"dropout": 0.0}, {"dropout": 0.5}], 4),
    "MF": (_ratings, [{}], 2),
    "Hetero": (_graph_sets, [{}], 7),
}
"""What makes the data of a family, shapes of its courses, and courses per shape and round."""


if __name__ == "__main__":
    main(sys.argv[1:])
