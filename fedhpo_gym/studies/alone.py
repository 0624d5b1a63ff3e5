"""One cell in an interpreter of its own: for executors whose workers must outlive it.

`run_alone` starts `python -m fedhpo_gym.studies.alone`. A cell that crashes or hangs takes nobody
with it, and a cell whose worker is killed ends with it: its standard input is closed then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic

from fedhpo_gym.errors import WorkerLostError, WorkerTimeoutError
from fedhpo_gym.studies.cells import CellWork, Outcome
from fedhpo_gym.studies.plan import Plan

_SHOWN = 500
"""Characters of what a crashed process said last."""


def run_alone(work: CellWork, plan: Plan, timeout_s: float | None = None) -> Outcome:
    """Do a cell in a process of its own, and return how it ended.

    Args:
        work: what is done; its folder is one that every worker sees.
        plan: the cell.
        timeout_s: real seconds that it may take; None for any number.
    """
    begun = monotonic()
    content = {"work": {**asdict(work), "folder": str(work.folder)}, "plan": asdict(plan)}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "fedhpo_gym.studies.alone"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, on this module
            words, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment
        )
        try:
            _tell(process, json.dumps(content))
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            error = WorkerTimeoutError(f"it took more than {timeout_s:g} s, and was ended")
            return Outcome.of_error(plan, error, monotonic() - begun)
        finally:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        out.seek(0)
        err.seek(0)
        said, complained = out.read().decode(), err.read().decode(errors="replace")
    if process.returncode:
        told = complained.strip()[-_SHOWN:]
        lost = WorkerLostError(f"its process ended with status {process.returncode}: {told}")
        return Outcome.of_error(plan, lost, monotonic() - begun)
    answer = json.loads(said.splitlines()[-1])
    return replace(Outcome(**{**answer, "plan": plan}), seconds=monotonic() - begun)


def _tell(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None  # noqa: S101 - it was asked for
    process.stdin.write(line.encode("utf-8") + b"\n")
    process.stdin.flush()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Do the cell that standard input names, and say on standard output how it ended."""
    content = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asked = content["work"]
    work = CellWork(Path(asked["folder"]), asked["columnar"], tuple(asked["track"]))
    outcome = work(Plan(**content["plan"]), lambda: None)
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the thread holds standard input, which a usual end would wait for


if __name__ == "__main__":
    main()
