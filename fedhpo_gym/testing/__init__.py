"""The conformance kit: the laws of each kind of thing, joined by a new one in three lines.

A law is a pytest test method of a mixin class::

    class TestMyTask(TaskConformance):
        task_id = "FedHPO-LR-MyData"

`pytest` runs every law of the kind; a test of your own is needed only for what is special. The kit
needs `pytest`; laws that need an extra which is not installed are skipped, and say so.
"""

import pytest

_KIT = ("agent", "conformance", "plugins", "task")
pytest.register_assert_rewrite(*(f"fedhpo_gym.testing.{name}" for name in _KIT))

from fedhpo_gym.testing.agent import (  # noqa: E402 - rewritten from here on
    AgentConformance,
    ClientAgentConformance,
    LearnedAgentConformance,
    MultiFidelityAgentConformance,
    RoundAgentConformance,
    TrialAgentConformance,
    agent_laws,
)
from fedhpo_gym.testing.analytic import Analytic, AnalyticRounds, make_env  # noqa: E402
from fedhpo_gym.testing.conformance import (  # noqa: E402
    AlgorithmConformance,
    BackendConformance,
    DatasetConformance,
    ModelConformance,
    ObjectiveConformance,
    WrapperConformance,
)
from fedhpo_gym.testing.loop import ReferenceLoop  # noqa: E402
from fedhpo_gym.testing.plugins import check_plugin, laws_of  # noqa: E402
from fedhpo_gym.testing.rollout import plain, rollout  # noqa: E402
from fedhpo_gym.testing.task import RoundConformance, TaskConformance  # noqa: E402

__all__ = [
    "AgentConformance",
    "AlgorithmConformance",
    "Analytic",
    "AnalyticRounds",
    "BackendConformance",
    "ClientAgentConformance",
    "DatasetConformance",
    "LearnedAgentConformance",
    "ModelConformance",
    "MultiFidelityAgentConformance",
    "ObjectiveConformance",
    "ReferenceLoop",
    "RoundAgentConformance",
    "RoundConformance",
    "TaskConformance",
    "TrialAgentConformance",
    "WrapperConformance",
    "agent_laws",
    "check_plugin",
    "laws_of",
    "make_env",
    "plain",
    "rollout",
]
