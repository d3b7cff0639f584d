"""A finished model under examination: probes fired one by one, and the run that remembers what they said last."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.core.moment import Moment
from learnscope.core.probe import NEEDS, Probe
from learnscope.core.subject import Subject
from learnscope.model.data import fixed_batches
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.reader import check_tokens
from learnscope.record import Record
from learnscope.run import Run, open_run
from learnscope.session.manifest import new_manifest
from learnscope.session.opening import check_model
from learnscope.session.replay import opened
from learnscope.sinks.base import LastRecords
from learnscope.store.backend import Backend, MemoryBackend, RunError, check_replaceable, replace_run
from learnscope.store.memo import Memo
from learnscope.task import Task, task_for

AUDITED = "audited"
"""The entry of a manifest that marks runs written here: the model's name, and facts that no probe measures."""


class Examined:
    """A model, how its batches are read, and what probes have said about it.

    With `cache`, a folder, results are remembered by content: of the same weights on the same data nothing is computed
    twice, also by another process.
    """

    def __init__(
        self, model: nn.Module, *, task: Task | None = None, tokenizer: Any = None, name: str = "model",
        cache: str | Path | None = None, progress: bool = False,
    ) -> None:  # fmt: skip
        check_model(model)
        self.model, self.task, self.tokenizer, self.name, self.progress = model, task, tokenizer, name, progress
        self.memo = Memo(None if cache is None else _writable(Path(cache)))
        self._looks: dict[str, tuple[Probe, Record, Backend]] = {}
        self._shared: Moment | None = None

    def look(self, probe: Probe, data_loader: Any) -> Record:
        """Fire the probe at the model on these data: any loader, data set, list of batches, or one batch.

        What fails is raised. Asked again, a probe's later record takes the place of its earlier one.
        """
        moment = self._shared if self._shared is not None else self._moment(data_loader)
        last = LastRecords()
        engine = opened(
            moment.subject, [probe], None, source="audit", provides=set(NEEDS), sinks=[last], strict=True
        )  # fmt: skip
        [bound] = engine.bound
        engine.fire(bound, moment)
        engine.flush()
        record = last.take()[bound.label]
        self._looks[bound.label] = probe, record, engine.backend
        return record

    @contextmanager
    def together(self, data_loader: Any) -> Iterator[None]:
        """Within it, looks share what they ask for; the weights must stay as they are meanwhile."""
        if self._shared is not None:
            yield
            return
        self._shared = self._moment(data_loader)
        try:
            yield
        finally:
            self._shared = None

    def record(self, probe: str) -> Record | None:
        """What the probe of this name said last; None if it has not looked."""
        return self._looks[probe][1] if probe in self._looks else None

    @property
    def run(self) -> Run:
        """All that was said, as a run in memory."""
        return Run(self._backend({}))

    def save(self, folder: Path, about: Mapping[str, Any]) -> Run:
        """All that was said, as a run folder, in place of one that was saved there before; `about` is kept with it."""
        check_folder(folder)
        replace_run(self._backend({AUDITED: {"name": self.name, "about": dict(about)}}), folder)
        return open_run(folder)

    def _backend(self, facts: Mapping[str, Any]) -> MemoryBackend:
        backend = MemoryBackend()
        probes = [(label, probe) for label, (probe, _, _) in self._looks.items()]
        manifest = new_manifest("audit", Subject(self.model), probes, git=False)
        times = [record.time for _, record, _ in self._looks.values()]
        attempt = {"attempt": 0, "start_step": 0, "started": min(times, default=0.0), "last_step": 0}
        backend.put_manifest({**manifest, "attempts": [attempt], "status": "finished", **facts})
        for _, record, kept in self._looks.values():
            backend.append(record.to_json())
            if record.arrays is not None:
                backend.put_arrays(record.arrays, kept.arrays(record.arrays))
        return backend

    def _moment(self, data_loader: Any) -> Moment:
        batches = fixed_batches(data_loader, self.task)
        check_tokens(self.model, batches)
        task = self.task or task_for(batches[0], self.model)
        subject = Subject(self.model, task=task, holdout=batches, tokenizer=self.tokenizer)
        subject.memo, subject.show_progress = self.memo, self.progress
        return Moment(step=0, phase="audit", source="audit", subject=subject)


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds a run which was not saved here."""
    try:
        check_replaceable(folder, AUDITED)
    except RunError as error:
        raise PosttrainError(str(error)) from error


def _writable(folder: Path) -> Path:
    """Said now: what cannot be kept would only come up when the first result has been computed."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise PosttrainError(f"cache={str(folder)!r}: {there} is no folder that can be written to; name another")
    return folder
