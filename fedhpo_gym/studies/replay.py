"""Replaying a record: the same actions must return the same numbers, all of them.

`fedhpo-gym replay` calls `replay`. Processors and versions of libraries round differently. A record
of this platform must be reproduced bit for bit. One of another platform, or an older one that names
none, may differ by rounding: training amplifies it, so floats may differ by `ROUNDING`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium as gym
import numpy as np

from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.core.processor import rounding_platform
from fedhpo_gym.evaluation.records import CLASSIFICATION
from fedhpo_gym.objectives import Objective
from fedhpo_gym.records.record import Header, RunRecord, StepRecord, to_dict
from fedhpo_gym.studies.environments import MANY_TASK_KINDS, remake_environment
from fedhpo_gym.wrappers.parallel_trials import ParallelTrials

_WORST = {metric.name: metric.worst for metric in CLASSIFICATION}
_LOOKED_UP = (None, "tabular", "surrogate")
ROUNDING = 1e-3
"""Largest difference of two floats, relative to the larger one or to 1, that counts as rounding:
float32's unit roundoff is 6e-8, and a course amplifies it some thousand times."""


@dataclass(frozen=True)
class Difference:
    """The first number of a replay that is not the recorded one.

    Attributes:
        step: number of the step, from 1; 0 stands for `reset`.
        field: name of the number, for example `val_loss` of the objectives.
        rounding: whether rounding on another platform explains all differences.
    """

    step: int
    field: str
    recorded: Any
    replayed: Any
    rounding: bool = False

    def __str__(self) -> str:
        where = f"step {self.step}" if self.step else "reset"
        return f"{where}: {self.field}: recorded {self.recorded!r}, replayed {self.replayed!r}"


def replay(
    record: RunRecord,
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> Difference | None:
    """Feed the actions of a record to its environment, made anew, and compare everything."""
    header = record.header
    is_foreign = header.platform != rounding_platform()
    rounding_difference: Difference | None = None
    with closing(remake_environment(header.id, header.spec, own, named)) as env:
        parallel = ParallelTrials(env, header.workers) if header.workers > 1 else None
        _, info = (parallel or env).reset(seed=header.seed)
        fingerprint = info.get("fingerprint")
        if header.fingerprint not in (fingerprint, *former_fingerprints(env)):
            source = getattr(env.unwrapped, "backend", None)  # or of courses, what trains them
            source = source or getattr(getattr(env.unwrapped, "process", None), "courses", None)
            if versions := getattr(source, "former_engines", {}).get(header.fingerprint):
                return Difference(0, "engine", *versions)
            return Difference(0, "fingerprint", header.fingerprint, fingerprint)
        dtype = getattr(env.action_space, "dtype", np.float32)
        for step_number, step in enumerate(record.steps, start=1):
            action = np.array(step.action, dtype=dtype)
            if action.size != (size := math.prod(env.action_space.shape or (1,))):
                raise InvalidArgumentError(
                    f"`action` of step {step_number} must be {size} numbers, as the "
                    f"environment takes them, got {action.size}; delete the record and run it again"
                )
            action = action.reshape(env.action_space.shape or -1)
            if parallel is None:
                _, reward, terminated, truncated, info = env.step(action)
                outcome = (reward, terminated, truncated, info)
            else:
                trial = parallel.repeat(action, step.worker)
                outcome = (trial.reward, trial.terminated, trial.truncated, trial.info)
            replayed = StepRecord.from_step(action, *outcome, step.worker)
            for difference in _compare_steps(step_number, step, replayed):
                if not (is_foreign and _is_rounding(difference)):
                    return difference
                rounding_difference = rounding_difference or replace(difference, rounding=True)
    return rounding_difference


def where_computed(header: Header) -> str:
    """Return how the platform of a record differs from this one, as text."""
    if header.platform is None:
        return "the record does not say on which processor it was computed"
    here = rounding_platform()
    names = [
        name for name in {**header.platform, **here} if header.platform.get(name) != here.get(name)
    ]
    pairs = [f"{n} {header.platform.get(n, 'none')}, here {here.get(n, 'none')}" for n in names]
    return f"computed on another platform: {'; '.join(pairs)}"


def _is_rounding(difference: Difference) -> bool:
    old, new = difference.recorded, difference.replayed
    if difference.field.startswith("action["):  # given, not computed
        return False
    if type(old) is not float or type(new) is not float:
        return False
    return abs(old - new) <= ROUNDING * max(abs(old), abs(new), 1.0)


def present_fingerprint(header: Header, named: Mapping[str, Any] | None = None) -> str:
    """Return the present name of a run's stored numbers; the recorded one if they are missing."""
    if not from_stored_numbers(header):
        return header.fingerprint
    try:
        env = remake_environment(header.id, header.spec, named=named)
    except FedHPOError:
        return header.fingerprint
    with closing(env):
        if header.fingerprint not in former_fingerprints(env):
            return header.fingerprint
        return str(env.reset(seed=header.seed)[1]["fingerprint"])


def from_stored_numbers(header: Header) -> bool:
    """Return whether a run was evaluated on stored numbers, not trained."""
    entry_point = str(header.spec.get("entry_point"))
    stored = any(entry_point.endswith(f":make_{kind}_env") for kind in ("trial", *MANY_TASK_KINDS))
    return stored and header.kwargs.get("backend") in _LOOKED_UP


def former_fingerprints(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    """Return former names of the stored numbers of an environment, which older records have."""
    backend = getattr(env.unwrapped, "backend", None)
    return tuple(getattr(backend, "former_fingerprints", ()))


def _compare_steps(
    step_number: int, recorded: StepRecord, replayed: StepRecord
) -> Iterator[Difference]:
    # A record went through JSON: tuples are lists there. Extra fields are compared only where both
    # have them, because another program or version may have written them.
    names = {record.name for record in fields(StepRecord)} | ({*recorded.extra} & {*replayed.extra})
    contents = [
        {k: v for k, v in to_dict(record).items() if k in names} for record in (recorded, replayed)
    ]
    # Older records hold the worst value of a test metric that is not reported.
    contents[0]["test"] = {
        name: value
        for name, value in recorded.test.items()
        if name in replayed.test or value != _WORST.get(name)
    }
    old_leaves, new_leaves = (
        dict(_flatten(contents[0])),
        dict(_flatten(json.loads(json.dumps(contents[1])))),
    )
    for field in [*old_leaves, *(name for name in new_leaves if name not in old_leaves)]:
        old, new = old_leaves.get(field, "nothing"), new_leaves.get(field, "nothing")
        if type(old) is not type(new) or old != new:
            yield Difference(step_number, field, old, new)


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of nested objects and lists, with its dotted name."""
    if isinstance(value, dict):
        pairs = [(f"{name}.{key}".lstrip("."), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(f"{name}[{i}]", item) for i, item in enumerate(value)]
    else:
        yield name, value
        return
    for inner, item in pairs:
        yield from _flatten(item, inner)
