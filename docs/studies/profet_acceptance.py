"""Do generated Forrester functions have the spread and the optima of real ones?

    python docs/studies/profet_acceptance.py --out DIR

For five draws of nine functions, a meta-model of the nine generates 100 more, and 300 others are
held out. Finished fits are kept. The report is DIR/report.md. With `--quick`, two small fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pieces import claim, pieces
from profet_tasks import HIGHEST, forrester_parameters, forrester_values
from scipy.stats import ks_2samp

from fedhpo_gym.profet import ProfetModel, forrester
from fedhpo_gym.profet.families import Array
from studies import study_parser, table

GRID = np.linspace(0.0, 1.0, 401)
HELD_OUT, GENERATED = 300, 100
WHAT = ("spread", "optimum", "where it is")


@dataclass(frozen=True)
class Study:
    """How many draws, and what models are fitted with."""

    draws: int = 5
    feature_steps: int = 3000
    burn_in: int = 30_000


def measured(values: Array) -> list[list[float]]:
    """Return spreads, optima and where they are, of (T, 401) functions."""
    where = GRID[values.argmin(axis=1)]
    return [np.ptp(values, axis=1).tolist(), values.min(axis=1).tolist(), where.tolist()]


def draw(study: Study, family: str, number: int) -> dict[str, list[list[float]]]:
    """Return what is measured of nine functions, of others, and of generated ones."""
    highest = HIGHEST[family]
    nine = forrester(9, number, highest=highest)
    how = {"feature_steps": study.feature_steps, "burn_in": study.burn_in}
    model = ProfetModel.fit(nine, samples=GENERATED, seed=number, **how)
    generated = np.array([model.task(i).value(GRID[:, None]) for i in range(GENERATED)])
    others = forrester_parameters(HELD_OUT, 1000 + number, highest)
    of_nine = forrester_values(forrester_parameters(9, number, highest), GRID)
    return {
        "nine": measured(of_nine),
        "held out": measured(forrester_values(others, GRID)),
        "generated": measured(generated),
    }


def report(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> str:
    """Return one table."""
    rows = []
    for (family, number), of in found.items():
        for i, what in enumerate(WHAT):
            cells = [f"{np.median(of[n][i]):.2f}" for n in ("held out", "nine", "generated")]
            for name in ("nine", "generated"):
                test = ks_2samp(of["held out"][i], of[name][i])
                cells.append(f"{test.statistic:.2f} ({test.pvalue:.2g})")
            rows.append([family, str(number), what, *cells])
    heads = ["functions", "draw", "", "median, held out", "nine", "generated"]
    return table([*heads, "KS of the nine (p)", "KS of generated ones (p)"], rows)


def main() -> None:
    """Run what is not there yet, and print the table."""
    options = study_parser(__doc__).parse_args()
    study = Study(1, 50, 200) if options.quick else Study()
    claim(options.out, study)
    cells = [(family, number) for family in HIGHEST for number in range(study.draws)]
    paths = {cell: Path(options.out) / f"{cell[0]}-{cell[1]}.json" for cell in cells}
    done = pieces({paths[c]: partial(draw, study, *c) for c in cells}, options.workers)
    text = report({cell: done[paths[cell]] for cell in cells})
    (Path(options.out) / "report.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
