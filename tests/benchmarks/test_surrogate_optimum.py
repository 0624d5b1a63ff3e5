"""The optimum that a surrogate claims is trained, under all seeds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.cli.surrogates import train_claimed
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.surrogates import open_surrogate
from fedhpo_gym.tables import open_sample

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NAME = "LR-Segment-v1-fedavg-alpha0.1-standardized"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_best_courses_are_those_of_each_seed() -> None:
    from surrogate_optimum import best_courses

    sample = open_sample(NAME)
    courses = zip(sample.codes("seed").tolist(), sample.objective()[:, -1].tolist(), strict=True)
    lowest: dict[int, float] = {}
    for seed, loss in courses:
        lowest[seed] = min(loss, lowest.get(seed, loss))
    assert best_courses(open_surrogate(NAME)) == pytest.approx(sum(lowest.values()) / 3)


def test_the_claim_is_that_of_the_card_and_training_follows_its_fidelity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import surrogate_optimum

    surrogate = open_surrogate(NAME)
    optimum = surrogate.card["health"]["optimum"]
    monkeypatch.setattr(surrogate_optimum, "train_claimed", lambda *_: 1.0)
    name, rounds, claimed, *_ = surrogate_optimum.row(surrogate)
    assert name == NAME
    assert int(rounds) == optimum["round"]
    assert float(claimed) == pytest.approx(optimum["val_loss"], abs=1e-3)


def test_an_optimum_is_trained_as_the_environment_trains_it() -> None:
    surrogate = open_surrogate("LR-Digits-v1-fedavg-standardized")  # scikit-learn has the data
    optimum = {**surrogate.card["health"]["optimum"], "round": 1}
    raw: Any = gym.make("FedHPO-LR-Digits-v1", backend="raw").unwrapped
    fidelity = Fidelity(1, optimum["client_sample_rate"])
    found = raw.backend.evaluate(optimum["configuration"], fidelity)
    short: Any = SimpleNamespace(
        name=surrogate.name,
        identity=surrogate.identity,
        seeds=surrogate.seeds,
        card={"health": {"optimum": optimum}},
    )
    assert train_claimed(short) == pytest.approx(found.mean("val", "loss"))


def test_what_ties_at_a_floor_is_counted_in_the_worst_seed() -> None:
    from surrogate_optimum import DRAWN, tied

    assert tied(open_surrogate(NAME)) == 1 / DRAWN

    surrogate = open_surrogate(NAME)
    look_up = surrogate.look_up

    class Floored:
        """Claims no loss below the median for the second seed."""

        identity, seeds = surrogate.identity, surrogate.seeds
        fidelity_space = surrogate.fidelity_space

        def look_up(self, query: Any, seeds: tuple[int, ...]) -> Any:
            losses = look_up(query, seeds).mean("val", "loss")
            floor = np.median(losses) if seeds == self.seeds[1:2] else 0.0
            return SimpleNamespace(mean=lambda *_: np.maximum(losses, floor))

    assert tied(Floored()) == pytest.approx(0.5, abs=0.01)  # type: ignore[arg-type]
