"""`fedhpo-gym leaf-preprocess`: LEAF's preprocessing options on data in LEAF's json format."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import say
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.core.files import new_folder


def main(
    folder: Annotated[Path, Arg("json files, or LEAF's data/<name>", "DIR")],
    *,
    out: Annotated[Path, Arg("must not exist yet", "DIR")],
    sampling: Annotated[
        Literal["iid", "niid"] | None, Arg("sample; else keep all", flag="-s")
    ] = None,
    fraction: Annotated[float, Arg("of the samples (0.1)", flag="--sf")] = 0.1,
    iid_users: Annotated[
        float | None,
        Arg("users made by iid sampling: a share below 1, else a number (0.01)", flag="--iu"),
    ] = None,
    min_samples: Annotated[int | None, Arg("fewest samples of a user", flag="-k")] = None,
    split: Annotated[
        Literal["user", "sample"] | None, Arg("split by user or sample", flag="-t")
    ] = None,
    train_fraction: Annotated[float, Arg("(0.9)", flag="--tf")] = 0.9,
    gap: Annotated[int | None, Arg("samples between training and test (Shakespeare: 79)")] = None,
    sampling_seed: Annotated[int, Arg("(0)", flag="--smplseed")] = 0,
    split_seed: Annotated[int, Arg("(0)", flag="--spltseed")] = 0,
) -> int:
    """Read, sample, split and write; what was asked for and written goes into a manifest."""
    from fedhpo_gym.data import leaf
    from fedhpo_gym.data.leaf_preprocessing import Options, preprocess

    files = leaf.find_files(folder)
    if not files:
        raise MissingDataError(
            f"{folder} has no LEAF json files; run LEAF's preprocess.sh for the data set"
        )
    if out.exists():
        raise InvalidArgumentError(f"`--out` must not exist yet, got {out}")
    require_writable(out.parent, "`--out`, without its last part,")
    wanted = Options(
        sampling=sampling, fraction=fraction, iid_users=iid_users, min_samples=min_samples,
        split=split, train_fraction=train_fraction, gap=gap, sampling_seed=sampling_seed,
        split_seed=split_seed,
    )  # fmt: skip
    marks, paths = {leaf.MANIFEST_KEY: leaf.MANIFEST}, []
    with new_folder(out) as made:
        for name, data in preprocess(leaf.read_files(files), wanted).items():
            paths += leaf.write_files(made / name, "all_data", data, marks=marks)
            say(f"{name}: {len(data.users)} users, {data.num_samples} samples")
        leaf.write_manifest(made, asdict(wanted), paths)
    return 0
