"""What the analyzers share: a model at a moment, probes that look at it, and the run that remembers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import nn

from learnscope.core.moment import Gradients, Moment
from learnscope.core.probe import NEEDS, Probe
from learnscope.core.subject import Subject
from learnscope.model.guard import preserve_rng
from learnscope.record import Column, Record, Table
from learnscope.run import Run
from learnscope.session.engine import Bound, Engine
from learnscope.session.opening import begin, check_model, finish, open_backend
from learnscope.sinks.last import LastRecords
from learnscope.store.backend import RunError
from learnscope.store.reader import RunReader
from learnscope.task import Task, task_for

Value = float | int | None


@dataclass(frozen=True, slots=True)
class Remembered:
    """All that looks so far left behind: the run, and the probes' own small memories."""

    manifest: dict[str, Any]
    """Empty if nothing has been looked at yet."""
    lines: list[str]
    """One record each."""
    arrays: dict[str, dict[str, NDArray[Any]]]
    """By the reference under which a record names them."""
    states: dict[str, dict[str, Any]]
    """By the analyzer's name of the probe; tensors, or what JSON can hold."""
    last_step: int


class Looking:
    """Probes by a name of the analyzer's own, fired one moment at a time; what fails is raised, not swallowed.

    The run is in memory unless a folder is given. It begins with the first look, since a model belongs to it; every
    look may be at another model, such as the checkpoints of one training.
    """

    def __init__(self, probes: Mapping[str, Probe], *, run: str | Path | None = None, source: str = "dynamics") -> None:
        self._probes, self._source = dict(probes), source
        try:
            self._backend = open_backend(run, resume=False)
        except RunError as error:
            raise RunError(
                f"{run} already holds a run, and earlier data is never overwritten: name another folder for this one"
            ) from error
        self._last = LastRecords()
        self._engine: Engine | None = None
        self.bound: dict[str, Bound] = {}
        self._last_step = 0
        self._begun = False
        self._attempt = 0
        self._states: dict[str, dict[str, Any]] = {name: {} for name in probes}

    def look(
        self, model: nn.Module, *, step: int, epoch: int | None, phase: str = "epoch", task: Task | None = None,
        data: Mapping[str, Any] | None = None, take_gradients: Callable[[], Gradients] | None = None,
        only: str | None = None, logged: Mapping[str, Sequence[Any]] | None = None,
    ) -> dict[str, Record]:  # fmt: skip
        """Fire the probes (or one of them) at this model; their records, by the analyzer's names.

        `data` are fields of the subject: `holdout`, `train_data`, `test_data`, each an iterable of batches.
        `logged` are numbers of the loop's, for the probe `Loss`.
        """
        engine = self._opened(model)
        subject = engine.subject
        if model is not subject.model:
            check_model(model)
            subject.model = model
        subject.refresh()
        for name, batches in (data or {}).items():
            setattr(subject, name, batches)
        if task is not None:
            subject.task = task
        elif data:
            with preserve_rng():  # a data set that augments at random draws
                subject.task = task_for(next(iter(next(iter(data.values())))), model)
        moment = Moment(
            step=step,
            epoch=epoch,
            phase=phase,
            source=self._source,
            subject=subject,
            take_gradients=take_gradients,
            logged=logged or {},
        )
        self._last.take()  # of a look that failed half-way
        for name, bound in self.bound.items():
            if only is None or name == only:
                engine.fire(bound, moment)
        engine.flush()
        self._last_step = max(self._last_step, step)
        taken = self._last.take()
        return {name: taken[bound.label] for name, bound in self.bound.items() if bound.label in taken}

    @property
    def run(self) -> Run:
        """All that was recorded."""
        return Run(self._backend)

    @property
    def begun(self) -> bool:
        """Whether there is a run to read yet."""
        return self._begun

    @property
    def reader(self) -> RunReader:
        """The same, for analyses."""
        return RunReader(self._backend)

    def subject(self, model: nn.Module) -> Subject:
        """What is looked at, for those who need its parameters in order."""
        subject = self._opened(model).subject
        subject.model = model
        subject.refresh()
        return subject

    def state(self, name: str) -> dict[str, Any]:
        """A probe's own small memory."""
        return self._states[name]

    def remembered(self) -> Remembered:
        """What `remember` needs to go on from here."""
        for name, probe in self._probes.items():  # not only those that have looked: one may have taken batches in
            probe.settle(self._states[name])
        records = list(self.run.records(superseded=True)) if self._begun else []
        references = dict.fromkeys(record.arrays for record in records if record.arrays)
        # what begins with _ is kept only between the two halves of one look
        states = {
            name: {key: kept for key, kept in state.items() if not key.startswith("_")}
            for name, state in self._states.items()
        }
        return Remembered(
            self._backend.manifest() if self._begun else {},
            [record.to_json() for record in records],
            {reference: self._backend.arrays(reference) for reference in references},
            states,
            self._last_step,
        )

    def remember(self, earlier: Remembered) -> None:
        """Go on from there; only for one that has not looked at anything."""
        if self._begun:
            raise RuntimeError(
                "this analyzer has looked at a model already: what it saw would be mixed with the file's"
            )
        if earlier.states.keys() != self._probes.keys():
            raise ValueError(
                f"probes {', '.join(self._probes)} cannot take up the memory of {', '.join(earlier.states) or 'none'}"
            )
        self._states = {name: dict(state) for name, state in earlier.states.items()}
        self._last_step = earlier.last_step
        if not earlier.manifest:
            return
        self._backend.put_manifest(earlier.manifest)
        for reference, arrays in earlier.arrays.items():
            self._backend.put_arrays(reference, arrays)
        for line in earlier.lines:
            self._backend.append(line)
        self._attempt, self._begun = len(earlier.manifest["attempts"]) - 1, True

    def close(self) -> None:
        """Finish the run, if there is one on disk."""
        if self._engine is not None:
            self._engine.close()
            finish(self._engine, "finished", last_step=self._last_step)
            self._engine = None
        self._backend.close()

    def _opened(self, model: nn.Module) -> Engine:
        if self._engine is None:
            check_model(model)
            subject = Subject(model)
            self._engine = Engine(
                subject, [], self._backend, source=self._source, provides=NEEDS, sinks=[self._last], strict=True
            )
            self.bound = {name: self._engine.add(probe) for name, probe in self._probes.items()}
            for name, bound in self.bound.items():
                bound.state = self._states[name]
            try:
                self._engine.open_probes(
                    Moment(step=self._last_step, phase="open", source=self._source, subject=subject)
                )
            except BaseException:
                self._engine, self.bound = None, {}
                raise
            if self._begun:
                self._engine.attempt = self._attempt
            else:
                begin(self._engine, subject, resume=False, step=0)
                self._begun = True
        return self._engine


def value(record: Record, name: str, scope: str | None = None, **labels: Any) -> Value:
    """One number of a record; None if it was not measured or is not there."""
    for table, column in _columns(record, name, labels):
        for place, here in enumerate(table.scopes):
            if scope is None or here == scope:
                found: Value = column.values[place]
                return found
    return None


def by_scope(record: Record, kind: str, name: str, **labels: Any) -> tuple[dict[str, float], dict[str, str]]:
    """One number of every scope of a kind, NaN where there is none, and the reasons of those that have none."""
    numbers: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for table, column in _columns(record, name, labels):
        if table.kind == kind:
            for place, (scope, number) in enumerate(zip(table.scopes, column.values, strict=True)):
                numbers[scope] = math.nan if number is None else float(number)
                if number is None:
                    reasons[scope] = column.status.get(place, "not measured")
    return numbers, reasons


def _columns(record: Record, name: str, labels: Mapping[str, Any]) -> Iterator[tuple[Table, Column]]:
    """Those of a name that bear these labels, each with its table."""
    for table in record.tables:
        for column in table.columns:
            if column.name == name and all(column.labels.get(key) == wanted for key, wanted in labels.items()):
                yield table, column
