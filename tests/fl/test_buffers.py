"""Laws of memory that is used again."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fedhpo_gym.fl.shared_matrices import Workspace  # noqa: E402


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
