"""Records on their way from the engine to the caller's dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.analysis.bound import Metric
from learnscope.record import Record
from learnscope.store.backend import MemoryBackend


class Nowhere(MemoryBackend):
    """For records that are read at once and not kept."""

    def append(self, line: str) -> None:
        pass

    def put_arrays(self, reference: str, arrays: Mapping[str, Any]) -> None:
        pass


class Collector:
    """A sink that holds each metric's last record until it is read."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def write(self, record: Record) -> None:
        self.records[record.probe] = record

    def read(self, metrics: Sequence[Metric]) -> tuple[dict[str, Any], dict[str, str]]:
        """All that was recorded by its keys, and why some of it is NaN."""
        found: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        for metric in metrics:
            record = self.records.get(metric.label)
            if record is not None and record.error is None:
                found |= metric.keys(record)
                reasons |= metric.reasons(record)
        self.records.clear()
        return found, reasons

    def close(self) -> None:
        pass
