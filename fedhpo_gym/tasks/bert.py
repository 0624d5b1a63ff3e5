"""BERT-Tiny on sentences: the BERT rows of the paper's Tables 1, 7 and 8."""

from __future__ import annotations

from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks.federated import Task

PAPER = "Wang et al.: FedHPO-Bench (2022), Tables 1, 7, 8"
BERT = "Turc et al.: Well-Read Students Learn Better (2019)"

CLIENT_SPACE = SearchSpace(
    (
        Dimension("learning_rate", 0.01, 1.0, "float", log=True, bins=10),
        Dimension("weight_decay", 0.0, 0.001, "float", bins=4),
        Dimension("dropout", 0.0, 0.5, "float", bins=2),
        Dimension("batch_size", 8, 128, "int", log=True, bins=5, unit="samples"),
        Dimension("step_size", 1, 4, "int", bins=4, unit="local epochs"),
    )
)

ROUNDS = (1, 3, 6, 9, 13, 19, 27, 40)
"""Rounds after which models are evaluated: an evaluation costs a third of an epoch."""

FIDELITY_SPACE = SearchSpace(
    (
        Dimension("round", 1, 40, "int", values=ROUNDS, unit="rounds", scope="fidelity"),
        Dimension("client_sample_rate", 0.2, 1.0, "float", bins=5, scope="fidelity"),
    )
)

DAY_S = 86_400.0
MAX_LENGTH = 64


def _task(dataset: str, citation: str) -> Task:
    return Task(
        model="BERT",
        dataset=dataset,
        num_features=MAX_LENGTH,
        num_classes=2,
        num_parameters=4_386_178,
        client_space=CLIENT_SPACE,
        fidelity_space=FIDELITY_SPACE,
        budget_s=20 * DAY_S,
        citation=f"{PAPER}; {BERT}; {citation}",
        # 0 trains from random weights: another problem, whose tables have another name.
        model_settings=(("pretrained", Setting(1.0, 0.0, 1.0)),),
        tags=frozenset({"bert", "texts", "cross-silo"}),
    )


BERT_TASKS = (
    _task("SST2", "Socher et al. (2013), Wang et al.: GLUE (2018)"),
    _task("CoLA", "Warstadt et al. (2019)"),
)
