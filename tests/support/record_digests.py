"""Record what every id returns: `python tests/support/record_digests.py [--only PATTERN]`.

`--add ID` records an id that the file lacks, single and many at once; `--kwargs` are arguments of
`gymnasium.make` for it, as JSON.

Real data are read from `FEDHPO_GYM_DATA`. A change of the file is a change of a promise: it needs a
new version of the id, or a line under *Behaviour of ids* in the changelog.
"""

from __future__ import annotations

import argparse
import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import fedhpo_gym  # noqa: F401 - it registers the ids
import trajectories

STEPS = {"single": 200, "vector": 60}
FILE = Path(__file__).resolve().parents[1] / "data" / "digests.json"


def main() -> int:
    """Step every trajectory of the file and write it again; say what has changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names of trajectories, as a pattern")
    parser.add_argument("--add", nargs="*", default=[], metavar="ID", help="ids to record anew")
    parser.add_argument("--kwargs", type=json.loads, default={}, help="of the ids that are added")
    parser.add_argument("--stored", action="store_true", help="leave out what trains")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    content = json.loads(FILE.read_text(encoding="utf-8"))
    changed = stepped = 0
    content["trajectories"] += [
        lacking(name, form, options.kwargs) for name in options.add for form in STEPS
    ]
    for index, entry in enumerate(content["trajectories"]):
        trajectory = trajectories.from_json(entry)[0]
        if not fnmatchcase(trajectory.name, options.only):
            continue
        if options.stored and trajectory.trained:
            continue
        stepped += 1
        found = trajectories.to_json(trajectory, trajectories.digests(trajectory))
        if json.loads(json.dumps(found)) != entry:
            changed += 1
            sys.stdout.write(f"changed: {trajectory.name}\n")
            content["trajectories"][index] = found
    if not stepped:
        parser.error(f"`--only` must match some trajectory, got {options.only!r}")
    sys.stdout.write(f"{changed} of {stepped} trajectories have changed\n")
    if options.check:
        return int(changed > 0)
    write(content["trajectories"])
    return 0


def lacking(env_id: str, form: str, kwargs: dict[str, object]) -> dict[str, object]:
    """Return the entry of a trajectory that nobody has stepped yet."""
    return trajectories.to_json(trajectories.Trajectory(env_id, form, STEPS[form], kwargs), [])


def write(entries: list[dict[str, object]]) -> None:
    """Write all trajectories, and which machine they are from."""
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    text = f'{{"machine": "{trajectories.machine()}",\n"trajectories": [\n{lines}\n]}}\n'
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
