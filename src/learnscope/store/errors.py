"""What may go wrong with a run folder."""

from __future__ import annotations


class RunError(Exception):
    """A run cannot be opened or written as asked; the message says why and what to do."""
