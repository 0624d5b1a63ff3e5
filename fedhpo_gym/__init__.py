"""Federated hyperparameter optimisation as reinforcement-learning environments.

Importing the package registers its ids with Gymnasium; `gym.make("fedhpo_gym:<id>")` imports it.
It also fixes how torch will multiply matrices, see `fedhpo_gym.core.processor`.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from fedhpo_gym.algorithms import register_algorithm
from fedhpo_gym.core import __version__
from fedhpo_gym.core.checks import coerce, coerce_arguments, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_optional
from fedhpo_gym.core.plugins import load_entry_points
from fedhpo_gym.core.processor import fix_dispatch
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks import REGISTERED, TASKS, TRAINED, TRIALS_ONLY, Task, get_task
from fedhpo_gym.tasks.dynamic import DYNAMIC, round_arguments
from fedhpo_gym.tasks.meta import GENERATED_IDS, META_IDS
from fedhpo_gym.tasks.own import ModelTask, NewTask, read_task_file, task_files, write_task
from fedhpo_gym.tasks.quadratic import QUADRATIC

ENTRY_POINT = "fedhpo_gym.envs:make_trial_env"
POOL_ENTRY_POINT = "fedhpo_gym.envs:make_pool_env"
GENERATED_ENTRY_POINT = "fedhpo_gym.envs:make_generated_env"
ROUND_ENTRY_POINT = "fedhpo_gym.envs:make_round_env"


@validate_call
def register_all(tasks: Iterable[Task] = TASKS.values()) -> None:
    """Register `FedHPO-*`, `FedHPO-DAC-*`, and their `MO-` twins with vector rewards, once.

    Every version of a problem has ids of its own.

    Only strings are registered; what an id needs is imported when it is made. Gymnasium's checker
    knows no vector rewards and would warn at every step, so the twins go without it.
    """
    for task in tasks:
        _register_problem(task.key, task.round_preprocessing)


def _register_problem(key: str, round_preprocessing: str, *, rounds: bool = True) -> None:
    _register_twins(f"FedHPO-{key}", ENTRY_POINT, {"task": key})
    if rounds and not key.startswith(TRIALS_ONLY):
        own = {"task": key, "preprocessing": round_preprocessing}
        _register_twins(f"FedHPO-DAC-{key}", ROUND_ENTRY_POINT, own)


def _register_twins(name: str, entry_point: str, kwargs: dict[str, Any]) -> None:
    """Register an id and its twin with vector rewards, each with its vector form."""
    vector = entry_point.replace("_env", "_vector_env")
    for prefix, extra in (("", {}), ("MO-", {"vector_reward": True})):
        # Not `gym.register`: it compares a name with all there are, for thousands of names.
        if (env_id := f"{prefix}{name}") not in gym.registry:
            gym.registry[env_id] = EnvSpec(
                env_id,
                entry_point,
                vector_entry_point=vector,
                disable_env_checker=bool(extra),
                kwargs={**kwargs, **extra},
            )


@validate_call
def register_task(task: Task) -> str:
    """Add a problem of your own and return its id; all ids of the problem are registered.

    Worker processes import the module that calls this, so it stands in a module of its own:
    `fedhpo-gym compare mine:FedHPO-LR-Mine` then imports mine.py.

    Args:
        task: what is asked. Its data set is one of this package, or was registered before by
            `fedhpo_gym.data.register_source`; so is its model, by `register_model`.

    Raises:
        InvalidArgumentError: this package has a problem of that name and version.
    """
    _require_free(task.key)
    return _add(task.key, lambda: task, task.round_preprocessing, rounds=task.has_data)


TAKEN = ("MO", "DAC", "B", "Generated", "Results")
"""Words with which ids of other kinds begin."""


def _require_free(name: str) -> None:
    """Refuse the name of a model or problem that makes an id one of another kind."""
    if name.partition("-")[0] in TAKEN:
        raise InvalidArgumentError(f"`name` must not begin with one of {TAKEN}, got {name!r}")


def _add(
    key: str, make: Callable[[], Task], round_preprocessing: str, *, rounds: bool = True
) -> str:
    """Register a user's problem and its ids."""
    REGISTERED.add(key, make)
    _register_problem(key, round_preprocessing, rounds=rounds)
    return f"FedHPO-{key}"


@validate_call
def register_function(name: str, function: Callable[..., Any], space: Any, **options: Any) -> str:
    """Make a problem of a function f(configuration, fidelity) -> metrics, and return its id.

    What it calls is not asked: a simulation of Flower, a cluster, a formula. Trials cost what the
    system model says of rounds, clients and parameters, not what the function takes.

    Args:
        name: of the problem, `<Method>-<Problem>`, such as "Flower-Digits".
        function: takes a configuration and a fidelity, mappings from names, and perhaps a `seed`.
            It returns a mapping from the names in `told` to a number, or one per client. Where its
            "val_loss" is not finite, the trial has diverged. It stands in a module of its own.
        space: what is tuned: a `SearchSpace` or a ConfigSpace, conditions included.
        options: as of `fedhpo_gym.backends.function.FunctionTask.of`: `rounds` (needed), `rates`,
            `told`, `clients`, `by_client`, `num_parameters`, `budget_s`, `seeds`, `version`, ...

    Raises:
        InvalidArgumentError: an argument is out of its range, or the id is one of this package. One
            of your own is replaced, as notebooks need.
    """
    from fedhpo_gym.backends.function import FunctionTask

    if not isinstance(space, SearchSpace):
        from fedhpo_gym.space.configspace import from_configspace

        space = from_configspace(space)
    named = ["name", "function", "space"]
    known = coerce_arguments("register_function", FunctionTask.of, options, named)
    return register_task(FunctionTask.of(name, function, space, **known))


@validate_call
def register_model(
    name: str,
    build: Callable[..., Any],
    tasks: Sequence[str] = (),
    dimensions: Sequence[Dimension] = (),
) -> tuple[str, ...]:
    """Let federations train a `torch.nn.Module` of your own, and return the ids of its problems.

    Args:
        name: what ids call it, such as "Net".
        build: called with the shape of one sample, the number of classes and, by name, a value of
            each of the dimensions; returns a module that gives (rows, classes) logits. It stands in
            a module of its own, which worker processes import.
        tasks: whose data, clients and budgets are used, such as "LR-CreditG".
        dimensions: hyperparameters that shape the module, numbers each.

    Raises:
        InvalidArgumentError: this package has a model of that name.
        UnknownNameError: there is no such task.
        MissingDependencyError: torch is not installed.
    """
    with require_optional(f"model {name}", "torch", "torch", "torch"):
        from fedhpo_gym.fl.models import REGISTERED as OWN_MODELS
        from fedhpo_gym.fl.models.module import module_model
    _require_free(name)
    kind = module_model(name, build, [one.name for one in dimensions])
    OWN_MODELS.add(name, lambda: kind)
    found = []
    for like in map(get_task, tasks):
        key = f"{name}-{like.name.partition('-')[2]}-v{like.version}"
        make = partial(_own_model_task, like, name, build, dimensions)
        found.append(_add(key, make, like.round_preprocessing))
    return tuple(found)


def _own_model_task(
    like: Task, name: str, build: Callable[..., Any], dimensions: Sequence[Dimension]
) -> Task:
    from fedhpo_gym.data import load_dataset
    from fedhpo_gym.fl.models.module import as_inputs, count_parameters

    shape: Sequence[int] = (like.num_features,)
    if not like.tags & {"tabular-data", "natural"}:  # of images the data say the shape
        shape = as_inputs(load_dataset(like.dataset).features[np.arange(1)]).shape[1:]
    size = partial(count_parameters, build, tuple(shape), like.num_classes)
    return ModelTask.like(like, name, dimensions, size)


@validate_call
def new_task(data: Any, target: str | None = None, **options: Any) -> NewTask:
    """Make a problem of data of your own, whose ids this and every later process knows.

    It writes a task file, which a person can read and change, and a copy of the data. Its arguments
    are those of `fedhpo_gym.tasks.own.write_task`, and so are its errors.
    """
    made = write_task(data, target, **coerce_arguments("new_task", write_task, options, ["source"]))
    register_task_file(made.path)
    return made


@validate_call
def import_results(data: Any, name: str, parameters: int, **options: Any) -> tuple[str, Path]:
    """Make a problem of a table of finished courses, and return its id and the card of its numbers.

    A complete grid becomes a table, which answers at once; else a sample, on which `fedhpo-gym
    surrogate` fits what answers. It writes a task file, so every later process knows the id. Its
    arguments are those of `fedhpo_gym.building.results_frame.import_frame`, and so are its errors.
    """
    from fedhpo_gym.building.results_frame import import_frame

    others = coerce_arguments(
        "import_results", import_frame, options, ["data", "name", "parameters"]
    )
    path, card = import_frame(data, name, parameters, **others)
    return register_task_file(path)[0], card


@validate_call
def register_task_file(path: Path) -> tuple[str, ...]:
    """Register the ids of a task file, and return those of its trial environments.

    Raises:
        InvalidArgumentError: an entry of the file is missing, unknown or out of its range.
        MissingDataError: there is no such file, or it cannot be read.
    """
    found = read_task_file(path)
    for key in _of_files.pop(path.resolve(), ()):
        _forget(key)  # an earlier version of the file: its data may be others now
    _of_files[path.resolve()] = tuple(found)
    return tuple(_add(key, make, "standardized") for key, make in found.items())


_of_files: dict[Path, tuple[str, ...]] = {}


def _forget(key: str) -> None:
    if key in REGISTERED:
        del REGISTERED[key]  # `pop` would make it, and so read its data
    for prefix in ("FedHPO-", "MO-FedHPO-", "FedHPO-DAC-", "MO-FedHPO-DAC-"):
        gym.registry.pop(f"{prefix}{key}", None)


@validate_call
def parallel_env(env_id: str, *, reward: str = "team", **arguments: Any) -> Any:
    """Make a round environment whose clients are agents, as a PettingZoo parallel environment.

    Args:
        env_id: a `FedHPO-DAC-*` id.
        reward: "team" or "own"; see `fedhpo_gym.envs.round.parallel.ClientsParallelEnv`.
        arguments: further arguments of `gymnasium.make`.

    Raises:
        MissingDependencyError: the extra `marl` is not installed.
        InvalidArgumentError: the id is of another kind, or an argument is out of its range.
    """
    kind = "a FedHPO-DAC-* id, whose clients can act as agents"
    why = "in a trial environment one action is for the whole federation"
    _require_kind(coerce("env_id", env_id, str), (ROUND_ENTRY_POINT,), kind, why)
    with require_optional("making clients agents", "PettingZoo", "marl", "pettingzoo"):
        from fedhpo_gym.envs.round.parallel import ClientsParallelEnv
    return ClientsParallelEnv(gym.make(env_id, per_client=True, **arguments), reward)


@validate_call
def parallel(env: gym.Env[Any, Any], workers: int = 8) -> Any:
    """Let simulated workers run the trials of an environment side by side.

    Asynchronous ask and tell: `start` gives a trial to a free worker, `finish` returns the next one
    that ends. See `fedhpo_gym.wrappers.parallel_trials.ParallelTrials`, which it returns.

    Args:
        env: a trial environment, as `gymnasium.make` returns it.
        workers: how many.

    Raises:
        InvalidArgumentError: `env` is of another kind, or `workers` is out of its range.
    """
    from fedhpo_gym.wrappers.parallel_trials import ParallelTrials

    return ParallelTrials(env, workers)


@validate_call
def load_runs(folder: str | Path, named: Mapping[str, Any] | None = None) -> Any:
    """Return all run records of a folder as a pandas DataFrame, one row a trial.

    Its columns are those of `fedhpo_gym.studies.export.load_runs`.

    Args:
        folder: of records, JSON lines or Parquet; or one file.
        named: what a record may not decide and its regret needs, such as
            `{"algorithm": "module:Class"}`; a warning says where that is missing.

    Raises:
        MissingDataError: there is no record.
        DamagedDataError: a record is damaged.
        MissingDependencyError: pandas is not installed.
    """
    from fedhpo_gym.studies.export import load_runs as load

    return load(folder, named)


@validate_call
def truth(env_id: str, **arguments: Any) -> Any:
    """Return what can be reached in a trial environment with stored numbers.

    Optimum, Pareto fronts of any objectives, ideal and nadir points, hypervolumes: see
    `fedhpo_gym.envs.truth.Truth`. It is what `gymnasium.make(...).unwrapped.truth` is.

    Args:
        env_id: a `FedHPO-*` or `MO-FedHPO-*` id.
        arguments: further arguments of `gymnasium.make`: `objectives`, `backend`, `fidelity`, ...

    Raises:
        InvalidArgumentError: the id is of another kind, the backend trains, or an argument is out
            of its range; of FedHPO-B and generated tasks, `instances` are not one.
        MissingDataError: no numbers of the id are stored here.
    """
    why = "courses of round environments are trained: nobody knows what they can reach"
    known = ENTRY_POINT, POOL_ENTRY_POINT, GENERATED_ENTRY_POINT
    _require_kind(coerce("env_id", env_id, str), known, "a FedHPO-* id of trials", why)
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    return env.unwrapped.truth  # type: ignore[attr-defined]


def _require_kind(env_id: str, entry_points: Sequence[str], kind: str, why: str) -> None:
    """Refuse ids of other kinds; one that nobody registered is left to `gymnasium.make`."""
    name = env_id.rpartition(":")[2]
    known = [spec for key, spec in gym.registry.items() if name in (key, key.rpartition("-v")[0])]
    if known and all(spec.entry_point not in entry_points for spec in known):
        raise InvalidArgumentError(f"`env_id` must be {kind}, got {env_id!r}; {why}")


fix_dispatch()  # it is read once, so before anybody multiplies matrices
register_all()
for _key in TRAINED:
    _register_problem(_key, "standardized")
del _key
_register_twins(QUADRATIC.round_id, ROUND_ENTRY_POINT, {**QUADRATIC.round_arguments})
for _name in DYNAMIC:
    _register_twins(f"FedHPO-DAC-{_name}-v1", ROUND_ENTRY_POINT, round_arguments(_name))
for _id, _space in META_IDS.items():
    _register_twins(_id, POOL_ENTRY_POINT, {"space": _space})
for _id, _space in GENERATED_IDS.items():
    _register_twins(_id, GENERATED_ENTRY_POINT, {"space": _space})
load_entry_points()
for _path in task_files():
    try:
        register_task_file(_path)
    except Exception as error:  # noqa: BLE001 - one file must not keep the package from working
        warnings.warn(f"{str(error)[:1000]} ({_path}); it is left out", stacklevel=1)

__all__ = [
    "__version__",
    "import_results",
    "load_runs",
    "new_task",
    "parallel",
    "parallel_env",
    "register_algorithm",
    "register_all",
    "register_function",
    "register_model",
    "register_task",
    "register_task_file",
    "truth",
]
