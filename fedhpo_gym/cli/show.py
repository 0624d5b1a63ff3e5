"""`fedhpo-gym show`: what an environment asks, what can answer here, and how healthy it is."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from fedhpo_gym.backends import BACKENDS, default_backend, ids_with_stored_data
from fedhpo_gym.backends.federatedscope.installation import why_not
from fedhpo_gym.cli import problems
from fedhpo_gym.cli.console import Arg, Variant, asked_task, echo, say_prose, say_table
from fedhpo_gym.cli.listing import (
    WITHOUT_DATA,
    concerned,
    lacking,
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
"""Entry of what is known: what limits of objectives leave."""
PRINTED_APART = ("health", LABELS, SURVIVAL, OBJECTIVES, CLAIMED, LIMITS)
DIMENSION_HEADS = ("name", "from", "to", "scale", "grid points", "unit", "set by")
COPIED = (
    "fitted_on", "num_configurations", "courses", ENDS, "diverged_courses", "engine_version",
)  # fmt: skip
ORIGIN = ("licence", "data_licence", "created", "hardware")


def main(
    variant: Variant,
    *,
    backend: Annotated[str | None, Arg("tabular, surrogate, raw or federatedscope", "NAME")] = None,
    as_json: Annotated[bool, Arg("print JSON, for machines", flag="--json")] = False,
) -> int:
    """Print one environment in words or as JSON."""
    if variant.id in SUITES:
        raise InvalidArgumentError(f"{variant.id} is a suite: see `fedhpo-gym list {variant.id}`")
    if (space := meta_space(variant.id)) is not None:
        return _print_meta_data(space)
    if (space := generated_space(variant.id)) is not None:
        return _print_generator(space)
    task = asked_task(variant)
    if backend is not None and backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    found = description(task, backend or default_backend(task), variant.id)
    if as_json:
        echo(json.dumps(found, indent=1))
    else:
        _print(found)
    return 0


def _print_meta_data(space: str) -> int:
    """Print what tasks a search space of FedHPO-B has."""
    data = open_meta_data(space)
    say_prose(
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
    say_table(heads, rows)
    say_table(DIMENSION_HEADS, [*_tree(data.space.to_dict()["dimensions"])])
    return 0


def _print_generator(space: str) -> int:
    """Print what tasks are generated from."""
    found = open_generator(space)
    say_prose(
        f"Generated tasks: a number below 2^32 is one. Configurations of {len(found.space)} "
        f"hyperparameters after {', '.join(map(str, found.rounds))} rounds at the client sample "
        f"rates {', '.join(map(str, found.rates))}. {len(found.arrays['weight_0'])} networks were "
        f"fitted on {found.card['evaluations']:,} evaluations of {len(found.card['fitted_on'])} "
        f"real tasks: {', '.join(found.card['fitted_on'])}."
    )
    say_table(DIMENSION_HEADS, [*_tree(found.space.to_dict()["dimensions"])])
    return 0


def description(task: Task, backend: str, env_id: str) -> dict[str, Any]:
    """Return what is known of a variant of a task, as JSON data."""
    of_rounds = "DAC-" in env_id or task.key in ROUNDS_ONLY
    plain = task.round_id if of_rounds else task.id
    env_id = f"MO-{plain}" if env_id.startswith("MO-") else plain
    return {
        "id": env_id,
        "process": _process(task, env_id, of_rounds=of_rounds),
        "variant": {name: getattr(task, name) for name in task.options},
        "settings": {n: v for n, v in task.all_settings.items() if n not in task.silent},
        "about": _about(task),
        "space": (round_space(task) if of_rounds else task.space).to_dict()["dimensions"],
        "arguments": dict(task.round_arguments) if of_rounds else {},
        "references": _references(env_id) if of_rounds else {},
        "fidelity_space": [] if of_rounds else task.fidelity_space.to_dict()["dimensions"],
        "budget_s": task.budget_s,
        "backends": {name: _answers(name, task) for name in concerned(task, env_id)},
        "backend": backend,
        "stored": _stored(backend, task),
        "elsewhere": ids_with_stored_data(task) if backend in problems.OPENERS else [],
        "variants": [] if of_rounds else _variants(task),
    }


def _variants(task: Task) -> list[str]:
    """Return the arguments of other variants of an id that have stored numbers."""
    rows, _ = stored_variants(stored_names(), task.name)
    return [f"{arguments} ({backends})" for name, backends, arguments in rows if name == task.id]


def _references(env_id: str) -> dict[str, Any]:
    """Return what is known to be reached in a round environment: returns and scores by name."""
    known = references_of(env_id)
    if known is None:
        return {}
    return {
        name: {"return": float(np.mean(values)), "score": known.interval(values)}
        for name, values in known.returns.items()
    }


def _process(task: Task, env_id: str, *, of_rounds: bool) -> str:
    """Return what a step and a reward of an id are."""
    reward = f"the reward is the {task.reward}"
    if of_rounds:
        reward = "the reward is one number"
    if env_id.startswith("MO-"):
        reward = "the reward is a vector, one score per objective"
    if not of_rounds:
        does = "looks up" if task.table == IMPORTED else "trains"
        return (
            f"A step is a trial: it {does} one configuration, for up to {task.max_round} rounds; "
            f"{reward}. One run of an optimizer has {problems.number(task.budget_s)} simulated "
            "seconds."
        )
    return (
        "A step sets the hyperparameters of the next rounds of one course, which is really "
        f"trained; `rounds_per_step` and `horizon` of gymnasium.make say how many; {reward}. "
        "Stored numbers are of trials of the same task."
    )


def _about(task: Task) -> str:
    if task.table == IMPORTED:
        return (
            f"Tune the hyperparameters of a federation by its imported results, {task.dataset}: "
            f"{task.num_parameters:,} parameters, {task.num_classes} classes, "
            f"{task.num_clients:,} clients. {task.citation}."
        )
    variant = [task.algorithm]
    if task.partition == "lda":
        variant.append(f"α {problems.number(task.alpha)}")
    if "tabular-data" in task.tags:
        variant.append(f"{task.preprocessing} features")
    return (
        f"Tune the hyperparameters of a federated {task.model} model on {task.dataset}: "
        f"{task.num_features:,} features, {task.num_classes} classes, {task.num_clients:,} clients "
        f"(partition {task.partition}; {', '.join(variant)}). {task.citation}."
    )


def _answers(name: str, task: Task) -> dict[str, Any]:
    """Return whether a backend can answer here, and how or why not."""
    if name not in problems.OPENERS and task.table != BUILT_TABLE:
        return {"answers": False, "words": "results are all there is of it: nothing trains it"}
    if name in WITHOUT_DATA:
        return {"answers": True, "words": f"asks the {task.citation}"}
    if name == "raw":
        if missing := lacking(task):
            return {"answers": False, "words": str(missing_dependency("training it", *missing))}
        command = download_command(task.dataset)
        trains = f"trains any configuration, on {task.dataset}, at {_trained(task)}"
        download = f"; the data comes by `{command}`" if command else ""
        return {"answers": True, "words": f"{trains}{download}"}
    if name == "federatedscope":
        reason = why_not(task)
        trains = f"trains any configuration as it does, at {_trained(task)}"
        return {"answers": not reason, "words": reason or trains}
    try:
        stored = problems.OPENERS[name](task)
    except FedHPOError as error:
        return {"answers": False, "words": str(error)}
    rounds, rates = (stored.fidelity_space[n] for n in ("round", "client_sample_rate"))
    seeds = f"seeds {', '.join(map(str, stored.seeds))}"
    if isinstance(stored, Pool):
        held = f"rounds {_listed([*rounds.grid])}, client sample rates {_listed([*rates.grid])}"
        pool = f"{len(stored)} trained configurations (a pool), {held}, {seeds}"
        nearest = f"{pool}; an action gets the nearest of these. {stored.coverage}".rstrip(". ")
        return {"answers": True, "words": nearest}
    every = "every point of its grid" if isinstance(stored, Table) else "any configuration"
    return {
        "answers": True,
        "words": f"{every}, rounds {rounds.low} to {rounds.high}, client sample rates "
        f"{rates.low} to {rates.high}, {seeds}",
    }


def _trained(task: Task) -> str:
    """Return which fidelities training answers: the task may name their values."""
    named = [d.name.replace("_", " ") for d in task.fidelity_space.dimensions if d.values]
    return f"each {' and '.join(named)} of the grid" if named else "any fidelity"


def _stored(backend: str, task: Task) -> dict[str, Any] | None:
    """Return where stored numbers come from, and their health; None where there are none."""
    if backend not in problems.OPENERS or not _answers(backend, task)["answers"]:
        return None
    stored = problems.OPENERS[backend](task)
    card = stored.card
    command = f"fedhpo-gym health {task.id} --write"
    return {
        "name": card["name"],
        "rounds": _values(stored.fidelity_space, "round"),
        "client_sample_rates": _values(stored.fidelity_space, "client_sample_rate"),
        "seeds": list(stored.seeds),
        "courses": _courses(stored),
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


def _courses(stored: StoredNumbers) -> int | None:
    """Return how many courses a table holds; the card of a sample says it itself."""
    if not isinstance(stored, Table):
        return None
    rates = stored.fidelity_space["client_sample_rate"].grid
    return stored.space.grid_size * len(rates) * len(stored.seeds)


def _values(space: SearchSpace, name: str) -> list[Value]:
    dimension = space[name]
    return list(dimension.values or (dimension.low, dimension.high))


def _print(found: Mapping[str, Any]) -> None:
    settings = [f"{name}={problems.number(value)}" for name, value in found["settings"].items()]
    echo(f"{found['id']}\n\n{textwrap.fill(found['about'], problems.WIDTH)}")
    echo(textwrap.fill(found["process"], problems.WIDTH))
    if brought := {k: v for k, v in found["arguments"].items() if k not in ("task", "backend")}:
        words = f"Its id brings: {', '.join(f'{name}={value}' for name, value in brought.items())}."
        echo(textwrap.fill(words, problems.WIDTH))
    if settings:
        echo(f"Fixed by `settings`: {', '.join(settings)}.")
    echo("\nHyperparameters and fidelities:\n")
    rows = [*_tree(found["space"]), *map(_row, found["fidelity_space"])]
    say_table(DIMENSION_HEADS, rows)
    for dimension in found["space"]:
        if "active" in dimension:
            name, values = dimension["active"]
            words = " or ".join(map(problems.number, values))
            echo(f"{dimension['name']} is active where {name} is {words}.")
    echo("\nWhat can answer here:\n")
    for name, answer in found["backends"].items():
        words = f"{name}: {'' if answer['answers'] else 'no; '}{answer['words']}"
        whole = re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\xa0"), words)
        lines = textwrap.fill(
            whole,
            problems.WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,  # commands are to be copied
        )
        echo(lines.replace("\xa0", " "))
    if found["references"]:
        words = (
            "What is reached on test instances: actions at random, the default, the best static "
            "action and stated schedules, searched on train instances, and sequences found with "
            "hindsight. A score is 0 for the default and 1 for the best static action."
        )
        echo(f"\n{textwrap.fill(words, problems.WIDTH)}\n")
        rows = [
            (name, f"{one['return']:.3f}", "{:.2f}".format(one["score"][0]),
             "{:.2f} to {:.2f}".format(*one["score"][1:]))
            for name, one in found["references"].items()
        ]  # fmt: skip
        say_table(("reference", "mean return", "score", "95 %"), rows)
    if found["variants"]:
        echo("\nOther variants with stored numbers, by the arguments of gymnasium.make:\n")
        echo("\n".join(f"- {line}" for line in found["variants"]))
    stored = found["stored"]
    if stored is None:
        echo(f"\nThe backend {found['backend']!r} has no stored numbers here, and no health.")
        for line in found["elsewhere"]:
            echo(f"The same variant has stored numbers in another version: {line}.")
        return
    echo(f"\nThe numbers of the backend {found['backend']!r}:\n")
    _print_stored(stored)


def _print_stored(stored: Mapping[str, Any]) -> None:
    for name, value in stored.items():
        if name not in PRINTED_APART and value is not None:
            echo(f"{name.replace('_', ' ')}: {_listed(value)}")
    echo("\nTheir health:\n")
    lines = [*problems.health_words(stored["health"], stored[LABELS])]
    if stored[SURVIVAL] is not None:
        lines.append(problems.survival_words(stored[SURVIVAL]))
    for line in lines:
        echo(textwrap.fill(f"- {line}", problems.WIDTH, subsequent_indent="  "))
    if stored[OBJECTIVES] is not None:
        words = f"Objectives that it answers: those with {RULE}. Held out:"
        echo(f"\n{textwrap.fill(words, problems.WIDTH)}\n")
        for name, one in stored[OBJECTIVES].items():
            line = f"- {name}: {one['verdict']} ({one['figures']})"
            echo(textwrap.fill(line, problems.WIDTH, subsequent_indent="  "))
        echo(f"\n{textwrap.fill(f'Its claimed best: {stored[CLAIMED]}.', problems.WIDTH)}")
    words = (
        "Limits that some of its configurations keep at full fidelity, and the lowest validation "
        "loss among those; * is no better than predicting the label frequencies:"
    )
    echo(f"\n{textwrap.fill(words, problems.WIDTH)}\n")
    say_table(problems.LIMIT_HEADS, problems.rows_of(stored[LIMITS]))


def _tree(
    dimensions: Sequence[Mapping[str, Any]], parent: str | None = None, depth: int = 0
) -> Iterator[tuple[str, ...]]:
    """Yield the rows of dimensions, those that depend on another one below it."""
    for dimension in dimensions:
        if dimension.get("active", (None,))[0] == parent:
            name, *rest = _row(dimension)
            yield (f"{'  ' * (depth - 1)}└ {name}" if depth else name, *rest)
            yield from _tree(dimensions, dimension["name"], depth + 1)


def _row(dimension: Mapping[str, Any]) -> tuple[str, ...]:
    named = dimension["values"]
    if dimension["kind"] == "category":
        return (dimension["name"], "-", "-", "words", ", ".join(named), "1", dimension["scope"])
    points = len(named or ()) or dimension["bins"]
    if named and dimension["scope"] != "fidelity":  # surrogates answer between the fidelities
        points = f"only {', '.join(map(problems.number, named))}"
    return (
        dimension["name"],
        problems.number(dimension["low"]),
        problems.number(dimension["high"]),
        "logarithmic" if dimension["log"] else "linear",
        str(points or "any"),
        dimension["unit"] or "1",
        dimension["scope"],
    )


def _listed(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{count} at {where}" for where, count in value.items()]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
