"""One surrogate: a card (JSON), the arrays of a model (npz), and which objectives it may answer.

That is decided by held-out figures of each, which a card states. They are computed of nothing but
courses and answers, so they decide no answer and no digest; they name the digest of the surrogate
that they are of. The verdict is never stored: it follows from the figures by the rule.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.archive import DIGEST_ENTRY, MODEL_GROWTH, checked_card, write_archive
from fedhpo_gym.core.checks import CheckedFields, coerce, validate_call
from fedhpo_gym.core.errors import DamagedDataError, FedHPOError, InvalidArgumentError
from fedhpo_gym.core.files import read_json
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.evaluation.records import (
    ENTRIES,
    SPLITS,
    Entries,
    Evaluation,
    Evaluations,
    Fidelity,
    query_columns,
)
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.stored import catalogue
from fedhpo_gym.stored.surrogate_curves import CurveModel
from fedhpo_gym.stored.surrogate_rows import (
    COMPRESSED_CLIENTS,
    CurveInputs,
    client_shares,
    num_outputs,
    to_metrics,
)
from fedhpo_gym.stored.table import seed_rows, seeds_and_samples

ENTRY = "objectives"
"""Entry of a card: what `building.surrogate_verdicts.measured` returned."""
LOWEST_TAU, LARGEST_BIAS = 0.6, 0.1
"""Of Kendall's tau, and of the bias as a share of the spread: what an objective is accepted by."""
RULE = (
    f"Kendall's tau at least {LOWEST_TAU}, and a bias of at most {LARGEST_BIAS} of the objective's "
    "spread"
)
CLAIMED = "claimed_best"
"""Entry of a card: the loss that the surrogate claims for its best configuration, and what training
it reaches."""
LARGEST_MISS = 0.1
CLAIM_RULE = (
    "the logarithm of the loss that training reaches, under all seeds, exceeds that of the claim "
    f"by at most {LARGEST_MISS} of its spread over courses"
)


@dataclass(frozen=True)
class HeldOut(CheckedFields):
    """Held-out figures of an objective at full fidelity; a loss is measured by its logarithm."""

    mae: float  # mean absolute error of the claims
    bias: float  # mean of claim less truth
    spread: float  # standard deviation of the truth
    kendall_tau: float | None  # None where truth or claim never differs

    @property
    def passed(self) -> bool:
        """Whether the objective is accepted, by `RULE`."""
        ranks = self.kendall_tau is not None and self.kendall_tau >= LOWEST_TAU
        return ranks and abs(self.bias) <= LARGEST_BIAS * self.spread

    @property
    def words(self) -> str:
        """The figures in words."""
        tau = "none" if self.kendall_tau is None else f"{self.kendall_tau:.4g}"
        return (
            f"tau {tau}, bias {self.bias:+.3g}, mean absolute error {self.mae:.3g}, spread "
            f"{self.spread:.3g}"
        )


@dataclass(frozen=True)
class Claim(CheckedFields):
    """The best configuration that a surrogate claims, at its fidelity; means over seeds."""

    claimed: float  # validation loss that it answers
    trained: float  # validation loss that training reaches
    spread: float  # standard deviation, over courses, of the logarithm of the loss

    @property
    def passed(self) -> bool:
        """Whether the claim is accepted, by `CLAIM_RULE`."""
        if min(self.claimed, self.trained) <= 0:
            return self.trained <= self.claimed
        return math.log(self.trained / self.claimed) <= LARGEST_MISS * self.spread

    @property
    def words(self) -> str:
        """The figures in words."""
        return (
            f"validation loss {self.claimed:.4g} claimed, {self.trained:.4g} trained; the spread "
            f"of its logarithm is {self.spread:.3g}"
        )


def claim_on(card: Mapping[str, Any]) -> Claim | None:
    """Return the claimed best that a surrogate's card states; None where it states none."""
    entry = card.get(CLAIMED)
    if entry is None:
        return None
    try:
        claim = Claim(**{name: entry[name] for name in ("claimed", "trained", "spread")})
        is_current = entry["of"] == card[DIGEST_ENTRY]
    except (LookupError, TypeError, ValueError, FedHPOError) as error:
        raise DamagedDataError(_wrong(card, str(error), CLAIMED)) from error
    if not is_current:
        raise DamagedDataError(_wrong(card, "it is of another surrogate", CLAIMED))
    return claim


def held_on(card: Mapping[str, Any]) -> dict[str, HeldOut]:
    """Return the figures by objective that a surrogate's card states."""
    try:
        entry = card[ENTRY]
        figures = coerce(ENTRY, entry["held_out"], Mapping[str, Mapping[str, Any]])
        held = {name: HeldOut(**figure) for name, figure in figures.items()}
        is_current = entry["of"] == card[DIGEST_ENTRY]
    except (LookupError, TypeError, ValueError, FedHPOError) as error:
        raise DamagedDataError(_wrong(card, str(error))) from error
    if not is_current:
        raise DamagedDataError(_wrong(card, "they are of another surrogate"))
    return held


def _wrong(card: Mapping[str, Any], reason: str, entry: str = ENTRY) -> str:
    return (
        f"the card of {card['name']}: `{entry}` does not hold figures of this surrogate "
        f"({reason}); run `fedhpo-gym surrogate ID --measure`"
    )


def why_refused(card: Mapping[str, Any], objective: str) -> str:
    """Return why a surrogate does not answer an objective of clients' metrics; "" where it does."""
    held = held_on(card)
    if objective not in held:
        return "it was not measured on courses that the fit had not seen"
    figures = held[objective]
    return "" if figures.passed else f"{figures.words}; the rule is: {RULE}"


SUFFIX = ".surrogate"
NUMBERS = "numbers_sha256"
"""Entry of a card: the digest of the card of imported numbers that the surrogate was fitted on."""
FORMAT = 2
"""The format of cards; another one answers by other rules."""
CHUNK = 1024
"""Groups of rows that are answered together, so that they stay in the processor's cache."""


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
        kind: kind of its regressor.
        sha256: checksum of the arrays.
        digest: checksum of everything that decides a number, in the card and in the arrays.
    """

    def __init__(self, card: Path, arguments: str = "ID") -> None:
        repair = f"fit the surrogate again with `fedhpo-gym surrogate {arguments}`"
        with checked_card(card, "surrogate", FORMAT, repair) as (content, self._arrays):
            self.identity = Identity.from_card(content)
            self.name = self.identity.name
            self.space = SearchSpace.from_dict(content["space"])
            self.fidelity_space = SearchSpace.from_dict(content["fidelity_space"])
            self.seeds, self.num_samples = seeds_and_samples(content, len(SPLITS))
            self.sha256: str = content["sha256"]
            self.digest: str = content[DIGEST_ENTRY]
            self._repair: str = content["fit_command"]
            self.kind: str = content["model"]["kind"]
            self._knots = _checked_knots(content["model"]["rounds"], self.fidelity_space["round"])
            self.inputs = CurveInputs.from_names(
                coerce("inputs", content["model"]["inputs"], Sequence[str]),
                self.space,
                self.fidelity_space,
                self.num_samples.shape[1],
                self.seeds,
            )
        self.card: Mapping[str, Any] = MappingProxyType(content)
        self._weights = client_shares(self.num_samples)

    @cached_property
    def _model(self) -> CurveModel:
        arrays = self._arrays.read(self.sha256, self._repair, growth=MODEL_GROWTH)
        try:
            model = CurveModel.from_arrays(self.kind, arrays)
            self._check(model)
        except (LookupError, ValueError, TypeError) as error:
            raise DamagedDataError(
                f"{self._arrays.path} does not hold the model its card describes ({error}); delete "
                f"it and run `{self._repair}`"
            ) from error
        return model

    def _check(self, model: CurveModel) -> None:
        columns, clients = len(self.inputs.names), self.num_samples.shape[1]
        if (features := model.regressor.num_features) > columns:
            raise ValueError(f"it looks at {features} inputs, there are {columns}")
        spread = {False, clients > COMPRESSED_CLIENTS}
        allowed = {(num_outputs(clients, kind) + 1,) for kind in spread}
        shapes = {scale.shape for scale in model.scales.values()}
        if len(shapes) > 1 or not shapes <= allowed:
            raise ValueError(f"its scales must be those of one of {sorted(allowed)} outputs")
        if len(model.centre) != len(self._knots):
            raise ValueError(f"it has {len(model.centre)} knots, not {len(self._knots)}")
        model.best_so_far(np.zeros((1, 1, columns), np.float32), self._knots[:1], self._knots)
        if not all(np.isfinite(array).all() for array in model.arrays.values()):
            raise ValueError("not all of its numbers are finite")

    def evaluate(
        self, configuration: Mapping[str, object], fidelity: Fidelity, seeds: tuple[int, ...]
    ) -> Evaluation:
        """Predict one evaluation; `current` is None: the model knows the best round so far only."""
        self.check_fidelity(vars(fidelity))
        query = self.space.validate(configuration), fidelity
        return self.look_up(query_columns(self.space, [query]), seeds)[0]

    def look_up(
        self, columns: Mapping[str, NDArray[Any]], seeds: tuple[int, ...], reads: Entries = ENTRIES
    ) -> Evaluations:
        """Predict (B,) legal, unchecked values; metrics not in `reads` may be NaN."""
        where = seed_rows(seeds, self.seeds, f"surrogate {self.name}")
        rows = self.inputs.rows(columns, where)
        parts = []
        for at in range(0, max(len(rows), 1), CHUNK):
            some, rounds = rows[at : at + CHUNK], columns["round"][at : at + CHUNK]
            outputs, best, diverged = self._model.best_so_far(some, rounds, self._knots)
            parts.append((to_metrics(outputs, self._weights[where], reads), best, diverged))
        metrics, best, diverged = map(np.concatenate, zip(*parts, strict=True))
        shape = rows.shape[:2]
        return Evaluations(
            metrics.reshape(*shape, *metrics.shape[1:]),
            self.num_samples[where],
            best.reshape(shape),
            diverged.reshape(shape),
            np.array(seeds),
            columns,
        )

    def check_fidelity(self, values: Mapping[str, object]) -> dict[str, Value]:
        """Return values of some fidelity dimensions as the legal numbers they equal."""
        space = self.fidelity_space
        try:
            return {name: space[name].validate(value, "fidelity") for name, value in values.items()}
        except InvalidArgumentError as error:
            rounds, rates = space["round"], space["client_sample_rate"]
            raise InvalidArgumentError(
                f"{error} Surrogate {self.name} knows no others: it was fitted on courses of "
                f"{rounds.low} to {rounds.high} rounds with client sample rates of {rates.low} to "
                f"{rates.high}, and would have to guess beyond them; ask for one of these, or, "
                'where the task goes further, use backend="raw"'
            ) from error


def _checked_knots(rounds: object, rounds_dimension: Dimension) -> NDArray[np.int64]:
    """Return the rounds of a model's curves, which must cover all legal rounds."""
    knots = np.array(rounds, dtype=np.int64)
    if not len(knots) or knots[0] < 1 or (np.diff(knots) <= 0).any():
        raise ValueError(f"`rounds` must grow from 1 or more, got {knots.tolist()}")
    if not knots[0] <= rounds_dimension.low <= rounds_dimension.high <= knots[-1]:
        raise ValueError(
            f"`rounds` must reach from {rounds_dimension.low} to {rounds_dimension.high}, got "
            f"{knots.tolist()}"
        )
    return knots


def write_surrogate(folder: Path, card: Mapping[str, Any], model: CurveModel) -> Path:
    """Write a surrogate's arrays, then its card."""
    return write_archive(
        folder, f"{card['name']}{SUFFIX}", {"format": FORMAT, **card}, model.arrays
    )


def list_surrogates() -> tuple[str, ...]:
    """Return the names of all surrogates that can be opened."""
    return catalogue.list_names(f"{SUFFIX}.json")


@validate_call
def open_surrogate(identity: str | Identity) -> Surrogate:
    """Open a surrogate by the stem of its files, or by the identity that it must have.

    Raises:
        MissingDataError: nobody has fitted it.
        DamagedDataError: its card is damaged, or belongs to something else.
    """
    name, arguments = catalogue.named(identity)
    command = f"fedhpo-gym surrogate {arguments}"
    how = f"there is no surrogate {name!r}; fit it on its table or sample with `{command}`"
    how += catalogue.KEEP + ("" if catalogue.is_imported(identity) else f", or {catalogue.TRAIN}")
    surrogate = catalogue.open_card(Surrogate, name, f"{SUFFIX}.json", how, arguments)
    catalogue.require_identity(surrogate.identity, identity, command)
    return surrogate


@validate_call
def open_preferred(identities: Sequence[Identity]) -> Surrogate:
    """Open the first surrogate that exists; the last identity is that of the numbers."""
    if not identities:
        raise InvalidArgumentError("`identities` must hold at least one, got none")
    for identity in with_surrogate(identities):
        return open_surrogate(identity)
    for identity in identities:
        if has_surrogate(identity.name):
            raise DamagedDataError(
                f"the surrogate {identity.name} was fitted on other numbers than those imported "
                f"last; fit it again with `fedhpo-gym surrogate {identity.arguments}`"
            )
    return open_surrogate(identities[0])


def with_surrogate(identities: Sequence[Identity]) -> list[Identity]:
    """Return the identities that have a surrogate, of the imported numbers as they are now.

    A surrogate of numbers that were trained stays: it is of the same problem as all that are
    trained later. The last identity is that of the numbers.
    """
    numbers = catalogue.imported_card(identities[-1])
    return [
        identity
        for identity in identities
        if has_surrogate(identity.name) and _is_of(identity.name, numbers)
    ]


def _is_of(name: str, numbers: Mapping[str, Any] | None) -> bool:
    """Return whether a surrogate was fitted on the imported numbers of a card."""
    path = catalogue.find_stored(name, f"{SUFFIX}.json")
    if numbers is None or path is None:
        return True
    with suppress(OSError, ValueError):  # opening the file reports the error
        card = coerce("card", read_json(path), Mapping)
        if NUMBERS in card:
            return bool(card[NUMBERS] == numbers.get(DIGEST_ENTRY))
        return numbers.get("sha256") in (card.get("table_sha256"), card.get("sample_sha256"))
    return True


@validate_call
def has_surrogate(name: str) -> bool:
    """Return whether there is a surrogate of this name."""
    return catalogue.find_stored(name, f"{SUFFIX}.json") is not None
