"""Fresh courses of surrogates: what is drawn can be trained, and can be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.surrogates import open_surrogate
from fedhpo_gym.tasks import task_of

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize(
    "name", ["MF-MadeRatings-fedavg", "LR-Synthetic-fedavg", "LR-Car-v1-fedavg-standardized"]
)
def test_what_is_drawn_is_legal_for_training_and_for_the_surrogate(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import surrogate_fresh

    surrogate = open_surrogate(name)
    task = task_of(surrogate.identity)
    drawn = [surrogate_fresh.draw(surrogate, number) for number in range(8)]
    assert len({one["client_sample_rate"] for one in drawn}) > 1
    for one in drawn:
        task.space.validate(one["configuration"])
        task.fidelity_space["client_sample_rate"].validate(one["client_sample_rate"])
        fidelity = Fidelity(surrogate_fresh.rounds_of(surrogate)[-1], one["client_sample_rate"])
        surrogate.evaluate(one["configuration"], fidelity, (one["seed"],))
    if name.startswith("MF-"):  # its data are made: it needs none that are stored
        found = Raw(task, drawn[0]["seed"]).evaluate(
            drawn[0]["configuration"], Fidelity(1, drawn[0]["client_sample_rate"])
        )
        assert found.mean("val", "loss") > 0
