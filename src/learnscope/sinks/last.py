"""The latest record of every probe, for front doors that return results immediately."""

from __future__ import annotations

from learnscope.record import Record


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
