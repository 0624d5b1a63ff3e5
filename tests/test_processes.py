"""A crew does its jobs, and whatever ends it ends its workers within seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import workers
from fedhpo_gym.core.errors import WorkerLostError
from fedhpo_gym.core.processes import WorkerPool

REPOSITORY = Path(__file__).resolve().parents[1]
PATHS = (REPOSITORY, REPOSITORY / "tests" / "support")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))}
SCRIPT = """
import sys
from pathlib import Path
import workers
from fedhpo_gym.core.processes import WorkerPool, terminated_as_interrupted

if __name__ == "__main__":
    work, folder = getattr(workers, sys.argv[1]), Path(sys.argv[2])
    try:
        with terminated_as_interrupted(), WorkerPool(2, work) as crew:
            crew.run([folder / f"job{i}" for i in range(9)], int)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.slow
def test_jobs_are_done_each_once_and_say_how_they_get_on() -> None:
    steps: list[None] = []
    with WorkerPool(2, workers.square) as crew:
        assert sorted(crew.run(range(6), lambda: steps.append(None))) == [0, 1, 4, 9, 16, 25]
        assert len(steps) == 15
        assert crew.run([], int) == []
        assert crew.run([7], int) == [49]


def test_what_a_job_raises_ends_the_crew_and_names_the_line() -> None:
    with pytest.raises(ValueError, match="3 is odd") as caught, WorkerPool(1, workers.fail) as crew:
        crew.run([2, 3, 4], int)
    assert "workers.py" in caught.value.__notes__[0]


def test_a_worker_that_is_killed_while_it_starts_is_an_error_too() -> None:
    work = workers.KilledWhileStarting()
    with pytest.raises(WorkerLostError, match="killed by signal 9"), WorkerPool(1, work) as crew:
        crew.run([1], int)


@pytest.mark.slow
def test_a_script_without_a_guard_ends_at_its_first_worker(tmp_path: Path) -> None:
    words = "import workers\nfrom fedhpo_gym.core.processes import WorkerPool\n"
    words += (
        "with WorkerPool(1, workers.square) as crew:\n    print(*crew.run_each(range(9), int))\n"
    )
    script = tmp_path / "open.py"
    script.write_text(words, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, script], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == 1
    assert "before its work began" in last
    assert "__main__" in last


def test_a_killed_worker_is_an_error_that_says_what_to_do() -> None:
    said = r"killed by signal 9.*fewer workers"
    with pytest.raises(WorkerLostError, match=said), WorkerPool(2, workers.be_killed) as crew:
        crew.run([Path("a")], int)


def to_the_group(process: subprocess.Popen[bytes]) -> None:
    """Send what Ctrl-C sends: an interrupt to every process of the group."""
    os.killpg(process.pid, signal.SIGINT)


def to_the_builder(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)


def twice(process: subprocess.Popen[bytes]) -> None:
    to_the_group(process)
    time.sleep(0.5)
    to_the_group(process)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "send"),
    [
        ("write_slowly", to_the_group),
        ("write_slowly", to_the_builder),
        ("write_slowly", twice),
        ("refuse_to_end", twice),
    ],
)
def test_an_interrupt_ends_all_workers_within_seconds(
    work: str, send: Callable[[subprocess.Popen[bytes]], None], tmp_path: Path
) -> None:
    script = tmp_path / "crew.py"
    script.write_text(SCRIPT, encoding="utf-8")
    folder = tmp_path / "jobs"
    folder.mkdir()
    # A worker that went on would keep the pipe open, and `communicate` waiting.
    process = subprocess.Popen(
        [sys.executable, str(script), work, str(folder)],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begun = time.monotonic()
    send(process)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - begun < 5.0
    assert said == b"", "workers leave an interrupt to the process that started them"
    if work == "write_slowly" and send is not twice:
        assert list(folder.iterdir()) == [], "a dropped job leaves nothing half written"


IDLE = """
import os, signal
import workers
from fedhpo_gym.core.processes import WorkerPool

if __name__ == "__main__":
    crew = WorkerPool(1, workers.process)
    print(*crew.run([None], int), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_worker_that_waits_for_work_ends_with_who_started_it(tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text(IDLE, encoding="utf-8")
    # A worker that went on would keep the pipe open, and this call waiting.
    done = subprocess.run(
        [sys.executable, str(script)], env=ENVIRONMENT, stdout=subprocess.PIPE, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout) > 0


LOST = """
from fedhpo_gym.core.processes import run_on_cluster

list(run_on_cluster(str, [1], "no address"))
"""


@pytest.mark.slow
def test_a_wrong_address_leaves_nothing_behind_that_fails_at_the_end() -> None:
    pytest.importorskip("distributed")
    command = [sys.executable, "-c", LOST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "`--address` must be that of a running dask scheduler, got 'no address'" in done.stderr
    assert "Exception ignored" not in done.stderr
