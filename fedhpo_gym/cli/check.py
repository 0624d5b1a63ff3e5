"""`fedhpo-gym check`: what other libraries' checkers say of ids, and the engine's laws here."""

from collections.abc import Sequence
from fnmatch import filter as matching
from typing import Annotated

from fedhpo_gym.cli.console import Arg, echo, say_table
from fedhpo_gym.core.errors import InvalidArgumentError, require_optional
from fedhpo_gym.core.markdown import markdown_row, markdown_table
from fedhpo_gym.core.processor import rounding_platform, version_of
from fedhpo_gym.studies.environments import resolve_id
from fedhpo_gym.tasks import TASKS
from fedhpo_gym.tasks.meta import MANY_TASKS


def main(
    ids: Annotated[Sequence[str], Arg("ids, `FedHPO-DAC-*`, `all`; or what you added", "ID")] = (),
    *,
    laws: Annotated[bool, Arg("try all laws of what you added, such as `mine:Greedy`")] = False,
    engine: Annotated[bool, Arg("say whether courses have equal bits in any company here")] = False,
) -> int:
    """Check ids, the engine, or both; 1 where something was refused or does not hold."""
    if laws:
        with require_optional("the kit of checks", "pytest", "check", "pytest"):
            from fedhpo_gym.testing import check_plugin
        kept = [check_plugin(name) for name in ids]
        return 0 if all(kept) else 1
    if not ids and not engine:
        raise InvalidArgumentError("`ids` must name what to check, got none; or give `--engine`")
    holds = not engine or _engine_holds()
    return 0 if (not ids or _ids_pass(ids)) and holds else 1


def _engine_holds() -> bool:
    """Print which laws of the engine hold on this processor, a line per family of models."""
    with require_optional("training", "torch", "torch", "torch"):
        from fedhpo_gym.fl import self_check
    for name, value in rounding_platform().items():
        echo(f"{name + ':':<11}{value}")
    verdicts = self_check.check_engine()
    words = {True: "yes", False: "NO", None: "not tried"}
    rows = []
    for family in dict.fromkeys(one.family for one in verdicts):
        found = {one.law: words[one.holds] for one in verdicts if one.family == family}
        rows.append([family, *(found.get(law, "–") for law in self_check.LAWS)])
    echo("")
    say_table(["family", *self_check.LAWS], rows)
    echo("")
    for law, meaning in self_check.LAWS.items():
        echo(f"{law}: {meaning}")
    for one in verdicts:
        if not one.holds:
            echo(f"\n{one.family}, {one.law}: {one.words}")
    broken = [one for one in verdicts if one.holds is False]
    if any(one.law != self_check.GRADIENT for one in broken):
        echo(f"\n{self_check.advice()}")
    return not broken


def _ids_pass(ids: Sequence[str]) -> bool:
    """Print a Markdown table, a line per id as it is checked; return whether no id was refused."""
    with require_optional("the kit of checks", "pytest", "check", "pytest"):
        from fedhpo_gym.testing import checks
    everything = [name for task in TASKS.values() for name in checks.ids(task)]
    everything += [f"{mo}{name}" for name in MANY_TASKS for mo in ("", "MO-")]
    heads = [f"{name} {version_of(name) or '(missing)'}" for name in checks.CHECKS]
    echo(markdown_table(["id", *heads, "CPU s"], []))
    found: list[checks.Verdict] = []
    for env_id in chosen(ids, everything):
        verdicts = {verdict.check: verdict for verdict in checks.check_id(env_id)}
        cells = [verdicts[name].outcome if name in verdicts else "–" for name in checks.CHECKS]
        seconds = sum(verdict.cpu_s for verdict in verdicts.values())
        echo(markdown_row([env_id, *cells, f"{seconds:.1f}"]))
        found += verdicts.values()
    for verdict in found:
        if verdict.words:
            echo(f"\n{verdict.env_id}, {verdict.check}: {verdict.outcome}: {verdict.words}")
    outcomes = [verdict.outcome for verdict in found]
    counts = ", ".join(
        f"{outcomes.count(name)} {name}" for name in (checks.PASSED, checks.FAILED, checks.SKIPPED)
    )
    echo(f"\n{len({verdict.env_id for verdict in found})} ids: {counts}")
    return checks.FAILED not in outcomes


def chosen(words: Sequence[str], everything: Sequence[str]) -> list[str]:
    """Return the ids that words name: an id, a pattern like `*DAC*`, or `all`."""
    found: list[str] = []
    for word in words:
        found += matching(everything, "*" if word == "all" else word) or [resolve_id(word)]
    return list(dict.fromkeys(found))
