"""Rewrites one pair of files over and over: `python rewriter.py FOLDER FIRST`."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np

from fedhpo_gym.agents.policy import Policy, save_policy


def numbered(number: int) -> Policy:
    """Return a policy whose card and arrays, of a size of their own, all say one number."""
    inputs = 50 + number % 7
    return Policy(
        entries={"a": (inputs,)},
        low=np.zeros(1, np.float32),
        high=np.ones(1, np.float32),
        weights=(np.full((inputs, 1), number, np.float32),),
        biases=(np.full(1, number, np.float32),),
        activation="tanh",
        output="clip",
        mean=np.zeros(inputs),
        deviation=np.ones(inputs),
        limit=float(number),
        made_by="python train.py",
        origin={},
    )


if __name__ == "__main__":
    for number in itertools.count(int(sys.argv[2])):
        save_policy(numbered(number % 20 + 1), Path(sys.argv[1]))
