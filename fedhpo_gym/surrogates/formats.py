"""How a surrogate answers, by the format that its card states; a format never changes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.space import SearchSpace
from fedhpo_gym.surrogates.curves import CurveModel
from fedhpo_gym.surrogates.inputs import CurveInputs, PointInputs
from fedhpo_gym.surrogates.model import OutcomeModel
from fedhpo_gym.surrogates.outputs import COMPRESSED_CLIENTS as FEW
from fedhpo_gym.surrogates.outputs import best_rounds, num_outputs

FORMAT = 2
"""The format of surrogates that are fitted now."""
Answer: TypeAlias = "tuple[NDArray[np.floating], NDArray[np.int64], NDArray[np.bool_]]"


class Answers(Protocol):
    """The model of a surrogate, and how it is asked.

    Attributes:
        regressor: what maps rows to numbers.
        arrays: everything that is stored.
    """

    regressor: Any

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Everything that is stored."""

    def __call__(self, rows: NDArray[np.float32], rounds: NDArray[np.int64]) -> Answer:
        """Return what is best so far at rounds that are asked for.

        Args:
            rows: (B, S, columns) rows.
            rounds: (B,) rounds.

        Returns:
            (B * S, outputs) see `outputs`, (B * S,) best rounds, and whether courses have diverged.
        """


class PointAnswers:
    """Format 1: every round is predicted by itself, and nothing is said of divergence."""

    def __init__(
        self, card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], columns: int
    ) -> None:
        """Take a card, its arrays and the columns of a row; raises what reading them can raise."""
        self._model = OutcomeModel.from_arrays(card["model"]["kind"], arrays)
        self.regressor, self.arrays = self._model.regressor, self._model.arrays
        outputs = num_outputs(len(card["num_samples"][0]))
        if any(scale.shape != (outputs,) for scale in self._model.scales.values()):
            raise ValueError(f"its scales must be those of {outputs} outputs")
        found = self._model.predict(np.zeros((1, columns), np.float32)).shape
        if found != (1, outputs):
            raise ValueError(f"{found[1:]} outputs, expected {outputs}")

    def __call__(self, rows: NDArray[np.float32], rounds: NDArray[np.int64]) -> Answer:
        """See `Answers`."""
        asked = np.repeat(rounds, rows.shape[1])
        outputs = self._model.predict(rows).reshape(len(asked), -1)
        return outputs, best_rounds(outputs, asked), np.zeros(len(asked), dtype=np.bool_)


class CurveAnswers:
    """Format 2: the best so far of whole curves, see `curves`."""

    def __init__(
        self, card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], columns: int
    ) -> None:
        """Take a card, its arrays and the columns of a row; raises what reading them can raise."""
        self._model = CurveModel.from_arrays(card["model"]["kind"], arrays)
        self.regressor, self.arrays = self._model.regressor, self._model.arrays
        self._knots = np.array(card["model"]["rounds"], dtype=np.int64)
        if not len(self._knots) or self._knots[0] < 1 or (np.diff(self._knots) <= 0).any():
            raise ValueError(f"`rounds` must grow from 1 or more, got {self._knots.tolist()}")
        asked = SearchSpace.from_dict(card["fidelity_space"])["round"]
        if not self._knots[0] <= asked.low <= asked.high <= self._knots[-1]:
            raise ValueError(
                f"`rounds` must reach from {asked.low} to {asked.high}, got {self._knots.tolist()}"
            )
        clients = len(card["num_samples"][0])
        known = {(num_outputs(clients, spread) + 1,) for spread in (False, clients > FEW)}
        shapes = {scale.shape for scale in self._model.scales.values()}
        if len(shapes) > 1 or not shapes <= known:
            raise ValueError(f"its scales must be those of one of {sorted(known)} outputs")
        if len(self._model.centre) != len(self._knots):
            raise ValueError(f"it has {len(self._model.centre)} knots, not {len(self._knots)}")
        self(np.zeros((1, 1, columns), np.float32), self._knots[:1])

    def __call__(self, rows: NDArray[np.float32], rounds: NDArray[np.int64]) -> Answer:
        """See `Answers`."""
        return self._model.best_so_far(rows, rounds, self._knots)


INPUTS: Mapping[int, type[PointInputs] | type[CurveInputs]] = MappingProxyType(
    {1: PointInputs, 2: CurveInputs}
)
ANSWERS: Mapping[int, type[PointAnswers] | type[CurveAnswers]] = MappingProxyType(
    {1: PointAnswers, 2: CurveAnswers}
)
