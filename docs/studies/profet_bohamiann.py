"""BOHAMIANN for many independent runs at once: their networks are one batch of matrices.

Springenberg et al. (2016), with the network of Klein et al. (2019): three layers of 50 tanh units.
Differs from RoBO's: a chain goes on from one evaluation to the next instead of starting anew, so
that it takes `STEPS` steps after each. The initial design is three random points.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
WIDTHS = (50, 50, 50)
STEPS, KEEP_EVERY, FIRST_STEPS = 100, 10, 500
RATE, DECAY, EPSILON = 1e-2, 0.05, 1e-10
INITIAL, CANDIDATES, NEAR, MOVE = 3, 350, 150, 0.1
"""Candidates are uniform, and as many near the best, moved by a normal of this deviation."""
LOG_VARIANCE, ITS_DEVIATION = math.log(1e-6), 0.01


class Chains:
    """Adaptive stochastic gradient Hamiltonian Monte Carlo on (R, P) parameters of R networks."""

    def __init__(self, runs: int, dimensions: int, generator: torch.Generator) -> None:
        self.sizes = (dimensions, *WIDTHS, 1)
        self.generator = generator
        parts = []
        for wide, narrow in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            drawn = torch.randn(runs, wide * narrow, generator=generator) / math.sqrt(wide)
            parts += [drawn, torch.zeros(runs, narrow)]
        self.at = torch.cat([*parts, torch.full((runs, 1), math.log(1e-3))], dim=1)
        self.momentum = torch.zeros_like(self.at)
        self.tau, self.mean, self.square = (torch.ones_like(self.at) for _ in range(3))

    def outputs(self, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return (R, n) predictions at (R, n, D) points."""
        place = 0
        for layer, (wide, narrow) in enumerate(zip(self.sizes[:-1], self.sizes[1:], strict=True)):
            weight = at[:, place : place + wide * narrow].view(-1, wide, narrow)
            place += wide * narrow
            bias = at[:, None, place : place + narrow]
            place += narrow
            x = torch.baddbmm(bias, x if layer == 0 else torch.tanh(x), weight)
        return x[..., 0]

    def step(self, x: torch.Tensor, y: torch.Tensor, adapt: bool) -> None:
        """Move all chains once, given (R, n, D) points and (R, n) normalised values."""
        at, number = self.at.requires_grad_(), y.shape[1]
        log_variance = at[:, -1:]
        miss = (self.outputs(at, x) - y) ** 2 * torch.exp(-log_variance)
        energy = 0.5 * (miss + log_variance).sum() + 0.5 * (at[:, :-1] ** 2).sum()
        energy = energy + 0.5 * ((log_variance - LOG_VARIANCE) ** 2 / ITS_DEVIATION).sum() / number
        (gradient,) = torch.autograd.grad(energy, at)
        with torch.no_grad():
            at = at.detach()
            scaled = gradient / number
            if adapt:
                share = 1.0 / (self.tau + 1.0)
                self.tau += 1.0 - self.tau * (self.mean**2 / self.square)
                self.mean += share * (scaled - self.mean)
                self.square += share * (scaled**2 - self.square)
            inverse = 1.0 / torch.sqrt(self.square + EPSILON)
            rate = RATE / math.sqrt(number)
            spread = torch.sqrt(torch.clamp(2.0 * rate**2 * DECAY * inverse - rate**4, min=1e-16))
            noise = torch.randn(at.shape, generator=self.generator)
            self.momentum += -(rate**2) * inverse * gradient - DECAY * self.momentum
            self.momentum += spread * noise
            self.at = at + self.momentum


def minimise(
    values: Callable[[Array], Array], runs: int, evaluations: int, seed: int, dimensions: int = 1
) -> Array:
    """Return the (R, evaluations) values that R independent runs saw, by expected improvement.

    Args:
        values: returns the (R,) values at (R, D) points, one of each run.
    """
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    chains = Chains(runs, dimensions, generator)
    tried = np.empty((runs, evaluations, dimensions))
    seen = np.empty((runs, evaluations))
    for number in range(evaluations):
        tried[:, number] = rng.random((runs, dimensions))
        if number >= INITIAL:
            steps = FIRST_STEPS if number == INITIAL else STEPS
            known = tried[:, :number], seen[:, :number]
            tried[:, number] = _suggestions(chains, *known, steps, rng)
        seen[:, number] = values(tried[:, number])
    return seen


def _suggestions(
    chains: Chains, tried: Array, seen: Array, steps: int, rng: np.random.Generator
) -> Array:
    mean, deviation = seen.mean(axis=1, keepdims=True), seen.std(axis=1, keepdims=True) + 1e-10
    y = torch.tensor((seen - mean) / deviation, dtype=torch.float32)
    x = torch.tensor(4.0 * tried - 2.0, dtype=torch.float32)
    best = tried[np.arange(len(tried)), seen.argmin(axis=1)][:, None]
    near = best + MOVE * rng.standard_normal((len(tried), NEAR, tried.shape[2]))
    uniform = rng.random((len(tried), CANDIDATES, tried.shape[2]))
    places = np.concatenate([uniform, np.clip(near, 0.0, 1.0)], axis=1)
    at_places = torch.tensor(4.0 * places - 2.0, dtype=torch.float32)
    found, noise = [], []
    for step in range(steps):
        chains.step(x, y, adapt=step < steps // 2)
        if step >= steps // 2 and step % KEEP_EVERY == KEEP_EVERY - 1:
            with torch.no_grad():
                found.append(chains.outputs(chains.at, at_places))
                noise.append(chains.at[:, -1:].exp())
    drawn = torch.stack(found)
    spread = torch.sqrt(drawn.var(dim=0, correction=0) + torch.stack(noise).mean(dim=0))
    z = (y.min(dim=1, keepdim=True).values - drawn.mean(dim=0)) / spread
    density = torch.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    gain = spread * (z * torch.special.ndtr(z) + density)
    return np.asarray(places[np.arange(len(places)), gain.argmax(dim=1).numpy()])
