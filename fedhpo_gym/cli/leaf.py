"""`fedhpo-gym leaf-preprocess`: LEAF's preprocessing options on data in LEAF's json format."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, fields

from fedhpo_gym.archive import require_writable
from fedhpo_gym.cli.console import say
from fedhpo_gym.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.files import new_folder, write_text


def main(options: argparse.Namespace) -> int:
    """Read, sample, split and write; the options and checksums go into the folder `meta`."""
    from fedhpo_gym.datasets import cache, leaf

    files = leaf.find_files(options.folder)
    if not files:
        raise MissingDataError(
            f"{options.folder} has no LEAF json files; run LEAF's preprocess.sh for the data set"
        )
    if options.out.exists():
        raise InvalidArgumentError(f"`--out` must not exist yet, got {options.out}")
    require_writable(options.out.parent, "`--out`, without its last part,")
    wanted = leaf.Options(**{f.name: getattr(options, f.name) for f in fields(leaf.Options)})
    lines = []
    with new_folder(options.out) as out:
        for name, data in leaf.preprocess(leaf.read_files(files), wanted).items():
            for path in leaf.write_files(out / name, "all_data", data):
                lines.append(f"{cache.checksum(path)}  {path.relative_to(out).as_posix()}\n")
            say(f"{name}: {len(data.users)} users, {data.num_samples} samples")
        meta = out / "meta"
        meta.mkdir()
        write_text(meta / "sha256sums.txt", "".join(lines))
        write_text(meta / "options.json", json.dumps(asdict(wanted), indent=1) + "\n")
    return 0
