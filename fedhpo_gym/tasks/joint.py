"""What a federated learner really decides, as one space with conditions, on natural federations.

Model, local training and the server's optimizer are chosen together; ranges are as wide as somebody
would set them who knows nothing of the data. The regimes differ in what they leave time for:

- `Joint`: forty rounds.
- `JointFew`: five.
- `JointPrivate`: ten, of DP-FedAvg, whose noise keeps them `EPSILON`-private for every client.
  Chosen are its clipping norm, how fast that follows the median, and the server's momentum and
  learning rate.

Perceptrons have no batch normalisation: statistics that are averaged over unlike clients fit none
of them, and no noise would protect them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.algorithms.serveropt import ADAPTS
from fedhpo_gym.datasets.natural import NaturalTable
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.tasks.federated import Task
from fedhpo_gym.tasks.mlp import ARCHITECTURE, perceptron_size
from fedhpo_gym.tasks.natural import fidelity_space, shared_fields

MODEL = "model"
MODELS = {"lr": "LR", "mlp": "PlainMLP"}
"""What the engine calls the models, by the words of the space."""
_DEEP = (MODEL, ("mlp",))

CLIENT_SPACE = SearchSpace(
    (
        Dimension.of_categories(MODEL, tuple(MODELS)),
        Dimension("model_depth", 1, 3, "int", bins=3, unit="hidden layers", active=_DEEP),
        Dimension("model_width", 8, 128, "int", log=True, bins=5, unit="units", active=_DEEP),
        Dimension("learning_rate", 1e-3, 10.0, "float", log=True, bins=9),
        Dimension("rate_decay", 0.01, 1.0, "float", log=True, bins=3),
        Dimension("momentum", 0.0, 0.95, "float", bins=4),
        Dimension("weight_decay", 1e-6, 0.1, "float", log=True, bins=6),
        Dimension("batch_size", 8, 256, "int", log=True, bins=6, unit="samples"),
        Dimension("step_size", 1, 8, "int", log=True, bins=4, unit="local epochs"),
    )
)

_SECOND = Dimension("second_decay", 0.9, 0.999, "float", bins=3, scope="server", active=ADAPTS)
_ADAPTED = Dimension("clip_rate", 0.0, 0.4, "float", bins=3, scope="server")
_LAST = {"serveropt": (_SECOND,), "dpfedavg": (_ADAPTED,)}
"""Settings of an algorithm that are searched here, and fixed elsewhere. `clip_rate` is around the
0.2 of Andrew et al. (2021), and as good as none at its low end; `update_clip` around their 0.1."""

ROUNDS, FEW, TEN = (1, 2, 3, 5, 10, 20, 30, 40), (1, 2, 3, 4, 5), (1, 2, 3, 5, 7, 10)
REGIMES = ("Joint", "JointFew", "JointPrivate")
TRIALS_ONLY = ("JointFew-", "JointPrivate-")
"""How names begin that have no round ids: those say themselves how many rounds a course has."""
EPSILON = 8.0
BUDGET_S, CLIENT_S = 43_200.0, 1.8
"""Forty rounds have half a day. Fewer have for each of theirs so many seconds a client, and for a
hundred clients more: random search makes 25 to 60 trials."""


@dataclass(frozen=True, kw_only=True)
class JointTask(Task):
    """A task whose configurations choose the model and the server's optimizer, too."""

    @property
    def models(self) -> tuple[str, ...]:
        """See `Task.models`."""
        return tuple(MODELS.values())

    @property
    def space(self) -> SearchSpace:
        """See `Task.space`; what the algorithm leaves to settings elsewhere is searched."""
        own = (*self.client_space.dimensions, *ALGORITHMS[self.algorithm].dimensions)
        return SearchSpace((*own, *_LAST.get(self.algorithm, ()), *self.tuned))

    @property
    def all_settings(self) -> dict[str, float]:
        """See `Task.all_settings`."""
        searched = self.space.names
        return {k: v for k, v in super().all_settings.items() if k not in searched}

    def parameters_of(self, configuration: Mapping[str, Value]) -> int:
        """See `Task.parameters_of`; numbers may stand for words."""
        if configuration[MODEL] in ("lr", 0):
            return (self.num_features + 1) * self.num_classes
        depth, width = (int(configuration[name]) for name in ARCHITECTURE)
        return perceptron_size(self.num_features, self.num_classes, depth, width, vectors=1)


def joint_names(table: NaturalTable) -> tuple[str, ...]:
    """Return what the problems of a table are called."""
    return tuple(f"{regime}-{table.name}" for regime in REGIMES)


def joint_tasks(table: NaturalTable) -> Iterator[JointTask]:
    """Yield the joint problem of a table in every regime."""
    depth, width = (int(CLIENT_SPACE[name].high) for name in ARCHITECTURE)
    plain = JointTask(
        model=REGIMES[0],
        num_parameters=perceptron_size(table.width, table.classes, depth, width, vectors=1),
        client_space=CLIENT_SPACE,
        fidelity_space=fidelity_space(ROUNDS),
        stored_rounds=ROUNDS,
        budget_s=BUDGET_S,
        algorithm="serveropt",
        architecture=(MODEL, *ARCHITECTURE),
        tags=frozenset({"joint", "natural", "cross-silo"}),
        **shared_fields(table),
    )
    yield plain
    for name, of in zip(REGIMES[1:], (FEW, TEN), strict=True):
        few = replace(plain, model=name, fidelity_space=fidelity_space(of), stored_rounds=of)
        task = replace(few, budget_s=round(of[-1] * CLIENT_S * (100 + table.clients)))
        private = name == REGIMES[2]
        yield replace(task, algorithm="dpfedavg").fix({"epsilon": EPSILON}) if private else task
