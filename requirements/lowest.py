"""Run the fast tests on the lowest versions of dependencies that pyproject.toml allows.

`python requirements/lowest.py UV` makes an environment in a temporary folder, with the extras that
tests need and torch's build for processors, and runs pytest in it; more words are passed on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "compiled,data,natural,surrogate,agents,fronts,columnar,plot"
TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
MARKS = "not slow and not raw and not data and not installs"


def main(uv: str, words: list[str]) -> int:
    """Resolve, install and test; return what pytest says."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        commands = (
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder],
            [uv, "pip", "install", "--quiet", "--python", str(python),
             "--resolution", "lowest-direct", f"{ROOT}[{EXTRAS}]"],
            [uv, "pip", "install", "--quiet", "--python", str(python), *TESTS],
            [uv, "pip", "list", "--python", str(python)],
        )  # fmt: skip
        for command in commands:
            subprocess.run(command, check=True)  # noqa: S603 - the user's own tool
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        # Old libraries warn of what newer ones that they call have deprecated.
        pytest = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
        return subprocess.run(  # noqa: S603
            [*pytest, "-m", MARKS, *words], cwd=ROOT, env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
