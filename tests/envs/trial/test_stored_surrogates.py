"""Every surrogate of the package answers a vector environment as it answers single ones."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.cli import make_parser
from fedhpo_gym.cli.console import parse_pairs
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.stored.catalogue import EMBEDDED
from fedhpo_gym.stored.surrogate import open_surrogate
from fedhpo_gym.testing.rollout import plain

CARDS = sorted(EMBEDDED.glob("*.surrogate.json"))
N, STEPS = 3, 2


def spec_of(card: Path) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments of the environment that a surrogate answers."""
    said = json.loads(card.read_text(encoding="utf-8"))
    options = make_parser().parse_args(shlex.split(said["fit_command"])[1:])
    names = ("algorithm", "alpha", "preprocessing")
    arguments = {name: getattr(options, name) for name in names}
    settings = dict(parse_pairs("--setting", options.settings))
    wanted = {"backend": "surrogate", **arguments, "settings": settings}
    env_id = f"FedHPO-{said['task']}-v{said['version']}"
    return env_id, {name: value for name, value in wanted.items() if value}


@pytest.mark.fast(12)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name.split(".surrogate")[0])
def test_together_and_alone_every_surrogate_answers_alike(card: Path) -> None:
    name, arguments = spec_of(card)
    ours = gym.make_vec(name, num_envs=N, vectorization_mode="vector_entry_point", **arguments)
    theirs = SyncVectorEnv([lambda: gym.make(name, **arguments)] * N)
    ours.reset(seed=0)
    theirs.reset(seed=0)
    ours.action_space.seed(0)
    for _ in range(STEPS):
        actions = ours.action_space.sample()
        seen, reward, ended, _, info = ours.step(actions)
        expected, wanted, over, _, told = theirs.step(actions)
        assert {key: plain(array) for key, array in seen.items()} == {
            key: plain(expected[key]) for key in seen
        }
        assert (plain(reward), plain(ended)) == (plain(wanted), plain(over))
        for objective, values in info["objectives"].items():
            assert plain(values) == plain(told["objectives"][objective])


@pytest.mark.parametrize("kind", ["forest", "exact_kernel"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_query_gets_the_same_bits_in_any_batch(kind: str, seeds: int) -> None:
    content = (json.loads(card.read_text(encoding="utf-8")) for card in CARDS)
    name = next(card["name"] for card in content if card["model"]["kind"] == kind)
    surrogate = open_surrogate(name)
    rng = np.random.default_rng(0)
    spaces = (surrogate.space, surrogate.fidelity_space)
    columns = {
        dimension: values
        for space in spaces
        for dimension, values in space.decode_columns(rng.uniform(-1, 1, (7, len(space)))).items()
    }
    together = surrogate.look_up(columns, surrogate.seeds[:seeds])
    for index in range(7):
        one = {dimension: values[index : index + 1] for dimension, values in columns.items()}
        alone = surrogate.look_up(one, surrogate.seeds[:seeds])
        assert plain(alone.best[0]) == plain(together.best[index])
        assert plain(alone.best_round[0]) == plain(together.best_round[index])


@pytest.mark.parametrize("fidelity", [{"round": 400}, {"client_sample_rate": 0.9}])
def test_a_fidelity_beyond_the_data_says_why_and_what_else(fidelity: dict[str, float]) -> None:
    why = r"fitted on courses of 1 to 81 rounds with client sample rates of 0\.005 to 0\.05"
    with pytest.raises(InvalidArgumentError, match=rf'{why}.*backend="raw"'):
        gym.make("FedHPO-LR-Synthetic-v1", fidelity=fidelity)
