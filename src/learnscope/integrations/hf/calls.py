"""The trainer behind a callback: trainers do not pass themselves to their callbacks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from transformers import Trainer


class Caller(NamedTuple):
    """The trainer that has called its callbacks, and the checkpoint that it goes on from, if any."""

    trainer: Any
    checkpoint: Path | None


def caller_of(state: Any) -> Caller | None:
    """The trainer whose state this is, among those that are calling at the moment; None if none is."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer) and owner.state is state:
            checkpoint = frame.f_locals.get("resume_from_checkpoint")
            return Caller(owner, Path(checkpoint) if isinstance(checkpoint, str | Path) else None)
        frame = frame.f_back  # type: ignore[assignment]
    return None
