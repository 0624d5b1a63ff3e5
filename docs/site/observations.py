"""Says what every entry of observations and actions means, as the environments' docstrings do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import gymnasium as gym

from fedhpo_gym.building.meta_data import FEATURES
from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.envs.round import observation as of_rounds
from fedhpo_gym.envs.round.arguments import RoundArguments
from fedhpo_gym.envs.round.env import RoundEnv
from fedhpo_gym.envs.round.settings import Controls
from fedhpo_gym.envs.trial import observation as of_trials
from fedhpo_gym.envs.trial.env import TrialEnv
from fedhpo_gym.objectives import FAIRNESS_NAMES, PRIVACY_NAMES
from fedhpo_gym.tasks import TRIALS_ONLY, Task
from fedhpo_gym.wrappers.budget import with_remaining

ADDED = {"remaining_budget": "share of the simulated seconds that remains"}
"""What a wrapper adds to the observations of trials."""
TABLE = re.compile(
    r"^(=+[ =]+)\n(?:key [^\n]*\n=[ =]+\n)?(.*?)\n^=[ =]+$", re.MULTILINE | re.DOTALL
)
NAMES = {
    "FAIRNESS_NAMES": FAIRNESS_NAMES,
    "PRIVACY_NAMES": PRIVACY_NAMES,
    "FEATURES": FEATURES,
    "MAX_LOSS": ["10"],
}
"""What names of lists in these docstrings stand for."""
HEADS = ("entry", "meaning", "shape", "lowest", "highest")


def entries(task: Task) -> Iterator[str]:
    """Yield the parts of a page that tell actions and observations of a task's ids."""
    names = [*task.space.names, *task.asked_fidelity_space().names]
    yield "## Action and observation"
    yield (
        f"`{task.id}`: an action is a Box [-1, 1] of {len(names)} numbers: "
        f"{', '.join(f'`{name}`' for name in names)}. A coordinate is a position on the scale of "
        "its hyperparameter. The wrapper `NamedAction` accepts natural units. Fidelities that the "
        "argument `fidelity` fixes are left out. The reward is one number, or on `MO-` ids a score "
        "per objective. Higher is better."
    )
    size, ranks = len(names), task.objectives["val_loss"]
    yield entry_table(
        with_remaining(of_trials.trial_observation_space(task, size, ranks)),
        meanings(TrialEnv) | ADDED,
    )
    if task.name.startswith(TRIALS_ONLY):
        return
    controls, history = Controls(task), RoundArguments(task=task.key).history
    yield (
        f"`{task.round_id}`: an action is a Box [-1, 1] of {controls.size} numbers: "
        f"{', '.join(f'`{name}`' for name in controls.space.names)}. A step trains some rounds "
        f"with them. The observation shows the last {history} evaluations."
    )
    yield entry_table(
        of_rounds.round_observation_space(history, controls.size, None), meanings(RoundEnv)
    )


def meanings(kind: type) -> Mapping[str, str]:
    """Return the meaning of each entry, read off the tables in the docstring of an environment."""
    text = inspect.getdoc(kind) or ""
    found: dict[str, str] = {}
    for rule, rows in TABLE.findall(text):
        last = len(rule.rstrip()) - len(rule.split()[-1])
        name = ""
        for line in rows.splitlines():
            name = line.split()[0].strip("`") if line[:1] == "`" else name
            found[name] = f"{found.get(name, '')} {line[last:].strip()}".strip()
    return found


def entry_table(space: gym.spaces.Dict, known: Mapping[str, str]) -> str:
    """Return what each entry of observations means, with its shape and bounds."""
    rows = []
    for name in sorted(space, key=[*known].index):  # an entry without a meaning ends the build
        box, meaning = space[name], known[name]
        for group, members in NAMES.items():
            meaning = meaning.replace(f"`{group}`", ", ".join(members))
        low, high = (f"{float(end):g}" for end in (box.low.min(), box.high.max()))
        rows.append((f"`{name}`", meaning, box.shape, low, high))
    return markdown_table(HEADS, rows)
