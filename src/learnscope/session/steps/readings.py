"""What each optimizer of a training step was given, read at its own step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from learnscope.core.gradients import Gradients, joined
from learnscope.core.probe import Probe
from learnscope.core.stepped import Stepped
from learnscope.core.subject import Subject
from learnscope.session.bound import Bound
from learnscope.session.steps.clipping import GradientReader
from learnscope.tensor.gradients.gradient import sum_squares


@dataclass(slots=True)
class Reading:
    """The last step of one optimizer within a training step."""

    options: list[dict[str, Any]]
    positions: frozenset[int]
    times: int
    gradients: Gradients | None = None
    weights: Mapping[int, Tensor] = field(default_factory=dict)
    kept: bool = True
    """Whether the gradients are copies; those of the optimizer that steps last need none."""


class Readings:
    """Reads the gradients of several optimizers, each right before its own step.

    A later backward adds to them, and a loop may clear them before another optimizer steps: all but the last
    optimizer's are copied, on steps at which a probe asks for them. Of a single optimizer nothing is copied. What no
    optimizer holds is read with the clock, or without one with the last.
    """

    def __init__(self, subject: Subject, reader: GradientReader) -> None:
        self._subject, self._reader = subject, reader
        self.scale: float | Tensor = 1.0
        """Of the gradients of a single optimizer that is about to step: they can be read until it has. A fused one then
        has divided them by it."""
        self._read: dict[int, Reading] = {}
        self._unheld: Reading | None = None
        self.follow((), None)

    def follow(self, optimizers: Sequence[Optimizer], clock: Optimizer | None) -> None:
        self._optimizers, self._clock = list(optimizers), clock
        self.several = len(self._optimizers) > 1
        self.forget()

    def forget(self) -> None:
        if self._read:
            self._read = {}
        self._unheld, self.scale = None, 1.0
        if self._reader.rows:
            self._reader.forget()

    def take(self, optimizer: Optimizer, scale: float | Tensor, due: Sequence[Bound], *, keep: bool) -> None:
        """Read what one of several is about to step with; `keep` copies of it if it does not step last."""
        if not due:
            return
        earlier, held = self._read.get(id(optimizer)), self._held(optimizer)
        options = [_as_it_is(group) for group in optimizer.param_groups]
        reading = Reading(options, held, 1 + (earlier.times if earlier else 0), kept=keep)
        if any(reads_gradients(bound.probe) for bound in due):
            reading.gradients = self._gradients(scale, held, keep=keep)
            if self._clock in (None, optimizer):
                others = set(range(len(self._subject.parameters))).difference(*map(self._held, self._optimizers))
                self._unheld = Reading([], frozenset(others), 1, self._gradients(scale, others, keep=keep), kept=keep)
            if keep and any("weight_norms" in bound.probe.uses for bound in due):
                reading.weights = self._weights(reading.gradients.positions)
        self._read[id(optimizer)] = reading

    def gradients(self) -> Gradients:
        """All gradients, each as its optimizer was given it."""
        read = [*self._read.values(), *([] if self._unheld is None else [self._unheld])]
        parts = [reading.gradients for reading in read if reading.gradients is not None]
        if not parts:
            return self._reader.read(self.scale)
        return joined(parts, self._unstepped())

    def stepped(self) -> Stepped | None:
        if not self.several:
            return None
        gradients: dict[int, Tensor | None] = dict.fromkeys(self._unstepped())
        for reading in [*self._read.values(), *([] if self._unheld is None else [self._unheld])]:
            if reading.kept and reading.gradients is not None:
                gradients |= dict.fromkeys(reading.positions)
                gradients |= zip(reading.gradients.positions, reading.gradients.unscaled(), strict=True)
        return Stepped(
            {number: reading.options for number, reading in self._read.items()},
            {number: reading.times for number, reading in self._read.items()},
            gradients,
            {position: squares for reading in self._read.values() for position, squares in reading.weights.items()},
        )

    def _unstepped(self) -> frozenset[int]:
        idle = [optimizer for optimizer in self._optimizers if id(optimizer) not in self._read]
        return frozenset().union(*map(self._held, idle))

    def _held(self, optimizer: Optimizer) -> frozenset[int]:
        """Positions of the parameters in its groups, which may grow."""
        inside = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return frozenset(i for i, p in enumerate(self._subject.parameters) if id(p) in inside)

    def _gradients(self, scale: float | Tensor, among: Collection[int], *, keep: bool) -> Gradients:
        gradients = self._reader.read(scale, among)
        if not keep:
            return gradients
        # what an accelerator still computes with a scale that the scaler then updates in place
        own = scale.clone() if isinstance(scale, Tensor) else scale
        return replace(gradients, tensors=[tensor.detach().clone() for tensor in gradients.tensors], scale=own)

    def _weights(self, positions: Sequence[int]) -> dict[int, Tensor]:
        squares = sum_squares([self._subject.parameters[i].detach() for i in positions])
        return dict(zip(positions, squares, strict=True))


def reads_gradients(probe: Probe) -> bool:
    """Whether a probe may ask for gradients, before the step or after it; of those that users write, any may."""
    after = probe.at == "after_step" and bool(probe.needs & {"optimizer", "previous"})
    return "grads" in probe.needs or after or not type(probe).__module__.startswith("learnscope.")


def _as_it_is(group: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a group's options: schedulers write into the group, and into a learning rate that is a tensor."""
    return {key: value.detach().clone() if isinstance(value, Tensor) else value for key, value in group.items()}
