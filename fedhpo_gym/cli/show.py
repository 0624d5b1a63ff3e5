"""`fedhpo-gym show`: the problem of an environment, its backends here, and its health.

`description` collects everything as JSON data, which `--json` prints and pages of the site use;
`_print_environment` turns it into text. Search spaces of FedHPO-B and generated tasks have shorter
descriptions of their own.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from fedhpo_gym.backends import BACKENDS, default_backend, ids_with_stored_data
from fedhpo_gym.backends.federatedscope.installation import why_not
from fedhpo_gym.cli import problems
from fedhpo_gym.cli.console import Arg, Variant, echo, echo_prose, echo_table, parse_task
from fedhpo_gym.cli.listing import (
    WITHOUT_DATA,
    missing_requirement,
    relevant_backends,
    round_space,
    stored_names,
    stored_variants,
)
from fedhpo_gym.core.errors import (
    FedHPOError,
    InvalidArgumentError,
    missing_dependency,
    unknown_name,
)
from fedhpo_gym.core.identity import BUILT_TABLE, IMPORTED
from fedhpo_gym.data.catalogue import download_command
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.health import LABELS, SURVIVAL, health_on, labels_on, survival_on
from fedhpo_gym.stored.lattice import StoredNumbers
from fedhpo_gym.stored.meta_data import open_meta_data
from fedhpo_gym.stored.pool import Pool
from fedhpo_gym.stored.references import references_of
from fedhpo_gym.stored.surrogate import CLAIMED, RULE
from fedhpo_gym.stored.surrogate import ENTRY as OBJECTIVES
from fedhpo_gym.stored.table import ENDS, Table
from fedhpo_gym.stored.task_generator import open_generator
from fedhpo_gym.studies.suites import SUITES
from fedhpo_gym.tasks import ROUNDS_ONLY, Task
from fedhpo_gym.tasks.meta import generated_space, meta_space

LIMITS = "limits"
"""Entry of the description: the effect of limits of objectives."""
PRINTED_APART = ("health", LABELS, SURVIVAL, OBJECTIVES, CLAIMED, LIMITS)
DIMENSION_HEADS = ("name", "from", "to", "scale", "grid points", "unit", "set by")
COPIED = (
    "fitted_on", "num_configurations", "courses", ENDS, "diverged_courses", "engine_version",
)  # fmt: skip
ORIGIN = ("licence", "data_licence", "created", "hardware")


def show_environment(
    variant: Variant,
    *,
    backend: Annotated[str | None, Arg("tabular, surrogate, raw or federatedscope", "NAME")] = None,
    as_json: Annotated[bool, Arg("print JSON, for machines", flag="--json")] = False,
) -> int:
    """Print one environment as text or as JSON."""
    if variant.id in SUITES:
        raise InvalidArgumentError(f"{variant.id} is a suite: see `fedhpo-gym list {variant.id}`")
    if (space := meta_space(variant.id)) is not None:
        return _print_meta_data(space)
    if (space := generated_space(variant.id)) is not None:
        return _print_generator(space)
    task = parse_task(variant)
    if backend is not None and backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    content = description(task, backend or default_backend(task), variant.id)
    if as_json:
        echo(json.dumps(content, indent=1))
    else:
        _print_environment(content)
    return 0


def _print_meta_data(space: str) -> int:
    """Print the tasks of a search space of FedHPO-B."""
    data = open_meta_data(space)
    echo_prose(
        f"{len(data.names)} tasks, each with {data.card['pool']} configurations of "
        f"{len(data.space)} hyperparameters after {', '.join(map(str, data.rounds))} rounds at the "
        f"client sample rates {', '.join(map(str, data.rates))}. tau: how well the surrogate of "
        "continuous=True ranks configurations that it has not seen."
    )
    heads = ("task", "split", "survey", "clients", "label entropy", "tau")
    rows = [
        (
            task["name"],
            task["split"],
            task["survey"],
            str(task["clients"]),
            f"{task['label_entropy']:.3f}",
            f"{tau:.2f}",
        )
        for task, tau in zip(data.card["tasks"], data.tau, strict=True)
    ]
    echo_table(heads, rows)
    echo_table(DIMENSION_HEADS, [*_dimension_rows(data.space.to_dict()["dimensions"])])
    return 0


def _print_generator(space: str) -> int:
    """Print how tasks are generated."""
    generator = open_generator(space)
    echo_prose(
        f"Generated tasks: a number below 2^32 is one. Configurations of {len(generator.space)} "
        f"hyperparameters after {', '.join(map(str, generator.rounds))} rounds at the client "
        f"sample rates {', '.join(map(str, generator.rates))}. "
        f"{len(generator.arrays['weight_0'])} networks were fitted on "
        f"{generator.card['evaluations']:,} evaluations of {len(generator.card['fitted_on'])} "
        f"real tasks: {', '.join(generator.card['fitted_on'])}."
    )
    echo_table(DIMENSION_HEADS, [*_dimension_rows(generator.space.to_dict()["dimensions"])])
    return 0


def description(task: Task, backend: str, env_id: str) -> dict[str, Any]:
    """Return the description of a variant of a task, as JSON data."""
    is_round_id = "DAC-" in env_id or task.key in ROUNDS_ONLY
    canonical_id = task.round_id if is_round_id else task.id
    env_id = f"MO-{canonical_id}" if env_id.startswith("MO-") else canonical_id
    return {
        "id": env_id,
        "process": _describe_process(task, env_id, is_round_id=is_round_id),
        "variant": {name: getattr(task, name) for name in task.options},
        "settings": {n: v for n, v in task.all_settings.items() if n not in task.silent},
        "about": _describe_problem(task),
        "space": (round_space(task) if is_round_id else task.space).to_dict()["dimensions"],
        "arguments": dict(task.round_arguments) if is_round_id else {},
        "references": _reference_scores(env_id) if is_round_id else {},
        "fidelity_space": [] if is_round_id else task.fidelity_space.to_dict()["dimensions"],
        "budget_s": task.budget_s,
        "backends": {name: _backend_answer(name, task) for name in relevant_backends(task, env_id)},
        "backend": backend,
        "stored": _stored_content(backend, task),
        "elsewhere": ids_with_stored_data(task) if backend in problems.OPENERS else [],
        "variants": [] if is_round_id else _other_variants(task),
    }


def _other_variants(task: Task) -> list[str]:
    """Return the arguments of other variants of an id that have stored numbers."""
    rows, _ = stored_variants(stored_names(), task.name)
    return [f"{arguments} ({backends})" for name, backends, arguments in rows if name == task.id]


def _reference_scores(env_id: str) -> dict[str, Any]:
    """Return the references of a round environment: returns and scores by name."""
    references = references_of(env_id)
    if references is None:
        return {}
    return {
        name: {"return": float(np.mean(values)), "score": references.interval(values)}
        for name, values in references.returns.items()
    }


def _describe_process(task: Task, env_id: str, *, is_round_id: bool) -> str:
    """Return a description of steps and rewards of an id."""
    reward = f"the reward is the {task.reward}"
    if is_round_id:
        reward = "the reward is one number"
    if env_id.startswith("MO-"):
        reward = "the reward is a vector, one score per objective"
    if not is_round_id:
        verb = "looks up" if task.table == IMPORTED else "trains"
        return (
            f"A step is a trial: it {verb} one configuration, for up to {task.max_round} rounds; "
            f"{reward}. One run of an optimizer has {problems.format_value(task.budget_s)} "
            "simulated seconds."
        )
    return (
        "A step sets the hyperparameters of the next rounds of one course, which is really "
        f"trained; `rounds_per_step` and `horizon` of gymnasium.make say how many; {reward}. "
        "Stored numbers are of trials of the same task."
    )


def _describe_problem(task: Task) -> str:
    if task.table == IMPORTED:
        return (
            f"Tune the hyperparameters of a federation by its imported results, {task.dataset}: "
            f"{task.num_parameters:,} parameters, {task.num_classes} classes, "
            f"{task.num_clients:,} clients. {task.citation}."
        )
    variant = [task.algorithm]
    if task.partition == "lda":
        variant.append(f"α {problems.format_value(task.alpha)}")
    if "tabular-data" in task.tags:
        variant.append(f"{task.preprocessing} features")
    return (
        f"Tune the hyperparameters of a federated {task.model} model on {task.dataset}: "
        f"{task.num_features:,} features, {task.num_classes} classes, {task.num_clients:,} clients "
        f"(partition {task.partition}; {', '.join(variant)}). {task.citation}."
    )


def _backend_answer(name: str, task: Task) -> dict[str, Any]:
    """Return whether a backend is available here, and how or why not."""
    if name not in problems.OPENERS and task.table != BUILT_TABLE:
        return {"answers": False, "words": "results are all there is of it: nothing trains it"}
    if name in WITHOUT_DATA:
        return {"answers": True, "words": f"asks the {task.citation}"}
    if name == "raw":
        if missing := missing_requirement(task):
            return {"answers": False, "words": str(missing_dependency("training it", *missing))}
        command = download_command(task.dataset)
        trains = f"trains any configuration, on {task.dataset}, at {_trained_fidelities(task)}"
        download = f"; the data comes by `{command}`" if command else ""
        return {"answers": True, "words": f"{trains}{download}"}
    if name == "federatedscope":
        reason = why_not(task)
        trains = f"trains any configuration as it does, at {_trained_fidelities(task)}"
        return {"answers": not reason, "words": reason or trains}
    try:
        stored = problems.OPENERS[name](task)
    except FedHPOError as error:
        return {"answers": False, "words": str(error)}
    rounds, rates = (stored.fidelity_space[n] for n in ("round", "client_sample_rate"))
    seeds = f"seeds {', '.join(map(str, stored.seeds))}"
    if isinstance(stored, Pool):
        grids = _join_values([*rounds.grid]), _join_values([*rates.grid])
        fidelities = f"rounds {grids[0]}, client sample rates {grids[1]}"
        pool = f"{len(stored)} trained configurations (a pool), {fidelities}, {seeds}"
        text = f"{pool}; an action gets the nearest of these. {stored.coverage}".rstrip(". ")
        return {"answers": True, "words": text}
    scope = "every point of its grid" if isinstance(stored, Table) else "any configuration"
    return {
        "answers": True,
        "words": f"{scope}, rounds {rounds.low} to {rounds.high}, client sample rates "
        f"{rates.low} to {rates.high}, {seeds}",
    }


def _trained_fidelities(task: Task) -> str:
    """Return the fidelities that training has, as text: the task may name their values."""
    names = [d.name.replace("_", " ") for d in task.fidelity_space.dimensions if d.values]
    return f"each {' and '.join(names)} of the grid" if names else "any fidelity"


def _stored_content(backend: str, task: Task) -> dict[str, Any] | None:
    """Return origin and health of stored numbers; None where there are none."""
    if backend not in problems.OPENERS or not _backend_answer(backend, task)["answers"]:
        return None
    stored = problems.OPENERS[backend](task)
    card = stored.card
    command = f"fedhpo-gym health {task.id} --write"
    return {
        "name": card["name"],
        "rounds": _dimension_values(stored.fidelity_space, "round"),
        "client_sample_rates": _dimension_values(stored.fidelity_space, "client_sample_rate"),
        "seeds": list(stored.seeds),
        "courses": _num_courses(stored),
        **{key: card[key] for key in COPIED if key in card},
        "fingerprint": stored.digest,
        "command": card.get("build_command", card.get("fit_command")),
        **{key: card[key] for key in ORIGIN if key in card},
        LABELS: labels_on(stored),
        "health": dict(health_on(stored, command)),
        SURVIVAL: survival_on(stored),
        OBJECTIVES: problems.verdicts_of(stored),
        CLAIMED: problems.claim_words(stored),
        LIMITS: problems.limits_of(task, backend),
    }


def _num_courses(stored: StoredNumbers) -> int | None:
    """Return the number of courses of a table; cards of samples have it."""
    if not isinstance(stored, Table):
        return None
    rates = stored.fidelity_space["client_sample_rate"].grid
    return stored.space.grid_size * len(rates) * len(stored.seeds)


def _dimension_values(space: SearchSpace, name: str) -> list[Value]:
    dimension = space[name]
    return list(dimension.values or (dimension.low, dimension.high))


def _print_environment(content: Mapping[str, Any]) -> None:
    settings = [
        f"{name}={problems.format_value(value)}" for name, value in content["settings"].items()
    ]
    echo(f"{content['id']}\n\n{textwrap.fill(content['about'], problems.WIDTH)}")
    echo(textwrap.fill(content["process"], problems.WIDTH))
    if id_arguments := {
        k: v for k, v in content["arguments"].items() if k not in ("task", "backend")
    }:
        text = f"Its id brings: {', '.join(f'{k}={v}' for k, v in id_arguments.items())}."
        echo(textwrap.fill(text, problems.WIDTH))
    if settings:
        echo(f"Fixed by `settings`: {', '.join(settings)}.")
    echo("\nHyperparameters and fidelities:\n")
    rows = [*_dimension_rows(content["space"]), *map(_dimension_row, content["fidelity_space"])]
    echo_table(DIMENSION_HEADS, rows)
    for dimension in content["space"]:
        if "active" in dimension:
            name, values = dimension["active"]
            text = " or ".join(map(problems.format_value, values))
            echo(f"{dimension['name']} is active where {name} is {text}.")
    echo("\nWhat can answer here:\n")
    for name, answer in content["backends"].items():
        text = f"{name}: {'' if answer['answers'] else 'no; '}{answer['words']}"
        protected = re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\xa0"), text)
        lines = textwrap.fill(
            protected,
            problems.WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,  # commands are to be copied
        )
        echo(lines.replace("\xa0", " "))
    if content["references"]:
        text = (
            "What is reached on test instances: actions at random, the default, the best static "
            "action and stated schedules, searched on train instances, and sequences found with "
            "hindsight. A score is 0 for the default and 1 for the best static action."
        )
        echo(f"\n{textwrap.fill(text, problems.WIDTH)}\n")
        rows = [
            (name, f"{entry['return']:.3f}", "{:.2f}".format(entry["score"][0]),
             "{:.2f} to {:.2f}".format(*entry["score"][1:]))
            for name, entry in content["references"].items()
        ]  # fmt: skip
        echo_table(("reference", "mean return", "score", "95 %"), rows)
    if content["variants"]:
        echo("\nOther variants with stored numbers, by the arguments of gymnasium.make:\n")
        echo("\n".join(f"- {line}" for line in content["variants"]))
    stored = content["stored"]
    if stored is None:
        echo(f"\nThe backend {content['backend']!r} has no stored numbers here, and no health.")
        for line in content["elsewhere"]:
            echo(f"The same variant has stored numbers in another version: {line}.")
        return
    echo(f"\nThe numbers of the backend {content['backend']!r}:\n")
    _print_stored(stored)


def _print_stored(stored: Mapping[str, Any]) -> None:
    for name, value in stored.items():
        if name not in PRINTED_APART and value is not None:
            echo(f"{name.replace('_', ' ')}: {_join_values(value)}")
    echo("\nTheir health:\n")
    lines = [*problems.health_words(stored["health"], stored[LABELS])]
    if stored[SURVIVAL] is not None:
        lines.append(problems.survival_words(stored[SURVIVAL]))
    for line in lines:
        echo(textwrap.fill(f"- {line}", problems.WIDTH, subsequent_indent="  "))
    if stored[OBJECTIVES] is not None:
        text = f"Objectives that it answers: those with {RULE}. Held out:"
        echo(f"\n{textwrap.fill(text, problems.WIDTH)}\n")
        for name, verdict in stored[OBJECTIVES].items():
            line = f"- {name}: {verdict['verdict']} ({verdict['figures']})"
            echo(textwrap.fill(line, problems.WIDTH, subsequent_indent="  "))
        echo(f"\n{textwrap.fill(f'Its claimed best: {stored[CLAIMED]}.', problems.WIDTH)}")
    text = (
        "Limits that some of its configurations keep at full fidelity, and the lowest validation "
        "loss among those; * is no better than predicting the label frequencies:"
    )
    echo(f"\n{textwrap.fill(text, problems.WIDTH)}\n")
    echo_table(problems.LIMIT_HEADS, problems.limit_rows(stored[LIMITS]))


def _dimension_rows(
    dimensions: Sequence[Mapping[str, Any]], parent: str | None = None, depth: int = 0
) -> Iterator[tuple[str, ...]]:
    """Yield the rows of dimensions, those that depend on another one below it."""
    for dimension in dimensions:
        if dimension.get("active", (None,))[0] == parent:
            name, *cells = _dimension_row(dimension)
            yield (f"{'  ' * (depth - 1)}└ {name}" if depth else name, *cells)
            yield from _dimension_rows(dimensions, dimension["name"], depth + 1)


def _dimension_row(dimension: Mapping[str, Any]) -> tuple[str, ...]:
    grid_values = dimension["values"]
    if dimension["kind"] == "category":
        return (
            dimension["name"],
            "-",
            "-",
            "words",
            ", ".join(grid_values),
            "1",
            dimension["scope"],
        )
    points = len(grid_values or ()) or dimension["bins"]
    if grid_values and dimension["scope"] != "fidelity":  # surrogates answer between the fidelities
        points = f"only {', '.join(map(problems.format_value, grid_values))}"
    return (
        dimension["name"],
        problems.format_value(dimension["low"]),
        problems.format_value(dimension["high"]),
        "logarithmic" if dimension["log"] else "linear",
        str(points or "any"),
        dimension["unit"] or "1",
        dimension["scope"],
    )


def _join_values(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{count} at {place_}" for place_, count in value.items()]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
