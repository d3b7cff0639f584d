"""The inputs of a model's weights on calibration data, for the quantisers that use them.

Inputs are those of the model as it is stored. GPTQ's own program takes those behind the already quantised blocks, which
are others for every width of every earlier block; here any unit may have any width, and one collection serves all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from learnscope.model.bits.quantised_units import QuantisedTensor, Unit, find_units, is_conv1d
from learnscope.model.guard import guard
from learnscope.task import Task, task_for
from learnscope.tensor.bits.quantize import QuantiseError
from learnscope.tensor.bits.statistics import InputStatistics


class Calibration:
    """Statistics of the inputs of every weight that has some; at most `room` bytes of them at a time.

    A weight takes 4·in² bytes, once for weights with the same input (query, key, value). If not all fit, those of the
    block that is asked for and of the next blocks that fit are collected by another pass over the batches. So ask while
    the model holds its own weights, and in the model's order.
    """

    def __init__(
        self, model: nn.Module, batches: Sequence[Any], units: Sequence[Unit], task: Task | None, room: int | None
    ) -> None:
        self.without: dict[str, str] = {}
        """Weights without statistics, and why: they are quantised as the method does without calibration."""
        self.passes = 0
        """How often the batches were run."""
        self.room = max(sum(p.nbytes for p in model.parameters()), 1 << 28) if room is None else room
        self.model, self.batches = model, batches
        self._task = task or task_for(batches[0], model)
        self._blocks: list[list[QuantisedTensor]] = []
        by_layer: dict[str, list[QuantisedTensor]] = {}
        for unit in units:
            by_layer.setdefault(unit.layer, []).extend(unit.tensors)
        self._callers = {t.name: _callers(model, t) for tensors in by_layer.values() for t in tensors}
        for tensors in by_layer.values():
            for tensor in tensors:
                reason = _reason_against(tensor, self._callers[tensor.name])
                if reason is not None:
                    self.without[tensor.name] = reason
            self._blocks.append([tensor for tensor in tensors if tensor.name not in self.without])
        self._kept: dict[str, InputStatistics] = {}

    @classmethod
    def collect(
        cls,
        model: nn.Module,
        batches: Sequence[Any],
        units: Sequence[Unit] | None = None,
        *,
        task: Task | None = None,
        room: int | None = None,
    ) -> Calibration:
        """Run `model` over `batches`, under the guard, and keep the statistics of its weights' inputs.

        units: those whose weights matter; None: all. task: how a batch is run; None: by its form. room: bytes of
        statistics to hold at a time; None: the bytes of the model's parameters, at least 256 MiB. Positions that a
        batch's `attention_mask` leaves out do not count.
        """
        if not batches:
            raise QuantiseError("there are no batches to calibrate on: give some of the data that the model is for")
        made = cls(model, batches, find_units(model, embeddings=True) if units is None else units, task, room)
        first = next((block for block in made._blocks if block), None)
        if first is not None:
            made._gather(made._blocks.index(first))
        return made

    def of(self, tensor: QuantisedTensor) -> InputStatistics | None:
        """The statistics of this weight's inputs; None if it has none, see `without`."""
        if tensor.name not in self._kept and tensor.name not in self.without:
            place = next((n for n, block in enumerate(self._blocks) if tensor.name in {t.name for t in block}), None)
            if place is None:
                raise QuantiseError(f"{tensor.name} is in none of the units that were calibrated: collect it with them")
            self._gather(place)
        return self._kept.get(tensor.name)

    def _gather(self, start: int) -> None:
        """Replace what is kept by the statistics of the block `start` and of those after it that fit."""
        self._kept = {}
        wanted: list[QuantisedTensor] = []
        taken = 0
        for block in self._blocks[start:]:
            taken += sum(4 * tensor.matrix_shape[1] ** 2 for tensor in block)
            if wanted and taken > self.room:
                break
            wanted += block
        recorder = _Recorder(shares=True)
        try:
            self._run(wanted, recorder)
        except _NotShared:
            recorder = _Recorder(shares=False)
            self._run(wanted, recorder)
        for tensor in wanted:
            statistics = recorder.of(tensor.name)
            if statistics is None or not statistics.tokens:
                self.without[tensor.name] = "no token of the calibration data reached it"
            else:
                self._kept[tensor.name] = statistics

    @torch.no_grad()
    def _run(self, wanted: Sequence[QuantisedTensor], recorder: _Recorder) -> None:
        self.passes += 1
        device = next(self.model.parameters()).device  # a model with units has some
        with guard(self.model):  # which removes the hooks
            for tensor in wanted:
                for module in self._callers[tensor.name]:
                    module.register_forward_pre_hook(partial(recorder.see, tensor.name), with_kwargs=True)
            for batch in self.batches:
                recorder.begin(batch)
                self._task.logits(self.model, self._task.to(batch, device))


class _NotShared(Exception):
    """Weights whose inputs were one tensor at first have different ones later: the batches are run once more."""


class _Recorder:
    """Adds up the inputs that modules are called with. Consecutive calls with the same tensor are counted once."""

    def __init__(self, *, shares: bool) -> None:
        self._shares = shares
        self._statistics: dict[str, InputStatistics] = {}
        self._leaders: dict[str, str] = {}
        self._latest: tuple[Tensor, int, str] | None = None
        self._mask: Tensor | None = None

    def begin(self, batch: Any) -> None:
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        self._mask = mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None
        self._latest = None

    def of(self, name: str) -> InputStatistics | None:
        return self._statistics.get(self._leaders.get(name, name))

    def see(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given: Tensor = args[0] if args else next(iter(kwargs.values()))
        version = -1 if given.is_inference() else given._version
        leader = name
        if self._shares and self._latest is not None and not isinstance(module, nn.Conv2d):
            latest, its_version, its_leader = self._latest
            if given is latest and version == its_version:
                leader = its_leader
        if self._leaders.setdefault(name, leader) != leader:
            raise _NotShared
        self._latest = (given, version, leader)
        if leader == name:
            try:
                self._add(name, self._rows(module, given))
            except QuantiseError as error:
                raise QuantiseError(f"{name}: {error}") from error

    def _add(self, name: str, rows: Tensor) -> None:
        if name in self._statistics:
            self._statistics[name].add(rows)
        else:
            self._statistics[name] = InputStatistics.of(rows)

    def _rows(self, module: nn.Module, given: Tensor) -> Tensor:
        """The vectors [tokens, in] that the weight's matrix is multiplied with."""
        if isinstance(module, nn.Conv2d):
            if isinstance(module.padding, str):
                padded = functional.pad(given, module._reversed_padding_repeated_twice)
                patches = functional.unfold(padded, module.kernel_size, module.dilation, 0, module.stride)
            else:
                patches = functional.unfold(
                    given, module.kernel_size, module.dilation, module.padding, module.stride
                )  # fmt: skip
            return patches.transpose(-1, -2).reshape(-1, patches.shape[-2])
        if self._mask is not None and given.ndim == 3 and given.shape[:2] == self._mask.shape:
            return given[self._mask.to(given.device)]
        return given


def _callers(model: nn.Module, tensor: QuantisedTensor) -> list[nn.Module]:
    """The modules that hold this parameter."""
    parameter = model.get_parameter(tensor.name)
    return [
        module for module in model.modules() if any(own is parameter for own in module._parameters.values())
    ]  # fmt: skip


def _reason_against(tensor: QuantisedTensor, callers: Sequence[nn.Module]) -> str | None:
    """Why the inputs of a weight cannot be seen as vectors that its matrix is multiplied with."""
    for module in callers:
        kind = type(module).__name__
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            return "it is the table of an embedding, which multiplies nothing"
        if isinstance(module, nn.Conv2d) and (module.groups > 1 or module.padding_mode != "zeros"):
            return (
                f"a Conv2d with groups={module.groups}, padding_mode={module.padding_mode!r}: 1 and 'zeros' are known"
            )
        if not (isinstance(module, nn.Linear | nn.Conv2d) or is_conv1d(module)):
            return f"the inputs of {kind} are not seen on their way to its weight"
        if kind == "NonDynamicallyQuantizableLinear":
            return "nn.MultiheadAttention reads its weight without calling it"
    return None if tensor.numel else "it is empty"
