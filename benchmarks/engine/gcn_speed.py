"""How many courses of a graph convolutional network a core trains per hour.

Measured in one run on one thread, on courses drawn from the grid of a task (Table 8 of
FedHPO-Bench) with its client sample rates:

- our engine, all courses in one batch, and each alone;
- a plain torch loop, one course after the other: dense features, autograd, `torch.optim.SGD`;
- FederatedScope 0.1, when `--federatedscope` names its source tree, on the same graphs, with the
  settings of FedHPO-Bench's scripts: the server evaluates the whole graph after every round;
- the largest rate at which this core multiplies float32 matrices, and the share of it that the
  engine's arithmetic reaches: of the products it does (of sparse matrices), and of those that
  dense features would take.

Models are evaluated at the rounds the task evaluates, but by FederatedScope after every round.
The engine's time with an evaluation after every round is given, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
import peer
import torch
from measuring import number
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.backends.training import make_batch, make_course, task_federation
from fedhpo_gym.data.graph_federations import GraphFederation
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.models.gcn import GCN
from fedhpo_gym.tasks import Task, get_task

HIDDEN = 64


def main(argv: Sequence[str] | None = None) -> str:
    """Measure and write the report."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--task", default="GNN-Cora")
    parser.add_argument("--courses", type=int, default=24, help="courses of the batch")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--singles", type=int, default=6, help="courses trained one by one")
    peer.add_arguments(parser)
    options = parser.parse_args(argv)
    task, rounds = get_task(options.task), options.rounds
    courses = draw_courses(task, options.courses)
    federation = task_federation(task, courses[0].seed)
    if not isinstance(federation, GraphFederation):
        parser.error(f"`--task` must be on one graph, as GNN-Cora is; {options.task} is not")
    plain, some = Plain(federation), courses[: options.singles]
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "engine, one batch of all": (lambda: engine(task, courses, rounds), len(courses)),
        "engine, one batch of the singles": (lambda: engine(task, some, rounds), len(some)),
        "engine, one batch of the singles, evaluated after every round": (
            lambda: engine(task, some, rounds, every=True),
            len(some),
        ),
        "engine, one course alone": (lambda: [engine(task, [c], rounds) for c in some], len(some)),
        "plain torch loop": (lambda: [plain.train(c, task, rounds) for c in some], len(some)),
    }
    times = {name: clock(work) / count / rounds for name, (work, count) in ways.items()}
    others = ["plain torch loop"]
    if options.federatedscope:
        label, seconds = federatedscope(options, federation, some, rounds)
        times[label] = seconds
        others.append(label)
    rows = [
        [
            name,
            *map(number, (1e3 * s, 3600 / (s * task.max_round), *(times[o] / s for o in others))),
        ]
        for name, s in times.items()
    ]
    header = ["", "ms per round", f"courses of {task.max_round} rounds per core-hour"]
    header += [f"times the {other}" for other in others]
    steps = sum(course_steps(federation, c, rounds) for c in courses)
    spent = times["engine, one batch of all"] * rounds * len(courses) / steps
    peak, (sparse, dense) = measuring.gemm_peak(), step_flops(federation)
    return measuring.write_report(
        options,
        f"Graph convolutional networks: {task.name}",
        f"{len(courses)} courses of seed 1 from the grid, {len(some)} of them one by one, "
        f"{rounds} rounds each; processor time.",
        measuring.table(header, rows),
        f"A local step, everything of a round counted: {number(spent * 1e3)} ms. "
        f"float32 products here: {number(peak / 1e9)} GFLOP/s at most. The engine does "
        f"{number(sparse / 1e6)} MFLOP per step, {number(100 * sparse / spent / peak)} % of "
        f"that; with dense features the same step is {number(dense / 1e6)} MFLOP, and the "
        f"engine is as fast as a dense one at {number(100 * dense / spent / peak)} %.",
    )


def federatedscope(
    options: argparse.Namespace, federation: GraphFederation, courses: Sequence[Course], rounds: int
) -> tuple[str, float]:
    """Return FederatedScope's version and its mean processor seconds per round."""
    settings = {
        "trainer.type": "nodefullbatch_trainer",
        "model.type": "gcn",
        "model.task": "node",
        "model.hidden": HIDDEN,
        "federate.batch_or_epoch": "batch",
        "federate.make_global_eval": True,
        "eval.metrics": ["acc", "correct"],
    }
    times = []
    for course in courses:
        answer = peer.run_courses(
            options.federatedscope,
            options.federatedscope_python,
            federation,
            [course],
            rounds + 1,
            settings={**settings, "model.dropout": course.configuration["dropout"]},
        )
        times.append(np.mean(answer["courses"][0]["cpu_s"]))
    return peer.describe(answer), float(np.mean(times))


def draw_courses(task: Task, count: int) -> list[Course]:
    """Draw courses of the grid at random, of seed 1."""
    rng = np.random.default_rng(0)
    space = task.space.discretized()
    rates = task.fidelity_space["client_sample_rate"].grid
    return [
        make_course(
            task,
            {d.name: d.grid[rng.integers(len(d.grid))] for d in space.dimensions},
            float(rates[rng.integers(len(rates))]),
            1,
        )
        for _ in range(count)
    ]


def clock(work: Callable[[], object]) -> float:
    """Return the processor seconds of some work."""
    with measuring.stopwatch() as spent:
        work()
    return spent.cpu_s


def engine(task: Task, courses: Sequence[Course], rounds: int, every: bool = False) -> None:
    """Train courses together, and evaluate them when the task does, or after every round."""
    batch = make_batch(task, courses)
    batch.advance(rounds, evaluated=None if every else task.evaluated_rounds)


def course_steps(federation: GraphFederation, course: Course, rounds: int) -> int:
    """Return the local steps of a course."""
    sampled = Fidelity(0, course.client_sample_rate).sampled_clients(federation.num_clients)
    return rounds * sampled * int(course.configuration["step_size"])


def step_flops(federation: GraphFederation) -> tuple[float, float]:
    """Return the FLOPs of a mean local step as the engine does it, and with dense features."""
    classes, width = federation.num_classes, federation.features.shape[1]
    entries = np.diff(federation.propagated.indptr)
    edges = len(federation.adjacency.values) / federation.num_clients
    nodes = len(entries) / federation.num_clients
    rest = 2 * 3 * nodes * HIDDEN * classes + 2 * 2 * edges * classes
    sparse = 2 * 2 * HIDDEN * (entries.sum() / federation.num_clients + nodes) + rest
    return sparse, 2 * 2 * HIDDEN * nodes * (width + 1) + rest


class Plain:
    """One course after the other, with autograd; the clients' graphs as dense matrices."""

    def __init__(self, federation: GraphFederation) -> None:
        self._federation = federation
        self._clients = []
        for client, (train, *_) in enumerate(federation.clients):
            nodes = federation.client_nodes(client)
            self._clients.append(
                (
                    torch.from_numpy(federation.propagated[nodes]),
                    torch.from_numpy(federation.client_adjacency(client)[np.arange(len(nodes))]),
                    torch.from_numpy(np.searchsorted(nodes, train)),
                    torch.tensor(federation.labels[train]),
                )
            )

    def train(self, course: Course, task: Task, rounds: int) -> None:
        """Train one course."""
        config = course.configuration
        sampled = Fidelity(0, course.client_sample_rate).sampled_clients(len(self._clients))
        model = GCN.for_federation(self._federation, torch.device("cpu"))
        drawn = model.init(np.random.default_rng(course.seed))
        weights = [torch.from_numpy(value[0]) for value in drawn.values()]
        rng = np.random.default_rng(course.seed)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        for index in range(1, rounds + 1):
            chosen = rng.permutation(len(self._clients))[:sampled]
            locals_ = [self._local(weights, *self._clients[c], config) for c in chosen]
            share = np.array([len(self._clients[c][2]) for c in chosen], dtype=np.float32)
            parts = zip(*locals_, strict=True)
            weights = [
                sum(w * float(s) for w, s in zip(p, share / share.sum(), strict=True))
                for p in parts
            ]
            if index in task.evaluated_rounds:
                with torch.no_grad():
                    for propagated, adjacency, *_ in self._clients:
                        _logits(weights, propagated, adjacency, 0.0).argmax(1)
        torch.set_num_threads(before)

    def _local(
        self,
        weights: Sequence[Tensor],
        propagated: Tensor,
        adjacency: Tensor,
        train: Tensor,
        labels: Tensor,
        config: dict[str, float],
    ) -> list[Tensor]:
        own = [w.clone().requires_grad_() for w in weights]
        optimizer = torch.optim.SGD(
            own, config["learning_rate"], weight_decay=config["weight_decay"]
        )
        for _ in range(int(config["step_size"])):
            optimizer.zero_grad()
            logits = _logits(own, propagated, adjacency, config["dropout"])[train]
            functional.cross_entropy(logits, labels).backward()
            optimizer.step()
        return [w.detach() for w in own]


def _logits(
    weights: Sequence[Tensor], propagated: Tensor, adjacency: Tensor, dropout: float
) -> Tensor:
    first, second, bias = weights
    hidden = functional.dropout(propagated @ first[:-1] + first[-1], dropout).relu()
    return adjacency @ (hidden @ second) + bias


if __name__ == "__main__":
    measuring.run(main)
