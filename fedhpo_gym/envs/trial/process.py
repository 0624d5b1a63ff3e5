"""The decision process of trial environments, for N episodes at once; one is the case N = 1."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery, StoredBackend
from fedhpo_gym.core.arrays import Bools, Floats, Indices
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.trial import evaluator
from fedhpo_gym.envs.trial.instances import STREAM, TrialInstance, statistics
from fedhpo_gym.envs.trial.ledger import Prices, TuningLedger
from fedhpo_gym.envs.trial.observation import TUNING, empty, is_counted
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.vector import EpisodeDraws, Layout, columns_of, named_stream
from fedhpo_gym.evaluation.multi_objective import is_better
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.objectives import PRIVACY_NAMES
from fedhpo_gym.space import Value

INFO_KEYS = ("configuration", "fidelity", "test", "diverged", "best_round")
"""What infos of vector environments say on request."""
PAST = ("elapsed_time", "trials", "incumbent_value")
"""Entries of an observation that depend on the past, besides the incumbent's action."""


@dataclass
class Episodes:
    """The state of N episodes: handles and numbers of last queries and incumbents; NaN is none."""

    trials: NDArray[np.int64]
    rounds: NDArray[np.float64]
    elapsed_s: NDArray[np.float64]
    handles: NDArray[Any]
    numbers: Floats
    best: NDArray[Any]
    best_trial: NDArray[np.int64]
    best_numbers: Floats

    @classmethod
    def start(cls, number: int, columns: int, handle_type: np.dtype[Any]) -> "Episodes":
        return cls(
            trials=np.zeros(number, np.int64),
            rounds=np.zeros(number),
            elapsed_s=np.zeros(number),
            handles=np.zeros(number, handle_type),
            numbers=np.zeros((number, columns)),
            best=np.zeros(number, handle_type),
            best_trial=np.zeros(number, np.int64),
            best_numbers=np.full((number, columns), np.nan),
        )

    def restart(self, where: Indices) -> None:
        self.trials[where] = self.rounds[where] = self.best_trial[where] = 0
        self.elapsed_s[where] = 0.0
        self.best_numbers[where] = np.nan

    def add(
        self,
        handles: NDArray[Any],
        numbers: Floats,
        ends_s: float | None = None,
        *,
        constrained: bool = True,
    ) -> Indices:
        """Add a trial to every episode, by default after its last; return where it is the best."""
        self.handles, self.numbers = handles, numbers
        self.trials += 1
        self.rounds += numbers[:, evaluator.ROUNDS]
        if ends_s is None:
            self.elapsed_s += numbers[:, evaluator.TIME_S]
        else:
            self.elapsed_s[:] = ends_s
        error, least = numbers[:, evaluator.ERROR], self.best_numbers[:, evaluator.ERROR]
        if constrained:
            best = self.best_numbers[:, evaluator.VIOLATION], least
            (better,) = is_better(numbers[:, evaluator.VIOLATION], error, best).nonzero()
        else:
            (better,) = (~(error >= least)).nonzero()  # any error is better than NaN, which is none
        if len(better):
            self.best[better] = handles[better]
            self.best_trial[better] = self.trials[better]
            self.best_numbers[better] = numbers[better]
        return better


class TrialProcess:
    """N episodes of trials of one setup; every step writes (N, size) observations into `frame`."""

    def __init__(self, setup: TrialSetup, layout: Layout, frame: NDArray[np.float32]) -> None:
        self.setup = setup
        self.frame = frame
        self._first = np.zeros(layout.size, dtype=np.float32)
        layout.fill(self._first, empty(setup.task, setup.observation_space))
        number = len(frame)
        self._prices = Prices(setup.task)
        self._scorer = evaluator.Scorer(setup, layout)
        trials = np.zeros(number, np.int64)
        freeze_thaw = setup.freeze_thaw
        self._draws = (
            evaluator.TrialStreams(trials, freeze_thaw=freeze_thaw) if setup.noise else None
        )
        self.source = evaluator.TrialSource(setup, layout, number, self._draws)
        self.scores = self._scorer.scores
        self.episodes = Episodes.start(number, self._scorer.width, self.source.handle_type)
        self.episodes.trials = trials  # the draws follow this array
        self._statistics = np.array([statistics(one) for one in setup.instances], np.float32)
        self._shown = layout.columns.get("instance", slice(0, 0))
        self._tuning = TuningLedger(number) if is_counted(setup.task) else None
        self._tuned = layout.columns.get(TUNING, slice(0, 0))
        self._incumbent = layout.columns["incumbent"]
        self._actions = np.zeros((number, len(setup.search_space)), dtype=np.float32)
        self._past = tuple(layout.columns[name].start for name in PAST)
        self._metric_names = setup.task.metric_names
        boxes: Any = [setup.observation_space[name] for name in PAST]
        self._most = [box.high.astype(np.float64) for box in boxes]
        self._least_value = boxes[-1].low.astype(np.float64)

    def draws(self) -> EpisodeDraws:
        start, noisy = partial(named_stream, STREAM), self.setup.noise is not None
        return EpisodeDraws(len(self.frame), len(self.setup.instances), start, noisy=noisy)

    def restart(
        self, where: Indices, instances: Sequence[int] = (), keys: NDArray[np.int64] | None = None
    ) -> None:
        """Forget all trials of some episodes and set their clocks to zero."""
        if self._draws is not None and keys is not None:
            self._draws.restart(where, keys)
        self.episodes.restart(where)
        self.source.restart(where)
        if self._tuning is not None:
            self._tuning.restart(where)
        if instances:
            self.source.instance[where] = instances
        self.frame[where] = self._first
        self._show_instances()

    def _show_instances(self) -> None:
        if len(self._statistics):
            self.frame[:, self._shown] = self._statistics[self.source.instance]

    def instance(self, index: int) -> int:
        return int(self.source.instance[index])

    def part(self, index: int) -> TrialSetup:
        return self.setup.parts[self.instance(index)]

    def describe(self, index: int) -> dict[str, Any]:
        """Return what `reset` says of an episode: where its numbers come from."""
        found = {**self.part(index).describe(), **self._named_instance(index)}
        if self.setup.noise is not None:
            found["noise"] = self.setup.noise.describe()
        return found

    def _named_instance(self, index: int) -> dict[str, Any]:
        if not self.setup.instances:
            return {}
        number = self.instance(index)
        found = asdict(TrialInstance.of(self.setup.instances[number]))
        return {"instance": {"index": number, **found}}

    def step(
        self, actions: NDArray[np.floating], active: Bools, ends_s: float | None = None
    ) -> Floats:
        """Evaluate one of (N, n) actions per episode; return (N, columns) what they brought."""
        state, frame = self.episodes, self.frame
        handles, numbers = self.source.answer(actions, active, frame)
        better = state.add(handles, numbers, ends_s, constrained=bool(self.setup.constraints))
        if len(better):
            own = self.setup.search_space.canonical(actions[better].astype(np.float32))
            self._actions[better] = np.clip(own, -1.0, 1.0)
        frame[:, self._incumbent] = self._actions
        if self._tuning is not None:
            for index in np.flatnonzero(active).tolist():
                rounds = int(numbers[index, evaluator.ROUNDS])
                query = self.source.query(handles[index])
                self._tuning.end(index, self.part(index).task, query, rounds)
            frame[:, self._tuned] = self._tuning.vectors
        self._show_instances()
        value = np.maximum(state.best_numbers[:, evaluator.SHOWN], self._least_value)
        past = zip(self._past, (state.elapsed_s, state.trials, value), self._most, strict=True)
        for column, number, most in past:
            frame[:, column] = np.minimum(number, most)
        return numbers

    def begin(self, index: int, query: CheckedQuery, rounds: int) -> None:
        """Count what a trial spends of privacy that begins now and ends at a later step."""
        if self._tuning is not None:
            self._tuning.begin(index, self.part(index).task, query, rounds)

    def all_trials(self, index: int) -> tuple[Floats, Floats]:
        """Return the (B,) values and violations of all trials that an episode can ask for."""
        part = self.part(index)
        if not isinstance(part.backend, StoredBackend) or not part.is_grid:
            raise InvalidArgumentError(
                "`reward` 'regret' needs a known optimum: a table of all that an action can ask "
                f"for, got backend {self.setup.backend.name!r}; use backend='tabular' where it has "
                "numbers, or reward='improvement', whose return ranks episodes alike"
            )
        truth = part.truth
        return truth.values[:, 0], truth.violations

    def values(self, numbers: Floats) -> Floats:
        """Return the (..., objectives) values in (..., columns) numbers."""
        return numbers[..., self._scorer.values]

    def named(self, numbers: Floats) -> dict[str, float]:
        """Return the values of the objectives in (columns,) numbers, by name."""
        found = numbers[self._scorer.values].tolist()
        return dict(zip(self.setup.objective_names, found, strict=True))

    def _truth(self, numbers: Floats, best: Floats) -> dict[str, Any]:
        """Return the true values of noisy (..., columns) trials and incumbents, by name."""
        if self.setup.noise is None:
            return {}
        found = {}
        for who, rows in (("objectives", numbers), ("incumbent", best)):
            columns = rows.T[self._scorer.truth]
            found[who] = dict(zip(self.setup.objective_names, columns, strict=True))
        return {"truth": found}

    def info(self, index: int) -> dict[str, Any]:
        """Return the `info` of an episode's last step as plain data."""
        state, numbers = self.episodes, self.episodes.numbers[index]
        noisy = self.setup.noise is not None
        configuration, fidelity = self.source.query(state.handles[index])
        rounds = int(numbers[evaluator.ROUNDS])
        cost = self._prices.charge(configuration, rounds, fidelity.client_sample_rate)
        best_configuration, best_fidelity = configuration, fidelity
        if state.best_trial[index] != state.trials[index]:
            best_configuration, best_fidelity = self.source.query(state.best[index])
        names, found = self._metric_names, numbers[self._scorer.details].tolist()
        return {
            "trial": int(state.trials[index]),
            "configuration": configuration,
            "fidelity": dict(vars(fidelity)),
            "objectives": self.named(numbers),
            "cost": dict(vars(cost)),
            "elapsed_s": float(state.elapsed_s[index]),
            "incumbent": {
                "trial": int(state.best_trial[index]),
                "configuration": dict(best_configuration),
                "fidelity": dict(vars(best_fidelity)),
                **self.named(state.best_numbers[index]),
                **_floats(self.setup.violation_info(self.values(state.best_numbers[index]))),
            },
            **_floats(self.setup.violation_info(self.values(numbers))),
            "test": {
                name: value
                for name, value in zip(names, found[: len(names)], strict=True)
                if value == value  # not NaN, which is no JSON
            },
            "best_round": [int(number) for number in found[len(names) + 1 :]],
            "diverged": bool(found[len(names)]),
            **({TUNING: self._tuning.info(index)} if self._tuning is not None else {}),
            **self._named_instance(index),
            **(_floats(self._truth(numbers, state.best_numbers[index])) if noisy else {}),
        }

    def infos(self, names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the infos of all episodes' last steps, (N,) arrays in nested dictionaries."""
        state = self.episodes
        values = self.values(state.numbers)
        info: dict[str, Any] = {
            "trial": state.trials,
            "elapsed_s": state.elapsed_s,
            "objectives": {
                name: values[:, column] for column, name in enumerate(self.setup.objective_names)
            },
            "cost": {
                "time_s": state.numbers[:, evaluator.TIME_S],
                "rounds": state.numbers[:, evaluator.ROUNDS].astype(np.int64),
            },
            "incumbent": {"trial": state.best_trial},
            **self.setup.violation_info(values),
            **self._truth(state.numbers, state.best_numbers),
        }
        if self._tuning is not None:
            info[TUNING] = dict(zip(PRIVACY_NAMES, self._tuning.vectors.T, strict=True))
        if self.setup.instances:
            known = [TrialInstance.of(one) for one in self.setup.instances]
            info["instance"] = {
                "index": self.source.instance,
                "alpha": np.array([one.alpha for one in known])[self.source.instance],
                "seed": np.array([one.seed for one in known])[self.source.instance],
            }
        if names:
            said = self._details()
            info.update({name: said[name] for name in names})
        return info

    def _details(self) -> dict[str, Any]:
        pairs = [self.source.query(handle) for handle in self.episodes.handles]
        details, names = self.episodes.numbers[:, self._scorer.details], self._metric_names
        return {
            "configuration": columns_of([configuration for configuration, _ in pairs]),
            "fidelity": columns_of([vars(fidelity) for _, fidelity in pairs]),
            "test": {name: details[:, column] for column, name in enumerate(names)},
            "diverged": details[:, len(names)] > 0,
            "best_round": details[:, len(names) + 1 :].astype(np.int64),
        }


def _floats(nested: dict[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries of numbers as plain data."""
    return {k: _floats(v) if isinstance(v, dict) else float(v) for k, v in nested.items()}


@dataclass(frozen=True, eq=False)
class Trial:
    """One function evaluation of an episode: 1 is the first, and seconds are since reset."""

    number: int
    configuration: Mapping[str, Value]
    fidelity: Fidelity
    action: NDArray[np.float32]
    values: Mapping[str, float]
    elapsed_s: float
    incumbent: int


Step = tuple[Any, NDArray[np.float32], NDArray[np.float64], float, int]
"""Handle of the query, (n,) action, (objectives,) values, seconds since reset, best trial."""
PACKED: Final = 1024
"""Steps that are packed into arrays together: those of an endless episode take some 100 bytes."""


class History:
    """The steps of an episode, in few bytes each."""

    def __init__(self) -> None:
        self._packed: list[tuple[NDArray[Any], ...]] = []
        self._last: list[Step] = []

    def __len__(self) -> int:
        return PACKED * len(self._packed) + len(self._last)

    def add(self, step: Step) -> None:
        self._last.append(step)
        if len(self._last) == PACKED:
            self._packed.append(tuple(map(np.array, zip(*self._last, strict=True))))
            self._last = []

    def since(self, number: int) -> Iterator[Step]:
        """Yield the steps after so many."""
        for index in range(number, len(self)):
            block, row = divmod(index, PACKED)
            if block == len(self._packed):
                yield self._last[row]
            else:
                handles, actions, values, times, best = self._packed[block]
                yield handles[row], actions[row], values[row], float(times[row]), int(best[row])
