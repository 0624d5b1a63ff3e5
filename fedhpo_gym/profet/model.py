"""Profet's model of a family, and the tasks that it generates, which numpy alone evaluates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.archive import reading_card, write_archive
from fedhpo_gym.core.checks import Range, checked_types
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.profet.families import LINKS, Array, Family
from fedhpo_gym.space import SearchSpace

FORMAT: Final = 1
STEM: Final = "profet"
DRAWS: Final = 5
"""Draws of a task's features per configuration that the networks learn from."""
Count = Annotated[int, Range(1)]


@dataclass(frozen=True, eq=False)
class Network:
    """One network of a configuration and a task's features, and how its numbers are scaled."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    deviation: float
    centre: Array
    scale: Array
    link: str

    def __call__(self, rows: Array, rng: np.random.Generator | None) -> Array:
        hidden = (rows - self.centre[:-1]) / self.scale[:-1]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = (np.tanh(hidden) if layer else hidden) @ weight + bias
        found = hidden[:, 0]
        if rng is not None:
            found = found + self.deviation * rng.standard_normal(len(rows))
        return LINKS[self.link][1](found * self.scale[-1] + self.centre[-1])


@dataclass(frozen=True, eq=False)
class ProfetTask:
    """A function of points of the unit cube.

    Attributes:
        features: (Q,) where the task is in the latent space.
    """

    space: SearchSpace
    features: Array
    networks: tuple[Network, ...]

    def value(self, x: Array, rng: np.random.Generator | None = None) -> Array:
        """Return (n,) values at (n, D) points, each with noise of its own if there is an `rng`."""
        return self.networks[0](self._rows(x), rng)

    def cost(self, x: Array, rng: np.random.Generator | None = None) -> Array:
        """Return (n,) seconds at (n, D) points, as `value` does."""
        if len(self.networks) < 2:
            raise InvalidArgumentError("this family has no costs; count evaluations instead")
        return self.networks[1](self._rows(x), rng)

    def optimum(self) -> tuple[Array, float]:
        """Return the lowest point that a search finds, and its value without noise."""
        return lowest(self.value, len(self.space))

    def _rows(self, x: Array) -> Array:
        points = np.asarray(x, dtype=np.float64)
        fits = points.ndim == 2 and points.shape[1] == len(self.space)
        if not fits or not ((points >= 0.0) & (points <= 1.0)).all():
            raise InvalidArgumentError(
                f"`x` must be (n, {len(self.space)}) points in [0, 1], got shape {points.shape}; "
                "scale them first, one row per point"
            )
        return np.hstack([points, np.broadcast_to(self.features, (len(x), len(self.features)))])


def lowest(value: Callable[[Array], Array], dimensions: int) -> tuple[Array, float]:
    """Return where a function of (n, D) points is lowest, and how low.

    Uniform points are searched, then ever closer ones around the best.
    """
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
    """Samples of networks, and where the tasks of a family are in a latent space.

    Attributes:
        links: what is learned of values, and of costs where there are any.
        arrays: `mean` and `deviation` (T, Q) of the tasks' features, and by number of a link:
            `centre_k` and `scale_k` (D + Q + 1,) of inputs and target, `weight_k_i` (M, ...),
            `bias_k_i` and `log_variance_k` of the networks.
    """

    space: SearchSpace
    links: tuple[str, ...]
    arrays: dict[str, NDArray[Any]]
    layers: int
    seed: int
    origin: str
    made_by: str

    @classmethod
    @checked_types
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
        """Fit a model as Profet's code does, but for what docs/studies/profet.md says.

        Args:
            samples: M, of networks.
            widths: of hidden layers; by default those of the family.
        """
        from fedhpo_gym.building.meta_model import sampled_networks, task_features

        latent = min(family.latent, len(family.tasks) - 1)
        learned = [LINKS[family.link][0](family.values)]
        if family.costs is not None:
            learned.append(np.log(family.costs))
        place = task_features(learned[0], latent, steps=feature_steps, seed=seed)
        tasks, points = learned[0].shape
        drawn = stream(seed, "profet-features").standard_normal((points, DRAWS, *place.mean.shape))
        features = (place.mean + place.deviation * drawn).reshape(-1, latent)
        rows = np.hstack([np.repeat(family.x, DRAWS * tasks, axis=0), features])
        arrays: dict[str, NDArray[Any]] = {"mean": place.mean, "deviation": place.deviation}
        layers = tuple(family.widths if widths is None else widths)
        for number, targets in enumerate(learned):
            target = np.repeat(targets.T, DRAWS, axis=0).reshape(-1, 1)
            table = np.hstack([rows, target])
            centre, scale = table.mean(axis=0), table.std(axis=0)
            scale[scale == 0.0] = 1.0
            table = (table - centre) / scale
            arrays |= {f"centre_{number}": centre, f"scale_{number}": scale}
            networks = sampled_networks(
                table[:, :-1], table[:, -1:], widths=layers, samples=samples, burn_in=burn_in,
                keep_every=keep_every, seed=seed + number,
            )  # fmt: skip
            for name, array in networks.items():
                part, _, layer = name.partition("_")
                arrays[
                    f"log_variance_{number}" if part == "log" else f"{part}_{number}_{layer}"
                ] = array
        links = (family.link, "log")[: len(learned)]
        return cls(family.space, links, arrays, len(layers) + 1, seed, family.origin, made_by)

    @checked_types
    def task(self, number: Annotated[int, Range(0)]) -> ProfetTask:
        """Return generated task `number`: features near those of a task drawn, a sampled network.

        Networks are taken in turn, so that the first M tasks have one each.
        """
        rng, mean = stream(self.seed, "profet-task", number), self.arrays["mean"]
        of = rng.integers(len(mean))
        features = mean[of] + self.arrays["deviation"][of] * rng.standard_normal(mean.shape[1])
        networks = tuple(self._network(k, number) for k in range(len(self.links)))
        return ProfetTask(self.space, features, networks)

    def _network(self, k: int, number: int) -> Network:
        def own(name: str) -> Array:
            return np.asarray(self.arrays[name][number % len(self.arrays[name])], np.float64)

        weights, biases = (
            tuple(own(f"{part}_{k}_{layer}") for layer in range(self.layers))
            for part in ("weight", "bias")
        )
        deviation = float(np.exp(0.5 * own(f"log_variance_{k}")[0]))
        centre, scale = self.arrays[f"centre_{k}"], self.arrays[f"scale_{k}"]
        return Network(weights, biases, deviation, centre, scale, self.links[k])

    def save(self, folder: Path | str) -> Path:
        """Write a card and the arrays it names; return the path of the former."""
        card = {"format": FORMAT, "space": self.space.to_dict(), "links": list(self.links)}
        card |= {n: getattr(self, n) for n in ("layers", "seed", "origin", "made_by")}
        return write_archive(Path(folder), STEM, card, self.arrays, self.arrays)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read what `save` wrote: a model of the same tasks, bit for bit."""
        card = Path(folder) / f"{STEM}.json"
        if not card.is_file():
            raise MissingDataError(f"there is no model of Profet in {folder}; `save` one there")
        with reading_card(card, "model of Profet", FORMAT, "fit it again") as (said, stored):
            space, links = SearchSpace.from_dict(said["space"]), tuple(map(str, said["links"]))
            layers, seed = int(said["layers"]), int(said["seed"])
            made_by, sha256, origin = str(said["made_by"]), said["sha256"], str(said["origin"])
        arrays = stored.read(sha256, made_by)
        try:
            model = cls(space, links, arrays, layers, seed, origin, made_by)
            model.task(0).value(np.zeros((1, len(space))))
        except (LookupError, ValueError, TypeError) as error:
            raise DamagedDataError(
                f"{stored.path} does not hold the model its card describes ({error}); delete it "
                f"and run `{made_by}`"
            ) from error
        return model
