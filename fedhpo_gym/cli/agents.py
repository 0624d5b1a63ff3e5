"""`fedhpo-gym agents`: who can act, and what each can do; all of it is read off the classes."""

from __future__ import annotations

from fedhpo_gym.agents import AGENTS, agent_class
from fedhpo_gym.agents.base import Agent
from fedhpo_gym.agents.multi_fidelity import LadderSearch
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.cli.console import say, say_table
from fedhpo_gym.cli.options import Word
from fedhpo_gym.core.errors import MissingDependencyError, unknown_name

HEADS = ("agent", "acts on", "chooses rounds", "objectives", "constraints", "several workers")
MANY = {"scalar": "one", "vector": "many", "any": "one or many"}


def main(word: Word = None) -> int:
    """Print a line per agent whose line holds a word, or of `module:Class`; 0."""
    rows, missing = [], []
    for name in (word,) if word and ":" in word else AGENTS:
        try:
            rows.append(_row(name, agent_class(name)))
        except MissingDependencyError as error:
            missing.append(f"{name}: {error}")
    if word is not None:
        rows = [row for row in rows if word in " ".join(row)]
        if not rows:
            raise unknown_name("agent", word, AGENTS)
    say_table(HEADS, rows)
    for words in missing:
        say(f"\nNot listed: {words}")
    return 0


def _row(name: str, kind: type[Agent]) -> tuple[str, ...]:
    chooses = issubclass(kind, LadderSearch) or kind.fidelity is not None
    searches = issubclass(kind, TrialSearch)
    hears = searches and getattr(kind, "takes_constraints", False)
    return (
        name,
        ", ".join(f"{process}s" for process in kind.acts_on),
        "always" if chooses else "where they are free",
        MANY[kind.rewards],
        "as such" if hears else "by penalties",
        "yes" if "trial" in kind.acts_on else "no",
    )
