"""The round environment: dynamic algorithm configuration of a federated course.

A step sets the hyperparameters of the next communication rounds of one course, which is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Bools, Indices
from fedhpo_gym.core.checks import coerce, to_json_data
from fedhpo_gym.envs import vector
from fedhpo_gym.envs.rendering import DrawnEnv, Point, plot_course
from fedhpo_gym.envs.round.process import EpisodeSnapshot, RoundProcess
from fedhpo_gym.objectives.base import LARGEST
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.space.space import checked_action
from fedhpo_gym.stored.references import References, references_of
from fedhpo_gym.tasks import Instance

Observation = dict[str, NDArray[np.float32]]
Info = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Where an episode stands; opaque, for `RoundEnv.restore` only."""

    episode: EpisodeSnapshot
    trace: tuple[Point, ...]


class RoundEnv(DrawnEnv):
    """Dynamic configuration of one federated course, k rounds per step.

    **Action**: Box [-1, 1]^n, float32, one coordinate per dynamic hyperparameter, decoded by
    `search_space`. In the per-client form, Box [-1, 1]^(clients, n): row i is for client i; rows of
    clients that do not train in the step are ignored. What the server decides (its hyperparameters
    and the client sample rate) is then fixed.

    **Observation**: a dictionary of float32 arrays. h is the number of evaluations shown, one per
    step; before the first step, all show the untrained model.

    ==================  =======  ===============================================================
    key                 shape    meaning
    ==================  =======  ===============================================================
    `train_loss`        (h,)     log10(loss / chance) / 3, clipped to [-1, 1]: 0 is a guess (the
                                 task's `chance_loss`), -1 a thousandth of its loss; oldest first
    `val_loss`          (h,)     likewise on validation data
    `train_accuracy`    (h,)     in [0, 1]
    `val_accuracy`      (h,)     in [0, 1]
    `client_spread`     (1,)     standard deviation over clients of the validation accuracy
    `update_norm`       (2,)     mean and standard deviation, over clients and rounds of the
                                 step, of log10 of the norm of a client's update, / 6
    `disagreement`      (2,)     likewise of (1 - cosine of a client's update and the round's
                                 mean update) / 2: 0 where all clients pull the same way
    `remaining_rounds`  (1,)     fraction of the horizon that is left
    `remaining_budget`  (1,)     fraction of the simulated seconds that is left
    `last_action`       (n,)     the last action (in the per-client form, of each client the row
                                 it last trained with, one after the other); zeros at first
    ==================  =======  ===============================================================

    The per-client form adds (clients,) arrays; the last three are 0 for clients that did not train
    in the step:

    ==================  ============================================================================
    `sampled`           1 for clients that will train in the next step
    `num_val_samples`   share of all validation samples
    `val_loss_before`   of the model a client received, scaled as `val_loss`
    `val_loss_after`    of the model it made
    ==================  ============================================================================

    With an `epsilon`, `remaining_privacy`, shape (1,), is the fraction of it that is left.

    Test data never enter an observation; they are in `info["test"]`.

    **Reward**: improvement - `time_price` x time. The improvement is the difference of a potential
    before and after the step: by default -log10(validation loss / chance) within +-3, so 1 is a
    tenfold smaller loss and an episode adds up to what it gained in all. The time is that of the
    step on the simulated clock over the whole budget. On `MO-` ids a vector of `rewards`:
    "improvement", "time" (negative), "upload" (minus the bytes clients sent over the most they
    could have sent in an episode), "download", "flops" and "energy" (likewise, of the bytes that
    clients received, of what they computed in training, and of the joules that they needed, over
    the most that is expected), "fairness" (decrease of `client_spread`), and by its name any
    objective that is read off the model, a user's own among them (decrease of its error).

    **Noise**: with noisy evaluations, observations, rewards and ranks use the reported values;
    `info["truth"]` has the noise-free values of the model. With an `epsilon`, or with `iid`, only
    values that the reward needs are reported; other metrics are those of a guess. `update_norm` and
    `disagreement` describe training and have no noise.

    **Episode**: starts with the untrained model of one of `instances`, drawn by the environment's
    random numbers or given as `options={"instance": i}`; everything after that is decided by the
    instance and the actions. Train and test instances share no seed: initialisation, splits, client
    sampling and minibatches are drawn anew. LDA and graph communities also give clients other
    samples; where users or tasks are the clients, they are the same in all instances (see
    `fedhpo_gym.tasks.federated`).

    It *terminates* when the horizon or the budget is reached, both of which are observed, and when
    the course diverges: then the potential falls to its lowest value, a penalty is due, and so is
    the price of the time that is left. It never truncates.

    Attributes:
        process: the decision process.
        instances: what an episode can start on.
        reward_space: bounds of the reward vector.
        vector_reward: whether rewards are vectors.
        step_kind: "round"; a step of `TrialEnv` is a "trial".
    """

    step_kind = "round"

    def __init__(
        self, process: RoundProcess, *, vector_reward: bool = False, render_mode: str | None = None
    ) -> None:
        super().__init__(render_mode)
        self.process = self._process = process
        self.action_space = process.controls.action_space
        self.observation_space = process.observation_space  # type: ignore[assignment]
        self.reward_space = process.reward_space
        self.reward_dim = process.reward_space.shape[0]
        self.vector_reward = vector_reward
        self._draws = process.draws()
        self._trace: list[Point] = []

    @property
    def search_space(self) -> SearchSpace:
        """What an action, or a row of it, is decoded to."""
        return self.process.controls.space

    @property
    def fidelity_space(self) -> SearchSpace:
        """Fidelity dimensions of an action: none, because all steps have the same rounds."""
        return SearchSpace(())

    @property
    def fixed(self) -> dict[str, Value]:
        """Hyperparameters that are fixed, `client_sample_rate` among them."""
        return dict(self.process.controls.fixed)

    @property
    def instances(self) -> tuple[Instance, ...]:
        """What an episode can start on."""
        return self.process.instances

    @property
    def references(self) -> References | None:
        """What random actions, constants, schedules and hindsight return on test instances.

        None where nobody has computed it, or arguments differ from those of the id.
        """
        return _references(self.spec)

    def _begin(self) -> None:
        self._trace = [self._point()]

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, Any, bool, bool, Info]:
        """Train for `rounds_per_step` rounds with some hyperparameters.

        Raises:
            InvalidArgumentError: the action is not in the action space.
            ResetNeeded: the episode has ended.
        """
        if self.process.episodes.over[0]:
            raise gym.error.ResetNeeded("the episode has ended, or none has begun; call `reset`")
        outcome = self.process.step(checked_action(action, self.action_space.shape)[None])
        self._trace.append(self._point())
        reward = outcome.vectors[0] if self.vector_reward else float(outcome.scalars[0])
        if self.render_mode == "human":
            self.render()
        over = bool(outcome.terminated[0])
        return self._observation(), reward, over, False, self.process.info(0)

    def snapshot(self) -> Snapshot:
        """Return where the episode stands; `restore` goes back to it any number of times.

        It holds the model, the server's state and all that observations and rewards depend on, but
        not the random numbers that draw the instances of later episodes.
        """
        return Snapshot(self.process.snapshot(0), tuple(self._trace))

    def restore(self, snapshot: Snapshot) -> Observation:
        """Go back to a snapshot of this environment, or of one made alike.

        Returns:
            The observation at that point.

        Raises:
            InvalidArgumentError: it is no snapshot, or of an environment made with other arguments;
                the message names the first that differs, and the episode stays where it is.
        """
        coerce("snapshot", snapshot, Snapshot)
        self.process.restore(0, snapshot.episode)
        self._trace = list(snapshot.trace)
        return self._observation()

    def _plot(self, figure: Any) -> None:
        plot_course(
            figure,
            self._trace,
            self.process.task.name,
            self.search_space.names,
            self.process.settings.horizon,
            "action" if self.process.controls.num_rows is None else "action, client mean",
        )

    def close(self) -> None:
        """Close the window, if there is one, and end what the courses started."""
        self.process.close()
        super().close()

    def _observation(self) -> Observation:
        return self.process.layout.views(self.process.observe()[0])

    def _point(self) -> Point:
        state = self.process.episodes
        loss = min(float(state.loss[0, -1, 1]), LARGEST)
        return Point(int(state.rounds[0]), loss, state.action[0].copy())


_FORM: Final = {
    *("instances", "vector_reward", "render_mode", "num_envs", "vectorization_mode"),
    *("info_keys", "autoreset_mode", "copy"),
}
"""Arguments that change no return of an instance."""


def _references(spec: EnvSpec | None) -> References | None:
    """Return the references of an id that was made with its own arguments."""
    if spec is None:
        return None
    env_id = spec.id.removeprefix("MO-")
    arguments, defaults = (
        {name: value for name, value in kwargs.items() if name not in _FORM}
        for kwargs in (spec.kwargs, to_json_data(gym.spec(env_id).kwargs))
    )
    return references_of(env_id) if arguments == defaults else None


INFO_KEYS: Final = ("configuration", "fidelity")
"""What `info` holds only on request."""


class RoundVectorEnv(vector.BatchedVectorEnv):
    """N round environments, bit for bit those of `gymnasium.make`, trained as one batch.

    Courses are trained as one tensor program, whatever their instances and rounds. Those that share
    minibatches also share matrix products: those on the same instance, at the same round, with the
    same batch size, epochs and number of clients. `reset(options={"instance": i})` takes one index
    for all environments, or N of them.

    **Info** of a step, in Gymnasium's vector form (arrays, and a mask `_key` beside every `key`):
    numbers as in `RoundEnv`, and the lists over clients as (N, clients) arrays. `step_info(i)`
    gives all that a single environment says. What a single environment says at `reset` comes with
    `reset` only, not with an autoreset. On request (`info_keys`), at some cost per environment:
    "configuration", with an array and a mask for every hyperparameter, and the whole "fidelity",
    of which only `round` is there otherwise.

    Attributes:
        process: the decision process.
        reward_space: bounds of the reward vector of one environment. Rewards are (N,) float64, or
            (N, rewards) float32 on `MO-` ids.
    """

    def __init__(
        self,
        process: RoundProcess,
        *,
        info_keys: Sequence[str] = (),
        vector_reward: bool = False,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
    ) -> None:
        """Create the vector form of a process of N episodes.

        Args:
            info_keys: what `info` shall also hold, of `INFO_KEYS`.
            vector_reward: return reward vectors.
        """
        vector.checked_keys(info_keys, INFO_KEYS)
        super().__init__(
            len(process.episodes.over),
            process.observation_space,
            process.controls.action_space,
            autoreset_mode=autoreset_mode,
            copy=copy,
        )
        self.process = self._process = process
        self.reward_space = process.reward_space
        self._info_keys = frozenset(info_keys)
        self._vector_reward = vector_reward
        self._draws = process.draws()

    @property
    def references(self) -> References | None:
        """What `RoundEnv.references` is."""
        return _references(self.spec)

    def step_info(self, index: int) -> dict[str, Any]:
        """Return the `info` that a single environment returns with its last step."""
        self._check_stepped(index, self.process.episodes.steps)
        return self.process.info(index)

    def _restart(self, where: Indices, seeds: vector.Seeds) -> None:
        super()._restart(where, seeds)
        self._show()

    def _advance(self, actions: vector.Actions, active: Bools) -> vector.StepOutcome:
        never = np.zeros(self.num_envs, dtype=np.bool_)
        if active.any():
            outcome = self.process.step(actions)
            self._show()
            terminated = outcome.terminated
            rewards: NDArray[np.floating] = outcome.scalars
            if self._vector_reward:
                rewards = outcome.vectors
        else:  # all are about to be reset: nothing is trained
            terminated = never.copy()
            shape = self.reward_space.shape if self._vector_reward else ()
            rewards = np.zeros((self.num_envs, *shape), np.float32 if shape else np.float64)
        return vector.StepOutcome(rewards, terminated, never, self.process.infos(self._info_keys))

    def _show(self) -> None:
        self._frame[:] = self.process.observe()
