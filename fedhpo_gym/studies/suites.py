"""Named lists of problems, so that studies of several groups are about the same ones.

`small` follows from a rule and from the published numbers of docs/difficulty.md
(`tests/studies/test_plan.py` computes it). Candidates are the newest versions of the problems whose
default variant has stored numbers, if random search leaves a hundredth after 25 trials (`left 25`)
and tuning gains ten standard errors of seeds (`seeds gained`). Those seven are chosen on which
random search leaves most standard errors of seeds (`seeds left`): on means over seeds, the tests of
`compare` can tell three agents apart on seven problems, and not on six. Where a problem has a
table, its figures count, else those of its surrogate, else those of its pool.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.cross_device import CROSS_DEVICE_TASKS
from fedhpo_gym.tasks.dynamic import DYNAMIC
from fedhpo_gym.tasks.logistic_regression import LR_TASKS
from fedhpo_gym.tasks.natural import REGIMES

_OPENML: Final = (
    "CreditG", "Vehicle", "KC1", "BloodTransfusion", "Australian", "Car", "Segment",
)  # fmt: skip
_OTHERS: Final = (
    "CNN-FEMNIST", "BERT-SST2", "BERT-CoLA", "GNN-Cora", "GNN-CiteSeer", "GNN-PubMed",
)  # fmt: skip
_SMALL: Final = (
    "FedHPO-MLP-Digits-v1", "FedHPO-LeafLR-Synthetic-v1", "FedHPO-LR-Synthetic-v1",
    "FedHPO-MLP-Segment-v1", "FedHPO-MLP-Vehicle-v1", "FedHPO-MLP-BreastCancer-v1",
    "FedHPO-LR-Twitter-v2",
)  # fmt: skip
_QUICK: Final = frozenset({"ExamLondon", "HotelMarket", "BirdStrikes", "GuatemalaPrenatal"})
"""Tables of the suite `natural-small`."""
_CONTEST: Final = {
    "JointFew": (
        "Cracker", "Ess9gb", "Hsb82", "InterviewerRating", "Kershaw", "LoansGrade", "MplsForce",
        "Scorecard", "ScotsSecondary", "Yogurt",
    ),
    "JointPrivate": ("ExamLondon", "MlbDivision", "Tuna", "VietnamH"),
}  # fmt: skip
"""Tables of the suite `contest`, chosen by the columns of docs/natural.md: at most 10,000 rows, so
that trials are quick; of 60 configurations random search leaves at least 1.9 standard errors of
seeds after 25 trials, and tuning gains ten. Sixty are few and tell the first too small, so it is
half of what `difficulty` asks. A table stands in one regime, the private one if that leaves an
error more or is the only one that fits."""


def _newest(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(get_task(name).id for name in names))


_LR: Final = [task.name for task in LR_TASKS]
_TABLES: Final = [f"{model}-{data}" for model in ("LR", "MLP") for data in _OPENML]
_VECTORS: Final = [*_LR, "GNN-Cora", "GNN-CiteSeer", "CNN-FEMNIST"]
_NATURAL: Final = [f"FedHPO-{model}-{t.name}-v1" for t in NATURAL for model in ("LR", "MLP")]

SUITES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        # Logistic regression on nine tables of data, newest version.
        "lr": _newest(_LR),
        # The twenty problems of Wang et al. (2022), table 13, as version 0 has them.
        "paper": _newest(f"{name}-v0" for name in (*_OTHERS, *_TABLES)),
        # Many clients, few of whom take part in a round: newest version.
        "cross-device": _newest(["CNN-FEMNIST", *(task.name for task in CROSS_DEVICE_TASKS)]),
        # Vector rewards, where numbers are stored: tables, graphs and writers.
        "multi-objective": tuple(f"MO-{name}" for name in _newest(_VECTORS)),
        # Natural federations, split within clients: logistic regression and perceptrons.
        "natural": tuple(_NATURAL),
        # Eight of them, of four tables in which tuning matters and courses are quick.
        "natural-small": tuple(name for name in _NATURAL if name.split("-")[2] in _QUICK),
        # The joint space on all natural federations: forty rounds, five, and ten private ones.
        "joint": tuple(f"FedHPO-{regime}-{t.name}-v1" for t in NATURAL for regime in REGIMES),
        # The joint space where optimizers have something to do: fourteen tables, really trained.
        "contest": tuple(
            f"FedHPO-{r}-{name}-v1" for r, names in _CONTEST.items() for name in names
        ),
        # Dynamic configuration: schedules are worth more than settings.
        "dac": ("FedHPO-DAC-Quadratic-v1", *(f"FedHPO-DAC-{name}-v1" for name in DYNAMIC)),
        # Seven contests that differ from each other, by the rule in the docstring of this module.
        "small": _SMALL,
    }
)
"""Environment ids of suites, by name."""


@validate_call
def suite(name: str) -> tuple[str, ...]:
    """Return the environment ids of a suite, versions included.

    Raises:
        UnknownNameError: no such suite.
    """
    require_known("suite", name, SUITES)
    return SUITES[name]
