"""Sets every claimed figure beside the command that shows it, and refuses what no result says.

`python docs/site/claims.py NAME ...` notes that results were made by their programs as they are.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from fedhpo_gym.core.markdown import markdown_table

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = ROOT / "docs" / "claims.toml"
MADE = Path(__file__).with_name("results.json")
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
WITHIN = 0.02
"""How far a rounded figure may lie from that of its result, as a share."""


class StaleError(Exception):
    """A figure that its result does not show, or a result that is older than its program."""


def page() -> str:
    """Return the page of all claims.

    Raises:
        StaleError: a page does not say what is claimed of it, the result does not show it, or the
            result was not made by the program as it is.
    """
    content = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))
    known, rows, faults = json.loads(MADE.read_text(encoding="utf-8")), [], []
    for name, programs in content["results"].items():
        if known.get(name) != made_now(name, programs):
            faults.append(
                f"benchmarks/results/{name}.md or {' or '.join(programs)} has changed; run the "
                f"program again, then `python docs/site/claims.py {name}`"
            )
    for claim in content["claim"]:
        try:
            rows.append(_row(claim, content["results"][claim["result"]]))
        except StaleError as error:
            faults.append(str(error))
    faults += stale_difficulties(content["gallery"])
    if faults:
        raise StaleError("\n".join(faults))
    return f"{HEAD}\n{markdown_table(HEADS, rows)}\n{TOC}"


HEAD = """\
# Claimed figures

Each row shows a figure that a page states, the figure of the last run, and the command of that
run. The table is made when the site is built. The build fails if a page no longer states its
figure, if the run shows another one, or if the program has changed since the run. To detect
changes, digests of program and result are stored with every run; comments and imports are ignored.
"""
TOC = "\n```{toctree}\n:hidden:\n:titlesonly:\n:glob:\n\n../../benchmarks/results/*\n```\n"
HEADS = ("page", "says", "last run", "date", "command", "program")


def _row(claim: dict[str, Any], programs: list[str]) -> tuple[str, ...]:
    where, says, result = claim["page"], claim["says"], claim["result"]
    text = _plain(ROOT / where)
    if says not in text:
        raise StaleError(f"{where} does not say {says!r} any more; see docs/claims.toml")
    run = (ROOT / "benchmarks" / "results" / f"{result}.md").read_text(encoding="utf-8")
    found = re.search(claim["pattern"], run)
    if found is None:
        raise StaleError(f"the result {result}.md has nothing like {claim['pattern']!r}")
    claimed, shown = _number(NUMBER.findall(says)[0]), _number(found[1])
    if abs(claimed - shown) > claim.get("within", WITHIN) * abs(shown):
        raise StaleError(f"{where} says {says!r}, and the result {result}.md says {found[1]}")
    command, date = (re.search(rf"^- {key}: (.*)$", run, re.M) for key in ("command", "date"))
    link = f"[{Path(where).stem}](../../{where})"
    shown_as = f"[{found[1]}](../../benchmarks/results/{result}.md)"
    named = ", ".join(f"`{program}`" for program in programs)
    return link, says, shown_as, date[1], command[1], named


def stale_difficulties(gallery: dict[str, str]) -> list[str]:
    """Return what is wrong with the difficulties on the cards of the gallery of environments."""
    text = _plain(ROOT / "docs" / "environments.md")
    lines = (ROOT / "docs" / "difficulty.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    column = rows[0].index("left 25")
    known = {" | ".join(row[:2]): row[column] for row in rows if len(row) > column}
    faults = []
    for words, row in gallery.items():
        if words not in text:
            faults.append(f"docs/environments.md does not say {words!r} any more")
        elif known.get(row) != words.split()[0]:
            faults.append(
                f"docs/environments.md says {words!r}, docs/difficulty.md {known.get(row)}"
            )
    return faults


def _plain(path: Path) -> str:
    """Return the words of a page, without line ends and the targets of links."""
    words = " ".join(path.read_text(encoding="utf-8").split())
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def made_now(name: str, programs: list[str]) -> dict[str, str]:
    """Return digests of a result, and of what its programs do.

    Comments, docstrings and imports, which say where things stand, count for nothing.
    """
    found = {"result": _digest((ROOT / "benchmarks" / "results" / f"{name}.md").read_bytes())}
    for program in programs:
        tree = ast.parse((ROOT / program).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [one for one in body if not _is_said_only(one)] or [ast.Pass()]
        found[program] = _digest(ast.dump(tree).encode())
    return found


def _is_said_only(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def main(names: list[str]) -> None:
    """Note results that have just been made."""
    results = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["results"]
    known = json.loads(MADE.read_text(encoding="utf-8")) if MADE.exists() else {}
    known |= {name: made_now(name, results[name]) for name in names}
    MADE.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
