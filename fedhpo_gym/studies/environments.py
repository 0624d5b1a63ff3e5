"""Environments by id or by recorded spec; nothing in a record can choose what code runs.

Plans make environments by id (`make_environment`); replays, regrets and exports make those of
records again (`remake_environment`). Each argument has a class in `TRUST`, which `SECURITY.md`
shows: a record may decide numbers and names of this package, but no program and no file. Custom
objectives are functions, which no record holds, so the user provides them again.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, WrapperSpec, load_env_creator

from fedhpo_gym import wrappers as ours
from fedhpo_gym.algorithms import algorithm_name
from fedhpo_gym.core.checks import coerce, coerce_arguments, parameter_types, short_repr
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError, unknown_name
from fedhpo_gym.core.plugins import import_module, is_named
from fedhpo_gym.objectives import Objective, named_objective

_LISTS = ("objectives", "rewards")
"""Arguments that may hold objectives: of trial environments, and of round environments."""
OWN = "own_objective"
"""Key of a mapping that replaces a custom objective in a record."""


def spec_of(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Return the spec of an environment as plain JSON, with descriptions of custom objectives."""
    if env.spec is None:
        return {}
    kwargs = dict(env.spec.kwargs)
    for name in _LISTS:
        if kwargs.get(name) is not None:
            kwargs[name] = [_describe_objective(objective) for objective in kwargs[name]]
    spec: dict[str, Any] = json.loads(replace(env.spec, kwargs=kwargs).to_json())
    return spec


def insert_objectives(kwargs: Mapping[str, Any], own: Mapping[str, Objective]) -> dict[str, Any]:
    """Return recorded arguments with the user's objectives instead of their descriptions."""
    lists = {name: kwargs[name] for name in _LISTS if isinstance(kwargs.get(name), list | tuple)}
    resolved = {
        name: [_resolve_entry(entry, own) for entry in entries] for name, entries in lists.items()
    }
    return {**kwargs, **resolved}


def _describe_objective(given: str | Objective) -> str | dict[str, Any]:
    objective = named_objective(given)
    if isinstance(objective, str):
        return objective
    return {
        OWN: objective.name,
        "unit": objective.unit,
        "minimize": objective.minimize,
        "bounds": list(objective.bounds),
    }


def _resolve_entry(entry: Any, own: Mapping[str, Objective]) -> Any:
    if isinstance(entry, str) and ":" in entry:
        raise InvalidArgumentError(
            "`objectives` of a record must name no module, which would be run, got "
            f"{short_repr(entry)}"
        )
    if not isinstance(entry, Mapping) or OWN not in entry:
        return entry
    name = entry[OWN]
    if name not in own:
        raise InvalidArgumentError(
            f"`own` must hold the objective {short_repr(name)}: the record was made with a "
            "function of the user's own, which no record holds, and cannot be replayed without "
            "it; give "
            "`own={name: objective}` in Python, and `--set 'objectives=[\"module:name\"]'` to "
            "commands"
        )
    if _describe_objective(own[name]) != entry:
        raise InvalidArgumentError(
            f"`own` must hold the objective {short_repr(name)} as the record says it, "
            f"{short_repr(dict(entry))}, got {short_repr(_describe_objective(own[name]))}"
        )
    return own[name]


def _load_objectives(lists: Iterable[Any]) -> dict[str, Objective]:
    """Return the objectives among others that a user names by `module:name`, by their own names."""
    objectives = map(named_objective, (name for names in lists for name in names or ()))
    return {custom.name: custom for custom in objectives if isinstance(custom, Objective)}


DATA: Final = "data"
"""Numbers, and names of this package: checked by their types and ranges."""
PROGRAM: Final = "program"
"""A program, a folder of code, or settings of a foreign program: only the user may name it."""
SYSTEM: Final = "system"
"""Parameters of a clock: data, but for those that name a file."""

TRUST: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("task", "version", "vector_reward", "render_mode", "backend", "algorithm"),
            *("alpha", "preprocessing", "precision", "table", "settings", "tune", "seed"),
            *("device",),
            *("time_limit_s", "objectives", "constraints", "fidelity", "grid", "freeze_thaw"),
            *("reward_transform", "budget_s", "budget_rounds", "budget_trials", "max_trials"),
            *("instances", "reward", "reward_discount", "reward_per_cost", "noise"),
            *("per_client", "rounds_per_step", "horizon", "client_sample_rate", "dynamic"),
            *("configuration", "history", "potential", "rewards", "reward_scale"),
            *("time_price", "divergence_penalty", "report_moves", "epsilon"),
            *("space", "actions", "continuous", "trials", "choose_fidelity"),
        ),
        DATA,
    ),
    **dict.fromkeys(("source", "interpreter", "own_data"), PROGRAM),
    "system": SYSTEM,
}
"""The class of every argument of an environment."""

FILES: Final = ("path", "devices_path", "availability_path")
"""Parameters of a clock that name a file."""

MOST_ENTRIES: Final = 10_000
"""Numbers and names that the arguments in a record may hold altogether."""


def trusted_arguments(
    arguments: Mapping[str, Any], named: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a record's arguments, with the user's for those that a record may not decide.

    The user's arguments are used only for records that have such an argument.
    """
    user_arguments = dict(named or {})
    if (entries := _count_leaves(arguments)) > MOST_ENTRIES:
        raise InvalidArgumentError(
            f"`spec` of the record must hold at most {MOST_ENTRIES:,} numbers and names as "
            f"arguments, got {entries:,} or more; make the environment in Python if you trust it"
        )
    for name in user_arguments:
        if TRUST.get(name) not in (PROGRAM, SYSTEM) and not _names_module(
            name, user_arguments[name]
        ):
            raise InvalidArgumentError(
                f"`--set {name}` must be one of the arguments that a record may not decide: "
                "source, interpreter, own_data, algorithm=module:Class or a list of them, "
                "objectives as module:name, or system with the path of a file; all others are the "
                f"record's, got {short_repr(user_arguments[name])}"
            )
    result = dict(arguments)
    programs = {name for name in arguments if TRUST.get(name) == PROGRAM}
    if any(arguments[name] is not None for name in programs):
        result |= {name: value for name, value in user_arguments.items() if TRUST[name] == PROGRAM}
    for name in programs - {*user_arguments}:
        if arguments[name] is not None:
            raise _refusal(name, arguments[name], f"{name}=...")
    if "algorithm" in arguments:
        result["algorithm"] = _trusted_algorithm(
            arguments["algorithm"], user_arguments.get("algorithm")
        )
    if isinstance(system := arguments.get("system"), Mapping):
        result["system"] = _trusted_system(system, user_arguments.get("system"))
    return result


def undecided_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a user's arguments that no record decides, to make the environment again."""
    the_users = {}
    for name, value in arguments.items():
        if name in _LISTS:
            value = [entry for entry in value or () if isinstance(entry, str) and ":" in entry]
        elif TRUST.get(name) == SYSTEM and isinstance(value, Mapping):
            value = {file: value[file] for file in FILES if file in value}
        elif TRUST.get(name) != PROGRAM and not _names_module(name, value):
            continue
        if value:
            the_users[name] = value
    return the_users


def _names_module(name: str, value: Any) -> bool:
    """Return whether an argument names modules, which would be imported, and nothing else."""
    names = value if isinstance(value, list | tuple) else [value]
    are_modules = [isinstance(entry, str) and ":" in entry for entry in names]
    return name == "algorithm" and bool(are_modules) and all(are_modules)


def _trusted_algorithm(value: Any, named: Any) -> Any:
    """Return a record's algorithm; for a custom one, the user's class of that name."""
    names = [named] if isinstance(named, str) else [*(named or ())]
    for name in names:  # a record may have the name of what is registered so
        algorithm_name(name)
    if not _names_module("algorithm", value) or value in names:
        return value
    same_class = [
        name for name in names if name.rpartition(":")[2] == str(value).rpartition(":")[2]
    ]
    if len(same_class) == 1:
        return same_class[0]
    if not is_named(value):
        setting = json.dumps([*names, value]) if names else value
        raise _refusal("algorithm", value, f"algorithm={setting}")
    return value


def _trusted_system(system: Mapping[str, Any], named: Any) -> dict[str, Any]:
    files = dict(named) if isinstance(named, Mapping) else {}
    if set(files) - set(FILES):
        raise InvalidArgumentError(
            f"`--set system=` must name files only, by {FILES}, got {short_repr(named)}; the rest "
            "is the record's"
        )
    file_names = [name for name in FILES if system.get(name) not in (None, "")]
    for name in file_names:
        if name not in files:
            raise _refusal(f"system[{name!r}]", system[name], f'system={{"{name}": "..."}}')
    return {**system, **{name: files[name] for name in file_names}}


def _refusal(name: str, value: Any, setting: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"`{name}` must be named by you, not by a record, which could choose any program or file; "
        f"the record has {short_repr(value)}: if you trust it, repeat the command with "
        f"`--set '{setting}'`"
    )


def _count_leaves(value: Any) -> int:
    """Count the leaves of nested lists and mappings, and stop soon after the limit."""
    stack, count = [value], 0
    while stack and count <= MOST_ENTRIES:
        item = stack.pop()
        if isinstance(item, Mapping):
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item[: MOST_ENTRIES + 1]
            count += max(len(item) - MOST_ENTRIES, 0)
        else:
            count += 1
    return count + len(stack)


Types = Mapping[str, Any]

_FOREIGN: Final[tuple[tuple[Callable[..., Any], Types], ...]] = (
    (gym.wrappers.TimeLimit, {"max_episode_steps": int}),
    (gym.wrappers.OrderEnforcing, {"disable_render_order_enforcing": bool}),
    (gym.wrappers.PassiveEnvChecker, {}),
    (gym.wrappers.RecordEpisodeStatistics, {"buffer_length": int, "stats_key": str}),
    (gym.wrappers.FlattenObservation, {}),
    (gym.wrappers.FilterObservation, {"filter_keys": Sequence[str]}),
    (gym.wrappers.NormalizeObservation, {"epsilon": float}),
    (gym.wrappers.ClipAction, {}),
    (gym.wrappers.RescaleAction, {"min_action": float, "max_action": float}),
    (gym.wrappers.ClipReward, {"min_reward": float | None, "max_reward": float | None}),
    (gym.wrappers.NormalizeReward, {"gamma": float, "epsilon": float}),
)
"""Wrappers of Gymnasium with the types of their arguments, narrower than their signatures."""


def _entry_point(wrapper: Any) -> str:
    return f"{wrapper.__module__}:{wrapper.__name__}"


def _argument_types(wrapper: Callable[..., Any]) -> Types:
    return {name: hint for name, hint in parameter_types(wrapper).items() if name != "env"}


ALLOWED: Final[Mapping[str, Callable[[], Types]]] = {
    **{
        _entry_point(getattr(ours, name)): partial(_argument_types, getattr(ours, name))
        for name in ours.__all__
        if issubclass(getattr(ours, name), gym.Wrapper)
    },
    **{_entry_point(wrapper): partial(dict, types) for wrapper, types in _FOREIGN},
}
"""Entry point of each wrapper -> what gives its arguments' types."""


def _with_present_name(wrapper: WrapperSpec) -> WrapperSpec:
    """Return a wrapper by its present name, because older records name its former module."""
    module, _, name = str(wrapper.entry_point).partition(":")
    if module.startswith(f"{ours.__name__}.") and name in ours.__all__:
        return replace(wrapper, entry_point=f"{ours.__name__}:{name}")
    return wrapper


def check_wrapper(wrapper: WrapperSpec) -> None:
    """Refuse a wrapper of a record that is not on the list, or has other arguments."""
    get_types = ALLOWED.get(wrapper.entry_point) if isinstance(wrapper.entry_point, str) else None
    if get_types is None:
        raise InvalidArgumentError(
            f"`spec` of the record names the wrapper {short_repr(wrapper.entry_point)}; a record "
            f"may only ask for {', '.join(sorted(name.rpartition(':')[2] for name in ALLOWED))}. "
            "Replay it in Python, with the environment that it was made in"
        )
    types = get_types()
    if not isinstance(wrapper.kwargs, dict) or set(wrapper.kwargs) - set(types):
        raise InvalidArgumentError(
            f"`spec` of the record must give {wrapper.entry_point} arguments among "
            f"{sorted(types)}, got {short_repr(wrapper.kwargs)}"
        )
    for name, value in wrapper.kwargs.items():
        coerce(f"spec: {wrapper.entry_point}: {name}", value, types[name])


_ID = re.compile(r"^(MO-)?FedHPO-")
_VERSION = re.compile(r"-v(\d+)$")
IDENTIFYING = ("task", "space", "version", "vector_reward")
"""Arguments that identify the problem of an id: only the id decides them."""


def known_ids() -> tuple[str, ...]:
    """Return the registered ids of this package."""
    return tuple(sorted(name for name in gym.registry if _ID.match(name)))


def resolve_id(name: str, others: Iterable[str] = ()) -> str:
    """Return the full, newest id of a name; `others` are names that would do as well.

    In `module:name`, as Gymnasium has it, the module is imported first: it registers the id.
    """
    module, colon, name = name.rpartition(":")
    if colon:
        import_module(f"`{module}:{name}` must name a module that registers the id", module)
    if name in gym.registry:
        return name
    versions = [candidate for candidate in known_ids() if _VERSION.sub("", candidate) == name]
    if not versions:
        raise unknown_name("problem" if others else "environment id", name, [*others, *known_ids()])
    return max(versions, key=lambda candidate: int(candidate.rpartition("-v")[2]))


MANY_TASK_KINDS = ("pool", "generated")
"""Kinds of ids of FedHPO-B and of generated tasks, of which each task is a problem of a study."""


def kind_of_id(env_id: str) -> str:
    """Return the kind of an id: "trial", "round", or one of `MANY_TASK_KINDS`."""
    return kind_of_entry_point(gym.spec(env_id).entry_point)


def kind_of_entry_point(entry_point: object) -> str:
    """Return the kind of environment that an entry point makes, for ids unknown here, too."""
    name = str(entry_point).rpartition(":")[2]
    return name.removeprefix("make_").removesuffix("_env")


def make_environment(env_id: str, kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make an environment for a recorded run, without Gymnasium's checks of every step.

    It does not warn of an older version, because suites and users name versions on purpose.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* is out of date", DeprecationWarning)
        return gym.make(env_id, disable_env_checker=True, **as_settable(env_id, kwargs))


def as_settable(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of an environment, coerced to the types of its entry point."""
    entry_point = gym.spec(env_id).entry_point
    maker = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if maker is None:
        raise InvalidArgumentError(f"`env_id` must have an entry point, and {env_id!r} has none")
    for name in IDENTIFYING:
        if name in kwargs:
            raise InvalidArgumentError(
                f"`{name}` cannot be set, got {short_repr(kwargs[name])}: it is what {env_id} "
                "stands for; use the id of the problem that you mean"
            )
    return coerce_arguments(env_id, maker, kwargs, (*IDENTIFYING, "render_mode"))


def remake_environment(
    env_id: str,
    spec: Mapping[str, Any],
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> gym.Env[Any, Any]:
    """Make the environment of a record again."""
    if env_id not in gym.registry:
        unknown = unknown_name("environment id", env_id, known_ids())
        unknown.args = (
            f"{unknown} One of your own is known once the module that registers it is imported: "
            "name the module by `fedhpo-gym replay --plugins MODULE`, or in an entry point "
            "`fedhpo_gym` of your package.",
        )
        raise unknown
    try:
        env_spec = EnvSpec.from_json(json.dumps(spec))
    except (ValueError, TypeError, KeyError, gym.error.Error) as error:
        raise InvalidArgumentError(f"`spec` of the record is no EnvSpec: {error}") from error
    registered = gym.spec(env_id)
    # A spec names code to import and call, and a foreign record could name anything.
    if (env_spec.id, env_spec.entry_point) != (env_id, registered.entry_point):
        raise InvalidArgumentError(
            f"`spec` of the record must be one of {env_id} (entry point {registered.entry_point}), "
            f"got {env_spec.id} (entry point {env_spec.entry_point})"
        )
    # Only the id decides which problem it is.
    identity = {name: registered.kwargs[name] for name in IDENTIFYING if name in registered.kwargs}
    arguments = {name: value for name, value in env_spec.kwargs.items() if name not in IDENTIFYING}
    named = dict(named or {})
    own = {**_load_objectives([named.pop(name, ()) for name in _LISTS]), **(own or {})}
    env_spec.kwargs = insert_objectives({**trusted_arguments(arguments, named), **identity}, own)
    _check_options(env_spec)
    env_spec.additional_wrappers = tuple(map(_with_present_name, env_spec.additional_wrappers))
    for wrapper in env_spec.additional_wrappers:
        check_wrapper(wrapper)
    try:
        return gym.make(env_spec)
    except FedHPOError:
        raise
    except (ValueError, TypeError, AssertionError, gym.error.Error) as error:
        raise InvalidArgumentError(
            f"`spec` of the record cannot be made into {env_id}: {error}"
        ) from error


def _check_options(env_spec: EnvSpec) -> None:
    """Refuse options of Gymnasium that are not of their declared type."""
    if "render_mode" in env_spec.kwargs:
        coerce("spec: render_mode", env_spec.kwargs["render_mode"], None)
    coerce("spec: order_enforce", env_spec.order_enforce, bool)
    coerce("spec: disable_env_checker", env_spec.disable_env_checker, bool)
    limit = coerce("spec: max_episode_steps", env_spec.max_episode_steps, int | None)
    if limit is not None and limit < 1:
        raise InvalidArgumentError(f"`spec: max_episode_steps` must be positive, got {limit}")
