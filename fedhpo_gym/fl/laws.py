"""The laws of the engine, tried on this machine: equal bits in any company, and right gradients.

The engine is asked as anybody may ask it, through `CourseBatch`; nothing here knows how a model
computes. Where a law does not hold, nothing is wrong with a course by itself: it is trained up to
rounding as it should be. But its last digits then depend on what is trained beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.errors import MissingDependencyError, UnequalBitsError, needing
from fedhpo_gym.fl.cases import Case, make_case
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import MODELS, Model
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.processor import SETTING, STRICT, this_platform

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
class Verdict:
    """What came of trying a law on a family of models.

    Attributes:
        family: name of the model.
        law: one of `LAWS`.
        holds: whether it does; None where it could not be tried.
        words: what was seen, or what is missing.
    """

    family: str
    law: str
    holds: bool | None
    words: str = ""


def check_engine(families: Iterable[str] = tuple(MODELS)) -> list[Verdict]:
    """Try every law on some families of models, on this processor; it takes seconds.

    Args:
        families: names of models; all by default.

    Returns:
        A verdict per family and law. Families whose packages are not installed have one each.
    """
    verdicts: list[Verdict] = []
    cases: dict[str, tuple[Case, NDArray[np.float32]]] = {}
    for family in families:
        try:
            case = make_case(family)
        except MissingDependencyError as error:
            verdicts.append(Verdict(family, ALONE, None, str(error)))
            continue
        together = _trained(case, case.courses)
        cases[family] = case, together
        verdicts += _in_company(case, together)
        verdicts += _gradient(case)
    elsewhere = _digests_of_another_process(tuple(cases))
    for family, (_, together) in cases.items():
        holds = elsewhere.get(family) == _digest(together)
        verdicts.append(Verdict(family, PROCESS, holds, "" if holds else "its bits differ"))
    order = [*MODELS]
    return sorted(verdicts, key=lambda one: (order.index(one.family), [*LAWS].index(one.law)))


def require_equal_bits(model: type[Model], precision: str = "float32") -> str:
    """Try what stored numbers rest on: that a model's courses have the same bits in any company.

    Args:
        model: the model.
        precision: what it computes in.

    Returns:
        What was found, for a card.

    Raises:
        UnequalBitsError: they have not; the message says what to set.
    """
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
    state = {None: "there is none", True: "they are fixed", False: "they are not fixed"}[_fixed()]
    return (
        f"Start again with the environment variable {SETTING}={STRICT}, or {SETTING}=COMPATIBLE, "
        f"which is slower, and unset what limits oneMKL, oneDNN or ATen (kernels of oneMKL: "
        f"{state}; {this_platform().get('settings', 'nothing is set')}); docs/processors.md says "
        "what is promised where."
    )


def _fixed() -> bool | None:
    try:
        from fedhpo_gym.fl.dispatch import fixed
    except ModuleNotFoundError:
        return None
    return fixed()


def _in_company(
    case: Case, together: NDArray[np.float32], precision: str = "float32"
) -> Iterator[Verdict]:
    alone = np.concatenate([_trained(case, [course], precision) for course in case.courses])
    yield _equal(case.family, ALONE, alone, together)
    order = np.random.default_rng(0).permutation(len(case.courses))
    moved = np.empty_like(together)
    moved[order] = _trained(case, [case.courses[i] for i in order], precision)
    yield _equal(case.family, ORDER, moved, together)


def _equal(
    family: str, law: str, found: NDArray[np.float32], expected: NDArray[np.float32]
) -> Verdict:
    equal = (found == expected).reshape(len(found), -1).all(1)
    if equal.all():
        return Verdict(family, law, holds=True)
    largest = float(np.abs(found - expected).max())
    words = f"{(~equal).sum()} of {len(equal)} courses differ, by up to {largest:.1e}"
    return Verdict(family, law, holds=False, words=words)


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


def _gradient(case: Case) -> Iterator[Verdict]:
    """Compare one full-batch step of all clients with the same in float64."""
    try:
        with needing("differentiating in float64", "torch", "torch", "torch"):
            from fedhpo_gym.fl.exact import exact_step, has_exact
    except MissingDependencyError as error:
        yield Verdict(case.family, GRADIENT, None, str(error))
        return
    if not has_exact(case.family):
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
    yield Verdict(case.family, GRADIENT, worst <= 1.0, f"error {worst:.0%} of bound ({where})")


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
        [sys.executable, "-m", "fedhpo_gym.fl.laws", *families],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {}
    return found


def main(families: Sequence[str]) -> None:
    """Write the digests of what training makes of the cases of some families."""
    write: Callable[[str], object] = sys.stdout.write
    write(json.dumps({f: _digest(_trained(c := make_case(f), c.courses)) for f in families}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
