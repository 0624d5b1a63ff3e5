"""The health of stored numbers in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedhpo_gym.space import Value
from fedhpo_gym.stored.health import NEAR, SURVIVES


def number(value: Value) -> str:
    """Return a number of up to four digits as a person writes it; a word as it is."""
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
    yield from _noise(health)
    yield from _ranks(health["kendall"])
    if health["importance"]:
        yield from _importance(health["importance"])
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


def _noise(health: Mapping[str, Any]) -> Iterator[str]:
    noise, spread = health["seed_noise"], health["spread"]
    if noise is not None and spread:
        yield (
            f"In the logarithm of the loss, seeds differ by {number(noise)} and configurations by "
            f"{number(spread)}: noise over spread is {number(noise / spread)}."
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


def _importance(importance: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    ranked = sorted(importance.items(), key=lambda item: -item[1]["total"])
    words = (f"{name} {percent(s['alone'])} ({percent(s['total'])})" for name, s in ranked)
    yield f"Share of the variance, alone (with interactions): {', '.join(words)}."


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
