"""Finding a model's activations and collecting their statistics, in one guarded forward per batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from learnscope.model.features.activation_functions import Activation, function_name, is_activation, of_call, of_module
from learnscope.model.features.activation_sites import (
    Site,
    first_tensor,
    is_measurable,
    layer_modules,
    layer_of,
    why_not,
)
from learnscope.model.features.pooling import is_encoder_decoder
from learnscope.model.features.units import Padding, UnitDimensions, pieces
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.names import ROOT, clean_path
from learnscope.task import Task
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.features.distribution import Distribution


@dataclass(slots=True)
class ActivationStatistics:
    """Of one pass over some batches."""

    sites: list[Site]
    outputs: dict[str, Distribution | None]
    """Outputs of each layer that is a module; None if it did not run or returns no floating-point tensor."""
    not_measured: list[str]
    """Activations that could not be measured, and why."""


@torch.no_grad()
def collect_activations(model: nn.Module, task: Task, batches: Sequence[Any]) -> ActivationStatistics:
    """Run `model` in eval mode over `batches`, collect statistics of its activations, and leave it as it was.

    This sees activation modules of torch and transformers, and calls of torch's activation functions in the forward
    of any module (not inside an activation module). It does not see activations that are written with other
    operations (`x.clamp(min=0)`), fused into another kernel (inside `nn.LSTM`), or scripted.
    """
    device = model_device(model)
    recorder = _Recorder(model)
    with guard(model), recorder.hooks(), recorder:
        for batch in batches:
            moved = task.to(batch, device)
            recorder.begin(moved)
            task.logits(model, moved)
    return ActivationStatistics(list(recorder.sites.values()), recorder.outputs, recorder.not_measured)


@dataclass(slots=True)
class _Frame:
    """A module whose forward is running."""

    module: nn.Module
    path: str
    in_activation: bool
    """Whether an activation module is running: all calls are part of it."""
    leave: Callable[[Any], None] | None = None


class _Recorder(TorchFunctionMode):
    """Hooks that track which module is running, and a mode that sees the functions it calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.activations = {id(module) for module in model.modules() if is_activation(module)}
        self.paths: dict[int, list[str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            self.paths.setdefault(id(module), []).append(path)
        self.layers = {id(module): layer for layer, module in layer_modules(model).items()}
        self.outputs: dict[str, Distribution | None] = dict.fromkeys(self.layers.values())
        self.sites: dict[tuple[str, str, int, int], Site] = {}
        self.not_measured: list[str] = []
        self.stack: list[_Frame] = []
        self.busy = False
        self.decodes = is_encoder_decoder(model)

    def begin(self, batch: Any) -> None:
        """Forget the last batch's calls, tensors and padding."""
        self.stack, self.calls, self.dims = [], Counter[str](), UnitDimensions()
        masks = batch if isinstance(batch, Mapping) else {}
        self.padding = Padding.of(masks.get("attention_mask"))
        self.decoder_padding = Padding.of(masks.get("decoder_attention_mask"))

    @contextmanager
    def hooks(self) -> Iterator[None]:
        handles = []
        try:
            for path, module in self.model.named_modules():
                if isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                    self.not_measured.append(f"{clean_path(path) or ROOT}: a scripted module shows nothing")
                    continue
                handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                # called after an error too: if the model catches it, the module must not stay on the stack
                handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.busy or not self.stack or self.stack[-1].in_activation:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        kind = function_name(name)
        leave = self._call(kind, func, args, kwargs) if kind else None
        result = func(*args, **kwargs)
        self.dims.note(name, args, kwargs, result)
        if leave is not None:
            leave(result)
        return result

    def _call(
        self, kind: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[[Any], None] | None:
        named = next((key for key in ("input", "self") if not args and key in kwargs), None)
        x = kwargs[named] if named else args[0] if args else None
        if isinstance(x, nn.Parameter) or not isinstance(x, Tensor):
            return None  # a function of a weight is not an activation
        rest = {key: value for key, value in kwargs.items() if key != named}
        return self._site(self.stack[-1].path, of_call(kind, func, args[1:], rest), x, functional=True)

    def _enter(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self.busy or id(module) not in self.paths:  # a replica of data parallelism has no path
            return
        in_activation = bool(self.stack) and self.stack[-1].in_activation
        paths = self.paths[id(module)]  # of several, the one below the running module
        above = f"{self.stack[-1].path}." if self.stack and self.stack[-1].path else ""
        path = next((path for path in paths if path.startswith(above)), paths[0])
        frame = _Frame(module, path, in_activation or id(module) in self.activations)
        if frame.in_activation and not in_activation:
            x = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
            if x is not None:
                frame.leave = self._site(frame.path, of_module(module), x)
        self.stack.append(frame)

    def _leave(self, module: nn.Module, _args: Any, output: Any) -> None:
        if self.busy or not self.stack or self.stack[-1].module is not module:
            return
        frame = self.stack.pop()
        if frame.leave is not None and output is not None:
            frame.leave(output)
        layer = self.layers.get(id(module))
        first = first_tensor(output)
        if layer is None or first is None or not is_measurable(first):
            return
        with self._reading(first):
            distribution = self.outputs[layer] or Distribution()
            self.outputs[layer] = distribution
            dim = self.dims.of(first)
            for part in pieces(first, dim, self._rows(frame.path, first, dim)):
                distribution.add(part)

    def _site(
        self, path: str, activation: Activation, x: Tensor, functional: bool = False
    ) -> Callable[[Any], None] | None:
        """Read the inputs now, since they may be overwritten; the function that is returned reads the outputs."""
        clean = clean_path(path)
        name = f"{clean or ROOT}:{activation.name}" if functional else clean
        self.calls[name] += 1
        number = self.calls[name]
        if not is_measurable(x):
            self.not_measured.append(f"{name}: {why_not(x)}")
            return None
        dim = 1 if activation.channels and x.ndim > 1 else self.dims.of(x)
        rows = self._rows(path, x, dim)
        units = x.shape[dim]
        key = (name, activation.name, number, units)
        with self._reading(x):
            if key not in self.sites:
                full = name if number == 1 else f"{name}:{number}"
                if any(site.name == full for site in self.sites.values()):
                    full = f"{full} ({units} units)"  # its width depends on the batch
                none = torch.zeros(units, dtype=torch.int64, device=x.device)
                self.sites[key] = Site(full, layer_of(path), activation.name, units, none.bool(), none, none.clone())
            site = self.sites[key]
            site.read_inputs(x, dim, rows, activation)

        def leave(output: Any) -> None:
            if isinstance(output, Tensor):
                self.dims.inherit(x, output)
                with self._reading(output):
                    site.read_outputs(output, dim, rows)

        return leave

    @contextmanager
    def _reading(self, tensor: Tensor) -> Iterator[None]:
        self.busy = True
        try:
            with plain_arithmetic(tensor.device):
                yield
        finally:
            self.busy = False

    def _rows(self, path: str, tensor: Tensor, dim: int) -> Tensor | None:
        decoder = self.decodes and "decoder" in path.split(".")
        padding = self.decoder_padding if decoder else self.padding
        return None if padding is None else padding.rows(tensor, dim)
