"""Train a policy that proposes configurations; compare it with optimizers on unseen tables.

    python docs/studies/train_trial_policy.py --out DIR

PPO or SAC trains on train instances of some problems at once, rewarded with what the incumbent is
worth on average over the time of the budget. On other problems, and on test instances of the same
ones, it stands beside random search, TPE, and one fixed sequence of trials: the greedy best on the
same train instances. What is compared is the regret of the incumbent over simulated time. All
answers are looked up in tables: nothing is trained but policies. `--trained` and `--unseen` take
environment ids. Finished pieces are kept: start it again after an interruption. DIR holds one
study, and says in study.json which. The report is DIR/report.md, with a picture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from pieces import claim, pieces, read
from tqdm import tqdm
from trial_report import write_report

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import Step, make_agent, run_episode
from fedhpo_gym.agents.policy import save_policy
from fedhpo_gym.agents.sb3 import train
from fedhpo_gym.studies.environments import resolve_id
from studies import positive, study_parser

TRAINED = ("BreastCancer", "Digits", "CreditG", "Vehicle", "KC1", "Australian")
UNSEEN = ("BloodTransfusion", "Car", "Segment")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """How much is done, and on which problems; a policy sees `steps` trials.

    Searchers choose the number of rounds, unless `rounds` fixes it.
    """

    trained: Sequence[str]
    unseen: Sequence[str]
    steps: int = 200_000
    policies: int = 3
    seeds: int = 5
    budget_s: float = 7200.0
    slots: int = 24
    rollout: int = 32
    longest: int = 200
    rounds: int | None = None
    algorithm: str = "PPO"
    reward: str = "anytime"

    @property
    def settings(self) -> dict[str, Any]:
        """Return what the algorithm is made with. The reward "anytime" needs no discount."""
        environments = self.slots * len(self.trained)
        if self.algorithm == "SAC":
            return {
                "gamma": 0.999,
                "learning_starts": 10 * environments,
                "batch_size": 256,
                "gradient_steps": 8,
                "learning_rate": 1e-3,
            }
        return {
            "gamma": 1.0 if self.reward == "anytime" else 0.97,
            "n_steps": self.rollout,
            "batch_size": environments * self.rollout // 4,
            "n_epochs": 6,
            "ent_coef": 1e-3,
            "learning_rate": 1e-3,
        }

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what every environment is made with."""
        fixed = {"client_sample_rate": 1.0}
        if self.rounds is not None:
            fixed["round"] = self.rounds
        return {"backend": "tabular", "fidelity": fixed, "budget_s": self.budget_s}

    @property
    def grid_times(self) -> Floats:
        """Simulated seconds at which regrets are compared."""
        return np.linspace(0.0, self.budget_s, 101)[1:]


def instances(study: Study, env_id: str) -> list[dict[str, Any]]:
    """Return the instances that are new: all of an unseen problem, else those for tests."""
    found = []
    for kind in ("train", "test") if env_id in study.unseen else ("test",):
        env = gym.make(env_id, instances=kind, **study.arguments)
        found += [
            {name: getattr(one, name) for name in ("alpha", "preprocessing", "seed")}
            for one in env.unwrapped.instances
        ]
    return found


def grid_actions(space: Any) -> NDArray[np.float32]:
    """Return (cells, n) actions, one for every cell of a grid."""
    axes = [[dimension.encode(value) for value in dimension.grid] for dimension in space.dimensions]
    cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    return cells.reshape(-1, len(axes)).astype(np.float32)


def all_cells(study: Study, env_id: str, **chosen: Any) -> Iterator[tuple[Floats, Floats]]:
    """Yield, for each instance, (cells,) what first trials are worth, and their seconds."""
    one = gym.make(env_id, **chosen, **study.arguments)
    actions = grid_actions(one.get_wrapper_attr("search_space"))
    envs = gym.make_vec(
        env_id, len(actions), reward="incumbent", autoreset_mode="Disabled", **chosen,
        **study.arguments,
    )  # fmt: skip
    for number in range(len(one.unwrapped.instances)):
        envs.reset(seed=0, options={"instance": number})
        _, worth, _, _, info = envs.step(actions)
        yield worth, info["cost"]["time_s"]


def find_sequence(study: Study) -> dict[str, Any]:
    """Return a sequence of actions: each time the one that gains most per second, on average."""
    found = [pair for one in study.trained for pair in all_cells(study, one, instances="train")]
    worth, seconds = (np.array(column) for column in zip(*found, strict=True))
    best, chosen = np.zeros(len(worth)), []
    for _ in range(study.longest):
        gain = np.maximum(worth - best[:, None], 0.0) / seconds
        cell = int(gain.mean(axis=0).argmax())
        if gain[:, cell].max() == 0.0:
            break
        chosen.append(cell)
        best = np.maximum(best, worth[:, cell])
    with gym.make(study.trained[0], **study.arguments) as env:
        actions = grid_actions(env.get_wrapper_attr("search_space"))
    return {"actions": actions[chosen].tolist(), "instances": len(worth)}


def train_policy(study: Study, out: Path, seed: int) -> dict[str, Any]:
    """Train and save one policy; return how it went."""
    line = {"desc": f"policy {seed}", "position": seed + 1, "leave": False}
    began = time.process_time()
    with tqdm(total=study.steps, disable=None, **line) as bar:
        training = train(
            list(study.trained),
            study.algorithm,
            steps=study.steps,
            seed=seed,
            num_envs=study.slots,
            env_arguments={**study.arguments, "instances": "train", "reward": study.reward},
            settings=study.settings,
            made_by=f"python docs/studies/{Path(__file__).name} --out {out}",
            progress=bar.update,
        )
    save_policy(training.policy, out / f"policy-{seed}")
    record = {"steps": study.steps, "cpu_s": time.process_time() - began}
    returns = training.episode_returns
    tenth = max(1, len(returns) // 10)
    curve = [returns[:tenth].mean(), returns[-tenth:].mean()]
    return {"returns": [float(one) for one in curve], **record}


def episode(env: gym.Env[Any, Any], who: str, seed: int, out: Path) -> Iterator[Step]:
    """Let a contestant search from a reset to the end of the budget."""
    if who == "sequence":
        return follow(env, np.array(read(out / "sequence.json")["actions"], dtype=np.float32))
    if who == "policy":
        return run_episode(env, make_agent(who, env, 0, policy=out / f"policy-{seed}"), seed=0)
    return run_episode(env, make_agent(who, env, seed), seed=0)


def follow(env: gym.Env[Any, Any], actions: NDArray[np.float32]) -> Iterator[Step]:
    """Do one action after the other; the last one again, if there is time left."""
    env.reset(seed=0)
    number, over = 0, False
    while not over:
        action = actions[min(number, len(actions) - 1)]
        _, reward, terminated, truncated, info = env.step(action)
        number, over = number + 1, terminated or truncated
        yield Step(action, reward, terminated, truncated, info)


def regrets(study: Study, optimum: float, steps: Iterator[Step]) -> list[float]:
    """Return the regret at `grid_times`: what the incumbent's worth lacks to the optimum."""
    done = list(steps)
    ends = np.array([step.info["elapsed_s"] for step in done])
    worth = np.array([0.0, *(step.reward for step in done)])
    found = optimum - worth[np.searchsorted(ends, study.grid_times, side="right")]
    return [float(one) for one in found]


def test(study: Study, out: Path, env_id: str) -> dict[str, Any]:
    """Return the regrets of every contestant on the new instances of a problem."""
    runs = {"random": study.seeds, "optuna-tpe": study.seeds, "sequence": 1}
    runs["policy"] = study.policies
    played = []
    for one in instances(study, env_id):
        [(worth, _)] = all_cells(study, env_id, instances=[one])
        env = gym.make(
            env_id, instances=[one], reward="incumbent", disable_env_checker=True, **study.arguments
        )
        found = {
            who: [
                regrets(study, float(worth.max()), episode(env, who, seed, out))
                for seed in range(number)
            ]
            for who, number in runs.items()
        }
        played.append({"instance": one, "optimum": float(worth.max()), "regrets": found})
    return {"played": played}


def run(study: Study, out: Path, workers: int) -> Mapping[str, Any]:
    """Do every piece that is not there yet, and return them all."""
    trainings = {
        out / f"training-{seed}.json": partial(train_policy, study, out, seed)
        for seed in range(study.policies)
    }
    jobs: dict[Path, Callable[[], Any]] = {**trainings}
    jobs[out / "sequence.json"] = partial(find_sequence, study)
    found = pieces(jobs, workers)
    everything = (*study.trained, *study.unseen)
    paths = {out / f"test-{one.removeprefix('FedHPO-')}.json": one for one in everything}
    tests = pieces({path: partial(test, study, out, one) for path, one in paths.items()}, workers)
    return {
        "policies": [found[path] for path in trainings],
        "sequence": found[out / "sequence.json"],
        "tests": {paths[path]: result["played"] for path, result in tests.items()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--policies", type=positive, help="how many are trained (default: 3)")
    parser.add_argument("--steps", type=positive, help="trials per policy (default: 200,000)")
    parser.add_argument("--algorithm", choices=("PPO", "SAC"), help="what trains it (default: PPO)")
    parser.add_argument("--reward", choices=("anytime", "improvement"), help="(default: anytime)")
    for kind, names in (("trained", TRAINED), ("unseen", UNSEEN)):
        ids = [f"FedHPO-LR-{name}" for name in names]
        parser.add_argument(f"--{kind}", nargs="+", default=ids, metavar="ID", help="problems")
    options = parser.parse_args(arguments)
    trained, unseen = ([resolve_id(n) for n in ids] for ids in (options.trained, options.unseen))
    study = Study(trained, unseen)
    if options.quick:
        study = Study(trained[:1], unseen[:1], 64, 1, 1, 600.0, 2, 16, 5, rounds=27)
    names = ("policies", "steps", "algorithm", "reward")
    given = {name: getattr(options, name) for name in names}
    study = replace(study, **{name: value for name, value in given.items() if value})
    claim(options.out, study)
    results = run(study, options.out, options.workers)
    write_report(study, results, options.out)
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
