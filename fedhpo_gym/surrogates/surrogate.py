"""One surrogate: a card (JSON) and the arrays of a model (npz), checked before use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.archive import DIGEST, MODEL_GROWTH, reading_card, write_archive
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.evaluation.many import Evaluations
from fedhpo_gym.evaluation.records import SPLITS, Evaluation, Fidelity
from fedhpo_gym.identity import Identity
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.surrogates.inputs import InputEncoding
from fedhpo_gym.surrogates.model import OutcomeModel
from fedhpo_gym.surrogates.outputs import num_outputs, to_metrics, weights_of
from fedhpo_gym.tables.stored import seeds_and_samples

FORMAT = 1
SUFFIX = ".surrogate"


class Surrogate:
    """A model of a table that answers any configuration, round, client sample rate, and seed.

    Attributes:
        card: everything about the surrogate but its numbers, with its held-out errors.
        identity: the variant of a problem that it belongs to.
        name: stem of its files.
        space: the configurations, as intervals.
        fidelity_space: `round` and `client_sample_rate`, as intervals.
        seeds: seeds of the repetitions.
        num_samples: (seeds, clients, splits) samples.
        inputs: encoding of the model's rows.
        sha256: checksum of the arrays.
        digest: checksum of everything that decides a number, in the card and in the arrays.
    """

    def __init__(self, card: Path, arguments: str = "ID") -> None:
        """Read a card; the model is read when first asked for.

        Args:
            card: path of the card.
            arguments: what `fedhpo-gym surrogate` fits it on, for messages; see `Identity`.

        Raises:
            DamagedDataError: the card is not a surrogate card of this format.
        """
        repair = f"fit the surrogate again with `fedhpo-gym surrogate {arguments}`"
        with reading_card(card, "surrogate", FORMAT, repair) as (content, self._arrays):
            self.identity = Identity.from_card(content)
            self.name = self.identity.name
            self.space = SearchSpace.from_dict(content["space"])
            self.fidelity_space = SearchSpace.from_dict(content["fidelity_space"])
            self.seeds, self.num_samples = seeds_and_samples(content, len(SPLITS))
            self.sha256: str = content["sha256"]
            self.digest: str = content[DIGEST]
            self._repair: str = content["fit_command"]
            self._kind: str = content["model"]["kind"]
            max_round = int(self.fidelity_space["round"].high)
        self.card: Mapping[str, Any] = MappingProxyType(content)
        self._weights = weights_of(self.num_samples)
        self.inputs = InputEncoding(self.space, max_round, self.num_samples.shape[1], self.seeds)

    @cached_property
    def _model(self) -> OutcomeModel:
        arrays = self._arrays.read(self.sha256, self._repair, growth=MODEL_GROWTH)
        try:
            model = OutcomeModel.from_arrays(self._kind, arrays)
            _check_shape(model, len(self.inputs.names), num_outputs(self.num_samples.shape[1]))
        except (LookupError, ValueError, TypeError) as error:
            raise DamagedDataError(
                f"{self._arrays.path} does not hold the model its card describes ({error}); delete "
                f"it and run `{self._repair}`"
            ) from error
        return model

    def evaluate(
        self, configuration: Mapping[str, object], fidelity: Fidelity, seeds: tuple[int, ...]
    ) -> Evaluation:
        """Predict one evaluation.

        `current` is None and `diverged` False: the model knows the best round so far only, and
        losses of diverged courses like any other.

        Raises:
            InvalidArgumentError: the configuration, the round or the rate is out of its range, or
                the surrogate does not know a seed.
            DamagedDataError: the file of the model is damaged; names the repair command.
        """
        self.check_fidelity(asdict(fidelity))
        where = self._seed_rows(seeds)
        outputs = self.predict(self.inputs.one(configuration, fidelity, where))
        rounds = np.full(len(where), fidelity.round)
        metrics, best_round = to_metrics(outputs, self._weights[where], rounds)
        return Evaluation(
            best=metrics,
            current=None,
            num_samples=self.num_samples[where],
            best_round=best_round,
            diverged=np.zeros(len(where), dtype=np.bool_),
            seeds=seeds,
            fidelity=fidelity,
        )

    def evaluate_together(
        self,
        queries: Sequence[tuple[Mapping[str, object], Fidelity]],
        seeds: tuple[int, ...],
    ) -> Evaluations:
        """Predict many evaluations, bit for bit those of `evaluate`.

        Raises:
            InvalidArgumentError: see `evaluate`.
            DamagedDataError: see `evaluate`.
        """
        where = self._seed_rows(seeds)
        inputs = np.stack([self.inputs.one(*query, where) for query in queries])
        outputs = self.predict(inputs)
        rounds = np.repeat([fidelity.round for _, fidelity in queries], len(where))
        weights = np.tile(self._weights[where], (len(queries), 1, 1))
        metrics, best_round = to_metrics(outputs.reshape(len(rounds), -1), weights, rounds)
        shape = (len(queries), len(where))
        return Evaluations(
            metrics.reshape(*shape, *metrics.shape[1:]),
            self.num_samples[where],
            best_round.reshape(shape),
            np.zeros(shape, dtype=np.bool_),
        )

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., n, outputs) of (..., n, columns) rows of `inputs`.

        See `outputs` for their meaning. Groups of n rows get the same bits together and alone.
        """
        return self._model.predict(rows)

    def evaluate_many(
        self, coordinates: ArrayLike, rounds: ArrayLike, rates: ArrayLike, seed_rows: ArrayLike
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Predict many evaluations of one seed each; equals `evaluate` up to float32 rounding.

        Arguments are not checked: they come from a codec. See `InputEncoding.many`.

        Returns:
            (n, clients, splits, metrics) metrics and (n,) best rounds.
        """
        where = np.asarray(seed_rows, dtype=np.int64)
        outputs = self.predict(self.inputs.many(coordinates, rounds, rates, where))
        return to_metrics(outputs, self._weights[where], np.asarray(rounds, dtype=np.int64))

    def require_seeds(self, seeds: tuple[int, ...]) -> None:
        """Check that the surrogate knows these seeds.

        Raises:
            InvalidArgumentError: it does not know one, or there is none.
        """
        unknown = [seed for seed in seeds if seed not in self.seeds]
        if unknown or not seeds:
            raise InvalidArgumentError(
                f"`seeds` must be among {self.seeds}, the seeds of surrogate {self.name}, "
                f'got {seeds!r}; use one of them or backend="raw"'
            )

    def check_fidelity(self, values: Mapping[str, object]) -> dict[str, Value]:
        """Return values of some fidelity dimensions as the legal numbers they equal.

        Raises:
            UnknownNameError: a name is no fidelity dimension.
            InvalidArgumentError: the surrogate would have to guess beyond its data.
        """
        space = self.fidelity_space
        try:
            return {name: space[name].validate(value, "fidelity") for name, value in values.items()}
        except InvalidArgumentError as error:
            rounds, rates = space["round"], space["client_sample_rate"]
            raise InvalidArgumentError(
                f"{error} Surrogate {self.name} knows no others: it was fitted on courses of "
                f"{rounds.low} to {rounds.high} rounds with client sample rates of {rates.low} to "
                f"{rates.high}, and would have to guess beyond them; ask for one of these, or use "
                'backend="raw"'
            ) from error

    def _seed_rows(self, seeds: tuple[int, ...]) -> NDArray[np.int64]:
        self.require_seeds(seeds)
        return np.array([self.seeds.index(seed) for seed in seeds], dtype=np.int64)


def _check_shape(model: OutcomeModel, inputs: int, outputs: int) -> None:
    if model.regressor.num_features > inputs:
        raise ValueError(f"it looks at {model.regressor.num_features} inputs, there are {inputs}")
    if any(scale.shape != (outputs,) for scale in model.scales.values()):
        raise ValueError(f"its scales must be those of {outputs} outputs")
    found = model.predict(np.zeros((1, inputs), np.float32)).shape
    if found != (1, outputs):
        raise ValueError(f"{found[1:]} outputs, expected {outputs}")
    if not all(np.isfinite(array).all() for array in model.arrays.values()):
        raise ValueError("not all of its numbers are finite")


def write_surrogate(folder: Path, card: Mapping[str, Any], model: OutcomeModel) -> Path:
    """Write a surrogate's arrays, then its card.

    Returns:
        Path of the card.
    """
    return write_archive(
        folder, f"{card['name']}{SUFFIX}", {"format": FORMAT, **card}, model.arrays
    )
