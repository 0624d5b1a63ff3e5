"""ConfigSpace's spaces and ours: the same configurations, there and back."""

from __future__ import annotations

import numpy as np
import pytest

cs = pytest.importorskip("ConfigSpace")

from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.space import SearchSpace  # noqa: E402
from fedhpo_gym.space.configspace import from_configspace, to_configspace  # noqa: E402
from fedhpo_gym.tasks import get_task  # noqa: E402

SPACES = [
    get_task("LR-CreditG-v1").variant(algorithm="serveropt").space,
    get_task("LR-CreditG-v0").space.discretized(),
    get_task("Joint-ExamLondon").space,
    get_task("JointPrivate-ExamLondon").space,
]


@pytest.mark.parametrize("space", SPACES)
def test_spaces_come_back(space: SearchSpace) -> None:
    back = from_configspace(to_configspace(space))
    assert {d.name: d for d in back.dimensions} == {d.name: d for d in space.dimensions}


@pytest.mark.parametrize("space", SPACES)
def test_configurations_are_legal_on_both_sides(space: SearchSpace) -> None:
    theirs = to_configspace(space)
    for found in theirs.sample_configuration(50):
        plain = {k: v.item() if hasattr(v, "item") else v for k, v in dict(found).items()}
        assert space.validate(plain) == pytest.approx(plain)
    rng = np.random.default_rng(0)
    for _ in range(50):
        ours = space.sample(rng)
        assert dict(cs.Configuration(theirs, values=ours)).keys() == ours.keys()


def test_what_has_no_counterpart_is_refused() -> None:
    normal = cs.ConfigurationSpace()
    normal.add(cs.NormalFloatHyperparameter("x", mu=0.0, sigma=1.0, lower=-3.0, upper=3.0))
    with pytest.raises(InvalidArgumentError, match="uniform, ordinal and categorical"):
        from_configspace(normal)
    two = cs.ConfigurationSpace({"a": (0.0, 1.0), "b": ["x", "y"], "c": (0, 3)})
    two.add(cs.GreaterThanCondition(two["a"], two["c"], 1))
    with pytest.raises(InvalidArgumentError, match="equality or membership"):
        from_configspace(two)
