"""The laws of backends, objectives, data sets, wrappers, algorithms and models.

A class of laws is a pytest mixin: a subclass names the thing under test or makes it, and pytest
runs every law. `laws_of` and `check_plugin` make these subclasses for plugins; this package's own
tests make them for its catalogues. Laws demand properties that hold for every implementation, such
as equal bits alone and in a batch, never particular numbers.
"""
# ruff: noqa: S101 - asserting is what a law does

import copy
import hashlib
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import PassiveEnvChecker
from numpy.typing import NDArray

from fedhpo_gym.algorithms import Algorithm, get_algorithm
from fedhpo_gym.algorithms.base import copies
from fedhpo_gym.backends import Backend
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, MissingDependencyError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data import SOURCES, Dataset, Source, SparseRows, load_dataset
from fedhpo_gym.data.federation import Federation, make_federation
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Evaluation, Evaluations, Fidelity
from fedhpo_gym.objectives import (
    COST_NAMES,
    NO_PRIVACY,
    Objective,
    PrivacyLedger,
    Spending,
    get_objective,
)
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing.rollout import go_on, plain, rollout
from fedhpo_gym.testing.task import HARMLESS

if TYPE_CHECKING:
    from fedhpo_gym.fl.course import Course
    from fedhpo_gym.fl.engine import CourseBatch


SPENT = (
    Spending(NO_PRIVACY, lambda: dict.fromkeys(COST_NAMES, 3.0)),
    Spending(PrivacyLedger(1.5, 1e-5, (0.1, 0.4, 1.6)), lambda: dict.fromkeys(COST_NAMES, 70.0)),
)
NUM_CLIENTS = 5


class ObjectiveConformance:
    """Laws of a registered objective, by its `name` in `OBJECTIVES`."""

    name: ClassVar[str]

    @property
    def objective(self) -> Objective:
        return get_objective(self.name)

    def test_it_is_registered_under_its_own_name(self) -> None:
        assert self.objective.name == self.name or ":" in self.name
        assert self.objective.unit

    def test_values_of_ordinary_models_are_within_its_bounds(self) -> None:
        low, high = self.objective.bounds
        for value in self._values():
            assert type(value) is float
            assert low <= value <= high

    def test_it_is_a_pure_function(self) -> None:
        for seed in range(3):
            evaluation = some_evaluation(seed)
            before = plain([evaluation.best, evaluation.current, evaluation.num_samples])
            first = self._value(evaluation, SPENT[0])
            assert self._value(evaluation, SPENT[0]) == first
            assert plain([evaluation.best, evaluation.current, evaluation.num_samples]) == before

    def test_the_order_of_clients_does_not_matter(self) -> None:
        evaluation = some_evaluation(0)
        order = np.random.default_rng(1).permutation(NUM_CLIENTS)
        current = evaluation.current
        other = replace(
            evaluation,
            best=evaluation.best[:, order],
            current=None if current is None else current[:, order],
            num_samples=evaluation.num_samples[:, order],
        )
        values = [self._value(e, SPENT[0]) for e in (evaluation, other)]
        assert math.isclose(*values, rel_tol=1e-12)

    def test_many_at_once_are_bit_for_bit_each_alone(self) -> None:
        samples = some_evaluation(0).num_samples
        samples[:, 1] = samples[0, 3] = 0  # clients without data
        alone = [replace(some_evaluation(seed), num_samples=samples) for seed in range(9)]
        for failed in (2, 5):
            alone[failed] = diverged(alone[failed])
        together = Evaluations.stack(alone)
        for costs in SPENT:
            values = self.objective.compute(together, costs)
            assert values.dtype == np.float64
            assert values.tolist() == [self._value(evaluation, costs) for evaluation in alone]

    def test_a_course_that_diverged_is_worst_or_does_not_matter(self) -> None:
        for costs in SPENT:
            ordinary = [self._value(some_evaluation(s), costs) for s in range(5)]
            failed = [self._value(diverged(some_evaluation(s)), costs) for s in range(5)]
            if not self._reads_the_model(costs):  # what was spent was spent
                assert failed == ordinary
                continue
            assert set(failed) == {self.objective.worst}
            assert all(
                self.objective.unclipped_error(failed[0]) > self.objective.unclipped_error(value)
                for value in ordinary
            )

    def test_it_says_something(self) -> None:
        assert len(set(self._values())) > 1, "the same value for every model and all that is spent"

    def _reads_the_model(self, costs: Spending) -> bool:
        evaluation = some_evaluation(0)
        swapped = replace(evaluation, best=some_evaluation(1).best)
        return self._value(evaluation, costs) != self._value(swapped, costs)

    def _value(self, evaluation: Evaluation, costs: Spending) -> float:
        [value] = self.objective.compute(Evaluations.stack([evaluation]), costs).tolist()
        return float(value)

    def _values(self) -> list[float]:
        evaluations = [some_evaluation(seed) for seed in range(5)]
        return [self._value(e, costs) for e in evaluations for costs in SPENT]


def diverged(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation whose training diverged under its last seed."""
    last = np.arange(len(evaluation.seeds)) == len(evaluation.seeds) - 1
    return replace(evaluation, diverged=last)


def some_evaluation(seed: int) -> Evaluation:
    """Return a random evaluation of two seeds and five clients; losses are below 3 nats."""
    rng = np.random.default_rng(seed)
    shape = (2, NUM_CLIENTS, 3, 3)
    best = rng.uniform(0.0, 1.0, shape)
    best[..., 0] *= 3.0
    return Evaluation(
        best=best,
        current=rng.permutation(best, axis=1),
        num_samples=rng.integers(10, 200, shape[:3]),
        best_round=np.array([3, 9]),
        diverged=np.zeros(2, dtype=bool),
        seeds=(1, 2),
        fidelity=Fidelity(9, 1.0),
    )


SEEDS = (1, 2, 3)
DTYPES = {"float64", "float32", "uint8", "int16", "int32"}


class DatasetConformance:
    """Laws of a data set in `SOURCES`, by its `name`; they are skipped where its files are not."""

    name: ClassVar[str]

    @property
    def source(self) -> Source:
        return SOURCES[self.name]

    def load(self) -> Dataset:
        """Return the data set, or skip the law."""
        try:
            return load_dataset(self.name)
        except (MissingDataError, MissingDependencyError) as error:
            pytest.skip(str(error))

    def test_its_entry_says_where_it_comes_from(self) -> None:
        source = self.source
        assert source.name == self.name
        assert source.licence
        assert source.citation
        assert source.origin

    def test_it_has_the_documented_shape(self) -> None:
        dataset, source = self.load(), self.source
        assert len(dataset.features) == len(dataset.labels) > 0
        assert source.num_rows in (None, len(dataset.labels))
        assert dataset.num_classes == source.num_classes
        assert set(dataset.labels.tolist()) <= set(range(source.num_classes))
        assert str(dataset.features.dtype) in DTYPES
        assert str(dataset.labels.dtype) == "int64"
        assert all(np.isfinite(array).all() for array in dataset.arrays)

    def test_every_sample_has_its_user_and_split(self) -> None:
        dataset = self.load()
        if dataset.users is not None:
            assert str(dataset.users.dtype) == "int64"
            assert len(dataset.users) == len(dataset.labels)
            assert set(dataset.users.tolist()) == set(range(dataset.users.max() + 1))
        if dataset.fixed_split is not None:
            assert str(dataset.fixed_split.dtype) == "int8"
            assert len(dataset.fixed_split) == len(dataset.labels)
            assert set(dataset.fixed_split.tolist()) <= {-1, 0, 1, 2}

    def test_no_feature_is_the_label(self) -> None:
        dataset = self.load()
        if isinstance(dataset.features, SparseRows) or dataset.features.ndim > 2:
            pytest.skip("features are no columns")
        for column in dataset.features.T:
            assert not np.array_equal(column, dataset.labels)

    def test_nobody_can_write_into_it(self) -> None:
        assert not any(array.flags.writeable for array in self.load().arrays)

    def test_its_fingerprint_is_that_of_its_content(self) -> None:
        first = self.load()
        content = b"".join(array.tobytes() for array in first.arrays)
        assert first.fingerprint == hashlib.sha256(content).hexdigest()
        load_dataset.cache_clear()
        again = self.load()
        assert again is not first
        assert again.fingerprint == first.fingerprint

    @pytest.mark.parametrize("seed", SEEDS)
    def test_it_can_be_federated(self, seed: int) -> None:
        dataset = self.load()
        if dataset.users is not None:
            pytest.skip("its users are the clients")
        enough = max(min(5, len(dataset.labels) // 100), 1)  # for ten validation samples each
        federation = make_federation(dataset, seed, enough)
        rows = np.concatenate([split for client in federation.clients for split in client])
        assert sorted(rows.tolist()) == list(range(len(dataset.labels)))


SPEC = EnvSpec("FedHPO-Analytic-v0", "fedhpo_gym.testing.analytic:make_env")


class WrapperConformance:
    """Laws of a wrapper around a trial environment. Override `wrap`."""

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Return the environment inside the wrapper under test."""
        raise NotImplementedError

    def make(self) -> gym.Env[Any, Any]:
        """Return a fresh environment to wrap: by default one whose backend is a formula."""
        return gym.make(copy.deepcopy(SPEC), disable_env_checker=True)

    def test_gymnasium_accepts_it(self) -> None:
        env = self.wrap(self.make())
        with warnings.catch_warnings():
            for message in HARMLESS:
                warnings.filterwarnings("ignore", message)
            check_env(env, skip_render_check=True)

    def test_twins_agree(self) -> None:
        assert rollout(self.wrap(self.make())) == rollout(self.wrap(self.make()))

    def test_two_episodes_of_one_environment_agree(self) -> None:
        env = self.wrap(self.make())
        assert rollout(env, seed=3) == rollout(env, seed=3)

    def test_a_copy_made_in_mid_episode_goes_on_alike(self) -> None:
        env = self.wrap(self.make())
        rollout(env, steps=2)
        twin = copy.deepcopy(env)
        assert go_on(twin, 3) == go_on(env, 3)

    def test_its_spec_survives_json(self) -> None:
        env = self.wrap(self.make())
        assert env.spec is not None
        again = gym.make(EnvSpec.from_json(env.spec.to_json()), disable_env_checker=True)
        assert _layers(again) == _layers(env)
        assert rollout(again) == rollout(env)


def _layers(env: gym.Env[Any, Any]) -> list[type]:
    layers: list[type] = []
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, PassiveEnvChecker):  # a matter of how it was made
            layers.append(type(env))
        env = env.env
    return [*layers, type(env)]


ROUNDS = 4


class AlgorithmConformance:
    """Laws of an algorithm by its `name`, on data made for the purpose; they need torch.

    `settings` are hyperparameters of training, besides the highest values of the search space.
    `reference` is a function of a federation, a course and the number of rounds, which returns the
    (rounds, clients, splits) losses that a plain implementation has, such as one with
    `ReferenceLoop`; None says that there is none.
    """

    name: ClassVar[str]
    reference: ClassVar["Callable[[Federation, Course, int], Any] | None"] = None
    model: ClassVar[str] = "LR"
    settings: ClassVar[Mapping[str, float]] = MappingProxyType({})

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    @property
    def algorithm(self) -> Algorithm:
        return get_algorithm(self.name)

    def test_a_course_is_bitwise_the_same_alone_and_in_any_batch(self) -> None:
        courses = self._courses()
        together = self._train(courses)
        np.testing.assert_array_equal(self._train(courses[::-1]), together[::-1])
        for index, course in enumerate(courses):
            np.testing.assert_array_equal(self._train([course])[0], together[index])

    def test_advancing_in_parts_equals_advancing_at_once(self) -> None:
        expected = self._train(self._courses())
        batch = self._batch(self._courses())
        parts = [batch.advance(rounds).metrics for rounds in (1, ROUNDS - 1)]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), expected)

    def test_two_trainings_at_once_do_not_share_state(self) -> None:
        courses = self._courses()
        first, second = self._batch(courses), self._batch(courses)
        turns = [(first.advance(1).metrics, second.advance(1).metrics) for _ in range(ROUNDS)]
        expected = self._train(courses)
        for curves in zip(*turns, strict=True):
            np.testing.assert_array_equal(np.concatenate(curves, axis=1), expected)

    def test_it_equals_its_plain_reference(self) -> None:
        if (reference := type(self).reference) is None:
            pytest.skip(f"{self.name} has no plain `reference`")
        courses = self._courses()
        trained = self._batch(courses, horizon=ROUNDS).advance(ROUNDS).metrics[..., 0]
        for course, losses in zip(courses, trained, strict=True):
            expected = reference(self._federation(course.seed), course, ROUNDS)
            # Single precision, whose rounding some rounds of training amplify.
            np.testing.assert_allclose(losses, np.array(expected), rtol=2e-4, atol=2e-5)

    def test_what_a_hook_changes_in_its_arguments_counts_as_what_it_returns(self) -> None:
        courses = self._courses()
        batch = self._batch(courses, algorithm=_on_copies(self.algorithm))
        np.testing.assert_array_equal(batch.advance(ROUNDS).metrics, self._train(courses))

    def test_it_learns(self) -> None:
        losses = self._train(self._courses(), rounds=30).mean(axis=2)[:, :, 0, 0]
        assert (losses.min(axis=1) < losses[:, 0]).all()

    def _courses(self) -> list[Any]:
        from fedhpo_gym.fl.course import Course

        space = get_task("LR-CreditG").variant(algorithm=self.algorithm.name).space
        # The first two train on the same minibatches.
        rows = (
            (0.01, 16, 1, 1.0, 1),
            (0.02, 16, 1, 1.0, 1),
            (0.03, 16, 2, 0.4, 1),
            (0.02, 64, 2, 1.0, 2),
        )
        courses = []
        for rate, batch, epochs, share, seed in rows:
            values = {d.name: d.high for d in space.dimensions}
            values |= {"learning_rate": rate, "weight_decay": 0.001}
            values |= {"batch_size": batch, "step_size": epochs, **self.settings}
            courses.append(Course(values, share, seed))
        return courses

    def _federation(self, seed: int) -> Federation:
        return make_federation(self.data(), seed)

    def _batch(
        self, courses: list[Any], horizon: int = 1, algorithm: Algorithm | None = None
    ) -> "CourseBatch":
        from fedhpo_gym.fl.engine import CourseBatch
        from fedhpo_gym.fl.models import get_model

        federations = {seed: self._federation(seed) for seed in (1, 2)}
        model = get_model(self.model)
        used_algorithm = algorithm or self.algorithm
        return CourseBatch(federations, model, used_algorithm, courses, horizon=horizon)

    def data(self) -> Dataset:
        """Return the training data."""
        return made_table()

    def _train(self, courses: list[Any], rounds: int = ROUNDS) -> NDArray[np.float32]:
        return self._batch(courses).advance(rounds).metrics


MAPPINGS = "init_state", "broadcast", "reports", "upload", "server_update"
"""Hooks that take and return mappings of arrays."""


def _on_copies(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with hooks that take copies and return copies."""
    kind = type(algorithm)

    def copying(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Algorithm, *arguments: Any) -> Any:
            returned = hook(self, *(copies(a) if isinstance(a, dict) else a for a in arguments))
            return tuple(map(copies, returned)) if isinstance(returned, tuple) else copies(returned)

        return call

    hooks = {name: getattr(kind, name) for name in MAPPINGS}
    overrides = {n: copying(h) for n, h in hooks.items() if h is not getattr(Algorithm, n)}
    copier: Algorithm = type(kind.__name__, (kind,), overrides)()
    return copier


class ModelConformance(AlgorithmConformance):
    """Laws of a model of the engine by `model`, on a table; its `settings` shape it, if any do.

    Override `data` for a model of other samples.
    """

    name = "fedavg"


def made_table() -> Dataset:
    """Return 900 samples of two classes that are easy to tell apart."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=900)
    features = rng.normal(size=(900, 5)) + labels[:, None]
    return Dataset("made", features, labels, 2, "made")


class BackendConformance:
    """Laws of a backend that has results after `rounds`. Override `make`."""

    rounds: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 6)
    rate: ClassVar[float] = 1.0

    def make(self) -> Backend:
        """Return a new backend."""
        raise NotImplementedError

    def configurations(self, backend: Backend) -> list[dict[str, Value]]:
        rng = stream(0, "conformance")
        return [backend.space.sample(rng) for _ in range(2)]

    def test_an_answer_has_every_seed_client_split_and_metric(self) -> None:
        backend = self.make()
        for answer in self._curve(backend):
            shape = (len(backend.seeds), backend.task.num_clients, len(SPLITS), len(METRICS))
            assert answer.best.shape == shape
            assert answer.seeds == backend.seeds
            assert np.isfinite(answer.best).all()
            assert (answer.best >= 0).all()
            assert (answer.best[..., 1:] <= 1 + 1e-6).all()
            assert (answer.num_samples > 0).any(axis=1).all()

    def test_the_same_question_gets_the_same_answer(self) -> None:
        backend, other = self.make(), self.make()
        first = _plain(self._curve(backend))
        assert _plain(self._curve(backend)) == first
        assert _plain(self._curve(other)) == first
        assert backend.fingerprint == other.fingerprint

    def test_the_order_of_questions_does_not_matter(self) -> None:
        upwards = _plain(self._curve(self.make()))
        downwards = _plain(self._curve(self.make(), self.rounds[::-1]))
        assert downwards[::-1] == upwards

    def test_many_answers_are_bit_for_bit_each_alone(self) -> None:
        backend = self.make()
        configurations = self.configurations(backend)
        queries = [(c, self._fidelity(rounds)) for rounds in self.rounds for c in configurations]
        alone = [backend.evaluate(*query) for query in queries]
        assert _plain(list(backend.evaluate_many(queries))) == _plain(alone)

    def test_an_answer_belongs_to_who_asked(self) -> None:
        backend = self.make()
        (configuration, *_), fidelity = (
            self.configurations(backend),
            self._fidelity(self.rounds[-1]),
        )
        answer = backend.evaluate(configuration, fidelity)
        before = plain(answer.best)
        for array in (answer.best, answer.current):
            if array is not None and array.flags.writeable:
                array[:] = -1.0
        assert plain(backend.evaluate(configuration, fidelity).best) == before

    def test_the_best_so_far_never_gets_worse(self) -> None:
        losses = np.stack([_val_loss(answer) for answer in self._curve(self.make())])
        assert (np.diff(losses, axis=0) <= 1e-9 * np.abs(losses[:-1])).all()

    def test_the_best_round_has_happened(self) -> None:
        for answer in self._curve(self.make()):
            assert (answer.best_round >= 1).all()
            assert (answer.best_round <= answer.fidelity.round).all()

    def test_the_best_is_what_was_current_in_the_best_round(self) -> None:
        by_round = {answer.fidelity.round: answer for answer in self._curve(self.make())}
        for answer in by_round.values():
            for row, best_round in enumerate(answer.best_round.tolist()):
                then = by_round.get(best_round)
                if then is not None and then.current is not None:
                    np.testing.assert_array_equal(answer.best[row], then.current[row])

    def test_configurations_matter(self) -> None:
        backend = self.make()
        fidelity = self._fidelity(self.rounds[-1])
        first, second = (backend.evaluate(c, fidelity) for c in self.configurations(backend))
        assert plain(first.best) != plain(second.best)

    def test_a_copy_answers_alike(self) -> None:
        backend = self.make()
        twin = copy.deepcopy(backend)
        assert (twin.seed, twin.fingerprint) == (backend.seed, backend.fingerprint)
        assert _plain(self._curve(twin)) == _plain(self._curve(backend))

    def test_what_it_cannot_answer_it_refuses(self) -> None:
        backend = self.make()
        (configuration, *_), fidelity = self.configurations(backend), self._fidelity(self.rounds[0])
        name = backend.space.names[0]
        too_high = {**configuration, name: backend.space[name].high * 2 + 1}
        for wrong in (too_high, {**configuration, "nonsense": 1}, {}):
            with pytest.raises(InvalidArgumentError, match="configuration"):
                backend.evaluate(wrong, fidelity)
        for beyond in (0, int(backend.fidelity_space["round"].high) + 1):
            with pytest.raises(InvalidArgumentError, match=r"fidelity.*round"):
                backend.evaluate(configuration, self._fidelity(beyond))

    def _fidelity(self, rounds: int) -> Fidelity:
        return Fidelity(rounds, self.rate)

    def _curve(self, backend: Backend, rounds: tuple[int, ...] | None = None) -> list[Evaluation]:
        configuration = self.configurations(backend)[0]
        chosen_rounds = self.rounds if rounds is None else rounds
        return [backend.evaluate(configuration, self._fidelity(r)) for r in chosen_rounds]


def _plain(answers: list[Evaluation]) -> list[Any]:
    return [plain(asdict(answer)) for answer in answers]


def _val_loss(answer: Evaluation) -> NDArray[np.float64]:
    """Return the (S,) sample-weighted validation losses of the best rounds."""
    weights = answer.num_samples[:, :, SPLITS.index("val")]
    losses = answer.clients("val", "loss") * weights
    return np.asarray(losses.sum(axis=1) / weights.sum(axis=1))
