"""Who is told where a training step begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from learnscope.session.bound import Bound


class Owner(Protocol):
    """Who is told of the training steps."""

    def looks_at_step(self) -> bool:
        """Whether anybody asks about the training step that begins; if not, nothing waits for the device."""

    def due_probes(self) -> Sequence[Bound]:
        """The probes that measure at this training step."""

    def clip_readers(self) -> Sequence[Bound]:
        """The probes that read the gradients of a clip, and are charged for it."""

    def optimizer_comes(self, *, begins_anew: bool) -> None:
        """An optimizer is about to step: in the training step that is open, if any is, or in the next."""

    def optimizer_went(self) -> None:
        """An optimizer has stepped."""

    def step_opened(self) -> None:
        """No optimizer of this training step has stepped; the gradients of the first are complete."""

    def gradients_known(self) -> None:
        """The gradients of all are known; the last has not stepped yet, if it was known to be the last."""

    def step_ended(self) -> None:
        """All optimizers of the training step have stepped, or were skipped (`StepEnds.skipped`)."""

    def out_of_turn(self) -> None:
        """An optimizer steps again before others have stepped, and no clock says which one counts."""


class Nobody:
    """In place of an owner that is gone, while its hooks are still there."""

    def looks_at_step(self) -> bool:
        return False

    def due_probes(self) -> Sequence[Bound]:
        return ()

    def clip_readers(self) -> Sequence[Bound]:
        return ()

    def optimizer_comes(self, *, begins_anew: bool) -> None: ...

    def optimizer_went(self) -> None: ...

    def step_opened(self) -> None: ...

    def gradients_known(self) -> None: ...

    def step_ended(self) -> None: ...

    def out_of_turn(self) -> None: ...
