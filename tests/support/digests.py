"""What every id, every kernel and every agent returns, as digests in `tests/data/digests.json`.

An id is a promise: what it returns changes only with its version. The file holds digests of
`trajectories`, seeded steps of environments; of `kernels`, courses in compiled code; of `runs`,
the records that agents leave; and of `ids`, the first step of every id there is data for. A change
of the file is a change of a promise: it needs a new version of the id, or a line under *Behaviour
of ids* in the changelog.

`python tests/support/digests.py [PATTERN ...] [--stored | --trained] [--check]` makes those again
whose names follow a pattern. `--add ID`, `--kwargs JSON` record an id that the file lacks, single
and many at once. Real data are read from `FEDHPO_GYM_DATA`.

`--kernels [PREFIX ...] [--apart]` prints the digests of kernels alone, equal ones on every
processor; it takes neither torch nor a data set. `--apart` trains every course alone, the last
round from a snapshot in another batch, which must change no digest.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation, make_user_federation
from fedhpo_gym.data.records import Dataset, SparseRows, make_dataset
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import get_model

FILE = Path(__file__).resolve().parents[1] / "data" / "digests.json"
STEPS = {"single": 200, "vector": 60}

ROUNDS = 3
GIVEN: Mapping[str, Mapping[str, float]] = {
    "fedprox": {"mu": 0.7, "momentum": 0.5, "rate_decay": 0.1},
    "fedopt": {"server_momentum": 0.9, "server_learning_rate": 0.5},
    "fedadam": {"server_learning_rate": 0.1},
    "fedyogi": {"server_learning_rate": 0.1},
    "nbafl": {"mu": 0.5},
    "ditto": {"regularization": 2.0},
    "fedasync": {"mixing": 0.6, "staleness_exponent": 0.7},
    "fedbuff": {"buffer_size": 2, "server_learning_rate": 0.8},
    "dpfedavg": {
        "update_clip": 0.3,
        "server_momentum": 0.5,
        "server_learning_rate": 0.9,
        "noise_multiplier": 0.3,
        "clip_rate": 0.2,
    },
    "scaffold": {"server_learning_rate": 0.8, "momentum": 0.5, "rate_decay": 0.1},
    "fednova": {"server_momentum": 0.9, "server_learning_rate": 0.5, "momentum": 0.5},
    "serveropt": {"mu": 0.1, "server_optimizer": 3, "server_learning_rate": 0.1},
}


def rows(classes: int, sparse: bool = False) -> Federation:
    """Return clients of unequal sizes; features are multiples of 1/64, and so exact."""
    rng, users = stream(classes, "rows"), np.repeat(np.arange(4), (61, 40, 23, 2))
    labels = rng.integers(classes, size=len(users))
    features = rng.integers(-128, 128, (len(users), 11)) / 64 + labels[:, None]
    if not sparse:
        return make_user_federation(make_dataset("rows", features, labels, classes, users), 1)
    kept = rng.random(features.shape) < 0.3
    stored = SparseRows(
        np.concatenate([[0], np.cumsum(kept.sum(1))]),
        np.nonzero(kept)[1].astype(np.int32),
        features[kept].astype(np.float32),
        features.shape[1],
    )
    return make_user_federation(Dataset("rows", stored, labels, classes, "", users=users), 1)


def courses(**more: float) -> list[Course]:
    """Return some courses of every way to train."""
    found = []
    for size, epochs, share in ((4, 2, 1.0), (16, 1, 0.6), (256, 2, 1.0)):
        config = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": size}
        found.append(
            Course({**config, "step_size": epochs, "learning_rate@1": 0.2, **more}, share, 1)
        )
    return found


def cases() -> Iterator[tuple[str, str, int, str, Mapping[str, float]]]:
    """Yield (name, model, classes, algorithm, shape)."""
    deep = {"model_depth": 2.0, "model_width": 19.0}
    for model, classes in (("LR", 2), ("LR", 5), ("LeafLR", 3), ("Sparse", 2), ("Sparse", 5)):
        yield f"{model} {classes} fedavg", model, classes, "fedavg", {}
    for depth, width in ((1, 64), (2, 19), (4, 7)):
        shape = {"model_depth": float(depth), "model_width": float(width)}
        for model in ("MLP", "PlainMLP"):
            yield f"{model} 3 fedavg {depth} x {width}", model, 3, "fedavg", shape
    others = [*GIVEN, "fedbn", "local"]
    for (model, classes), name in itertools.product((("LR", 3), ("MLP", 2)), others):
        yield f"{model} {classes} {name}", model, classes, name, deep if model == "MLP" else {}
    yield "PlainMLP 2 dpfedavg", "PlainMLP", 2, "dpfedavg", deep


def kernels(names: Sequence[str] = ("",), apart: bool = False) -> Iterator[tuple[str, str]]:
    """Yield cases, and the digests of their curves, feedback and parameters.

    Args:
        names: how the cases begin.
        apart: whether every course is trained by itself, and the last round from a snapshot.
    """
    for name, model, classes, algorithm, shape in cases():
        if not name.startswith(tuple(names)):
            continue
        chosen = courses(**shape, **GIVEN.get(algorithm, {}))
        known = {1: rows(classes, model == "Sparse")}
        digest = hashlib.sha256()
        for group in [[course] for course in chosen] if apart else [chosen]:
            batches = [
                CourseBatch(
                    known,
                    get_model("LR" if model == "Sparse" else model),
                    get_algorithm(algorithm),
                    group,
                    observe=True,
                    horizon=ROUNDS,
                )
                for _ in range(2)
            ]
            for part in of_each(*batches, apart):
                digest.update(part)
        yield name, digest.hexdigest()


def of_each(batch: CourseBatch, other: CourseBatch, apart: bool) -> Iterator[bytes]:
    """Yield what came of each course of a batch; its last round is another's if `apart`."""
    curves = [batch.advance(ROUNDS - 1)]
    if apart:
        other.restore(batch.snapshot())
        batch = other
    curves.append(batch.advance(1))
    for row, state in enumerate(batch.snapshot()):
        assert state is not None
        for one in curves:
            yield one.metrics[row].tobytes()
            for values in vars(one.feedback).values():
                yield values[row].tobytes()
        kept = state.parameters, state.server, state.variates
        for value in (value for part in kept for value in part.values()):
            yield np.ascontiguousarray(value).tobytes()


VECTOR_ENVS = 8
CHECKPOINTS = (1, 4, 20, 60, 200)
"""Steps after which the digest of all steps so far is kept."""


@dataclass(frozen=True)
class Trajectory:
    """Which environment is stepped, and how far.

    Attributes:
        id: environment id.
        form: "single", or "vector": `VECTOR_ENVS` environments as one.
        steps: number of steps, a checkpoint.
        kwargs: arguments of `gymnasium.make`.
        trained: whether numbers come from training, which differs between kinds of machines.
    """

    id: str
    form: str
    steps: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = False

    @property
    def name(self) -> str:
        """What names it in test reports."""
        words = [f"{key}={value}" for key, value in self.kwargs.items()]
        return "-".join([self.id, self.form, *words])


@dataclass(frozen=True)
class Digest:
    """What a trajectory returned until a checkpoint.

    Attributes:
        steps: the checkpoint.
        exact: digest of every bit.
        sums: sums of observations and rewards, and the last simulated time, for machines whose
            arithmetic rounds differently.
    """

    steps: int
    exact: str
    sums: tuple[float, ...]


def machine() -> str:
    """Return what decides how this machine rounds: its processor's features and the libraries."""
    import torch

    features = getattr(np._core._multiarray_umath, "__cpu_features__", {})
    present = sorted(name for name, there in features.items() if there)
    words = json.dumps([platform.machine(), present, np.__version__, torch.__version__])
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def stepped(trajectory: Trajectory, limit: int | None = None) -> list[Digest]:
    """Step an environment; return the digest of every checkpoint up to a limit."""
    last = min(trajectory.steps, limit or trajectory.steps)
    content, seen, rewarded = hashlib.sha256(), 0.0, 0.0
    found = []
    for number, (observation, reward, flags, info) in enumerate(_steps(trajectory, last), start=1):
        for name in sorted(observation):
            content.update(name.encode())
            content.update(np.ascontiguousarray(observation[name], dtype=np.float32).tobytes())
            seen += float(np.nansum(observation[name], dtype=np.float64))
        content.update(np.ascontiguousarray(reward, dtype=np.float64).tobytes())
        content.update(np.ascontiguousarray(flags, dtype=np.bool_).tobytes())
        numbers = np.array(list(_numbers(info)), dtype=np.float64)
        content.update(numbers.tobytes())
        rewarded += float(np.sum(reward, dtype=np.float64))
        if number in CHECKPOINTS:
            elapsed = float(np.sum(info.get("elapsed_s", 0.0)))
            found.append(Digest(number, content.hexdigest()[:32], (seen, rewarded, elapsed)))
    return found


def _steps(trajectory: Trajectory, number: int) -> Iterator[tuple[Any, Any, Any, Any]]:
    import gymnasium as gym

    kwargs = dict(trajectory.kwargs)
    if trajectory.form == "vector":
        env: Any = gym.make_vec(trajectory.id, num_envs=VECTOR_ENVS, **kwargs)
    else:
        env = gym.make(trajectory.id, disable_env_checker=True, **kwargs)
    try:
        env.reset(seed=7)
        rng = np.random.default_rng(11)
        space = env.action_space
        over = False
        for _ in range(number):
            if over and trajectory.form == "single":
                env.reset()
            if hasattr(space, "low"):
                action = rng.uniform(space.low, space.high).astype(np.float32)
            else:  # places of a pool, one or many
                action = rng.integers(getattr(space, "n", None) or space.nvec)
            observation, reward, terminated, truncated, info = env.step(action)
            over = bool(np.any(terminated | truncated))
            yield observation, reward, [terminated, truncated], info
    finally:
        env.close()


def _numbers(info: Mapping[str, Any]) -> Iterator[float]:
    """Yield the numbers of an info that say what came out, whatever else it holds."""
    cost, incumbent = info.get("cost", {}), info.get("incumbent", {})
    parts: Sequence[Any] = (
        info.get("elapsed_s", 0.0),
        cost.get("time_s", 0.0),
        cost.get("rounds", 0),
        incumbent.get("val_loss", 0.0),
        [value for name, value in sorted(info.get("objectives", {}).items()) if name[0] != "_"],
        [value for _, value in sorted(info.get("test", {}).items())],
        info.get("penalty", 0.0),
    )
    for part in parts:
        yield from np.asarray(part, dtype=np.float64).ravel().tolist()


def to_json(trajectory: Trajectory, found: Sequence[Digest]) -> dict[str, Any]:
    """Return a trajectory and its digests as plain data."""
    return {**asdict(trajectory), "digests": [asdict(digest) for digest in found]}


def from_json(content: Mapping[str, Any]) -> tuple[Trajectory, list[Digest]]:
    """Return a trajectory and its digests from plain data."""
    known = {key: value for key, value in content.items() if key != "digests"}
    found = [Digest(d["steps"], d["exact"], tuple(d["sums"])) for d in content["digests"]]
    return Trajectory(**known), found


SEARCHERS = (
    "random grid sobol latin-hypercube de cma-es bo-gp bo-rf bo-kde optuna-tpe tpe-md tpe-hb"
)
SEARCHERS += " successive-halving asha hyperband bohb dehb priorband"
VECTORS = "random nsga2 motpe parego qlognehvi"
COURSES = "random schedule fedtune fedex fedex-personalised fts dp-fts-de flora fedpop fedhyper"
COURSES += " auto-fedrl optuna-tpe"
RUNS: Sequence[tuple[str, str, str]] = (
    (SEARCHERS, "FedHPO-LR-CreditG-v1", "--budget-s 3000 --fidelity round=free"),
    ("de bohb asha", "FedHPO-LR-KC1-v1", "--budget-s 6000 --simulated-workers 3"),
    ("random optuna-tpe", "FedHPO-LR-Car-v1", '--set constraints={"fairness_std":0.1}'),
    ("random de", "FedHPO-LR-CreditG-v1", '--set noise={"clients":0.4} --shared-start 5'),
    ("random de", "FedHPO-LR-CreditG-v1", "--backend raw --budget-s 1500"),
    (VECTORS, "MO-FedHPO-LR-CreditG-v1", "--budget-s 3000"),
    (COURSES, "FedHPO-DAC-LR-BreastCancer-v1", ""),
)
"""Agents that run, on what, and with which options of `fedhpo-gym run`."""


def records(pattern: Sequence[str] = ("*",)) -> Iterator[tuple[str, str]]:
    """Yield runs whose names follow a pattern, and the digests of all steps they recorded."""
    from fedhpo_gym.cli import main as command

    for agents, env_id, options in RUNS:
        for agent in agents.split():
            name = " ".join([agent, env_id, *options.split()])
            if not any(fnmatchcase(name, one) for one in pattern):
                continue
            with tempfile.TemporaryDirectory() as out:
                asked = ["run", env_id, "--agent", agent, "--seeds", "1", "--out", out]
                with contextlib.redirect_stdout(io.StringIO()):
                    failed = command([*asked, *options.split()])
                if failed:
                    raise RuntimeError(f"{name} has failed")
                [path] = Path(out).rglob("*.jsonl")
                steps = [json.loads(line) for line in path.read_bytes().splitlines()[1:]]
            kept = [{key: step[key] for key in sorted(step) if key != "digest"} for step in steps]
            yield name, hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:32]


HEAVY = ("-DAC-", "-CNN-", "-BERT-", "-Hetero-", "-MF-Fed")
"""Ids that are not trained where nothing is stored: a round of all clients takes minutes."""


def ids(pattern: Sequence[str] = ("*",)) -> Iterator[tuple[str, str]]:
    """Yield ids that follow a pattern, and the digest of one step of a round or of one round."""
    import gymnasium as gym

    import fedhpo_gym  # noqa: F401 - it registers the ids
    from fedhpo_gym.core.errors import FedHPOError

    for env_id in sorted(one for one in gym.registry if "FedHPO-" in one):
        if not any(fnmatchcase(env_id, one) for one in pattern):
            continue
        short: Mapping[str, Any] = {"fidelity": {"round": 1}}
        ways = (
            [{"rounds_per_step": 1}] if "-DAC-" in env_id else [short, short | {"backend": "raw"}]
        )
        for kwargs in ways:
            try:
                [digest] = stepped(Trajectory(env_id, "single", 1, kwargs))
            except FedHPOError as error:
                sys.stderr.write(f"{env_id}: {error}\n")
            else:
                yield env_id, digest.exact
                break


def main() -> int:
    """Print the digests of kernels, or make those of the file again; say what has changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="patterns of names; beginnings, of kernels")
    parser.add_argument("--kernels", action="store_true", help="print those of kernels")
    parser.add_argument("--apart", action="store_true", help="train every course by itself")
    parser.add_argument("--stored", action="store_true", help="leave out what trains")
    parser.add_argument("--trained", action="store_true", help="leave out what is stored")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--add", nargs="*", default=[], metavar="ID", help="ids to record anew")
    parser.add_argument("--kwargs", type=json.loads, default={}, help="of the ids that are added")
    options = parser.parse_args()
    if options.kernels:
        sys.stdout.write(json.dumps(dict(kernels(options.names or [""], options.apart))) + "\n")
        return 0
    changed = made_again(options)
    sys.stdout.write(f"{changed} digests have changed\n")
    return int(options.check and changed > 0)


def made_again(options: argparse.Namespace) -> int:
    """Make digests again and write them, unless they are only compared; return how many changed."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    names, changed, tried = options.names or ["*"], 0, 0
    content["trajectories"] += [
        to_json(Trajectory(one, form, STEPS[form], options.kwargs), [])
        for one in options.add
        for form in STEPS
    ]
    for index, entry in enumerate(content["trajectories"]):
        trajectory = from_json(entry)[0]
        wanted = any(fnmatchcase(trajectory.name, name) for name in names)
        if (
            not wanted
            or options.stored & trajectory.trained
            or options.trained > trajectory.trained
        ):
            continue
        found, tried = to_json(trajectory, stepped(trajectory)), tried + 1
        if json.loads(json.dumps(found)) != entry:
            changed += 1
            sys.stdout.write(f"changed: {trajectory.name}\n")
            content["trajectories"][index] = found
    for kind, made in (("kernels", kernels()), ("runs", records(names)), ("ids", ids(names))):
        if options.stored or (kind == "kernels" and options.names):
            continue
        for name, digest in made:
            tried += 1
            if content[kind].get(name) != digest:
                changed += 1
                sys.stdout.write(f"changed: {kind}, {name}\n")
                content[kind][name] = digest
    if not tried:
        raise SystemExit(f"`names` must match something of the file, got {options.names}")
    if not options.check:
        write(content)
    return changed


def write(content: Mapping[str, Any]) -> None:
    """Write everything, one line each, and which machine it is from."""
    lines = ",\n".join(json.dumps(entry) for entry in content["trajectories"])
    rest = ",\n".join(
        f'"{kind}": {json.dumps(content[kind], indent=0)}' for kind in ("kernels", "runs", "ids")
    )
    text = f'{{"machine": "{machine()}",\n"trajectories": [\n{lines}\n],\n{rest}}}\n'
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
