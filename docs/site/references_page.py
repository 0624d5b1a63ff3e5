"""Writes `docs/references.md`, what is reached in round environments, from what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.stored.references import PATH, References, read
from fedhpo_gym.studies.references import SearchBudget
from fedhpo_gym.studies.suites import suite

PAGE = Path(__file__).resolve().parents[1] / "references.md"
TITLE = """\
# References of round environments

This page shows what can be reached in round environments (`FedHPO-DAC-*`). Use it to judge the
return of a policy, and to choose environments in which schedules can be better than constants. The
returns were computed by `fedhpo-gym references`; `python docs/site/references_page.py` writes this
page. `fedhpo-gym show ID` and `env.unwrapped.references` give the returns of one id.

Returns are means over test instances:

- **random**: uniformly drawn actions.
- **default**: the middle of the action space.
- **static**: the static action that is best on train instances.
- **schedule** and **its return**: the stated schedule (`fedhpo_gym.agents.schedule.KINDS`) that is
  best on train instances. It begins with the best of random actions and of their neighbours.
- **hindsight**: the mean of the best sequences that an evolutionary search found on each instance.
  It is a lower bound of what can be reached. The search can use information that no policy has:
  which clients will be sampled, and the errors of a small validation set.
- **headroom**: (hindsight - static) / (static - default), with a 95 % bootstrap interval over
  instances. If the default is as good as the best static action, there is no such scale (–). If
  this is the case in some bootstrap samples, the interval has no upper end (∞).
- **training runs**: the largest number of them for this id. Slow problems are searched less.
"""
HEADS = (
    "id", "random", "default", "static", "schedule", "its return", "hindsight", "headroom", "95 %",
    "training runs",
)  # fmt: skip


def page() -> str:
    """Return the page."""
    known = read(PATH)
    chosen = [known[one] for one in suite("dac") if one in known]
    others = [one for key, one in known.items() if key not in suite("dac")]
    parts = [TITLE, "\n## The suite `dac`\n\n", _table(chosen)]
    if others:
        parts += ["\n## Other ids\n\n", _table(others)]
    return "".join(parts)


def _table(known: Sequence[References]) -> str:
    return markdown_table(HEADS, map(_row, known), numbers=True) + "\n"


def _row(one: References) -> tuple[str, ...]:
    mean, low, high = one.headroom
    returns = {name: f"{np.mean(values):.3f}" for name, values in one.returns.items()}
    best = one.best_schedule or ""
    scaled = np.isfinite([mean, low]).all()
    interval = f"{low:.2f} to {high:.2f}".replace("inf", "∞") if scaled else "–"
    return (
        one.id.removeprefix("FedHPO-DAC-"),
        *(returns[name] for name in ("random", "default", "static")),
        best,
        returns.get(best, "–"),
        returns["hindsight"],
        f"{mean:.2f}" if scaled else "–",
        interval,
        f"{SearchBudget(**one.effort).episodes:,}",
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
