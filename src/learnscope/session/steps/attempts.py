"""Steps that never happen: written down before the loop, or what ends it, can lose them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from learnscope.core.gradients import current_tensors, read_gradients
from learnscope.core.handed import HandedOver
from learnscope.core.lost import BadGradients, LostStep, bad_gradients
from learnscope.core.moment import Moment
from learnscope.probes.gradients.lost_steps import LostSteps
from learnscope.record import SKIPPED
from learnscope.session.counting.quiet import PlainQuiet
from learnscope.session.engine import Engine
from learnscope.session.steps import scaling
from learnscope.session.steps.backwards import Backwards
from learnscope.session.steps.calls import Calls
from learnscope.session.steps.feed import Feed, as_number
from learnscope.session.steps.optimizers import unwrapped

IN_A_ROW, IN_ALL = 20, 200
"""Attempts that are recorded one by one; more are counted."""
SCALER = "a GradScaler found gradients that are not finite and left the step out"


class Attempts:
    """Follows each attempt at a step that is not finite, or that nothing follows, until it is known what became of it.

    What shows it: a norm at a clip, a logged loss, a GradScaler, the end of the loop. The gradients are read there, and
    the record is written at once, so that a failed assertion or a kill right after finds it on disk. A norm or a loss
    on an accelerator is not waited for: such a norm is looked at on steps at which a probe reads the gradients anyway.
    """

    def __init__(
        self, engine: Engine, backwards: Backwards, calls: Calls, quiet: PlainQuiet, feed: Feed,
        moment: Callable[..., Moment],
    ) -> None:  # fmt: skip
        self._engine, self._subject, self._backwards, self._calls = engine, engine.subject, backwards, calls
        self._feed, self._moment, self._quiet = feed, moment, quiet
        self._open: LostStep | None = None
        self.late: LostStep | None = None
        """An attempt that was skipped just now: what is logged until the next backward is of it."""
        self._taken: dict[str, int] = {}
        """How many logged values were there, by name, when the attempt was seen."""
        self._rows_taken = 0
        self._in_a_row = self._in_all = 0
        self._expects = self._begun = False
        """Whether a loss that is not finite was logged for the coming backward; whether that has begun."""
        self._bound = next((bound for bound in engine.bound if isinstance(bound.probe, LostSteps)), None)
        """The probe that it is recorded for; without one, nothing is followed."""
        if self._bound is not None:
            calls.on_discard = engine.safely(self.discarded)
            self._seen_by_scaler = engine.safely(self._before_scaler)
            scaling.listeners.add(self._before_scaled)

    def close(self) -> None:
        scaling.listeners.remove(self._before_scaled)

    # what shows that a step may be lost

    def norm(self, parameters: Sequence[Tensor], total: Tensor, *, due: bool) -> None:
        """A clip is about to multiply the gradients by a factor made of this norm."""
        if self._bound is None or not (total.is_cpu or due) or math.isfinite(value := float(total.detach())):
            return
        held = {id(p) for p in self._subject.parameters}
        if any(id(p) in held for p in parameters):
            self._see("clip", f"the norm at the clip was {value}")

    def takes(self, logged: Mapping[str, Any]) -> bool:
        """Whether what the loop logs is of `late`; one that logs ahead has done so."""
        if self.late is None or self._feed.ahead or self.late.logged.keys() & logged.keys():
            return False
        self.late.logged = {**self.late.logged, **_numbers(logged)}
        self._write(self.late, self._step)
        return True

    def logged(self, values: Mapping[str, Any]) -> None:
        """The loop has logged these for the coming step."""
        loss = values.get("loss")
        if type(loss) is not float:
            loss = as_number(loss)
        if loss is None or math.isfinite(loss) or self._bound is None:
            return
        if self._calls.waiting:
            self._see("loss", f"the loss was {loss}")
        elif self._feed.ahead:  # else it is of the step that was just taken
            self._expects = self._quiet.eventful = True
            self._calls.tell_reached(self.reached)

    def reached(self) -> None:
        """A backward of the loop has reached a parameter."""
        self._calls.tell_reached(None)
        self.late = None
        if self._expects and not self._begun:
            self._begun = True
            done = self._engine.safely(self._backward_done)
            torch.autograd.Variable._execution_engine.queue_callback(done)

    def _backward_done(self) -> None:
        self._expects = self._begun = False
        self._see("loss", "the loss was not finite")

    def _before_scaled(self, optimizer: Any) -> Callable[[], object]:
        return self._seen_by_scaler(optimizer) or _nothing

    def _before_scaler(self, optimizer: Any) -> Callable[[], object]:
        inner, before = unwrapped(optimizer), self._calls.any_steps
        if inner is None or not any(inner is each for each in self._subject.optimizers):
            return _nothing

        def after() -> None:
            if self._calls.any_steps == before:
                self.left_out(inner)

        return self._engine.safely(after)

    def left_out(self, optimizer: Optimizer, scale: float = 1.0) -> None:
        """A GradScaler has left out the step of an optimizer, whose gradients are still there."""
        self._see("scaler", SCALER, scale)
        if self._open is not None:  # a clip may have shown it first
            self._open.cause, self._open.why = "scaler", SCALER
        self._calls.skipped(optimizer)
        self.late = self._resolve(skipped=True)
        self._calls.tell_reached(self.reached)

    # what becomes of it

    def discarded(self) -> None:
        """A backward finds gradients cleared that no step has used."""
        if self._open is not None:
            self._resolve(skipped=True)

    def step_ended(self) -> None:
        """The step has come."""
        self._expects = self._begun = False
        self.late = None
        if self._open is not None:
            self._resolve(skipped=False)
        else:
            self._in_a_row = 0

    def end(self, status: str) -> None:
        """The loop is over; what waits for a step gets none."""
        if self._open is None and self._bound is not None and self._calls.waiting:
            gradients = self._read()
            if status != "finished" or (gradients is not None and gradients.tensors):
                self._see("end", f"the loop ended before it: {status}", gradients=gradients)
        if self._open is not None:
            self._resolve(skipped=True)

    # helpers

    @property
    def _step(self) -> int:
        return self._moment(SKIPPED).step + 1

    def _see(self, cause: str, why: str, scale: float = 1.0, gradients: BadGradients | None = None) -> None:
        if self._bound is None or self._engine.inherited or self._open is not None:
            return
        step, number = self._step, self._in_a_row + 1
        self._open = lost = LostStep(cause, why, number)
        self._quiet.eventful = True
        logged = self._feed.logged_for(step)
        self._taken = {name: len(values) for name, values in logged.items()}
        self._rows_taken = self._feed.rows.batches(step)
        if number > IN_A_ROW or self._in_all >= IN_ALL:
            return
        lost.gradients = gradients or self._read(scale)
        lost.logged = _numbers({name: values[-1] for name, values in logged.items()})
        lost.rows = self._feed.rows.of(step)
        self._write(lost, step)

    def _resolve(self, *, skipped: bool) -> LostStep | None:
        """It is known what became of the attempt; returns it if it is recorded."""
        lost, self._open = self._open, None
        if lost is None:
            return None
        lost.skipped, step = skipped, self._step if skipped else self._step - 1
        self._in_a_row += 1
        self._subject.calls.lost_steps += skipped
        recorded = self._is_recorded(lost)
        if recorded and not lost.logged and not self._feed.ahead:  # many loops log after they have decided
            lost.logged = _numbers({name: values[-1] for name, values in self._feed.logged_for(step).items()})
        if recorded and not lost.rows:
            lost.rows = self._feed.rows.of(step, self._rows_taken if self._feed.ahead else None)
        if recorded:
            self._in_all += 1
            self._write(lost, step)
        if skipped:
            self._feed.drop(step, self._taken if self._feed.ahead else None)
            self._feed.rows.drop(step, self._rows_taken if self._feed.ahead else None)
        return lost if recorded else None

    def _is_recorded(self, lost: LostStep) -> bool:
        return lost.attempt <= IN_A_ROW and self._in_all < IN_ALL

    def _read(self, scale: float = 1.0) -> BadGradients | None:
        tensors = current_tensors(self._subject)
        if not tensors:
            return None
        order = self._backwards.take_order() or self._subject.backward_order
        self._subject.backward_order = order
        with torch.no_grad():
            return bad_gradients(read_gradients(self._subject, tensors), order, scale)

    def _write(self, lost: LostStep, step: int) -> None:
        assert self._bound is not None
        moment = self._moment(SKIPPED, step=step, handed=HandedOver(lost=lost))
        self._engine.fire(self._bound, moment)
        self._engine.write_out()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those that are plain numbers: one on an accelerator would have to be waited for."""
    return {name: number for name, value in values.items() if (number := as_number(value)) is not None}


def _nothing() -> None:
    pass
