"""Tuning a new federation with what the tasks of FedHPO-B taught."""

from typing import Annotated, Any

import gymnasium as gym

from fedhpo_gym.backends import make_backend
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.envs.trial.env import TrialEnv
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.evaluation.records import Evaluation, SourceTask
from fedhpo_gym.objectives import Objective
from fedhpo_gym.stored.meta_data import open_meta_data
from fedhpo_gym.tasks import Task
from fedhpo_gym.tasks.meta import in_space, survey_of
from fedhpo_gym.wrappers import BudgetTermination, ScalarizePenalty


class TransferEnv(gym.Wrapper[Any, Any, Any, Any]):
    """A trial environment with source tasks of other federations for transfer learning.

    Attributes:
        source_tasks: the meta-train tasks, without those that share data with this task.
    """

    def __init__(self, env: gym.Env[Any, Any], source_tasks: tuple[SourceTask, ...]) -> None:
        super().__init__(env)
        self.source_tasks = source_tasks


@validate_call
def transfer_env(
    task: Task,
    space: str = "Joint",
    trials: Annotated[int, Range(1)] = 25,
    seed: Annotated[int, Range(0)] = 1,
) -> TransferEnv:
    """Return an environment that really trains a task's federation in a space of FedHPO-B.

    Trials are at full fidelity, and are scored as those of the meta-data set are: by the share of
    the labels' entropy that the model explains on validation data.

    Args:
        task: a problem of the catalogue whose data are a table.
        space: "LR", "Joint" or "Private".
        trials: trials of an episode.
        seed: of the split of the data, and of all training.

    Raises:
        UnknownNameError: there is no such space.
        InvalidArgumentError: the data are no table.
        MissingDataError: what the meta-train tasks taught is not on this machine.
    """
    variant = in_space(task, space)
    source_tasks = open_meta_data(space).source_tasks("train", {survey_of(variant.dataset)})
    entropy = variant.label_entropy

    def explained(evaluation: Evaluation) -> float:
        return max(1.0 - evaluation.mean("val", "loss") / entropy, 0.0)

    score = Objective.of(explained, name="explained", unit="1", minimize=False, bounds=(0.0, 1.0))
    setup = TrialSetup.of(
        variant,
        make_backend("raw", variant, seed=seed),
        objectives=(score, "val_loss", "val_error", "time_s"),
        fidelity={
            dimension.name: dimension.high for dimension in variant.fidelity_space.dimensions
        },
    )
    env = BudgetTermination(TrialEnv(setup), budget_trials=trials)
    return TransferEnv(ScalarizePenalty(env), source_tasks)
