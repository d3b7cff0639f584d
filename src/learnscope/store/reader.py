"""Reading a run: its records, as objects or as a tidy table, and its arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from learnscope.record import Record
from learnscope.store.backend import Backend

if TYPE_CHECKING:
    import pandas as pd

FIXED_COLUMNS = (
    "step", "epoch", "attempt", "source", "phase", "probe", "kind", "scope", "name", "value", "status",
    "time", "cost",
)  # fmt: skip


class RunReader:
    """A run as it stands now; reading it never changes it and does not need torch."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.problems: list[str] = []
        """Lines that could not be read, found by the last pass over the records."""

    @property
    def manifest(self) -> dict[str, Any]:
        """What `run.json` holds: probes and their fields, the model, the environment, the attempts."""
        return self.backend.manifest()

    @property
    def last_step(self) -> int:
        """The last recorded step, 0 for a run without records."""
        return max((record.step for record in self.records()), default=0)

    def records(self, probe: str | None = None, *, superseded: bool = False) -> Iterator[Record]:
        """The records in the order they were written.

        After a resume from an older checkpoint, what the earlier attempt recorded past that step is
        superseded: it is kept in the file and left out here unless asked for.
        """
        self.problems = []
        starts = self._attempt_starts()
        for number, line in enumerate(self.backend.lines(), start=1):
            if not line.strip():
                continue
            try:
                record = Record.from_json(line)
            except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
                self.problems.append(f"line {number} of records.jsonl is torn or damaged and was skipped ({error})")
                continue
            if probe is not None and record.probe != probe:
                continue
            if superseded or not _is_superseded(record, starts):
                yield record

    def frame(
        self, probe: str | None = None, name: str | None = None, kind: str | None = None,
        *, superseded: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """All numbers as a tidy DataFrame: one row a number, one column a label.

        Arguments narrow it. A value that is missing is NaN with its reason in `status`.
        """
        import pandas as pd

        columns: dict[str, list[Any]] = {key: [] for key in FIXED_COLUMNS}
        labels: dict[str, list[tuple[int, int, Any]]] = {}
        for record in self.records(probe, superseded=superseded):
            for table in record.tables:
                if kind is not None and table.kind != kind:
                    continue
                n = len(table.scopes)
                for column in table.columns:
                    if name is not None and column.name != name:
                        continue
                    start = len(columns["step"])
                    for label, value in column.labels.items():
                        labels.setdefault(label, []).append((start, n, value))
                    _extend(columns, record, table.kind, table.scopes, column.name, column.values, n)
                    columns["status"].extend([None] * n)
                    for position, reason in column.status.items():
                        columns["status"][start + position] = reason
        total = len(columns["step"])
        for label, spans in labels.items():
            cells: list[Any] = [None] * total
            for start, n, value in spans:
                cells[start : start + n] = [value] * n
            columns[label if label not in FIXED_COLUMNS else f"label_{label}"] = cells
        frame = pd.DataFrame(columns)
        frame["value"] = frame["value"].astype("float64")
        frame["status"] = frame["status"].astype(object)
        return frame

    def arrays(self, probe: str, step: int | None = None) -> dict[str, NDArray[Any]]:
        """The arrays that `probe` kept at `step` (the last one, unless said): logits, labels, spectra…"""
        chosen = None
        for record in self.records(probe):
            if record.arrays and (step is None or record.step == step):
                chosen = record
        if chosen is None or chosen.arrays is None:
            at = "" if step is None else f" at step {step}"
            raise KeyError(f"{probe} recorded no arrays{at}")
        return self.backend.arrays(chosen.arrays)

    def array_steps(self, probe: str) -> list[int]:
        """The steps for which `arrays` has something."""
        return [record.step for record in self.records(probe) if record.arrays]

    def _attempt_starts(self) -> dict[int, int]:
        return {entry["attempt"]: entry["start_step"] for entry in self.manifest.get("attempts", [])}


def _is_superseded(record: Record, starts: dict[int, int]) -> bool:
    return any(attempt > record.attempt and record.step > start for attempt, start in starts.items())


def _extend(
    columns: dict[str, list[Any]], record: Record, kind: str, scopes: Any, name: str, values: Any, n: int
) -> None:
    """Append one column's numbers with everything that is the same for all of them."""
    same = (
        ("step", record.step), ("epoch", record.epoch), ("attempt", record.attempt), ("source", record.source),
        ("phase", record.phase), ("probe", record.probe), ("kind", kind), ("name", name),
        ("time", record.time), ("cost", record.cost),
    )  # fmt: skip
    for key, value in same:
        columns[key].extend([value] * n)
    columns["scope"].extend(scopes)
    columns["value"].extend(values)
