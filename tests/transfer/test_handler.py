"""HPO-B's interface: its runs by a plain loop, what is mended, its modes, and methods unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.transfer import HPOBHandler
from fedhpo_gym.transfer.source import SEEDS

SPLITS = {
    "train": {"10": ("1", "2"), "20": ("1",)},
    "train-augmented": {"10": ("1", "2"), "20": ("1",), "30": ("9",)},
    "validation": {"10": ("3",), "20": ("3",)},
    "test": {"10": ("4", "5"), "20": ("4",)},
}


class Bowl:
    """A surrogate whose responses, 0.2 to 0.9, fall with the distance from 0.3."""

    y_min, y_max = 0.3, 0.85

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return (0.9 - 0.7 * np.abs(np.asarray(x) - 0.3).mean(axis=1)).astype(np.float32)


class Made:
    """Made-up tables of 30 rows; it says which were read."""

    def __init__(self) -> None:
        self.read: list[tuple[str, ...]] = []

    def search_spaces(self, split: str) -> Sequence[str]:
        return tuple(SPLITS[split])

    def datasets(self, space: str, split: str) -> Sequence[str]:
        return SPLITS[split].get(space, ())

    def table(self, space: str, dataset: str, split: str) -> tuple[np.ndarray, np.ndarray]:
        self.read.append((space, dataset, split))
        rng = stream(int(dataset), "made", int(space))
        return rng.random((30, int(space) // 10 + 1)), rng.integers(20, 70, 30) / 80

    def initial(self, space: str, dataset: str) -> Mapping[str, Sequence[int]]:
        rng = stream(int(dataset), "initial", int(space))
        return {seed: rng.permutation(30)[:5].tolist() for seed in SEEDS}

    def surrogate(self, space: str, dataset: str) -> Bowl | None:
        return Bowl() if space == "10" else None

    def decode(self, space: str, x: Any) -> Mapping[str, Any]:
        return {"eta": 10.0 ** -np.asarray(x)[0]}


class RandomMethod:  # as HPO-B's examples are written
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def observe_and_suggest(self, X_obs, y_obs, X_pen=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803
        if X_pen is None:
            return self.rng.random(len(X_obs[0]))
        return self.rng.choice(len(X_pen))


class Given:
    """Suggests what it was given, and keeps what it was told."""

    def __init__(self, *suggestions: Any) -> None:
        self.suggestions, self.told = list(suggestions), []  # type: ignore[var-annotated]

    def observe_and_suggest(self, *args: Any, **by_name: Any) -> Any:
        self.told.append((args, by_name))
        return self.suggestions[len(self.told) - 1]


def by_hand(
    table: Any, start: list[int], method: Any, trials: int, model: Any, mended: bool
) -> list[float]:
    """Return a run by HPO-B's protocols, from their descriptions; discrete without a model."""
    x, y = table
    low, high = (y.min(), y.max()) if model is None else (model.y_min, model.y_max)
    left, points = [row for row in range(len(x)) if row not in start], x[start]
    told = y[start] if model is None or not mended else model(points).astype(float)
    curve: list[float] = []
    while len(curve) <= trials and (not curve or told.max() < high):
        scaled = np.clip((told - low) / (high - low), 0.0, 1.0)
        curve.append(scaled.max())
        if len(curve) > trials:
            return curve if model is None or mended else [*curve[:-1], curve[-2]]
        if model is None:
            row = left.pop(method.observe_and_suggest(points, scaled[:, None], X_pen=x[left]))
            points, told = np.vstack([points, x[row]]), np.append(told, y[row])
        else:
            points = np.vstack([points, method.observe_and_suggest(points, scaled[:, None])])
            told = np.append(told, model(points[-1:]))
    curve.append(1.0 if model is None or mended else curve[-1])
    return curve + [1.0] * (trials + 1 - len(curve))


@pytest.mark.parametrize("mended", [True, False])
@pytest.mark.parametrize("model", [None, Bowl()])
def test_runs_are_hpobs(model: Bowl | None, mended: bool) -> None:
    source = Made()
    handler = HPOBHandler(source, mended=mended)
    evaluate = handler.evaluate if model is None else handler.evaluate_continuous
    for seed, trials in product(SEEDS, (1, 7, 25)):
        found = evaluate(RandomMethod(trials), "10", "4", seed, trials)
        task = source.table("10", "4", "test"), list(source.initial("10", "4")[seed])
        expected = by_hand(*task, RandomMethod(trials), trials, model, mended)
        assert found == pytest.approx(expected, abs=1e-12)
        assert len(found) == trials + 1


def made(x: list[list[float]], y: list[float], mended: bool = True) -> HPOBHandler:
    handler = HPOBHandler(Made(), mended=mended)
    handler.meta_test_data["10"]["4"] = {"X": x, "y": [[one] for one in y]}
    handler.bo_initializations["10"]["4"] = {"test0": [0, 1, 2, 3, 4]}
    return handler


def test_a_run_by_hand_and_what_the_method_is_told() -> None:
    rows = [[0.1 * row, 1.0] for row in range(8)]
    handler = made(rows, [0.5, 0.3, 0.4, 0.2, 0.4, 0.6, 1.0, 0.2])
    method = Given(2, -1, "not asked")
    found = handler.evaluate(method, "10", "4", "test0", 4)
    assert found == pytest.approx([0.375, 0.375, 1.0, 1.0, 1.0])
    (args, first), (_, second) = method.told
    assert args == ()
    assert sorted(first) == ["X_obs", "X_pen", "y_obs"]
    assert first["X_pen"].tolist() == rows[5:]
    assert second["X_pen"].tolist() == rows[5:7]
    assert second["y_obs"].tolist() == pytest.approx(np.array([[3], [1], [2], [0], [2], [0]]) / 8)


def test_a_small_or_a_flat_table_ends_and_does_not_fail() -> None:
    rows, flat = [[0.1 * row, 1.0] for row in range(6)], [0.5] * 6
    values = [0.1, 0.2, 0.3, 0.2, 0.1]
    assert made(rows[:5], values).evaluate(Given(), "10", "4", "test0", 3) == [1.0] * 4
    assert made(rows, flat).evaluate(Given(0), "10", "4", "test0", 3) == [1.0] * 4
    with pytest.raises(InvalidArgumentError, match="one of 0 pending rows, an integer"):
        made(rows, flat, mended=False).evaluate(Given(0, 0), "10", "4", "test0", 3)


def test_modes_have_the_splits_of_hpob() -> None:
    merged = {"10": ("1", "2", "4", "5", "3"), "20": ("1", "4", "3")}
    test, rare = SPLITS["test"], SPLITS["train-augmented"]
    for mode, expected in {
        "v1": ({**merged, "30": ("9",)}, None, None),
        "v2": (merged, None, None),
        "v3": (test, SPLITS["train"], SPLITS["validation"]),
        "v3-test": (test, None, None),
        "v3-train-augmented": (test, rare, SPLITS["validation"]),
    }.items():
        handler = HPOBHandler(Made(), mode)  # type: ignore[arg-type]
        found = (handler.meta_test_data, handler.meta_train_data, handler.meta_validation_data)
        assert expected == tuple(
            one if one is None else {space: tuple(sets) for space, sets in one.items()}
            for one in found
        )


def test_tables_are_read_when_they_are_asked_for_and_once() -> None:
    source = Made()
    handler = HPOBHandler(source, "v3")
    assert (handler.mode, handler.get_seeds()) == ("v3", list(SEEDS))
    assert (handler.get_search_spaces(), handler.get_datasets("10")) == (["10", "20"], ["4", "5"])
    assert source.read == []
    assert handler.get_search_space_dim("20") == 3
    tables = handler.meta_test_data
    assert tables["20"]["4"] is tables["20"]["4"]
    assert source.read == [("20", "4", "test")]
    assert [np.shape(tables["20"]["4"][name]) for name in "Xy"] == [(30, 3), (30, 1)]
    assert ("10" in tables, tables.get("30"), tables == dict(tables.items())) == (True, None, True)
    ends = {"y_min": 0.3, "y_max": 0.85}
    assert handler.surrogates_stats == {"surrogate-10-4": ends, "surrogate-10-5": ends}
    assert handler.decode("10", [0.0, 1.0]) == {"eta": 1.0}


def test_normalising_by_hand() -> None:
    handler = HPOBHandler(Made())
    assert handler.normalize(np.array([2.0, 3.0, 6.0])).tolist() == [0.0, 0.25, 1.0]
    assert handler.normalize([2.0, 3.0], 1.0, 5.0).tolist() == [0.25, 0.5]  # type: ignore[arg-type]
    assert handler.normalize(np.array([2.0, 2.0])).tolist() == [1.0, 1.0]
    assert np.isnan(HPOBHandler(Made(), mended=False).normalize(np.array([2.0]))).all()


def test_a_method_of_scikit_learn_runs_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    neighbors = pytest.importorskip("sklearn.neighbors")

    class Nearest:
        def observe_and_suggest(self, X_obs, y_obs, X_pen=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
            model = neighbors.KNeighborsRegressor(1).fit(X_obs, y_obs.reshape(-1))
            points = np.random.default_rng(0).random((50, X_obs.shape[1]))
            best = np.argmax(model.predict(points if X_pen is None else X_pen))
            return points[best] if X_pen is None else best

    handler = HPOBHandler(Made(), mode="v3-test")
    for space, method in product(handler.get_search_spaces(), (Nearest(), RandomMethod(0))):
        for dataset, seed in product(handler.get_datasets(space), handler.get_seeds()):
            keys = {"search_space_id": space, "dataset_id": dataset, "seed": seed}
            curves = [handler.evaluate(bo_method=method, n_trials=6, **keys)]
            if space == "10":
                curves.append(handler.evaluate_continuous(method, n_trials=6, **keys))
            for curve in curves:
                assert (len(curve), sorted(curve)) == (7, curve)
                assert np.clip(curve, 0.0, 1.0).tolist() == curve
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bo_method": None}, "`bo_method` must be an object with `observe"),
        ({"bo_method": Given(99)}, "index of one of 25 pending rows, an integer, got 99"),
        ({"search_space_id": None}, "Unknown search space 'None'"),
        ({"dataset_id": "3"}, "Unknown data set '3'"),
        ({"seed": "test5"}, "Unknown seed 'test5'"),
        ({"seed": "twice"}, "`bo_initializations` must name different rows"),
        ({"n_trials": 0}, "`n_trials` must be at least 1, got 0"),
    ],
)
def test_faulty_arguments_are_named(given: dict[str, Any], words: str) -> None:
    handler = HPOBHandler(Made())
    handler.bo_initializations["10"]["4"]["twice"] = [1, 1]
    fitting = {"bo_method": Given(0), "search_space_id": "10", "dataset_id": "4", "seed": "test0"}
    with pytest.raises(FedHPOError, match=words):
        handler.evaluate(**{**fitting, "n_trials": 1, **given})


def test_what_cannot_be_is_refused() -> None:
    for given, words in ((("nowhere",), "no folder"), ((Made(), "v4"), "`mode` must be one of")):
        with pytest.raises(FedHPOError, match=words):
            HPOBHandler(*given)  # type: ignore[arg-type]
    for space, words in (("10", "must return 2 numbers"), ("20", "no surrogate of data set 4")):
        with pytest.raises(FedHPOError, match=words):
            HPOBHandler(Made()).evaluate_continuous(Given([1.0]), space, "4", "test0")
