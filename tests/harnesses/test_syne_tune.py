"""A blackbox of Syne Tune, also under its tuner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("syne_tune", reason="run `pip install '.[syne-tune]'`")
pytest.importorskip("huggingface_hub", reason="run `pip install '.[syne-tune]'`")
pytestmark = pytest.mark.filterwarnings("ignore")

from fedhpo_gym.harnesses.syne_tune import TIME, Blackbox  # noqa: E402
from known_optimum import BEST, CONDITIONAL, CREDIT, DIVERGING, OPTIMUM  # noqa: E402


def test_the_optimum_comes_out_and_a_curve_has_every_round() -> None:
    blackbox = Blackbox(CREDIT)
    found = blackbox(BEST, 500)
    assert found["val_loss"] == OPTIMUM
    assert blackbox(DIVERGING, 500)["val_loss"] == 10.0, "the worst, as there is no state for it"
    curve = blackbox(BEST)
    assert curve.shape == (len(blackbox.fidelity_values), 2)
    assert curve[-1].tolist() == [OPTIMUM, found[TIME]]
    assert (np.diff(curve[:, 1]) > 0).all()
    apart = [blackbox(BEST, 500, seed=seed)["val_loss"] for seed in (1, 2, 3)]
    assert np.mean(apart) == pytest.approx(OPTIMUM)
    conditional = Blackbox(CONDITIONAL, options={"instance": 1}, choose_fidelity=True)
    drawn = {name: one.sample() for name, one in conditional.configuration_space.items()}
    assert np.isfinite(conditional(drawn)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RandomSearch", "ASHA"])
def test_its_tuner_sees_our_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNETUNE_FOLDER", str(tmp_path))
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
    from syne_tune.blackbox_repository import UserBlackboxBackend
    from syne_tune.optimizer import baselines

    blackbox = Blackbox(CREDIT)
    asha = {"metric": "val_loss", "time_attr": "round", "max_t": 500}
    more: dict[str, Any] = asha if name == "ASHA" else {"metrics": ["val_loss"]}
    callback = SimulatorCallback()
    tuner = Tuner(
        trial_backend=UserBlackboxBackend(blackbox, elapsed_time_attr=TIME),
        scheduler=getattr(baselines, name)(blackbox.configuration_space, random_seed=0, **more),
        stop_criterion=StoppingCriterion(max_num_trials_finished=30),
        n_workers=4,
        sleep_time=0,
        callbacks=[callback],
        save_tuner=False,
    )
    tuner.run()
    results = callback.results
    assert len(results) > 30
    for one in results[::10]:
        configuration = {key: one[f"config_{key}"] for key in blackbox.configuration_space}
        assert one["val_loss"] == blackbox(configuration, one["round"])["val_loss"]
    assert min(one["val_loss"] for one in results) >= OPTIMUM
