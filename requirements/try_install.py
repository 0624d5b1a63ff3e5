"""Install the distributions in `dist` into fresh environments: the core, then each extra alone.

For each it says what was installed, how large it is, and whether what it is for can be used. Run it
by `make try-install`; `EXTRAS="agents data"` tries some, and PYTHON chooses the interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = """
import sys
import gymnasium as gym, fedhpo_gym
env = gym.make("FedHPO-MLP-Car-v1")
env.reset(seed=0)
print(env.step(env.action_space.sample())[1])
"""
PROBES = {
    "torch": "import torch; gym.make('FedHPO-DAC-MF-MadeRatings-v1')",
    "raw": "import torch, numba",
    "compiled": "from fedhpo_gym.fl.models import get_model; get_model('LR'); import numba",
    "data": "from fedhpo_gym.data import load_dataset; print(load_dataset('BreastCancer').name)",
    "natural": "from fedhpo_gym.data import load_dataset; print(load_dataset('Tuna').name)",
    "graphs": "import networkx, rdkit",
    "images": "import PIL",
    "tables": "gym.make('FedHPO-LR-CreditG-v0')",
    "bert": "import safetensors, tokenizers",
    "surrogate": "import sklearn",
    "agents": "from fedhpo_gym.agents import make_agent; make_agent('optuna-tpe', env, 0)",
    "bo": "from fedhpo_gym.agents import agent_class; agent_class('parego')",
    "rl": "import stable_baselines3, sb3_contrib",
    "marl": "import pettingzoo",
    "plot": "import matplotlib",
    "fronts": "import moocore",
    "columnar": "import pyarrow",
    "cluster": "import distributed",
    "track": "import tensorboardX, wandb",
    "check": "from fedhpo_gym.testing import checks",
    "docs": "import sphinx, furo, myst_nb, sphinx_design",
}
"""What shows that an extra brings what it is for; others are tried by what they install alone."""


def extras() -> list[str]:
    """Return the extras of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["optional-dependencies"]]


def attempt(extra: str, folder: Path) -> tuple[str, float]:
    """Install the wheel with an extra, or alone, and return what came of it and its megabytes."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)  # noqa: S603
    python = str(folder / "bin" / "python")
    wheel = next((ROOT / "dist").glob("fedhpo_gym-*.whl"))
    second = next((ROOT / "dist").glob("fedhpo_gym_data-*.whl"))
    wanted = [f"{wheel}[{extra}]" if extra else str(wheel)]
    if extra == "tables":
        wanted.append(str(second))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    steps = [pip, [python, "-c", CORE + PROBES.get(extra, "")], [python, "-m", "pip", "check"]]
    for step in steps:
        done = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            return (done.stderr or done.stdout).strip().splitlines()[-1], 0.0
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return "works", size / 1e6


def main() -> int:
    """Try all, a line each; return how many do not work."""
    named = os.environ.get("EXTRAS", "").split()
    failed = 0
    sys.stdout.write(f"Python {sys.version.split()[0]}\n")
    for extra in named or ["", *extras()]:
        with tempfile.TemporaryDirectory() as folder:
            words, size = attempt("" if extra == "core" else extra, Path(folder))
        failed += words != "works"
        sys.stdout.write(f"{extra or 'core':<12}{size:>8.0f} MB  {words}\n")
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main())
