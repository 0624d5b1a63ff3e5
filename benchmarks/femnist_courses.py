"""Courses of ours with the settings of a FederatedScope run, and with what it does differently."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from femnist_logs import Settings, weighted
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.datasets import Dataset
from fedhpo_gym.datasets.records import Features
from fedhpo_gym.federations.federation import Federation, make_user_federation
from fedhpo_gym.files import write_text
from fedhpo_gym.fl import ENGINE_VERSION
from fedhpo_gym.fl.algorithms import Algorithm, get_algorithm
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models.cnn import MEAN, STD, ConvNet
from fedhpo_gym.fl.models.cnn_step import MAX_NORM
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.seeding import stream

NEAREST = 5
"""Writers of nearly as many samples among which one is drawn."""
Curve = dict[int, NDArray[np.float64]]
"""(splits, 2) weighted loss and accuracy by round."""


@dataclass(frozen=True)
class Variant:
    """What our courses take over from FederatedScope beyond the settings.

    Attributes:
        name: short, for file names.
        text: for readers.
        normalisation: its mean and standard deviation of pixels, in place of the package's.
        statistics: running statistics of batch normalisation stay with every client.
        binary: pixels below 1 become 0, and the others 1/255.
    """

    name: str
    text: str
    normalisation: bool = False
    statistics: bool = False
    binary: bool = False


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("package", "the package as it is"),
        Variant("normalised", "... with their normalisation of pixels", True),
        Variant("statistics", "... and running statistics that stay with the clients", True, True),
        Variant("binary", "... and pixels cut to 8-bit integers", True, True, True),
    )
}


def choose_writers(
    available: NDArray[np.int64], wanted: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    """Choose writers at random, one for each wanted number of samples and about as large.

    Args:
        available: samples of every writer there is.
        wanted: samples of every client of the other federation.
        seed: of the choice.
    """
    rng = stream(seed, "writers")
    left = np.arange(len(available))
    chosen = []
    for size in rng.permutation(wanted):
        nearest = np.argsort(np.abs(available[left] - size), kind="stable")[:NEAREST]
        pick = rng.choice(nearest)
        chosen.append(left[pick])
        left = np.delete(left, pick)
    return np.array(sorted(chosen))


def choose_federation(dataset: Dataset, wanted: NDArray[np.int64], seed: int) -> Federation:
    """Return the federation of some writers, their samples split 60/20/20."""
    whole = make_user_federation(dataset, seed)
    writers = choose_writers(whole.num_samples.sum(axis=1), wanted, seed)
    return replace(whole, clients=tuple(whole.clients[writer] for writer in writers))


def make_course(settings: Settings, seed: int) -> Course:
    """Return a course of all clients with the settings of a run."""
    configuration = {
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "batch_size": settings.batch_size,
        "step_size": settings.local_epochs,
        "dropout": settings.dropout,
        "mu": settings.mu,
    }
    return Course(configuration, 1.0, seed)


def unmatched(settings: Settings, federation: Federation) -> list[str]:
    """Return what the package's network holds fixed and the run has otherwise."""
    model = ConvNet.for_federation(federation, torch.device("cpu"))
    width = model.init(np.random.default_rng(0))["bias3"].shape[1]
    fixed = {"hidden width": (width, settings.hidden_width)}
    fixed["largest gradient norm"] = (MAX_NORM, settings.max_norm)
    return [f"{name} {b:g} ({a:g} here)" for name, (a, b) in fixed.items() if a != b]


def like_theirs(settings: Settings, variant: Variant) -> tuple[type[ConvNet], Algorithm]:
    """Return the network and the algorithm of a variant."""
    base = get_algorithm(settings.algorithm)
    if not variant.statistics:
        return _network(settings, variant), base

    class OwnStatistics(type(base)):  # type: ignore[misc]
        def personal(self, names: Collection[str], norms: Collection[str]) -> frozenset[str]:
            return frozenset(norms) & ConvNet.buffers

    return _network(settings, variant), OwnStatistics()


def _network(settings: Settings, variant: Variant) -> type[ConvNet]:
    class TheirPixels(ConvNet):
        def inputs(self, features: Features) -> Tensor:
            pixels = super().inputs(features)
            if variant.binary:
                pixels = (pixels == 255).to(torch.uint8)
            normal = (pixels.double() / 255.0 - settings.mean) / settings.std
            # The network normalises in its own way, and a copy of what is not float32.
            return (normal * STD + MEAN) * 255.0

    return TheirPixels if variant.normalisation else ConvNet


def train(
    settings: Settings,
    variant: Variant,
    federation: Federation,
    evaluated: Sequence[int],
    device: str = "cpu",
    progress: Callable[[], Any] | None = None,
) -> Curve:
    """Train one course up to the last of the evaluated rounds."""
    model, algorithm = like_theirs(settings, variant)
    courses = [make_course(settings, federation.seed)]
    batch = CourseBatch({federation.seed: federation}, model, algorithm, courses, device)
    curves = batch.advance(max(evaluated), progress, evaluated)
    values = weighted(curves.metrics[0, ..., :2], federation.num_samples)
    return dict(zip(curves.rounds.tolist(), values, strict=True))


def course_name(settings: Settings, variant: Variant, federation: Federation) -> str:
    """Return the name of a course: for readers, and a digest of all that its numbers depend on."""
    given = [asdict(settings), {**asdict(variant), "text": ""}, ENGINE_VERSION]
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode())
    for client in federation.clients:
        for rows in client:
            digest.update(len(rows).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(federation.features[rows]).tobytes())
            digest.update(federation.labels[rows].tobytes())
    words = (settings.algorithm, settings.num_clients, variant.name, federation.seed)
    return "-".join([*map(str, words), digest.hexdigest()[:8]])


def cached(path: Path, evaluated: Collection[int], compute: Callable[[], Curve]) -> Curve:
    """Return the curve in a file; if it lacks some rounds, compute it and write the file."""
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if all(str(index) in found for index in evaluated):
            return {index: np.array(found[str(index)]) for index in evaluated}
    curve = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {index: values.tolist() for index, values in curve.items()}
    write_text(path, json.dumps(content))
    return curve
