"""What an agent sees of a running course: one flat dictionary of bounded float32 arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.envs.round.scales import DECADES, NORM_DECADES, decades
from fedhpo_gym.envs.round.state import Episodes
from fedhpo_gym.envs.trial.observation import box, inside

SHOWN = {"train": 0, "val": 1}
"""Splits that are shown, with their columns in `Episodes.loss` and `.accuracy`."""


def space(history: int, action_size: int, num_clients: int | None) -> gym.spaces.Dict:
    """Return the observation space.

    Args:
        history: evaluations shown.
        action_size: coordinates of an action.
        num_clients: clients of the per-client form, None for the other.
    """
    boxes: dict[str, gym.Space[Any]] = {
        **{f"{split}_loss": box(-1.0, 1.0, history) for split in SHOWN},
        **{f"{split}_accuracy": box(0.0, 1.0, history) for split in SHOWN},
        "client_spread": box(0.0, 0.5, 1),
        "update_norm": box(-1.0, 1.0, 2),
        "disagreement": box(0.0, 1.0, 2),
        "remaining_rounds": box(0.0, 1.0, 1),
        "remaining_budget": box(0.0, 1.0, 1),
        "last_action": box(-1.0, 1.0, action_size),
    }
    if num_clients is not None:
        boxes["sampled"] = box(0.0, 1.0, num_clients)
        boxes["num_val_samples"] = box(0.0, 1.0, num_clients)
        boxes["val_loss_before"] = box(-1.0, 1.0, num_clients)
        boxes["val_loss_after"] = box(-1.0, 1.0, num_clients)
    return gym.spaces.Dict(boxes)


def observe(
    spaces: gym.spaces.Dict,
    episodes: Episodes,
    *,
    chance: float,
    horizon: int,
    budget_s: float,
    sampled: NDArray[np.bool_] | None,
) -> dict[str, NDArray[np.float32]]:
    """Return the (N, size) entries of N observations; see `RoundEnv` for what they mean.

    Args:
        spaces: what `space` returned.
        episodes: the state of N episodes.
        chance: loss of a guess, nats.
        horizon: rounds of an episode.
        budget_s: simulated seconds of an episode.
        sampled: (N, clients) who trains next, in the per-client form.
    """
    norm = np.array([NORM_DECADES, NORM_DECADES])
    raw: dict[str, Any] = {
        "client_spread": episodes.client_spread[:, None],
        "update_norm": episodes.update_norm / norm,
        "disagreement": episodes.disagreement / 2.0,
        "remaining_rounds": 1.0 - episodes.rounds[:, None] / horizon,
        "remaining_budget": 1.0 - episodes.elapsed_s[:, None] / budget_s,
        "last_action": episodes.action,
    }
    for split, column in SHOWN.items():
        raw[f"{split}_loss"] = decades(episodes.loss[:, :, column], chance) / DECADES
        raw[f"{split}_accuracy"] = episodes.accuracy[:, :, column]
    if sampled is not None:
        raw.update(_clients(episodes, chance, sampled))
    return {name: inside(spaces, name, raw[name]) for name in spaces}


def _clients(
    episodes: Episodes, chance: float, sampled: NDArray[np.bool_]
) -> Mapping[str, NDArray[np.floating]]:
    trained = episodes.trained
    samples = episodes.num_samples[:, :, 1]
    share = samples / np.maximum(samples.sum(axis=1, keepdims=True), 1)
    before, after = (
        np.where(trained, decades(losses, chance) / DECADES, 0.0)
        for losses in (episodes.val_loss_before, episodes.val_loss_after)
    )
    return {
        "sampled": sampled.astype(np.float32),
        "num_val_samples": np.where(trained, share, 0.0),
        "val_loss_before": before,
        "val_loss_after": after,
    }
