"""What a cluster that is not there makes of those who ask for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("distributed")

SCRIPT = """
from fedhpo_gym.core.processes import each_on_cluster

list(each_on_cluster(str, [1], "no address"))
"""


def test_a_wrong_address_leaves_nothing_behind_that_fails_at_the_end() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "`--address` must be that of a running dask scheduler, got 'no address'" in done.stderr
    assert "Exception ignored" not in done.stderr
