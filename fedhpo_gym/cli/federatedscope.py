"""`fedhpo-gym federatedscope install | doctor`: the framework behind backend="federatedscope"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from fedhpo_gym.backends.federatedscope.doctor import examine
from fedhpo_gym.backends.federatedscope.install import install, needs
from fedhpo_gym.backends.federatedscope.installation import VARIABLE
from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import say
from fedhpo_gym.core.errors import needing


def make(
    folder: Annotated[Path, Arg("a new folder", "DIR")],
    *,
    source: Annotated[Path, Arg("FederatedScope's source tree", "TREE")],
    dry_run: Annotated[bool, Arg("only say what it needs")] = False,
) -> int:
    """Make an interpreter that can run FederatedScope."""
    say(needs(folder, source))
    if not dry_run:
        made = install(folder, source, say)
        say(f"Done: {made.interpreter}\nNow `export {VARIABLE}={folder.absolute()}`,")
        say("and `fedhpo-gym federatedscope doctor` tries it.")
    return 0


def doctor(
    *,
    source: Annotated[str | None, Arg("(that of FEDHPO_GYM_FEDERATEDSCOPE)", "TREE")] = None,
    interpreter: Annotated[str | None, Arg("(likewise)", "PYTHON")] = None,
) -> int:
    """Say what works; 1 where there is a fault."""
    well = True
    with needing("the doctor's course", "torch", "raw", "torch"):
        for what, fine, words in examine(source, interpreter):
            say(f"{'ok   ' if fine else 'FAULT'}  {what}: {words}")
            well = well and fine
    say("FederatedScope can be used." if well else "FederatedScope cannot be used yet.")
    return 0 if well else 1


ACTIONS: Final = {
    "install": (make, "make an interpreter with fixed versions"),
    "doctor": (doctor, "start it, train three rounds, say what is wrong"),
}
