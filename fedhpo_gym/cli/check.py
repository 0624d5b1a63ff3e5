"""`fedhpo-gym check`: checkers of other libraries on ids, and the engine's laws on this machine."""

from collections.abc import Sequence
from fnmatch import filter as matching
from typing import Annotated

from fedhpo_gym.cli.console import Arg, echo, echo_table
from fedhpo_gym.core.errors import InvalidArgumentError, require_optional
from fedhpo_gym.core.markdown import markdown_row, markdown_table
from fedhpo_gym.core.processor import rounding_platform, version_of
from fedhpo_gym.studies.environments import resolve_id
from fedhpo_gym.tasks import TASKS
from fedhpo_gym.tasks.meta import MANY_TASKS


def run_checks(
    ids: Annotated[Sequence[str], Arg("ids, `FedHPO-DAC-*`, `all`; or what you added", "ID")] = (),
    *,
    laws: Annotated[bool, Arg("try all laws of what you added, such as `mine:Greedy`")] = False,
    engine: Annotated[bool, Arg("say whether courses have equal bits in any company here")] = False,
) -> int:
    """Check ids, the engine, or both; 1 where something was refused or does not hold."""
    if laws:
        with require_optional("the kit of checks", "pytest", "check", "pytest"):
            from fedhpo_gym.testing import check_plugin
        results = [check_plugin(name) for name in ids]
        return 0 if all(results) else 1
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
    answers = {True: "yes", False: "NO", None: "not tried"}
    rows = []
    for family in dict.fromkeys(verdict.family for verdict in verdicts):
        words_by_law = {
            verdict.law: answers[verdict.holds] for verdict in verdicts if verdict.family == family
        }
        rows.append([family, *(words_by_law.get(law, "–") for law in self_check.LAWS)])
    echo("")
    echo_table(["family", *self_check.LAWS], rows)
    echo("")
    for law, meaning in self_check.LAWS.items():
        echo(f"{law}: {meaning}")
    for verdict in verdicts:
        if not verdict.holds:
            echo(f"\n{verdict.family}, {verdict.law}: {verdict.words}")
    broken = [verdict for verdict in verdicts if verdict.holds is False]
    if any(verdict.law != self_check.GRADIENT for verdict in broken):
        echo(f"\n{self_check.advice()}")
    return not broken


def _ids_pass(ids: Sequence[str]) -> bool:
    """Print a Markdown table, a line per id as it is checked; return whether no id was refused."""
    with require_optional("the kit of checks", "pytest", "check", "pytest"):
        from fedhpo_gym.testing import checks
    all_ids = [name for task in TASKS.values() for name in checks.ids(task)]
    all_ids += [f"{mo}{name}" for name in MANY_TASKS for mo in ("", "MO-")]
    heads = [f"{name} {version_of(name) or '(missing)'}" for name in checks.CHECKS]
    echo(markdown_table(["id", *heads, "CPU s"], []))
    all_verdicts: list[checks.CheckVerdict] = []
    for env_id in match_ids(ids, all_ids):
        verdicts = {verdict.check: verdict for verdict in checks.check_id(env_id)}
        cells = [verdicts[name].outcome if name in verdicts else "–" for name in checks.CHECKS]
        seconds = sum(verdict.cpu_s for verdict in verdicts.values())
        echo(markdown_row([env_id, *cells, f"{seconds:.1f}"]))
        all_verdicts += verdicts.values()
    for verdict in all_verdicts:
        if verdict.words:
            echo(f"\n{verdict.env_id}, {verdict.check}: {verdict.outcome}: {verdict.words}")
    outcomes = [verdict.outcome for verdict in all_verdicts]
    counts = ", ".join(
        f"{outcomes.count(name)} {name}" for name in (checks.PASSED, checks.FAILED, checks.SKIPPED)
    )
    echo(f"\n{len({verdict.env_id for verdict in all_verdicts})} ids: {counts}")
    return checks.FAILED not in outcomes


def match_ids(patterns: Sequence[str], all_ids: Sequence[str]) -> list[str]:
    """Return the ids that match: an id, a pattern like `*DAC*`, or `all`."""
    ids: list[str] = []
    for pattern in patterns:
        ids += matching(all_ids, "*" if pattern == "all" else pattern) or [resolve_id(pattern)]
    return list(dict.fromkeys(ids))
