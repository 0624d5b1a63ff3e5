"""Run records: everything that one episode returned, enough to replay it.

`fedhpo_gym.studies.run` makes records, and `fedhpo_gym.records.files` stores them. A record is a
header line, then one line per step. Floats are written so that reading them back gives the same
bits. Every line ends with a digest of itself and of all lines before it, so that a changed, lost,
doubled or moved line is noticed. The digest guards against damage, not against forgery.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Final, TypeVar

from fedhpo_gym.core.checks import as_number, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, OtherFormatError

START: Final = ""
"""The digest before the first line."""
_LENGTH: Final = 16
_BEFORE, _AFTER = b', "digest": "', b'"}'
_TAIL: Final = len(_BEFORE) + _LENGTH + len(_AFTER)


def seal_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines, JSON objects with at least one field, with their digests."""
    digest = START
    for line in lines:
        line_with_digest, digest = seal_line(line, digest)
        yield line_with_digest


def seal_line(line: bytes, before: str) -> tuple[bytes, str]:
    """Return a line, a JSON object with at least one field, with its digest, and the digest."""
    digest = hashlib.sha256(before.encode("ascii") + line).hexdigest()[:_LENGTH]
    return line[:-1] + _BEFORE + digest.encode("ascii") + _AFTER, digest


def unseal_lines(lines: Iterable[bytes]) -> list[bytes]:
    """Return lines without their digests, up to the first whose digest does not fit."""
    contents, digest = [], START
    for line in lines:
        content = line[:-_TAIL] + b"}"
        expected, digest = seal_line(content, digest)
        if expected != line:
            break
        contents.append(content)
    return contents


KIND: Final = "fedhpo_gym.run"
FORMAT: Final = 3

OPTIONAL: Final = ("regret", "relative_regret", "violation")
"""Entries of `info` that a step has in `extra` where the environment returns them."""
INCUMBENT_KEYS: Final = ("trial", "step")
"""Key of the number of an incumbent, in trial environments and in round environments."""
OMITTED_DEFAULTS: Final[Mapping[str, Any]] = {
    "workers": 1, "shared_start": 0, "platform": None, "truth": None, "worker": None,
}  # fmt: skip
"""Fields that a record leaves out where they have these values."""

_TESTED: Final = ("loss", "accuracy")
_INCUMBENT: Final = (
    "an object with 'configuration', 'val_loss' (add it to the objectives) and either 'trial' or "
    "'step'"
)

_Record = TypeVar("_Record", "Header", "StepRecord")


@dataclass(frozen=True)
class Header:
    """What was run.

    Attributes:
        kind: tells a run record from any other JSONL file.
        format: version of the layout of these files.
        package_version: version of the package that wrote the record.
        id: environment id.
        spec: the whole `EnvSpec`, as plain JSON.
        agent: name of the agent.
        seed: seed of the agent and of `reset`.
        fingerprint: identifies the table, surrogate or data of the environment.
        workers: simulated workers that ran trials side by side; left out of a record where 1.
        platform: software and processor that decide rounding (`core.processor.rounding_platform`);
            older records lack it, and neither names nor numbers of runs depend on it.
        shared_start: number of first configurations that all agents of its seed share; left out of
            a record where 0.
        extra: further fields, of newer versions or of other programs; they are preserved.

    Raises:
        InvalidArgumentError: a field is of the wrong type, or this is no header of this format.
    """

    package_version: str
    id: str
    spec: Mapping[str, Any]
    agent: str
    seed: int
    fingerprint: str
    kind: str = KIND
    format: int = FORMAT
    workers: int = 1
    platform: Mapping[str, str] | None = None
    shared_start: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind != KIND:
            raise InvalidArgumentError(f"`kind` must be {KIND!r}, got {self.kind!r}")
        if self.format != FORMAT:
            raise InvalidArgumentError(
                f"`format` must be {FORMAT}, got {self.format!r}; read the file with the package "
                f"version that wrote it ({self.package_version})"
            )
        for name in ("package_version", "id", "agent", "fingerprint"):
            _require(name, "a string", isinstance(getattr(self, name), str), getattr(self, name))
        for name, least in (("seed", 0), ("workers", 1), ("shared_start", 0)):
            value = getattr(self, name)
            rule = "a positive integer" if least else "a non-negative integer"
            _require(name, rule, _is_int(value) and value >= least, value)
        _require(
            "platform",
            "an object of strings",
            self.platform is None or _is_object(self.platform, lambda item: isinstance(item, str)),
            self.platform,
        )
        is_spec = isinstance(self.spec, dict) and isinstance(self.spec.get("kwargs"), dict)
        _require("spec", "an object with `kwargs`", is_spec, self.spec)
        _check_extra(self)

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The arguments that the environment was made with."""
        kwargs: Mapping[str, Any] = self.spec["kwargs"]
        return kwargs

    @classmethod
    def from_dict(cls, content: object) -> "Header":
        """Build a header from a parsed JSON line."""
        return _from_dict(cls, content)


@dataclass(frozen=True)
class StepRecord:
    """One step, in plain Python values.

    Attributes:
        action: (n,) what the agent did; the rows of a matrix one after the other.
        reward: a number, or one per objective.
        terminated: whether the budget is spent.
        truncated: whether the episode was cut off from outside.
        configuration: hyperparameters of the step, in natural units.
        fidelity: rounds and client sample rate of the step.
        objectives: value of every objective.
        cost: simulated seconds, bytes and rounds of the step.
        elapsed_s: simulated seconds since `reset`.
        incumbent: the best step so far: its number from 1 (`trial` in trial environments, `step`
            in round environments), configuration, and validation loss.
        test: the step's metrics on the test split; unknown ones are left out.
        truth: where evaluations are noisy, the noise-free `objectives` and incumbent; else None,
            and left out of the record.
        worker: which of several simulated workers ran the trial; None where there are none.
        extra: further fields, such as those of `OPTIONAL`: numbers, strings, truth values, and
            lists and objects of them. They are preserved, each as a column.

    Raises:
        InvalidArgumentError: a field is of the wrong type, or a number is not finite.
    """

    action: Sequence[float]
    reward: float | Sequence[float]
    terminated: bool
    truncated: bool
    configuration: Mapping[str, Any]
    fidelity: Mapping[str, Any]
    objectives: Mapping[str, float]
    cost: Mapping[str, float]
    elapsed_s: float
    incumbent: Mapping[str, Any]
    test: Mapping[str, float]
    truth: Mapping[str, Mapping[str, float]] | None = None
    worker: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_vector = _is_numbers(self.reward) and self.reward != []
        reward_is_legal = is_vector or _is_number(self.reward)
        _require("action", "a list of numbers", _is_numbers(self.action), self.action)
        _require("reward", "a finite number or a list of them", reward_is_legal, self.reward)
        _require("elapsed_s", "a finite number", _is_number(self.elapsed_s), self.elapsed_s)
        for name in ("terminated", "truncated"):
            value = getattr(self, name)
            _require(name, "true or false", isinstance(value, bool), value)
        for name in ("configuration", "fidelity"):
            value = getattr(self, name)
            _require(name, "an object of numbers or strings", _is_object(value, _is_value), value)
        for name in ("objectives", "cost", "test"):
            value = getattr(self, name)
            _require(name, "an object of finite numbers", _is_object(value, _is_number), value)
        _require("cost", "an object with 'time_s'", "time_s" in self.cost, self.cost)
        _require(
            "truth",
            "an object with 'objectives', objects of finite numbers",
            self.truth is None or _is_truth(self.truth, self.objectives),
            self.truth,
        )
        worker = self.worker
        is_worker = worker is None or (_is_int(worker) and worker >= 0)
        _require("worker", "a non-negative integer", is_worker, worker)
        _require("incumbent", _INCUMBENT, _is_incumbent(self.incumbent), self.incumbent)
        _check_extra(self)
        for name in OPTIONAL:
            value = self.extra.get(name, 0.0)
            _require(name, "a finite number", _is_number(value), value)

    @property
    def best_step(self) -> int:
        """Number, from 1, of the step that brought the incumbent."""
        step: int = next(self.incumbent[name] for name in INCUMBENT_KEYS if name in self.incumbent)
        return step

    @property
    def true_objectives(self) -> Mapping[str, float]:
        """The noise-free objectives, whether evaluations are noisy or not."""
        return self.objectives if self.truth is None else self.truth["objectives"]

    @property
    def over(self) -> bool:
        """Whether the episode ended here."""
        return self.terminated or self.truncated

    @classmethod
    def from_dict(cls, content: object) -> "StepRecord":
        """Build a step from a parsed JSON line."""
        return _from_dict(cls, content)

    @classmethod
    def from_step(
        cls,
        action: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
        worker: int | None = None,
    ) -> "StepRecord":
        """Build a record of what `env.step(action)` returned, or a worker's trial."""
        names = _info_fields()
        if lacking := [name for name in names if name not in info]:
            raise InvalidArgumentError(f"`info` must hold {lacking}, got {sorted(info)}")
        values = {name: info[name] for name in names}
        values["test"] = {name: value for name, value in info["test"].items() if value == value}
        values.update(truth=info.get("truth"), worker=worker)
        plain_reward = reward.tolist() if hasattr(reward, "tolist") else reward
        extra = {name: info[name] for name in OPTIONAL if name in info}
        return cls(
            action.ravel().tolist(), plain_reward, terminated, truncated, **values, extra=extra
        )


@cache
def _info_fields() -> tuple[str, ...]:
    """Return the fields of a step that `info` holds: all after action, reward and end."""
    names = [
        entry.name for entry in fields(StepRecord) if entry.name not in (*OMITTED_DEFAULTS, "extra")
    ]
    return tuple(names[4:])


@dataclass(frozen=True)
class RunRecord:
    """One whole episode of one agent.

    Raises:
        InvalidArgumentError: there is no step, the last one does not end the episode or another
            one does, time runs backwards, or an incumbent is of a step that has not been.
    """

    header: Header
    steps: tuple[StepRecord, ...]

    def __post_init__(self) -> None:
        if fault := first_fault(self.steps):
            raise InvalidArgumentError(f"`steps`: step {fault[0]} {fault[1]}")

    @property
    def final(self) -> StepRecord:
        """The last step; its incumbent is the result of the run."""
        return self.steps[-1]


def require_format(where: object, actual: object, expected: int, header: Mapping[str, Any]) -> None:
    """Refuse a file of another version of a format, which nobody should delete."""
    if type(actual) is int and actual != expected:
        version = short_repr(header.get("package_version", "unknown"))
        raise OtherFormatError(
            f"{where}: `format` must be {expected}, got {short_repr(actual)}; read the file with "
            f"the package version that wrote it ({version}), or move it away and run its "
            "`fedhpo-gym run` again"
        )


def first_fault(steps: Sequence[StepRecord]) -> tuple[int, str] | None:
    """Return the number (from 1) of the first step that does not fit the others, and why."""
    if not steps:
        return 1, "is missing: there is no step at all"
    elapsed = 0.0
    for step_number, step in enumerate(steps, start=1):
        if step.elapsed_s < elapsed:
            return (
                step_number,
                f"has `elapsed_s` {step.elapsed_s!r}, less than {elapsed!r} before it",
            )
        if not 1 <= step.best_step <= step_number:
            return (
                step_number,
                f"has the incumbent of step {step.best_step!r}, not in 1..{step_number}",
            )
        if step.over and step_number < len(steps):
            return step_number, "ends the episode, but more steps follow"
        if misfit := _describe_misfit(steps[0], step):
            return step_number, misfit
        elapsed = step.elapsed_s
    if not steps[-1].over:
        return len(steps), "is the last but does not end the episode: the file is cut short"
    return None


def _describe_misfit(first: StepRecord, step: StepRecord) -> str | None:
    """Return how a step differs in form from the first step of its run, or None."""
    compared = first.test.keys() & {*_TESTED}
    for name, least in (("cost", first.cost), ("objectives", first.objectives), ("test", compared)):
        if lacking := sorted({*least} - getattr(step, name).keys()):
            return f"lacks {lacking[0]!r} in `{name}`, which step 1 has"
    if ("violation" in step.extra) != ("violation" in first.extra):
        return "must have `violation` if and only if step 1 has it"
    for name, values in (("action", first.action), ("reward", first.reward)):
        if _length(getattr(step, name)) != _length(values):
            return f"must have as many numbers in `{name}` as step 1"
    return None


def _length(value: float | Sequence[float]) -> int | None:
    return len(value) if isinstance(value, list) else None


def to_dict(record: Header | StepRecord) -> dict[str, Any]:
    """Return a record as plain values, in the order in which they are written."""
    content: dict[str, Any] = {entry.name: getattr(record, entry.name) for entry in fields(record)}
    extra: Mapping[str, Any] = content.pop("extra")
    content = {
        name: value
        for name, value in content.items()
        if name not in OMITTED_DEFAULTS or value != OMITTED_DEFAULTS[name]
    }
    if isinstance(record, StepRecord):
        return {**content, **extra}
    return {name: content.pop(name) for name in ("kind", "format")} | {**content, **extra}


def _from_dict(cls: type[_Record], content: object) -> _Record:
    names = {entry.name for entry in fields(cls)} - {"extra"}
    if not isinstance(content, dict) or names - set(content) - {*OMITTED_DEFAULTS}:
        actual = sorted(content) if isinstance(content, dict) else type(content).__name__
        required = sorted(names - {*OMITTED_DEFAULTS})
        raise InvalidArgumentError(f"it must have the fields {required}, got {actual}")
    field_values = {name: value for name, value in content.items() if name in names}
    extra = {name: value for name, value in content.items() if name not in names}
    return cls(**field_values, extra=extra)


def _check_extra(record: Header | StepRecord) -> None:
    """Refuse further fields that are no plain data, or stand in the place of a known one."""
    rule = "an object of plain data under names of its own"
    names = _reserved_names(type(record))  # type: ignore[arg-type]  # mypy: a type is no Hashable
    holds = _is_object(record.extra, _is_plain) and names.isdisjoint(record.extra)
    _require("extra", rule, holds, record.extra)


@cache
def _reserved_names(kind: type[Header | StepRecord]) -> frozenset[str]:
    return frozenset({entry.name for entry in fields(kind)} | {"digest"})


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, bool) or _is_value(value) or _is_object(value, _is_plain)


def _require(name: str, rule: str, holds: bool, value: object) -> None:
    if not holds:
        raise InvalidArgumentError(f"`{name}` must be {rule}, got {value!r}")


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    # Exact types: a numpy scalar is a float too, but what it writes is not what was computed.
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and as_number(value) is not None


def _is_value(value: object) -> bool:
    return _is_number(value) or isinstance(value, str)


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_object(value: object, is_legal: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(map(is_legal, value.values()))


def _is_incumbent(value: object) -> bool:
    return (
        isinstance(value, dict)
        and _is_number(value.get("val_loss"))
        and [_is_int(value[name]) for name in INCUMBENT_KEYS if name in value] == [True]
        and _is_object(value.get("configuration"), _is_value)
    )


def _is_truth(value: object, objectives: Mapping[str, float]) -> bool:
    return (
        isinstance(value, dict)
        and all(_is_object(values, _is_number) for values in value.values())
        and set(value.get("objectives", ())) == set(objectives)
    )
