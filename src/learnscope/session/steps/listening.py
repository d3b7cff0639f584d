"""Listening to the loop between two steps, where a probe that is due needs it: its forwards and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from learnscope.core.handed import LossCall
from learnscope.model.features.given import is_compiled
from learnscope.model.guard import is_guarded
from learnscope.session.bound import Bound
from learnscope.session.engine import Engine
from learnscope.session.steps import objectives
from learnscope.session.steps.forwards import Forwards
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.outputs.objective import token_sums
from learnscope.tensor.outputs.places import number_first_places, token_first_places
from learnscope.tensor.outputs.small_objective import is_small


class Listening:
    """Collects what probes need of the coming step, from the end of one step to the gradients of the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._subject = engine, engine.subject
        self._calls: list[LossCall] = []
        self._parameters: set[int] = set()
        self._listening = self._follows = self.idle = False
        """`idle`: nothing is listened to, and nothing will be until a probe is due."""
        self._begun = is_compiled(engine.subject.model)
        """A model that is compiled later is so at the first step: a hook that is there then, and gone later, would have
        it compiled again."""
        self._of_losses: list[Bound] = []
        self._safely, self._loss = engine.safely, engine.safely(self._on_loss)
        self._forwards = Forwards(engine.subject.model, engine.safely, self._held)

    def _held(self) -> list[Tensor]:
        groups = [group for optimizer in self._subject.optimizers for group in optimizer.param_groups]
        return [p for group in groups for p in group["params"]]

    def plan(self, due: Sequence[Bound]) -> None:
        """Begin to listen for the probes that are due at the coming step, or stop."""
        self.stop()
        self._of_losses = [bound for bound in due if "loss_calls" in bound.probe.needs]
        of_forwards = any("forwards" in bound.probe.needs for bound in due)
        self._listening = of_forwards or bool(self._of_losses)
        if self._of_losses:
            self._parameters = set(map(id, self._subject.parameters))
            objectives.listeners.add(self._loss)
        self._follows, self._begun = self._listening and self._begun, True
        self.idle = not self._listening
        if self._follows:
            self._forwards.follow(details=of_forwards)

    def take(self) -> dict[str, Any]:
        """What was heard, for `HandedOver`; listening ends."""
        heard = {"loss_calls": self._calls, "forwards": self._forwards.calls if self._follows else None}
        self.stop()
        return heard

    def stop(self) -> None:
        if self._listening:
            objectives.listeners.remove(self._loss)
            self._forwards.stop()
        self._calls, self._listening, self._of_losses = [], False, []

    def _on_loss(self, function: str, outputs: Tensor, targets: Tensor, options: dict[str, Any], value: Tensor) -> None:
        if is_guarded() or not objectives.is_of(outputs, self._parameters):
            return
        tokens, given = self._forwards.tokens, self._forwards.sequences
        alone = tokens is None and given is None and is_small(outputs)  # of which NumPy tells all
        with self._engine.charged(self._of_losses):
            with nullcontext() if alone else plain_arithmetic(outputs.device):
                call = objectives.summed_up(function, outputs, targets, options, value)
                wanted = targets.detach()
                if call.form == "classes" and tokens is not None and tokens.device == wanted.device:
                    call.tokens = token_sums(tokens, wanted, call.ignore_index, self._forwards.padding)
                if given is not None and given.device == wanted.device and wanted.numel():
                    call.places = _first_places(call, given, outputs.detach(), wanted)
            self._calls.append(call)
            objectives.follow_gradient(call, outputs, self._safely)


def _first_places(call: LossCall, given: Tensor, outputs: Tensor, targets: Tensor) -> Tensor | None:
    if call.looked_at > 1 or call.soft:
        return None
    if call.form == "classes" and given.ndim == 2:
        return token_first_places(given, outputs, targets)
    return number_first_places(given, outputs, targets) if call.form == "numbers" else None
