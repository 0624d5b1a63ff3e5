"""Federations of quadratics, whose best schedule is computed; they have rounds and no trials."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.systems import CROSS_DEVICE
from fedhpo_gym.tasks.federated import Task, fidelities


@dataclass(frozen=True, kw_only=True)
class QuadraticTask(Task):
    """A task whose client i has f_i(x) = h_i / 2 |x - c_i|^2; `backends.quadratic` draws them.

    The loss is how far F, the mean of the f_i, is above its minimum, where the first model has 1.

    Attributes:
        curvature: geometric mean of h_i over clients and instances.
        spreads: largest |log| of the factors by which instances, and the clients of one, differ.
        distance: root mean square of |c_i|, where the first model has 1, as alpha goes to 0.
            Labels of two classes are dealt with a variance of 1 / (4 (2 alpha + 1)), and so are
            the c_i: they have distance / sqrt(2 alpha + 1).
        noise: range over instances of the root mean square of a gradient's noise, where the
            gradient of F at the first model has 1.
    """

    curvature: float
    spreads: tuple[float, float]
    distance: float
    noise: tuple[float, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        only = {"algorithm": "fedavg", "preprocessing": "label_encoded", "settings": ()}
        for name, value in only.items():
            if getattr(self, name) != value:
                raise InvalidArgumentError(
                    f"`{name}` must be left out for {self.name}, which takes plain gradient steps "
                    f"and means, got {getattr(self, name)!r}"
                )

    @property
    def name(self) -> str:
        """The model alone: there is one set of problems."""
        return self.model

    @property
    def round_arguments(self) -> Mapping[str, Any]:
        """What its round ids bring: a return is the first loss minus the last."""
        return {
            "task": self.key,
            "backend": self.unstored,
            "rounds_per_step": 1,
            "horizon": self.max_round,
            "budget_s": self.budget_s,
            "potential": "loss",
            "time_price": 0.0,
            "divergence_penalty": 0.0,
        }


RATE = Dimension("client_sample_rate", 0.05, 0.1, "float", values=(0.05, 0.1), scope="fidelity")

QUADRATIC = QuadraticTask(
    model="Quadratic",
    dataset="quadratics",
    version=1,
    num_features=32,
    num_classes=2,
    num_parameters=32,
    guess_loss=1.0,
    client_space=SearchSpace(
        (
            Dimension("learning_rate", 1e-4, 1.0, "float", log=True, bins=9),
            Dimension("step_size", 1, 8, "int", bins=8, unit="local steps"),
        )
    ),
    fidelity_space=fidelities((1, 40), RATE),
    stored_rounds=(1, 40),
    num_clients=20,
    instance_alphas=(0.1, 0.5, 5.0),
    # Messages take 3 + 6 s and a local step of two clients 3 s: 40 rounds of one step, 15 of eight.
    system=replace(
        CROSS_DEVICE,
        compute="epochs",
        client_upload_bytes_per_s=128 / 3,
        client_download_bytes_per_s=64 / 3,
        client_compute_mean_s=2.0,
    ),
    budget_s=480.0,
    reward="improvement",
    unstored="quadratic",
    citation="federated quadratics of this suite",
    tags=frozenset({"quadratic", "generated-data"}),
    curvature=1.9,
    spreads=(0.1, 0.3),
    distance=2.0,
    noise=(0.7, 1.75),
)
