"""What surrogates claim for their best configuration, beside what its training reaches.

Of many predictions the best is also the luckiest. The optimum on the card of each surrogate is
trained under all its seeds. Beside it stands the best stored course of each seed where the
surrogate was fitted on a sample. Many configurations that tie at the lowest claim are a floor of
the model, not a fact of the problem: any search finds them.

    python benchmarks/surrogate_optimum.py --only "LR-CreditG-v1-*"
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from typing import Any

import measuring
import numpy as np

from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates import Surrogate, list_surrogates, open_surrogate
from fedhpo_gym.tables import open_sample
from fedhpo_gym.tasks import task_of

HEADER = (
    "surrogate", "round", "claimed", "trained", "best courses", "label frequencies", "tied",
)  # fmt: skip
DRAWN = 4000
NEAR = 1e-5
METHOD = (
    "Validation losses, means over seeds. *Claimed* and *trained* are of the optimum on the card; "
    "*best courses* is the lowest loss that any stored course of a seed reached, which need not be "
    f"of one configuration. *Tied*: of {DRAWN} configurations drawn at random, the share that has "
    "the lowest loss of all at full fidelity, for the seed where it is largest."
)


def best_courses(surrogate: Surrogate) -> float:
    """Return the mean over seeds of the lowest loss of a stored course; NaN without a sample."""
    if surrogate.card.get("fitted_on") != "sample":
        return float("nan")
    sample = open_sample(surrogate.identity)
    losses, seeds = sample.objective("val", "loss"), sample.codes("seed")
    return float(np.mean([np.nanmin(losses[seeds == at]) for at in range(len(sample.seeds))]))


def trained(surrogate: Surrogate, optimum: dict[str, Any]) -> float:
    """Return the mean over seeds of the loss that training the optimum reaches."""
    task, losses = task_of(surrogate.identity), []
    for seed in surrogate.seeds:
        backend = Raw(task, seed)
        found = backend.evaluate(optimum["configuration"], fidelity_of(optimum))
        losses.append(found.mean("val", "loss"))
        print(f"{surrogate.name}, seed {seed}: {losses[-1]:.4f}", flush=True)
    return float(np.mean(losses))


def tied(surrogate: Surrogate) -> float:
    """Return the share of configurations that have the lowest loss of all, most of any seed."""
    space, fidelities = task_of(surrogate.identity).space, surrogate.fidelity_space
    rng = stream(0, "surrogate_optimum")
    drawn = [space.sample(rng) for _ in range(DRAWN)]
    query = {name: np.array([one[name] for one in drawn]) for name in space.names}
    query |= {name: np.full(DRAWN, fidelities[name].high) for name in fidelities.names}
    shares = []
    for seed in surrogate.seeds:
        losses = surrogate.look_up(query, (seed,)).mean("val", "loss")
        shares.append(float(np.mean(losses <= (1.0 + NEAR) * losses.min())))
    return max(shares)


def fidelity_of(optimum: dict[str, Any]) -> Fidelity:
    """Return the fidelity of an optimum on a card."""
    return Fidelity(int(optimum["round"]), float(optimum["client_sample_rate"]))


def row(surrogate: Surrogate) -> list[str]:
    """Return one line of the report."""
    optimum = surrogate.card["health"]["optimum"]
    fidelity = fidelity_of(optimum)
    claim = surrogate.evaluate(optimum["configuration"], fidelity, surrogate.seeds)
    best = best_courses(surrogate)
    return [
        surrogate.name,
        str(fidelity.round),
        f"{claim.mean('val', 'loss'):.3f}",
        f"{trained(surrogate, optimum):.3f}",
        "" if np.isnan(best) else f"{best:.3f}",
        f"{surrogate.card['label_frequencies']['val_loss']:.3f}",
        f"{100.0 * tied(surrogate):.1f} %",
    ]


def main(argv: Sequence[str] | None = None) -> str:
    """Train the optima, print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="surrogates")
    options: argparse.Namespace = parser.parse_args(argv)
    load = measuring.load_average()
    names = [
        name
        for name in list_surrogates()
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)
    ]
    rows = [row(open_surrogate(name)) for name in names]
    only = " ".join(f'"{pattern}"' for pattern in options.only)
    command = ["python", "benchmarks/surrogate_optimum.py", f"--only {only}"]
    sections = [METHOD, measuring.table(HEADER, rows)]
    return measuring.write_report(options.out, "Claimed optima", command, load, sections)


if __name__ == "__main__":
    main()
