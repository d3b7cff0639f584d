"""Records on their way from the engine to the caller's dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.analysis.bound import Metric
from learnscope.sinks.last import LastRecords
from learnscope.store.backend import MemoryBackend


class Nowhere(MemoryBackend):
    """For records that are read at once and not kept."""

    def append(self, line: str) -> None:
        pass

    def put_arrays(self, reference: str, arrays: Mapping[str, Any]) -> None:
        pass


class Collector(LastRecords):
    """Each metric's last record, read by the keys of its metric."""

    def read(self, metrics: Sequence[Metric]) -> tuple[dict[str, Any], dict[str, str]]:
        """All that was recorded by its keys, and why some of it is NaN."""
        found: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        records = self.take()
        for metric in metrics:
            record = records.get(metric.label)
            if record is not None and record.error is None:
                found |= metric.keys(record)
                reasons |= metric.reasons(record)
        return found, reasons
