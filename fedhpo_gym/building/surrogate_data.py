"""The courses a surrogate is fitted on, and the few numbers that stand for their curves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.stored.surrogate_models import matern
from fedhpo_gym.stored.surrogate_outputs import COMPRESSED_CLIENTS, SPREAD_OUTPUTS

LOSS_WEIGHT = 4.0
"""How much more than another output a log loss of the federation counts: it is the objective."""
CLIENTS_AT_FULL_WEIGHT = 5
"""With more clients, the outputs of all clients together count as much as those of five, and so do
those of their spread."""
LOW_PERCENTILE = 5
"""A loss may be as far below the lowest of the data as that is below this percentile. Better
courses than those drawn exist; were none predicted, all that beat these would tie."""
MAX_COMPONENTS = 16
COMPONENT_BYTES = 180_000
COMPONENT_ROWS = 1_500
MAX_DIRECTIONS = 48
"""In which curves may differ: so many numbers stand for a curve."""

Array = NDArray[np.float32]
PER_CLIENT = 3 * len(SPLITS)
"""Outputs of a client."""


def client_outputs(num_clients: int) -> slice:
    """Return where a row holds the outputs of clients; spread, best round, divergence follow."""
    return slice(len(SPLITS), len(SPLITS) + PER_CLIENT * num_clients)


@dataclass(frozen=True)
class FittingRows:
    """Courses of one seed each, at K stored rounds."""

    inputs: Array  # (n, 1, columns)
    outputs: Array  # (n, K, outputs), the last whether diverged; NaN where not trained
    final: Array  # (n, clients, splits, metrics) at the last round
    trained: NDArray[np.bool_]  # (n, K) which rounds courses were trained for
    seed: NDArray[np.int64]  # (n,) which seed
    seed_weights: NDArray[np.float64]  # (seeds, clients, splits) of the clients in the mean
    configuration: NDArray[np.int64]  # (n,) which configurations are held out together
    ranking: NDArray[np.int64]  # (n,) which are ranked together at equal rounds; -1 for none
    names: tuple[str, ...]  # of the columns

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: NDArray[np.int64]) -> FittingRows:
        own = {k: v[index] for k, v in vars(self).items() if k not in ("seed_weights", "names")}
        return replace(self, **own)

    @property
    def weights(self) -> NDArray[np.float64]:
        """(n, clients, splits) weights of the clients in the mean."""
        return np.asarray(self.seed_weights[self.seed])

    @property
    def shared_knot(self) -> int:
        """The last of the K rounds that all courses were trained for."""
        return int(self.trained.sum(axis=1).min()) - 1

    @property
    def num_clients(self) -> int:
        """Clients of the federation."""
        return int(self.seed_weights.shape[1])


@dataclass(frozen=True)
class PreparedRows:
    """FittingRows as a regressor sees them."""

    inputs: Array  # (n, columns)
    curves: Array  # (n, K * targets) standardised outputs; what was not trained is filled in
    known: NDArray[np.bool_]  # (n, K * targets) what is not filled in
    coefficients: Array  # (n, coefficients) what stands for them
    seeds: int  # how many seeds there are
    scales: dict[str, Array]  # as in `stored.surrogate_curves.CurveModel`
    centre: Array  # likewise
    basis: Array  # likewise
    clients: Array | None  # likewise
    names: tuple[str, ...]  # of the columns of `inputs`; seeds come last


def prepare(rows: FittingRows) -> PreparedRows:
    """Return rows for a fit; what scales and compresses them is learned from them alone."""
    n, knots, outputs = rows.outputs.shape
    flat, trained = rows.outputs.reshape(-1, outputs), rows.trained.ravel()
    scales = scales_of(flat[trained], rows.num_clients)
    clients, where = None, client_outputs(rows.num_clients)
    if rows.num_clients > COMPRESSED_CLIENTS:
        # They are stored in half precision: what is fitted must agree with it.
        scales = {name: halved(value) for name, value in scales.items()}
    targets = (flat - scales["mean"]) / scales["scale"]
    if rows.num_clients > COMPRESSED_CLIENTS:
        count = max(1, min(MAX_COMPONENTS, COMPONENT_BYTES // (2 * 9 * rows.num_clients)))
        clients = principal_directions(targets[trained, where], count)
        middle = targets[:, where] @ clients.T
        parts = targets[:, : where.start], middle, targets[:, where.stop :]
        targets = np.concatenate(parts, axis=1)
    settings = rows.inputs[:, 0, : -len(rows.seed_weights)]
    holes = targets.reshape(n, knots, -1).astype(np.float32)
    curves = completed(holes, rows.trained, settings).reshape(n, -1)
    centre = curves.mean(axis=0, dtype=np.float64).astype(np.float32)
    basis = principal_directions(curves - centre, MAX_DIRECTIONS)
    return PreparedRows(
        rows.inputs[:, 0],
        curves - centre,
        np.repeat(rows.trained, targets.shape[1], axis=1),
        ((curves - centre) @ basis.T).astype(np.float32),
        len(rows.seed_weights),
        scales,
        centre.reshape(knots, -1),
        basis.reshape(len(basis), knots, -1),
        clients,
        rows.names,
    )


def halved(values: Array) -> Array:
    """Return values as half precision gives them back."""
    return values.astype(np.float16).astype(np.float32)


def scales_of(outputs: Array, num_clients: int) -> dict[str, Array]:
    """Return mean, scale and range of (n, outputs)."""
    scale = outputs.std(axis=0, dtype=np.float64) + 1e-6
    scale[: len(SPLITS)] /= LOSS_WEIGHT
    where = client_outputs(num_clients)
    scale[where] *= math.sqrt(max(num_clients / CLIENTS_AT_FULL_WEIGHT, 1.0))
    scale[where.stop : -2] *= math.sqrt(SPREAD_OUTPUTS / (PER_CLIENT * CLIENTS_AT_FULL_WEIGHT))
    low, losses = outputs.min(axis=0), slice(len(SPLITS))
    few = np.percentile(outputs[:, losses], LOW_PERCENTILE, axis=0).astype(np.float32)
    low[losses] -= few - low[losses]
    return {
        "mean": outputs.mean(axis=0, dtype=np.float64).astype(np.float32),
        "scale": scale.astype(np.float32),
        "low": low,
        "high": outputs.max(axis=0),
    }


def principal_directions(rows: Array, most: int) -> Array:
    """Return (directions, columns) in which (n, columns) rows differ most, in half precision."""
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), COMPONENT_ROWS)).astype(np.int64)
    few = rows[chosen].astype(np.float64)
    count = max(1, min(most, *few.shape))
    if few.shape[0] < few.shape[1]:
        directions = np.linalg.eigh(few @ few.T)[1][:, ::-1][:, :count].T @ few
    else:
        directions = np.linalg.eigh(few.T @ few)[1][:, ::-1][:, :count].T
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    return halved((directions / np.maximum(norms, 1e-9)).astype(np.float32))


Floats = NDArray[np.float64]

DIRECTIONS = 8
"""Principal components that stand for the beginning of a curve."""
LENGTHS = (1.0, 2.0, 4.0, 8.0)
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 1e4)
"""Scales of the kernel, and penalties; with the largest, the line alone says how courses go on."""
WIDER = 2.0
"""By how many widths of their range the values of those that go on may be exceeded."""
SETTINGS = 0.5
"""What a setting counts, where the direction in which beginnings differ most has deviation 1."""


def completed(curves: Array, trained: NDArray[np.bool_], settings: Array) -> Array:
    """Return curves with the rounds that courses lack filled in.

    From each round at which courses end to the next, a line says what follows from the last value,
    and courses of similar settings and beginnings say the rest. It stays near the range of those
    that go on. After the last round that any course has, the last value is repeated.

    Shapes: `curves` (n, K, targets); `trained` (n, K); `settings` (n, columns).
    """
    if trained.all():
        return curves
    ends = np.unique(trained.sum(axis=1)).tolist()
    found = curves.astype(np.float64)
    for start, end in pairwise(ends):
        longer = trained[:, end - 1]
        beginnings = _beginnings(found[:, :start].reshape(len(found), -1), longer)
        near = np.concatenate([beginnings, SETTINGS * settings], axis=1)
        line = _line(found[longer, start - 1], found[longer, start:end])
        expected = line * found[:, start - 1 : start]
        rest = found[longer, start:end] - expected[longer]
        told = _told(near[longer], rest.reshape(len(rest), -1), near[~longer])
        told = expected[~longer] + told.reshape(-1, *rest.shape[1:])
        low, high = found[longer, start:end].min(axis=0), found[longer, start:end].max(axis=0)
        room = WIDER * (high - low)
        found[~longer, start:end] = np.clip(told, low - room, high + room)
    found[:, ends[-1] :] = found[:, ends[-1] - 1 : ends[-1]]
    return found.astype(np.float32)


def _beginnings(heads: Floats, longer: NDArray[np.bool_]) -> Floats:
    """Return (n, directions) scores of (n, columns) along what differs most in longer courses."""
    known = heads[longer]
    centre = known.mean(axis=0)
    directions = np.linalg.svd(known - centre, full_matrices=False)[2][:DIRECTIONS]
    scores = (heads - centre) @ directions.T
    return np.asarray(scores / max(float(scores[longer, :1].std()), 1e-12))


def _line(last: Floats, later: Floats) -> Floats:
    """Return the (rounds, targets) slopes of (m, rounds, targets) later values on (m, targets)."""
    centred = last - last.mean(axis=0)
    product_sum = np.einsum("mt,mrt->rt", centred, later)
    return np.asarray(product_sum / np.maximum((centred**2).sum(axis=0), 1e-9))


def _told(known: Floats, values: Floats, asked: Floats) -> Floats:
    """Predict the (s, targets) values at `asked` from courses that resemble it.

    Kernel ridge regression about the mean. A Matern kernel of smoothness 3/2 forgets with the
    distance, so a course that resembles no other gets the mean: with lines alone, the best courses
    would become better than any was. Scale and penalty have the least error when each course is
    left out in turn.

    Shapes: `known` (m, columns); `values` (m, targets); `asked` (s, columns).
    """
    mean = values.mean(axis=0)
    rest = values - mean
    length, ridge = min(
        product(LENGTHS, RIDGES),
        key=lambda one: _left_out(matern(known / one[0], known / one[0]), rest, one[1]),
    )
    gram = matern(known / length, known / length) + ridge * np.eye(len(known))
    return np.asarray(mean + matern(asked / length, known / length) @ np.linalg.solve(gram, rest))


def _left_out(gram: Floats, values: Floats, ridge: float) -> float:
    """Return the squared error, over all courses, of predicting each from the others."""
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    missed = (inverse @ values) / np.diag(inverse)[:, None]
    return float((missed**2).sum())
