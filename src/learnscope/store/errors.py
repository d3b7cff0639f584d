"""What may go wrong with a run folder."""

from __future__ import annotations


class RunError(Exception):
    """A run cannot be opened or written as asked; the message says why and what to do."""


class LinesLost(RunError):
    """Lines that were to be written later could not be; `lost` says how many."""

    def __init__(self, lost: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.lost = lost
