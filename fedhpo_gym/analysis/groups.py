"""Sorting runs into problems and contestants.

`fedhpo-gym report` calls `group` before anything is compared or drawn. Two runs are of
one problem if id, arguments, workers and stored numbers agree; arguments that belong to the agent
(`fedhpo_gym.records.runs.OF_THE_AGENT`) make contestants of their own within it. Records are read
one at a time and reduced to their incumbents, so that memory does not grow with trials.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedhpo_gym.analysis.problems import LARGEST, FinalIncumbent, ProblemRuns, ReferenceValues, Run
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
) -> tuple[ProblemRuns, ...]:
    """Sort runs into problems; runs of different problems or data are never mixed.

    A problem is an id, its variant, budget, system and simulated workers, and the numbers that
    answered. How an agent fixed its fidelity and what reward it learned from belongs to the agent:
    see `fedhpo_gym.records.runs.OF_THE_AGENT`. Where runs of one agent on one problem
    differ in these, they are contestants of their own, and their names say in what.

    Records are read one at a time, and only their incumbents are kept.

    Args:
        records: run records, whole or as `JudgedRun`, and where they come from.
        tables: runs of foreign tables; their problems are those of the records with these names.
        present: returns the present name of a fingerprint. It is called where records of one
            problem have several: older versions named a stored table differently, and runs on it
            are of one problem. Runs on different numbers are not.
        rule: which trial is the incumbent.
        known: returns the reference values of a run's problem. It is called once per problem.

    Raises:
        InvalidArgumentError: two files hold the same agent and seed of one problem, or a record
            has no validation losses.
        UnknownNameError: there is no such rule.
    """
    read = [_summarise_run(path, record, rule) for path, record in records]
    problems = [
        _make_problem(name, runs) for name, runs in _name_problems(_split_by_problem(read, present))
    ]
    by_name = {one.name: one for one in problems}
    foreign: dict[str, list[Run]] = {}
    for path, line in tables:
        foreign.setdefault(line.problem, []).append(Run(line, path))
    for name, runs in foreign.items():
        by_name[name] = _add_foreign(by_name.get(name, ProblemRuns(name, name, {}, (), {})), runs)
    problems_by_name = [by_name[name] for name in sorted(by_name)]
    counted = map(_drop_low_fidelities, problems_by_name) if rule == FULL else problems_by_name
    return tuple(_add_regrets(problem, known) for problem in counted)


def _add_regrets(
    problem: ProblemRuns, find_references: Callable[[Header], ReferenceValues | None] | None
) -> ProblemRuns:
    header = next((run.header for run in problem.all_runs() if run.header), None)
    references = None if find_references is None or header is None else find_references(header)
    runs = {
        agent: tuple(run.judged(references) for run in of_agent)
        for agent, of_agent in problem.runs.items()
    }
    return replace(problem, known=references, runs=runs)


def _drop_low_fidelities(problem: ProblemRuns) -> ProblemRuns:
    """Leave out what lies below the highest level of any run on the problem."""
    lines = [run.trajectory for run in problem.all_runs()]
    full = max((float(line.level.max()) for line in lines if line.level is not None), default=0.0)

    def since(run: Run) -> Run:
        line = run.trajectory.since(full)
        return replace(run, trajectory=line, best=run.best if len(line.value) else None)

    runs = {agent: tuple(map(since, of_agent)) for agent, of_agent in problem.runs.items()}
    return replace(problem, runs=runs)


def _summarise_run(path: Path, record: RunRecord | JudgedRun, rule: str) -> Run:
    run = JudgedRun.of(record) if isinstance(record, RunRecord) else record
    header, trials = run.header, run.trials
    index = int(incumbents(trials, rule)[-1])
    configuration, fidelity, objectives = run.describe_step(index)
    best = FinalIncumbent(
        word="step" if trials.is_course else "trial",
        number=index + 1,
        steps=len(trials.time_s),
        configuration=configuration,
        fidelity=fidelity,
        objectives=objectives,
        test_accuracy=None if run.accuracy is None else float(run.accuracy[index]),
    )
    line = Trajectory.of(header.id, header.agent, header.seed, trials, rule)
    # Regret is computed of every incumbent of a trajectory; a course has no single configuration.
    changes = () if trials.is_course or line.trial is None else line.trial.tolist()
    diverged = int((trials.value >= LARGEST).sum())
    # Whether something of the fidelity of a trial was the agent's to choose.
    varies = run.course is None and not {*fidelity} <= {*(header.kwargs.get("fidelity") or {})}
    return Run(
        line, path, best, header, run.scored, {n: run.describe_step(n)[0] for n in changes},
        total_costs=run.total_costs, diverged=diverged, varies=varies, course=run.course,
    )  # fmt: skip


def _header_of(run: Run) -> Header:
    if run.header is None:
        raise InvalidArgumentError(f"{run.path} must be a run record to be grouped")
    return run.header


def _split_by_problem(read: Sequence[Run], present: Callable[[Header], str]) -> list[list[Run]]:
    """Sort runs by id and arguments of the problem, and by the stored numbers they used."""
    by_question: dict[str, list[Run]] = {}
    for run in read:
        header = _header_of(run)
        question = _to_json([header.id, problem_of(header)])  # what was asked, whatever answered
        by_question.setdefault(question, []).append(run)
    groups = []
    for _, runs in sorted(by_question.items()):
        headers = {_header_of(run).fingerprint: _header_of(run) for run in runs}
        present_names = {name: name for name in headers}
        if len(headers) > 1:
            present_names = {name: present(header) for name, header in headers.items()}
        for fingerprint in sorted(set(present_names.values())):
            groups.append(
                [run for run in runs if present_names[_header_of(run).fingerprint] == fingerprint]
            )
    return groups


def _name_problems(groups: Sequence[list[Run]]) -> list[tuple[str, list[Run]]]:
    """Name problems by their id, and by what they differ in where there are several of one id."""
    by_id: dict[str, list[list[Run]]] = {}
    for runs in groups:
        by_id.setdefault(_header_of(runs[0]).id, []).append(runs)
    named_groups = []
    for env_id, same_id in by_id.items():
        arguments = [flatten_arguments(problem_of(_header_of(runs[0]))) for runs in same_id]
        labels = [_list_differences(label, arguments) for label in arguments]
        for index, runs in enumerate(same_id):
            label = labels[index]
            if labels.count(label) > 1:
                label = [*label, f"data {1 + labels[:index].count(label)}"]
            suffix = f" ({', '.join(label) or 'defaults'})" if len(same_id) > 1 else ""
            named_groups.append((f"{env_id}{suffix}", runs))
    return named_groups


def _make_problem(name: str, members: Sequence[Run]) -> ProblemRuns:
    entries = [(run, _header_of(run), agent_arguments(_header_of(run).kwargs)) for run in members]
    settings: dict[str, set[str]] = {}
    for _, header, arguments in entries:
        settings.setdefault(header.agent, set()).add(_to_json(arguments))
    runs: dict[str, dict[int, Run]] = {}
    for run, header, arguments in entries:
        label = header.agent
        if len(settings[label]) > 1:
            all_settings = [flatten_arguments(json.loads(setting)) for setting in settings[label]]
            differences = _list_differences(flatten_arguments(arguments), all_settings)
            label = f"{label} ({', '.join(differences) or 'defaults'})"
        line = replace(run.trajectory, problem=name, agent=label)
        _add_run(runs, replace(run, trajectory=line))
    header = entries[0][1]
    fingerprints = tuple(sorted({header.fingerprint for _, header, _ in entries}))
    return ProblemRuns(name, header.id, problem_of(header), fingerprints, _sort_runs(runs))


def _add_foreign(problem: ProblemRuns, foreign: Iterable[Run]) -> ProblemRuns:
    runs = {
        agent: {r.trajectory.seed: r for r in of_agent} for agent, of_agent in problem.runs.items()
    }
    for run in foreign:
        _add_run(runs, run)
    return replace(problem, runs=_sort_runs(runs))


def _add_run(runs: dict[str, dict[int, Run]], run: Run) -> None:
    line = run.trajectory
    seeds = runs.setdefault(line.agent, {})
    if line.seed in seeds:
        raise InvalidArgumentError(
            f"records must be different runs, but {seeds[line.seed].path} and {run.path} both hold "
            f"agent {line.agent!r} with seed {line.seed} on {line.problem}; remove one of them"
        )
    seeds[line.seed] = run


def _sort_runs(runs: Mapping[str, Mapping[int, Run]]) -> dict[str, tuple[Run, ...]]:
    return {agent: tuple(run for _, run in sorted(runs[agent].items())) for agent in sorted(runs)}


def _list_differences(
    arguments: Mapping[str, str], all_arguments: Iterable[Mapping[str, str]]
) -> list[str]:
    """Return the arguments, as `name=value`, that some others lack or set differently."""
    others = list(all_arguments)
    return [
        f"{name}={value}"
        for name, value in arguments.items()
        if any(other.get(name) != value for other in others)
    ]


def flatten_arguments(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Return nested arguments by dotted names, as text."""
    return {".".join(path): str(value) for path, value in leaves(mapping) if value != {}}


def _to_json(content: object) -> str:
    return json.dumps(content, sort_keys=True)
