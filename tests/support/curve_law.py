"""What every surrogate obeys, whatever it was fitted on."""

from __future__ import annotations

import numpy as np

from fedhpo_gym.stored.surrogate import Surrogate


def check_law(surrogate: Surrogate, seed: int) -> None:
    """Ask one configuration for all rounds that are stored, and some between them."""
    rng = np.random.default_rng(seed)
    fidelities = surrogate.fidelity_space
    last = int(fidelities["round"].high)
    asked = np.unique([*surrogate.card["model"]["rounds"], *rng.integers(1, last + 1, 20)])
    query = {**surrogate.space.sample(rng), **fidelities.sample(rng)}
    columns = {name: np.full(len(asked), value) for name, value in query.items()}
    found = surrogate.look_up({**columns, "round": asked}, surrogate.seeds)
    weighted = found.mean("val", "loss")
    assert np.all(weighted[1:] <= weighted[:-1] * (1 + 1e-6))
    assert np.all(np.diff(found.best_round, axis=0) >= 0)
    assert np.all(np.diff(found.diverged.astype(int), axis=0) >= 0)
