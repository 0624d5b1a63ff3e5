"""Sorting runs into problems and contestants."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedhpo_gym.analysis.problems import LARGEST, FinalIncumbent, Problem, ReferenceValues, Run
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.records.incumbents import RULE, Trajectory, incumbents
from fedhpo_gym.records.parquet import leaves
from fedhpo_gym.records.record import Header, RunRecord
from fedhpo_gym.records.runs import JudgedRun, agent_arguments, problem_of

FULL = "full_fidelity"


@validate_call
def group(
    records: Iterable[tuple[Path, RunRecord | JudgedRun]],
    tables: Iterable[tuple[Path, Trajectory]] = (),
    present: Callable[[Header], str] = lambda header: header.fingerprint,
    rule: str = RULE,
    known: Callable[[Header], ReferenceValues | None] | None = None,
) -> tuple[Problem, ...]:
    """Sort runs into problems; runs of different problems or data are never mixed.

    A problem is an id, its variant, budget, system and simulated workers, and the numbers that
    answered. How an agent fixed its fidelity and what reward it learned from belongs to the agent:
    see `fedhpo_gym.records.runs.OF_THE_AGENT`. Where runs of one agent on one problem
    differ in these, they are contestants of their own, and their names say in what.

    Records are read one at a time, and only their incumbents are kept.

    Args:
        records: run records, whole or as `JudgedRun`, and where they come from.
        tables: runs of foreign tables; their problems are those of the records with these names.
        present: the present name of a fingerprint. It is asked where records of one problem name
            several: a stored table was called otherwise by older versions, and the runs on it are
            one problem. Runs on numbers that differ are not.
        rule: which trial is the incumbent.
        known: what stored numbers know of the problem of a run. It is asked once per problem.

    Raises:
        InvalidArgumentError: two files hold the same agent and seed of one problem, or a record
            does not say validation losses.
        UnknownNameError: there is no such rule.
    """
    read = [_reduced(path, record, rule) for path, record in records]
    problems = [_problem(name, runs) for name, runs in _named(_sorted_out(read, present))]
    by_name = {one.name: one for one in problems}
    foreign: dict[str, list[Run]] = {}
    for path, line in tables:
        foreign.setdefault(line.problem, []).append(Run(line, path))
    for name, runs in foreign.items():
        by_name[name] = _with(by_name.get(name, Problem(name, name, {}, (), {})), runs)
    found = [by_name[name] for name in sorted(by_name)]
    counted = map(_at_full_fidelity, found) if rule == FULL else found
    return tuple(_judged(one, known) for one in counted)


def _judged(problem: Problem, ask: Callable[[Header], ReferenceValues | None] | None) -> Problem:
    header = next((run.header for run in problem.all_runs() if run.header), None)
    known = None if ask is None or header is None else ask(header)
    runs = {agent: tuple(run.judged(known) for run in of) for agent, of in problem.runs.items()}
    return replace(problem, known=known, runs=runs)


def _at_full_fidelity(problem: Problem) -> Problem:
    """Leave out what lies below the highest level of any run on the problem."""
    lines = [run.trajectory for run in problem.all_runs()]
    full = max((float(line.level.max()) for line in lines if line.level is not None), default=0.0)

    def since(run: Run) -> Run:
        line = run.trajectory.since(full)
        return replace(run, trajectory=line, best=run.best if len(line.value) else None)

    runs = {agent: tuple(map(since, own)) for agent, own in problem.runs.items()}
    return replace(problem, runs=runs)


def _reduced(path: Path, record: RunRecord | JudgedRun, rule: str) -> Run:
    run = JudgedRun.of(record) if isinstance(record, RunRecord) else record
    header, trials = run.header, run.trials
    place = int(incumbents(trials, rule)[-1])
    configuration, fidelity, objectives = run.described(place)
    best = FinalIncumbent(
        word="step" if trials.is_course else "trial",
        number=place + 1,
        steps=len(trials.time_s),
        configuration=configuration,
        fidelity=fidelity,
        objectives=objectives,
        test_accuracy=None if run.accuracy is None else float(run.accuracy[place]),
    )
    line = Trajectory.of(header.id, header.agent, header.seed, trials, rule)
    # What a trajectory changes to is what regret is asked of; a course has no configuration.
    tried = () if trials.is_course or line.trial is None else line.trial.tolist()
    diverged = int((trials.value >= LARGEST).sum())
    # Whether something of the fidelity of a trial was the agent's to choose.
    varies = run.course is None and not {*fidelity} <= {*(header.kwargs.get("fidelity") or {})}
    return Run(
        line, path, best, header, run.scored, {one: run.described(one)[0] for one in tried},
        spent=run.spent, diverged=diverged, varies=varies, course=run.course,
    )  # fmt: skip


def _header(run: Run) -> Header:
    if run.header is None:
        raise InvalidArgumentError(f"{run.path} must be a run record to be grouped")
    return run.header


def _sorted_out(read: Sequence[Run], present: Callable[[Header], str]) -> list[list[Run]]:
    """Sort runs by what was asked, and by the stored numbers that answered."""
    by_question: dict[str, list[Run]] = {}
    for one in read:
        header = _header(one)
        question = _text([header.id, problem_of(header)])  # what was asked, whatever answered
        by_question.setdefault(question, []).append(one)
    found = []
    for _, runs in sorted(by_question.items()):
        headers = {_header(one).fingerprint: _header(one) for one in runs}
        now = {name: name for name in headers}
        if len(headers) > 1:
            now = {name: present(header) for name, header in headers.items()}
        for answered in sorted(set(now.values())):
            found.append([one for one in runs if now[_header(one).fingerprint] == answered])
    return found


def _named(groups: Sequence[list[Run]]) -> list[tuple[str, list[Run]]]:
    """Name problems by their id, and by what they differ in where there are several of one id."""
    by_id: dict[str, list[list[Run]]] = {}
    for runs in groups:
        by_id.setdefault(_header(runs[0]).id, []).append(runs)
    found = []
    for env_id, several in by_id.items():
        arguments = [flat(problem_of(_header(runs[0]))) for runs in several]
        words = [_differences(own, arguments) for own in arguments]
        for place, runs in enumerate(several):
            own = words[place]
            if words.count(own) > 1:
                own = [*own, f"data {1 + words[:place].count(own)}"]
            inside = f" ({', '.join(own) or 'defaults'})" if len(several) > 1 else ""
            found.append((f"{env_id}{inside}", runs))
    return found


def _problem(name: str, read: Sequence[Run]) -> Problem:
    given = [(run, _header(run), agent_arguments(_header(run).kwargs)) for run in read]
    ways: dict[str, set[str]] = {}
    for _, header, own in given:
        ways.setdefault(header.agent, set()).add(_text(own))
    runs: dict[str, dict[int, Run]] = {}
    for run, header, own in given:
        label = header.agent
        if len(ways[label]) > 1:
            others = [flat(json.loads(way)) for way in ways[label]]
            label = f"{label} ({', '.join(_differences(flat(own), others)) or 'defaults'})"
        line = replace(run.trajectory, problem=name, agent=label)
        _add(runs, replace(run, trajectory=line))
    header = given[0][1]
    fingerprints = tuple(sorted({header.fingerprint for _, header, _ in given}))
    return Problem(name, header.id, problem_of(header), fingerprints, _in_order(runs))


def _with(problem: Problem, foreign: Iterable[Run]) -> Problem:
    runs = {agent: {r.trajectory.seed: r for r in of} for agent, of in problem.runs.items()}
    for run in foreign:
        _add(runs, run)
    return replace(problem, runs=_in_order(runs))


def _add(runs: dict[str, dict[int, Run]], run: Run) -> None:
    line = run.trajectory
    seeds = runs.setdefault(line.agent, {})
    if line.seed in seeds:
        raise InvalidArgumentError(
            f"records must be different runs, but {seeds[line.seed].path} and {run.path} both hold "
            f"agent {line.agent!r} with seed {line.seed} on {line.problem}; remove one of them"
        )
    seeds[line.seed] = run


def _in_order(runs: Mapping[str, Mapping[int, Run]]) -> dict[str, tuple[Run, ...]]:
    return {agent: tuple(run for _, run in sorted(runs[agent].items())) for agent in sorted(runs)}


def _differences(own: Mapping[str, str], all_of_them: Iterable[Mapping[str, str]]) -> list[str]:
    """Return what the arguments of one have and those of another have not, as words."""
    others = list(all_of_them)
    return [
        f"{name}={value}"
        for name, value in own.items()
        if any(other.get(name) != value for other in others)
    ]


def flat(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Return nested arguments under names with dots, as words."""
    return {".".join(path): str(value) for path, value in leaves(mapping) if value != {}}


def _text(content: object) -> str:
    return json.dumps(content, sort_keys=True)
