"""`fedhpo-gym list | agents`: the environments with their backends on this machine, and the agents.

Other subcommands use its functions, too: which backends are available (`backends`), which ids share
stored numbers (`answering_tasks`), and which variants have stored numbers (`stored_variants`).
Names of stored files are read once (`stored_names`), because opening all of them takes seconds.
"""

from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from fedhpo_gym.agents import AGENTS, agent_class
from fedhpo_gym.agents import REGISTERED as OWN_AGENTS
from fedhpo_gym.agents.base import Agent
from fedhpo_gym.agents.multi_fidelity import LadderSearch
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.backends import BACKENDS, COURSES, STORED
from fedhpo_gym.backends.federatedscope.installation import why_not
from fedhpo_gym.cli.console import Word, echo, echo_prose, echo_table
from fedhpo_gym.core.errors import (
    FedHPOError,
    MissingDataError,
    MissingDependencyError,
    unknown_name,
)
from fedhpo_gym.core.identity import BUILT_TABLE, OMITTED_VALUES, Identity
from fedhpo_gym.data import get_source
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.fl.models import COMPILED
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.catalogue import (
    find_stored,
    has_sample,
    has_table,
    is_here,
    is_installed,
    list_samples,
    list_tables,
    open_sample,
    open_table,
)
from fedhpo_gym.stored.lattice import StoredNumbers
from fedhpo_gym.stored.meta_data import MetaData, known_spaces, open_meta_data
from fedhpo_gym.stored.surrogate import (
    Surrogate,
    has_surrogate,
    list_surrogates,
    open_surrogate,
    with_surrogate,
)
from fedhpo_gym.stored.table import SUFFIX as SAMPLE
from fedhpo_gym.stored.task_generator import has_generator, open_generator
from fedhpo_gym.studies.environments import known_ids
from fedhpo_gym.studies.suites import SUITES, suite
from fedhpo_gym.tasks import REGISTERED, TASKS, TRAINED, Task, get_task, task_of, versions_of
from fedhpo_gym.tasks.meta import GENERATED_IDS, META_IDS, generated_space, meta_space


@dataclass(frozen=True)
class StoredNames:
    """Stored numbers on this machine, by the stems of their files."""

    tables: Sequence[str]
    samples: Sequence[str]
    surrogates: Sequence[str]

    def identity(self, name: str) -> Identity:
        """Return which variant the numbers of a name belong to."""
        if name in self.tables:
            return open_table(name).identity
        return (open_sample(name) if name in self.samples else open_surrogate(name)).identity


def stored_names() -> StoredNames:
    """Return the names of all tables, samples and surrogates whose arrays are on this machine."""
    samples = ((name, find_stored(name, f"{SAMPLE}.json")) for name in list_samples())
    return StoredNames(
        [name for name in list_tables() if is_here(name)],
        [name for name, card in samples if card is not None and is_installed(card)],
        list_surrogates(),
    )


VARIANT_HEADS = ("id", "backends", "arguments")
HEADS = ("id", "clients", "tuned", "grid", "budget", "backends")


def list_ids(word: Word = None) -> int:
    """Print one line per environment; with a word, only lines that hold it, or of its suite."""
    names = stored_names()
    meta_ids = [name for name, space in META_IDS.items() if space in known_spaces()]
    custom_ids = (f"FedHPO-{key}" for key in REGISTERED)
    stored_ids = (*meta_ids, *filter(has_generator, GENERATED_IDS))
    ids_in_order = (*(task.id for task in TASKS.values()), *custom_ids, *stored_ids)
    rows = [_row_or_fault(name, names) for name in ids_in_order]
    variants, faults = stored_variants(names)
    if word is not None:
        ids = suite(word) if word in SUITES else [name for name in known_ids() if word in name]
        matching_rows = [row for row in rows if word in " ".join(row) and word not in SUITES]
        listed_rows = matching_rows or [_row_or_fault(name, names) for name in ids]
        variants = [row for row in variants if word in " ".join(row)]
        if not listed_rows and not variants:
            candidates = [*SUITES, *(row[0] for row in rows)] + [
                task.dataset for task in TASKS.values()
            ]
            raise unknown_name("environment", word, candidates)
        if listed_rows:
            echo_table(HEADS, listed_rows)
        _say_variants(variants)
        return 0
    echo_table(HEADS, rows)
    _say_variants(variants)
    for note in [f"Not listed: {fault}." for fault in faults] + [*_notes()]:
        echo("")
        echo_prose(note)
    return 0


def _say_variants(rows: Sequence[tuple[str, str, str]]) -> None:
    if rows:
        echo("\nVariants with stored numbers, by the arguments of gymnasium.make:\n")
        echo_table(VARIANT_HEADS, rows)


def _notes() -> Iterator[str]:
    """Yield notes below the table, a paragraph at a time."""
    yield (
        "tuned: hyperparameters. grid: configurations of a table, with the values between them on "
        "a surrogate and raw. budget: simulated hours of an episode. The first backend answers "
        "by default; where tabular comes after surrogate or alone, it may be a pool: exact answers "
        "of some configurations (`fedhpo-gym show ID` says which)."
    )
    yield (
        f"{len(TRAINED)} more ids train on {len(NATURAL)} natural federations, "
        f"FedHPO-{next(iter(TRAINED))} and so on: see docs/natural.md, and the suites natural, "
        "natural-small, joint and contest."
    )
    yield (
        f"{', '.join(META_IDS)}: many tasks each, of which an episode is one, with a grid (pool) "
        "of its own and no budget but trials, and from which agents learn. "
        f"{', '.join(GENERATED_IDS)}: tasks like these, generated; see docs/fedhpo_b.md."
    )
    yield (
        "FedHPO-... ids, short joint ones excepted, are also there as FedHPO-DAC-...: dynamic "
        "algorithm configuration. A step sets the hyperparameters of the next rounds of one "
        "course, which is really trained. FedHPO-DAC-Quadratic-v1 has no trials: its courses are "
        "on quadratics, whose best schedule is known."
    )
    yield "Every id is also there as MO-..., with one reward per objective."
    if without := sum(bool(why_not(task)) for task in TASKS.values()):
        yield (
            f'backend="federatedscope" does not answer {without} of these ids here; '
            "`fedhpo-gym show ID` says why."
        )


def _row_or_fault(env_id: str, names: StoredNames) -> tuple[str, ...]:
    """Return the row of an id; a faulty task of a user becomes a row that names the fault."""
    try:
        return _environment_row(env_id, names)
    except (FedHPOError, OSError) as error:
        if env_id.removeprefix("FedHPO-") not in REGISTERED:
            raise
        return env_id, *"––––", f"none: {error}"


def _environment_row(env_id: str, names: StoredNames) -> tuple[str, ...]:
    if (space := meta_space(env_id)) is not None:
        return _pool_row(env_id, open_meta_data(space))
    if (space := generated_space(env_id)) is not None:
        size = len(open_generator(space).space)
        return env_id, "–", str(size), "–", "–", "tasks without end: a number is one"
    task, backends_taken = get_task(env_id), backends_of(env_id)
    available = [name for name in backends(task, names) if name in backends_taken]
    backend_text = ", ".join(available) or f"none yet: `{_what_helps(task, backends_taken)}`"
    if "DAC-" in env_id:
        return env_id, str(task.num_clients), str(len(round_space(task))), "–", "–", backend_text
    budget, grid = f"{float(f'{task.budget_s / 3600:.3g}'):g} h", str(task.space.grid_size)
    return env_id, str(task.num_clients), str(len(task.space)), grid, budget, backend_text


def round_space(task: Task) -> SearchSpace:
    """Return the search space of actions of a task's round id."""
    from fedhpo_gym.envs.round.arguments import RoundArguments

    return RoundArguments(**task.round_arguments).controls.space


def _pool_row(env_id: str, data: MetaData) -> tuple[str, ...]:
    clients = [int(task["clients"]) for task in data.card["tasks"]]
    answer = f"{len(data.names)} tasks: pool, surrogate"
    try:
        data.require_installed()
    except MissingDataError:
        answer = "none yet: `pip install ./data`"
    pool = str(data.card["pool"])
    return env_id, f"{min(clients)}-{max(clients)}", str(len(data.space)), pool, "–", answer


def backends_of(env_id: str) -> Collection[str]:
    """Return the backends that an id accepts; trials may be stored, interactive courses may not."""
    return COURSES if "DAC-" in env_id else BACKENDS


WITHOUT_DATA = ("function", "quadratic")
"""Backends of problems without data: functions of users, and quadratics."""


def relevant_backends(task: Task, env_id: str) -> list[str]:
    """Return the backends that an id accepts and that could have its task."""
    unstored_names = [task.unstored] if task.unstored in WITHOUT_DATA else [*STORED, task.unstored]
    return [
        name
        for name in backends_of(env_id)
        if (name not in WITHOUT_DATA if task.has_data else name in unstored_names)
    ]


def backends(task: Task, names: StoredNames) -> list[str]:
    """Return the backends that are available for a task on this machine, the default first."""
    available = ["tabular"] if task.table_name in names.tables else []
    if any(
        identity.name in names.surrogates for identity in with_surrogate(task.surrogate_identities)
    ):
        available.append("surrogate")
    if task.table_name in names.samples and available[:1] != ["tabular"]:
        available.append("tabular")
    if not task.has_data:
        return [*available, *{task.unstored} - {*STORED}]
    if task.table == BUILT_TABLE and not missing_requirement(task):
        available.append("raw")
        if not why_not(task):
            available.append("federatedscope")
    return available


def _what_helps(task: Task, backends_taken: Container[str]) -> str:
    if task.table != BUILT_TABLE:
        return task.identity.command
    missing = missing_requirement(task) if task.has_data else None
    is_stored = has_table(task.table_name) or has_sample(task.table_name)
    is_not_installed = "tabular" in backends_taken and is_stored
    return (
        "pip install ./data"
        if is_not_installed or not missing
        else f"pip install '.[{missing[1]}]'"
    )


def missing_requirement(task: Task) -> tuple[str, str] | None:
    """Return a package that is not installed and its extra, if training a task needs one."""
    trainer = ("numba", "compiled") if COMPILED.issuperset(task.models) else ("torch", "raw")
    requirements = (trainer, get_source(task.dataset).library)
    return next((pair for pair in requirements if pair and not find_spec(pair[0])), None)


def stored_variants(
    names: StoredNames, task: str = ""
) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Return the stored variants, of one task or all, that no id has by default.

    The second list has the errors of cards that cannot be read.
    """
    defaults = {
        i.name for task in TASKS.values() for i in (task.identity, *task.surrogate_identities)
    }
    backends_by_variant: dict[tuple[str, str], set[str]] = {}
    faults = []
    for name in sorted({*names.tables, *names.samples, *names.surrogates} - defaults):
        if not name.startswith(task):
            continue
        try:
            identity = names.identity(name)
            known_task = get_task(identity.id)  # which the catalogue may not have
            if name in {i.name for i in (known_task.identity, *known_task.surrogate_identities)}:
                continue
            arguments = ", ".join(arguments_of(identity))
        except FedHPOError as error:
            faults.append(str(error))
            continue
        answers = backends_by_variant.setdefault((newest_id(identity), arguments), set())
        answers.update({"surrogate"} if name in names.surrogates else ())
        answers.update({"tabular"} if name in {*names.tables, *names.samples} else ())
    rows = [
        (name, ", ".join(sorted(answers, reverse=True)), arguments)
        for (name, arguments), answers in backends_by_variant.items()
    ]
    return rows, faults


def newest_id(identity: Identity) -> str:
    """Return the newest id that uses stored numbers; its variant has their arguments."""
    stem = (identity.task, identity.version)
    tasks = [t for t in versions_of(identity.task) if (t.name, t.numbers_version) == stem]
    return max(tasks or [get_task(identity.id)], key=lambda task: task.version).id


def answering_tasks(stored: StoredNumbers) -> list[Task]:
    """Return the versions of a variant that use stored numbers, the oldest first.

    A version that shares numbers does not use the surrogate of another version if it has its own.
    """
    identity = stored.identity
    changes, tuned = (
        {**OMITTED_VALUES, **dict(identity.options)},
        {n: x for n, *x in identity.tuned},
    )
    versions = (
        task.variant(**changes).fix(dict(identity.settings)).tune(tuned)
        for task in versions_of(identity.task)
    )
    if not isinstance(stored, Surrogate):
        return [task for task in versions if task.identity == identity]
    fitted_tasks = (
        (task, [other for other in task.surrogate_identities if has_surrogate(other.name)])
        for task in versions
    )
    return [task for task, fitted in fitted_tasks if fitted[:1] == [identity]]


def arguments_of(identity: Identity) -> Iterator[str]:
    """Yield the algorithm, and all other arguments that differ from the defaults of the id."""
    default, settings = get_task(identity.id), task_of(identity).settings
    for name, value in identity.options:
        if name == "algorithm" or value != getattr(default, name):
            yield f"{name}={value!r}"
    if settings:
        pairs = (f"{name!r}: {int(x) if x == int(x) else x}" for name, x in settings)
        yield f"settings={{{', '.join(pairs)}}}"
    if identity.tuned:
        ranges = (f"{name!r}: [{low:g}, {high:g}]" for name, low, high in identity.tuned)
        yield f"tune={{{', '.join(ranges)}}}"


AGENT_HEADS = ("agent", "acts on", "chooses rounds", "objectives", "constraints", "several workers")
MANY = {"scalar": "one", "vector": "many", "any": "one or many"}


def list_agents(word: Word = None) -> int:
    """Print a line per agent whose line holds a word, or of `module:Class`; 0."""
    rows, missing = [], dict[str, list[str]]()
    agents = {**AGENTS, **OWN_AGENTS}
    for name in (word,) if word and (":" in word or word in agents) else agents:
        try:
            row = _agent_row(name, agent_class(name))
        except MissingDependencyError as error:
            if (word or "") in name:
                missing.setdefault(str(error), []).append(name)
            continue
        if (word or "") in " ".join(row):
            rows.append(row)
    if word and not (rows or missing):
        raise unknown_name("agent", word, agents)
    echo_table(AGENT_HEADS, rows)
    for reason, names in missing.items():
        echo(f"\nNot listed: {', '.join(names)}: {reason}")
    return 0


def _agent_row(name: str, kind: type[Agent]) -> tuple[str, ...]:
    chooses = issubclass(kind, LadderSearch) or kind.fidelity is not None
    searches = issubclass(kind, TrialSearch)
    uses_constraints = searches and getattr(kind, "takes_constraints", False)
    return (
        name,
        ", ".join(f"{process}s" for process in kind.acts_on),
        "always" if chooses else "where they are free",
        MANY[kind.rewards],
        "as such" if uses_constraints else "by penalties",
        "yes" if "trial" in kind.acts_on else "no",
    )
