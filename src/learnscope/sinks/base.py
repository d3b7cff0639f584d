"""Sinks: where records go besides the run folder."""

from __future__ import annotations

from typing import Protocol

from learnscope.record import Record


class Sink(Protocol):
    """If a sink raises, there is a warning; no record is lost and training goes on.

    A sink may also have `alert(finding)`: it is called with each alert of a session that has some (`alerts=`).
    """

    def write(self, record: Record) -> None: ...
    def close(self) -> None: ...


class LastRecords:
    """A sink that holds each probe's latest record until `take` is called."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def write(self, record: Record) -> None:
        self.records[record.probe] = record

    def take(self) -> dict[str, Record]:
        taken, self.records = self.records, {}
        return taken

    def close(self) -> None:
        """Nothing to close."""
