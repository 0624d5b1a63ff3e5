"""Rollouts as data sets of Minari."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

minari = pytest.importorskip("minari", reason="run `pip install '.[minari]'`")
pytestmark = pytest.mark.filterwarnings("ignore")

from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.harnesses.minari import write_dataset  # noqa: E402
from known_optimum import CREDIT  # noqa: E402

PLAYED = [
    (CREDIT, "de"),
    (f"MO-{CREDIT}", "random"),
    ("FedHPO-MLP-Car-v1", lambda seen: np.full(8, np.tanh(seen["trials"][0] / 9), np.float32)),
]


@pytest.mark.parametrize(("env_id", "agent"), PLAYED, ids=["table", "vectors", "a function"])
def test_a_recovered_environment_plays_what_was_written(
    env_id: str, agent: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_dataset("fedhpo/try-v0", env_id, agent, episodes=2, seed=4, budget_trials=12)
    read = minari.load_dataset("fedhpo/try-v0")
    env, returns = read.recover_environment(), []
    assert env.spec.id == env_id
    for number, episode in enumerate(read.iterate_episodes()):
        seen, steps = env.reset(seed=4 + number)[0], 0
        for action, reward in zip(episode.actions, episode.rewards, strict=True):
            for key, value in seen.items():
                np.testing.assert_array_equal(episode.observations[key][steps], value)
            seen, again, over, _, _ = env.step(action)
            np.testing.assert_array_equal(reward, again)
            steps += 1
        assert over
        assert steps == 12
        returns.append(np.sum(episode.rewards))
    assert (returns[0] == returns[1]) == callable(agent)


def test_ids_of_data_sets_are_checked_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr("fedhpo_gym.harnesses.minari.run_episode", None)
    (tmp_path / "taken-v0").mkdir()
    for dataset_id in ("no version", "fedhpo/try", "taken-v0"):
        with pytest.raises(InvalidArgumentError, match=rf"`dataset_id` must .*got '{dataset_id}'"):
            write_dataset(dataset_id, CREDIT)
    assert [path.name for path in tmp_path.iterdir()] == ["taken-v0"]
