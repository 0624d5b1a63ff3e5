"""Any `torch.nn.Module` as a model of the engine, generic and slower than written-out models.

`fedhpo_gym.register_model` calls `module_model` to make a class of a user's function, and
`small_cnn` is built on it. The module is created once and called with the parameters of one item at
a time. Its random numbers, such as dropout, are seeded by the streams of the engine, because a
course must have the same bits in any batch.
"""

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.records import Features, SparseRows
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.fl.models.torch_model import Minibatch, Parameters, TorchModel

Build = Callable[..., nn.Module]
NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm)
PIXEL = 255.0


class ModuleModel(TorchModel):
    """A module whose rows are samples and whose outputs are logits.

    Each item takes its step separately, on the rows of its minibatch without padding, so that its
    bits do not depend on other items. Parameters that need a gradient are trained, and buffers of
    real numbers, such as running statistics, are averaged with them. Frozen parameters and integer
    buffers keep the values of `build`. Random operations, such as dropout, are seeded by the
    streams of the engine in a step, and with a constant in an evaluation. Parameters have shape
    (1, items, ...).
    """

    build: ClassVar[Build]
    rows_at_once: ClassVar[int | None] = 1024

    def __init__(
        self, shape: Sequence[int], classes: int, device: torch.device, **own: Any
    ) -> None:
        """Make the module for samples of a shape."""
        self.device, self._classes = device, classes
        self._make = partial(type(self).build, tuple(shape), classes, **own)
        self._module = _drawn(self._make, 0).to(device)
        tensors = {**dict(self._module.named_buffers()), **dict(self._module.named_parameters())}
        self._trained = tuple(n for n, p in self._module.named_parameters() if p.requires_grad)
        real = [n for n, tensor in self._module.named_buffers() if tensor.is_floating_point()]
        self.buffers = frozenset(real)
        self._names = (*self._trained, *real)
        if wide := [name for name in self._names if tensors[name].dtype != torch.float32]:
            raise InvalidArgumentError(
                f"`build` must give parameters of float32, got {tensors[wide[0]].dtype} in "
                f"{wide[0]!r}"
            )
        self._counters = {
            n: tensor
            for n, tensor in self._module.named_buffers()
            if not tensor.is_floating_point()
        }
        modules = dict(self._module.named_modules())
        self.norms = frozenset(
            name for name in self._names if isinstance(modules[name.rpartition(".")[0]], NORMS)
        )
        self._least = 2 if any(isinstance(tensor, _BatchNorm) for tensor in modules.values()) else 1
        self.num_parameters = sum(tensors[name].numel() for name in self._trained)

    @classmethod
    def for_federation(
        cls, federation: Federation, device: torch.device, **shape: Any
    ) -> ModuleModel:
        sample = as_inputs(federation.features[np.arange(2)])
        sizes = {n: int(v) if v == int(v) else v for n, v in shape.items() if n in cls.architecture}
        model = cls(sample.shape[1:], federation.num_classes, device, **sizes)
        parameters = {
            n: torch.from_numpy(v)[None] for n, v in model.init(np.random.default_rng(0)).items()
        }
        on_device = {n: v.transpose(0, 1).to(device) for n, v in parameters.items()}
        leaves = {n: on_device[n][0, 0].clone().requires_grad_() for n in model._trained}
        x = sample.to(device)
        try:
            with torch.enable_grad(), _seeded(0):
                output = model._forward(on_device, 0, x, training=False, leaves=leaves)
                torch.autograd.grad(output.sum(), [*leaves.values()], allow_unused=True)
        except InvalidArgumentError:
            raise
        except Exception as error:
            raise InvalidArgumentError(
                f"`build` must give a module that takes {tuple(x.shape)} samples and that torch "
                f"can differentiate, but it raised {error!r:.300}"
            ) from error
        return model

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw parameters as the module itself does, with a seed of the generator."""
        module = _drawn(self._make, int(rng.integers(2**63 - 1)))
        tensors = {**dict(module.named_buffers()), **dict(module.named_parameters())}
        return {name: tensors[name].detach().numpy()[None].copy() for name in self._names}

    def inputs(self, features: Features) -> Tensor:
        return as_inputs(features).to(self.device)

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        decay, uniforms = batch.decay.tolist(), batch.uniform((1,))[:, 0].tolist()
        for item, size in enumerate(batch.sizes.tolist()):
            if size < self._least:
                continue
            labels = batch.targets[:, item, :size].argmax(0)
            rates = batch.rates[item, :size]
            with torch.enable_grad(), _seeded(int(uniforms[item] * 2**31)):
                leaves = {
                    name: parameters[name][0, item].detach().requires_grad_()
                    for name in self._trained
                }
                x = batch.x[item, :size]
                logits = self._forward(parameters, item, x, training=True, leaves=leaves)
                loss = (functional.cross_entropy(logits, labels, reduction="none") * rates).sum()
                gradients = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
            for name, gradient in zip(leaves, gradients, strict=True):
                weight = parameters[name][0, item].mul_(decay[item])
                if gradient is not None:
                    weight.sub_(gradient)

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        items = next(iter(parameters.values())).shape[1]
        out = []
        for item in range(items):
            with _seeded(0):  # random modules evaluate equally each time
                out.append(self._forward(parameters, item, x, training=False))
        return torch.stack(out).permute(2, 0, 1).contiguous()

    def _forward(
        self,
        parameters: Parameters,
        item: int,
        x: Tensor,
        *,
        training: bool,
        leaves: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the (rows, classes) logits of the module with the parameters of an item."""
        weights = {name: parameters[name][0, item] for name in self._names}
        counters = {name: counter.clone() for name, counter in self._counters.items()}
        module = self._module.train(training)
        # A copy, because a module may change its input in place and other items read it.
        output = functional_call(module, {**weights, **counters, **(leaves or {})}, (x.clone(),))
        if not isinstance(output, Tensor) or output.shape != (len(x), self._classes):
            received = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InvalidArgumentError(
                f"`build` must give a module that returns (rows, {self._classes}) logits, got "
                f"{received} of {len(x)} rows"
            )
        if output.dtype != torch.float32:
            raise InvalidArgumentError(
                f"`build` must give a module that returns logits of float32, got {output.dtype}"
            )
        return output


class _ModuleClass(ABCMeta):
    """The type of classes made at run time; they are pickled by name, as no module has them."""


def _by_name(kind: Any) -> tuple[Any, ...]:
    return get_model, (kind.__name__,)


copyreg.pickle(_ModuleClass, _by_name)


def module_model(name: str, build: Build, architecture: Sequence[str] = ()) -> type[ModuleModel]:
    """Return the model class of a function that builds modules with `architecture` arguments."""
    attributes = {"build": staticmethod(build), "architecture": tuple(architecture)}
    kind: Any = _ModuleClass(name, (ModuleModel,), attributes)
    return cast(type[ModuleModel], kind)


def as_inputs(features: Features) -> Tensor:
    """Return (n, ...) samples as inputs of modules.

    Real numbers are float32; pixels, in [0, 1], have their channels first; tokens are int64.
    """
    if isinstance(features, SparseRows):
        raise InvalidArgumentError(
            "the data of a module must be dense, got sparse rows; use a model of this package"
        )
    if features.dtype == np.uint8:
        pixels = torch.from_numpy(features.astype(np.float32) / PIXEL)
        return pixels[:, None] if pixels.ndim == 3 else pixels.movedim(-1, 1).contiguous()
    kind: type = np.float32 if features.dtype.kind == "f" else np.int64
    return torch.from_numpy(np.ascontiguousarray(features, dtype=kind))


def count_parameters(build: Build, shape: Sequence[int], classes: int, **own: Any) -> int:
    """Return the number of trained parameters of a module."""
    module = _drawn(partial(build, tuple(shape), classes, **own), 0)
    total = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    if not total:
        raise InvalidArgumentError("`build` must give a module with parameters to train, got none")
    return total


def _drawn(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    try:
        with _seeded(seed):
            module = make()
    except Exception as error:
        raise InvalidArgumentError(f"`build` must make a module, but raised {error!r}") from error
    if not isinstance(module, nn.Module):
        raise InvalidArgumentError(f"`build` must return a torch.nn.Module, got {module!r:.80}")
    if lazy := [
        name for name, parameter in module.named_parameters() if nn.parameter.is_lazy(parameter)
    ]:
        raise InvalidArgumentError(
            f"`build` must set the shape of all parameters, got the lazy {lazy[0]!r}"
        )
    return module


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators in the body, and restore their states after it."""
    with torch.random.fork_rng():
        # `torch.manual_seed` would store a traceback for every device that is not initialised.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        yield
