"""Computing FedHPO-B: what is stored is what training gives, and the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.building import meta_data
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.tasks import work_of
from fedhpo_gym.tasks.meta import META_SPACES, MetaTask, meta_tasks

pytest.importorskip("torch")
pytest.importorskip("sklearn")


def _small(monkeypatch: pytest.MonkeyPatch) -> MetaTask:
    monkeypatch.setattr(meta_data, "SHARED", 8)
    monkeypatch.setattr(meta_data, "GENERATIONS", (4, 3))
    monkeypatch.setattr(meta_data, "REPEATED", 5)
    return next(one for one in meta_tasks("LR") if one.name == "Iris-5-label")


def test_values_are_those_of_the_raw_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedhpo_gym.backends import make_backend

    meta = _small(monkeypatch)
    found, task = meta_data.compute_task(meta), meta.task
    space = meta_data.pool_space(task)
    pool = meta_data.shared_configurations(space)
    named = [dict(zip(task.space.names, row, strict=True)) for row in found["own"].tolist()]
    own = [task.space.from_numbers(one) for one in named]
    assert found["values"].shape == (15, 2, 4, 6)
    for seed, rows in ((1, found["values"]), (3, found["repeats"][1])):
        raw = make_backend("raw", task, seed=seed)
        known = [*pool, *own] if seed == 1 else [*pool, *own][:: meta_data.REPEATED]
        for place in (0, len(known) - 1):
            for rate, at in ((0.2, 0), (1.0, 1)):
                answer = raw.evaluate(known[place], Fidelity(3, rate))
                expected = [answer.mean("val", "loss"), answer.mean("test", "loss")]
                assert rows[place, at, 2, :2].tolist() == np.float32(expected).tolist()


@pytest.mark.slow
def test_the_page_computes_a_stored_loss_outside_of_the_pool() -> None:
    """Splits and initial weights are public, and a trial counts the best of its rounds."""
    page = (Path(__file__).parents[2] / "docs" / "fedhpo_b.md").read_text(encoding="utf-8")
    section = page.partition("## Computing a loss outside of this package")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    found: dict[str, Any] = {}
    exec(code, found)  # noqa: S102 - a reader runs it so
    stored, losses, task = (found[name] for name in ("stored", "losses", "task"))
    assert losses[-1] > 2 * losses.min()
    np.testing.assert_allclose(np.minimum.accumulate(losses), stored, rtol=1e-6)
    for values, name in ((losses, "losses"), (stored, "stored")):
        told = code.partition(f"print({name})")[2].partition("\n")[0].partition(": ")[2]
        assert told == " ".join(f"{value:.3f}" for value in values)
    weights, classes = found["weights"]["weight"], task.num_classes
    bound = task.num_features**-0.5
    drawn = stream(found["seed"], "init").uniform(-bound, bound, (classes, task.num_features + 1))
    np.testing.assert_array_equal(weights, drawn.astype(np.float32))
    rows = np.concatenate([part for client in found["federation"].clients for part in client])
    assert sorted(rows.tolist()) == list(range(len(found["federation"].labels)))


def test_the_same_is_computed_again_and_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meta = _small(monkeypatch)
    monkeypatch.setattr(meta_data, "meta_tasks", lambda _: (meta,))
    (tmp_path / f".LR-{meta.name}.npz.0123.part").write_bytes(b"of a killed process")
    (path,) = meta_data.compute_parts(tmp_path, ["LR"])["LR"]
    assert [*tmp_path.iterdir()] == [path]
    first = meta_data._read_task(path)
    again = meta_data.compute_task(meta)
    assert {name: one.tobytes() for name, one in first.items()} == {
        name: one.tobytes() for name, one in again.items()
    }
    monkeypatch.setattr(meta_data, "compute_task", lambda one: pytest.fail(one.name))
    assert meta_data.compute_parts(tmp_path, ["LR"]) == {"LR": [path]}


@pytest.mark.parametrize("space", META_SPACES)
def test_children_are_new_and_near_the_best(space: str) -> None:
    pool_space = meta_data.pool_space(meta_tasks(space)[0].task)
    known = meta_data.shared_configurations(pool_space)
    assert len({tuple(one.items()) for one in known}) == meta_data.SHARED
    actions = np.stack([pool_space.encode(one) for one in known])
    losses = ((actions - 0.5) ** 2).sum(axis=1)
    found = meta_data.breed_children(pool_space, known, losses, 40, stream(0, "test"))
    assert len({tuple(one.items()) for one in [*known, *found]}) == len(known) + 40
    made = np.stack([pool_space.encode(one) for one in found])
    assert np.median(((made - 0.5) ** 2).sum(axis=1)) < np.quantile(losses, 0.25)


def test_costs_are_those_of_the_clock() -> None:
    task = meta_tasks("Joint")[0].task
    pool = meta_data.shared_configurations(meta_data.pool_space(task))[:20]
    found = meta_data.costs_of(task, pool)
    for place, one in enumerate(pool):
        cost = task.system.cost(work_of(task, one, 3, 0.2))
        assert found[place, 0, 2].tolist() == [cost.time_s, cost.upload_bytes, cost.download_bytes]
    assert len(np.unique(found[:, 1, -1, 0])) > 5


def test_what_a_federation_is_like_by_hand() -> None:
    class Made:
        labels = np.array([0, 0, 0, 1, 1, 1, 1, 1])
        num_classes = 2
        clients = ((np.arange(3),), (np.arange(3, 8),))

    task = next(one.task for one in meta_tasks("LR") if one.name == "Iris-5-label")
    features = meta_data.meta_features(task, Made())  # type: ignore[arg-type]
    named = dict(zip(meta_data.FEATURES, features.tolist(), strict=True))
    entropy = -(3 / 8 * np.log(3 / 8) + 5 / 8 * np.log(5 / 8)) / np.log(2)
    assert named["samples"] == pytest.approx(np.log(8))
    assert named["label_entropy"] == pytest.approx(entropy)
    assert named["size_entropy"] == pytest.approx(entropy)
    assert named["smallest_client"] == pytest.approx(np.log(3 / 4))
    assert named["largest_client"] == pytest.approx(np.log(5 / 4))
    assert named["label_skew"] == pytest.approx(3 / 8 * 5 / 8 + 5 / 8 * 3 / 8)
