"""`fedhpo-gym health` and `difficulty`: figures of stored numbers, some of them by training.

`health` recomputes the figures on cards, and compares or writes them; `--survival` trains the best
configurations of a table again with perturbed weights. `difficulty` prints the page of all stored
problems (docs/difficulty.md). The figures themselves are in `fedhpo_gym.stored.health`.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import numpy as np

from fedhpo_gym.backends import make_backend
from fedhpo_gym.backends.training import CourseState, make_batch, make_course, task_federation
from fedhpo_gym.cli.console import (
    Algorithm,
    Arg,
    Ids,
    Settings,
    Variant,
    echo,
    echo_error,
    parse_task,
)
from fedhpo_gym.cli.listing import answering_tasks
from fedhpo_gym.cli.problems import (
    format_share,
    format_value,
    limits_request,
    name_of,
    survival_words,
    variant_of,
)
from fedhpo_gym.core.archive import add_to_card
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError, require_optional
from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.trial.truth import searched_together
from fedhpo_gym.evaluation.records import Fidelity, evaluation_from_curves, validation_losses
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored import health as figures
from fedhpo_gym.stored.catalogue import is_installed
from fedhpo_gym.stored.lattice import Landscape, StoredNumbers, landscape_of
from fedhpo_gym.stored.meta_data import open_meta_data
from fedhpo_gym.stored.pool import Pool
from fedhpo_gym.stored.remembered import SUFFIX, read_results, results_stem, write_remembered
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.table import FORMAT, Table
from fedhpo_gym.studies.environments import make_environment
from fedhpo_gym.tasks import Task, get_task, task_of
from fedhpo_gym.tasks.meta import generated_space, meta_space


def health(
    ids: Ids = (),
    *,
    write: Annotated[bool, Arg("write it onto the cards")] = False,
    survival: Annotated[bool, Arg("train the best of tables anew, weights moved by 1e-8")] = False,
    truth: Annotated[
        bool, Arg("compute what can be reached, and limits, anew: minutes each")
    ] = False,
) -> int:
    """Compare, or with `--write` write, card by card; 1 where a card says something else."""
    cards = cards_of_ids(ids)
    if survival:
        return _print_survival(cards, ids, write=write)
    differing = 0
    if truth:
        for card in cards:
            results = truths_of(card)
            stored = figures.open_stored(card)
            path = card.with_name(results_stem(stored.card, _backend_of(stored)) + SUFFIX)
            if write:
                write_remembered(path, results)
            equal = read_results(path) == results
            echo(f"{path.name}: {len(results)} results {'as' if equal else 'not as'} stored")
            differing += not equal
        return 1 if differing else 0
    for card in cards:
        stored = figures.open_stored(card)
        if write:
            figures.write_health(card, _label_frequencies(stored))
            echo(f"{card.name}: written")
            continue
        equal = figures.agree(figures.health_of(stored), stored.card.get(figures.HEALTH))
        echo(f"{card.name}: {'as on the card' if equal else 'not as on the card'}")
        differing += not equal
    echo(f"{len(cards)} cards{'' if write else f', {differing} differ'}")
    return 1 if differing else 0


def _backend_of(stored: StoredNumbers) -> str:
    return "surrogate" if isinstance(stored, Surrogate) else "tabular"


def truths_of(card: Path) -> dict[str, Any]:
    """Compute the results that `recall` reads for the default arguments of all ids of a card.

    These are limits, and truths at any and at full fidelity.
    """
    stored, results = figures.open_stored(card), {}
    for task in answering_tasks(stored):
        backend = _backend_of(stored)
        _, key, compute = limits_request(task, backend)
        results[str(key)] = compute()
        arguments: dict[str, Any] = {name: getattr(task, name) for name in task.options}
        arguments |= {"settings": dict(task.settings), "backend": backend}
        arguments |= {"tune": {d.name: [d.low, d.high] for d in task.tuned}}
        setups: list[TrialSetup] = []
        for prefix in ("", "MO-"):
            with closing(make_environment(f"{prefix}{task.id}", arguments)) as env:
                setups.append(env.get_wrapper_attr("setup"))
        for group in (setups, [setup.at_full_fidelity for setup in setups]):
            for setup in searched_together(group):
                results[str(setup.key)] = setup.to_store()
    plain_results: dict[str, Any] = json.loads(json.dumps(results))
    return plain_results


def _print_survival(cards: Sequence[Path], ids: Sequence[str], *, write: bool) -> int:
    """Print, table by table, whether the best configurations survive a perturbation."""
    tables = [card for card in cards if card.name.endswith(".table.json")]
    if not (ids and tables):
        raise InvalidArgumentError(
            "`ID` must name problems with a table for `--survival`, which trains, got "
            f"{', '.join(ids) or 'none'}; `fedhpo-gym list` names them"
        )
    for card in tables:
        survival = survival_of(Table(card))
        if write:
            add_to_card(card, FORMAT, {figures.SURVIVAL: survival})
        echo(f"{card.name}: {survival_words(survival)}")
    return 0


def cards_of_ids(ids: Sequence[str]) -> list[Path]:
    """Return the cards of the numbers of some ids; all of this machine where no id is given."""
    if not ids:
        cards = figures.health_cards()
        installed = [card for card in cards if is_installed(card)]
        if len(installed) < len(cards):
            echo_error(
                "health",
                f"{len(cards) - len(installed)} tables and pools are left out: fedhpo-gym-data, "
                "which is on no index, is not installed; run `pip install ./data` in a checkout",
            )
        return installed
    keys_by_card = [
        (card, {task.key for task in answering_tasks(figures.open_stored(card))})
        for card in figures.health_cards()
        if is_installed(card)
    ]
    chosen_cards = []
    for word in ids:
        if meta_space(word):
            raise InvalidArgumentError(
                f"`ID` must be one of a table or a surrogate, got {word!r}: the cards of FedHPO-B "
                f"say no such figures; see `fedhpo-gym difficulty {word}`"
            )
        if generated_space(word):
            raise InvalidArgumentError(
                f"`ID` must be one of a table or a surrogate, got {word!r}: what tasks without end "
                "are like, docs/studies/generated.md says"
            )
        cards = [card for card, keys in keys_by_card if get_task(word).key in keys]
        if not cards:
            raise InvalidArgumentError(
                f"`ID` must be one with stored numbers, got {word!r}; `fedhpo-gym list` names them"
            )
        chosen_cards += cards
    return list(dict.fromkeys(chosen_cards))


def _label_frequencies(stored: StoredNumbers) -> dict[str, Any]:
    """Return the results of label frequencies if the card lacks them and the data are available."""
    entry = figures.SEED_LABELS if isinstance(stored, Pool) else figures.LABELS
    if entry in stored.card:
        return {}
    try:
        with require_optional("reading training data", "torch", "raw", "torch"):
            from fedhpo_gym.backends.training import task_label_frequencies
        frequencies = task_label_frequencies(task_of(stored.identity))
        return dict(zip((figures.LABELS, figures.SEED_LABELS), frequencies, strict=True))
    except FedHPOError as error:
        echo_error("health", error)
        return {}


_DRAWS = f"{figures.DRAWS:,}"
TERMS = f"""\
All figures are computed from validation losses at full fidelity, as means over seeds. Of a table or
a pool, all cells are used; of a surrogate, {_DRAWS} uniformly drawn configurations. The losses of a
pool are those of one seed. Three losses define the scale:

- "best" is the lowest loss of these configurations.
- "guess" is the loss of a model that predicts the frequencies of labels.
- "default" is the loss of plain federated averaging with a learning rate of 0.1, minibatches of 32
  and one local epoch, or of the nearest configuration in the space.

The columns are:
"""
TITLE = f"""# Difficulty of the stored problems

This page shows how much of the possible gain random search does not reach on each stored problem.
Use it to choose problems on which optimizers can differ. It is printed by `fedhpo-gym difficulty`;
`fedhpo-gym difficulty ID` prints one problem.

{TERMS}"""
COLUMNS = {
    "settings": "number of hyperparameters in the search space",
    **{
        f"left {k}": f"mean loss of the best of {k} random configurations, minus best, as a share "
        "of (guess - best)"
        for k in figures.TRIALS
    },
    "of the default": "left 25 as a share of (default - best) instead; a dash if no configuration "
    "is better than the default, or if the default was not trained",
    "seeds left": "left 25 in standard errors that are due to seeds. They are those of comparisons "
    f"between the best tenth of the configurations, and at least {figures.FEWEST_TOP} of them. An "
    "effect of a seed on all configurations alike does not count. A dash if fewer than "
    f"{2 * figures.FEWEST_TOP} configurations have several seeds",
    "seeds gained": "(default - best), in the same standard errors",
    "near": "share of the configurations whose loss exceeds best by at most "
    f"{format_share(figures.NEAR_BEST)} of (guess - best)",
    "useless": "share of the configurations that are no better than guess, or diverge",
    "contest": f"whether seeds left is at least {figures.CONTEST[0]:g}, left 25 at least "
    f"{figures.CONTEST_LEFT:g}, and seeds gained at least {figures.CONTEST[1]:g}. Other problems "
    "are easy, or their results depend mostly on seeds. A dash if this is unknown",
}
"""Meaning of the columns of a table, by their heads."""
DIFFICULTY_HEADS = ("id", "variant", *COLUMNS)
AFTER = """
For problems without stored results, `fedhpo-gym difficulty --train 60 ID` trains configurations.
Some of them are on the page of [natural federations](natural.md#how-hard).
"""


def difficulty(
    ids: Ids = (),
    *,
    train: Annotated[int | None, Arg("train N random configurations of each id", "N")] = None,
    algorithm: Algorithm = None,
    settings: Settings = (),
) -> int:
    """Print the page of all stored problems, or of those that are named."""
    if train is None and (algorithm or settings):
        raise InvalidArgumentError(
            "`--algorithm` and `--setting` must come with `--train N`; stored numbers are all "
            "listed"
        )
    if train is not None and (not ids or any(meta_space(i) or generated_space(i) for i in ids)):
        id_text = ", ".join(ids) or "none"
        raise InvalidArgumentError(
            f"`--train` must come with ids, none of many tasks, got {id_text}"
        )
    if train is not None:
        tasks = [parse_task(Variant(word, algorithm, settings=settings)) for word in ids]
        rows = [list(_trained_difficulty(task, train)) for task in tasks]
    else:
        pools = {word: space for word in ids if (space := meta_space(word))}
        others = [word for word in ids if word not in pools]
        cards = cards_of_ids(others) if others or not ids else []
        rows = [list(_difficulty_cells(figures.open_stored(card))) for card in cards]
        rows += [list(cells) for word, space in pools.items() for cells in _pool_cells(word, space)]
    echo(TERMS if ids else TITLE)
    for name, meaning in COLUMNS.items():
        line = f"{name}: {meaning}." if ids else f"- **{name}**: {meaning}."
        echo(fill(line, 100, subsequent_indent="  ", break_on_hyphens=False))
    if not ids:
        echo(AFTER)
    echo(markdown_table(DIFFICULTY_HEADS, rows))
    return 0


def _difficulty_cells(stored: StoredNumbers) -> Iterator[str]:
    yield name_of(stored)
    kind = type(stored).__name__.lower()  # table, surrogate or pool
    yield f"{variant_of(stored)}, {kind}"
    yield str(len(stored.space))
    yield from _format_figures(figures.difficulty_of(stored))


def _pool_cells(word: str, space: str) -> Iterator[Iterator[str]]:
    """Yield the cells of each meta-test task of a space of FedHPO-B."""
    data = open_meta_data(space)
    for task in data.where("test"):
        first_cells = (word, f"instances={data.names[task]!r}, pool", str(len(data.space)))
        yield chain(first_cells, _format_figures(figures.difficulty_in_pool(data, task)))


def _trained_difficulty(task: Task, num_configurations: int) -> Iterator[str]:
    """Yield the cells of a problem by training random configurations of it."""
    if num_configurations < figures.TRIALS[0]:
        raise InvalidArgumentError(
            f"`--train` must be at least {figures.TRIALS[0]}, got {num_configurations}"
        )
    full, grid = task.space, task.space.discretized()
    space = SearchSpace(tuple(grid[d.name] if d.kind == "int" else d for d in full.dimensions))
    raw = make_backend("raw", task)
    fidelity = Fidelity(task.max_round, task.fidelity_space["client_sample_rate"].high)
    rng = stream(0, "difficulty")
    configurations = [
        *(space.sample(rng) for _ in range(num_configurations)),
        figures.default_configuration(space),
    ]
    answers = raw.evaluate_many([(configuration, fidelity) for configuration in configurations])
    losses = validation_losses(answers, answers.num_samples)
    fixed = [f"{name} {value:g}" for name, value in task.settings]
    labels = [task.algorithm, *fixed, f"{num_configurations} trained"]
    yield from (task.key, ", ".join(labels), str(len(full)))
    yield from _format_figures(figures.difficulty_from(losses, task.label_entropy))


def _format_figures(result: figures.Difficulty) -> Iterator[str]:
    yield from (_format_share(result.scaled(trials)[0]) for trials in figures.TRIALS)
    yield _format_share(result.scaled(25)[1])
    for value in (result.scaled(25)[2], result.gain):
        yield format_value(float(f"{value:.3g}")) if math.isfinite(value) else "–"
    yield format_share(result.near)
    yield format_share(result.useless)
    yield {True: "yes", False: "no", None: "–"}[result.is_contest]


def _format_share(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


CELLS = 5
PERTURBATIONS = 3
PERTURBATION = 1e-8
"""Perturbation of every initial weight, as a share of it or of 1 if that is more, but at least the
distance to its neighbour in float32."""
Cell = tuple[dict[str, Value], Fidelity]


def survival_of(table: Table) -> dict[str, Any]:
    """Return how much the losses of the best cells change under a negligible change of weights.

    Spreads are standard deviations of the logarithm of the loss, the root mean square over cells:
    `moved` over the draws, of the mean over seeds; `seeds` over the seeds, unmoved.
    """
    cells, stored_losses = best_cells(landscape_of(table), CELLS)
    task = task_of(table.identity)
    losses = np.stack(
        [train_cells(task, table.seeds, cells, draw) for draw in range(PERTURBATIONS + 1)]
    )
    means = losses.mean(axis=-1)
    deviations = np.abs(means[1:] / stored_losses - 1.0).max(axis=0)
    return {
        "of": table.digest,
        "perturbation": PERTURBATION,
        "draws": PERTURBATIONS,
        "cells": len(cells),
        "surviving": int((deviations <= figures.SURVIVES).sum()),
        "optimum": {
            "stored": _round_to_four(stored_losses[0]),
            "trained": _round_to_four(means[0, 0]),
            "lowest": _round_to_four(means[1:, 0].min()),
            "highest": _round_to_four(means[1:, 0].max()),
        },
        "moved": _log_spread(means, axis=0),
        "seeds": _log_spread(losses[0], axis=-1) if len(table.seeds) > 1 else None,
    }


def best_cells(land: Landscape, count: int) -> tuple[list[Cell], Floats]:
    """Return the configurations of lowest mean loss, each at its best fidelity, and these means."""
    by_configuration = land.means.swapaxes(0, 1).reshape(land.means.shape[1], -1)
    lowest = by_configuration.min(axis=1)
    order = np.argsort(lowest, kind="stable")[:count]
    cells = []
    for index in order.tolist():
        round_index, rate = divmod(int(by_configuration[index].argmin()), len(land.rates))
        cells.append(
            (dict(land.configurations[index]), Fidelity(land.rounds[round_index], land.rates[rate]))
        )
    return cells, lowest[order]


def train_cells(task: Task, seeds: Sequence[int], cells: Sequence[Cell], draw: int) -> Floats:
    """Return the (cells, seeds) validation losses that training reaches."""
    courses = [
        make_course(task, configuration, fidelity.client_sample_rate, seed)
        for configuration, fidelity in cells
        for seed in seeds
    ]
    batch = make_batch(task, courses)
    if draw:
        rng = stream(draw, "survival")
        batch.restore([_perturb_state(state, rng) for state in batch.snapshot()])
    last = max(fidelity.round for _, fidelity in cells)
    curves = batch.advance(last, evaluated=[r for r in task.evaluated_rounds if r <= last])
    losses = np.empty((len(cells), len(seeds)))
    for index, (cell_index, seed_index) in enumerate(np.ndindex(losses.shape)):
        row = slice(index, index + 1)
        curve_data = (curves.metrics[row], curves.rounds, curves.diverged_at[row])
        samples = task_federation(task, seeds[seed_index]).num_samples[None]
        answer = evaluation_from_curves(
            *curve_data, samples, (seeds[seed_index],), cells[cell_index][1]
        )
        losses[cell_index, seed_index] = answer.mean("val", "loss")
    return losses


def _perturb_state(state: CourseState | None, rng: np.random.Generator) -> CourseState | None:
    """Return a state at round 0 with other weights."""
    if state is None:
        return None
    parameters = {name: perturb_weights(weights, rng) for name, weights in state.parameters.items()}
    return replace(state, parameters=parameters)


def perturb_weights(weights: Any, rng: np.random.Generator) -> Any:
    """Return weights, an array or a tensor, each moved slightly up or down."""
    values = weights if isinstance(weights, np.ndarray) else weights.detach().cpu().numpy()
    size = np.abs(values)
    step = np.maximum(PERTURBATION * np.maximum(size, 1.0), np.spacing(size)).astype(values.dtype)
    perturbed = values + rng.choice(np.array([-1, 1], values.dtype), values.shape) * step
    return perturbed if isinstance(weights, np.ndarray) else weights.new_tensor(perturbed)


def _log_spread(losses: Floats, axis: int) -> float:
    logs = np.log(np.maximum(losses, figures.SMALLEST_LOSS))
    return _round_to_four(np.sqrt(logs.var(axis=axis, ddof=1).mean()))


def _round_to_four(value: float | np.floating) -> float:
    return float(f"{value:.4g}")
