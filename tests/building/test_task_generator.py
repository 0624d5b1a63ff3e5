"""What fits the generators of tasks: small ones, on the real pools."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gpytorch")
from fedhpo_gym.building import task_generator as building
from fedhpo_gym.stored.meta_data import open_meta_data
from fedhpo_gym.stored.task_generator import TaskGenerator

SMALL = {"NETWORKS": 2, "WIDTHS": (8, 8), "CHAINS": 2, "BURN_IN": 100, "KEEP_EVERY": 10,
         "ELITES": 3, "LEARNED_ON": 4, "DRAWN": 8, "GENERATIONS": 2}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("few_meta_tasks")
def test_a_generator_is_that_of_its_seed_and_knows_good_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(building, name, value)
    monkeypatch.setattr(building, "task_features", partial(building.task_features, steps=20))
    cards = [
        building.write_generator("LR", tmp_path / name, seed=seed)
        for name, seed in (("one", 0), ("again", 0), ("other", 1))
    ]
    one, again, other = (json.loads(card.read_text()) for card in cards)
    assert one == again
    assert one["sha256"] != other["sha256"]
    assert other["build_command"] == "fedhpo-gym generator LR --seed 1"
    generator, data = TaskGenerator(cards[0]), open_meta_data("LR")
    tasks = generator.draw(range(40))
    drawn = np.random.default_rng(0).uniform(-1, 1, tasks.best_action.shape).astype(np.float32)
    assert (tasks.best >= generator.true_scores(tasks, drawn)).mean() > 0.9
    train = list(data.where("train"))
    low, high = (np.quantile(data.label_entropy[train], q) for q in (0.0, 1.0))
    assert ((tasks.entropy >= 0.99 * low) & (tasks.entropy <= 1.01 * high)).all()
