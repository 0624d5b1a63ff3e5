"""Many workers whose time is simulated: trials run side by side and end out of order.

`run_crew` of `fedhpo_gym.agents`, replays and `fedhpo_gym.parallel` use it. The cost of a trial is
known before it is evaluated, so the end of a trial is a number in a heap: `finish` takes the
earliest end, sets the clock to it, and steps the environment there. State therefore follows the
order of completion, and no agent or wrapper needs to support workers.
"""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Range, coerce, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.wrappers.checks import check_env

MAX_WORKERS: Final = 100_000


@dataclass(frozen=True, eq=False)
class FinishedTrial:
    """A trial that has ended, and the result of its step.

    Attributes:
        number: of the trial, from 1 in the order of their starts.
        worker: index of its worker, from 0.
        started_s: simulated seconds since reset when the worker started it.
        ended_s: simulated seconds since reset when it ended.
        action: (n,) action of the trial.
        observation: after this trial; all trials that ended before it are in it.
        reward: a number, or a vector on `MO-` ids.
        terminated: whether the budget is spent.
        truncated: whether the episode was cut off from outside.
        info: `info` of the step.
    """

    number: int
    worker: int
    started_s: float
    ended_s: float
    action: NDArray[np.float32]
    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class ParallelTrials:
    """A trial environment with W simulated workers, which run trials asynchronously.

    `start` gives a trial to a free worker at the present time, and `finish` moves the clock on to
    the next end of a trial. Trials therefore end out of order, cheap ones first; of those that end
    together, the one of the lowest worker ends first. The environment is stepped when a trial ends:
    observations, incumbents, rewards and noise follow the order of completion, and elapsed time is
    the clock of the workers.

    With freeze-thaw a course that was paused resumes at the cost of its further rounds. A course
    that still runs cannot be resumed: a worker that gets more of it waits for its end.

    **Budget**: the first trial to end when a budget is spent counts in full and ends the episode,
    as without workers. Trials that still run then are lost, and never reported. Rounds and trials
    count when they end. Privacy is spent when a trial begins, also by one that is lost.

    **Laws**. With one worker an episode equals, bit for bit, that of the environment alone. If each
    trial of a list starts as soon as a worker is free, and none waits for a course that still runs,
    none starts or ends later with W + 1 workers than with W (docs/studies/workers.md has a proof).
    Where trials wait, lists can take longer with more workers (Graham, 1969), and so they can where
    an agent decides by reported results.

    Attributes:
        env: the environment.
        workers: W.
        clock_s: simulated seconds since reset.
    """

    def __init__(self, env: gym.Env[Any, Any], workers: int) -> None:
        """Put W workers to an environment; call `reset` next.

        Raises:
            InvalidArgumentError: `env` is no trial environment, a wrapper changes its actions, or
                `workers` is out of its range.
        """
        check_env(env, "begin_trial", "cost_of", "course_of", "end_next_at", "setup")
        num_workers = coerce("workers", workers, Annotated[int, Range(1, MAX_WORKERS)])
        if env.action_space != env.unwrapped.action_space:
            raise InvalidArgumentError(
                "`env` must have the actions of its trial environment, whose costs are known "
                f"beforehand, got {env}; leave out wrappers that change actions"
            )
        self.env, self.workers = env, num_workers
        self._over = True
        self._clear()

    def _clear(self) -> None:
        self.clock_s = 0.0
        self._free = list(range(self.workers))
        self._idle_since = [0.0] * self.workers
        self._running: list[tuple[float, int, int, float, NDArray[np.float32]]] = []
        self._started = 0
        self._paid: dict[Hashable, int] = {}
        self._busy_until: dict[Hashable, float] = {}

    @property
    def free(self) -> int:
        """Number of idle workers."""
        return len(self._free)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode of the environment; all workers are free."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._over = False
        self._clear()
        return observation, info

    def start(self, action: NDArray[np.float32]) -> int:
        """Give a trial, an (n,) action, to the lowest free worker now; return its number, from 1.

        Raises:
            ResetNeeded: there was no `reset`, or the episode has ended.
            InvalidArgumentError: no worker is free, or the action is not in the action space.
        """
        self._require_episode()
        if not self._free:
            raise InvalidArgumentError(
                f"`start` needs a free worker, but all {self.workers} are busy; call `finish` first"
            )
        return self._begin(action, min(self._free), self.clock_s)

    def _begin(self, action: NDArray[np.float32], worker: int, now_s: float) -> int:
        course, rounds = self.env.get_wrapper_attr("course_of")(action)
        paid_rounds, begins_s = self._paid.get(course, 0), now_s
        cost = self.env.get_wrapper_attr("cost_of")(action, paid_rounds)
        if self.env.get_wrapper_attr("setup").freeze_thaw:
            self._paid[course] = max(paid_rounds, rounds)
            begins_s = max(now_s, self._busy_until.get(course, 0.0))
        self.env.get_wrapper_attr("begin_trial")(action, paid_rounds)
        ends_s = self._busy_until[course] = begins_s + float(cost.time_s)
        self._free.remove(worker)
        self._started += 1
        recorded_action = np.array(action, dtype=np.float32)
        heapq.heappush(self._running, (ends_s, worker, self._started, now_s, recorded_action))
        return self._started

    def repeat(self, action: NDArray[np.float32], worker: int | None) -> FinishedTrial:
        """Repeat a recorded trial of a worker: start it at the worker's last end, and finish it."""
        self._require_episode()
        if worker not in self._free:
            raise InvalidArgumentError(
                f"`worker` must be one of {self.workers} that is free, got {short_repr(worker)}"
            )
        self._begin(action, worker, self._idle_since[worker])
        return self.finish()

    def finish(self) -> FinishedTrial:
        """Return the next trial that ends, after stepping the environment with it.

        Raises:
            ResetNeeded: there was no `reset`, or the episode has ended.
            InvalidArgumentError: no worker is busy.
        """
        self._require_episode()
        if not self._running:
            raise InvalidArgumentError(
                "`finish` needs a worker that is busy, but none is; call `start` first"
            )
        ends_s, worker, trial_number, started_s, action = heapq.heappop(self._running)
        self.clock_s = ends_s
        self._free.append(worker)
        self._idle_since[worker] = ends_s
        self.env.get_wrapper_attr("end_next_at")(ends_s)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        outcome = (observation, reward, bool(terminated), bool(truncated), info)
        return FinishedTrial(trial_number, worker, started_s, ends_s, action, *outcome)

    def _require_episode(self) -> None:
        if self._over:
            raise gym.error.ResetNeeded("the episode has ended, or none has begun; call `reset`")
