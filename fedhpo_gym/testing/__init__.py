"""The conformance kit: the laws of each kind of thing, joined by a new one in three lines.

A law is a pytest test method of a mixin class::

    class TestMyTask(TaskConformance):
        task_id = "FedHPO-LR-MyData"

`pytest` runs every law of the kind; a test of your own is needed only for what is special. The kit
needs `pytest`; laws that need an extra which is not installed are skipped, and say so.
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"fedhpo_gym.testing.{name}"
        for name in (
            "agent",
            "algorithm",
            "backend",
            "dataset",
            "objective",
            "round",
            "task",
            "wrapper",
        )
    )
)

from fedhpo_gym.testing.agent import (  # noqa: E402 - rewritten from here on
    AgentConformance,
    ClientAgentConformance,
    LearnedAgentConformance,
    MultiFidelityAgentConformance,
    RoundAgentConformance,
    TrialAgentConformance,
    agent_laws,
)
from fedhpo_gym.testing.algorithm import AlgorithmConformance  # noqa: E402
from fedhpo_gym.testing.analytic import Analytic, make_env  # noqa: E402
from fedhpo_gym.testing.analytic_rounds import AnalyticRounds  # noqa: E402
from fedhpo_gym.testing.backend import BackendConformance  # noqa: E402
from fedhpo_gym.testing.dataset import DatasetConformance  # noqa: E402
from fedhpo_gym.testing.objective import ObjectiveConformance  # noqa: E402
from fedhpo_gym.testing.rollout import plain, rollout  # noqa: E402
from fedhpo_gym.testing.round import RoundConformance  # noqa: E402
from fedhpo_gym.testing.task import TaskConformance  # noqa: E402
from fedhpo_gym.testing.wrapper import WrapperConformance  # noqa: E402

__all__ = [
    "AgentConformance",
    "AlgorithmConformance",
    "Analytic",
    "AnalyticRounds",
    "BackendConformance",
    "ClientAgentConformance",
    "DatasetConformance",
    "LearnedAgentConformance",
    "MultiFidelityAgentConformance",
    "ObjectiveConformance",
    "RoundAgentConformance",
    "RoundConformance",
    "TaskConformance",
    "TrialAgentConformance",
    "WrapperConformance",
    "agent_laws",
    "make_env",
    "plain",
    "rollout",
]
