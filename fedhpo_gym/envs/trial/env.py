"""The trial environments: a step is one function evaluation f(configuration, fidelity).

`make_trial_env` creates `TrialEnv` for `gymnasium.make`, and `make_trial_vector_env` creates
`TrialVectorEnv`. Both let a `TrialProcess` compute their steps, with one row or with N. The vector
form includes the budget and the scalar reward, which wrappers add to a single environment, and
returns the same bits.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fedhpo_gym.backends import Backend, CheckedQuery, make_backend
from fedhpo_gym.core.arrays import Bools, Floats, Integers, Singles
from fedhpo_gym.core.checks import Range, coerce
from fedhpo_gym.envs import vector
from fedhpo_gym.envs.rendering import SetupEnv, plot_trials
from fedhpo_gym.envs.trial.instances import TrialInstance
from fedhpo_gym.envs.trial.ledger import charge, constant_costs
from fedhpo_gym.envs.trial.process import INFO_KEYS, History, Trial, TrialProcess
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.evaluation.multi_objective import Constraints
from fedhpo_gym.evaluation.records import Cost
from fedhpo_gym.objectives import Objective
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.space.space import checked_action
from fedhpo_gym.tasks import Task
from fedhpo_gym.wrappers.budget import Budget, with_remaining
from fedhpo_gym.wrappers.rewards import IncumbentValue, Penalty

if TYPE_CHECKING:
    from fedhpo_gym.envs.truth import Truth

Observation = dict[str, Singles]
Info = dict[str, Any]


class TrialEnv(SetupEnv):
    """Federated hyperparameter optimisation, one evaluation per step.

    **Action**: Box [-1, 1]^n, float32. One coordinate per dimension of the search space, then one
    per fidelity dimension (`round`, `client_sample_rate`) that is not fixed. A coordinate is
    decoded by `SearchSpace.decode`: log scales, integers and grids are handled there, so that a
    uniform action is a uniform configuration. On a grid, the coordinate selects the nearest cell.

    **Observation**: a dictionary of float32 arrays; of the last trial unless said otherwise:

    ==================  =====  =================================================================
    key                 shape  meaning
    ==================  =====  =================================================================
    `loss`              (2,)   mean cross-entropy on train and validation data, nats, clipped at
                               `MAX_LOSS`
    `accuracy`          (2,)   accuracy on train and validation data, in [0, 1]
    `f1`                (2,)   macro-F1 on train and validation data, in [0, 1]
    `fairness`          (6,)   `FAIRNESS_NAMES` of the clients' validation accuracy
    `privacy`           (5,)   `PRIVACY_NAMES` spent (`fedhpo_gym.tasks.privacy`)
    `elapsed_time`      (1,)   simulated seconds since reset
    `trials`            (1,)   trials since reset
    `incumbent`         (n,)   action coordinates of the best trial so far; zeros before the first
    `incumbent_value`   (1,)   error of its first objective, lower is better
    ==================  =====  =================================================================

    `BudgetTermination` adds `remaining_budget` (1,). Where episodes are of several instances,
    `instance` (7,) says what may be known of one before its first trial (`statistics` of
    `fedhpo_gym.envs.trial.instances`). Test data never enter an observation; they are in
    `info["test"]`, without metrics that a custom problem does not return (NaN in vectors).

    **Incumbent**: the best trial in the first objective that satisfies all `constraints`, or, if no
    trial does, the one with the smallest total violation (`violations` of
    `fedhpo_gym.evaluation.multi_objective`). With constraints, `info` and `info["incumbent"]` have
    `violation`, 0 if all limits are satisfied, and `excess`, a dictionary of the excess over each
    limit in the unit of its objective.

    **Reward**: the vector of scores (higher is better, clipped to `reward_space`) of the
    objectives. `ScalarizePenalty` turns it into one number, and `IncumbentReward` into a reward of
    the incumbent.

    **Noise**: with noisy evaluations, observations, rewards and ranks use the reported values;
    `info["truth"]` has the noise-free values of the trial and the incumbent. With an `epsilon`, or
    with `iid`, only the objectives are reported: other metrics and `fairness` stay as they are
    before the first trial.

    **Episode**: starts with an empty history. `BudgetTermination` ends it.

    Attributes:
        setup: task, backend and arguments of the environment.
        step_kind: "trial"; a step of `RoundEnv` is a "round".
        reward_space: bounds of the reward vector.
    """

    setup: TrialSetup
    _process: TrialProcess

    def __init__(self, setup: TrialSetup, *, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self._use(setup)
        self._draws = self._process.draws()

    def _use(self, setup: TrialSetup) -> None:
        self._follow(setup)
        self._process = TrialProcess(setup, self._layout, self._frame)
        self._steps = History()
        self._trials: list[Trial] = []
        self._ends_s: float | None = None

    @property
    def task(self) -> Task:
        return self._process.part(0).task

    @property
    def backend(self) -> Backend:
        """The source of numbers."""
        return self._process.part(0).backend

    @property
    def constraints(self) -> Constraints | None:
        """The limits that the incumbent should satisfy."""
        return self.setup.constraints

    @property
    def instances(self) -> tuple[TrialInstance, ...]:
        """The instances of episodes; empty if there is only one problem."""
        return tuple(TrialInstance.of(backend) for backend in self.setup.instances)

    @property
    def pool(self) -> NDArray[np.float32] | None:
        """(K, n) actions of the configurations of a pool; None if the backend has no pool."""
        return self.setup.pool

    @property
    def error_scale(self) -> float:
        """Error of a guess in the first objective (`TrialSetup.error_scale`)."""
        return self.setup.error_scale

    def all_trials(self) -> tuple[Floats, Floats]:
        """Return (B,) values of the first objective and (B,) violations of all stored trials."""
        return self._process.all_trials(0)

    def unmoved_objectives(self, fidelity: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the cost objectives that are constant at a fixed fidelity."""
        return constant_costs(replace(self.setup, fixed=dict(fidelity)))

    @property
    def truth(self) -> "Truth":
        """The truth of this episode from stored numbers: its optimum, and regrets.

        No observation and no `info` contains it.

        Raises:
            InvalidArgumentError: the backend trains.
        """
        return _truth_of(self._process.part(0))

    @property
    def full_truth(self) -> "Truth":
        """The truth at full fidelity, which is the reference of regret.

        Raises:
            InvalidArgumentError: the backend trains.
        """
        return _truth_of(self._process.part(0).at_full_fidelity)

    @property
    def fixed(self) -> dict[str, Value]:
        """Values of fidelity dimensions that are not part of the action, by name."""
        return dict(self.setup.fixed)

    @property
    def fidelity_space(self) -> SearchSpace:
        """The fidelities that the backend supports."""
        return self.backend.fidelity_space

    @property
    def trials(self) -> tuple[Trial, ...]:
        for handle, action, values, elapsed_s, best in self._steps.since(len(self._trials)):
            index = len(self._trials) + 1
            configuration, fidelity = self._process.source.query(handle)
            by_objective = dict(zip(self.setup.objective_names, values.tolist(), strict=True))
            self._trials.append(
                Trial(index, configuration, fidelity, action.copy(), by_objective, elapsed_s, best)
            )
        return tuple(self._trials)

    def constrain(self, constraints: Constraints) -> None:
        """Set the constraints of the incumbent; call `reset` before the next step."""
        if constraints != self.setup.constraints:
            self._use(replace(self.setup, constraints=constraints))

    def use_backend(self, name: str, **options: Any) -> None:
        """Exchange the backend; call `reset` before the next step.

        Raises:
            UnknownNameError: there is no such backend.
            MissingDataError: the backend has no numbers of the task.
            InvalidArgumentError: an option or its value is wrong.
        """
        coerce("name", name, str)
        previous = self.setup.instances or (self.backend,)
        backends = tuple(
            make_backend(name, backend.task, **{"seed": backend.seed, **options})
            for backend in previous
        )
        instances = backends if self.setup.instances else ()
        self._use(replace(self.setup, backend=backends[0], instances=instances))
        for backend in previous:
            backend.close()

    def _begin(self) -> None:
        self._steps, self._trials, self._ends_s, self._ready = History(), [], None, True

    def step(self, action: Singles) -> tuple[Observation, Singles, bool, bool, Info]:
        """Evaluate one configuration at one fidelity.

        Raises:
            ResetNeeded: there was no `reset` yet, or none since the backend was exchanged.
            InvalidArgumentError: the action is not in the action space.
        """
        if not self._ready:
            raise gym.error.ResetNeeded("call `reset` before `step`: an episode starts there")
        checked = checked_action(action, self.action_space.shape)
        (result,) = self._process.step(checked[None], _ALL, self._ends_s)
        self._ends_s = None
        state = self._process.episodes
        action_copy = np.array(action, dtype=np.float32)
        best = int(state.best_trial[0])
        elapsed_s = float(state.elapsed_s[0])
        self._steps.add((state.handles[0], action_copy, result["values"], elapsed_s, best))
        if self.render_mode == "human":
            self.render()
        reward = result["scores"].astype(np.float32)
        return self._observation(), reward, False, False, self._process.info(0)

    def decode(self, action: NDArray[np.floating]) -> CheckedQuery:
        """Return the configuration and the fidelity of an (n,) action."""
        return self.setup.decode(action)

    def course_of(self, action: NDArray[np.floating]) -> tuple[tuple[Value, ...], int]:
        """Return the key of the course of an action, and the number of its rounds."""
        configuration, fidelity = self.decode(action)
        return (*configuration.values(), fidelity.client_sample_rate), fidelity.round

    def cost_of(self, action: NDArray[np.floating], paid_rounds: int = 0) -> Cost:
        """Return the cost of a trial; with freeze-thaw, rounds that were paid are free."""
        (configuration, fidelity), rounds = self._owed(action, paid_rounds)
        return charge(self.task, configuration, rounds, fidelity.client_sample_rate)

    def begin_trial(self, action: NDArray[np.floating], paid_rounds: int = 0) -> None:
        """Begin a trial that a later `step` ends; its privacy counts as spent from now on."""
        self._process.begin(0, *self._owed(action, paid_rounds))

    def _owed(self, action: NDArray[np.floating], paid_rounds: int) -> tuple[CheckedQuery, int]:
        """Return the query of an action, and how many of its rounds must be trained."""
        query = self.decode(action)
        rounds = query[1].round
        if self.setup.freeze_thaw:
            rounds = max(rounds - paid_rounds, 0)
        return query, rounds

    def end_next_at(self, time_s: float) -> None:
        """Set the end of the next trial, in simulated seconds (`fedhpo_gym.parallel`)."""
        now = float(self._process.episodes.elapsed_s[0])
        self._ends_s = float(coerce("time_s", time_s, Annotated[float, Range(now, ends="[)")]))

    def _plot(self, figure: Any) -> None:
        plot_trials(figure, self.trials, self.task.name, self.setup.objective_names[0])

    def close(self) -> None:
        """Close the window, if it is open, and release the resources of the backend."""
        for setup in self.setup.parts:
            setup.backend.close()
        super().close()


_ALL = np.ones(1, dtype=np.bool_)


class TrialVectorEnv(vector.BatchedVectorEnv):
    """N trial environments with the default wrappers, exactly as `gymnasium.make` builds them.

    On a table, everything that does not depend on the history is computed once for all cells at the
    first step; a step is then one look-up. Other backends evaluate all queries of a step together.

    **Info** of a step, in Gymnasium's vector form (arrays, and a mask `_key` beside every `key`):
    `trial`, `elapsed_s`, `objectives`, `cost` (`time_s`, `rounds`), `incumbent` (`trial`) and,
    where the reward is scalar, `score` and `penalty`; and the entries of `info_keys`.
    `trial_info(i)` returns the full `info` of a single environment. The `info` of `reset` is
    returned by `reset` only, not by an autoreset.

    Attributes:
        reward_space: bounds of the reward vector of one environment. Rewards are (N,) float64, or
            (N, objectives) float32 on `MO-` ids, as MO-Gymnasium's vector environments return them.
    """

    _process: TrialProcess

    def __init__(
        self,
        num_envs: int,
        setup: TrialSetup,
        budget: Budget,
        penalty: Penalty | None = None,
        incumbent: IncumbentValue | None = None,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        info_keys: Sequence[str] = (),
    ) -> None:
        """Create `num_envs` environments, N.

        Args:
            budget: the budget of an episode.
            penalty: turns rewards into scalars; None leaves them vectors.
            incumbent: rewards the incumbent instead of the trial.
            info_keys: further entries of `info`, of `INFO_KEYS`.
        """
        spaces = with_remaining(setup.observation_space)
        super().__init__(
            num_envs, spaces, setup.action_space, autoreset_mode=autoreset_mode, copy=copy
        )
        self.setup, self.reward_space = setup, setup.reward_space
        self._budget, self._penalty, self._incumbent = budget, penalty, incumbent
        self._info_keys = vector.checked_keys(info_keys, INFO_KEYS)
        self._process = TrialProcess(setup, self.layout, self._frame)
        self._draws = self._process.draws()
        self._potentials = np.zeros(self.num_envs)
        self._known_optima: dict[int, float] = {}
        self._optima = np.full(self.num_envs, self._optimum(0))
        self._remaining = self.layout.columns["remaining_budget"].start

    def close_extras(self, **_: Any) -> None:
        for setup in self.setup.parts:
            setup.backend.close()

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return self.setup.objectives

    @property
    def search_space(self) -> SearchSpace:
        """Dimensions of an action (`TrialEnv.search_space`)."""
        return self.setup.search_space

    def trial_info(self, index: int) -> dict[str, Any]:
        """Return the `info` that environment `index` alone would have after its last trial.

        With autoreset "SameStep" an episode has ended by then: use `info_keys` to have its entries
        in `final_info`.
        """
        state = self._process.episodes
        self._check_stepped(index, state.trials)
        info = self._process.info(index)
        if self._penalty is not None:
            scores = state.results["scores"][index]
            penalty = float(self._penalty.of(scores))
            info.update(score=float(scores[0]) - penalty, penalty=penalty)
        return info

    def truth(self, index: int) -> "Truth":
        """Return the truth of the episode of environment `index` (`TrialEnv.truth`)."""
        return _truth_of(self._process.part(index))

    @property
    def _options(self) -> tuple[str, ...]:
        return ("instance",) if self.setup.instances else ()

    def _restart(self, where: Integers, seeds: vector.Seeds) -> None:
        super()._restart(where, seeds)
        self._potentials[where] = 0.0
        if self.setup.instances:
            self._optima[where] = [self._optimum(index) for index in where.tolist()]
        self._frame[where, self._remaining] = 1.0

    def _optimum(self, index: int) -> float:
        instance = self._process.instance(index)
        if self._incumbent is not None and instance not in self._known_optima:
            trials = functools.partial(self._process.all_trials, index)
            self._known_optima[instance] = self._incumbent.find_optimum(trials)
        return self._known_optima.get(instance, 1.0)

    def _advance(self, actions: vector.Actions, active: Bools) -> vector.StepOutcome:
        results = self._process.step(actions, active)
        state = self._process.episodes
        remaining = self._budget.left(state.elapsed_s, state.rounds, state.trials)
        self._frame[:, self._remaining] = np.maximum(remaining, 0.0)
        scores = results["scores"]
        info = self._process.infos(self._info_keys)
        if self._penalty is None:
            rewards: NDArray[np.floating] = scores.astype(np.float32)
        else:
            info["penalty"] = self._penalty.of(scores)
            info["score"] = rewards = scores[:, 0] - info["penalty"]
        if self._incumbent is not None:
            before, best = self._potentials, state.best_results
            self._potentials = self._incumbent.potential(best["values"][:, 0], best["violation"])
            rewards = self._incumbent.rewards(
                before, self._potentials, results["time_s"], state.elapsed_s, self._optima
            )
        never = np.zeros(self.num_envs, dtype=np.bool_)
        return vector.StepOutcome(rewards, remaining <= 0.0, never, info)


def _truth_of(setup: TrialSetup) -> "Truth":
    """Return the truth of a setup; its module is imported only when it is needed."""
    from fedhpo_gym.envs.trial.truth import truth_of

    return truth_of(setup)
