"""The trainer of torch models, with its precisions, devices and kernels.

`engine` creates `TorchTrainers` for all models that numba does not compile. A `Group` calls its
trainers through the interface in `fl/trainer.py`. Parameters are tensors (k, rows, ..) by name,
with a row for each course or item, and k is 1 for most models. Torch runs on one thread, and sums
over clients have a fixed order, so that a course has the same bits alone and in any batch. That
also needs oneMKL to use one kernel for all shapes, which `fixed` checks.
"""

import ctypes
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.algorithms import Algorithm
from fedhpo_gym.core.arrays import Bools, Integers
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.processor import SETTING, kernel_branch
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl import course as courses
from fedhpo_gym.fl.course import MAX_NORM
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.local_training import LocalTraining, ModelEvaluator
from fedhpo_gym.fl.models.model import Model
from fedhpo_gym.fl.models.torch_model import (
    Parameters,
    TorchFederation,
    TorchModel,
    fit,
    sum_classes,
)
from fedhpo_gym.fl.participants import ClientBatch, ClientSampler, StreamNames, split_batch
from fedhpo_gym.fl.shared_matrices import (
    SharedMatrices,
    SharedMatrix,
    Workspace,
    sharing_courses,
    split_cohorts,
)
from fedhpo_gym.fl.trainer import LocalObjective, LocalResult, Trainer, Trainers


class TorchTrainer(Trainer):
    """Trains courses of one federation and model shape, which advance in lockstep."""

    model: TorchModel
    longest_first: ClassVar[bool] = True

    def __init__(
        self,
        prepared: TorchFederation,
        algorithm: Algorithm,
        device: torch.device,
        buffers: Workspace,
    ) -> None:
        self._prepared = prepared
        self._device = device
        self._buffers = buffers
        self._initial: Parameters = {
            name: torch.from_numpy(value).to(device)[:, None]
            for name, value in prepared.initial.items()
        }
        super().__init__(prepared.federation, prepared.model, algorithm, self._initial.keys())
        self._local = LocalTraining(prepared, device)
        self._averaging = Averaging(self.model.together, device)
        self._evaluators: dict[int | None, ModelEvaluator] = {}
        shareable = frozenset() if algorithm.reads_each_client else self.model.shareable
        self._shared_names = shareable - self.personal
        self._sharing: tuple[ClientSampler | None, Bools] = None, np.empty(0, dtype=np.bool_)

    def _index(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def array(self, values: Any) -> Tensor:
        if isinstance(values, Tensor):
            return values
        with np.errstate(over="ignore"):  # too large a rate becomes infinite: the course diverges
            return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(self._device)

    def power(self, base: Any, exponent: Any) -> Any:
        return base**exponent

    def norm(self, values: Parameters) -> Tensor:
        """Sum every item separately, in double precision."""
        like = next(iter(values.values()))
        total = like.new_zeros(like.shape[1], dtype=torch.float64)
        for value in values.values():
            for item in range(value.shape[1]):
                numbers = value[:, item].to(torch.float64).flatten()
                total[item] += (numbers * numbers).sum()
        return total.sqrt().to(like.dtype)

    def initial(self, rows: int) -> Parameters:
        return {name: v.repeat_interleave(rows, 1) for name, v in self._initial.items()}

    def zeros(self, rows: int) -> Parameters:
        return self._zeros(rows, self.personal)

    def _zeros(self, rows: int, without: Collection[str]) -> Parameters:
        return {
            name: value.new_zeros((value.shape[0], rows, *value.shape[2:]))
            for name, value in self._initial.items()
            if name not in without
        }

    def views(self, values: Parameters, without: Collection[str] = ()) -> Parameters:
        return {name: value for name, value in values.items() if name not in without}

    def kept_of(self, values: Parameters) -> Parameters:
        return {name: value for name, value in values.items() if name in self.kept}

    def kept_views(self, values: Parameters) -> Parameters:
        return values

    def with_kept(self, values: Parameters, personal: Parameters) -> Parameters:
        return {**values, **personal}

    def with_personal(self, average: Parameters, start: Parameters) -> Parameters:
        return {**start, **average}

    def replaced(self, values: Parameters, new: Parameters) -> Parameters:
        return {name: new.get(name, value) for name, value in values.items()}

    def take(self, values: Parameters, rows: Integers) -> Parameters:
        if not values:
            return {}
        index = self._index(rows)
        return {name: value.index_select(1, index) for name, value in values.items()}

    def put(self, values: Parameters, rows: Integers, new: Parameters) -> None:
        index = self._index(rows)
        for name, value in new.items():
            values[name].index_copy_(1, index, value)

    def concatenated(self, values: Sequence[Parameters]) -> Parameters:
        return {name: torch.cat([portion[name] for portion in values], 1) for name in values[0]}

    def where(self, live: Bools, new: Parameters, old: Parameters) -> Parameters:
        return {name: self.choose(live, value, old[name]) for name, value in new.items()}

    def choose(self, live: Bools, new: Tensor, old: Tensor) -> Tensor:
        return torch.where(fit(self._index(live), new), new, old)

    def finite(self, values: Parameters, more: Iterable[Tensor] = ()) -> Bools:
        """Look for non-finite numbers only where the largest or the smallest is one."""
        flags = [_finite(tensor) for tensor in (*values.values(), *more)]
        return np.asarray(np.stack(flags).all(axis=0))

    @property
    def row_bytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self._initial.values())

    def _shares(self, roster: ClientSampler) -> Bools:
        """Return (courses,): whether clients of a course share matrices."""
        if self._sharing[0] is not roster:
            shares = sharing_courses(self._trained_rows(roster), self._shared_names, self._initial)
            self._sharing = roster, shares
        return self._sharing[1]

    def _trained_rows(self, roster: ClientSampler) -> Integers:
        """Return (courses,) rows of the largest client in a round, padding included if together."""
        padded = roster.steps * roster.width[:, None]
        rows = padded if self.model.together else roster.epochs * roster.samples
        return np.asarray(rows.max(axis=1))

    def portions(self, items: ClientBatch, roster: ClientSampler) -> Sequence[ClientBatch]:
        """Split items; of those that share matrices, each portion is of one course."""
        shares = self._shares(roster)[items.course]
        separate, sharing = items.take(np.flatnonzero(~shares)), items.take(np.flatnonzero(shares))
        cohorts = split_cohorts(sharing, self._trained_rows(roster), self.model.together)
        separate = separate if shares.any() else items
        return [*split_batch(separate, self.row_bytes, courses.MAX_LOCAL_BYTES), *cohorts]

    def shared(
        self, items: ClientBatch, start: Parameters
    ) -> Mapping[str, SharedMatrix | SharedMatrices]:
        """Return matrices of clients that all start with the same (out, in) numbers."""
        roster, shares = self._sharing
        course = int(items.course[0])
        if roster is None or not shares[course]:
            return {}
        return {
            name: self._matrix(start[name][0, course], items, name)
            for name in sorted(self._shared_names)
        }

    def _matrix(
        self, start: Tensor, items: ClientBatch, name: str
    ) -> SharedMatrix | SharedMatrices:
        if self.model.together:
            rows = int((items.steps * items.width).max())
            return SharedMatrices(start, self.model.dtype, len(items), rows)
        ranks = (items.epochs * items.samples).tolist()
        return SharedMatrix(start, self.model.dtype, ranks, self._buffers, name)

    def receive(
        self, start: Parameters, items: ClientBatch, purpose: str, without: Collection[str] = ()
    ) -> Parameters:
        """Copy into memory that is reused for the same purpose."""
        course, sent = self._index(items.course), {}
        for name, value in start.items():
            if name not in without:
                shape = (value.shape[0], len(items), *value.shape[2:])
                out = self._buffers.take(f"{purpose} {name}", shape, value)
                sent[name] = torch.index_select(value, 1, course, out=out)
        return sent

    def run(
        self,
        local: Parameters,
        items: ClientBatch,
        settings: Hyperparameters,
        names: StreamNames,
        terms: LocalObjective,
    ) -> None:
        self._local.run(local, items, settings, names, terms)

    def updates(self, local: Parameters, received: Parameters) -> Parameters:
        return {
            name: value if name in self.untrained else value - received[name]
            for name, value in local.items()
        }

    def add(
        self,
        average: Parameters,
        reports: Parameters,
        sent: Parameters,
        all_sent: Parameters,
        result: LocalResult,
    ) -> None:
        items, shared = result.items, result.shared
        totals = {**{n: v for n, v in average.items() if n not in shared}, **reports}
        values = {**sent, **{name: all_sent[name] for name in reports}}
        if self.equally:
            statistics = {n: v for n, v in totals.items() if n in self.model.buffers}
            totals = {n: v for n, v in totals.items() if n not in self.model.buffers}
            self._averaging.add(totals, values, items.counted_equally)
            totals = statistics
        if totals:
            self._averaging.add(totals, values, items)
        for name, matrix in shared.items():
            matrix.add_to(average[name][0, items.course[0]], items.weight)

    def written_out(
        self, result: LocalResult, start: Parameters
    ) -> Iterator[tuple[ClientBatch, Parameters, Parameters]]:
        """Yield few clients at a time if their shared matrices must be written out."""
        items, received, local, shared = result
        if not shared:
            yield items, received or {}, local
            return
        at_once = max(courses.MAX_LOCAL_BYTES // self.row_bytes, 1)
        for first in range(0, len(items), at_once):
            index = np.arange(first, min(first + at_once, len(items)))
            before, after = self.take(received or {}, index), self.take(local, index)
            for name, matrix in shared.items():
                before[name] = start[name][:, items.course[index]]
                after[name] = matrix.copies(index.tolist())[None]
            yield items.take(index), before, after

    def no_updates(self, rows: int) -> Parameters:
        return self._zeros(rows, self.model.buffers)

    def add_updates(
        self, items: ClientBatch, received: Parameters, local: Parameters, mean: Parameters
    ) -> None:
        counted = items.counted_equally if self.equally else items
        where, weight = self._index(items.course), self._index(counted.weight)
        for name, total in mean.items():
            update = local[name] - received[name]
            total.index_add_(1, where, update.mul_(fit(weight, update)))

    def compare(
        self, items: ClientBatch, received: Parameters, local: Parameters, mean: Parameters
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        where, products = self._index(items.course), []
        for name, value in local.items():
            if name in mean:
                update, of_all = value - received[name], mean[name][:, where]
                pairs = (update, update), (update, of_all), (of_all, of_all)
                products.append(
                    [sum_classes(a * b).reshape(len(items), -1).sum(1) for a, b in pairs]
                )
        square, inner, mean_square = (
            sum(parts[1:], parts[0]) for parts in zip(*products, strict=True)
        )
        norm = torch.sqrt(square).nan_to_num(posinf=MAX_NORM).clamp(max=MAX_NORM)
        cosine = inner / (norm * torch.sqrt(mean_square))
        cosine = cosine.nan_to_num(posinf=0.0, neginf=0.0).clamp(-1.0, 1.0)
        return norm.cpu().numpy(), cosine.cpu().numpy()

    def measure(self, values: Parameters, client: int | None = None) -> NDArray[np.float32]:
        if client not in self._evaluators:
            clients = range(self.federation.num_clients) if client is None else [client]
            self._evaluators[client] = ModelEvaluator(self._prepared, clients, self._device)
        return self._evaluators[client](values)

    def measure_own(self, values: Parameters, client: Integers) -> NDArray[np.float32]:
        results: list[tuple[Integers, NDArray[np.float32]]] = []
        for client_index in np.unique(client).tolist():
            rows = np.flatnonzero(client == client_index)
            results.append((rows, self.measure(self.take(values, rows), client_index)[:, 0]))
        order, metrics = (np.concatenate(parts) for parts in zip(*results, strict=True))
        return metrics[np.argsort(order)]


def _finite(value: Tensor) -> Bools:
    """Return (items,): whether all values of an item in a (k, items, ..) tensor are finite."""
    own, items = value.shape[:2]
    low, high = torch.aminmax(value)
    if math.isfinite(float(low)) and math.isfinite(float(high)):
        return np.ones(items, dtype=np.bool_)
    return torch.isfinite(value).reshape(own, items, -1).all(2).all(0).cpu().numpy()


class TorchTrainers(Trainers):
    """Torch trains courses; those of one federation and model shape are one group."""

    def __init__(
        self, model: type[TorchModel], algorithm: Algorithm, device: str, precision: str
    ) -> None:
        require_precision(precision, model, device)
        warn_unless_fixed()
        self._model = model
        self._algorithm = algorithm
        self._precision = precision
        self._device = torch.device(device)
        self._buffers = Workspace()

    def trainer(
        self, federation: Federation, architecture: Iterable[tuple[str, float]]
    ) -> TorchTrainer:
        prepared = TorchFederation(
            federation, self._model, architecture, self._device, self._precision
        )
        return TorchTrainer(prepared, self._algorithm, self._device, self._buffers)

    def for_each(self, groups: Sequence[Any], work: Callable[[Any], None]) -> None:
        with single_torch_thread():
            for group in groups:
                work(group)


@contextmanager
def single_torch_thread() -> Iterator[None]:
    """Run torch on one thread: small products gain nothing from more, and rounding stays fixed.

    On a GPU, TF32 is off and cuDNN is deterministic.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    try:
        with torch.no_grad(), exact:
            yield
    finally:
        torch.set_num_threads(before)


MIN_ALONE = 2**16
"""Size of a parameter above which items are added one by one, without gathering them first."""
PIECE = 2**16
"""Numbers that are weighted and added together, so that they stay in the cache."""


class Averaging:
    """Adds clients to the averages of their courses, always in the order of the clients."""

    def __init__(self, together: bool, device: torch.device) -> None:
        """Average on a device; `together` as in `Model`: one sum per course and parameter."""
        self._together = together
        self._device = device
        self._known: WeakKeyDictionary[ClientBatch, list[Tensor]] = WeakKeyDictionary()

    def add(self, average: Parameters, local: Parameters, items: ClientBatch) -> None:
        """Add weighted (k, items, ..) parameters to (k, courses, ..) averages."""
        if self._together:
            _add_together(average, local, items)
            return
        index, course, weight = self._order(items)
        if any(value.numel() // value.shape[1] >= MIN_ALONE for value in average.values()):
            for item, course_index, item_weight in zip(
                index.tolist(), course.tolist(), weight, strict=True
            ):
                for name, value in average.items():
                    _add_weighted(value[:, course_index], local[name][:, item], item_weight)
            return
        for name, value in average.items():
            selected = local[name].index_select(1, index)
            value.index_add_(1, course, selected.mul_(fit(weight, selected)))

    def _order(self, items: ClientBatch) -> list[Tensor]:
        """Return (items,) arrays in the order of clients: index, course and weight."""
        if items not in self._known:
            index = np.argsort(items.client, kind="stable")
            order = index, items.course[index], items.weight[index]
            self._known[items] = [torch.from_numpy(x).to(self._device) for x in order]
        return self._known[items]


def _add_weighted(total: Tensor, addend: Tensor, weight: Tensor) -> None:
    """Add weight x addend to a total (k, ..), in pieces that stay in the cache."""
    own = len(total)
    pieces = (
        torch.split(tensor, PIECE, 1) for tensor in (total.view(own, -1), addend.reshape(own, -1))
    )
    for into, piece in zip(*pieces, strict=True):
        into.add_(piece * weight)


def _add_together(average: Parameters, local: Parameters, items: ClientBatch) -> None:
    """Add weighted parameters to averages by one sum per course and parameter."""
    for course in np.unique(items.course).tolist():
        rows = np.flatnonzero(items.course == course)
        for name, value in average.items():
            weight = torch.from_numpy(items.weight[rows]).to(value.device)
            selected = local[name].index_select(1, torch.from_numpy(rows).to(value.device))
            value[:, course] += selected.mul_(fit(weight, selected)).sum(1)


EMULATION = "FEDHPO_GYM_EMULATE_BFLOAT16"
"""Environment variable: 1 allows bfloat16 where the processor lacks instructions for it."""


def require_precision(precision: str, model: type[Model], device: str = "cpu") -> None:
    """Check that a model can be trained in a precision here, and not slower than in float32."""
    model.refuse_precision(precision)
    if precision == "float32" or torch.device(device).type != "cpu" or has_bfloat16():
        return
    if os.environ.get(EMULATION) != "1":
        raise InvalidArgumentError(
            f"`precision` is {precision!r}, and this processor has no instructions for it: it "
            "would be slower than 'float32' here. Use a processor with avx512_bf16 or amx_bf16, "
            f"or set the environment variable {EMULATION} to 1."
        )


def has_bfloat16() -> bool:
    """Return whether this CPU has instructions for products of bfloat16 numbers."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def device_name(device: str) -> str:
    """Return the name of a torch device; for CUDA, the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


_OFF = 1
"""Return value of oneMKL if no branch of its kernels is chosen."""
_ALL = -1
_ASKED = ("mkl_serv_cbwr_get", "MKL_CBWR_Get")
"""Names of that function: inside torch, and in a separate library."""


def fixed() -> bool | None:
    """Return whether the kernels of oneMKL are fixed in this process; None where it has none.

    The function calls oneMKL, because the environment variable counts only until the first product.
    """
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return None
    folder = Path(torch.__file__).parent / "lib"
    for path in folder.glob("*torch_cpu.*"):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in _ASKED:
            if (ask := getattr(library, name, None)) is not None:
                ask.restype = ctypes.c_int
                return int(ask(ctypes.c_int(_ALL))) != _OFF
    return None


@cache
def warn_unless_fixed() -> None:
    """Warn once in a process if torch multiplied matrices before this package was imported."""
    ours = os.environ.get(SETTING)
    if ours is not None and ours == kernel_branch() and fixed() is False:
        warnings.warn(
            f"torch multiplied matrices before fedhpo_gym was imported, so {SETTING}={ours} came "
            "too late, and on some processors the numbers of a course depend on the courses "
            "beside it. Import fedhpo_gym first, or set that environment variable before Python "
            "starts; `fedhpo-gym check --engine` checks this.",
            RuntimeWarning,
            stacklevel=3,
        )
