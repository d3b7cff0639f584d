"""Sinks: where records go besides the run folder."""

from __future__ import annotations

from typing import Protocol

from learnscope.record import Record


class Sink(Protocol):
    """Two methods. A sink that raises costs a warning, never a record and never the training."""

    def write(self, record: Record) -> None: ...
    def close(self) -> None: ...
