"""Speed of round environments and of the courses below them, as ratios within one run.

- **A step** of one environment, five rounds with random actions, resets included, beside a random
  step of CartPole.
- **A course** alone, beside the same course as a bare compiled loop (`engine/bare_loop.py`, equal
  bit for bit), and each of 48 courses in company, beside the course alone.
- **N environments** whose actions change everything on all train instances, beside N times one, on
  one thread and on two.
- **Growth**: seconds of a round by the number of courses, clients, features and rows, with the
  slopes of a fit on logarithms: 1 where the cost is proportional.

Times are of the processor, but for those of two threads, which are of the clock.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "engine"))

import gymnasium as gym
import measuring
import numpy as np
from measuring import number

import fedhpo_gym  # noqa: F401 - registers the environments
from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.backends.training import make_batch, make_course, task_federation
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.tasks import get_task

IDS = ("FedHPO-DAC-LR-BreastCancer-v1", "FedHPO-DAC-LR-Synthetic-v1", "FedHPO-DAC-LR-Twitter-v2")
MANY, ROUNDS = 48, 100
COURSES = {"LR-BreastCancer": 2, "LR-Vehicle": 4, "LR-Digits": 10, "MLP-BreastCancer": 2}
"""Tasks whose courses are timed, with their classes."""
GROWTH: Mapping[str, Sequence[int]] = {
    "courses": (1, 4, 16, 64, 256),
    "clients": (10, 40, 160, 640),
    "features": (8, 32, 128, 512),
    "rows": (20, 80, 320, 1280),
}
USUAL = {"courses": 1, "clients": 20, "features": 16, "rows": 60}


def stepper(env_id: str, **arguments: Any) -> Callable[[], object]:
    """Return a function that takes a random step of an environment, and resets it at the end.

    All its instances have been visited, so that what is made once of each is there.
    """
    env = gym.make(env_id, **arguments)
    for index in range(len(getattr(env.unwrapped, "instances", ()))):
        env.reset(options={"instance": index})
    env.reset(seed=0)
    env.action_space.seed(0)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    return step


def steps(ids: Sequence[str], turns: int) -> dict[str, float]:
    """Return seconds of a step by id, after what a new environment makes once per instance."""
    jobs = {"CartPole-v1": (stepper("CartPole-v1"), 20_000)}
    for env_id in ids:
        jobs[env_id] = stepper(env_id), 400 if "BreastCancer" in env_id else 40
    return measuring.fastest(jobs, turns)


def courses(turns: int) -> dict[tuple[str, str, str], float]:
    """Return seconds of a round, metrics included, by task, setting and way."""
    from bare_loop import run

    jobs: dict[tuple[str, str, str], tuple[Callable[[], object], int]] = {}
    for name in COURSES:
        task = get_task(name)
        federation = task_federation(task, 100)
        low, high = ({d.name: d.decode(end) for d in task.space.dimensions} for end in (-1.0, 1.0))
        middle = {d.name: d.decode(0.0) for d in task.space.dimensions}
        for setting, ends in {"easiest": (high, low), "hardest": (low, high)}.items():
            sizes = {"batch_size": ends[0]["batch_size"], "step_size": ends[1]["step_size"]}
            course = make_course(task, {**middle, **sizes}, 1.0, 100)
            batch = make_batch(task, [course])
            group = batch._groups[0]  # what the bare loop works on
            trainer, items, rates = group._trainer, group.roster.items(), group._settings
            start = group._parameters.copy()
            cohort = np.tile(items.client, (ROUNDS, 1))
            out = np.empty((ROUNDS, 1, federation.num_clients * 3, 3), dtype=np.float32)
            shape = trainer.model.memory(int(items.width.max())), trainer.model.memory(32)
            bare = (
                trainer._data, trainer._train_rows, trainer._rows, trainer._labels, trainer._words,
                (rates.rate[0], rates.decay[0], int(items.batch_size[0]), int(items.epochs[0])),
                cohort, np.tile(items.weight, (ROUNDS, 1)), start, shape, out,
            )  # fmt: skip
            run(*bare)
            curves = batch.advance(ROUNDS).metrics[0].reshape(ROUNDS, 1, -1, 3)
            np.testing.assert_array_equal(out, curves)
            company = make_batch(task, [course] * MANY)
            calls = 5 if setting == "easiest" else 2
            for way, job in (
                ("bare", lambda bare=bare: run(*bare)),
                ("alone", lambda batch=batch: batch.advance(ROUNDS)),
                ("company", lambda company=company: company.advance(ROUNDS // 10)),
            ):
                jobs[name, setting, way] = job, calls
    found = measuring.fastest(jobs, turns)
    share = {"bare": ROUNDS, "alone": ROUNDS, "company": MANY * (ROUNDS // 10)}
    return {key: seconds / share[key[2]] for key, seconds in found.items()}


def vectors(env_id: str, numbers: Sequence[int], turns: int, threads: int) -> dict[int, float]:
    """Return seconds of the clock per step of one environment, by the size of the vector."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    found, one = {}, stepper(env_id)  # which visits all instances
    for count in numbers:
        step, calls = one, 1200
        if count > 1:
            envs = gym.make_vec(env_id, count, "vector_entry_point")
            envs.reset(seed=0)
            envs.action_space.seed(0)
            step, calls = (lambda envs=envs: envs.step(envs.action_space.sample())), 25
        for _ in range(calls):
            step()
        best = float("inf")
        for _ in range(turns):
            begin = time.perf_counter()
            for _ in range(calls):
                step()
            best = min(best, (time.perf_counter() - begin) / calls / count)
        found[count] = best
    return found


def made_batch(courses: int, clients: int, features: int, rows: int) -> CourseBatch:
    """Return courses of logistic regression on made data, of so many training rows per client."""
    rng, each = stream(0, "round_speed"), rows + 4
    values = rng.random((clients * each, features)).astype(np.float32)
    split = [np.split(own, (rows, rows + 2)) for own in np.arange(len(values)).reshape(clients, -1)]
    labels = rng.integers(2, size=len(values))
    federation = Federation(values, labels, 2, tuple(map(tuple, split)), 1)
    given = {"learning_rate": 0.1, "weight_decay": 0.0, "batch_size": 16, "step_size": 1}
    members = [Course(given, 1.0, 1)] * courses
    return CourseBatch({1: federation}, get_model("LR"), get_algorithm("fedavg"), members)


def growth(turns: int) -> dict[tuple[str, int], float]:
    """Return seconds of a round, metrics included, where one number grows."""
    jobs = {}
    for name, sizes in GROWTH.items():
        for size in sizes:
            batch = made_batch(**{**USUAL, name: size})
            jobs[name, size] = (lambda batch=batch: batch.advance(10)), 1 + 64 // size
    return {key: seconds / 10 for key, seconds in measuring.fastest(jobs, turns).items()}


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the tables and write them to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--ids", nargs="+", default=list(IDS), help="round environments")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args(argv)
    step_s, _ = measuring.in_fresh_process(steps, options.ids, options.turns)
    course_s, _ = measuring.in_fresh_process(courses, options.turns)
    growth_s, _ = measuring.in_fresh_process(growth, options.turns)
    sizes = [1, *options.num_envs]
    vector_s = {
        threads: measuring.in_fresh_process(vectors, options.ids[0], sizes, 2, threads)[0]
        for threads in (1, 2)
    }
    cart, one = step_s["CartPole-v1"], vector_s[1][1]
    sections = [
        "## A step",
        measuring.table(
            ("", "steps per second", "of CartPole"),
            [[key, f"{1 / own:,.0f}", number(cart / own)] for key, own in step_s.items()],
        ),
        "## A course",
        f"Microseconds of a round, in calls of {ROUNDS} rounds; easiest is the largest batch size "
        f"and one local epoch, hardest the other ends. Company: {MANY} courses, each.",
        measuring.table(
            ("task, setting", "bare loop", "alone", "alone / bare", "company", "company / alone"),
            [
                [f"{task}, {setting}", *_course_row(course_s, task, setting)]
                for task, setting, way in course_s
                if way == "bare"
            ],
        ),
        "## N environments",
        f"{options.ids[0]}; microseconds of the clock per step of one environment.",
        measuring.table(
            ("N", "one thread", "of N times one", "two threads", "of N times one"),
            [
                [f"{n:,}", *(t for own in vector_s.values() for t in _share(own[n], one))]
                for n in sizes
            ],
        ),
        "## Growth",
        f"Microseconds of a round of logistic regression on made data, where one number grows and "
        f"the others are {USUAL}; rows are those of each client.",
        measuring.table(
            ("", *map(str, range(1, 6)), "slope", "slope of the upper half"),
            [_growth_row(growth_s, name, known) for name, known in GROWTH.items()],
        ),
    ]
    return measuring.write_report(options, "Round environment speed", *sections)


def _course_row(found: Mapping[Any, float], task: str, setting: str) -> list[str]:
    bare, alone, company = (found[task, setting, way] for way in ("bare", "alone", "company"))
    ratios = f"{alone / bare:.2f}", f"{company / alone:.2f}"
    return [number(bare * 1e6), number(alone * 1e6), ratios[0], number(company * 1e6), ratios[1]]


def _share(seconds: float, one: float) -> tuple[str, str]:
    return number(seconds * 1e6), f"{seconds / one:.2f}"


def _growth_row(found: Mapping[Any, float], name: str, sizes: Sequence[int]) -> list[str]:
    seconds = np.array([found[name, size] for size in sizes])
    cells = [f"{size:,}: {number(own * 1e6)}" for size, own in zip(sizes, seconds, strict=True)]
    logs = np.log(sizes), np.log(seconds)
    slopes = [np.polyfit(logs[0][k:], logs[1][k:], 1)[0] for k in (0, len(sizes) // 2)]
    return [name, *cells, *[""] * (5 - len(cells)), *(f"{slope:.2f}" for slope in slopes)]


if __name__ == "__main__":
    measuring.run(main)
