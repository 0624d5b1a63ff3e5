"""`fedhpo-gym meta-data | generator | transfer`: FedHPO-B, tasks like it, what they teach."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm

from fedhpo_gym.agents import AGENTS, agent_class, make_agent, run_episode
from fedhpo_gym.cli.console import Arg, OwnTables, echo, echo_table
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, require_optional
from fedhpo_gym.stored.catalogue import writable_table_folder
from fedhpo_gym.studies.environments import resolve_id
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.meta import GENERATED_SPACES, META_SPACES

SPACE = "LR, Joint or Private"


def meta_data(
    spaces: Annotated[Sequence[str], Arg(f"{SPACE}; or all", "SPACE")],
    *,
    parts: Annotated[
        Path | None, Arg("folder of finished tasks, a file each (beside the result)", "DIR")
    ] = None,
    out: OwnTables = None,
) -> int:
    """Compute all tasks of search spaces, each once, and write a card and arrays per space."""
    with require_optional("computing tasks", "torch", "torch", "torch"):
        from fedhpo_gym.building.meta_data import compute_parts, write_meta_data

    names = META_SPACES if "all" in spaces else tuple(dict.fromkeys(spaces))
    folder = writable_table_folder(out)
    for space, files in compute_parts(parts or folder / "meta-data", names).items():
        echo(str(write_meta_data(space, files, folder)))
    return 0


def generator(
    spaces: Annotated[Sequence[str], Arg("LR or Joint; or all", "SPACE")],
    *,
    seed: Annotated[int, Arg("of all draws (0)", "N")] = 0,
    out: OwnTables = None,
) -> int:
    """Fit generators on the meta-train tasks of search spaces, and write a card each."""
    from fedhpo_gym.building.task_generator import write_generator

    folder = writable_table_folder(out)
    names = GENERATED_SPACES if "all" in spaces else tuple(dict.fromkeys(spaces))
    for space in names:
        require_known("search space", space, GENERATED_SPACES)
    for space in names:
        echo(str(write_generator(space, folder, seed=seed)))
    if out is None:
        echo(f"From now on, ids of generated tasks answer from {folder}; delete it to go back.")
    return 0


def transfer(
    problem: Annotated[str, Arg("id of a problem whose data are a table", "DATA")],
    *,
    agent: Annotated[str, Arg("an agent, such as `rgpe` or `zero-shot`")] = "rgpe",
    space: Annotated[str, Arg(f"what is tuned: {SPACE} (Joint)")] = "Joint",
    trials: Annotated[int, Arg("federated courses that are trained (25)", "N")] = 25,
    seed: Annotated[int, Arg("of the split, the training and the agent (1)", "N")] = 1,
) -> int:
    """Tune a federation, and say which configuration is the best."""
    from fedhpo_gym.envs.trial.transfer import transfer_env

    if not agent_class(agent).transfers:
        names = ", ".join(name for name, location in AGENTS.items() if ".transfer." in location)
        raise InvalidArgumentError(
            f"`--agent` must be one that transfers, got {agent!r}; all of {names} but gp do"
        )
    env = transfer_env(get_task(resolve_id(problem)), space, trials, seed)
    setup = env.get_wrapper_attr("setup")
    echo(
        f"{len(env.source_tasks)} other federations teach {agent} how to tune {problem}: "
        f"{setup.task.num_clients} clients, {setup.fixed['round']} rounds a trial. They tune "
        f"the space {space}, not that of the id: {', '.join(setup.search_space.names)}."
    )
    rows, best = [], math.inf
    best_configuration: dict[str, Any] = {}
    with tqdm(total=trials, unit="trial", disable=None) as bar:
        for trial_number, step in enumerate(
            run_episode(env, make_agent(agent, env, seed), seed), 1
        ):
            values = step.info["objectives"]
            if values["val_loss"] < best and not step.info["diverged"]:
                best, best_configuration = values["val_loss"], dict(step.info["configuration"])
                accuracy, test = 1.0 - values["val_error"], step.info["test"]["accuracy"]
                shares = [f"{share:.3f}" for share in (accuracy, values["explained"], test)]
                elapsed = f"{step.info['elapsed_s']:,.0f}"
                rows.append((str(trial_number), elapsed, f"{best:.4f}", *shares))
            bar.update()
    env.close()
    if not rows:
        echo("All trials diverged: lower the learning rates of the space, or ask for more trials.")
        return 0
    echo(f"{trials} trials; those that were better than all before:")
    heads = ("trial", "simulated s", "validation loss", "accuracy")
    echo_table((*heads, "entropy explained", "test accuracy"), rows)
    echo("The best configuration:")
    for name, value in best_configuration.items():
        echo(f"  {name}: {value:.4g}" if isinstance(value, float) else f"  {name}: {value}")
    return 0
