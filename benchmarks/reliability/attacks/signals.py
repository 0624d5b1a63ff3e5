"""Commands that are interrupted at any moment: soon over, and nothing torn is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attacks.verdicts import Tally
from fedhpo_gym.core.seeding import stream

CHECKOUT = Path(__file__).resolve().parents[3]
LIMIT_S = 12.0
"""A build ends within five seconds; a busy machine is given more."""
RUN = ["run", "FedHPO-LR-CreditG", "--agent", "random", "--seeds", "200", "--out"]
BUILD = ["build", "FedHPO-LR-BreastCancer-v0", "--sample", "60", "--rounds", "9"]
BUILD += ["--workers", "2", "--out"]
CODE = "import sys; from fedhpo_gym.cli import main; sys.exit(main(sys.argv[1:]))"


def interrupts(count: int, seed: int, room: Path) -> list[Tally]:
    """Interrupt `run` and `build` from the keyboard and with SIGTERM."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that runs this in the background makes its processes ignore interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    tallies = []
    for row, words in enumerate((RUN, BUILD)):
        tally = Tally(f"interrupted: {words[0]}")
        for index in range(count):
            rng = stream(seed, "signals", row, index)
            with tempfile.TemporaryDirectory(dir=room) as out:
                _interrupt(tally, index, [*words, out], float(rng.uniform(2.5, 8.0)), Path(out))
        tallies.append(tally)
    return tallies


def _interrupt(tally: Tally, index: int, words: list[str], delay: float, out: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *words], env=environ, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    time.sleep(delay)
    if index % 2:
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGINT)
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        tally.add("hung", index, f"{words[0]} after {delay:.2f} s")
        return
    # Before the command line is loaded, and after it ended, Python itself ends: nothing was begun,
    # or all is done.
    bare = "KeyboardInterrupt" in said or process.returncode in (-signal.SIGTERM, -signal.SIGINT)
    if bare and any(out.rglob("*.npz")) and not any(out.glob("*.sample.json")):
        tally.add("undocumented", index, said[-300:])
    elif process.returncode not in (0, 130) and not bare:
        tally.add("undocumented", index, f"status {process.returncode}: {said[-300:]}")
    else:
        tally.add("fine")
    torn = [path.name for path in out.rglob("*") if path.suffix == ".part" or _torn(path)]
    if torn:
        tally.add("lost", index, f"after {delay:.2f} s: {torn[:3]}")


def _torn(path: Path) -> bool:
    if path.suffix != ".jsonl":
        return False
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return not all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return True
