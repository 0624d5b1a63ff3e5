"""Profet (Klein et al., 2019): families of tasks, models of families, and generated tasks.

`ProfetModel.fit` learns the latent features of tasks and samples of networks from a family; the
studies in docs/studies use it. A generated task combines random features near those of a task with
one sampled network, and numpy alone evaluates it. Names of axes: T tasks, N configurations, D
dimensions, Q latent features, M networks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.archive import checked_card, write_archive
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Range, check_fields, coerce, short_repr, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, require_optional
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import Dimension, SearchSpace

with require_optional("a family of Profet", "scipy", "agents", "scipy"):
    from scipy.stats import qmc

MIN_ERROR: Final = 1e-3
"""Smallest distance of errors to 0 and 1 before the log-odds are computed."""


def _log_odds(errors: Floats) -> Floats:
    inside = np.clip(errors, MIN_ERROR, 1.0 - MIN_ERROR)
    return np.asarray(np.log(inside / (1.0 - inside)))


LINKS: Final[Mapping[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]]] = {
    "identity": (np.asarray, np.asarray),
    "log": (np.log, np.exp),
    "logit": (_log_odds, lambda odds: 1.0 / (1.0 + np.exp(-odds))),
}
"""Transforms of values for learning, and their inverses."""
DOMAINS: Final = {
    "identity": (-math.inf, math.inf), "log": (math.ulp(0.0), math.inf), "logit": (0.0, 1.0),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Family:
    """Values of the same configurations in several tasks; lower is better.

    Attributes:
        space: original ranges; a point of [0, 1] is at coordinate 2x - 1 of its dimension.
        x: (N, D) points of the unit cube.
        values: (T, N) objective to minimise.
        costs: (T, N) positive seconds, or None.
        tasks: (T,) names.
        origin: origin of the values.
        latent: Q, number of latent features of a task.
        link: transform of values for learning, a key of `LINKS`.
        widths: units of the hidden layers of networks.
    """

    name: str
    space: SearchSpace
    x: Floats
    values: Floats
    costs: Floats | None
    tasks: tuple[str, ...]
    origin: str
    latent: Annotated[int, Range(1)] = 5
    link: Literal["identity", "log", "logit"] = "identity"
    widths: tuple[int, ...] = (500, 500)

    def __post_init__(self) -> None:
        check_fields(self)
        shape = (len(self.tasks), len(self.x))
        _check_array("x", self.x, (shape[1], len(self.space)), (0.0, 1.0))
        _check_array("values", self.values, shape, DOMAINS[self.link])
        if self.costs is not None:
            _check_array("costs", self.costs, shape, DOMAINS["log"])


def _check_array(
    name: str, array: Floats, shape: tuple[int, ...], ends: tuple[float, float]
) -> None:
    low, high = ends
    fits = array.size and array.shape == shape and np.isfinite(array).all()
    if not fits or array.min() < low or array.max() > high:
        extent = f", {array.min()} to {array.max()}" if array.size else ""
        raise InvalidArgumentError(
            f"`{name}` must be finite numbers of shape {shape} in [{low}, {high}], got "
            f"{array.shape}{extent}; leave out what has none, or scale them"
        )


def sobol_points(num_points: int, space: SearchSpace, seed: int) -> Floats:
    """Return (N, D) points of a scrambled Sobol sequence."""
    power = max(num_points - 1, 1).bit_length()
    sequence = qmc.Sobol(len(space), rng=stream(seed, "profet-points")).random_base2(power)
    return np.asarray(sequence[:num_points], dtype=np.float64)


LINE: Final = SearchSpace((Dimension("x", 0.0, 1.0, "float"),))


@validate_call
def forrester(
    tasks: Annotated[int, Range(1)] = 9,
    seed: int = 0,
    *,
    highest: tuple[float, float] = (1.0, 1.0),
    points: Annotated[int, Range(2)] = 100,
) -> Family:
    """Return functions (alpha x - 2)^2 sin(beta x - 4) of the paper on a Sobol grid.

    Alpha and beta are uniform from 0 to their `highest`: above 1, some have several minima.
    """
    x = sobol_points(points, LINE, seed)
    alpha, beta = (stream(seed, "forrester").random((tasks, 2)) * highest).T[..., None]
    values = (alpha * x[:, 0] - 2.0) ** 2 * np.sin(beta * x[:, 0] - 4.0)
    names, origin = tuple(map(str, range(tasks))), f"computed, {highest=}"
    return Family("forrester", LINE, x, values, None, names, origin, 2, widths=(100,))


FORMAT: Final = 1
STEM: Final = "profet"
FEATURE_DRAWS: Final = 5
"""Samples of a task's features per configuration in the training data of networks."""
MAX_LAYERS: Final = 1000
MIN_SCALE: Final = 1e-30
Count = Annotated[int, Range(1)]


@dataclass(frozen=True, eq=False)
class SampledNetwork:
    """One network from standardised rows to standardised targets, with scales and the link."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    deviation: float
    centre: Floats
    scale: Floats
    link: str

    def __call__(self, rows: Floats, rng: np.random.Generator | None) -> Floats:
        # The extra axis gives one product per row, because the rounding of larger products varies.
        hidden = ((rows - self.centre[:-1]) / self.scale[:-1])[:, None]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = (np.tanh(hidden) if layer else hidden) @ weight + bias
        noise = 0.0 if rng is None else self.deviation * rng.standard_normal(len(rows))
        return LINKS[self.link][1]((hidden[:, 0, 0] + noise) * self.scale[-1] + self.centre[-1])


@dataclass(frozen=True, eq=False)
class ProfetTask:
    """A generated task: a function on the unit cube, with (Q,) latent features."""

    space: SearchSpace
    features: Floats
    networks: tuple[SampledNetwork, ...]

    def value(self, x: Floats, rng: np.random.Generator | None = None) -> Floats:
        """Return (n,) values at (n, D) points, with independent noise if `rng` is given."""
        return self.networks[0](self._network_inputs(x), rng)

    def cost(self, x: Floats, rng: np.random.Generator | None = None) -> Floats:
        """Return (n,) seconds at (n, D) points, as `value` does."""
        if len(self.networks) < 2:
            raise InvalidArgumentError("this family has no costs; count evaluations instead")
        return self.networks[1](self._network_inputs(x), rng)

    def optimum(self) -> tuple[Floats, float]:
        """Return the best point found by a search, and its value without noise."""
        return lowest(self.value, len(self.space))

    def _network_inputs(self, x: Floats) -> Floats:
        points = np.asarray(x, dtype=np.float64)
        if points.shape[1:] != (len(self.space),) or not ((points >= 0) & (points <= 1)).all():
            raise InvalidArgumentError(
                f"`x` must be (n, {len(self.space)}) points in [0, 1], got shape {points.shape}; "
                "scale them first, one row per point"
            )
        return np.hstack([points, np.tile(self.features, (len(points), 1))])


def lowest(value: Callable[[Floats], Floats], dimensions: int) -> tuple[Floats, float]:
    """Return the minimum of a function of (n, D) points, by random search, then local search."""
    rng = stream(0, "profet-optimum")
    x = rng.random((4096, dimensions))
    y = value(x)
    for width in 0.1 * 0.5 ** np.arange(25):
        best = np.argsort(y, kind="stable")[:32]
        near = x[np.repeat(best, 16)]
        near = np.clip(near + width * rng.standard_normal(near.shape), 0.0, 1.0)
        x, y = np.vstack([x[best], near]), np.append(y[best], value(near))
    return x[y.argmin()], float(y.min())


@dataclass(frozen=True, eq=False)
class ProfetModel:
    """A model of a family: sampled networks, and the latent features of its tasks.

    Attributes:
        card: search space, links, number of layers, seed, and the origin of the model.
        arrays: `mean` and `deviation` (T, Q) of features, and by number k of a link: `centre_k` and
            `scale_k` (D + Q + 1,), and `weight_k_i`, `bias_k_i`, `log_k_variance` of M networks.
    """

    card: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    @classmethod
    @validate_call
    def fit(
        cls,
        family: Family,
        *,
        samples: Count = 1000,
        feature_steps: Count = 10_000,
        burn_in: Count = 50_000,
        keep_every: Count = 100,
        widths: Sequence[int] | None = None,
        seed: int = 0,
        made_by: str = "ProfetModel.fit",
    ) -> Self:
        """Fit a model as in Profet's code; docs/studies/profet.md lists differences.

        Args:
            samples: M, number of networks.
            widths: units of hidden layers; by default those of the family.
        """
        from fedhpo_gym.building.meta_model import sampled_networks, task_features

        targets_by_network = [LINKS[family.link][0](family.values)]
        targets_by_network += [] if family.costs is None else [np.log(family.costs)]
        tasks, points = targets_by_network[0].shape
        latent = min(family.latent, tasks - 1)
        posterior = task_features(targets_by_network[0], latent, steps=feature_steps, seed=seed)
        normal = stream(seed, "profet-features").standard_normal(
            (points, FEATURE_DRAWS, tasks, latent)
        )
        features = (posterior.mean + posterior.deviation * normal).reshape(-1, latent)
        inputs = np.hstack([np.repeat(family.x, FEATURE_DRAWS * tasks, axis=0), features])
        arrays: dict[str, NDArray[Any]] = {"mean": posterior.mean, "deviation": posterior.deviation}
        widths = list(family.widths if widths is None else widths)
        for k, targets in enumerate(targets_by_network):
            table = np.hstack([inputs, np.repeat(targets.T, FEATURE_DRAWS, axis=0).reshape(-1, 1)])
            centre, scale = table.mean(axis=0), table.std(axis=0)
            scale[scale == 0.0] = 1.0
            table = (table - centre) / scale
            arrays |= {f"centre_{k}": centre, f"scale_{k}": scale}
            networks = sampled_networks(
                table[:, :-1], table[:, -1:], widths=widths, samples=samples, burn_in=burn_in,
                keep_every=keep_every, seed=seed + k,
            )  # fmt: skip
            arrays |= {name.replace("_", f"_{k}_"): array for name, array in networks.items()}
        card = {"format": FORMAT, "space": family.space.to_dict(), "origin": family.origin}
        links, layers = [family.link, "log"][: len(targets_by_network)], len(widths) + 1
        return cls(
            {**card, "links": links, "layers": layers, "seed": seed, "made_by": made_by}, arrays
        )

    @validate_call
    def task(self, number: Annotated[int, Range(0, 2**32 - 1)]) -> ProfetTask:
        """Return generated task `number`: features near those of a random task, and a network.

        Networks are used in turn, so that the first M tasks have different ones.
        """
        rng, mean = stream(self.card["seed"], "profet-task", number), self.arrays["mean"]
        source_task = rng.integers(len(mean))
        features = mean[source_task] + self.arrays["deviation"][source_task] * rng.standard_normal(
            mean.shape[1]
        )
        networks = tuple(
            self._network(k, link, number) for k, link in enumerate(self.card["links"])
        )
        return ProfetTask(SearchSpace.from_dict(self.card["space"]), features, networks)

    def _network(self, k: int, link: str, index: int) -> SampledNetwork:
        def sampled_array(name: str) -> Floats:
            return np.asarray(self.arrays[name][index % len(self.arrays[name])], np.float64)

        weights, biases = (
            tuple(sampled_array(f"{kind}_{k}_{layer}") for layer in range(self.card["layers"]))
            for kind in ("weight", "bias")
        )
        deviation = float(np.exp(0.5 * sampled_array(f"log_{k}_variance")[0]))
        centre, scale = self.arrays[f"centre_{k}"], self.arrays[f"scale_{k}"]
        return SampledNetwork(weights, biases, deviation, centre, scale, link)

    def save(self, folder: Path | str) -> Path:
        """Write a card and its arrays, and return the path of the card."""
        return write_archive(Path(folder), STEM, self.card, self.arrays, self.arrays)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Return the model that `save` wrote; its tasks are equal bit for bit."""
        path = Path(folder) / f"{STEM}.json"
        if not path.is_file():
            raise MissingDataError(f"there is no model of Profet in {folder}; `save` one there")
        with checked_card(path, "model of Profet", FORMAT, "fit it again") as (card, stored):
            model = cls(card, stored.read(card["sha256"], card["made_by"]))
            model._require_consistent()
        return model

    def _require_consistent(self) -> None:
        """Check the entries of the card, and that arrays are finite and have matching shapes."""
        card, shapes = self.card, {name: array.shape for name, array in self.arrays.items()}
        if card["links"] not in [[array, "log"][:n] for array in LINKS for n in (1, 2)]:
            raise ValueError(f"links are {short_repr(card['links'])}")
        layers = range(coerce("layers", card["layers"], Annotated[int, Range(1, MAX_LAYERS)]))
        coerce("seed", card["seed"], Annotated[int, Range(0)])
        latent_shape = (*shapes.get("mean", ()), 0, 0)[:2]
        inputs = len(SearchSpace.from_dict(card["space"])) + latent_shape[1]
        expected, samples = (
            {"mean": latent_shape, "deviation": latent_shape},
            shapes.get("bias_0_0", (0,))[0],
        )
        for k in range(len(card["links"])):
            hidden = [shapes.get(f"bias_{k}_{i}", (0,))[-1] for i in layers[:-1]]
            ends = (inputs, *hidden, 1)
            expected |= {f"centre_{k}": (inputs + 1,), f"scale_{k}": (inputs + 1,)}
            expected |= {f"weight_{k}_{i}": (samples, *ends[i : i + 2]) for i in layers}
            expected |= {f"bias_{k}_{i}": (samples, ends[i + 1]) for i in layers}
            expected[f"log_{k}_variance"] = (samples, 1)
        for name in sorted(expected.keys() | shapes.keys()):
            if shapes.get(name) != expected.get(name):
                raise ValueError(f"{name} has shape {shapes.get(name)}, not {expected.get(name)}")
            array = self.arrays[name]
            if array.dtype.kind != "f" or not array.size or not np.isfinite(array).all():
                raise ValueError(f"{name} must hold finite floats")
            if name.startswith("scale") and array.min() < MIN_SCALE:
                raise ValueError(f"{name} must be {MIN_SCALE} or more")
