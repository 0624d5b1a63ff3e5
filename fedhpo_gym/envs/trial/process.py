"""The decision process of trial environments, for N episodes at once.

`TrialEnv` runs it with N = 1 and `TrialVectorEnv` with any N, so both return the same bits. The
state of all episodes is in `TrialEpisodes`. A step passes the actions to a `TrialSource`, adds the
results to the state, and writes the observations into a frame (N, size) that the environment owns.
Wrappers for budgets and rewards are not part of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery, StoredBackend
from fedhpo_gym.core.arrays import Bools, Floats, Integers, Singles
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.trial.evaluator import Results, TrialSource, TrialStreams, without_fields
from fedhpo_gym.envs.trial.instances import STREAM, TrialInstance, statistics
from fedhpo_gym.envs.trial.ledger import Prices, TuningLedger
from fedhpo_gym.envs.trial.observation import TUNING, empty, is_counted
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.vector import EpisodeDraws, ObservationLayout, masked_columns, named_stream
from fedhpo_gym.evaluation.multi_objective import is_better
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.objectives import PRIVACY_NAMES
from fedhpo_gym.space import Value

INFO_KEYS = ("configuration", "fidelity", "test", "diverged", "best_round")
"""Keys of infos that vector environments add on request."""
PAST = ("elapsed_time", "trials", "incumbent_value")
"""Entries of an observation that depend on earlier trials, besides the incumbent's action."""


@dataclass
class TrialEpisodes:
    """The state of N episodes; all arrays are (N,).

    Attributes:
        trials: trials since reset; `rounds` and `elapsed_s` were charged for them.
        handles: handles of the last queries, which brought `results`.
        best: handles of the incumbents, found in `best_trial`, with `best_results`.
    """

    trials: NDArray[np.int64]
    rounds: NDArray[np.float64]
    elapsed_s: NDArray[np.float64]
    handles: NDArray[Any]
    results: Results
    best: NDArray[Any]
    best_trial: NDArray[np.int64]
    best_results: Results

    @classmethod
    def start(
        cls, num_envs: int, result_type: np.dtype[np.void], handle_type: np.dtype[Any]
    ) -> "TrialEpisodes":
        episodes = cls(
            trials=np.zeros(num_envs, np.int64),
            rounds=np.zeros(num_envs),
            elapsed_s=np.zeros(num_envs),
            handles=np.zeros(num_envs, handle_type),
            results=np.zeros(num_envs, result_type),
            best=np.zeros(num_envs, handle_type),
            best_trial=np.zeros(num_envs, np.int64),
            best_results=np.zeros(num_envs, result_type),
        )
        episodes.restart(np.arange(num_envs))
        return episodes

    def restart(self, where: Integers) -> None:
        self.trials[where] = self.rounds[where] = self.best_trial[where] = 0
        self.elapsed_s[where] = 0.0
        for name in ("error", "shown_error", "violation", "values", "noise_free"):
            self.best_results[name][where] = np.nan  # there is no incumbent yet

    def add(
        self,
        handles: NDArray[Any],
        results: Results,
        ends_s: float | None = None,
        *,
        constrained: bool = True,
    ) -> Integers:
        """Add a trial to each episode, and return the indices of those with a new incumbent.

        The trial begins when the last one ended, unless `ends_s` sets the time at which it ends.
        """
        self.handles, self.results = handles, results
        self.trials += 1
        self.rounds += results["rounds"]
        if ends_s is None:
            self.elapsed_s += results["time_s"]
        else:
            self.elapsed_s[:] = ends_s
        error, least = results["error"], self.best_results["error"]
        if constrained:
            best = self.best_results["violation"], least
            (better,) = is_better(results["violation"], error, best).nonzero()
        else:
            (better,) = (~(error >= least)).nonzero()  # any error is better than NaN, no incumbent
        if len(better):
            self.best[better] = handles[better]
            self.best_trial[better] = self.trials[better]
            without_fields(self.best_results)[better] = without_fields(results)[better]
        return better


class TrialProcess:
    """N episodes of trials of one setup; every step writes (N, size) observations into `frame`."""

    def __init__(self, setup: TrialSetup, layout: ObservationLayout, frame: Singles) -> None:
        self.setup = setup
        self.frame = frame
        self._empty_row = np.zeros(layout.size, dtype=np.float32)
        layout.fill(self._empty_row, empty(setup.task, setup.observation_space))
        num_envs = len(frame)
        self._prices = Prices(setup.task)
        trials = np.zeros(num_envs, np.int64)
        freeze_thaw = setup.freeze_thaw
        self._draws = TrialStreams(trials, freeze_thaw=freeze_thaw) if setup.noise else None
        self.source = TrialSource(setup, layout, num_envs, self._draws)
        self.episodes = TrialEpisodes.start(
            num_envs, self.source.result_type, self.source.handle_type
        )
        self.episodes.trials = trials  # the draws read this array
        self._statistics = np.array(
            [statistics(backend) for backend in setup.instances], np.float32
        )
        self._instance_columns = layout.columns.get("instance", slice(0, 0))
        self._tuning = TuningLedger(num_envs) if is_counted(setup.task) else None
        self._tuning_columns = layout.columns.get(TUNING, slice(0, 0))
        self._incumbent_columns = layout.columns["incumbent"]
        self._incumbent_actions: Singles = np.zeros(
            (num_envs, len(setup.search_space)), dtype=np.float32
        )
        self._past_columns = tuple(layout.columns[name].start for name in PAST)
        boxes: Any = [setup.observation_space[name] for name in PAST]
        self._past_highs = [box.high.astype(np.float64) for box in boxes]
        self._least_value = boxes[-1].low.astype(np.float64)

    def draws(self) -> EpisodeDraws:
        start, noisy = partial(named_stream, STREAM), self.setup.noise is not None
        return EpisodeDraws(len(self.frame), len(self.setup.instances), start, noisy=noisy)

    def restart(
        self, where: Integers, instances: Sequence[int] = (), keys: NDArray[np.int64] | None = None
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
        self.frame[where] = self._empty_row
        self._show_instances()

    def _show_instances(self) -> None:
        if len(self._statistics):
            self.frame[:, self._instance_columns] = self._statistics[self.source.instance]

    def instance(self, index: int) -> int:
        return int(self.source.instance[index])

    def part(self, index: int) -> TrialSetup:
        return self.setup.parts[self.instance(index)]

    def describe(self, index: int) -> dict[str, Any]:
        """Return the `info` of a reset: where the numbers of the episode come from."""
        info = {**self.part(index).describe(), **self._named_instance(index)}
        if self.setup.noise is not None:
            info["noise"] = self.setup.noise.describe()
        return info

    def _named_instance(self, index: int) -> dict[str, Any]:
        if not self.setup.instances:
            return {}
        instance_index = self.instance(index)
        instance = TrialInstance.of(self.setup.instances[instance_index])
        return {"instance": {"index": instance_index, **asdict(instance)}}

    def step(
        self, actions: NDArray[np.floating], active: Bools, ends_s: float | None = None
    ) -> Results:
        """Evaluate one of (N, n) actions per episode, and return the (N,) results."""
        state, frame = self.episodes, self.frame
        handles, results = self.source.answer(actions, active, frame)
        better = state.add(handles, results, ends_s, constrained=bool(self.setup.constraints))
        if len(better):
            canonical = self.setup.search_space.canonical(actions[better].astype(np.float32))
            self._incumbent_actions[better] = np.clip(canonical, -1.0, 1.0)
        frame[:, self._incumbent_columns] = self._incumbent_actions
        if self._tuning is not None:
            for index in np.flatnonzero(active).tolist():
                rounds = int(results["rounds"][index])
                query = self.source.query(handles[index])
                self._tuning.end(index, self.part(index).task, query, rounds)
            frame[:, self._tuning_columns] = self._tuning.vectors
        self._show_instances()
        value = np.maximum(state.best_results["shown_error"], self._least_value)
        past = (state.elapsed_s, state.trials, value)
        for column, entry, high in zip(self._past_columns, past, self._past_highs, strict=True):
            frame[:, column] = np.minimum(entry, high)
        return results

    def begin(self, index: int, query: CheckedQuery, rounds: int) -> None:
        """Count what a trial spends of privacy that begins now and ends at a later step."""
        if self._tuning is not None:
            self._tuning.begin(index, self.part(index).task, query, rounds)

    def all_trials(self, index: int) -> tuple[Floats, Floats]:
        """Return the (B,) values and violations of all trials that an episode can ask for."""
        setup = self.part(index)
        if not isinstance(setup.backend, StoredBackend) or not setup.is_grid:
            raise InvalidArgumentError(
                "`reward` 'regret' needs a known optimum: a table of all that an action can ask "
                f"for, got backend {self.setup.backend.name!r}; use backend='tabular' where it has "
                "numbers, or reward='improvement', whose return ranks episodes alike"
            )
        from fedhpo_gym.envs.trial.truth import truth_of  # few environments need it

        truth = truth_of(setup)
        return truth.values[:, 0], truth.violations

    def _named(self, values: Floats) -> dict[str, Any]:
        """Return (..., objectives) values by the name of the objective."""
        return dict(zip(self.setup.objective_names, values.T, strict=True))

    def _noise_free(self, results: Results, best_results: Results) -> dict[str, Any]:
        """Return the values of noisy trials and incumbents without noise, by name."""
        if self.setup.noise is None:
            return {}
        values = {"objectives": results, "incumbent": best_results}
        return {"truth": {key: self._named(v["noise_free"]) for key, v in values.items()}}

    def info(self, index: int) -> dict[str, Any]:
        """Return the `info` of an episode's last step as plain data."""
        state = self.episodes
        result, best_result = state.results[index], state.best_results[index]
        configuration, fidelity = self.source.query(state.handles[index])
        rounds = int(result["rounds"])
        cost = self._prices.charge(configuration, rounds, fidelity.client_sample_rate)
        best_configuration, best_fidelity = configuration, fidelity
        if state.best_trial[index] != state.trials[index]:
            best_configuration, best_fidelity = self.source.query(state.best[index])
        test = dict(zip(self.setup.task.metric_names, result["test"].tolist(), strict=True))
        return {
            "trial": int(state.trials[index]),
            "configuration": configuration,
            "fidelity": dict(vars(fidelity)),
            "objectives": _floats(self._named(result["values"])),
            "cost": dict(vars(cost)),
            "elapsed_s": float(state.elapsed_s[index]),
            "incumbent": {
                "trial": int(state.best_trial[index]),
                "configuration": dict(best_configuration),
                "fidelity": dict(vars(best_fidelity)),
                **_floats(self._named(best_result["values"])),
                **_floats(self.setup.violation_info(best_result["values"])),
            },
            **_floats(self.setup.violation_info(result["values"])),
            # JSON has no NaN, which stands for a metric that was not measured.
            "test": {name: value for name, value in test.items() if not np.isnan(value)},
            "best_round": result["best_round"].tolist(),
            "diverged": bool(result["diverged"]),
            **({TUNING: self._tuning.info(index)} if self._tuning is not None else {}),
            **self._named_instance(index),
            **_floats(self._noise_free(result, best_result)),
        }

    def infos(self, names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the infos of all episodes' last steps, (N,) arrays in nested dictionaries."""
        state, results = self.episodes, self.episodes.results
        info: dict[str, Any] = {
            "trial": state.trials,
            "elapsed_s": state.elapsed_s,
            "objectives": self._named(results["values"]),
            "cost": {"time_s": results["time_s"], "rounds": results["rounds"]},
            "incumbent": {"trial": state.best_trial},
            **self.setup.violation_info(results["values"]),
            **self._noise_free(results, state.best_results),
        }
        if self._tuning is not None:
            info[TUNING] = dict(zip(PRIVACY_NAMES, self._tuning.vectors.T, strict=True))
        if self.setup.instances:
            instances = [TrialInstance.of(instance) for instance in self.setup.instances]
            info["instance"] = {
                "index": self.source.instance,
                "alpha": np.array([instance.alpha for instance in instances])[self.source.instance],
                "seed": np.array([instance.seed for instance in instances])[self.source.instance],
            }
        if names:
            details = self._details()
            info.update({name: details[name] for name in names})
        return info

    def _details(self) -> dict[str, Any]:
        queries = [self.source.query(handle) for handle in self.episodes.handles]
        results, metrics = self.episodes.results, self.setup.task.metric_names
        return {
            "configuration": masked_columns([configuration for configuration, _ in queries]),
            "fidelity": masked_columns([vars(fidelity) for _, fidelity in queries]),
            "test": dict(zip(metrics, results["test"].T, strict=True)),
            "diverged": results["diverged"],
            "best_round": results["best_round"],
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

    def since(self, start: int) -> Iterator[Step]:
        """Yield the steps after so many."""
        for index in range(start, len(self)):
            block, row = divmod(index, PACKED)
            if block == len(self._packed):
                yield self._last[row]
            else:
                handles, actions, values, times, best = self._packed[block]
                yield handles[row], actions[row], values[row], float(times[row]), int(best[row])
