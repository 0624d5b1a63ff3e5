"""A source tree and an interpreter that pretend to be FederatedScope's."""

from __future__ import annotations

import sys
from pathlib import Path

FAKE = Path(__file__).with_name("fake_federatedscope.py")
RECORDED = Path(__file__).parents[1] / "data" / "federatedscope"


def pretend(folder: Path, mode: str, path: Path) -> dict[str, str]:
    """Return `source` and `interpreter` whose program behaves in a mode of the fake one."""
    source = folder / "tree"
    (source / "federatedscope").mkdir(parents=True, exist_ok=True)
    (source / "federatedscope" / "__init__.py").touch()
    interpreter = folder / f"python-{mode}"
    words = f'exec "{sys.executable}" -S "{FAKE}" {mode} "{path}" "$@"'
    interpreter.write_text(f"#!/bin/sh\n{words}\n", encoding="utf-8")
    interpreter.chmod(0o755)
    return {"source": str(source), "interpreter": str(interpreter)}
