"""A plain asynchronous course: one list of jobs, one client after the other, torch's own SGD."""

from __future__ import annotations

import torch

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import Course, JobClock
from plain_course import LINEAR, State, evaluate, train_client

Metrics = list[list[list[float]]]


def plain_asynchronous(
    federation: Federation, course: Course, algorithm: str, aggregations: int, clock: JobClock
) -> tuple[list[Metrics], list[float]]:
    """Return metrics after every aggregation, and when it was over."""
    module, given, seed = LINEAR.make(federation), course.configuration, federation.seed
    world: State = {name: value.clone() for name, value in module.state_dict().items()}
    at_once = Fidelity(0, course.client_sample_rate).sampled_clients(federation.num_clients)
    in_flight: list[tuple[float, int, int, int, bool, State, State]] = []
    now, begun, metrics, times = 0.0, 0, [], []
    for version in range(aggregations):
        reports = []
        while len(reports) < given.get("buffer_size", 1):
            waiting = any(job[0] <= now for job in in_flight)
            while len(in_flight) < at_once and not waiting:
                idle = sorted({*range(federation.num_clients)} - {job[2] for job in in_flight})
                client = idle[stream(seed, "asynchronous clients", begun).integers(len(idle))]
                took, survives = clock.job(seed, begun, client, now)
                job = (LINEAR, federation, course, begun, client)
                local = train_client(module, world, world, given.get("mu", 0.0), *job)
                in_flight.append((now + took, begun, client, version, survives, world, local))
                begun += 1
            in_flight.sort(key=lambda job: job[:2])
            now, *_ = done = in_flight.pop(0)
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
        in_flight = [(job[0] + clock.server_s, *job[1:]) for job in in_flight]
        times.append(now)
        assert all(torch.isfinite(value).all() for value in world.values())
        clients = range(federation.num_clients)
        metrics.append([evaluate(LINEAR, module, world, federation, i) for i in clients])
    return metrics, times
