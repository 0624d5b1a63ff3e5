"""Very many clients with little data each: the paper's cross-device rows, and LEAF's Synthetic."""

from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.systems import CROSS_DEVICE
from fedhpo_gym.tasks.federated import SPARSE_ROUNDS, Task, fidelities
from fedhpo_gym.tasks.logistic_regression import BUDGET_S, CLIENT_SPACE

PAPER = "Wang et al.: FedHPO-Bench (2022), Tables 1, 7, Appendix H.1"

RATES = (0.005, 0.01, 0.02, 0.05)
RATE = Dimension("client_sample_rate", 0.005, 0.05, "float", values=RATES, scope="fidelity")
FIDELITY_SPACE = fidelities(SPARSE_ROUNDS, RATE)

# No batch size: a step takes all training tweets of a user. The original's batches of 64 did so
# too, for all users of its data.
TWITTER_SPACE = SearchSpace(tuple(d for d in CLIENT_SPACE.dimensions if d.name != "batch_size"))

# The paper searches these three (Appendix H.1) and gives no intervals: these are ours.
RATINGS_SPACE = SearchSpace(
    (
        Dimension("learning_rate", 0.01, 10.0, "float", log=True, bins=7),
        Dimension("batch_size", 8, 128, "int", log=True, bins=5, unit="samples"),
        Dimension("step_size", 1, 4, "int", bins=4, unit="local epochs"),
    )
)

DAY_S = 86_400.0
STARS = 5
RATED_PARAMETERS = 11
"""Ten factors and a bias of every item."""


def _ratings(dataset: str, items: int, users: int, citation: str, *tags: str) -> Task:
    return Task(
        model="MF",
        dataset=dataset,
        num_features=1,
        num_classes=STARS,
        # A constant prediction of 3 stars has the variance of 1, ..., 5: (5^2 - 1) / 12 stars^2.
        guess_loss=(STARS**2 - 1) / 12,
        num_parameters=items * RATED_PARAMETERS,
        client_space=RATINGS_SPACE,
        fidelity_space=FIDELITY_SPACE,
        budget_s=DAY_S,
        citation=citation,
        num_clients=users,
        partition="user-80-10-10",
        system=CROSS_DEVICE,
        tags=frozenset({"mf", "ratings", "cross-device", *tags}),
    )


def _synthetic(model: str) -> Task:
    """Return LEAF's Synthetic, 60/20/20 per device; 10 devices a round at rate 0.01."""
    return Task(
        model=model,
        dataset="Synthetic",
        num_features=60,
        num_classes=5,
        num_parameters=61 * 5,
        client_space=CLIENT_SPACE,
        fidelity_space=FIDELITY_SPACE,
        budget_s=BUDGET_S,
        citation="Caldas et al.: LEAF (2018); space of the LR rows of FedHPO-Bench Table 8",
        num_clients=1_000,
        partition="user",
        system=CROSS_DEVICE,
        tags=frozenset({"lr", "generated-data", "cross-device"}),
    )


_TWITTER = Task(
    model="LR",
    dataset="Twitter",
    num_features=10_000,
    num_classes=2,
    num_parameters=20_002,
    client_space=TWITTER_SPACE,
    fidelity_space=FIDELITY_SPACE,
    budget_s=DAY_S,
    citation=f"{PAPER}; Go, Bhayani, Huang (2009); Caldas et al.: LEAF (2018)",
    num_clients=2_875,
    partition="user-80-10-10",
    system=CROSS_DEVICE,
    tags=frozenset({"lr", "texts", "cross-device"}),
)

CROSS_DEVICE_TASKS = (
    _TWITTER,
    _TWITTER.variant(version=2, reward="improvement"),
    _synthetic("LR"),
    _synthetic("LeafLR"),
    _ratings("FedNetflix", 17_770, 480_189, f"{PAPER}; Bennett, Lanning: Netflix Prize (2007)"),
    _ratings("MadeRatings", 200, 500, "problem of this suite on generated ratings", "bundled-data"),
)
