"""How fast a course could be at best on this core, and what takes the rest of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import measuring
import torch
from families import Family
from measuring import number
from torch.nn import functional

from fedhpo_gym.courses.training import make_batch
from fedhpo_gym.fl.lockstep_batch import one_thread
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.tasks import get_task

IMAGES, REPEATS = 32, 20
KINDS: Mapping[str, tuple[str, ...]] = {
    "convolutions": ("convolution",),
    "products of matrices": ("mm", "matmul", "dot"),
    "normalisation": ("batch_norm",),
    "pooling and ReLU": ("pool", "relu", "threshold"),
    "copies and conversions": ("copy", "_to_", "cat", "index", "contiguous", "clone", "fill"),
}
"""Kinds of operations, by what their names contain; the first that fits."""


def conv_peak(precision: str) -> float:
    """Return the FLOP/s of the second layer's convolution, forward and backward, at best."""
    maps = torch.rand((IMAGES, 32, 14, 14)).to(getattr(torch, precision))
    maps = maps.contiguous(memory_format=torch.channels_last)
    kernel = torch.rand((64, 32, 5, 5)).to(maps.dtype, memory_format=torch.channels_last)
    best = float("inf")
    with one_thread():
        back = functional.conv2d(maps, kernel, padding=2)
        for _ in range(REPEATS):
            with measuring.stopwatch() as spent:
                functional.conv2d(maps, kernel, padding=2)
                torch.ops.aten.convolution_backward(
                    *(back, maps, kernel, None, [1, 1], [2, 2], [1, 1], False, [0, 0], 1),
                    [True, True, False],
                )
            best = min(best, spent.cpu_s)
    return 3 * 2.0 * IMAGES * 25 * 32 * 64 * 14 * 14 / best


def shares(family: Family, precision: str) -> dict[str, float]:
    """Return the share of processor time of each kind of operation in a round of training."""
    task = get_task(family.task).variant(precision=precision)
    batch = make_batch(task, [Course(family.configuration, family.client_sample_rate, 1)])
    batch.advance(1, evaluated=())
    with torch.profiler.profile() as profile:
        batch.advance(1, evaluated=())
    found = dict.fromkeys([*KINDS, "everything else"], 0.0)
    for event in profile.key_averages():
        found[_kind(event.key)] += event.self_cpu_time_total
    total = sum(found.values())
    return {kind: time / total for kind, time in found.items()}


def least_seconds(family: Family, trained: float, products: float, convolutions: float) -> float:
    """Return the seconds in which some rows could be trained, were all arithmetic at its peak.

    Args:
        family: the family.
        trained: rows.
        products: FLOP/s of matrix products.
        convolutions: FLOP/s of convolutions.
    """
    seconds = 0.0
    for layer, flops in enumerate(family.flops):
        peak = convolutions if layer < family.convolutions else products
        seconds += trained * flops * (3 if layer else 2) / peak
    return seconds


def describe(family: Family, precision: str, least: float, seconds: float) -> str:
    """Return a sentence on the share of what is attainable, and one on what takes the time."""
    found = measuring.in_fresh_process(shares, family, precision)[0]
    parts: Sequence[str] = [f"{kind} {100 * share:.0f} %" for kind, share in found.items()]
    return (
        f"{precision}: at the peaks of products and convolutions the arithmetic of a round takes "
        f"{number(1e3 * least)} ms, {100 * least / seconds:.0f} % of what our engine takes. "
        f"Time by kind of operation in one profiled round: {', '.join(parts)}."
    )


def _kind(name: str) -> str:
    kinds = (kind for kind, words in KINDS.items() if any(word in name for word in words))
    return next(kinds, "everything else")
