"""Many workers whose time is simulated: trials run side by side and end out of order."""

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
    """A trial that has ended, and what the environment says of it.

    Attributes:
        number: of the trial, from 1 in the order of their starts.
        worker: who did it, from 0.
        started_s: simulated seconds since reset when the worker took it.
        ended_s: simulated seconds since reset when it ended.
        action: (n,) what was tried.
        observation: after this trial; all trials that ended before it are in it.
        reward: a number, or a vector on `MO-` ids.
        terminated: whether the budget is spent.
        truncated: whether the episode was cut off from outside.
        info: what the environment reports about the trial.
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
    """A trial environment asked and told asynchronously, with W simulated workers.

    `start` gives a trial to a free worker at the present time, and `finish` moves the clock on to
    the next end of a trial. So trials end out of order, cheap ones first; of those that end
    together, the one of the lowest worker ends first. The environment learns of a trial when it
    ends: observations, incumbents, rewards and noise follow the order of the ends, and elapsed time
    is the clock of the workers.

    With freeze-thaw a course that was paused resumes at the cost of its further rounds. A course
    that still runs cannot be resumed: a worker that is given more of it waits for its end.

    **Budget**: the first trial to end when a budget is spent counts in full and ends the episode,
    as without workers. Trials that still run then are lost: nobody is told of them. Rounds and
    trials count when they end. Privacy is spent when a trial begins, also of one that is lost.

    **Laws**. With one worker an episode equals, bit for bit, that of the environment alone. If each
    trial of a list starts as soon as a worker is free, and none waits for a course that still runs,
    none starts or ends later with W + 1 workers than with W (docs/studies/workers.md has a proof).
    Where trials wait, lists can take longer with more workers (Graham, 1969), and so they can where
    an agent decides by what it is told.

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
        number = coerce("workers", workers, Annotated[int, Range(1, MAX_WORKERS)])
        if env.action_space != env.unwrapped.action_space:
            raise InvalidArgumentError(
                "`env` must have the actions of its trial environment, whose costs are known "
                f"beforehand, got {env}; leave out wrappers that change actions"
            )
        self.env, self.workers = env, number
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
        """How many workers have nothing to do."""
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
        paid, begins_s = self._paid.get(course, 0), now_s
        cost = self.env.get_wrapper_attr("cost_of")(action, paid)
        if self.env.get_wrapper_attr("setup").freeze_thaw:
            self._paid[course] = max(paid, rounds)
            begins_s = max(now_s, self._busy_until.get(course, 0.0))
        self.env.get_wrapper_attr("begin_trial")(action, paid)
        ends_s = self._busy_until[course] = begins_s + float(cost.time_s)
        self._free.remove(worker)
        self._started += 1
        taken = np.array(action, dtype=np.float32)
        heapq.heappush(self._running, (ends_s, worker, self._started, now_s, taken))
        return self._started

    def repeat(self, action: NDArray[np.float32], worker: int | None) -> FinishedTrial:
        """Let a worker do what it did in a recorded run: from its last end on, and to the end."""
        self._require_episode()
        if worker not in self._free:
            raise InvalidArgumentError(
                f"`worker` must be one of {self.workers} that is free, got {short_repr(worker)}"
            )
        self._begin(action, worker, self._idle_since[worker])
        return self.finish()

    def finish(self) -> FinishedTrial:
        """Return the next trial that ends, and tell the environment of it.

        Raises:
            ResetNeeded: there was no `reset`, or the episode has ended.
            InvalidArgumentError: no worker is busy.
        """
        self._require_episode()
        if not self._running:
            raise InvalidArgumentError(
                "`finish` needs a worker that is busy, but none is; call `start` first"
            )
        ends_s, worker, number, started_s, action = heapq.heappop(self._running)
        self.clock_s = ends_s
        self._free.append(worker)
        self._idle_since[worker] = ends_s
        self.env.get_wrapper_attr("end_next_at")(ends_s)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        outcome = (observation, reward, bool(terminated), bool(truncated), info)
        return FinishedTrial(number, worker, started_s, ends_s, action, *outcome)

    def _require_episode(self) -> None:
        if self._over:
            raise gym.error.ResetNeeded("the episode has ended, or none has begun; call `reset`")
