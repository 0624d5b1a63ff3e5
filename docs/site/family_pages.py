"""Writes a page for each id whose episodes have many tasks: FedHPO-B, and generated tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from observations import entry_table, meanings
from pictures import draw_family
from problem_pages import OBJECTIVE_HEADS, missing, objective_row, space_table

import fedhpo_gym
from fedhpo_gym.cli.problems import format_value
from fedhpo_gym.core.markdown import markdown_table
from fedhpo_gym.data import SOURCES
from fedhpo_gym.envs.meta.env import MetaEnv
from fedhpo_gym.objectives import OBJECTIVES
from fedhpo_gym.stored.health import default_configuration
from fedhpo_gym.stored.meta_data import MetaData, open_meta_data
from fedhpo_gym.stored.task_generator import TaskGenerator, open_generator
from fedhpo_gym.tasks.meta import GENERATED_IDS, META_IDS, meta_tasks

DRAWN = 12
"""Tasks that a picture is of: the first meta-test tasks, or the first generated ones."""
TRIED = 25
"""Random configurations whose regret is told."""
Losses = tuple[NDArray[Any], NDArray[Any]]
"""(n, d) actions of a task, and their (rounds, n) losses."""


def family_pages(pictures: Path) -> dict[str, str]:
    """Return the pages by name, and draw their pictures into a folder."""
    known = {**META_IDS, **GENERATED_IDS}
    return {name: "\n\n".join(_page(name, space, pictures)) for name, space in known.items()}


def family_index() -> str:
    """Return the table of these pages."""
    rows = []
    for env_id, space in META_IDS.items():
        data = open_meta_data(space)
        what = "a data set with a division into clients"
        rows.append((f"[{env_id}]({env_id}.md)", what, len(data.space), len(data.names)))
    for env_id, space in GENERATED_IDS.items():
        tuned = len(open_generator(space).space)
        rows.append((f"[{env_id}]({env_id}.md)", "a number", tuned, "2^32"))
    return markdown_table(("id", "a task is", "tuned", "tasks"), rows)


def _page(env_id: str, space: str, pictures: Path) -> Iterator[str]:
    real = env_id in META_IDS
    data: Any = open_meta_data(space) if real else open_generator(space)
    env = gym.make(env_id, disable_env_checker=True)
    yield f"# {env_id}"
    yield f"Ids: `{env_id}`, `MO-{env_id}`."
    yield (
        "In every episode, the task is drawn from those of `instances`. A task is a real "
        "federation whose results are all stored. [The tasks and their split](../../fedhpo_b.md)."
        if real
        else "Every episode has a new task: each seed is a task, from a model of real tasks. "
        "[How tasks are generated](../../fedhpo_b.md#generated-tasks), and "
        "[how similar to real tasks they are](../../studies/generated.md)."
    )
    yield (
        f'```python\nimport gymnasium as gym\nimport fedhpo_gym\n\nenv = gym.make("{env_id}")\n```'
    )
    yield "## What is tuned"
    yield space_table(data.space, default_configuration(data.space))
    yield "## Fidelities"
    yield (
        f"`round` is one of {', '.join(map(format_value, data.rounds))}; the highest is full "
        f"fidelity. `client_sample_rate` is one of {', '.join(map(format_value, data.rates))}. An "
        f"episode has {env.get_wrapper_attr('setup').trials} trials unless you set `trials`."
    )
    yield "## Objectives"
    yield (
        f"The reward of `{env_id}` is the improvement of the incumbent. Default objectives of "
        f"`MO-{env_id}`:"
    )
    names = [one.name for one in env.get_wrapper_attr("setup").objectives]
    yield markdown_table(OBJECTIVE_HEADS, [objective_row(OBJECTIVES[name]) for name in names])
    rest = ", ".join(f"`{name}`" for name in data.objectives)
    yield f"All objectives ([definitions](../../objectives.md)): {rest}."
    yield "## Action and observation"
    yield _actions(env)
    yield entry_table(env.observation_space, meanings(MetaEnv))
    yield "## What answers"
    yield from _real(data) if real else _generated(env_id, data)
    yield f"![Landscape and learning curves of {env_id}](pictures/{env_id}.svg)"
    which = "meta-test" if real else "generated"
    yield (
        f"*Losses of the first {DRAWN} {which} tasks, as multiples of the best loss of the task. "
        "Left: the two most important hyperparameters. Right: learning curves of the best, the "
        "best tenth and the median configuration. All with all clients.*"
    )
    _draw(pictures / f"{env_id}.svg", env_id, data, real=real)
    fingerprint = data.fingerprint.rpartition(":")[2][:16]
    yield f"Made by `{data.card['build_command']}`; fingerprint `{fingerprint}`."
    if real:
        yield from _licences(space)


def _actions(env: gym.Env[Any, Any]) -> str:
    size = len(env.get_wrapper_attr("search_space"))
    if isinstance(env.action_space, gym.spaces.Discrete):
        return (
            f"An action is an index in the pool, below {env.action_space.n}. With "
            f"`actions='coordinates'`, it is a Box [-1, 1] of {size} numbers, which selects the "
            "nearest untried configuration. The reward is one number, or on `MO-` ids a score per "
            "objective. Higher is better."
        )
    return (
        f"An action is a Box [-1, 1] of {size} numbers, one for each hyperparameter. The reward is "
        "one number, or on `MO-` ids a score per objective. Higher is better."
    )


def _real(data: MetaData) -> Iterator[str]:
    yield (
        f"Each task has a pool of {data.card['pool']} trained configurations, or with "
        "`continuous=True` a surrogate. The best loss is that of the pool at full fidelity. *left* "
        f"is the average normalised regret of the best of {TRIED} random configurations of the "
        "pool. τ is the rank correlation of the surrogate on configurations that were not used "
        "for its fit."
    )
    left = _left(data.scores[:, :, -1, -1])
    losses = data.values[:, :, -1, -1, data.objectives.index("val_loss")].min(axis=1)
    rows = [
        (
            *(task["name"], task["split"], task["clients"], f"{task['label_entropy']:.3f}"),
            *(f"{loss:.3f}", f"{of:.2f}", f"{tau:.2f}"),
        )
        for task, loss, of, tau in zip(data.card["tasks"], losses, left, data.tau, strict=True)
    ]
    heads = ("task", "split", "clients", "label entropy", "best loss", f"left {TRIED}", "τ")
    yield markdown_table(heads, rows)


def _left(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the normalised regret of (tasks, pool) scores that drawing without return leaves."""
    ranked = -np.sort(-scores, axis=1)
    pool = ranked.shape[1]
    # The i-th best is the best of those drawn if it is, and all that are better are not.
    none_better = np.cumprod(1 - TRIED / (pool - np.arange(pool)).clip(TRIED))
    share = -np.diff(none_better, prepend=1.0)
    best, worst = ranked[:, :1], ranked[:, -1:]
    return np.asarray(((best - ranked) / (best - worst)) @ share)


def _generated(env_id: str, data: TaskGenerator) -> Iterator[str]:
    best = [fedhpo_gym.truth(env_id, instances=n).values[:, 0].min() for n in range(DRAWN)]
    yield (
        f"{len(data.arrays['weight_0'])} networks answer, fitted to {data.card['evaluations']:,} "
        f"evaluations of {len(data.card['fitted_on'])} real tasks. `noise` models the effect of "
        f"the seed of a training run. Best losses of the first {DRAWN} tasks: "
        f"{', '.join(map(format_value, best))}."
    )


def _licences(space: str) -> Iterator[str]:
    yield "## Data"
    named = dict.fromkeys(one.task.dataset for one in meta_tasks(space))
    rows = [(SOURCES[n].name, SOURCES[n].licence, SOURCES[n].citation) for n in named]
    yield markdown_table(("data", "terms", "of"), rows)


def _draw(path: Path, env_id: str, data: Any, *, real: bool) -> None:
    if missing(path, data.fingerprint):
        known = _of_pools(data) if real else _of_numbers(env_id, data)
        draw_family(path, data.space, data.rounds, known)


def _of_pools(data: MetaData) -> list[Losses]:
    losses = data.values[:, :, -1, :, data.objectives.index("val_loss")]
    return [(data.actions[task], losses[task].T) for task in data.where("test")[:DRAWN]]


def _of_numbers(env_id: str, data: TaskGenerator) -> list[Losses]:
    found = []
    for task in range(DRAWN):
        asked = [{"instances": task, "fidelity": {"round": one}} for one in data.rounds]
        envs = [gym.make(env_id, disable_env_checker=True, **one) for one in asked]
        setups = [env.get_wrapper_attr("setup") for env in envs]
        actions, _ = setups[-1].lattice()
        found.append((actions, np.stack([one.predicted(actions)[:, 0] for one in setups])))
    return found
