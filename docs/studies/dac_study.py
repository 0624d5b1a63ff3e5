"""Learn policies in the problems of dynamic configuration; compare them on held-out instances.

    python docs/studies/dac_study.py --out DIR

Policies are learned in vector environments on train instances, as long as `PROBLEMS` says; of those
on the way, the one that is best on validation instances is kept. They are set beside stated
settings and schedules, which were searched on train instances (`fedhpo-gym references`), and beside
methods that learn within the course that they are judged by. All are judged on the same held-out
instances, whose seeds no other set has. Finished pieces are kept: start it again after an
interruption. The report is DIR/report.md, with pictures; it is renewed whenever a seed of a problem
is done.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from dac_report import write_report
from numpy.typing import NDArray
from pieces import claim, pieces
from tqdm import tqdm

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.agents.auto_fedrl import AutoFedRLSettings
from fedhpo_gym.agents.clients import listed_arms
from fedhpo_gym.agents.cloning import clone, demonstrate
from fedhpo_gym.agents.evolution import evolve_policy
from fedhpo_gym.agents.policy import Policy, load_policy, save_policy
from fedhpo_gym.agents.sb3 import train
from fedhpo_gym.agents.schedule import Schedule
from fedhpo_gym.agents.training import make_vector, play
from fedhpo_gym.backends.quadratic_schedules import best_schedule
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.stored.references import references_of
from fedhpo_gym.studies.population import PopulationSettings, evolve_population
from fedhpo_gym.studies.references import SEARCH_BUDGETS, Player, evenly_spaced, evolve
from studies import positive, rewrite, study_parser

Pairs = list[list[float]]
Act = Callable[[int, Mapping[str, NDArray[Any]]], NDArray[Any]]
HELD_OUT = 5000
"""First seed of held-out instances; train, val and test have others."""


@dataclass(frozen=True)
class Problem:
    """A problem, the steps that a policy is learned in, and on how many instances it is judged."""

    title: str
    steps: int = 40_000
    judged: int = 48
    validated: int = 16
    episodes: int = 8
    """Of each candidate of the evolution of policies."""
    num_envs: int = 32
    """Side by side, in which the others learn."""
    seeds: int = 10
    """Policies of each kind, at most."""

    @property
    def id(self) -> str:
        return f"FedHPO-DAC-{self.title}-v1"

    @cached_property
    def length(self) -> int:
        """Most steps of an episode."""
        player = Player(self.id, "train", 1)
        player.close()
        return player.steps


PROBLEMS = (
    Problem("Quadratic", 1_000_000, judged=240, validated=48, episodes=24),
    Problem("FewClients"),
    Problem("LabelSkew"),
    Problem("Private"),
    Problem("Deadline"),
    Problem("Tuna", 20_000),
    Problem("ExamLondon"),
    Problem("Pictures", 4_000, judged=12, validated=4, episodes=2, num_envs=8, seeds=1),
)
READ = ("remaining_rounds", "remaining_budget", "val_loss")
"""What evolved policies read: all problems show it, and nothing of it is of one alone."""


@dataclass(frozen=True)
class Study:
    """Which policies are learned, and how often."""

    problems: Sequence[Problem] = PROBLEMS
    seeds: int = 2
    judgements: int = 20
    members: int = 10


def held_out(problem: Problem) -> Pairs:
    """Return instances that no set of the id has, spread over its concentrations."""
    with gym.make(problem.id) as env:
        alphas = sorted({one.alpha for one in env.unwrapped.instances})
    return [[alphas[i % len(alphas)], HELD_OUT + i] for i in range(problem.judged)]


def _of(instances: str | Pairs) -> dict[str, Any]:
    """Return the arguments of an environment with a set of instances, or with listed ones."""
    return {"instances": instances, **({} if isinstance(instances, str) else {"alpha": None})}


def judged(problem: Problem, act: Act, instances: str | Pairs, number: int) -> list[float]:
    """Play one episode on each of some instances, side by side; return their returns."""
    env: Any = make_vector(problem.id, number, _of(instances))
    rows = evenly_spaced(len(env.process.instances), number)
    returns = np.zeros(number)
    for _, _, rewards, _ in play(env, act, options={"instance": rows}):
        returns += rewards
    env.close()
    found: list[float] = returns.tolist()
    return found


def followed(policy: Policy | Schedule) -> Act:
    """Return how a policy acts, whatever the step is."""
    return lambda _, shown: policy.act(shown)


def stated(problem: Problem) -> dict[str, Any]:
    """Return what the default and the stated settings reach, on validation and held-out ones."""
    known = _references(problem)
    with gym.make(problem.id) as env:
        space = env.unwrapped.search_space
        middle = space.decode(np.zeros(len(space)))
    who = {"default": Schedule(space, middle)}
    for kind, configuration in known.configurations.items():
        who[kind] = Schedule(space, configuration, kind)
    sets = {"val": ("val", problem.validated), "held_out": (held_out(problem), problem.judged)}
    found: dict[str, Any] = {
        name: {one: judged(problem, followed(actor), *where) for one, actor in who.items()}
        for name, where in sets.items()
    }
    hindsight = known.score(known.returns["hindsight"]).mean()
    found |= {"best_schedule": known.best_schedule, "hindsight": float(hindsight)}
    if problem.title == "Quadratic":
        with gym.make(problem.id, **_of(held_out(problem))) as env:
            optima = [1.0 - best_schedule(one)[1] for one in env.unwrapped.instances]
        found["optimum"] = optima
    return found


def _references(problem: Problem) -> Any:
    known = references_of(problem.id)
    if known is None:
        raise InvalidArgumentError(f"run `fedhpo-gym references {problem.id}` first")
    return known


def learn(problem: Problem, learner: str, out: Path, seed: int, points: int) -> dict[str, Any]:
    """Learn a policy and save the best on validation instances; return its curve and returns."""
    curve: list[tuple[int, float]] = []
    policies: list[Policy] = []

    def judge(done: int, policy: Policy) -> None:
        returns = judged(problem, followed(policy), "val", problem.validated)
        curve.append((done, float(np.mean(returns))))
        policies.append(policy)

    begun = time.process_time()
    with tqdm(total=problem.steps, desc=f"{problem.title} {learner} {seed}", disable=None) as bar:
        last = LEARNERS[learner](
            problem,
            seed=seed,
            env_arguments={"instances": "train"},
            made_by=f"python docs/studies/{Path(__file__).name} --out {out}",
            progress=bar.update,
            judge=judge,
            judge_every=problem.steps // points,
        )
    if not curve or curve[-1][0] < problem.steps:
        judge(problem.steps, last)
    policy = policies[int(np.argmax([value for _, value in curve]))]
    spent = time.process_time() - begun
    save_policy(policy, out / f"policy-{problem.title}-{learner}-{seed}")
    returns = judged(problem, followed(policy), held_out(problem), problem.judged)
    return {"curve": curve, "cpu_s": spent, "returns": returns}


def _ppo(problem: Problem, **options: Any) -> Policy:
    settings = {
        "n_steps": 2 * problem.length,
        "batch_size": problem.num_envs * problem.length // 2,
        "n_epochs": 8,
        "learning_rate": lambda left: 1e-3 * max(left, 0.0),  # steps are rounded up
        "gamma": 1.0,
        "policy_kwargs": {"log_std_init": -1.5},
    }
    more = {"layers": (16,), "settings": settings}
    return train(
        problem.id, "PPO", steps=problem.steps, num_envs=problem.num_envs, **more, **options
    ).policy


def _off_policy(algorithm: str, problem: Problem, **options: Any) -> Policy:
    """SAC and double DQN: an update for every step of all environments."""
    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "gamma": 1.0,
        "buffer_size": 100_000,
        "batch_size": 256,
        "learning_starts": min(1_000, problem.steps // 10),
        "train_freq": 1,
        "gradient_steps": 1,
    }
    if algorithm == "DDQN":
        settings |= {"exploration_fraction": 0.5, "target_update_interval": 50 * problem.num_envs}
    more = {"layers": (32, 32), "settings": settings}
    return train(
        problem.id, algorithm, steps=problem.steps, num_envs=problem.num_envs, **more, **options
    ).policy


def _evolution(problem: Problem, **options: Any) -> Policy:
    search = {"layers": (8,), "entries": READ, "episodes": problem.episodes}
    return evolve_policy(problem.id, steps=problem.steps, **search, **options).policy


def _cloning(
    problem: Problem, *, seed: int, made_by: str, progress: Callable[[int], object], **_: Any
) -> Policy:
    """Clone hindsight: sequences that evolve on train instances, from the stated ones."""
    effort = SEARCH_BUDGETS["half"]
    player = Player(problem.id, "train", 32, lambda courses: progress(courses * player.steps))
    length = player.steps
    known = _references(problem).configurations
    schedules = [Schedule(player.space, one, kind) for kind, one in known.items()]
    courses = effort.generations * effort.children + len(known)
    number = min(player.instances, max(2, problem.steps // length // courses))
    effort = replace(effort, generations=(problem.steps // length // number) // effort.children)
    rows = evenly_spaced(player.instances, number)
    found, begin = player.follow(schedules, rows)
    rng = stream(seed, "cloning")
    sequences = evolve(player, rows, begin, found, effort, rng)[1]
    player.close()
    again = [*range(number)] * max(1, 64 // number)
    shown, said = demonstrate(
        problem.id,
        [rows[i] for i in again],
        sequences[again],
        noise=0.1,
        seed=seed,
        env_arguments={"instances": "train"},
    )
    return clone(shown, said, seed=seed, layers=(16,), entries=READ, made_by=made_by)


LEARNERS: Mapping[str, Callable[..., Policy]] = {
    "PPO": _ppo,
    "SAC": partial(_off_policy, "SAC"),
    "DDQN": partial(_off_policy, "DDQN"),
    "CMA-ES": _evolution,
    "cloning": _cloning,
}


def in_course(problem: Problem, agent: str, members: int) -> dict[str, Any]:
    """Return what a method reaches that learns within the course; or why it cannot take part.

    What is free in it is chosen on validation instances.
    """
    with gym.make(problem.id, instances="val") as env:
        every = [[one.alpha, one.seed] for one in env.unwrapped.instances]
        space = env.unwrapped.search_space
    static = space.validate(_references(problem).configurations["static"])
    val = [every[i] for i in evenly_spaced(len(every), problem.validated // 3)]
    play_one = _population if agent == "population" else partial(_episode, agent)
    options = {"population": [{"members": members}]}.get(agent) or _options(agent, space, static)
    try:
        means = [
            np.mean([play_one(problem, one, choice) for one in val]) if len(options) > 1 else 0.0
            for choice in options
        ]
        best = options[int(np.argmax(means))]
        returns = [play_one(problem, one, best) for one in held_out(problem)]
    except FedHPOError as error:
        return {"reason": str(error)}
    return {"returns": returns}


def _options(agent: str, space: Any, static: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is tried of a method, which begins with the best static configuration."""
    if agent == "fedhyper":
        return [{"configuration": static, "step": step} for step in (1.0, 10.0, 100.0)]
    if agent == "auto-fedrl":
        widths = [AutoFedRLSettings(width=width) for width in (0.1, 0.3)]
        return [{"configuration": static, "settings": one} for one in widths]
    if agent == "fedtune":
        return [{"start": static}]
    middle = space.encode(static)
    noise = stream(0, "arms").standard_normal((26, len(space)))
    near = [np.clip(middle + width * noise, -1.0, 1.0) for width in (0.1, 0.3)]
    return [{"arms": listed_arms(np.concatenate([middle[None], one]))} for one in near]


def _episode(agent: str, problem: Problem, instance: list[float], options: Any) -> float:
    needed = {"fedhyper": {"report_moves": True}, "fedex": {"per_client": True}}
    with gym.make(problem.id, **_of([instance]), **needed.get(agent, {})) as env:
        made = make_agent(agent, env, seed=0, **options)
        return float(sum(step.reward for step in run_episode(env, made, seed=0)))


def _population(problem: Problem, instance: list[float], options: Any) -> float:
    with gym.make(problem.id, **_of([instance])) as env:
        space, settings = env.unwrapped.search_space, PopulationSettings(**options)
        *_, last = evolve_population(env, space, 0, settings)
    return float(last.best.score)


IN_COURSE = ("fedhyper", "auto-fedrl", "fedtune", "fedex", "population")


def transferred(study: Study, out: Path, source: Problem, target: Problem) -> list[list[float]]:
    """Return what policies evolved in one problem reach in another, a row per seed.

    Hyperparameters are matched by name and value; what the policy does not know stays at the best
    static configuration of the target.
    """
    spaces = []
    for one in (source, target):
        with gym.make(one.id) as env:
            spaces.append(env.unwrapped.search_space)
    static = _references(target).configurations["static"]

    def translated(policy: Policy) -> Act:
        def act(_: int, shown: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
            rows = []
            for action in policy.act(shown):
                values = dict(static)
                for name, value in spaces[0].decode(action).items():
                    if name in spaces[1].names:
                        dimension = spaces[1][name]
                        values[name] = min(max(value, dimension.low), dimension.high)
                rows.append(spaces[1].encode(values))
            return np.array(rows, dtype=np.float32)

        return act

    found = []
    for seed in range(min(study.seeds, source.seeds)):
        policy = load_policy(out / f"policy-{source.title}-CMA-ES-{seed}")
        act = followed(policy) if source is target else translated(policy)
        found.append(judged(target, act, held_out(target), target.judged))
    return found


def run(study: Study, out: Path, workers: int) -> None:
    """Do every piece that is not there yet, and renew the report as they are done."""
    results: dict[str, Any] = {}

    def do(jobs: Mapping[str, Callable[[], Any]]) -> None:
        found = pieces({out / f"{name}.json": job for name, job in jobs.items()}, workers)
        results.update({path.stem: value for path, value in found.items()})
        write_report(study, results, out)

    titles = {one.title: one for one in study.problems}
    do({f"stated-{title}": partial(stated, one) for title, one in titles.items()})
    for title, one in titles.items():
        do(
            {
                f"course-{title}-{agent}": partial(in_course, one, agent, study.members)
                for agent in IN_COURSE
            }
        )
    for seed, (title, one) in product(range(study.seeds), titles.items()):
        do(
            {
                f"learned-{title}-{name}-{seed}": partial(
                    learn, one, name, out, seed, study.judgements
                )
                for name in LEARNERS
                if seed < one.seeds
            }
        )
    do(
        {
            f"transfer-{source}-{target}": partial(
                transferred, study, out, titles[source], titles[target]
            )
            for source, target in product(titles, titles)
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--seeds", type=positive, help="policies of each kind (default: 2)")
    parser.add_argument("--page", type=Path, help="whose tables and pictures are replaced")
    parser.add_argument("--problems", nargs="+", choices=[one.title for one in PROBLEMS])
    options = parser.parse_args(arguments)
    study = Study()
    if options.quick:
        least = {"steps": 160, "judged": 2, "validated": 3, "episodes": 2, "num_envs": 8}
        small = [Problem(one, **least) for one in ("Quadratic", "Deadline")]
        study = Study(small, 1, 2, 2)
    if options.seeds:
        study = replace(study, seeds=options.seeds)
    if options.problems:
        chosen = [one for one in study.problems if one.title in options.problems]
        study = replace(study, problems=chosen)
    claim(options.out, study)
    run(study, options.out, options.workers)
    words = (options.out / "report.md").read_text(encoding="utf-8")
    if options.page:
        rewrite(options.page, "results", words)
        for name in ("dac_curves.png", "dac_scores.png"):
            shutil.copy(options.out / name, options.page.parent)
    print(words)


if __name__ == "__main__":
    main()
