"""The newest record of every probe, for a front door that answers its caller at once."""

from __future__ import annotations

from learnscope.record import Record


class LastRecords:
    """A sink that holds each probe's last record until they are taken."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def write(self, record: Record) -> None:
        self.records[record.probe] = record

    def take(self) -> dict[str, Record]:
        taken, self.records = self.records, {}
        return taken

    def close(self) -> None:
        """Nothing is held open."""
