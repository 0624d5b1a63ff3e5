"""What random search leaves: against chance itself, by hand, and on the page that is committed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from fedhpo_gym.backends import make_backend
from fedhpo_gym.backends.training import label_frequencies
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.cli.health import DIFFICULTY_HEADS, _difficulty_cells, _trained_difficulty
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.multi_objective import kendall
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER
from fedhpo_gym.stored.health import (
    KINDS,
    Difficulty,
    best_of,
    default_configuration,
    difficulty_of,
    open_stored,
    seed_error,
    variance_shares,
)
from fedhpo_gym.stored.table import Table
from fedhpo_gym.tasks import get_task

PAGE = Path(__file__).resolve().parents[2] / "docs" / "difficulty.md"
CARDS = sorted(card for ending in KINDS for card in EMBEDDED_FOLDER.glob(f"*{ending}"))
ROW_OF = ("LR-CreditG-v1-fedavg-standardized.table.json", "CNN-FEMNIST-v1-fedavg-bfloat16")


def test_the_best_of_some_draws_is_what_chance_gives() -> None:
    assert best_of(np.array([1.0, 2.0]), 2) == pytest.approx(1.25)
    losses = np.sort(np.random.default_rng(0).exponential(size=40))
    drawn = np.random.default_rng(1).choice(losses, (200_000, 5)).min(axis=1)
    # The mean of 200,000 minima of a standard deviation of 0.2 is known to 0.0005.
    assert best_of(losses, 5) == pytest.approx(drawn.mean(), abs=0.002)
    assert best_of(losses, 1) == pytest.approx(losses.mean())
    assert best_of(losses, 10_000) == pytest.approx(losses[0])


def test_what_tuning_gains_and_random_search_leaves_in_three_units_by_hand() -> None:
    found = Difficulty(9, 2.0, 1.0, 1.5, 0.125, {25: 0.25}, near=0.1, useless=0.0)
    assert found.gain == 4.0
    assert found.scaled(25) == (0.25, 0.5, 2.0)
    assert np.isnan(replace(found, seed=0.0).gain)


def test_only_what_comparisons_feel_of_seeds_is_noise() -> None:
    rng = np.random.default_rng(0)
    means, shifts = np.sort(rng.uniform(size=(400, 1)), axis=0), rng.normal(size=(1, 3))
    assert seed_error(means + shifts) == pytest.approx(0.0, abs=1e-12)
    drawn = means + shifts + 0.01 * rng.normal(size=(400, 3))
    best = drawn[np.argsort(drawn.mean(axis=1))][:40]
    # Half the variance of a difference of two means over seeds, over all pairs of the best.
    differences = best[:, None, :] - best[None, :, :]
    felt = differences.var(axis=2, ddof=1).sum() / (40 * 39) / 2 / 3
    assert seed_error(drawn) == pytest.approx(np.sqrt(felt))
    assert seed_error(drawn) == pytest.approx(0.01 / np.sqrt(3), rel=0.2)
    assert np.isnan(seed_error(drawn[:, :1]))


def test_few_configurations_say_no_error_and_of_twelve_six_are_used() -> None:
    """Two under three seeds have two degrees of freedom, and decide no contest."""
    rng = np.random.default_rng(0)
    drawn = np.arange(12)[:, None] + rng.normal(size=(12, 3)) * np.repeat([0.01, 100], 6)[:, None]
    assert np.isnan(seed_error(drawn[:11]))
    drawn[6:] += 1000.0
    six = drawn[:6] - drawn[:6].mean(axis=0)
    variance = six.var(axis=1, ddof=1).mean() * 6 / 5 / 3
    assert seed_error(drawn) == pytest.approx(np.sqrt(variance))


def test_the_usual_configuration_is_plain_averaging() -> None:
    found = default_configuration(get_task("JointFew-ExamLondon").space)
    assert found["server_optimizer"] == "none"
    assert not {"server_learning_rate", "model_width"} & set(found)
    assert (found["learning_rate"], found["batch_size"], found["step_size"]) == (0.1, 32, 1)
    assert (found["momentum"], found["rate_decay"], found["model"]) == (0.0, 1.0, "lr")
    assert default_configuration(get_task("JointPrivate-ExamLondon").space)["update_clip"] == 1.0
    grid = get_task("LR-CreditG-v1").space.discretized()
    assert grid.validate(default_configuration(grid)) == default_configuration(grid)


@pytest.mark.slow
def test_figures_of_a_table_are_those_of_its_numbers() -> None:
    stored = open_stored(EMBEDDED_FOLDER / "LR-CreditG-v1-fedavg-standardized.table.json")
    assert isinstance(stored, Table)
    found = difficulty_of(stored)
    # (rounds, hyperparameters.., rates, seeds)
    means = np.sort(stored.objective()[-1, ..., -1, :].mean(axis=-1), axis=None)
    assert found.configurations == len(means) == stored.space.grid_size
    assert found.best == pytest.approx(means[0])
    rng = np.random.default_rng(0)
    drawn = np.minimum(rng.choice(means, (100_000, 25)).min(axis=1), found.guess)
    expected = (drawn.mean() - means[0]) / (found.guess - means[0])
    assert found.scaled(25)[0] == pytest.approx(expected, rel=0.03)
    assert found.useless == (means >= found.guess).mean()


@pytest.mark.slow
def test_a_space_in_which_nothing_learns_is_no_contest_and_has_no_share() -> None:
    found = difficulty_of(open_stored(EMBEDDED_FOLDER / "LR-CreditG-fedavg.table.json"))
    assert found.useless == 1.0
    assert found.best > found.guess
    assert np.isnan(found.scaled(25)[0])
    assert found.left[5] >= found.left[25] >= 0.0
    assert found.is_contest is False


@pytest.mark.slow
def test_the_page_has_a_row_of_every_card_and_says_what_is_computed() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| ---")]
    assert rows[0] == f"| {' | '.join(DIFFICULTY_HEADS)} |"
    assert len(rows) == len(CARDS) + 1, "run `fedhpo-gym difficulty > docs/difficulty.md`"
    for card in CARDS:
        if card.name.startswith(ROW_OF):
            assert f"| {' | '.join(_difficulty_cells(open_stored(card)))} |" in rows


@pytest.mark.raw
def test_a_problem_without_numbers_is_trained() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    task = get_task("LR-BreastCancer-v1").variant(
        fidelity_space=get_task("JointFew-Yogurt").fidelity_space, seeds=(1, 2)
    )
    number = 6
    cells = list(_trained_difficulty(task, number))
    rng, raw = stream(0, "difficulty"), make_backend("raw", task)
    grid = task.space.discretized()
    space = SearchSpace(
        tuple(grid[d.name] if d.kind == "int" else d for d in task.space.dimensions)
    )
    means = []
    for _ in range(number):
        answer = raw.evaluate(space.sample(rng), Fidelity(5, 1.0))
        shares = answer.num_samples[:, :, 1] / answer.num_samples[:, :, 1].sum(1, keepdims=True)
        means.append((answer.best[:, :, 1, 0] * shares).sum(1).mean())
    guess = task.label_entropy
    losses = np.minimum(np.sort(means), guess)
    left = (best_of(losses, 5) - losses[0]) / (guess - losses[0])
    assert cells[0] == "LR-BreastCancer-v1"
    assert cells[3] == f"{left:.3f}"
    assert len(cells) == len(DIFFICULTY_HEADS)
    # Six configurations say nothing of ten trials, nor of twenty-five.
    named = dict(zip(DIFFICULTY_HEADS, cells, strict=True))
    unknown = {"left 10", "left 25", "left 50", "of the default", "contest"}
    unknown |= {"seeds left", "seeds gained"}
    assert {head for head, cell in named.items() if cell == "–"} == unknown


def test_too_few_configurations_and_no_ids_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["difficulty", "--train", "9"]) == ERROR
    assert "must come with ids, none of many tasks, got none" in capsys.readouterr().err
    assert main(["difficulty", "--train", "9", "FedHPO-B-LR-v1"]) == ERROR
    assert "none of many tasks, got FedHPO-B-LR-v1" in capsys.readouterr().err
    assert main(["difficulty", "--train", "4", "LR-BreastCancer-v1"]) == ERROR
    assert "at least 5, got 4" in capsys.readouterr().err


@pytest.mark.slow
def test_a_variant_is_trained_and_stored_numbers_have_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--algorithm", "dpfedavg", "--setting", "epsilon=4"]
    assert main(["difficulty", "FedHPO-LR-BreastCancer-v1", *words]) == 2
    assert "must come with `--train N`" in capsys.readouterr().err
    assert main(["difficulty", "LR-BreastCancer-v1"]) == 0
    assert '"default" is the loss of plain federated averaging' in capsys.readouterr().out


# ----- rank correlation, functional analysis of variance, and what label frequencies reach, by hand


def test_kendall_by_hand() -> None:
    # Of six pairs, 5 agree and 1 (the first) does not.
    assert kendall([1, 2, 3, 4], [2, 1, 3, 4]) == pytest.approx(4 / 6)
    # One pair is tied in the second list: 5 / sqrt(6 * 5).
    assert kendall([1, 2, 3, 4], [1, 1, 3, 4]) == pytest.approx(5 / math.sqrt(30))
    assert math.isnan(kendall([1, 2], [3, 3]))


@pytest.mark.parametrize("at_once", [7, 1 << 22])
def test_kendall_is_that_of_scipy(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhpo_gym.evaluation.multi_objective._MAX_PAIRS", at_once)
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 20, (2, 60)).astype(float)
    other += one
    assert kendall(one, other) == pytest.approx(kendalltau(one, other).statistic, abs=1e-12)
    one[:3] = np.inf
    ranked = np.where(np.isinf(one), 1e9, one)
    assert kendall(one, other) == pytest.approx(kendalltau(ranked, other).statistic, abs=1e-12)


@pytest.mark.parametrize("lists", [([1, 2], [1]), ([1, float("nan")], [1, 2]), ([[1]], [[1]])])
def test_what_cannot_be_ranked_is_refused(lists: tuple[list[float], list[float]]) -> None:
    with pytest.raises(InvalidArgumentError, match="lists of numbers of one length"):
        kendall(*lists)


def test_variance_shares_by_hand() -> None:
    # f = a + 2 b + 4 a b over a, b in {-1, 1}: variances 1, 4 and 16 of 21.
    a, b = np.meshgrid([-1.0, 1.0], [-1.0, 1.0], indexing="ij")
    found = variance_shares(5 + a + 2 * b + 4 * a * b)
    assert found == pytest.approx(np.array([[1, 17], [4, 20]]) / 21)
    assert variance_shares(np.ones((2, 3))) is None


def test_variance_shares_of_three_axes_add_up() -> None:
    values = np.random.default_rng(1).normal(size=(3, 4, 5))
    found = variance_shares(values)
    assert found is not None
    # The total share of an axis is everything but the variance of the mean over that axis.
    for axis, (alone, total) in enumerate(found):
        rest = values.mean(axis=axis).var() / values.var()
        assert total == pytest.approx(1 - rest)
        assert alone <= total


def federation(labels: list[int], splits: list[list[list[int]]]) -> Federation:
    clients = tuple(tuple(np.array(rows, dtype=int) for rows in client) for client in splits)
    features = np.zeros((len(labels), 1), dtype=np.float32)
    return Federation(features, np.array(labels), max(labels) + 1, clients, 0)


MADE = federation([0, 0, 0, 1, 0, 1, 1, 1, 2], [[[0, 1], [4, 5], [6]], [[2, 3], [7, 8], [8]]])
"""Training labels 0 0 | 0 1, validation labels 0 1 | 1 2, test labels 1 | 2."""


def test_label_frequencies_of_all_clients() -> None:
    found = label_frequencies(MADE, per_client=False, squared=False)
    # Label 2 counts once: shares 3/5, 1/5, 1/5.
    losses = [-math.log(3 / 5), math.log(5), math.log(5), math.log(5)]
    assert found["val_loss"] == pytest.approx(sum(losses) / 4)
    assert found["test_loss"] == pytest.approx(math.log(5))
    assert (found["val_accuracy"], found["test_accuracy"]) == (1 / 4, 0.0)


def test_label_frequencies_of_each_client() -> None:
    found = label_frequencies(MADE, per_client=True, squared=False)
    # Client 0 knows labels 0 (twice) and 1 (as if once); client 1 has 0, 1 and (as if once) 2.
    losses = [math.log(3 / 2), math.log(3), math.log(3), math.log(3)]
    assert found["val_loss"] == pytest.approx(sum(losses) / 4)


def test_the_mean_label_where_the_loss_is_a_squared_error() -> None:
    found = label_frequencies(MADE, per_client=False, squared=True)
    wanted = [(label - 1 / 4) ** 2 for label in (0, 1, 1, 2)]
    assert found["val_loss"] == pytest.approx(sum(wanted) / 4)


def test_no_constant_is_better_than_frequencies_on_the_data_they_are_of() -> None:
    same = federation([0, 0, 1, 2], [[[0, 1, 2, 3]] * 3])
    found = label_frequencies(same, per_client=False, squared=False)["val_loss"]
    grid = [p / 40 for p in range(1, 40)]
    for p, q in itertools.product(grid, grid):
        if p + q < 1:
            loss = -(2 * math.log(p) + math.log(q) + math.log(1 - p - q)) / 4
            assert found <= loss + 1e-12
