"""Probes fired one by one at a finished model, and the run of their last records."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.core.subject import Subject
from learnscope.model.collector import no_full_collection
from learnscope.model.cost.freed_memory import freed_memory_kept
from learnscope.model.data import fixed_batches
from learnscope.model.weights.snapshot import Snapshot
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.reader import check_tokens
from learnscope.probes.bits.quantising import BitProbe
from learnscope.reading.audit_numbers import OWN_SAMPLES, Entry, entries_of
from learnscope.record import Record
from learnscope.run import Run, open_run
from learnscope.session.manifest import new_manifest
from learnscope.session.manual import ManualSession, UnstoredBackend
from learnscope.session.opening import check_model
from learnscope.store.backend import MemoryBackend, RunError
from learnscope.store.folders import check_replaceable, replace_run
from learnscope.store.memo import ResultCache
from learnscope.task import Task, task_for

AUDITED = "audited"
"""The manifest's entry for runs written here: the model's name, and facts that no probe measures."""


@contextmanager
def _many_passes() -> Iterator[None]:
    """For thousands of passes that all need the same memory again and leave nothing behind."""
    with freed_memory_kept(), no_full_collection():
        yield


class AuditSession:
    """A finished model, how its batches are read, and the last record of each probe that measured it.

    With `cache`, a folder, results are cached by content, also for other processes: nothing is computed twice for the
    same weights and data.
    """

    def __init__(
        self, model: nn.Module, *, task: Task | None = None, tokenizer: Any = None, name: str = "model",
        cache: str | Path | None = None, progress: bool = False,
    ) -> None:  # fmt: skip
        check_model(model)
        self.model, self.task, self.tokenizer, self.name, self.progress = model, task, tokenizer, name, progress
        folder = None if cache is None else Path(cache)
        if folder is not None:  # now, and not once the first result has been computed
            existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
            if not existing.is_dir() or not os.access(existing, os.W_OK):
                raise PosttrainError(
                    f"cache={str(folder)!r}: {existing} is no folder that can be written to; name another"
                )
        self.memo = ResultCache(folder)
        self._measured: dict[str, tuple[Probe, Record]] = {}
        self._batches: dict[str, list[Any]] = {}
        self._shared: Moment | None = None
        self._reduced: str | None = None
        """What of the data was left out, in words."""

    def measure(
        self, probe: Probe, data_loader: Any, *, train_data: Sequence[Any] | None = None,
        previous: Snapshot | None = None, facts: Mapping[str, Any] | None = None,
    ) -> Record:  # fmt: skip
        """Fire the probe on these data: a loader, a data set, a list of batches, or one batch. Errors are raised.

        `train_data` and `previous` weights are for probes that use them; `facts` are added to the record's notes.
        """
        moment = self._shared or self.moment(data_loader)
        if train_data is not None:
            moment.subject.train_data = list(train_data)
        moment.snapshot = previous
        session = ManualSession({}, UnstoredBackend(), source="audit")
        label = session.add(probe).label
        session.open(self.model)
        with _many_passes() if isinstance(probe, BitProbe) else nullcontext():
            record = session.measure(moment)[label]
        known = self._facts(moment, record.notes.get("examples")) | dict(facts or {})
        record = replace(record, notes={**record.notes, **known})
        self._measured[label] = probe, record
        self._batches[label] = list(moment.subject.holdout or ())
        return record

    def _facts(self, moment: Moment, examples: int | None) -> dict[str, Any]:
        """What the numbers rest on, beyond what the probe itself knows."""
        facts: dict[str, Any] = {"data": OWN_SAMPLES} if moment.subject.sampled else {}
        given = sum(map(moment.task.size, moment.subject.holdout or ()))
        if examples is not None and examples < given:
            facts["examples_given"] = given
        if self._reduced is not None:
            facts["reduced"] = self._reduced
        return facts

    @contextmanager
    def sharing(self, data_loader: Any) -> Iterator[None]:
        """Measurements in this block share what they compute; the weights must not change in it."""
        self._shared = self.moment(data_loader)
        try:
            yield
        finally:
            self._shared = None

    def task_of(self, batches: Sequence[Any]) -> Task:
        """How these batches are read."""
        return self.task or task_for(batches[0], self.model)

    def record(self, probe: str) -> Record | None:
        """The last record of the probe with this name, if it has measured."""
        return self._measured[probe][1] if probe in self._measured else None

    def measured(self, probe: str) -> tuple[Probe, list[Any]]:
        """The probe that made this record, and the batches that it was given."""
        return self._measured[probe][0], self._batches[probe]

    @property
    def run(self) -> Run:
        """The last records, as a run in memory."""
        return Run(self._backend({}))

    def save(self, folder: Path, about: Mapping[str, Any]) -> Run:
        """Write the run and `about` to the folder, replacing a run that was saved there before."""
        check_folder(folder)
        replace_run(self._backend({AUDITED: {"name": self.name, "about": dict(about)}}), folder)
        return open_run(folder)

    def _backend(self, facts: Mapping[str, Any]) -> MemoryBackend:
        backend = MemoryBackend()
        records = [record for _, record in self._measured.values()]
        probes = [(label, probe) for label, (probe, _) in self._measured.items()]
        manifest = new_manifest("audit", Subject(self.model), probes, git=False)
        started = min((record.time for record in records), default=0.0)
        attempt = {"attempt": 0, "start_step": 0, "started": started, "last_step": 0}
        backend.put_manifest({**manifest, "attempts": [attempt], "status": "finished", **facts})
        for record in records:
            backend.append(record.to_json())
        return backend

    def moment(self, data_loader: Any) -> Moment:
        """The model with these data, as probes see it."""
        batches = fixed_batches(data_loader, self.task)
        about = getattr(data_loader, "about", {})
        self._reduced = about.get("reduced")
        check_tokens(self.model, batches)
        task = self.task_of(batches)
        subject = Subject(self.model, task=task, holdout=batches, tokenizer=self.tokenizer)
        subject.memo, subject.show_progress = self.memo, self.progress
        subject.sampled = about.get("source") == OWN_SAMPLES
        return Moment(step=0, phase="audit", source="audit", subject=subject)


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds a run which was not saved here."""
    try:
        check_replaceable(folder, AUDITED)
    except RunError as error:
        raise PosttrainError(str(error)) from error


def values_of(entry: Entry) -> dict[str, Any]:
    """The numbers of an entry; NaN is "not measured"."""
    return {name: math.nan if value is None else value for name, value in entry.values.items()}


def entries(record: Record, kind: str) -> dict[str, list[dict[str, Any]]]:
    """The numbers of a kind by scope, one dictionary per set of labels; `reasons` only where a number is missing."""
    by_scope: dict[str, list[dict[str, Any]]] = {}
    for entry in entries_of([record]):
        if entry.kind == kind:
            reasons = {"reasons": entry.reasons} if entry.reasons else {}
            by_scope.setdefault(entry.scope, []).append({**entry.labels, **values_of(entry), **reasons})
    return by_scope


def by_scope(record: Record, kind: str) -> dict[str, dict[str, Any]]:
    """The same for a kind whose scopes have one set of labels each."""
    return {scope: entry for scope, [entry] in entries(record, kind).items()}
