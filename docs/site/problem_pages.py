"""Writes one page per problem, and one per table of natural clients, of what the package knows."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
from observations import entries

from fedhpo_gym.cli import problems
from fedhpo_gym.cli.listing import answering_tasks, arguments_of
from fedhpo_gym.cli.show import description
from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.data import SOURCES
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.envs.trial.arguments import TrialArguments
from fedhpo_gym.objectives import Objective
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.stored.health import (
    default_configuration,
    health_cards,
    health_on,
    labels_on,
    open_stored,
    survival_on,
)
from fedhpo_gym.stored.lattice import StoredNumbers
from fedhpo_gym.tasks import TASKS, TRAINED, TRIALS_ONLY, Task

DOCS = Path(__file__).resolve().parents[1]
HEADS = ("name", "from", "to", "scale", "grid", "unit", "set by", "default", "active where")
OBJECTIVE_HEADS = ("objective", "unit", "better", "range")
BACKENDS = {
    "tabular": "`tabular`: a stored table or pool",
    "surrogate": "`surrogate`: a fitted model",
    "raw": "`raw`: training",
}


def write_pages(folder: Path, families: Mapping[str, str], index: str) -> list[str]:
    """Write all pages below a folder and return their names; files that stay are not touched.

    `families` are the pages of ids with many tasks, and `index` the table of these.
    """
    variants = _variants()
    _draw_all(folder / "pictures", variants)
    pages = {**families}
    for key, task in TASKS.items():
        pages[key] = "\n\n".join(_problem_page(task, variants.get(key, [])))
    for table in NATURAL:
        own = [task for task in TRAINED.values() if task.dataset == table.name]
        pages[table.name] = "\n\n".join(_natural_page(table.name, own))
    # They are found by their index: a hundred more entries beside every page help nobody.
    pages = {name: f"---\norphan: true\n---\n\n{text}" for name, text in pages.items()}
    pages["index"] = "\n\n".join(_index(variants, index))
    for name, text in pages.items():
        write(folder / f"{name}.md", text + "\n")
    return [*pages]


def write(path: Path, text: str) -> None:
    """Write a file unless it says this already: Sphinx reads again what is newer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


@functools.cache
def _opened(card: Path) -> StoredNumbers:
    return open_stored(card)


def _variants() -> dict[str, list[Path]]:
    """Return the cards that answer each problem of the catalogue, the default variant first."""
    found: dict[str, list[Path]] = {}
    for card in health_cards():
        for task in (one for one in answering_tasks(_opened(card)) if one.key in TASKS):
            found.setdefault(task.key, []).append(card)
    for key, cards in found.items():
        cards.sort(key=lambda card: (_arguments(card, TASKS[key]) != [], _ORDER.index(_kind(card))))
    return found


def _arguments(card: Path, task: Task) -> list[str]:
    """Return what `gymnasium.make` must be told besides the id."""
    words = [*arguments_of(_opened(card).identity)]
    return [word for word in words if word != f"algorithm={task.algorithm!r}"]


# ------------------------------------------------------------------------------------- one problem


def _problem_page(task: Task, cards: Sequence[Path]) -> Iterator[str]:
    found = description(task, "raw", task.id)
    yield f"# {task.key}"
    yield _ids(task)
    yield f"{found['about']} {found['process']}"
    backend = "" if cards else ', backend="raw"'
    yield (
        "```python\nimport gymnasium as gym\nimport fedhpo_gym\n\n"
        f'env = gym.make("{task.id}"{backend})\n```'
    )
    yield "## What is tuned"
    yield space_table(task.space, default_configuration(task.space))
    yield (
        "*Usual* is the configuration without tuning: plain federated averaging, or the nearest "
        "configuration of the space."
    )
    yield from _fidelities(task)
    yield from _objectives(task, cards)
    yield from entries(task)
    yield "## What answers"
    yield from _answers(task, found["backends"], cards)
    for card in cards:
        yield from _numbers(card, task)
    yield from _data(task)


def _ids(task: Task) -> str:
    ids = [task.id, f"MO-{task.id}"]
    if not task.name.startswith(TRIALS_ONLY):
        ids += [task.round_id, f"MO-{task.round_id}"]
    return "Ids: " + ", ".join(f"`{one}`" for one in ids) + "."


def space_table(space: SearchSpace, middle: Mapping[str, Any]) -> str:
    """Return the table of a search space; `middle` is what is used where nobody tunes."""
    rows = []
    for one in space.dimensions:
        is_word = one.kind == "category"
        points = len(one.values or ()) or one.bins or "any"
        rows.append(
            (
                f"`{one.name}`",
                "–" if is_word else problems.format_value(one.low),
                "–" if is_word else problems.format_value(one.high),
                "words" if is_word else "logarithmic" if one.log else "linear",
                ", ".join(map(str, one.values or ())) if is_word else points,
                one.unit or "1",
                one.scope,
                problems.format_value(middle[one.name]) if one.name in middle else "–",
                _condition(one),
            )
        )
    return markdown_table(HEADS, rows)


def _condition(dimension: Dimension) -> str:
    if dimension.active is None:
        return "always"
    name, values = dimension.active
    return f"`{name}` is {' or '.join(map(problems.format_value, values))}"


def _fidelities(task: Task) -> Iterator[str]:
    yield "## Fidelities"
    asked = task.asked_fidelity_space()
    rounds = ", ".join(map(problems.format_value, asked["round"].grid))
    rate = asked["client_sample_rate"]
    yield (
        f"`round` is one of {rounds}; the highest, {task.max_round}, is full fidelity. "
        f"`client_sample_rate` is {problems.format_value(rate.low)} to "
        f"{problems.format_value(rate.high)}. An episode ends after "
        f"{problems.format_value(task.budget_s)} simulated seconds."
    )


def _objectives(task: Task, cards: Sequence[Path]) -> Iterator[str]:
    yield "## Objectives"
    held = problems.verdicts_of(_opened(cards[0])) if cards else None
    refused = [name for name, one in (held or {}).items() if one["verdict"] == "refused"]
    for prefix in ("", "MO-"):
        names = TrialArguments(
            task=task.key, backend="raw", vector_reward=bool(prefix)
        ).chosen_objectives
        if refused and not _arguments(cards[0], task):  # the surrogate may put one in its place
            env = gym.make(f"{prefix}{task.id}", disable_env_checker=True)
            names = env.unwrapped.setup.objective_names
        rows = [objective_row(task.objectives[name]) for name in names]
        yield f"Default objectives of `{prefix}{task.id}`:"
        yield markdown_table(OBJECTIVE_HEADS, rows)
    rest = ", ".join(f"`{name}`" for name in task.objectives)
    yield f"All objectives ([definitions](../../objectives.md)): {rest}."
    if refused:
        names = ", ".join(f"`{name}`" for name in refused)
        yield f"The stored surrogate does not offer {names}, because their errors are too large."


def objective_row(one: Objective) -> tuple[object, ...]:
    """Return the cells of an objective under `OBJECTIVE_HEADS`."""
    better = "lower" if one.minimize else "higher"
    return (f"`{one.name}`", one.unit, better, " to ".join(map(problems.format_value, one.bounds)))


def _answers(task: Task, backends: Mapping[str, Any], cards: Sequence[Path]) -> Iterator[str]:
    rows = []
    for name, words in BACKENDS.items():
        mine = [card for card in cards if (_kind(card) == "surrogate") == (name == "surrogate")]
        said = ["default" if not _arguments(c, task) else _call(c, task) for c in mine]
        if name == "raw":
            said = ["any configuration; needs the data"] if backends.get(name) else []
        rows.append((words, ", ".join(said) or "nothing stored"))
    yield markdown_table(("backend", "variants with an answer"), rows)
    if not cards:
        yield "This problem has no stored results, so its optimum is unknown."


_ORDER = ("table", "surrogate", "pool")
"""Kinds of stored numbers, the one that answers by default first."""


def _kind(card: Path) -> str:
    return type(_opened(card)).__name__.lower()


def _call(card: Path, task: Task) -> str:
    return "`" + ", ".join(_arguments(card, task)) + "`"


def _numbers(card: Path, task: Task) -> Iterator[str]:
    stored = _opened(card)
    health = health_on(stored, "fedhpo-gym health ID --write")
    arguments = _arguments(card, task)
    kind = _kind(card)
    yield f"### The {kind}{' of ' + _call(card, task) if arguments else ''}"
    difficulty = _difficulty().get((problems.name_of(stored), _variant(stored, kind)))
    words = [*problems.health_words(health, labels_on(stored))]
    if difficulty:
        words.append(
            f"The best of 25 random configurations is {difficulty['left 25']} away from the "
            f"optimum, and the best of 50 {difficulty['left 50']}, in units of the distance from "
            f"a guess to the optimum. {difficulty['near']} of all configurations come within a "
            "twentieth. A contest between optimizers ([definition](../../difficulty.md)): "
            f"{difficulty['contest']}."
        )
    if survival := survival_on(stored):
        words.append(problems.survival_words(survival))
    if claim := problems.claim_words(stored):
        words.append(f"Its best predicted configuration, trained: {claim}.")
    if held := problems.verdicts_of(stored):
        words.append(f"Validation loss on held-out training runs: {held['val_loss']['figures']}.")
    yield "\n".join(f"- {word}" for word in words)
    if not arguments:
        yield f"![Landscape and learning curves of {task.key}](pictures/{card.stem}.svg)"
        yield (
            "*Left: median loss over the two most important hyperparameters. Right: learning "
            "curves of the best, the best tenth and the median configuration. Both with all "
            "clients, and means over seeds. Diverged training runs are left blank.*"
        )
    command = stored.card.get("build_command", stored.card.get("fit_command"))
    yield f"Made by `{command}`; fingerprint `{stored.digest[:16]}`."


def _variant(stored: StoredNumbers, kind: str) -> str:
    return f"{problems.variant_of(stored)}, {kind}"


@functools.cache
def _difficulty() -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of the pages that say how hard problems are, by id and variant."""
    found = {}
    for page in ("difficulty", "natural"):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        cells = [
            re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line[:2] == "| "
        ]
        for heads in (row for row in cells if row[:2] == ["id", "variant"]):
            rows = [row for row in cells if len(row) == len(heads) and row != heads]
            found |= {(row[0], row[1]): dict(zip(heads, row, strict=True)) for row in rows}
    return found


def _data(task: Task) -> Iterator[str]:
    source = SOURCES[task.dataset]
    yield "## Data"
    open_words = "open" if source.open_licence else "not an open licence"
    yield (
        f"{source.name}: {source.origin}. Terms: {source.licence} ({open_words}; "
        f"[all licences](../../datasets.md#licences)). {source.citation}."
    )
    if not source.offline:
        yield f"Training needs the data: `{source.repair}`."


# ------------------------------------------------------------------------------ natural federations


def _natural_page(name: str, tasks: Sequence[Task]) -> Iterator[str]:
    of = next(one for one in NATURAL if one.name == name)
    yield f"# {name}"
    yield (
        f"Each client is a {of.who}. The model predicts: {of.what}. The table has {of.rows:,} "
        f"rows, {of.clients} clients, {of.classes} classes and {of.width} columns. It is made from "
        f"the R data set {of.source} ([how](../../natural.md)). Its ids train models, which needs "
        "only the extras `natural` and `compiled`."
    )
    yield (
        "```python\nimport gymnasium as gym\nimport fedhpo_gym\n\n"
        f'env = gym.make("{tasks[0].id}")\n```'
    )
    seen: dict[str, str] = {}
    for task in tasks:
        yield f"## {task.key}"
        yield _ids(task)
        space = space_table(task.space, default_configuration(task.space))
        if space in seen:
            yield f"The search space is that of {seen[space]}."
        else:
            seen[space] = task.key
            yield space
        rate = task.asked_fidelity_space()["client_sample_rate"]
        yield (
            f"A trial has up to {task.max_round} rounds and client sampling rates from "
            f"{problems.format_value(rate.low)} to {problems.format_value(rate.high)}. An episode "
            f"has {problems.format_value(task.budget_s)} simulated seconds."
        )
        for (key, variant), row in _difficulty().items():
            if key == task.key:
                yield (
                    f"Difficulty ({variant}): the best of 25 random configurations is "
                    f"{row['left 25']} away from the optimum, in units of the distance from a "
                    f"guess to the optimum. A contest between optimizers: {row['contest']}."
                )
    yield from entries(tasks[0])
    yield from _data(tasks[0])


# -------------------------------------------------------------------------------------- all of them


def _index(variants: Mapping[str, Sequence[Path]], families: str) -> Iterator[str]:
    yield "# One page per problem"
    yield (
        "Each problem has a page with its search space, objectives, observations and stored "
        "results. The pages are made whenever this site is built."
    )
    rows = []
    for key, task in TASKS.items():
        kinds = dict.fromkeys(map(_kind, variants.get(key, ())))
        stored = ", ".join(kinds) or "–"
        clients, tuned = f"{task.num_clients:,}", len(task.space)
        rows.append((f"[{key}]({key}.md)", task.model, task.dataset, clients, tuned, stored))
    yield markdown_table(("problem", "model", "data", "clients", "tuned", "stored"), rows)
    yield "## Many tasks behind one id"
    yield families
    yield "## Natural federations"
    rows = [
        (f"[{one.name}]({one.name}.md)", one.who, one.what, one.clients, f"{one.rows:,}")
        for one in NATURAL
    ]
    yield markdown_table(("table", "a client is a", "predicted", "clients", "rows"), rows)


def _draw_all(folder: Path, variants: Mapping[str, Sequence[Path]]) -> None:
    """Draw what is missing, in two processes."""
    cards = {
        folder / f"{card.stem}.svg": card
        for key, known in variants.items()
        for card in known
        if not _arguments(card, TASKS[key])
    }
    jobs = {path: card for path, card in cards.items() if missing(path, _opened(card).digest)}
    if jobs:
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            list(pool.map(_draw, jobs, jobs.values()))


def missing(path: Path, of: str) -> bool:
    """Return whether a picture is not there, or was drawn otherwise; a file beside it says of what.

    It is noted before the picture is drawn, which is deleted: a build that is cut off draws again.
    """
    digest = hashlib.sha256(Path(__file__).with_name("pictures.py").read_bytes() + of.encode())
    mark = path.with_suffix(".digest")
    if path.exists() and mark.exists() and mark.read_text() == digest.hexdigest():
        return False
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(digest.hexdigest())
    return True


def _draw(path: Path, card: Path) -> None:
    from pictures import draw

    stored = open_stored(card)
    health = health_on(stored, "fedhpo-gym health ID --write")
    draw(path, stored, health["importance"])
