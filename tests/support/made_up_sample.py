"""A small sample whose numbers follow a smooth formula, for tests that need one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.sample import Sample, write_sample
from fedhpo_gym.stored.table import WHICH
from fedhpo_gym.tasks import get_task

TASK = get_task("LR-CreditG-v0").variant(alpha=0.25)  # nobody stores this variant
NAME = TASK.table_name
ROUNDS, RATES, SEEDS, COUNT = (1, 3, 9, 20), (0.4, 0.8), (1, 2, 3), 40


def write_made_up_sample(folder: Path, clients: int = 5, name: str = NAME) -> Sample:
    """Write a sample whose numbers follow a smooth formula."""
    rng = np.random.default_rng(0)
    space = TASK.space
    actions = rng.uniform(-1, 1, (COUNT, len(space)))
    configurations = [space.decode(action) for action in actions]
    seed, rate = np.arange(COUNT) % 3, np.array(RATES)[np.arange(COUNT) // 3 % 2]
    samples = rng.integers(20, 60, (3, clients, 3))
    progress = np.exp(-(actions[:, 0] ** 2))[:, None, None] * np.log1p(ROUNDS)[:, None]
    score = progress + 0.2 * rate[:, None, None] + 0.1 * seed[:, None, None]
    score = score + np.sin(np.arange(clients)) - 1.0
    arrays: dict[str, Any] = {
        "point": np.arange(COUNT),
        "configuration": np.array([list(c.values()) for c in configurations]),
        "client_sample_rate": rate,
        "seed": seed,
        "diverged_at": np.zeros(COUNT, np.uint16),
        "best_round": np.broadcast_to(ROUNDS, (COUNT, len(ROUNDS))).astype(np.uint16),
    }
    for s, split in enumerate(SPLITS):
        for metric in METRICS:
            values = np.exp(-score) if metric == "loss" else 1 / (1 + np.exp(-score))
            codes = codec.encode(metric, values, samples[seed][:, None, :, s])
            arrays |= {f"{which}_{split}_{metric}": codes for which in WHICH}
    rounds, rates = TASK.fidelity_space.dimensions
    fidelity = (
        replace(rounds, high=ROUNDS[-1], values=ROUNDS, bins=None),
        replace(rates, low=RATES[0], high=RATES[-1], values=RATES),
    )
    card = {
        **replace(TASK.identity, name=name).to_card(),
        "space": space.to_dict(),
        "fidelity_space": SearchSpace(fidelity).to_dict(),
        "seeds": list(SEEDS),
        "num_samples": samples.tolist(),
        "splits": list(SPLITS),
        "metrics": list(METRICS),
        "courses": COUNT,
        "missing": "everything: it is made up",
        "build_command": "fedhpo-gym build FedHPO-LR-CreditG --sample 40",
    }
    return Sample(write_sample(folder, card, arrays))
