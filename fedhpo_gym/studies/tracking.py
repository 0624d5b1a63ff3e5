"""Following runs in TensorBoard and Weights & Biases, both optional.

Per trial, at its simulated time in seconds: every objective, the test metrics, the incumbent's
validation loss, and the costs of the trial. These logs are never read again, as run records hold
everything.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedhpo_gym.core.errors import require_known, require_optional
from fedhpo_gym.records.record import Header, StepRecord, to_dict

Follow = Callable[[StepRecord], None]


@contextmanager
def track_run(names: Sequence[str], folder: Path, run: str, header: Header) -> Iterator[Follow]:
    """Yield a function that logs a step of a run to all trackers."""
    with ExitStack() as stack:
        follows = []
        for name in names:
            require_known("tracker", name, TRACKERS)
            follows.append(stack.enter_context(TRACKERS[name](folder / name, run, header)))

        def follow_all(step: StepRecord) -> None:
            for log_step in follows:
                log_step(step)

        yield follow_all


@contextmanager
def tensorboard(folder: Path, run: str, header: Header) -> Iterator[Follow]:
    """Write event files for TensorBoard; its steps are trials, its wall time simulated seconds."""
    with require_optional("following runs in TensorBoard", "tensorboardX", "track", "tensorboardX"):
        from tensorboardX import SummaryWriter
    with SummaryWriter(str(folder / header.id / run)) as writer:
        trials = 0

        def follow(step: StepRecord) -> None:
            nonlocal trials
            trials += 1
            for name, value in scalars(step).items():
                writer.add_scalar(name, value, trials, walltime=step.elapsed_s)

        yield follow


@contextmanager
def wandb(folder: Path, run: str, header: Header) -> Iterator[Follow]:
    """Log to Weights & Biases, offline by default; the variable `WANDB_MODE` sets the mode."""
    with require_optional("logging to Weights & Biases", "wandb", "track", "wandb"):
        import wandb as library
    folder.mkdir(parents=True, exist_ok=True)
    config = {name: value for name, value in to_dict(header).items() if name != "kind"}
    session = library.init(
        project="fedhpo_gym",
        group=f"{header.id} {header.agent}",
        name=run,
        dir=str(folder),
        config=config,
        mode=os.environ.get("WANDB_MODE", "offline"),
        reinit="create_new",
    )
    try:
        yield lambda step: session.log({"elapsed_s": step.elapsed_s, **scalars(step)})
    finally:
        session.finish()


def scalars(step: StepRecord) -> dict[str, float]:
    """Return the numbers of a step that are worth a curve, by name."""
    groups: Mapping[str, Mapping[str, Any]] = {
        "objectives": step.objectives,
        "test": step.test,
        "cost": step.cost,
        "incumbent": {"val_loss": step.incumbent["val_loss"]},
    }
    return {
        f"{group}/{name}": value
        for group, values in groups.items()
        for name, value in values.items()
    }


TRACKERS: Mapping[str, Callable[[Path, str, Header], Any]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
}
"""What can follow a run, by name."""
