"""A problem as a task of CARP-S (Benjamins et al., 2025), and its Hydra configuration."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedhpo_gym.core.checks import Range, to_json_data, validate_call
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.files import write_text
from fedhpo_gym.harnesses.problem import Problem
from fedhpo_gym.space.configspace import to_configspace

with require_optional("a task of CARP-S", "carps", "carps", "carps"):
    from carps.objective_functions.objective_function import ObjectiveFunction
    from carps.utils.task import get_search_space_info
    from carps.utils.trials import StatusType, TrialInfo, TrialValue

if TYPE_CHECKING:
    import ConfigSpace

FIDELITY = "round"
"""The one fidelity that CARP-S varies; the others are fixed, at their highest by default."""


class Function(ObjectiveFunction):  # type: ignore[misc]  # no types come with it
    """The function that CARP-S evaluates: costs are losses, and virtual time is simulated time.

    Where training diverged, the status is CRASHED, and the cost is the worst possible one.

    A budget between the rounds of a grid is rounded to the nearest. Its random search draws from
    `configspace`, which `space_seed` seeds.
    """

    def __init__(
        self, env_id: str, space_seed: int = 0, loggers: list[Any] | None = None, **arguments: Any
    ) -> None:
        """Make the environment; arguments are those of `fedhpo_gym.harnesses.problem.Problem`."""
        super().__init__(loggers)
        self.problem = Problem(env_id, **arguments)
        self._seed = space_seed

    @cached_property
    def configspace(self) -> ConfigSpace.ConfigurationSpace:
        return to_configspace(self.problem.space, self._seed)

    def _evaluate(self, trial_info: TrialInfo) -> TrialValue:
        fidelity = {}
        if trial_info.budget is not None and FIDELITY in self.problem.fidelities:
            grid = self.problem.fidelities[FIDELITY].grid
            nearest = min(grid, key=lambda rounds: abs(float(rounds) - trial_info.budget))
            fidelity = {FIDELITY: nearest}
        # Optimizers draw arbitrary seeds, so a seed changes only the noise of noisy evaluations.
        outcome = self.problem.evaluate(
            dict(trial_info.config), fidelity, noise_seed=trial_info.seed
        )
        costs = list(outcome.losses.values())
        return TrialValue(
            cost=costs if len(costs) > 1 else costs[0],
            virtual_time=outcome.time_s,
            status=StatusType.CRASHED if outcome.diverged else StatusType.SUCCESS,
        )


@validate_call
def write_task(
    env_id: str, folder: Path, *, n_trials: Annotated[int, Range(1)] = 100, **arguments: Any
) -> Path:
    """Write the configuration of a task; `fedhpo/<id>` is then its name.

    `python -m carps.run hydra.searchpath=[file://FOLDER] +task/fedhpo=ID
    +optimizer/randomsearch=config` runs it.

    Args:
        env_id: an id of trials.
        folder: for `task/fedhpo/ID.yaml`.
        n_trials: trials of a run, each at full fidelity.
        arguments: of `fedhpo_gym.harnesses.problem.Problem`; plain data.

    Raises:
        OSError: the file cannot be written.
    """
    function = Function(env_id, **arguments)
    problem, space = function.problem, function.configspace
    names = [objective.name for objective in problem.objectives]
    has_rounds = FIDELITY in problem.fidelities
    rounds = problem.fidelities[FIDELITY] if has_rounds else None
    target, convert = "_target_", {"_convert_": "object"}
    task = {
        target: "carps.utils.task.Task",
        "name": f"fedhpo/{env_id}",
        "seed": "${seed}",
        "objective_function": {
            target: f"{__name__}.{Function.__name__}",
            "env_id": env_id,
            "space_seed": "${seed}",
            **convert,
            **arguments,
        },
        "input_space": {
            target: "carps.utils.task.InputSpace",
            "configuration_space": {
                target: "ConfigSpace.configuration_space.ConfigurationSpace.from_serialized_dict",
                **convert,
                "d": space.to_serialized_dict(),
            },
            "fidelity_space": {
                target: "carps.utils.task.FidelitySpace",
                "is_multifidelity": has_rounds,
                "fidelity_type": FIDELITY if has_rounds else None,
                "min_fidelity": rounds and rounds.low,
                "max_fidelity": rounds and rounds.high,
            },
            "instance_space": None,
        },
        "output_space": {
            target: "carps.utils.task.OutputSpace",
            "n_objectives": len(names),
            "objectives": names,
        },
        "optimization_resources": {
            target: "carps.utils.task.OptimizationResources",
            "n_trials": n_trials,
            "time_budget": None,
            "n_workers": 1,
        },
        "metadata": {
            target: "carps.utils.task.TaskMetadata",
            "has_constraints": bool(problem.limited),
            "domain": "FedHPO",
            "objective_function_approximation": problem.describe().get("backend"),
            "has_virtual_time": True,
            "deterministic": "noise" not in arguments,
            **get_search_space_info(space),
        },
    }
    content = {"benchmark_id": "fedhpo", "task_id": "${task.name}", "task": task}
    file = folder / "task" / "fedhpo" / f"{env_id}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, f"# @package _global_\n{json.dumps(to_json_data(content), indent=1)}\n")
    return file
