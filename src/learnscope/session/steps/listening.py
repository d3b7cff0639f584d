"""Listening to the loop between two steps, where a probe that is due needs it: its forwards and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from learnscope.core.handed import LossCall
from learnscope.model.guard import is_guarded
from learnscope.session.bound import Bound
from learnscope.session.engine import Engine
from learnscope.session.steps import objectives
from learnscope.session.steps.forwards import Forwards
from learnscope.task import unwrap
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.outputs.objective import token_sums


class Listening:
    """Collects what probes need of the coming step, from the end of one step to the gradients of the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._subject = engine, engine.subject
        self._calls: list[LossCall] = []
        self._tokens: Tensor | None = None
        """Inputs of the last forward, if they are tokens."""
        self._parameters: set[int] = set()
        self._padding = padding_token(engine.subject.model)
        self._of_losses: list[Bound] = []
        self._loss, self._forward = engine.safely(self._on_loss), engine.safely(self._on_forward)
        self._forwards = Forwards(engine.subject.model, self._forward)

    def plan(self, due: Sequence[Bound]) -> None:
        """Begin to listen for the probes that are due at the coming step, or stop."""
        self.stop()
        self._of_losses = [bound for bound in due if "loss_calls" in bound.probe.needs]
        if self._of_losses:
            self._parameters = set(map(id, self._subject.parameters))
            objectives.listen(self._loss)
            self._forwards.follow()

    def take(self) -> list[LossCall]:
        """What was heard; listening ends."""
        calls = self._calls
        self.stop()
        return calls

    def stop(self) -> None:
        if self._of_losses:
            self._of_losses = []
            objectives.unlisten(self._loss)
            self._forwards.stop()
        self._calls, self._tokens = [], None

    def _on_forward(self, _module: nn.Module, _name: str, given: Tensor) -> None:
        is_text = given.ndim == 2 and not given.is_floating_point() and not given.is_complex()
        self._tokens = given.detach() if is_text else None

    def _on_loss(self, function: str, outputs: Tensor, targets: Tensor, options: dict[str, Any], value: Tensor) -> None:
        if is_guarded() or not objectives.is_of(outputs, self._parameters):
            return
        with self._engine.charged(self._of_losses):
            call = objectives.summed_up(function, outputs, targets, options, value)
            if call.form == "classes" and self._tokens is not None and self._tokens.device == targets.device:
                with plain_arithmetic(outputs.device):
                    call.tokens = token_sums(self._tokens, targets.detach(), call.ignore_index, self._padding)
            self._calls.append(call)
            objectives.follow_gradient(call, outputs)


def padding_token(model: nn.Module) -> int | None:
    """The model's own padding token: of its configuration, or of its only embedding that has one."""
    told = getattr(getattr(unwrap(model), "config", None), "pad_token_id", None)
    if isinstance(told, int):
        return told
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    known = {module.padding_idx for module in embeddings if module.padding_idx is not None}
    return known.pop() if len(known) == 1 else None
