"""`fedhpo-gym leaf-preprocess`: LEAF's preprocessing options on data in LEAF's json format."""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields

from fedhpo_gym.archive import require_writable
from fedhpo_gym.cli.console import say
from fedhpo_gym.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.files import new_folder


def main(options: argparse.Namespace) -> int:
    """Read, sample, split and write; what was asked for and written goes into a manifest."""
    from fedhpo_gym.datasets import leaf
    from fedhpo_gym.datasets.leaf import manifest

    files = leaf.find_files(options.folder)
    if not files:
        raise MissingDataError(
            f"{options.folder} has no LEAF json files; run LEAF's preprocess.sh for the data set"
        )
    if options.out.exists():
        raise InvalidArgumentError(f"`--out` must not exist yet, got {options.out}")
    require_writable(options.out.parent, "`--out`, without its last part,")
    wanted = leaf.Options(**{f.name: getattr(options, f.name) for f in fields(leaf.Options)})
    marks, paths = {manifest.KEY: manifest.PLACE}, []
    with new_folder(options.out) as out:
        for name, data in leaf.preprocess(leaf.read_files(files), wanted).items():
            paths += leaf.write_files(out / name, "all_data", data, marks=marks)
            say(f"{name}: {len(data.users)} users, {data.num_samples} samples")
        manifest.write(out, asdict(wanted), paths)
    return 0
