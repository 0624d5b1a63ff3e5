"""What is known of round environments: returns of references, by id.

`fedhpo-gym references` computes them (`fedhpo_gym.studies.references` says how) and this module
reads them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import (
    FOREIGN_ERRORS,
    coerce,
    coerce_reals,
    short_repr,
    validate_failed_call,
)
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.core.files import read_json
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.stats import bootstrap_interval, wilcoxon

PATH: Final = Path(__file__).with_suffix(".json")
RESAMPLES: Final = 2000
HINDSIGHT: Final = "hindsight"


@dataclass(frozen=True)
class PairedComparison:
    """How a policy's returns differ from those of a reference on the same instances.

    Attributes:
        reference: the name of what it is compared with.
        difference: the mean of the policy's returns less the reference's, in units of the return.
        interval: 95 % percentile bootstrap of that mean over instances.
        p_value: of Wilcoxon's signed-rank test, two-sided (Wilcoxon, 1945).
        better: on how many instances the policy is.
        instances: how many there are.
    """

    reference: str
    difference: float
    interval: tuple[float, float]
    p_value: float
    better: int
    instances: int

    def __str__(self) -> str:
        low, high = self.interval
        decided = self.p_value < 0.05
        kind = ("above" if self.difference > 0 else "below") if decided else "not told apart from"
        return (
            f"{kind} {self.reference} by Wilcoxon's signed-rank test, p = {self.p_value:.2g}; mean "
            f"difference {self.difference:+.4f} [{low:+.4f}, {high:+.4f}], better on {self.better} "
            f"of {self.instances} instances"
        )


@dataclass(frozen=True)
class References:
    """Returns of references on test instances of an id.

    To score what is yours, play it where references were played: make the environment with
    `instances="test"` (by default, instances are those to train on), and reset it with
    `options={"instance": index}` for each index of `instances`.

    Attributes:
        id: of the environment, with its default arguments.
        instances: indices of the test instances that were played.
        returns: (instances,) returns of each reference: "random", "default", "static", schedules
            by name, and "hindsight", which is an estimate from below of what can be reached.
        configurations: what the searched ones set, at the first step.
        best_schedule: name of the stated schedule that is best on train instances, if any.
        effort: how much was searched.
    """

    id: str
    instances: tuple[int, ...]
    returns: Mapping[str, tuple[float, ...]]
    configurations: Mapping[str, Mapping[str, Any]]
    best_schedule: str | None
    effort: Mapping[str, int]

    def score(self, returns: ArrayLike) -> NDArray[np.float64]:
        """Return where returns stand: 0 is the default's mean, 1 the best static action's.

        Shapes: any, kept. Where the best static action is the default, nothing lies between, and
        scores are NaN.
        """
        default, static = (float(np.mean(self.returns[name])) for name in ("default", "static"))
        gap = static - default
        differences = coerce_reals("returns", returns).astype(np.float64) - default
        return differences / gap if gap > 0 else np.full_like(differences, np.nan)

    @property
    def headroom(self) -> tuple[float, float, float]:
        """Score of hindsight, less 1, with the ends of its 95 % interval over instances."""
        mean, low, high = self.interval(self.returns[HINDSIGHT])
        return mean - 1.0, low - 1.0, high - 1.0

    def compare(self, returns: ArrayLike) -> tuple[PairedComparison, ...]:
        """Compare (instances,) returns with the best static action's and the best schedule's.

        Where no schedule is stated, with the former alone.

        Raises:
            InvalidArgumentError: there is not one finite return for each of `instances`.
        """
        policy = self._one_each(returns)
        names = ["static"] if self.best_schedule is None else ["static", self.best_schedule]
        compared = []
        for name in names:
            reference = np.array(self.returns[name])
            gain = policy - reference
            compared.append(
                PairedComparison(
                    "the best static action" if name == "static" else f"the schedule {name!r}",
                    difference=float(gain.mean()),
                    interval=bootstrap_interval(lambda drawn: float(drawn[0].mean()), [gain]),
                    p_value=wilcoxon(policy, reference),
                    better=int(np.sum(gain > 0)),
                    instances=len(gain),
                )
            )
        return tuple(compared)

    def _one_each(self, returns: ArrayLike) -> NDArray[np.float64]:
        values, shape = coerce_reals("returns", returns).astype(np.float64), (len(self.instances),)
        if values.shape != shape or not np.isfinite(values).all():
            raise InvalidArgumentError(
                f"`returns` must be {shape} finite numbers, one for each of `instances`, got "
                f"{short_repr(returns)}"
            )
        return values

    def interval(self, returns: ArrayLike) -> tuple[float, float, float]:
        """Return the score of the mean of (instances,) returns, and its 95 % interval.

        It is a percentile bootstrap over instances, of the default and the best static action, too;
        scores without bound stand where a sample does not tell these two apart.
        """
        own_returns, num_instances = self._one_each(returns), len(self.instances)
        stacked = np.array([self.returns["default"], self.returns["static"], own_returns])
        resamples = stream(0, "references interval").integers(
            num_instances, size=(RESAMPLES, num_instances)
        )
        default, static, means = stacked[:, resamples].mean(axis=2)
        scores = np.where(
            static > default,
            (means - default) / np.maximum(static - default, 1e-12),
            np.copysign(np.inf, means - default),
        )
        low, high = np.quantile(scores, [0.025, 0.975], method="nearest")
        return float(self.score(returns).mean()), float(low), float(high)


@validate_failed_call
def references_of(env_id: str, path: Path = PATH) -> References | None:
    """Return what is known of an id, `FedHPO-DAC-*` with its version; None if nothing is."""
    return read(path).get(env_id.removeprefix("MO-"))


@cache
def read(path: Path = PATH) -> Mapping[str, References]:
    """Return all references of a file, by id; none if there is no file.

    Raises:
        DamagedDataError: the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        content = read_json(path)
        references = {key: _of(key, entry) for key, entry in content["ids"].items()}
    except TooLargeError:
        raise
    except FOREIGN_ERRORS as error:
        raise DamagedDataError(
            f"{path} does not hold references ({error}); install the package again, or delete it "
            "and run `fedhpo-gym references`"
        ) from error
    return references


def _of(env_id: str, entry: Mapping[str, Any]) -> References:
    fields = {name: coerce(name, entry[name], hint) for name, hint in _ENTRIES.items()}
    num_instances = len(fields["instances"])
    returns = {name: tuple(map(float, values)) for name, values in fields["returns"].items()}
    for values in returns.values():
        if len(values) != num_instances or not num_instances or not np.isfinite(values).all():
            raise ValueError(f"{env_id} has not one return for each of {num_instances} instances")
    schedule = [] if fields["best_schedule"] is None else [fields["best_schedule"]]
    if missing := {"default", "static", HINDSIGHT, *schedule} - {*returns}:
        raise ValueError(f"{env_id} has no returns of {sorted(missing)}")
    instances = tuple(fields["instances"])
    return References(env_id, **{**fields, "returns": returns, "instances": instances})


_ENTRIES: Final[Mapping[str, Any]] = {
    "instances": Sequence[int],
    "returns": Mapping[str, Sequence[float]],
    "configurations": Mapping[str, Mapping[str, Any]],
    "best_schedule": str | None,
    "effort": Mapping[str, int],
}


def dumped(references: Sequence[References]) -> str:
    """Return references as the text of a file that `read` reads."""
    ids = {
        reference.id: {
            "instances": reference.instances,
            "returns": {k: [float(f"{x:.5g}") for x in v] for k, v in reference.returns.items()},
            "configurations": reference.configurations,
            "best_schedule": reference.best_schedule,
            "effort": reference.effort,
        }
        for reference in sorted(references, key=lambda reference: reference.id)
    }
    lines = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in ids.items())
    return '{"ids": {\n' + ",\n".join(lines) + "\n}}\n"
