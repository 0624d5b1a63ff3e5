"""Laws of matrices that clients share, and of the memory that they are kept in."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.algorithms.base import Context, Parameters  # noqa: E402
from fedhpo_gym.algorithms.fedavg import FedAvg  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_user_federation  # noqa: E402
from fedhpo_gym.fl import course as courses_module  # noqa: E402
from fedhpo_gym.fl import shared_matrices  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models.cnn import ConvNet  # noqa: E402
from fedhpo_gym.fl.shared_matrices import Workspace  # noqa: E402
from plain_course import GIVEN  # noqa: E402
from plain_models import course, small_images  # noqa: E402

OUT, IN = 12, 20
SIZES = [[3, 2, 3], [3, 2], [1, 40], [2]]
"""Rows of each client in each step."""


def draw(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


@pytest.mark.parametrize("momentum", [None, 0.0, 0.9])
@pytest.mark.parametrize(("decay", "pull"), [(1.0, 0.0), (0.9, 0.0), (0.8, 0.25), (0.0, 1.0)])
def test_shared_matrices_are_what_each_client_would_have(
    decay: float, pull: float, momentum: float | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    start = draw(generator, OUT, IN)
    ranks = [sum(step[i] for step in SIZES if i < len(step)) for i in range(3)]
    matrix = shared_matrices.SharedMatrix(start, torch.float32, ranks, Workspace(), "w")
    own = [start.clone() for _ in ranks]
    moved = [torch.zeros_like(start) for _ in ranks]
    for sizes in SIZES:
        total = sum(sizes)
        right, left = draw(generator, total, IN), draw(generator, total, OUT)
        ends = itertools.accumulate(sizes, initial=0)
        parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
        expected = torch.cat([right[part] @ own[i].t() for i, part in enumerate(parts)])
        torch.testing.assert_close(matrix.times(right, sizes), expected, rtol=1e-4, atol=1e-3)
        expected = torch.cat([left[part] @ own[i] for i, part in enumerate(parts)])
        torch.testing.assert_close(matrix.back(left, sizes), expected, rtol=1e-4, atol=1e-3)
        matrix.step(left, right, sizes, [decay] * len(sizes))
        matrix.pull(torch.full((len(sizes),), pull))
        for i, part in enumerate(parts):
            step = decay * own[i] - left[part].t() @ right[part] + pull * start - own[i]
            moved[i] = step + (momentum or 0.0) * moved[i]
            own[i] = own[i] + moved[i]
        if momentum is not None:
            matrix.repeat(torch.full((len(sizes),), momentum))
    torch.testing.assert_close(matrix.copies([2, 0]), torch.stack([own[2], own[0]]))
    weights = np.array([0.5, 0.2, 0.3], dtype=np.float32)
    total = torch.ones(OUT, IN)
    expected = total + sum(float(w) * m for w, m in zip(weights, own, strict=True))
    matrix.add_to(total, weights)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return make_user_federation(small_images(), seed=1)


SHARING = ("fedavg", "fedprox", "fedopt", "fedbn")
KNOWN = (*SHARING, "nbafl", "ditto", "local", "dpfedavg", "fednova", "scaffold")


def run(federation: Federation, courses: list[Course], name: str, observe: bool = False) -> Curves:
    algorithm = get_algorithm(name)
    batch = CourseBatch({1: federation}, ConvNet, algorithm, courses, horizon=20, observe=observe)
    return batch.advance(2)


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", KNOWN)
def test_sharing_changes_no_algorithm(
    federation: Federation, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = course(batch=8, decay=0.2, epochs=2, **GIVEN[name])
    made: list[int] = []
    init = shared_matrices.SharedMatrix.__init__
    monkeypatch.setattr(
        shared_matrices.SharedMatrix, "__init__", lambda *given: (made.append(1), init(*given))[1]
    )
    found = run(federation, [chosen], name, observe=True)
    assert bool(made) == (name in SHARING)
    if not made:
        return
    monkeypatch.setattr(shared_matrices, "worth_sharing", lambda rank, _: rank < 0)
    expected = run(federation, [chosen], name, observe=True)
    np.testing.assert_allclose(found.metrics[..., 0], expected.metrics[..., 0], rtol=2e-3)
    assert found.feedback is not None
    assert expected.feedback is not None
    np.testing.assert_allclose(found.feedback.update_norm, expected.feedback.update_norm, rtol=2e-3)
    np.testing.assert_allclose(
        found.feedback.after[..., 0], expected.feedback.after[..., 0], rtol=2e-3
    )


def zeroed(_self: FedAvg, parameters: Parameters, _context: Context) -> Parameters:
    return {name: 0.0 * value for name, value in parameters.items()}


@pytest.mark.parametrize(
    "attributes",
    [{"upload": zeroed}, {"counts_equally": True}, {"sends_updates": True}],
    ids=lambda attributes: next(iter(attributes)),
)
def test_an_algorithm_of_ones_own_that_reads_what_each_client_sends_shares_nothing(
    federation: Federation, attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = course(batch=8, decay=0.2, epochs=2, **GIVEN["fedavg"])
    kind = type("Reader", (FedAvg,), {"name": "reader", **attributes})
    found = CourseBatch({1: federation}, ConvNet, kind(), [chosen]).advance(2)
    monkeypatch.setattr(shared_matrices, "worth_sharing", lambda rank, _: rank < 0)
    expected = CourseBatch({1: federation}, ConvNet, kind(), [chosen]).advance(2)
    np.testing.assert_array_equal(found.metrics, expected.metrics)


class Equal(FedAvg):
    """Counts everybody alike, and keeps what clients send."""

    name = "equal"
    sends_updates = counts_equally = True
    sent: ClassVar[list[Any]] = []

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        flat = [value.transpose(0, 1).flatten(1).double() for value in parameters.values()]
        self.sent.append(torch.cat(flat, 1))
        return parameters

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        return {name: value + average[name] for name, value in parameters.items()}, state


def test_updates_are_compared_with_the_mean_that_the_server_takes(federation: Federation) -> None:
    chosen = course(batch=8, decay=0.2, epochs=2, **GIVEN["fedavg"])
    Equal.sent.clear()
    found = CourseBatch({1: federation}, ConvNet, Equal(), [chosen], observe=True).advance(1)
    updates = torch.cat(Equal.sent)
    cosines = torch.cosine_similarity(updates, updates.mean(0, keepdim=True)).numpy()
    assert found.feedback is not None
    alignment = found.feedback.alignment[0, 0][found.feedback.sampled[0, 0]]
    np.testing.assert_allclose(np.sort(alignment), np.sort(cosines), rtol=1e-4)


@pytest.mark.slow
def test_observing_changes_nothing_and_company_neither(federation: Federation) -> None:
    name = "fedprox"
    courses = [course(batch=b, dropout=0.2, **GIVEN[name]) for b in (8, 16)]
    courses.append(course(batch=16, epochs=20, **GIVEN[name]))  # too many rows to share
    seen = run(federation, courses, name, observe=True)
    np.testing.assert_array_equal(seen.metrics, run(federation, courses, name).metrics)
    assert seen.feedback is not None
    for index, chosen in enumerate(courses[:2]):
        alone = run(federation, [chosen], name, observe=True)
        np.testing.assert_array_equal(alone.metrics[0], seen.metrics[index])
        assert alone.feedback is not None
        np.testing.assert_array_equal(alone.feedback.alignment[0], seen.feedback.alignment[index])


def test_corrections_larger_than_the_matrix_are_not_worth_it() -> None:
    assert shared_matrices.worth_sharing(
        np.array([110, 440, 1238, 1240]), (2048, 3136)
    ).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        pytest.param(name, shares, marks=[] if name == "fedavg" else pytest.mark.slow)
        for shares, names in ((True, ("fedavg", "fedbn")), (False, ("fedavg", "scaffold")))
        for name in names
    ],
)
def test_neither_numbers_nor_what_clients_report_depend_on_portions(
    federation: Federation, name: str, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shares:
        monkeypatch.setattr(shared_matrices, "worth_sharing", lambda rank, _: rank < 0)
    courses = [course(batch=8, epochs=2, sampled=rate, **GIVEN[name]) for rate in (0.5, 1.0)]
    whole = run(federation, courses, name, observe=True)
    monkeypatch.setattr(shared_matrices, "ROWS_TOGETHER", 8)
    monkeypatch.setattr(courses_module, "MAX_LOCAL_BYTES", 1)
    cut = run(federation, courses, name, observe=True)
    np.testing.assert_allclose(cut.metrics[..., 0], whole.metrics[..., 0], rtol=2e-3)
    assert cut.feedback is not None
    assert whole.feedback is not None
    for field in ("update_norm", "alignment"):
        found, expected = (getattr(feedback, field) for feedback in (cut.feedback, whole.feedback))
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=2e-3, err_msg=field)


def test_a_name_keeps_its_memory() -> None:
    buffers = Workspace()
    first = buffers.take("a", (3, 4), torch.ones(1)).fill_(1.0)
    second = buffers.take("a", (2, 5), torch.ones(1))
    assert second.shape == (2, 5)
    assert second.is_contiguous()
    assert second.data_ptr() == first.data_ptr()
    assert buffers.take("b", (2, 5), torch.ones(1)).data_ptr() != first.data_ptr()


def test_larger_tensors_and_other_types_get_memory_of_their_own() -> None:
    buffers = Workspace()
    small = buffers.take("a", (2,), torch.ones(1)).fill_(1.0)
    large = buffers.take("a", (5,), torch.ones(1)).fill_(2.0)
    whole = buffers.take("a", (5,), torch.ones(1, dtype=torch.int64)).fill_(3)
    assert whole.dtype == torch.int64
    assert small.tolist() == [1.0, 1.0]
    assert large.tolist() == [2.0] * 5
