"""What the cards of stored problems say of them, in words, and what limits leave of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import make_backend
from fedhpo_gym.cli.listing import answering, arguments_of
from fedhpo_gym.core.errors import FedHPOError
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.trial.truth import values_of_queries
from fedhpo_gym.objectives import ENERGY, REGISTERED
from fedhpo_gym.space import Value
from fedhpo_gym.stored.catalogue import (
    has_sample,
    has_table,
    open_sample,
    open_table,
    require_import,
)
from fedhpo_gym.stored.health import NEAR, SURVIVES, labels_on
from fedhpo_gym.stored.lattice import StoredNumbers, asked_columns
from fedhpo_gym.stored.pool import Pool
from fedhpo_gym.stored.remembered import key_of, recall, results_stem
from fedhpo_gym.stored.surrogate import CLAIM_RULE, Surrogate, claim_on, held_on, open_preferred
from fedhpo_gym.stored.table import Table
from fedhpo_gym.studies.environments import make_environment, resolve_id
from fedhpo_gym.studies.suites import SUITES, suite
from fedhpo_gym.tasks import Task


def number(value: Value | None) -> str:
    """Return a number of up to four digits as a person writes it; a word as it is."""
    if value is None:
        return "not known"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """Return a share in per cent; a small one is never called nothing."""
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.005 else "below 1 %"


def health_words(health: Mapping[str, Any], labels: Mapping[str, float] | None) -> Iterator[str]:
    """Yield sentences."""
    yield from _optimum(health)
    yield _beside_labels(health, labels)
    losing, near = health["losing"], health["near_optimum"]
    if losing is not None:
        yield (
            f"{percent(losing['cells'])} of all cells lose to the label frequencies, at full "
            f"fidelity {percent(losing['full_fidelity'])} of the configurations."
        )
    yield (
        f"{percent(near['full_fidelity'])} of the configurations are within {percent(NEAR)} of the "
        "optimum at full fidelity."
    )
    if health["diverging"] is not None:
        share = percent(health["diverging"]["full_fidelity"])
        yield f"{share} of the configurations diverge under some seed."
    noise, spread = health["seed_noise"], health["spread"]
    if noise is not None and spread:
        yield (
            f"In the logarithm of the loss, seeds differ by {number(noise)} and configurations by "
            f"{number(spread)}: noise over spread is {number(noise / spread)}."
        )
    yield from _ranks(health["kendall"])
    if health["importance"]:
        ranked = sorted(health["importance"].items(), key=lambda item: -item[1]["total"])
        words = (f"{name} {percent(s['alone'])} ({percent(s['total'])})" for name, s in ranked)
        yield f"Share of the variance, alone (with interactions): {', '.join(words)}."
    for figure, reason in health["missing"].items():
        yield f"No figure for {figure.replace('_', ' ')}: {reason}."


def _optimum(health: Mapping[str, Any]) -> Iterator[str]:
    best, lattice = health["optimum"], health["lattice"]
    where = ", ".join(f"{k} {number(v)}" for k, v in best["configuration"].items())
    kind = "Exact optimum" if lattice["exact"] else "Best of the lattice"
    yield (
        f"{kind}: validation loss {number(best['val_loss'])} (test {number(best['test_loss'])}, "
        f"test accuracy {number(best['test_accuracy'])}) at {where}; round {best['round']}, client "
        f"sample rate {number(best['client_sample_rate'])}."
    )
    edges = [f"{name} ({end})" for name, end in health["edges"].items()]
    yield f"It lies at an edge of {', '.join(edges)}." if edges else "It lies at no edge."
    if not lattice["exact"]:
        yield (
            f"The lattice is a grid of {lattice['configurations']:,} configurations, with "
            f"{lattice['draws']:,} drawn ones in search of the optimum."
        )


def _beside_labels(health: Mapping[str, Any], labels: Mapping[str, float] | None) -> str:
    if labels is None:
        return "What predicting the label frequencies reaches is not known."
    wins = health["optimum"]["val_loss"] < labels["val_loss"]
    return (
        f"Predicting the label frequencies reaches {number(labels['val_loss'])} (test accuracy "
        f"{number(labels['test_accuracy'])}): the optimum {'beats' if wins else 'LOSES TO'} it."
    )


def _ranks(kendall: Mapping[str, Any]) -> Iterator[str]:
    names = {"rounds": "rounds", "client_sample_rates": "client sample rates"}
    parts = [
        f"{number(kendall[key]['tau'])} between {words} {' and '.join(map(number, of))}"
        for key, words in names.items()
        if kendall[key]["tau"] is not None and len(set(of := kendall[key]["of"])) > 1
    ]
    if kendall["seeds"]["tau"] is not None:
        parts.append(f"{number(kendall['seeds']['tau'])} between seeds")
    if parts:
        yield f"Kendall's τ of configurations: {', '.join(parts)}."


def survival_words(found: Mapping[str, Any]) -> str:
    """Return in words what `survival.survival_of` found."""
    best, seeds = found["optimum"], found["seeds"]
    beside = "" if seeds is None else f" (between seeds: {seeds:.3g})"
    return (
        f"With initial weights moved by {found['perturbation']:g}, {found['draws']} times, "
        f"{found['surviving']} of the {found['cells']} best configurations train to within "
        f"{SURVIVES:.0%} of the loss that is stored. The optimum has {best['stored']:.4g} and "
        f"trains to {best['lowest']:.4g} to {best['highest']:.4g} (unmoved {best['trained']:.4g}); "
        f"the logarithm of the loss moves by {found['moved']:.3g}{beside}."
    )


WIDTH = 100


def name_of(stored: StoredNumbers) -> str:
    """Return the ids, without their common beginning, that answer from stored numbers."""
    versions = ", ".join(f"-v{task.version}" for task in answering(stored))
    return f"{stored.identity.task}{versions}"


def variant_of(stored: StoredNumbers) -> str:
    """Return the arguments of a variant, without quotation marks."""
    return ", ".join(arguments_of(stored.identity)).replace("algorithm=", "").replace("'", "")


def open_exact(task: Task) -> Table | Pool:
    """Open the table of a task, else the pool of its sample."""
    require_import(task)
    if has_sample(task.table_name) and not has_table(task.table_name):
        return Pool(open_sample(task.identity).require_installed())
    return open_table(task.identity).require_installed()


OPENERS: Final[Mapping[str, Callable[[Task], StoredNumbers]]] = {
    "tabular": open_exact,
    "surrogate": lambda task: open_preferred(task.surrogate_identities),
}
SHARES: Final = (0.05, 0.2, 0.5)
"""Of the configurations, how many keep the limits that are listed."""
DRAWS: Final = 512
"""Random configurations that a surrogate is asked."""
LIMIT_HEADS: Final = (
    "limit",
    *(word for one in SHARES for word in (f"{percent(one)} keep", "best")),
)


def limits_of(task: Task, backend: str) -> dict[str, Any]:
    """Return limits of each objective that varies, as JSON data; none tunes by the test split."""
    return recall(*limits_request(task, backend))


def limits_request(task: Task, backend: str) -> tuple[str, str | None, Callable[[], Any]]:
    """Return what `recall` takes for `limits_of`: the name of the numbers, a key and a function."""
    opened = make_backend(backend, task)
    offered = [one for one in task.objectives if one != ENERGY and not one.startswith("test_")]
    names = tuple(name for name in offered if not opened.why_refused(name))
    setup = TrialSetup(task, opened, names, {}).at_full_fidelity
    labels = labels_on(OPENERS[backend](task))
    parts = (1, SHARES, DRAWS, replace(task, tags=frozenset()), names, opened.fingerprint, labels)
    # Objectives of a user are functions, which may be others tomorrow.
    key = None if REGISTERED else key_of(*parts)
    return results_stem(opened.card, backend), key, partial(_limits, setup)


def _limits(setup: TrialSetup) -> dict[str, Any]:
    values, guess = _values(setup)
    found = {}
    for objective, column in zip(setup.objectives[1:], values.T[1:], strict=True):
        sign = 1 if objective.minimize else -1
        if np.ptp(column) > 0:
            at = np.ceil(np.multiply(SHARES, len(column))).astype(int) - 1
            ends = [_outward(end) for end in np.sort(sign * column)[at].tolist()]
            left = [_left(sign * column <= end, values[:, 0], guess) for end in ends]
            rows = [{"limit": sign * end, **one} for end, one in zip(ends, left, strict=True)]
            found[objective.name] = {"minimize": objective.minimize, "limits": rows}
    return {"configurations": len(values), "by_objective": found}


def _values(setup: TrialSetup) -> tuple[NDArray[np.float64], float]:
    """Return (configurations, objectives) values, and the loss of predicting frequencies."""
    labels = labels_on(OPENERS[setup.backend.name](setup.task))
    if setup.is_grid:
        columns = setup.columns_at(np.arange(setup.num_cells))
    else:
        drawn = asked_columns(setup.search_space, DRAWS, "limits")
        columns = setup.filled(drawn, len(next(iter(drawn.values()))))
    return values_of_queries(setup, columns), np.inf if labels is None else labels["val_loss"]


def _outward(end: float) -> float:
    """Return four digits of a limit on what is to be low, rounded to where as many keep it."""
    scale = 10.0 ** (3 - np.floor(np.log10(abs(end)))) if end else 1.0
    return float(f"{np.ceil(end * scale) / scale:.12g}")


def _left(kept: NDArray[np.bool_], losses: NDArray[np.float64], guess: float) -> dict[str, Any]:
    best = float(losses[kept].min()) if kept.any() else None
    return {"kept": int(kept.sum()), "best": best, "useless": best is None or best >= guess}


def rows_of(found: Mapping[str, Any]) -> list[list[str]]:
    """Return what `limits_of` found by objective as rows under `LIMIT_HEADS`."""
    rows = []
    for name, one in found["by_objective"].items():
        pairs = [(e["limit"], number(e["best"]) + "*" * e["useless"]) for e in one["limits"]]
        sign = "at most" if one["minimize"] else "at least"
        rows.append([f"{name} {sign}", *(w for end, best in pairs for w in (number(end), best))])
    return rows


def useless_limits(problems: Sequence[str], arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence per problem on which constraints leave nothing of use, if it is stored."""
    names = [one for name in problems for one in (suite(name) if name in SUITES else [name])]
    for name in names if arguments.get("constraints") else ():
        try:
            env_id = resolve_id(name)
            with closing(make_environment(env_id, arguments)) as env:
                setup = env.get_wrapper_attr("setup")
                if "DAC-" in env_id or setup.backend.name not in OPENERS:
                    continue
                words = _useless_words(setup.at_full_fidelity)
        except FedHPOError:  # what cannot be made, the run says itself
            continue
        if words:
            yield f"{env_id}: at full fidelity {words}; see `fedhpo-gym show {env_id}`"


def _useless_words(setup: TrialSetup) -> str:
    """Return how little the constraints leave; empty where they leave something of use."""
    values, guess = _values(setup)
    left = _left(setup.violations(values) == 0, values[:, 0], guess)
    if not left["useless"]:
        return ""
    if not left["kept"]:
        return f"none of {len(values):,} configurations keeps the constraints"
    return (
        f"{left['kept']:,} of {len(values):,} configurations keep the constraints, and the best of "
        f"them has a validation loss of {number(left['best'])}, no better than predicting the "
        "label frequencies"
    )


def verdicts_of(stored: StoredNumbers) -> dict[str, Any] | None:
    """Return figures and verdict by objective, as JSON data; None for a table."""
    if not isinstance(stored, Surrogate):
        return None
    held = held_on(stored.card)
    return {
        name: {"verdict": "offered" if one.passed else "refused", "figures": one.words}
        for name, one in held.items()
    }


def claim_words(stored: StoredNumbers) -> str | None:
    """Return what became of the best that a surrogate claims; None for a table."""
    if not isinstance(stored, Surrogate):
        return None
    claim = claim_on(stored.card)
    if claim is None:
        return "not trained"
    return f"{'kept' if claim.passed else 'MISSED'} ({claim.words}); the rule is that {CLAIM_RULE}"
