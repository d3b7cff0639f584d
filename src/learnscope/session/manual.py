"""A session that its caller drives: probes are fired at moments the caller describes, and recorded in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import nn

from learnscope.core.gradients import Gradients
from learnscope.core.handed import HandedOver
from learnscope.core.moment import Moment
from learnscope.core.probe import NEEDS, Probe
from learnscope.core.subject import Subject
from learnscope.model.guard import preserve_rng
from learnscope.record import Record
from learnscope.run import Run
from learnscope.session import ending
from learnscope.session.bound import Bound
from learnscope.session.engine import Engine
from learnscope.session.opening import begin, check_model, open_backend
from learnscope.sinks.base import LastRecords, Sink
from learnscope.store.backend import Backend, MemoryBackend, RunError
from learnscope.store.reader import RunReader
from learnscope.task import Task, task_for

States = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SavedSession:
    """What a session needs to go on: its run, and the states of the probes."""

    manifest: dict[str, Any]
    lines: list[str]
    arrays: dict[str, dict[str, NDArray[Any]]]
    states: dict[str, dict[str, Any]]
    """By the caller's names of the probes; tensors, or what JSON can hold."""
    last_step: int


class UnstoredBackend(MemoryBackend):
    """Keeps no records: they are read as soon as they are made."""

    def append(self, line: str) -> None:
        pass

    def put_arrays(self, reference: str, arrays: Mapping[str, Any]) -> bool:  # noqa: ARG002  (as above)
        return True


def own_backend(run: str | Path | None) -> Backend:
    """A new folder for a session that cannot continue one, or memory."""
    try:
        return open_backend(run, resume=False)
    except RunError as error:
        raise RunError(
            f"{run} already holds a run, and earlier data is never overwritten: name another folder for this one"
        ) from error


class ManualSession:
    """Probes by names that the caller chooses, fired at moments that the caller describes.

    The model may come with the first moment, and change from moment to moment, as the checkpoints of a training do.
    """

    def __init__(
        self, probes: Mapping[str, Probe], backend: Backend, *, source: str, strict: bool = True,
        sinks: Iterable[Sink] = (),
    ) -> None:  # fmt: skip
        self.newest = LastRecords()
        self.subject = Subject(nn.Identity())  # until there is a model
        self.engine = Engine(
            self.subject, [], backend, source=source, provides=NEEDS, sinks=[self.newest, *sinks], strict=strict
        )
        self.bound: dict[str, Bound] = {}
        for name, probe in probes.items():
            self.add(probe, name)
        self.begun = False
        """Whether there is a run to read yet."""
        self._live = False
        self._last_step = 0

    def add(self, probe: Probe, name: str | None = None) -> Bound:
        """Add a probe, by default under the name that its records have."""
        bound = self.engine.add(probe)
        self.bound[name or bound.label] = bound
        return bound

    def set_model(self, model: nn.Module) -> Subject:
        """Examine this model from now on."""
        if model is not self.subject.model:
            check_model(model)
            self.subject.model = model
        self.subject.refresh()
        return self.subject

    def open(self, model: nn.Module) -> Subject:
        """Examine this model from now on; before the first measurement the probes may refuse it."""
        self.set_model(model)
        if not self._live:
            self.engine.open_probes(self.moment("open", step=self._last_step))
            self.begin()
        return self.subject

    def begin(self, *, resume: bool = False, step: int = 0) -> None:
        """Write the manifest, unless there is one."""
        if not self.begun:
            begin(self.engine, resume=resume, step=step)
        elif not self._live:
            ending.opened(self.engine)  # it was closed, or taken over from a file, and goes on
        self.begun = self._live = True

    def set_data(self, task: Task | None, **data: Any) -> None:
        """Set the data that probes evaluate on, by fields of the subject, and how their batches are read."""
        for name, batches in data.items():
            setattr(self.subject, name, batches)
        if task is None:
            with preserve_rng():  # a data set that augments at random draws
                task = task_for(next(iter(next(iter(data.values())))), self.subject.model)
        self.subject.task = task

    def moment(
        self, phase: str, *, step: int, epoch: int | None = None, handed: HandedOver | None = None,
        take_gradients: Callable[[], Gradients] | None = None,
    ) -> Moment:  # fmt: skip
        return self.engine.moment(
            phase, step, epoch=epoch, take_gradients=take_gradients, handed=handed or HandedOver()
        )

    def fire(self, name: str, moment: Moment) -> None:
        """Let one probe measure; `take` returns its record."""
        self.engine.fire(self.bound[name], moment)

    def measure(self, moment: Moment) -> dict[str, Record]:
        """Let every probe measure; returns their records by name."""
        self.newest.take()  # of a measurement that failed half-way
        for name in self.bound:
            self.fire(name, moment)
        self._last_step = max(self._last_step, moment.step)
        return self.take()

    def take(self) -> dict[str, Record]:
        """The newest record, by name, of every probe that fired since the last call."""
        self.engine.write_out()
        taken = self.newest.take()
        return {name: taken[bound.label] for name, bound in self.bound.items() if bound.label in taken}

    @property
    def run(self) -> Run:
        self.engine.write_out()
        return Run(self.engine.backend)

    @property
    def reader(self) -> RunReader:
        return self.run.reader

    def state(self, name: str) -> dict[str, Any]:
        return self.bound[name].state

    def states(self) -> dict[str, dict[str, Any]]:
        for bound in self.bound.values():  # not only those that have fired: one may have taken batches in
            bound.probe.settle(bound.state)
        return {name: bound.saved_state() for name, bound in self.bound.items()}

    def restore_states(self, states: States, last_step: int = 0) -> None:
        """Set the states of the probes to those that `states` returned."""
        for name, bound in self.bound.items():
            bound.state.update(states.get(name, {}))
        self._last_step = last_step

    def saved(self) -> SavedSession:
        """What `restore` needs."""
        backend = self.engine.backend
        records = list(self.run.records(superseded=True)) if self.begun else []
        references = dict.fromkeys(record.arrays for record in records if record.arrays)
        return SavedSession(
            backend.manifest() if self.begun else {},
            [record.to_json() for record in records],
            {reference: backend.arrays(reference) for reference in references},
            self.states(),
            self._last_step,
        )

    def restore(self, earlier: SavedSession) -> None:
        """Go on from a saved session; only for a session that has not measured anything."""
        if self.begun:
            raise RuntimeError(
                "this analyzer has looked at a model already: what it saw would be mixed with the file's"
            )
        if earlier.states.keys() != self.bound.keys():
            raise ValueError(
                f"probes {', '.join(self.bound)} cannot take up the memory of {', '.join(earlier.states) or 'none'}"
            )
        self.restore_states(earlier.states, earlier.last_step)
        if not earlier.manifest:
            return
        backend = self.engine.backend
        backend.put_manifest(earlier.manifest)
        for reference, arrays in earlier.arrays.items():
            backend.put_arrays(reference, arrays)
        for line in earlier.lines:
            backend.append(line)
        self.engine.attempt, self.begun = len(earlier.manifest["attempts"]) - 1, True
        records = earlier.manifest["attempts"][-1].get("records") or {"written": len(earlier.lines), "lost": 0}
        self.engine.goes_on_from(records["written"], records["lost"])

    def close(self, status: str = "finished", last_step: int | None = None) -> None:
        """Finish the run, if there is one. A later measurement opens it again."""
        if self.engine.inherited:
            return
        self.engine.close()
        if self._live:
            ending.finish(self.engine, status, last_step=self._last_step if last_step is None else last_step)
        self._live = False
        self.engine.backend.close()
