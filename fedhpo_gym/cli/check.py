"""`fedhpo-gym check`: what the checkers of other libraries say of environment ids."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import filter as matching
from importlib.metadata import PackageNotFoundError, version

from fedhpo_gym.cli.console import say
from fedhpo_gym.errors import needing
from fedhpo_gym.studies.environments import resolve_id
from fedhpo_gym.tasks import TASKS


def main(options: argparse.Namespace) -> int:
    """Print a Markdown table, a line per id as it is checked; 1 when a checker refused an id."""
    with needing("the kit of checks", "pytest", "check", "pytest"):
        from fedhpo_gym.testing import checks
    everything = [name for task in TASKS.values() for name in checks.ids(task)]
    say(f"| id | {' | '.join(f'{name} {_version(name)}' for name in checks.CHECKS)} | CPU s |")
    say(f"|---{'|---' * len(checks.CHECKS)}|---|")
    found: list[checks.Verdict] = []
    for env_id in chosen(options.ids, everything):
        verdicts = {verdict.check: verdict for verdict in checks.check_id(env_id)}
        cells = [verdicts[name].outcome if name in verdicts else "–" for name in checks.CHECKS]
        seconds = sum(verdict.cpu_s for verdict in verdicts.values())
        say(f"| {env_id} | {' | '.join(cells)} | {seconds:.1f} |")
        found += verdicts.values()
    for verdict in found:
        if verdict.words:
            say(f"\n{verdict.env_id}, {verdict.check}: {verdict.outcome}: {verdict.words}")
    outcomes = [verdict.outcome for verdict in found]
    counts = ", ".join(
        f"{outcomes.count(name)} {name}" for name in (checks.PASSED, checks.FAILED, checks.SKIPPED)
    )
    say(f"\n{len({verdict.env_id for verdict in found})} ids: {counts}")
    return 1 if checks.FAILED in outcomes else 0


def chosen(words: Sequence[str], everything: Sequence[str]) -> list[str]:
    """Return the ids that words name: an id, a pattern like `*DAC*`, or `all`.

    Raises:
        UnknownNameError: a word names none.
    """
    found: list[str] = []
    for word in words:
        found += matching(everything, "*" if word == "all" else word) or [resolve_id(word)]
    return list(dict.fromkeys(found))


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "(missing)"
