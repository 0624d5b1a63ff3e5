"""Train a policy that sets learning rate and local epochs while a course runs; compare it fairly.

    python docs/studies/train_dac_policy.py --out DIR

PPO trains on several tables at once; what it learned is saved, loaded again, and set on held-out
instances beside static configurations and hand-made schedules, tuned by random searches that took
as many rounds on the same train instances. BreastCancer and Digits need no download; OpenML tables
join where they have been fetched (`fedhpo-gym download CreditG Vehicle Australian
BloodTransfusion`). Finished pieces are kept: start it again after an interruption. DIR holds one
study, and says in study.json which. The report is DIR/report.md, with a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from dac_report import write_report
from numpy.typing import NDArray
from pieces import claim, pieces, read

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents.policy import Actor, load_policy
from fedhpo_gym.agents.schedule import Schedule
from fedhpo_gym.agents.training import make_vector
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import SearchSpace
from studies import positive, study_parser, tables_here, trained_policy

TRAINED = ("BreastCancer", "Digits", "CreditG", "Vehicle")
UNSEEN = ("Australian", "BloodTransfusion")
KINDS = ("static", "cosine", "step")


@dataclass(frozen=True)
class Study:
    """How much is done. A table gets `rollouts` x `slots` courses in training and in each search.

    `slots` courses are trained side by side, at little more than the price of one.
    """

    trained: Sequence[str]
    unseen: Sequence[str]
    rollouts: int = 40
    searched_instances: int = 10
    tested_instances: int = 12
    policies: int = 4
    horizon: int = 30
    rounds_per_step: int = 3
    slots: int = 24

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what every environment is made with."""
        return {
            "dynamic": ["learning_rate", "step_size"],
            "configuration": {"batch_size": 32, "weight_decay": 0.0},
            "horizon": self.horizon,
            "rounds_per_step": self.rounds_per_step,
        }

    @property
    def configurations(self) -> int:
        """Number of configurations that a search tries on every one of its instances."""
        return self.rollouts * self.slots // self.searched_instances


def env_id(table: str) -> str:
    """Return the id of a table's round environment."""
    return f"FedHPO-DAC-LR-{table}-v0"


def instances(table: str, kind: str, number: int) -> list[list[float]]:
    """Return some instances of a set, spread over seeds and concentrations."""
    with gym.make(env_id(table), instances=kind) as env:
        found = [[one.alpha, one.seed] for one in env.unwrapped.instances]
    chosen = stream(0, f"instances_{kind}").permutation(len(found))[:number]
    return [found[index] for index in sorted(chosen)]


def space_of(study: Study) -> SearchSpace:
    """Return what an action sets; the same for all tables."""
    with gym.make(env_id(study.trained[0]), **study.arguments) as env:
        return env.unwrapped.search_space


def play(
    study: Study, table: str, instance: Sequence[float], actors: Sequence[Actor]
) -> dict[str, list[float]]:
    """Let every actor run one course of the same instance, side by side."""
    env = make_vector(env_id(table), len(actors), {**study.arguments, "instances": [instance]})
    shown, _ = env.reset(seed=0)
    returns = np.zeros(len(actors))
    done = np.zeros(len(actors), dtype=bool)
    kept: dict[str, NDArray[np.float64]] = {
        name: np.zeros(len(actors)) for name in ("val_loss", "test_loss", "test_accuracy")
    }
    while not done.all():
        rows = [{name: value[i] for name, value in shown.items()} for i in range(len(actors))]
        actions = [actor.act(row) for actor, row in zip(actors, rows, strict=True)]
        shown, rewards, ended, _, info = env.step(np.stack(actions))
        new = ended & ~done
        returns += np.where(done, 0.0, rewards)
        if new.any():
            last = info["final_info"]
            kept["val_loss"][new] = last["val_loss"][new]
            kept["test_loss"][new] = last["test"]["loss"][new]
            kept["test_accuracy"][new] = last["test"]["accuracy"][new]
        done |= ended
    env.close()
    return {"return": returns.tolist(), **{name: v.tolist() for name, v in kept.items()}}


def train_policy(study: Study, out: Path, seed: int) -> dict[str, Any]:
    """Train and save one policy; return how it went."""
    env_steps = study.horizon // study.rounds_per_step
    steps = study.rollouts * study.slots * len(study.trained) * env_steps
    returns, record = trained_policy(
        Path(__file__).name,
        out,
        seed,
        [env_id(table) for table in study.trained],
        "PPO",
        steps=steps,
        num_envs=study.slots,
        env_arguments=study.arguments,
        share_starts=True,
        settings={
            "n_steps": env_steps,
            "batch_size": study.slots * env_steps,
            "n_epochs": 10,
            "learning_rate": 1e-3,
            "policy_kwargs": {"log_std_init": -0.5},
        },
    )
    width = study.slots * len(study.trained)
    curve = returns[: study.rollouts * width].reshape(-1, width).mean(axis=1)
    return {"curve": curve.tolist(), **record}


def candidates(study: Study, kind: str) -> list[Schedule]:
    """Return what the random search of one kind of schedule tries: the prior of the space."""
    space, rng = space_of(study), stream(0, "random_search_dac")
    actions = rng.uniform(-1.0, 1.0, (study.configurations, len(space)))
    return [Schedule(space, space.decode(action), kind) for action in actions]


def search(study: Study, table: str, kind: str) -> dict[str, Any]:
    """Return (instances, configurations) returns of every candidate on train instances."""
    tried = candidates(study, kind)
    rows = []
    for instance in instances(table, "train", study.searched_instances):
        parts = [
            play(study, table, instance, tried[start : start + study.slots])["return"]
            for start in range(0, len(tried), study.slots)
        ]
        rows.append([value for part in parts for value in part])
    return {"returns": rows}


def contestants(study: Study, out: Path, table: str) -> dict[str, Actor]:
    """Return who is compared on a table, by name."""
    space = space_of(study)
    middle = space.decode(np.zeros(len(space)))
    found: dict[str, Actor] = {"default": Schedule(space, middle)}
    for kind in KINDS:
        tried = candidates(study, kind)
        means = {
            trained: np.mean(read(search_path(out, trained, kind))["returns"], axis=0)
            for trained in study.trained
        }
        found[f"{kind}, one for all"] = tried[int(np.mean(list(means.values()), axis=0).argmax())]
        if table in means:
            found[f"{kind}, per table"] = tried[int(means[table].argmax())]
    for seed in range(study.policies):
        found[f"policy {seed}"] = load_policy(out / f"policy-{seed}")
    return found


def search_path(out: Path, table: str, kind: str) -> Path:
    """Return where a search is kept."""
    return out / f"search-{table}-{kind}.json"


def test(study: Study, out: Path, table: str) -> dict[str, Any]:
    """Return what every contestant reached on every held-out instance."""
    who = contestants(study, out, table)
    played = [
        {"instance": one, **play(study, table, one, list(who.values()))}
        for one in instances(table, "test", study.tested_instances)
    ]
    return {"names": list(who), "played": played}


def run(study: Study, out: Path, workers: int) -> Mapping[str, Any]:
    """Do every piece that is not there yet, and return them all."""
    training = {
        out / f"training-{seed}.json": partial(train_policy, study, out, seed)
        for seed in range(study.policies)
    }
    searches = {
        search_path(out, table, kind): partial(search, study, table, kind)
        for table, kind in product(study.trained, KINDS)
    }
    found = pieces({**training, **searches}, workers)
    tables = {out / f"test-{table}.json": table for table in (*study.trained, *study.unseen)}
    tests = pieces({path: partial(test, study, out, tables[path]) for path in tables}, workers)
    return {
        "policies": [found[path] for path in training],
        "tests": {tables[path]: result for path, result in tests.items()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--policies", type=positive, help="how many are trained (default: 4)")
    options = parser.parse_args(arguments)
    if options.quick:
        study = Study(("BreastCancer",), (), 2, 2, 2, 1, 6)
    else:
        study = Study(tables_here(TRAINED), tables_here(UNSEEN))
    if options.policies:
        study = replace(study, policies=options.policies)
    claim(options.out, study)
    results = run(study, options.out, options.workers)
    write_report(study, results, candidates, options.out)
    print((options.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
