"""Optimizers that transfer: what their papers say, on examples small enough to work out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("scipy")
torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from scipy.stats import norm, spearmanr  # noqa: E402
from sklearn.gaussian_process import GaussianProcessRegressor  # noqa: E402
from sklearn.gaussian_process.kernels import ConstantKernel, Matern  # noqa: E402

from fedhpo_gym.agents import AGENTS, Step, agent_class  # noqa: E402
from fedhpo_gym.agents.base import SearchProblem  # noqa: E402
from fedhpo_gym.agents.transfer import ablr, cts, ensembles, fsbo, pfn  # noqa: E402
from fedhpo_gym.agents.transfer import gaussian_process as process  # noqa: E402
from fedhpo_gym.agents.transfer.base import ObservedData, TransferSearch  # noqa: E402
from fedhpo_gym.evaluation.records import SourceTask  # noqa: E402
from fedhpo_gym.space import Dimension, SearchSpace  # noqa: E402

NAMES = [name for name, place in AGENTS.items() if ".transfer." in place]
SPACE = SearchSpace(tuple(Dimension(name, 0.0, 1.0, "float") for name in "abcd"))
BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
RNG = np.random.default_rng(0)


def bowl(points: np.ndarray, middle: float) -> np.ndarray:
    """Scores of (n, 4) features, highest where all are `middle`."""
    return 1.0 - ((points - middle) ** 2).mean(axis=1)


def source(middle: float, seed: int, sign: float = 1.0) -> SourceTask:
    actions = np.random.default_rng(seed).uniform(-1.0, 1.0, (80, 4)).astype(np.float32)
    scores = sign * bowl(SPACE.features(actions), middle)
    return SourceTask(str(seed), actions, scores, np.zeros(1))


SOURCES = tuple(source(middle, seed) for seed, middle in enumerate((0.6, 0.65, 0.7, 0.75)))


def made(name: str, sources: tuple[SourceTask, ...] = SOURCES, **given: object) -> TransferSearch:
    kind = agent_class(name)
    assert issubclass(kind, TransferSearch)
    return kind(SearchProblem(BOX, SPACE, source_tasks=sources, **given))  # type: ignore[arg-type]


LEARNED: dict[tuple[str, str], object] = {}
"""What was learned of `SOURCES` in this many steps, for all tests."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module, steps in ((ablr, 200), (cts, 300), (fsbo, 200), (pfn, 300)):
        monkeypatch.setattr(module, "STEPS", steps)
    monkeypatch.setattr(pfn, "WIDTH", 32)
    monkeypatch.setattr(process, "_MADE", LEARNED)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_process_predicts_as_scikit_learn_does() -> None:
    x, new, y = RNG.random((20, 3)), RNG.random((7, 3)), RNG.standard_normal(20)
    lengths, scale, noise = np.array([0.3, 1.0, 2.0]), 1.7, 0.2
    ours = process.GaussianProcess(x, y, np.log([*lengths, scale, noise]))
    kernel = ConstantKernel(scale) * Matern(lengths, nu=2.5)
    other = GaussianProcessRegressor(kernel, alpha=noise + process.JITTER, optimizer=None)
    expected = other.fit(x, y).predict(new, return_std=True)
    np.testing.assert_allclose(ours.predict(new), expected, rtol=1e-6)
    others = np.arange(20) != 4
    left = GaussianProcessRegressor(kernel, alpha=noise + process.JITTER, optimizer=None)
    mean, deviation = left.fit(x[others], y[others]).predict(x[[4]], return_std=True)
    found_mean, found_deviation = ours.leave_one_out()
    np.testing.assert_allclose(found_mean[4], mean[0], rtol=1e-6)
    spread = np.sqrt(deviation[0] ** 2 + noise + process.JITTER)
    np.testing.assert_allclose(found_deviation[4], spread, rtol=1e-6)


def test_the_settings_are_the_likeliest() -> None:
    x = RNG.random((25, 2))
    task = ObservedData(
        x, process.normal_scores(np.sin(6.0 * x[:, 0]) + 0.1 * RNG.standard_normal(25))
    )

    def posterior(settings: np.ndarray) -> float:
        kernel = ConstantKernel(np.exp(settings[2])) * Matern(np.exp(settings[:2]), nu=2.5)
        covariance = kernel(x) + (np.exp(settings[3]) + process.JITTER) * np.eye(25)
        likelihood = -0.5 * task.scores @ np.linalg.solve(covariance, task.scores)
        likelihood -= 0.5 * np.linalg.slogdet(covariance)[1]
        middle = process.LENGTH + 0.5 * np.log(2.0)
        prior = norm.logpdf(settings[:2], middle, process.SPREAD).sum()
        prior += norm.logpdf(settings[2]) + norm.logpdf(settings[3], process.NOISE)
        return float(likelihood + prior)

    found = process.fit_settings([task])
    for axis, step in itertools.product(range(4), (-0.1, 0.1)):
        assert posterior(found) > posterior(found + step * (np.arange(4) == axis))
    assert found[0] < found[1]  # the second does not matter
    np.testing.assert_allclose(process.fit_settings([task, task]), found, atol=1.0)


def test_improvement_is_the_mean_of_draws_and_finite_far_away() -> None:
    mean, deviation = np.array([0.0, 1.0, -1.0]), np.array([1.0, 0.5, 2.0])
    draws = mean + deviation * RNG.standard_normal((400_000, 3))
    found = np.exp(process.log_expected_improvement(mean, deviation, 0.5))
    np.testing.assert_allclose(found, np.maximum(draws - 0.5, 0.0).mean(axis=0), rtol=0.02)
    far = process.log_expected_improvement(-np.arange(0.5, 90.0, 0.01), np.ones(8950), 0.0)
    assert (np.diff(far) < 0).all()


def test_equal_scores_share_a_rank() -> None:
    found = process.normal_scores(np.array([0.0, 0.0, 0.3, 0.9]))
    np.testing.assert_allclose(found, norm.ppf([0.25, 0.25, 0.625, 0.875]))


def test_a_source_is_its_best_and_a_draw() -> None:
    known = ObservedData(RNG.random((50, 2)), RNG.permutation(50) / 50.0)
    found = process.subsample(known, 20, 5)
    assert len({*map(tuple, found.points)}) == 20
    best = known.points[np.argsort(-known.scores)[:5]]
    assert {*map(tuple, best)} <= {*map(tuple, found.points)}
    assert {*map(tuple, found.points)} <= {*map(tuple, known.points)}


def test_what_is_learned_is_kept_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_MADE", {})
    one = [ObservedData(np.zeros((3, 2)), np.arange(3.0))]
    first = process.cached_by_sources("test", one, object)
    assert (
        process.cached_by_sources("test", [ObservedData(np.zeros((3, 2)), np.arange(3.0))], object)
        is first
    )
    assert (
        process.cached_by_sources("test", [ObservedData(np.ones((3, 2)), np.arange(3.0))], object)
        is not first
    )
    monkeypatch.setattr(process, "CACHE_SIZE", 2)
    process.cached_by_sources("another", one, object)
    assert len(process._MADE) == 2
    assert process.cached_by_sources("test", one, object) is not first  # the oldest went


def test_ranking_losses_are_pairs_in_another_order() -> None:
    scores, predicted = np.array([0.1, 0.2, 0.2, 0.9]), np.array([[3.0, 1.0, 2.0, 4.0]])
    # The first is above the next two, which have equal scores: two pairs, counted both ways.
    np.testing.assert_array_equal(ensembles.ranking_losses(predicted, scores, predicted), [4])
    # The first is rightly below two 5s; all are above 0, and the others below 5, wrongly.
    against = np.array([5.0, 5.0, 5.0, 0.0])
    np.testing.assert_array_equal(ensembles.ranking_losses(predicted, scores, against), [8])


def test_weights_count_the_draws_in_which_a_model_is_best() -> None:
    losses = np.array([[0, 5, 2, 2], [9, 9, 9, 9], [1, 2, 2, 3]])
    # The second is far worse than the last, its own; the last takes the draw in which both tie.
    np.testing.assert_allclose(ensembles.ranking_weights(losses), [0.5, 0.0, 0.5])
    np.testing.assert_allclose(
        ensembles.ranking_weights(np.array([[0, 1], [0, 1], [7, 7]])), [0.5, 0.5, 0]
    )


def test_similarity_is_epanechnikov_of_misranked_pairs() -> None:
    means, scores = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 1.0, 3.0]]), np.arange(3.0)
    expected = 0.75 * np.maximum(1.0 - (np.array([0.0, 1.0, 1.0 / 3.0]) / 0.9) ** 2, 0.0)
    np.testing.assert_allclose(ensembles.similarities(means, scores, 0.9), expected)


def test_an_ensemble_asks_every_model_about_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = made("rgpe")
    assert isinstance(agent, process.EnsembleSearch)
    points = np.random.default_rng(0).random((9, 4))
    means = np.array([model.mean(points) for model in agent.models])
    deviations = np.array([model.deviation(points) for model in agent.models])
    # Tolerance: a product of other shape may round otherwise.
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
    close(agent.means(points[:3], np.array([1, 3])), means[[1, 3], :3])
    close(agent.deviations(points[2:5], np.array([0])), deviations[:1, 2:5])
    close(agent.means(points), means)
    close(agent.deviations(points), deviations)
    monkeypatch.setattr(process, "REMEMBERED", 3)
    close(agent.means(points[::-1]), means[:, ::-1])

    own, weights = ObservedData(points[:5], np.arange(5.0)), np.array([0.5, 0.0, 0.3, 0.0, 0.2])
    model = agent.model(own)
    mean = weights @ np.vstack([means, model.mean(points)])
    expected = process.log_expected_improvement(mean, np.ones(9), float(mean[:5].max()))
    close(agent.improvement(weights, own, points, np.ones(9)), expected)

    variance = weights**2 @ np.vstack([deviations, model.deviation(points)]) ** 2
    monkeypatch.setattr(ensembles, "ranking_weights", lambda _: weights)
    best = float(mean[:5].max())
    expected = process.log_expected_improvement(mean, np.sqrt(variance), best)
    close(agent.prefer(own, points, RNG), expected)


def test_sources_say_where_to_look_while_own_scores_are_equal() -> None:
    agent, points = made("rgpe"), np.random.default_rng(0).random((400, 4))
    found = agent.prefer(ObservedData(points[:5], np.zeros(5)), points, np.random.default_rng(0))
    chosen = points[np.argsort(-found)[:20]]
    assert bowl(chosen, 0.68).mean() > np.quantile(bowl(points, 0.68), 0.8)


def test_the_transfer_acquisition_is_its_formula() -> None:
    agent, points = made("taf-r"), np.random.default_rng(0).random((9, 4))
    assert isinstance(agent, process.EnsembleSearch)
    own = ObservedData(points[:5], bowl(points[:5], 0.68))
    model = agent.model(own)
    gain = process.log_expected_improvement(*model.predict(points), model.best)
    total = ensembles.TOP * np.exp(gain)
    weights = ensembles.similarities(
        np.array([m.mean(own.points) for m in agent.models]), own.scores
    )
    assert (weights > 0).any()
    for source_model, similar in zip(agent.models, weights, strict=True):
        best = source_model.mean(own.points).max()
        total += similar * np.maximum(source_model.mean(points) - best, 0.0)
    found = agent.prefer(own, points, RNG)
    np.testing.assert_allclose(found, total / (ensembles.TOP + weights.sum()), rtol=1e-9)


def test_a_portfolio_begins_with_the_best_on_average() -> None:
    agent, points = made("zero-shot"), np.random.default_rng(0).random((50, 4))
    assert isinstance(agent, process.EnsembleSearch)
    none = ObservedData(np.empty((0, 4)), np.empty(0))
    found = agent.prefer(none, points, RNG)
    means = np.array([model.mean(points) for model in agent.models])
    assert found.argmax() == means.sum(axis=0).argmax()


def test_the_portfolio_is_greedy() -> None:
    table = np.array([[0.9, 0.1, 0.6], [0.1, 0.8, 0.6]])
    chosen: list[int] = []
    covered = table.min(axis=1)
    while len(chosen) < 3:
        best = max(range(3), key=lambda i: table[:, [*chosen, i]].max(axis=1).sum())
        if best in chosen:
            break
        assert ensembles.portfolio_gains(table, covered).argmax() == best
        chosen.append(best)
        covered = table[:, chosen].max(axis=1)
    assert chosen == [2, 0, 1]


def test_the_box_holds_the_best_of_every_source() -> None:
    agent = made("bounding-box")
    best = np.array([SPACE.features(t.actions)[t.scores.argmax()] for t in SOURCES])
    candidates = np.random.default_rng(1).random((400, 4))
    candidates[7] = best.mean(axis=0)
    found = agent.prefer(ObservedData(np.empty((0, 4)), np.empty(0)), candidates, RNG)
    inside = ((candidates >= best.min(axis=0)) & (candidates <= best.max(axis=0))).all(axis=1)
    assert 0 < inside.sum() < 400
    assert found[inside].min() > found[~inside].max()


def test_quantiles_are_cut_as_by_hand() -> None:
    cut = 1.0 / (4.0 * 4.0**0.25 * np.sqrt(np.pi * np.log(4.0)))
    expected = norm.ppf([0.25, 0.75, 0.75, 1.0 - cut])
    np.testing.assert_allclose(cts.copula_scores(np.array([0.0, 0.4, 0.4, 0.5])), expected)


def test_the_linear_posterior_has_its_closed_form() -> None:
    x, y = RNG.standard_normal((30, 3)), RNG.standard_normal(30)
    model = ablr.linear_model(x, y)
    covariance = np.linalg.inv(model.alpha_ * x.T @ x + model.lambda_ * np.eye(3))
    mean, deviation = ablr.function_of(model, x[:2])
    np.testing.assert_allclose(mean, x[:2] @ covariance @ x.T @ y * model.alpha_, rtol=1e-6)
    np.testing.assert_allclose(deviation**2, np.diag(x[:2] @ covariance @ x[:2].T), rtol=1e-6)


@pytest.mark.slow
def test_a_prior_fitted_network_follows_the_scores_it_is_told() -> None:
    agent, rng = made("pfn"), np.random.default_rng(0)
    assert isinstance(agent, pfn.PriorFittedSearch)
    points = np.random.default_rng(1).random((90, 4))
    network = process.cached_by_sources("pfn", agent.sources, agent._train)
    found = []
    for _ in range(40):  # functions of its prior that are like no source
        values = pfn.drawn_function(points, rng)
        told = process.normal_scores(values[:50])
        x = torch.from_numpy(points[None].astype(np.float32))
        y = torch.from_numpy(np.stack([told, rng.permutation(told)]).astype(np.float32))
        with torch.no_grad():
            mean = network(x.expand(2, -1, -1), y)[0].numpy()
        found.append([spearmanr(one, values[50:]).statistic for one in mean])
    true, shuffled = np.mean(found, axis=0)
    assert true > 0.4
    assert abs(shuffled) < 0.15


def trials(agent: TransferSearch, number: int) -> np.ndarray:
    """Regrets of the first trials on a bowl that no source is, the best so far."""
    found = []
    for _ in range(number):
        action = agent.ask({})
        score = float(bowl(SPACE.features(action[None]), 0.68)[0])
        agent.tell(Step(action, score, terminated=False, truncated=False, info={"score": score}))
        found.append(1.0 - score)
    return np.minimum.accumulate(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sources_help(name: str) -> None:
    drawn = 1.0 - bowl(np.random.default_rng(3).random((200, 12, 4)).reshape(-1, 4), 0.68)
    random = np.median(drawn.reshape(200, 12).min(axis=1))
    assert np.median([trials(made(name, seed=seed), 12)[-1] for seed in range(3)]) < random


@pytest.mark.parametrize("name", ["rgpe", "tst-r"])
def test_a_misleading_source_does_little_harm(name: str) -> None:
    wrong = tuple(source(0.68, seed, sign=-1.0) for seed in range(3))
    found = [trials(made(name, wrong, seed=seed), 20)[-1] for seed in range(3)]
    alone = [trials(made("gp", seed=seed), 20)[-1] for seed in range(3)]
    assert np.median(found) < np.median(alone) + 0.01


def test_what_is_learned_depends_on_the_sources_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ablr, cts, fsbo, pfn):
        monkeypatch.setattr(module, "STEPS", 5)
    monkeypatch.setattr(process, "_MADE", {})
    own, candidates = ObservedData(RNG.random((6, 4)), RNG.random(6)), RNG.random((900, 4))
    for name in NAMES:
        torch.set_num_threads(1)
        first = made(name).prefer(own, candidates, np.random.default_rng(0))
        process._MADE.clear()
        torch.rand(1)
        torch.set_num_threads(2)
        again = made(name).prefer(own, candidates, np.random.default_rng(0))
        assert torch.get_num_threads() == 2
        np.testing.assert_array_equal(first, again)
