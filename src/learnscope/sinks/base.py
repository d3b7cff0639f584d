"""Sinks: where records go besides the run folder."""

from __future__ import annotations

from typing import Protocol

from learnscope.record import Record


class Sink(Protocol):
    """Two methods. If a sink raises, there is a warning; no record is lost and training goes on."""

    def write(self, record: Record) -> None: ...
    def close(self) -> None: ...
