"""Reading a run: its records, as objects or as a tidy table, and its arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from learnscope.record import Record
from learnscope.store.backend import Backend, FolderBackend
from learnscope.store.columnar.column_frame import frame_from
from learnscope.store.columnar.columns import Columns
from learnscope.store.locks import is_locked
from learnscope.store.parts import LINES

if TYPE_CHECKING:
    import pandas as pd


class RunReader:
    """A run as it is now; reading never changes it and does not need torch."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.last_problems: list[str] = []
        """Lines that the last pass over the records could not read."""
        self.last_counts: Counter[int] | None = None
        """How many records of each attempt the last whole pass has read, superseded ones included."""

    @property
    def manifest(self) -> dict[str, Any]:
        """What `run.json` holds: probes and their fields, the model, the environment, the attempts."""
        return self.backend.manifest()

    @property
    def status(self) -> str | None:
        """What run.json says, except for a run that nobody is writing any more: "killed" in place of "running"."""
        return status_of(self.backend, self.manifest)

    @property
    def losses(self) -> list[str]:
        """What the last whole pass over the records has missed of those that run.json says were written."""
        if self.last_counts is None or not isinstance(self.backend, FolderBackend):
            return []
        return losses(self.manifest, self.last_counts)

    @property
    def source_problems(self) -> list[str]:
        """What an import could not read of the files that this run was made of."""
        return (self.manifest.get("imported") or {}).get("problems") or []

    def _checked_manifest(self) -> tuple[dict[str, Any], list[str]]:
        return self.backend.checked_manifest() if isinstance(self.backend, FolderBackend) else (self.manifest, [])

    @property
    def last_step(self) -> int:
        """The last recorded step, 0 for a run without records."""
        if isinstance(self.backend, FolderBackend):
            from learnscope.store.compacted_frame import compacted_last_step  # a session that records reads nothing

            last = compacted_last_step(self.backend.path, attempt_starts(self.manifest))
            if last is not None:
                return last
        return self.columns().last_step

    def columns(self, *, superseded: bool = False) -> Columns:
        """The records by their form, which is how many of them are read fast; see `records`."""
        manifest, problems = self._checked_manifest()
        columns = Columns(self.backend.segments(), {} if superseded else attempt_starts(manifest))
        self.last_problems, self.last_counts = [*problems, *columns.problems], columns.counts
        return columns

    def records(self, probe: str | None = None, *, superseded: bool = False) -> Iterator[Record]:
        """The records in the order they were written.

        After a resume from an older checkpoint, records of the earlier attempt past that step are superseded: they
        stay in the file and are left out here unless asked for.
        """
        manifest, self.last_problems = self._checked_manifest()
        starts = attempt_starts(manifest)
        counts: Counter[int] = Counter()
        for record in self.backend.records(self.last_problems):
            counts[record.attempt] += 1
            if probe is not None and record.probe != probe:
                continue
            if superseded or not any(a > record.attempt and record.step > start for a, start in starts.items()):
                yield record
        self.last_counts = counts

    def frame(
        self, probe: str | None = None, name: str | None = None, kind: str | None = None,
        *, superseded: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """All numbers as a tidy DataFrame: one row per number, one column per label.

        Arguments select a part. A missing value is NaN with its reason in `status`. The labels that the run's probes
        (or `probe`) declare have a column even where nothing was recorded with them.
        """
        declared = declared_labels(self.manifest, probe)
        if isinstance(self.backend, FolderBackend):
            from learnscope.store.compacted_frame import compacted_frame

            starts = None if superseded else attempt_starts(self.manifest)
            fast = compacted_frame(self.backend.path, starts, probe, name, kind, declared)
            if fast is not None:
                frame, self.last_problems = fast[0], [*self._checked_manifest()[1], *fast[1]]
                return frame
        return frame_from(self.columns(superseded=superseded), probe, name, kind, declared)

    def arrays(self, probe: str, step: int | None = None) -> dict[str, NDArray[Any]]:
        """The arrays that `probe` stored at `step` (by default its last): logits, labels, spectra…"""
        stored = [r.arrays for r in self.records(probe) if r.arrays and (step is None or r.step == step)]
        if not stored:
            raise KeyError(f"{probe} recorded no arrays" + (f" at step {step}" if step is not None else ""))
        return self.backend.arrays(stored[-1])

    def array_steps(self, probe: str) -> list[int]:
        """The steps at which `probe` stored arrays."""
        return [record.step for record in self.records(probe) if record.arrays]


def declared_labels(manifest: Mapping[str, Any], probe: str | None = None) -> list[str]:
    """The labels that the probes of a run declare, or one of them; run folders of earlier versions do not say.

    >>> declared_labels({"labels": {"GradientFlow": ["stage", "origin"], "Loss": []}}, "GradientFlow")
    ['stage', 'origin']
    """
    by_probe: dict[str, list[str]] = manifest.get("labels") or {}
    chosen = by_probe.values() if probe is None else [by_probe.get(probe, [])]
    return list(dict.fromkeys(label for labels in chosen for label in labels))


def attempt_starts(manifest: Mapping[str, Any]) -> dict[int, int]:
    """The step that each attempt started from."""
    return {entry["attempt"]: entry["start_step"] for entry in manifest.get("attempts") or []}


def status_of(backend: Backend, manifest: Mapping[str, Any]) -> str | None:
    """How a run ended: what its manifest says, or "killed" if that is "running" and no process holds its lock."""
    status = manifest.get("status")
    if status == "running" and isinstance(backend, FolderBackend) and is_locked(backend.path / LINES) is False:
        return "killed"
    return status


def losses(manifest: Mapping[str, Any], counts: Mapping[int, int]) -> list[str]:
    """A sentence for each attempt that wrote, or tried to write, more records than there are.

    >>> losses({"attempts": [{"attempt": 0, "records": {"written": 9, "lost": 1}}]}, {0: 9})
    ['attempt 0 wrote 10 records, 9 are in the folder: 1 could not be written']
    """
    sentences = []
    for entry in manifest.get("attempts") or []:
        records, attempt = entry.get("records") or {}, entry["attempt"]
        written, lost, there = records.get("written") or 0, records.get("lost") or 0, counts.get(attempt, 0)
        if there < written or lost:
            refused = f": {lost:,} could not be written" if lost else ""
            sentences.append(
                f"attempt {attempt} wrote {written + lost:,} records, {there:,} are in the folder{refused}"
            )
    return sentences
