"""Plain federated courses with torch's own layers, autograd and optimizer: client after client.

An independent implementation to check the engine against: it shares only the draws (federation,
client order, minibatches, initial parameters, noise), not the arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor, nn

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import FULL_BATCH, Course, PerClient, TrainingClock
from fedhpo_gym.fl.participants import RoundLayout, batch_rows, client_orders, client_streams

State = dict[str, Tensor]
GIVEN: Mapping[str, Mapping[str, float]] = {
    "fedavg": {},
    "fedopt": {"server_momentum": 0.9, "server_learning_rate": 0.5},
    "fedprox": {"mu": 1.5},
    "nbafl": {"epsilon": 5.0, "w_clip": 0.3, "constant": 2.0, "mu": 0.5},
    "fedadam": {"server_learning_rate": 0.1, "adaptivity": 0.01},
    "fedyogi": {"server_learning_rate": 0.1, "adaptivity": 0.01, "second_decay": 0.8},
    "fedbn": {},
    "ditto": {"regularization": 2.0},
    "local": {},
    "fedasync": {"mixing": 0.6, "staleness_exponent": 0.5},
    "fedbuff": {"buffer_size": 3, "server_learning_rate": 0.8, "mu": 0.5},
    "serveropt": {
        "mu": 0.5,
        "server_optimizer": 3,
        "server_learning_rate": 0.1,
        "server_momentum": 0.8,
        "adaptivity": 0.01,
    },
    "fednova": {"server_momentum": 0.5, "server_learning_rate": 0.8},
    "scaffold": {"server_learning_rate": 0.8},
    "dpfedavg": {
        "update_clip": 0.5,
        "server_momentum": 0.5,
        "server_learning_rate": 0.8,
        "noise_multiplier": 0.3,
        "clip_rate": 0.2,
    },
}
"""Settings of the algorithms that have a plain implementation here."""


def settings_of(algorithm: str) -> Mapping[str, float]:
    """Return settings of any algorithm: those above, else the highest of what is searched."""
    highest = {d.name: float(d.high) for d in get_algorithm(algorithm).dimensions}
    return GIVEN.get(algorithm, highest)


def linear_course(sampled: float = 0.6, seed: int = 1, **changes: float) -> Course:
    """Return a course of logistic regression."""
    config = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": 8, "step_size": 2}
    return Course({**config, **changes}, sampled, seed)


@dataclass(frozen=True)
class Network:
    """What is trained, and how a step differs from torch's own SGD."""

    make: Callable[[Federation], nn.Module]
    inputs: Callable[[NDArray[np.generic]], Tensor]
    norms: tuple[str, ...] = ()
    clip: float = float("inf")


@dataclass
class Trace:
    """What a course did: per round, its metrics and what every sampled client made of what."""

    metrics: list[list[list[list[float]]]] = field(default_factory=list)
    updates: list[dict[int, tuple[State, State]]] = field(default_factory=list)


def plain_course(
    federation: Federation,
    courses: Sequence[Course],
    algorithm: str = "fedavg",
    horizon: int = 1,
    network: Network | None = None,
) -> Trace:
    """Train one course; `courses` holds its configuration in every round."""
    kind = network or LINEAR
    module = kind.make(federation)
    trained = [name for name, _ in module.named_parameters()]
    world: State = {k: v.clone() for k, v in module.state_dict().items() if v.is_floating_point()}
    kept = {"local": tuple(world), "fedbn": kind.norms}.get(algorithm, ())
    own = [copy.deepcopy(world) for _ in federation.clients]
    variates = [{name: torch.zeros_like(world[name]) for name in trained} for _ in own]
    size, memory, trace = federation.num_samples[:, 0], State(), Trace()
    for index, course in enumerate(courses):
        config = course.configuration
        sampled = Fidelity(0, course.client_sample_rate).sampled_clients(federation.num_clients)
        clients = _participants(algorithm, course.seed, index, federation.num_clients, sampled)
        sent, total = dict(world), {name: torch.zeros_like(v) for name, v in world.items()}
        if algorithm == "nbafl":
            spread = max(horizon**2 - sampled**2 * len(size), 0) ** 0.5 / len(size) * 2
            sent |= _private(world, trained, course, spread / size.min(), "downlink", index)
        trace.updates.append({})
        for client in clients.tolist():
            start = sent | {name: own[client][name] for name in kept}
            job = (kind, federation, course, index, client, horizon)
            if algorithm == "ditto":
                own[client] = train_client(
                    module, own[client], sent, config["regularization"], *job
                )
            shift = _shift(algorithm, variates, client)
            pull = _of(course, "mu", client, 0.0)
            local = train_client(module, start, start, pull, *job, shift=shift)
            own[client] |= {name: local[name] for name in kept}
            trace.updates[-1][client] = (start, local)
            if algorithm == "nbafl":
                spread = horizon / size[client]
                local = local | _private(local, trained, course, spread, "uplink", index, client)
            for name, value in local.items():
                total[name] = total[name] + value * float(size[client] / size[clients].sum())
        total |= _of_updates(algorithm, trace.updates[-1], federation, course, sent, trained)
        _renew(algorithm, variates, trace.updates[-1], federation, course, index, horizon)
        world = sent | {name: value for name, value in total.items() if name not in kept}
        steps = {
            "fedopt": _sgd,
            "fednova": _sgd,
            "dpfedavg": _sgd,
            "fedadam": _adaptive,
            "fedyogi": _adaptive,
        }
        server, config = _server(algorithm, config)
        if server in steps:
            for name in trained:
                world[name] = sent[name] + steps[server](
                    server, name, total[name] - sent[name], memory, config
                )
        models = [
            own[i] if algorithm == "ditto" else world | {name: own[i][name] for name in kept}
            for i in range(len(size))
        ]
        trace.metrics.append(
            [evaluate(kind, module, m, federation, i) for i, m in enumerate(models)]
        )
    return trace


def _server(algorithm: str, config: Mapping[str, float]) -> tuple[str, Mapping[str, float]]:
    """Return the algorithm whose server it is, and what that one reads."""
    if algorithm != "serveropt":
        return algorithm, config
    kind = ("fedavg", "fedopt", "fedadam", "fedyogi")[int(config["server_optimizer"])]
    return kind, {**config, "first_decay": config.get("server_momentum", 0.0)}


def _participants(
    algorithm: str, seed: int, index: int, number: int, sampled: int
) -> NDArray[np.int64]:
    if algorithm != "dpfedavg":
        return np.sort(client_order(seed, index, number)[:sampled])
    return np.flatnonzero(stream(seed, "poisson", index).random(number) < sampled / number)


def _of_updates(
    algorithm: str,
    updates: Mapping[int, tuple[State, State]],
    federation: Federation,
    course: Course,
    sent: State,
    trained: Sequence[str],
) -> State:
    """Return what becomes of the mean where it is not that of the clients' models."""
    if algorithm == "fednova":
        return _normalised(updates, federation, course)
    if algorithm == "scaffold":
        rate, number = course.configuration["server_learning_rate"], len(updates)
        return {
            name: sent[name] + sum(b[name] - a[name] for a, b in updates.values()) * rate / number
            for name in trained
        }
    if algorithm != "dpfedavg":
        return {}
    given = course.configuration
    assert given["noise_multiplier"] == 0.0
    expected = Fidelity(0, course.client_sample_rate).sampled_clients(federation.num_clients)
    kept = {} if updates else dict(sent)
    return kept | _clipped(updates, sent, trained, given["update_clip"], expected)


def _shift(algorithm: str, variates: Sequence[State], client: int) -> State:
    """Return c - c_i of SCAFFOLD: c is the mean of all variates, as long as all began at 0."""
    if algorithm != "scaffold":
        return {}
    number = len(variates)
    return {k: sum(v[k] for v in variates) / number - own for k, own in variates[client].items()}


def _renew(
    algorithm: str,
    variates: list[State],
    updates: Mapping[int, tuple[State, State]],
    federation: Federation,
    course: Course,
    index: int,
    horizon: int,
) -> None:
    """Set the variates of those who trained to the mean gradient of their steps (Option II)."""
    shifts = {client: _shift(algorithm, variates, client) for client in updates}
    for client, (before, local) in updates.items():
        steps = _steps(course, client, federation)
        last = _of(course, "rate_decay", client, 1.0) ** (index / max(horizon - 1, 1))
        momentum = _of(course, "momentum", client, 0.0)
        length = _length(steps, momentum) * float(last * _of(course, "learning_rate", client))
        variates[client] |= {
            name: (before[name] - local[name]) / length - shift
            for name, shift in shifts[client].items()
        }


def _steps(course: Course, client: int, federation: Federation) -> int:
    """Return how many local steps a client takes in a round."""
    size = int(_of(course, "batch_size", client, FULL_BATCH))
    return int(_of(course, "step_size", client, 1)) * -(-federation.num_samples[client, 0] // size)


def _length(steps: int, momentum: float) -> float:
    """Return how many steps without momentum are as long, of a gradient that stays the same."""
    return sum(momentum**k for step in range(steps) for k in range(step + 1))


def _normalised(
    updates: Mapping[int, tuple[State, State]], federation: Federation, course: Course
) -> State:
    """Return where FedNova's mean update leads; a step weighs what momentum makes of it."""
    held = federation.num_samples[:, 0]
    share = {client: float(held[client] / held[[*updates]].sum()) for client in updates}
    length = {}
    for client in updates:
        momentum = _of(course, "momentum", client, 0.0)
        length[client] = _length(_steps(course, client, federation), momentum)
    mean = sum(share[client] * length[client] for client in updates)
    start = next(iter(updates.values()))[0]
    return {
        name: value
        + sum(
            (local[name] - before[name]) * (share[client] * mean / length[client])
            for client, (before, local) in updates.items()
        )
        for name, value in start.items()
        if "running" not in name
    }


def _clipped(
    updates: Mapping[int, tuple[State, State]],
    sent: State,
    trained: Sequence[str],
    clip: float,
    expected: int,
) -> State:
    """Return where clipped updates lead, divided by the clients that are expected."""
    found = {name: sent[name].clone() for name in trained}
    for before, local in updates.values():
        moved = {name: local[name] - before[name] for name in trained}
        norm = torch.cat([value.flatten() for value in moved.values()]).norm()
        for name, value in moved.items():
            found[name] += value * min(1.0, clip / float(norm)) / expected
    return found


def _sgd(_: str, name: str, update: Tensor, memory: State, config: Mapping[str, float]) -> Tensor:
    memory[name] = config["server_momentum"] * memory.get(name, 0.0 * update) + update
    return config["server_learning_rate"] * memory[name]


def _adaptive(
    algorithm: str, name: str, update: Tensor, memory: State, config: Mapping[str, float]
) -> Tensor:
    tau, b1 = config.get("adaptivity", 1e-3), config.get("first_decay", 0.9)
    b2 = config.get("second_decay", 0.99)
    m = memory.get(f"m {name}", torch.zeros_like(update))
    v = memory.get(f"v {name}", torch.full_like(update, tau**2))
    m, square = b1 * m + (1 - b1) * update, update**2
    adam, yogi = b2 * v + (1 - b2) * square, v - (1 - b2) * square * torch.sign(v - square)
    memory[f"m {name}"], memory[f"v {name}"] = m, adam if algorithm == "fedadam" else yogi
    return config["server_learning_rate"] * m / (memory[f"v {name}"] ** 0.5 + tau)


def _private(
    values: State, trained: list[str], course: Course, spread: float, link: str, *keys: int
) -> State:
    """Clip and noise a linear model; `spread` is the noise for w_clip x constant / epsilon = 1."""
    config = course.configuration
    limit, scale = config["w_clip"], config["w_clip"] * config["constant"] / config["epsilon"]
    weight, bias = values["weight"], values["bias"]
    rng = stream(course.seed, f"nbafl {link} weight", *keys)
    uniform = np.maximum(rng.random((len(weight), weight.shape[1] + 1)), 2.0**-54)
    drawn = np.vectorize(NormalDist().inv_cdf, otypes=[np.float32])(uniform)
    noise = torch.from_numpy(drawn) * float(scale * spread)
    assert trained == ["weight", "bias"]
    return {"weight": weight.clamp(-limit, limit) + noise[:, :-1],
            "bias": bias.clamp(-limit, limit) + noise[:, -1]}  # fmt: skip


def _of(course: Course, name: str, client: int, default: float | None = None) -> float:
    config = course.configuration
    value = config.get(f"{name}@{client}", config.get(name, default))
    assert value is not None, name
    return value


def train_client(
    module: nn.Module,
    start: State,
    anchor: State,
    pull: float,
    kind: Network,
    federation: Federation,
    course: Course,
    index: int,
    client: int,
    horizon: int = 1,
    shift: Mapping[str, Tensor] = MappingProxyType({}),
) -> State:
    """Return the parameters after the local steps of one client in one round."""
    module.load_state_dict(start, strict=False)
    module.train()
    rate, decay = (_of(course, name, client) for name in ("learning_rate", "weight_decay"))
    last = _of(course, "rate_decay", client, 1.0)
    rate *= last ** (index / max(horizon - 1, 1))
    momentum = _of(course, "momentum", client, 0.0)
    optimizer = torch.optim.SGD(module.parameters(), rate, momentum, weight_decay=decay)
    clip = course.configuration.get("clip_norm", kind.clip)
    size, epochs = course.value("batch_size", FULL_BATCH), int(_of(course, "step_size", client, 1))
    batches = draw_round(federation, index, np.array([client]), size, epochs)
    for rows, count in zip(batches.rows[:, 0], batches.sizes[:, 0], strict=True):
        used = rows[:count]
        if len(used) < 2 and any(isinstance(one, nn.BatchNorm1d) for one in module.modules()):
            continue  # torch refuses it
        optimizer.zero_grad()
        logits = module(kind.inputs(federation.features[used]))
        nn.functional.cross_entropy(logits, torch.from_numpy(federation.labels[used])).backward()
        nn.utils.clip_grad_norm_(module.parameters(), clip)
        for name, parameter in module.named_parameters():
            parameter.grad += pull * (parameter.detach() - anchor[name]) + shift.get(name, 0.0)
        optimizer.step()
    return {k: v.clone() for k, v in module.state_dict().items() if v.is_floating_point()}


@torch.no_grad()
def evaluate(
    kind: Network, module: nn.Module, state: State, federation: Federation, client: int
) -> list[list[float]]:
    """Return (splits, metrics) of one client's data."""
    module.load_state_dict(state, strict=False)
    module.eval()
    table = []
    for rows in federation.clients[client]:
        y = torch.from_numpy(federation.labels[rows])
        logits = module(kind.inputs(federation.features[rows]))
        guess = logits.argmax(1)
        f1 = f1_score(y, guess, average="macro", zero_division=0)
        loss = nn.functional.cross_entropy(logits, y).item()
        table.append([loss, (guess == y).float().mean().item(), f1])
    return table


def _linear(federation: Federation) -> nn.Linear:
    features, classes = federation.features.shape[1], federation.num_classes
    bound = 1 / np.sqrt(features)
    drawn = stream(federation.seed, "init").uniform(-bound, bound, (classes, features + 1))
    module = nn.Linear(features, classes)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(drawn[:, :-1]))
        module.bias.copy_(torch.from_numpy(drawn[:, -1]))
    return module


LINEAR = Network(_linear, torch.from_numpy)


Metrics = list[list[list[float]]]


def plain_asynchronous(
    federation: Federation,
    course: Course,
    algorithm: str,
    aggregations: int,
    clock: TrainingClock,
    broadcast: float = 1.0,
    upload: float = 1.0,
) -> tuple[list[Metrics], list[float]]:
    """One list of jobs, one client after the other: metrics after each, and their times.

    Models are multiplied by `broadcast` on their way to clients, and by `upload` on the way back.
    """
    module, given, seed = LINEAR.make(federation), course.configuration, federation.seed
    world: State = {name: value.clone() for name, value in module.state_dict().items()}
    at_once = Fidelity(0, course.client_sample_rate).sampled_clients(federation.num_clients)
    flying: list[tuple[float, int, int, int, bool, State, State]] = []
    now, begun, metrics, times = 0.0, 0, [], []
    for version in range(aggregations):
        reports = []
        while len(reports) < given.get("buffer_size", 1):
            waiting = any(job[0] <= now for job in flying)
            while len(flying) < at_once and not waiting:
                idle = sorted({*range(federation.num_clients)} - {job[2] for job in flying})
                client = idle[stream(seed, "asynchronous clients", begun).integers(len(idle))]
                took, survives = clock.job(seed, begun, client, now)
                job = (LINEAR, federation, course, begun, client)
                sent = {name: broadcast * value for name, value in world.items()}
                local = train_client(module, sent, sent, given.get("mu", 0.0), *job)
                local = {name: upload * value for name, value in local.items()}
                flying.append((now + took, begun, client, version, survives, sent, local))
                begun += 1
            flying.sort(key=lambda job: job[:2])
            now, *_ = done = flying.pop(0)
            reports += [done] if done[4] else []
        new = {name: value.clone() for name, value in world.items()}
        for *_, started, _, received, local in reports:
            age = version - started
            weight = (age + 1) ** -given.get("staleness_exponent", 0.5) / len(reports)
            weight /= 1 + given.get("hinge_slope", 0.0) * max(age - given.get("hinge_after", 4), 0)
            for name, value in local.items():
                if algorithm == "fedasync":  # a weighted mean of the two models
                    a = given["mixing"] * weight
                    new[name] = (1 - a) * new[name] + a * value
                else:
                    new[name] += given["server_learning_rate"] * weight * (value - received[name])
        world, now = new, now + clock.server_s
        flying = [(job[0] + clock.server_s, *job[1:]) for job in flying]
        times.append(now)
        assert all(torch.isfinite(value).all() for value in world.values())
        clients = range(federation.num_clients)
        metrics.append([evaluate(LINEAR, module, world, federation, i) for i in clients])
    return metrics, times


@dataclass(frozen=True, eq=False)
class RoundBatches:
    """The minibatches of some clients in one round.

    Attributes:
        rows: (steps, clients, batch) row indices; 0 where padded.
        sizes: (steps, clients) rows that are not padding.
    """

    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]


def client_order(seed: int, round_index: int, num_clients: int) -> NDArray[np.int64]:
    """Return the order in which clients are sampled in a round."""
    order: NDArray[np.int64] = client_orders([(seed, round_index)], num_clients)[0]
    return order


def draw_round(
    federation: Federation,
    round_index: int,
    clients: NDArray[np.int64],
    batch_size: PerClient,
    num_epochs: int,
) -> RoundBatches:
    """Draw the minibatches of some clients for the local epochs of one round."""
    chosen = clients.tolist()
    layout = RoundLayout(
        [federation.clients[client][0] for client in chosen],
        np.array([int(dict(batch_size.own).get(client, batch_size.base)) for client in chosen]),
        np.full(len(chosen), num_epochs),
        batch_rows(federation, batch_size),
    )
    names = [(federation.seed, round_index, client) for client in chosen]
    return RoundBatches(layout.draw(client_streams(names)).swapaxes(0, 1), layout.sizes)
