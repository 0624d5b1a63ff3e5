"""`fedhpo-gym federatedscope install | doctor`: the framework behind backend="federatedscope"."""

from __future__ import annotations

import argparse

from fedhpo_gym.backends.federatedscope.doctor import examine
from fedhpo_gym.backends.federatedscope.install import install, needs
from fedhpo_gym.backends.federatedscope.installation import VARIABLE
from fedhpo_gym.cli.console import say
from fedhpo_gym.errors import needing


def main(options: argparse.Namespace) -> int:
    """Do what is asked; 1 where the doctor finds a fault."""
    return _doctor(options) if options.action == "doctor" else _install(options)


def _install(options: argparse.Namespace) -> int:
    say(needs(options.folder, options.source))
    if not options.dry_run:
        made = install(options.folder, options.source, say)
        say(f"Done: {made.interpreter}\nNow `export {VARIABLE}={options.folder.absolute()}`,")
        say("and `fedhpo-gym federatedscope doctor` tries it.")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    well = True
    with needing("the doctor's course", "torch", "raw", "torch"):
        for what, fine, words in examine(options.source, options.interpreter):
            say(f"{'ok   ' if fine else 'FAULT'}  {what}: {words}")
            well = well and fine
    say("FederatedScope can be used." if well else "FederatedScope cannot be used yet.")
    return 0 if well else 1
