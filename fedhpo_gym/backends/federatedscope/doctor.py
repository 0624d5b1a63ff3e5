"""What is wrong with an installation of FederatedScope, found out step by step."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from fedhpo_gym.backends.federatedscope.configuration import unsupported
from fedhpo_gym.backends.federatedscope.installation import VARIABLE, find
from fedhpo_gym.core.errors import FedHPOError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.tasks import Task, get_task

TASK = "LR-BreastCancer-v1"
"""Its data comes with scikit-learn."""
ROUNDS = 3


def why_not(task: Task) -> str:
    """Return why FederatedScope cannot answer a task here, or nothing; it starts nothing."""
    if reason := unsupported(task.variant(precision="float32")):  # as environments train it
        return reason
    if not os.environ.get(VARIABLE):
        return "no `fedhpo-gym federatedscope install` yet, or it is not named"
    try:
        find()
    except FedHPOError as error:
        return str(error)
    return ""


def examine(source: str | None, interpreter: str | None) -> Iterator[tuple[str, bool, str]]:
    """Yield what was looked at, whether it is well, and what was found; ends at the first fault."""
    try:
        where = find(source, interpreter)
    except FedHPOError as error:
        yield "source and interpreter", False, str(error)
        return
    yield "source and interpreter", True, f"{where.source}, {where.interpreter}"
    from fedhpo_gym.backends.federatedscope.backend import FederatedScope

    task = get_task(TASK)
    begun = time.monotonic()
    try:
        backend = FederatedScope(task, 1, str(where.source), str(where.interpreter))
    except (FedHPOError, OSError) as error:
        yield "imports", False, str(error)
        return
    known = ", ".join(f"{name} {version}" for name, version in backend.versions.items())
    yield "imports", True, f"{known}; {time.monotonic() - begun:.1f} s"
    begun = time.monotonic()
    middle = {d.name: d.decode(0.5) for d in task.space.dimensions}
    try:
        answer = backend.evaluate(middle, Fidelity(ROUNDS, 1.0))
        loss = answer.mean("val", "loss", "current")
        yield (
            "a course",
            True,
            f"{ROUNDS} rounds, loss {loss:.3f}, {time.monotonic() - begun:.1f} s",
        )
    except (FedHPOError, OSError) as error:
        yield "a course", False, str(error)
    finally:
        backend.close()
