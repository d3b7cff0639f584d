"""Where a training step begins and ends: hooks, clips, a GradScaler."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from learnscope.core.gradients import Gradients
from learnscope.core.stepped import Stepped
from learnscope.session.counting.quiet import PlainQuiet
from learnscope.session.engine import Engine
from learnscope.session.steps import clipping
from learnscope.session.steps.attempts import Attempts
from learnscope.session.steps.calls import Calls
from learnscope.session.steps.optimizers import untraced
from learnscope.session.steps.readings import Readings
from learnscope.session.steps.turns import Turns
from learnscope.session.telling.listeners import remove_gone, remove_later
from learnscope.session.telling.owners import Nobody, Owner


class StepEnds:
    """Tells its owner where a training step begins and ends, and reads each optimizer's gradients at its own step.

    `Turns` says which steps of several optimizers make one training step. A GradScaler may skip some of them: a fused
    optimizer's hooks are then called with `found_inf`, another's are not called at all.
    """

    def __init__(
        self, engine: Engine, owner: Owner, calls: Calls | None = None, attempts: Attempts | None = None,
        quiet: PlainQuiet | None = None,
    ) -> None:  # fmt: skip
        remove_gone()
        self.skipped = False
        """Whether the step does nothing, as a GradScaler has found gradients that are not finite."""
        self._engine, self._subject, self._owner = engine, engine.subject, owner
        self._calls, self._attempts, self._quiet = calls, attempts, quiet
        self._comes, self._went = engine.safely(self._on_coming), engine.safely(self._on_going)
        self._reader = clipping.GradientReader(engine.subject)
        self._readings = Readings(engine.subject, self._reader)
        self._handles: list[Any] = []
        self._search: Any = None
        self._turns, self.single = Turns((), None), False
        """`single`: whether one optimizer is followed, so that no training step is ever half taken."""
        self._open = self._looking = self._known = self._taken = False
        self._skipping: int | None = None
        """The optimizer whose step that is being taken does nothing."""
        self._clip = engine.safely(self._on_clip)
        clipping.listeners.add(self._clip)

    @property
    def half_taken(self) -> bool:
        """Whether a training step is open in which an optimizer has stepped."""
        return bool(self._turns.done)

    @property
    def counted(self) -> bool:
        """Whether the training step that is open will count, whatever follows."""
        return self._turns.counts and self._taken

    def attach(self, optimizers: Sequence[Optimizer], clock: Optimizer | None = None) -> None:
        """Follow the steps of these optimizers, in place of earlier ones."""
        self._detach()
        followed = list(dict.fromkeys([*optimizers, *([] if clock is None else [clock])]))
        self._turns, self._open = Turns(followed, clock, self._turns.order), False
        self.single = len(followed) == 1  # each of its steps is a training step
        if self.single:  # it comes before those that are found later
            self._turns.order = [id(followed[0])]
        self._readings.follow(followed, clock)
        if not followed:
            return
        before, after = self._hooks()
        for optimizer in followed:
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))

    def _hooks(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        before, after = untraced(self._before), untraced(self._after)
        if self._quiet is None:
            return before, after
        self._quiet.slow_before, self._quiet.slow_after = before, after
        return untraced(self._quiet.before), untraced(self._quiet.after)

    @property
    def is_settled(self) -> bool:
        """Whether one optimizer is followed, no other is looked for, and no step is open."""
        return self.single and self._search is None and not self._open and not self._reader.rows

    def find_optimizers(self) -> None:
        """Follow the optimizers that step parameters of the model. Those that have not by the first step never will."""
        held = weakref.ref(self)  # this hook is the process's own

        def any_begins(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            if (own := held()) is not None:
                own._on_any_step(optimizer)

        self._search = register_optimizer_step_pre_hook(untraced(any_begins))

    def gradients(self) -> Gradients:
        """The gradients as each optimizer was given them, with their statistics from before a clip."""
        return self._readings.gradients()

    def stepped(self) -> Stepped | None:
        """What several optimizers were given; None of a single one, which has it all still."""
        return self._readings.stepped()

    def settle(self) -> None:
        """End the training step that is open, if it counts: no other optimizer will step in it."""
        if self._open and self.counted:
            self._comes(begins_anew=False)
            self._finish()

    def forget(self) -> None:
        if self._reader.rows or self._readings.several:
            self._readings.forget()
        self.skipped = False
        if self._search is not None and self._subject.optimizers:
            self._stop_search()

    def close(self) -> None:
        self._detach()
        self._stop_search()
        clipping.listeners.remove(self._clip)
        remove_gone()

    def leave(self) -> None:
        """Nobody is to be told any more. Optimizers may be going through their hooks, so these are removed later."""
        self._owner = Nobody()
        if self._quiet is not None:
            self._quiet.quiet = False
        clipping.listeners.remove(self._clip)
        for handle in [*self._handles, *([] if self._search is None else [self._search])]:
            remove_later(handle.remove)
        self._handles, self._search = [], None

    # hooks, in the order of a step

    def _on_any_step(self, optimizer: Optimizer) -> None:
        parameters, known = {id(p) for p in self._subject.parameters}, self._subject.optimizers
        steps_model = any(id(p) in parameters for group in optimizer.param_groups for p in group["params"])
        if steps_model and not any(optimizer is other for other in known):
            # torch goes on to the optimizer's own hooks, so that this step is seen as well
            self._subject.optimizers = [*known, optimizer]
            self.attach(self._subject.optimizers)

    def _on_clip(
        self, parameters: Sequence[Tensor], max_norm: float, total_norm: Tensor
    ) -> Callable[[], object] | None:
        readers = self._owner.clip_readers()
        if not parameters and self._calls is not None:
            self._calls.clipped_nothing()
        if self._attempts is not None:
            self._attempts.norm(parameters, total_norm, due=bool(readers))
        if not readers:
            return None
        spread = any(bound.probe.reads_spread() for bound in readers)
        with self._engine.charged(readers):
            clipped = self._reader.on_clip(parameters, max_norm, total_norm, spread=spread)
        return None if clipped is None else self._engine.safely(clipped)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self._quiet is not None:
            if self._quiet.pending and self._quiet.look is not None:
                self._quiet.look()
            self._quiet.quiet = False  # until this step has ended
        if not self.single:
            self._comes(begins_anew=(begins_anew := self._turns.begins_anew(optimizer)))
            if begins_anew:
                if not self._turns.has_clock:
                    self._owner.out_of_turn()
                self._finish()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            try:  # as `_start`, without a call more at every step
                self._on_start(optimizer)
            except Exception:  # noqa: BLE001  (ours, and not the training's)
                self._engine.failed("_on_start")
            return None

        # forward, backward and clipping happen inside the closure: gradients exist only when it returns
        def watched_closure() -> Any:
            result = closure()
            self._start(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched_closure}
        return (args[0], watched_closure, *args[2:]), kwargs

    def _start(self, optimizer: Optimizer) -> None:
        try:
            self._on_start(optimizer)
        except Exception:  # noqa: BLE001  (ours, and not the training's)
            self._engine.failed("_on_start")

    def _on_start(self, optimizer: Optimizer) -> None:
        opens, self._open = not self._open, True
        if opens:
            self._looking, self._known, self._taken = self._owner.looks_at_step(), False, False
        if not self._looking:
            self._taken = True
            return
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf.item()):
            self._skipping = id(optimizer)  # fused, under a GradScaler: its hooks fire, its step does nothing
            if self._attempts is not None:
                self._attempts.left_out(optimizer, 1.0 if scale is None else float(scale))
            return
        if self._calls is not None:
            self._calls.begins(optimizer)
        last, scale = self.single or self._turns.completes(optimizer), 1.0 if scale is None else scale
        if self._readings.several:
            due = self._owner.due_probes()
            with self._engine.charged(due) if due else nullcontext():
                # a fused step divides the gradients themselves by the scale
                self._readings.take(optimizer, scale, due, keep=not last or isinstance(scale, Tensor))
        else:
            self._readings.scale = scale
        first, self._taken = not self._taken, True
        if first:
            self._owner.step_opened()
        if last:
            self._known = True
            self._owner.gradients_known()

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        skipped, self._skipping = self._skipping == id(optimizer), None
        if self._reader.rows:  # a clip was seen
            self._reader.stepped()
        if self._calls is not None:
            try:
                (self._calls.skipped if skipped else self._calls.stepped)(optimizer)
            except Exception:  # noqa: BLE001  (ours, and not the training's)
                self._engine.failed("stepped")
        self._readings.scale = 1.0
        if self.single:
            self._finish()
            return
        if skipped and self._turns.is_clock(optimizer):  # as if it had not been called
            if not self._turns.done:
                self._finish()
            return
        completes = self._turns.completes(optimizer)
        self._turns.stepped(optimizer)
        self._went()
        if completes:
            self._finish()

    def _finish(self) -> None:
        if not self.single:
            self._turns.ended()
        if self._open:
            self._open = False
            try:
                self.skipped = not self._taken
                if self._taken and self._looking and not self._known:  # nobody knew which would be the last
                    self._owner.gradients_known()
                self._owner.step_ended()
            except Exception:  # noqa: BLE001  (ours, and not the training's)
                self._engine.failed("step_ended")

    def _on_coming(self, *, begins_anew: bool) -> None:
        self._owner.optimizer_comes(begins_anew=begins_anew)

    def _on_going(self) -> None:
        self._owner.optimizer_went()

    def _detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _stop_search(self) -> None:
        if self._search is not None:
            self._search.remove()
            self._search = None
