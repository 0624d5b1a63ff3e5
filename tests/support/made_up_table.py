"""A small table whose numbers follow a smooth formula, for tests that need one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedhpo_gym.core.identity import Identity
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.table import WHICH, write_table

NAME = "LR-MadeUp-fedavg"
IDENTITY = Identity(NAME, "LR-MadeUp", 0, (("algorithm", "fedavg"), ("alpha", 0.5)))
ROUNDS = (1, 3, 10, 40)
SEEDS = (1, 2)
SAMPLES = np.array(
    [[[60, 20, 10], [30, 10, 4], [90, 5, 20]], [[50, 10, 20], [70, 15, 5], [9, 30, 1]]]
)
SPACE = SearchSpace(
    (
        Dimension("learning_rate", 1e-4, 1.0, "float", log=True, bins=5),
        Dimension("batch_size", 4, 64, "int", log=True, bins=3),
    )
)
RATES = Dimension("client_sample_rate", 1 / 3, 1.0, "float", bins=3, scope="fidelity")


def write_made_up_table(folder: Path) -> Path:
    """Write the table and return its card; axes (rounds, rate, batch, share, seeds, clients)."""
    shape = (len(ROUNDS), *SPACE.grid_shape, len(RATES.grid), len(SEEDS), SAMPLES.shape[1])
    rounds, rate, batch, share, seed, client = np.indices(shape)
    progress = rounds * (1.0 + np.cos(rate)) + 0.1 * share - 0.2 * batch + 0.05 * seed
    arrays = {
        "best_round": np.broadcast_to(
            np.array(ROUNDS, np.uint16).reshape(-1, 1, 1, 1, 1), shape[:-1]
        ).copy(),
        "diverged_at": np.zeros(shape[1:-1], np.uint16),
    }
    for s, split in enumerate(SPLITS):
        for metric in METRICS:
            values = 1.0 / (1.0 + np.exp(0.3 * client + 0.1 * s - 0.5 * progress))
            if metric == "loss":
                values = np.exp(2.0 - progress + 0.4 * client)
            for which in WHICH:
                coded = codec.encode(metric, values, SAMPLES[:, :, s])
                arrays[f"{which}_{split}_{metric}"] = coded
    fidelity = SearchSpace(
        (
            Dimension("round", ROUNDS[0], ROUNDS[-1], "int", values=ROUNDS, scope="fidelity"),
            RATES.discretized(),
        )
    )
    card = {
        **IDENTITY.to_card(),
        "space": SPACE.discretized().to_dict(),
        "fidelity_space": fidelity.to_dict(),
        "seeds": list(SEEDS),
        "num_samples": SAMPLES.tolist(),
        "splits": list(SPLITS),
        "metrics": list(METRICS),
        "licence": "Apache-2.0",
        "build_command": "fedhpo-gym build FedHPO-LR-MadeUp-v0 --algorithm fedavg",
    }
    return write_table(folder, card, arrays)
