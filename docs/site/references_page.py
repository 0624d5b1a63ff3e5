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

Made by `python docs/site/references_page.py` from what `fedhpo-gym references` has computed;
`fedhpo-gym show ID` and `env.unwrapped.references` tell it of one id. Returns are means over test
instances:

- **random**: actions drawn uniformly; **default**: the middle of the action space;
- **static**: the best static action on train instances; **schedule**: the best of the stated
  schedules there, by name (`fedhpo_gym.agents.schedule.KINDS`): of random actions the best, and
  then neighbours of these;
- **hindsight**: the mean of the best sequences that an evolution finds on each instance, an
  estimate from below of what can be reached. It may use what no policy can know: which clients will
  be drawn, and how a small validation set errs;
- **headroom**: (hindsight - static) / (static - default), with a 95 % bootstrap interval over
  instances. Where the default is as good as the best static action, there is no such scale (–);
  where it is so in samples of the instances, the interval has no upper end (∞).
- **courses**: how many were played at most. What is slow is searched less.
"""
HEADS = (
    "id", "random", "default", "static", "schedule", "", "hindsight", "headroom", "95 %", "courses",
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
