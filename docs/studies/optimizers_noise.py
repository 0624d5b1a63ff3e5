"""What noise changes for the agents of `optimizers_study.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fedhpo_gym.analysis.comparison import REGRET, Comparison, compare_agents
from fedhpo_gym.records.incumbents import Study, Trajectory
from studies import table

MANY = ("CNN-FEMNIST", "LR-Twitter", "MF-MadeRatings")
"""Problems of so many clients that a hundredth of them evaluates."""
GROUPS = ("LR v0", "LR v1", "many clients")
NOISY = " with noise"


def group_of(line: Trajectory) -> str:
    """Return to which of `GROUPS` a run belongs."""
    name = id_of(line)
    if any(one in name for one in MANY):
        return "many clients"
    return f"LR {name[-2:]}"


def id_of(line: Trajectory) -> str:
    """Return the id of a run's problem."""
    return line.problem.split(" ")[0]


def noise_words(noisy: Sequence[Trajectory], calm: Iterable[Trajectory]) -> str:
    """Return ranks with noise and without on the same problems, and what noise costs."""
    ids = {id_of(line) for line in noisy}
    calm = [line for line in calm if id_of(line) in ids]
    present = {group_of(line) for line in calm}
    pairs = {
        name: (_judged(calm, name), _judged(noisy, name))
        for name in (*(one for one in GROUPS if one in present), "all")
    }
    together = [
        replace(line, problem=id_of(line), agent=f"{line.agent}{words}")
        for lines, words in ((calm, ""), (noisy, NOISY))
        for line in lines
    ]
    return _ranks(pairs) + "\n" + _cost(pairs["all"][1].order, _compared(together))


def _judged(lines: Iterable[Trajectory], name: str) -> Comparison:
    return _compared(line for line in lines if name in (group_of(line), "all"))


def _compared(lines: Iterable[Trajectory]) -> Comparison:
    (study,) = Study.whole(lines)
    return compare_agents(study, REGRET)


def _ranks(pairs: Mapping[str, tuple[Comparison, Comparison]]) -> str:
    """Return mean ranks without and with noise."""
    rows = []
    for agent in pairs["all"][1].order:
        ranks = [[one.numbers[agent].rank for one in pair] for pair in pairs.values()]
        rows.append([agent, *(f"{calm:.2f} → {noisy:.2f}" for calm, noisy in ranks)])
    tested = [[one.means.friedman.p_value for one in pair] for pair in pairs.values()]
    rows.append(["Friedman, p", *(f"{calm:.2g} → {noisy:.2g}" for calm, noisy in tested)])
    heads = [f"{name} ({len(pair[0].study.problems)})" for name, pair in pairs.items()]
    return table(["mean rank without → with noise", *heads], rows)


def _cost(agents: Sequence[str], together: Comparison) -> str:
    """Return relative regret without and with noise."""
    rows = []
    for agent in agents:
        row = [agent]
        for name in (agent, f"{agent}{NOISY}"):
            own = together.numbers[name]
            ends = own.iqm_interval
            words = "" if ends is None else " ({:.3f} to {:.3f})".format(*ends)
            row.append(f"{own.iqm:.3f}{words}")
        rows.append(row)
    return table(["IQM of final regret (95 %)", "without noise", "with noise"], rows)
