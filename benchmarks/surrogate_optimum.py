"""What surrogates claim for their best configuration, beside what its training reaches.

Of many predictions the best is also the luckiest. The optimum on the card of each surrogate is
trained under all its seeds. Beside it stands the best stored course of each seed where the
surrogate was fitted on a sample. Many configurations that tie at the lowest claim are a floor of
the model, not a fact of the problem: any search finds them.

    python benchmarks/surrogate_optimum.py --only "LR-CreditG-v1-*"

With `--record`, nothing is trained: what the reports in `results` say goes onto the cards of the
surrogates that claim the same, which `fedhpo-gym show` prints and judges.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from typing import Any

import measuring
import numpy as np

from fedhpo_gym.cli.surrogates import train_claimed
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fitting.verdicts import write_claim
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates import Surrogate, list_surrogates, open_surrogate
from fedhpo_gym.surrogates.surrogate import SUFFIX
from fedhpo_gym.tables import open_sample
from fedhpo_gym.tables.locate import find
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
        f"{train_claimed(surrogate):.3f}",
        "" if np.isnan(best) else f"{best:.3f}",
        f"{surrogate.card['label_frequencies']['val_loss']:.3f}",
        f"{100.0 * tied(surrogate):.1f} %",
    ]


def record(name: str, claimed: str, trained: str) -> str:
    """Write a claim and what it was trained to, both as reports say them, onto a card.

    Returns:
        What became of it, in words.
    """
    card = find(name, f"{SUFFIX}.json")
    if card is None:
        return f"{name}: not stored"
    if f"{open_surrogate(name).card['health']['optimum']['val_loss']:.3f}" != claimed:
        return f"{name}: claims something else now; train it again"
    claim = write_claim(card, float(trained))
    return f"{name}: {'keeps' if claim.passed else 'misses'} its claim ({claim.words})"


def recorded() -> list[str]:
    """Record every line of the reports in `results`, and return what became of each."""
    found = []
    for report in sorted(measuring.RESULTS.glob("surrogate_optimum*.md")):
        for line in report.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == len(HEADER) and cells[1].isdigit():
                found.append(record(cells[0], cells[2], cells[3]))
    return found


def main(argv: Sequence[str] | None = None) -> str:
    """Train the optima, print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="surrogates")
    parser.add_argument("--record", action="store_true", help="write reports onto cards")
    options: argparse.Namespace = parser.parse_args(argv)
    if options.record:
        words = "\n".join(recorded())
        print(words)
        return words
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
