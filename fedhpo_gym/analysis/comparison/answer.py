"""The answer in sentences: who wins, by how much, how sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedhpo_gym.analysis.comparison.compare import Comparison, Pair
from fedhpo_gym.analysis.stats import CriticalDifference
from fedhpo_gym.typed import checked_types


@checked_types
def answer(found: Comparison) -> list[str]:
    """Return paragraphs, as plain text: who wins, by how much, how sure, and what is not alike."""
    return [verdict(found), _how_much(found), certainty(found), *_unlike(found)]


@checked_types
def verdict(found: Comparison) -> str:
    """Return one sentence: who is best, or between whom nothing decides, and who is worse.

    Problems are the blocks of the test, and where there are too few of them for any result, runs
    are; the sentence says so.
    """
    count = len(found.study.problems)
    where = f"over {count} problems" if count > 1 else f"on {found.study.problems[0]}"
    if not _floor(found, count):
        return f"{_told(found, found.means, runs=False)} {where}."
    why = f"with {counted(count, 'problem')} no test can reach 0.05"
    if found.runs is None or _floor(found, found.runs.blocks):
        return f"Undecided between {_list(found.order)}: {why}, nor with so few runs."
    on = "their runs alone" if count > 1 else f"the runs {where} alone"
    words = _told(found, found.runs, runs=True)
    return f"Nothing is decided: {why}. By {on}: {words[0].lower()}{words[1:]}."


def _told(found: Comparison, difference: CriticalDifference, *, runs: bool) -> str:
    first, *others = found.order
    p_values = {
        pair.agents[1]: (pair.p_runs if runs else pair.p_means)
        for pair in found.pairs
        if pair.agents[0] == first
    }
    alike = _not_beaten(first, found.pairs, difference, runs=runs)
    worse = [f"{a} ({shown_p(p_values[a] or 0.0)})" for a in others if a not in alike]
    behind = f"{_list(worse)} {'is' if len(worse) == 1 else 'are'} worse" if worse else ""
    if not alike:
        return f"Best is {first}; {behind}"
    return f"Undecided between {_list([first, *alike])}{'; ' * bool(behind)}{behind}"


def _floor(found: Comparison, blocks: int) -> bool:
    """Return whether Wilcoxon's test of so many blocks can never reach its level."""
    return len(found.pairs) * 2.0 ** (1 - blocks) >= found.means.alpha


def unlike_fidelities(found: Comparison) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many runs of each agent have no trial of full fidelity, and end below others."""
    study, without, below = found.study, dict[str, int](), dict[str, int]()
    for problem in study.problems:
        lines = [line for agent in study.agents for line in study.of(problem, agent)]
        levels = [
            float(line.level[-1]) for line in lines if line.level is not None and len(line.level)
        ]
        for line in lines:
            if not len(line.value):
                without[line.agent] = without.get(line.agent, 0) + 1
            elif line.level is not None and line.level[-1] < max(levels):
                below[line.agent] = below.get(line.agent, 0) + 1
    return without, below


def _unlike(found: Comparison) -> list[str]:
    """Say where final incumbents are of unequal fidelities: their losses are of unlike things."""
    without, below = unlike_fidelities(found)
    words = []
    if without:
        words.append(
            f"Mind that {_counts(without)} reached no trial of full fidelity; these have the last "
            "rank and a loss of infinity."
        )
    if below:
        words.append(
            f"Mind that {_counts(below)} ended below the highest fidelity of others on the same "
            "problem: their losses are of courses that were trained for less. With `--rule "
            "full_fidelity`, only trials of the highest fidelity count."
        )
    return words


def _counts(runs: Mapping[str, int]) -> str:
    return _list([f"{counted(number, 'run')} of {agent}" for agent, number in runs.items()])


def _how_much(found: Comparison) -> str:
    first, second = found.order[:2]
    pair = found.pairs[0]
    iqm = " against ".join(f"{found.numbers[agent].iqm:.2g}" for agent in (first, second))
    low, high = pair.interval
    return (
        f"By how much: on means over seeds, {first} beats {second} on {pair.problems.wins} of "
        f"{_problems(found)} and ties on {pair.problems.ties}. A run of it is better than one of "
        f"{second} on a random problem with probability {pair.improvement:.2f} (95 % interval "
        f"{low:.2f} to {high:.2f}). Interquartile means of normalised regret, of which "
        f"{found.scale}: {iqm}."
    )


@checked_types
def certainty(found: Comparison) -> str:
    """Return a paragraph on the tests: what they give, and what they can give at best."""
    first = found.order[0]
    alike = {
        "on means over seeds": _not_beaten(first, found.pairs, found.means, runs=False),
    }
    tests = [f"on means over seeds {shown_p(found.means.friedman.p_value)}"]
    if found.runs is not None:
        alike["on all runs"] = _not_beaten(first, found.pairs, found.runs, runs=True)
        tests.append(f"on all runs {shown_p(found.runs.friedman.p_value)}")
    words = []
    for kind, names in alike.items():
        beaten = [agent for agent in found.order[1:] if agent not in names]
        if not beaten:
            words.append(f"{kind} {first} can be told from no other agent")
        elif not names:
            words.append(f"{kind} {first} differs from every other agent")
        else:
            words.append(f"{kind} {first} differs from {_list(beaten)}, not from {_list(names)}")
    note = (
        f" With {_problems(found)} and {counted(len(found.pairs), 'pair')}, this test on means "
        "can never reach 0.05."
        if _floor(found, len(found.study.problems))
        else ""
    )
    return (
        f"How sure: Friedman's test that all agents are alike gives {' and '.join(tests)}. By "
        f"Wilcoxon's test with Holm's correction at 0.05, {'; '.join(words)}.{note} What is said "
        "on all runs holds for these problems only: runs of one problem are not new problems."
    )


def _not_beaten(
    first: str, pairs: Sequence[Pair], difference: CriticalDifference, *, runs: bool
) -> list[str]:
    found = []
    for pair in pairs:
        if pair.agents[0] == first:
            p_value = pair.p_runs if runs else pair.p_means
            alike = p_value is None or p_value >= difference.alpha
            if alike or difference.friedman.p_value >= difference.alpha:
                found.append(pair.agents[1])
    return found


def _problems(found: Comparison) -> str:
    return counted(len(found.study.problems), "problem")


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@checked_types
def shown_p(value: float) -> str:
    """Return a p-value in words."""
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.4f}"


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
