"""What agents cost: `python benchmarks/agents/agent_speed.py [--agent NAME ...]`.

Every agent of trials acts in an environment that is a formula. "suggest" is the processor time of
an `ask` and its `tell`, as the mean over the last quarter of the trials: models cost more the more
they have seen. "resume" is the time to load the state of the whole run. The last rows are of random
search on a stored table: the agent, the loop with the environment, and the records.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import gymnasium as gym
import measuring

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import AGENTS, Step, agent_class, make_agent, run_episode
from fedhpo_gym.core.errors import MissingDependencyError
from fedhpo_gym.records.record import StepRecord
from fedhpo_gym.testing import make_env

TRIALS, HEAVY_TRIALS = 120, 24
HEAVY = ("bo-gp", "parego", "qlognehvi")
HEADER = ("agent", "trials", "suggest, ms", "resume, ms")
ID, RANDOM_TRIALS = "FedHPO-LR-CreditG-v1", 3000


def cost(name: str) -> tuple[int, float, float]:
    """Return the trials, milliseconds per suggestion, and milliseconds to resume."""
    kind, number = agent_class(name), HEAVY_TRIALS if name in HEAVY else TRIALS
    fidelity = {"client_sample_rate": 1.0} if kind.fidelity else {}
    vectors = kind.rewards == "vector"
    env = make_env(budget_trials=number, fidelity=fidelity, vector_reward=vectors)
    agent, spent = make_agent(name, env, 0), []
    observation, _ = env.reset(seed=0)
    for _ in range(number):
        start = process_time()
        action = agent.ask(observation)
        asked = process_time() - start
        observation, reward, over, _, info = env.step(action)
        start = process_time()
        agent.tell(Step(action, reward, terminated=over, info=info, observation=observation))
        spent.append(asked + process_time() - start)
    state = json.loads(json.dumps(agent.state_dict()))
    again = make_agent(name, env, 0)
    start = process_time()
    again.load_state_dict(state)
    last = spent[-(number // 4) :]
    return number, 1e3 * sum(last) / len(last), 1e3 * (process_time() - start)


def random_costs() -> dict[str, float]:
    """Return microseconds per trial of random search on a table whose curves were read before."""
    env = gym.make(ID, budget_trials=RANDOM_TRIALS, disable_env_checker=True)
    list(run_episode(env, make_agent("random", env, 0), 0))
    found: dict[str, list[float]] = {"agent": [], "loop and environment": [], "records": []}
    for _ in range(3):
        agent = make_agent("random", env, 0)
        times = [process_time()]
        actions = [agent.ask({}) for _ in range(RANDOM_TRIALS)]
        times.append(process_time())
        steps = list(run_episode(env, make_agent("random", env, 0), 0))
        times.append(process_time())
        for step in steps:
            parts: tuple[Any, ...] = (step.reward, step.terminated, step.truncated, step.info)
            StepRecord.from_step(step.action, *parts)
        times.append(process_time())
        for name, start, end in zip(found, times, times[1:], strict=False):
            found[name].append(1e6 * (end - start) / len(actions))
    return {name: min(times) for name, times in found.items()}


def rows(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield a row of each agent of trials that needs nothing learned."""
    for name in names:
        try:
            kind = agent_class(name)
        except MissingDependencyError:
            yield [name, "", "not installed", ""]
            continue
        if "trial" in kind.acts_on and kind.learned is None:
            trials, suggest, resume = cost(name)
            yield [name, str(trials), f"{suggest:.2f}", f"{resume:.1f}"]


def main(argv: Sequence[str] | None = None) -> str:
    """Measure and write the report."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--agent", action="append", choices=[*AGENTS], help="only this one")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    micro = [[name, f"{time:.0f}"] for name, time in random_costs().items()]
    return measuring.write_report(
        options,
        "What agents cost",
        "Processor time, the means of the last quarter of the trials.",
        measuring.table(HEADER, rows(options.agent or AGENTS)),
        measuring.table([f"random search on {ID}", "µs per trial"], micro),
    )


if __name__ == "__main__":
    measuring.run(main)
