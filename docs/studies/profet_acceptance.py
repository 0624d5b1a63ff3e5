"""Do generated tasks have the spread and the optima of real ones?

    python docs/studies/profet_acceptance.py --out DIR
    python docs/studies/profet_acceptance.py --family svm|fc_net|xgboost --data PATH --out DIR

For five draws of nine of Forrester's functions, a meta-model of the nine generates 100 more, and
300 others are held out. Of a family from files, some tasks are given and the others held out.
Finished fits are kept. The report is DIR/report.md. With `--quick`, small fits.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import profet_likeness
from pieces import claim, pieces
from profet_families import digest
from profet_likeness import READERS, Likeness
from profet_tasks import HIGHEST, forrester_parameters, forrester_values
from scipy.stats import ks_2samp

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.profet import ProfetModel, forrester
from studies import study_parser, table

GRID = np.linspace(0.0, 1.0, 401)
HELD_OUT = 300
WHAT = ("spread", "optimum", "where it is")


@dataclass(frozen=True)
class Study:
    """How many draws, and what models are fitted with."""

    draws: int = 5
    feature_steps: int = 3000
    burn_in: int = 30_000
    generated: int = 100


def measured(values: Floats) -> list[list[float]]:
    """Return spreads, optima and where they are, of (T, 401) functions."""
    where = GRID[values.argmin(axis=1)]
    return [np.ptp(values, axis=1).tolist(), values.min(axis=1).tolist(), where.tolist()]


def draw(study: Study, family: str, number: int) -> dict[str, list[list[float]]]:
    """Return what is measured of nine functions, of others, and of generated ones."""
    highest = HIGHEST[family]
    nine = forrester(9, number, highest=highest)
    how = {"feature_steps": study.feature_steps, "burn_in": study.burn_in}
    model = ProfetModel.fit(nine, samples=study.generated, seed=number, **how)
    generated = np.array([model.task(i).value(GRID[:, None]) for i in range(study.generated)])
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not there yet, and print the tables."""
    parser = study_parser(__doc__)
    parser.add_argument("--family", choices=READERS, help="of real tasks, instead of functions")
    parser.add_argument("--data", type=Path, help="where the files of the family are")
    options = parser.parse_args(arguments)
    if (options.family is None) != (options.data is None):
        parser.error("--family and --data belong together")
    text = (real_tasks if options.family else forrester_functions)(options)
    (options.out / "report.md").write_text(text, encoding="utf-8")
    print(text)


def forrester_functions(options: Namespace) -> str:
    """Return the table of Forrester's functions."""
    study = Study(1, 50, 200, 10) if options.quick else Study()
    claim(options.out, study)
    cells = [(family, number) for family in HIGHEST for number in range(study.draws)]
    paths = {cell: options.out / f"{cell[0]}-{cell[1]}.json" for cell in cells}
    done = pieces({paths[c]: partial(draw, study, *c) for c in cells}, options.workers)
    return report({cell: done[paths[cell]] for cell in cells})


def real_tasks(options: Namespace) -> str:
    """Return the tables of a family from files."""
    study = Likeness(options.family, digest(READERS[options.family](options.data)))
    if options.quick:
        study = replace(study, draws=1, generated=5, feature_steps=20, burn_in=50, widths=(8, 8))
    claim(options.out, study)
    paths = [options.out / f"{study.family}-{number}.json" for number in range(study.draws)]
    jobs = {
        path: partial(profet_likeness.draw, study, options.data, options.out, number)
        for number, path in enumerate(paths)
    }
    done = pieces(jobs, options.workers)
    return profet_likeness.report(study, [done[path] for path in paths])


if __name__ == "__main__":
    main()
