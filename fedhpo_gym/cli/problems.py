"""Descriptions of stored problems: health in sentences, and the effect of limits.

`fedhpo-gym show`, `health`, `difficulty` and pages of the site use them. Health is a mapping on the
card of a table, pool or surrogate, computed by `fedhpo_gym.stored.health`. The effect of limits is
computed once for the default arguments of an id and then read from a file (`recall`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import make_backend
from fedhpo_gym.cli.listing import answering_tasks, arguments_of
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


def format_value(value: Value | None) -> str:
    """Return a number with up to four digits; a string as it is."""
    if value is None:
        return "not known"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_share(share: float) -> str:
    """Return a share in per cent; a small one is never rounded to 0."""
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.005 else "below 1 %"


def health_words(health: Mapping[str, Any], labels: Mapping[str, float] | None) -> Iterator[str]:
    """Yield sentences on the health of stored numbers."""
    yield from _optimum_sentences(health)
    yield _label_sentence(health, labels)
    losing, near = health["losing"], health["near_optimum"]
    if losing is not None:
        yield (
            f"{format_share(losing['cells'])} of all cells lose to the label frequencies, at full "
            f"fidelity {format_share(losing['full_fidelity'])} of the configurations."
        )
    yield (
        f"{format_share(near['full_fidelity'])} of the configurations are within "
        f"{format_share(NEAR)} of the optimum at full fidelity."
    )
    if health["diverging"] is not None:
        share = format_share(health["diverging"]["full_fidelity"])
        yield f"{share} of the configurations diverge under some seed."
    noise, spread = health["seed_noise"], health["spread"]
    if noise is not None and spread:
        yield (
            f"In the logarithm of the loss, seeds differ by {format_value(noise)} and "
            f"configurations by {format_value(spread)}: noise over spread is "
            f"{format_value(noise / spread)}."
        )
    yield from _rank_sentences(health["kendall"])
    if health["importance"]:
        ranked = sorted(health["importance"].items(), key=lambda item: -item[1]["total"])
        shares = (
            f"{name} {format_share(s['alone'])} ({format_share(s['total'])})" for name, s in ranked
        )
        yield f"Share of the variance, alone (with interactions): {', '.join(shares)}."
    for figure, reason in health["missing"].items():
        yield f"No figure for {figure.replace('_', ' ')}: {reason}."


def _optimum_sentences(health: Mapping[str, Any]) -> Iterator[str]:
    best, lattice = health["optimum"], health["lattice"]
    configuration = ", ".join(f"{k} {format_value(v)}" for k, v in best["configuration"].items())
    kind = "Exact optimum" if lattice["exact"] else "Best of the lattice"
    yield (
        f"{kind}: validation loss {format_value(best['val_loss'])} (test "
        f"{format_value(best['test_loss'])}, test accuracy {format_value(best['test_accuracy'])}) "
        f"at {configuration}; round {best['round']}, client sample rate "
        f"{format_value(best['client_sample_rate'])}."
    )
    edges = [f"{name} ({end})" for name, end in health["edges"].items()]
    yield f"It lies at an edge of {', '.join(edges)}." if edges else "It lies at no edge."
    if not lattice["exact"]:
        yield (
            f"The lattice is a grid of {lattice['configurations']:,} configurations, with "
            f"{lattice['draws']:,} drawn ones in search of the optimum."
        )


def _label_sentence(health: Mapping[str, Any], labels: Mapping[str, float] | None) -> str:
    if labels is None:
        return "What predicting the label frequencies reaches is not known."
    wins = health["optimum"]["val_loss"] < labels["val_loss"]
    return (
        f"Predicting the label frequencies reaches {format_value(labels['val_loss'])} (test "
        f"accuracy {format_value(labels['test_accuracy'])}): the optimum "
        f"{'beats' if wins else 'LOSES TO'} it."
    )


def _rank_sentences(kendall: Mapping[str, Any]) -> Iterator[str]:
    names = {"rounds": "rounds", "client_sample_rates": "client sample rates"}
    parts = [
        f"{format_value(kendall[key]['tau'])} between {label} "
        f"{' and '.join(map(format_value, values))}"
        for key, label in names.items()
        if kendall[key]["tau"] is not None and len(set(values := kendall[key]["of"])) > 1
    ]
    if kendall["seeds"]["tau"] is not None:
        parts.append(f"{format_value(kendall['seeds']['tau'])} between seeds")
    if parts:
        yield f"Kendall's τ of configurations: {', '.join(parts)}."


def survival_words(survival: Mapping[str, Any]) -> str:
    """Return the result of `fedhpo_gym.cli.health.survival_of` as text."""
    best, seeds = survival["optimum"], survival["seeds"]
    seed_text = "" if seeds is None else f" (between seeds: {seeds:.3g})"
    return (
        f"With initial weights moved by {survival['perturbation']:g}, {survival['draws']} times, "
        f"{survival['surviving']} of the {survival['cells']} best configurations train to within "
        f"{SURVIVES:.0%} of the loss that is stored. The optimum has {best['stored']:.4g} and "
        f"trains to {best['lowest']:.4g} to {best['highest']:.4g} (unmoved {best['trained']:.4g}); "
        f"the logarithm of the loss moves by {survival['moved']:.3g}{seed_text}."
    )


WIDTH = 100


def name_of(stored: StoredNumbers) -> str:
    """Return the ids that use stored numbers, without their common beginning."""
    versions = ", ".join(f"-v{task.version}" for task in answering_tasks(stored))
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
"""Shares of configurations that keep the listed limits."""
DRAWS: Final = 512
"""Random configurations of a surrogate."""
LIMIT_HEADS: Final = (
    "limit",
    *(word for one in SHARES for word in (f"{format_share(one)} keep", "best")),
)


def limits_of(task: Task, backend: str) -> dict[str, Any]:
    """Return limits of each objective that varies, except on the test split, as JSON data."""
    return recall(*limits_request(task, backend))


def limits_request(task: Task, backend: str) -> tuple[str, str | None, Callable[[], Any]]:
    """Return the arguments of `recall` for `limits_of`: name of the numbers, key and function."""
    backend_ = make_backend(backend, task)
    candidates = [key for key in task.objectives if key != ENERGY and not key.startswith("test_")]
    names = tuple(name for name in candidates if not backend_.why_refused(name))
    setup = TrialSetup(task, backend_, names, {}).at_full_fidelity
    labels = labels_on(OPENERS[backend](task))
    inputs = (
        1,
        SHARES,
        DRAWS,
        replace(task, tags=frozenset()),
        names,
        backend_.fingerprint,
        labels,
    )
    # Objectives of a user are functions, which may be others tomorrow.
    key = None if REGISTERED else key_of(*inputs)
    return results_stem(backend_.card, backend), key, partial(_compute_limits, setup)


def _compute_limits(setup: TrialSetup) -> dict[str, Any]:
    values, guess = _stored_values(setup)
    by_objective = {}
    for objective, column in zip(setup.objectives[1:], values.T[1:], strict=True):
        sign = 1 if objective.minimize else -1
        if np.ptp(column) > 0:
            indices = np.ceil(np.multiply(SHARES, len(column))).astype(int) - 1
            limits = [_round_outward(limit) for limit in np.sort(sign * column)[indices].tolist()]
            outcomes = [
                _count_feasible(sign * column <= limit, values[:, 0], guess) for limit in limits
            ]
            rows = [
                {"limit": sign * limit, **outcome}
                for limit, outcome in zip(limits, outcomes, strict=True)
            ]
            by_objective[objective.name] = {"minimize": objective.minimize, "limits": rows}
    return {"configurations": len(values), "by_objective": by_objective}


def _stored_values(setup: TrialSetup) -> tuple[NDArray[np.float64], float]:
    """Return (configurations, objectives) values, and the loss of predicting frequencies."""
    labels = labels_on(OPENERS[setup.backend.name](setup.task))
    if setup.is_grid:
        columns = setup.columns_at(np.arange(setup.num_cells))
    else:
        draws = asked_columns(setup.search_space, DRAWS, "limits")
        columns = setup.filled(draws, len(next(iter(draws.values()))))
    return values_of_queries(setup, columns), np.inf if labels is None else labels["val_loss"]


def _round_outward(limit: float) -> float:
    """Return four digits of an upper limit, rounded up so that no fewer configurations keep it."""
    scale = 10.0 ** (3 - np.floor(np.log10(abs(limit)))) if limit else 1.0
    return float(f"{np.ceil(limit * scale) / scale:.12g}")


def _count_feasible(
    is_feasible: NDArray[np.bool_], losses: NDArray[np.float64], guess: float
) -> dict[str, Any]:
    best = float(losses[is_feasible].min()) if is_feasible.any() else None
    return {"kept": int(is_feasible.sum()), "best": best, "useless": best is None or best >= guess}


def limit_rows(limits: Mapping[str, Any]) -> list[list[str]]:
    """Return the result of `limits_of` as rows under `LIMIT_HEADS`."""
    rows = []
    for name, entry in limits["by_objective"].items():
        pairs = [
            (e["limit"], format_value(e["best"]) + "*" * e["useless"]) for e in entry["limits"]
        ]
        sign = "at most" if entry["minimize"] else "at least"
        rows.append(
            [f"{name} {sign}", *(w for end, best in pairs for w in (format_value(end), best))]
        )
    return rows


def useless_limits(problems: Sequence[str], arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning per stored problem on which constraints leave no useful configuration."""
    names = [
        problem for name in problems for problem in (suite(name) if name in SUITES else [name])
    ]
    for name in names if arguments.get("constraints") else ():
        try:
            env_id = resolve_id(name)
            with closing(make_environment(env_id, arguments)) as env:
                setup = env.get_wrapper_attr("setup")
                if "DAC-" in env_id or setup.backend.name not in OPENERS:
                    continue
                message = _useless_words(setup.at_full_fidelity)
        except FedHPOError:  # the run itself will report this error
            continue
        if message:
            yield f"{env_id}: at full fidelity {message}; see `fedhpo-gym show {env_id}`"


def _useless_words(setup: TrialSetup) -> str:
    """Return a warning if the constraints leave no useful configuration, else an empty string."""
    values, guess = _stored_values(setup)
    outcome = _count_feasible(setup.violations(values) == 0, values[:, 0], guess)
    if not outcome["useless"]:
        return ""
    if not outcome["kept"]:
        return f"none of {len(values):,} configurations keeps the constraints"
    return (
        f"{outcome['kept']:,} of {len(values):,} configurations keep the constraints, and the "
        f"best of them has a validation loss of {format_value(outcome['best'])}, no better than "
        "predicting the label frequencies"
    )


def verdicts_of(stored: StoredNumbers) -> dict[str, Any] | None:
    """Return figures and verdict by objective, as JSON data; None for a table."""
    if not isinstance(stored, Surrogate):
        return None
    held_out = held_on(stored.card)
    return {
        name: {"verdict": "offered" if verdict.passed else "refused", "figures": verdict.words}
        for name, verdict in held_out.items()
    }


def claim_words(stored: StoredNumbers) -> str | None:
    """Return the outcome of training the claimed optimum of a surrogate; None for a table."""
    if not isinstance(stored, Surrogate):
        return None
    claim = claim_on(stored.card)
    if claim is None:
        return "not trained"
    return f"{'kept' if claim.passed else 'MISSED'} ({claim.words}); the rule is that {CLAIM_RULE}"
