"""Folders of the user that this process may not enter: the package works without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedhpo_gym.core.files import expand_home, matching_files, path_exists

REPOSITORY = Path(__file__).parents[1]
VARIABLES = (
    *("XDG_CACHE_HOME", "XDG_DATA_HOME"),
    *("FEDHPO_GYM_TABLES", "FEDHPO_GYM_TASKS", "FEDHPO_GYM_DATA"),
)
CODE = """
import gymnasium as gym, fedhpo_gym
from fedhpo_gym.core.errors import FedHPOError
from fedhpo_gym.data import load_dataset
from fedhpo_gym.stored.catalogue import list_names, writable_table_folder
env = gym.make("FedHPO-MLP-Vehicle-v1", disable_env_checker=True)
env.reset(seed=0)
env.step(env.action_space.sample())
print(len(list_names(".surrogate.json")) > 0)
for call, value in ((load_dataset, "FEMNIST"), (writable_table_folder, None)):
    try:
        call(value)
    except FedHPOError as error:
        print(str(error).count(chr(10)), "locked" in str(error))
"""


LIMITED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Takes from root what lets it enter any folder."""


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder that may not be entered."""
    if os.name != "posix" or (os.geteuid() == 0 and shutil.which(LIMITED[0]) is None):
        pytest.skip("needs users, and of root `setpriv`")
    folder = tmp_path / "locked"
    folder.mkdir(mode=0)
    yield folder
    folder.chmod(0o700)


def run_limited(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code in a process that may enter no locked folder."""
    others = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    return subprocess.run(
        [*(LIMITED if os.geteuid() == 0 else []), sys.executable, "-c", code],
        env={**others, **environment},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("names", [("HOME",), VARIABLES], ids=["home", "variables"])
def test_the_package_works_where_folders_of_the_user_are_locked(
    names: tuple[str, ...], locked: Path
) -> None:
    done = run_limited(CODE, {name: str(locked / "mine") for name in names})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "0 True", "0 True"]
    assert ("`FEDHPO_GYM_TASKS` must name a folder that can be read" in done.stderr) == (
        "FEDHPO_GYM_TASKS" in names
    )


def test_a_user_without_a_home_has_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert not path_exists(expand_home("~/.cache"))
    assert matching_files(expand_home("~/.cache"), "*") == []


def test_a_name_that_is_too_long_is_not_there(tmp_path: Path) -> None:
    assert not path_exists(tmp_path / ("a" * 300))
    assert path_exists(tmp_path)
