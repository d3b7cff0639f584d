"""The engine of every session: moments in, records out."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, ProbeWarning, is_due
from learnscope.core.subject import Subject
from learnscope.model.guard import guard, preserve_rng
from learnscope.record import Record
from learnscope.session.bound import Bound, Firing
from learnscope.session.budget import Budget
from learnscope.session.materialise import (
    as_measurement,
    is_alarming,
    may_wait,
    read_arrays,
    read_measured,
    waits_for_device,
)
from learnscope.session.noted import Lines, Noted
from learnscope.session.subject import check_needs, check_parameters
from learnscope.session.writing import Writer
from learnscope.store.backend import Arrays, Backend

if TYPE_CHECKING:
    from learnscope.sinks.base import Sink

FED = frozenset({"logged", "batch", "examples"})
"""Needs that the loop meets by calling the session, so that whether they are met is known only while it runs."""
PENDING_LIMIT = 16
"""Records whose numbers may still be on an accelerator before all are read with one wait."""


class Engine(Writer):
    """Fires probes, writes what they return, and never lets their failures reach the training loop."""

    def __init__(
        self,
        subject: Subject,
        probes: Sequence[Probe],
        backend: Backend,
        *,
        source: str,
        provides: Iterable[str],
        sinks: Sequence[Sink] = (),
        strict: bool = False,
        budget: float | None = None,
        record_command: bool = True,
        write_every: int = 1,
        write_seconds: float = 0.0,
    ) -> None:
        super().__init__(backend, sinks, strict=strict, write_every=write_every, write_seconds=write_seconds)
        self.subject, self.source, self.provides = subject, source, frozenset(provides)
        self.budget = Budget(budget)
        self.guarding = False
        """Whether a probe is running the model right now, which then is not as the training left it."""
        self.closer: Callable[[str], None] | None = None
        """Ends the session with a status when its process ends; without one, nothing more than the run is closed."""
        self.closed_by_its_owner = False
        """Whether somebody else closes it when the process ends."""
        self.record_command = record_command
        self.bound: list[Bound] = []
        self._sorted: tuple[int, dict[str, list[Bound]]] = (0, {})
        self._pending: list[Firing | Noted] = []
        self.lines = Lines(self.moment, self._record)
        for probe in probes:
            self.add(probe)

    def add(self, probe: Probe) -> Bound:
        """Add a probe, if this source can give it what it needs."""
        if not isinstance(probe, Probe):
            kind = probe.__name__ if isinstance(probe, type) else type(probe).__name__
            hint = f"write {kind}() with its parentheses" if isinstance(probe, type) else "see ls.probe"
            raise TypeError(f"probes are instances of learnscope.Probe; {kind} is not: {hint}")
        check_needs(probe, self.source, self.provides)
        check_parameters(probe, self.subject)
        name, taken = type(probe).__name__, {bound.label for bound in self.bound}
        labels = (name if number == 1 else f"{name}_{number}" for number in count(1))
        bound = Bound(probe, next(label for label in labels if label not in taken))
        self.bound.append(bound)
        return bound

    def moment(self, phase: str, step: int, **details: Any) -> Moment:
        return Moment(phase=phase, step=step, source=self.source, subject=self.subject, **details)

    def open_probes(self, moment: Moment) -> None:
        """Call `open` of the probes, which may raise to refuse the session."""
        for bound in self.bound:
            if type(bound.probe).open is not Probe.open:
                moment.state = bound.state
                with torch.no_grad(), preserve_rng() if bound.probe.reads_only else guard(self.subject.model):
                    bound.probe.open(moment)

    def due(self, at: str, number: int) -> list[Bound]:
        """The probes that are due at this step (or epoch) and granted by the budget.

        Those that need what the loop hands over fire when it has, or at the end of the epoch for which they collected.
        """
        return [
            bound
            for bound in self._measuring(at)
            if (not bound.probe.needs & FED or bound.waiting)
            and (at in ("once", "end") or is_due(bound.probe.every, number))
            and self.granted(bound)
        ]

    def _measuring(self, at: str) -> list[Bound]:
        """The probes of one moment of the loop."""
        if len(self.bound) != self._sorted[0]:
            by_moment: dict[str, list[Bound]] = {}
            for bound in self.bound:
                by_moment.setdefault(bound.probe.at, []).append(bound)
            self._sorted = (len(self.bound), by_moment)
        return self._sorted[1].get(at, [])

    def granted(self, bound: Bound) -> bool:
        """Whether the budget lets a due probe fire; if not, its next record will say that it was skipped."""
        if self.budget.grants(bound.label, bound.share):
            return True
        bound.skipped += 1
        return False

    def prepare(self, bound: Bound, moment: Moment) -> None:
        if self.inherited:
            return
        started = time.perf_counter()  # called at every step for some probes: no context for it
        moment.state = bound.state
        try:
            self._attempt(bound, moment, lambda: bound.probe.prepare(moment), "prepare")
        finally:
            self.budget.add(bound.label, time.perf_counter() - started)

    @contextmanager
    def charged(self, bounds: Sequence[Bound]) -> Iterator[None]:
        """Charge the time of the block to these probes, in equal shares."""
        started = time.perf_counter()
        try:
            yield
        finally:
            for bound in bounds:
                self.budget.add(bound.label, (time.perf_counter() - started) / len(bounds))

    def fire(self, bound: Bound, moment: Moment) -> None:
        """Measure, and write the record. A failure becomes a warning and an error record."""
        if self.inherited:
            return
        started = time.perf_counter()
        moment.state = bound.state
        firing = Firing(bound, moment.step, moment.epoch, moment.phase, time.time(), started)
        if self.write_every > 1 and bound.probe.may_measure_later(moment):
            firing.moment = moment
            self._keep(firing, alarming=False)
        elif bound.probe.reads_only:
            self._attempt(bound, moment, lambda: self._measure(firing, moment, then_read=True), "measure")
        elif self._attempt(bound, moment, lambda: self._measure(firing, moment), "measure"):
            self._attempt(bound, moment, lambda: self._read(firing), "record")
        bound.fired += 1
        bound.last_step = moment.step
        bound.waiting = 0
        self.budget.charge(bound.label, time.perf_counter() - started)

    def keep_noted(self, noted: Noted) -> None:
        """Keep what the loop logged; its line is made when it is written."""
        self._pending.append(noted)
        self.hold(noted.step)
        if noted.step - self._first_waiting >= self.write_every - 1:  # `is_full`, without a call at every step
            self.write_out()

    def _measure(self, firing: Firing, moment: Moment, *, then_read: bool = False) -> bool:
        """Whether anything was measured; a probe that needs no guard can be read in the same attempt."""
        firing.measured = as_measurement(firing.bound.probe.measure(moment))
        if firing.measured is not None and then_read:
            self._read(firing)
        return firing.measured is not None

    def _read(self, firing: Firing) -> None:
        """Make the record, or leave its numbers on the device if it may be read with others later."""
        assert firing.measured is not None
        bound = firing.bound
        on_device = bound.probe.every == 1 and waits_for_device(firing.measured)
        if not on_device and (self.write_every == 1 or not may_wait(firing.measured)):
            firing.skipped, bound.skipped = bound.skipped, 0
            self.flush()
            self.write(self._finished(firing))
        elif on_device:
            self._wait(firing)
            if len(self._pending) >= PENDING_LIMIT:
                self.write_out()
        else:
            self._keep(firing, alarming=is_alarming(firing.measured))

    def _wait(self, firing: Firing) -> None:
        """The record is made later, with others."""
        bound = firing.bound
        firing.skipped, bound.skipped = bound.skipped, 0
        firing.cost = time.perf_counter() - firing.started
        self._pending.append(firing)
        self.hold(firing.step)

    def _keep(self, firing: Firing, *, alarming: bool) -> None:
        """The same, as far as records may wait; the end of the step sees that it is not too long."""
        self._wait(firing)
        if alarming or self.is_full(firing.step):
            self.write_out()

    def flush(self) -> None:
        """Make the records of what waits: many at once, as each alone finds nothing of this code in the caches."""
        if not self._pending:
            return
        with self.uninterrupted():
            pending, self._pending = self._pending, []
            for firing in pending:
                if isinstance(firing, Noted):
                    self.append_line(self.lines.of(firing), firing.step)
                    self.budget.charge(firing.bound.label, firing.cost)
                    continue
                started = time.perf_counter()
                try:
                    with firing.bound.first_time("record"):
                        if firing.moment is not None:
                            firing.moment.state = firing.bound.state
                            firing.measured = as_measurement(firing.bound.probe.measure(firing.moment))
                        record = self._finished(firing)
                except Exception as error:  # as for a record that is made at once
                    if self.strict:
                        raise
                    record = self._failed(firing.bound, firing, error)
                self.append(record)
                self.budget.add(firing.bound.label, time.perf_counter() - started)

    def close(self) -> None:
        self.write_all()
        self.passing.close_direct()  # `ending.finish` waits for sinks that have a queue

    def memories(self) -> list[str]:
        return [b.label for b in self.bound if "previous" in b.probe.needs or b.saved_state()]

    def _finished(self, firing: Firing) -> Record:
        """Read what was measured, and make its record."""
        begun, measured = time.perf_counter(), firing.measured
        assert measured is not None
        tables = read_measured(measured)
        notes = {**measured.notes, **({"skipped_by_budget": firing.skipped} if firing.skipped else {})}
        reference = None
        if measured.arrays:
            reference = f"arrays/{firing.bound.label}-{firing.step:010d}-{firing.phase}-{self.attempt}.safetensors"
            if not self._put_arrays(firing.bound.label, reference, read_arrays(measured.arrays)):
                reference, notes = None, {**notes, "arrays": "could not be written"}
        if (ledger := measured.examples) is not None:
            self.keep_examples(ledger, may_wait=firing.phase == "epoch")
        now = time.perf_counter()
        cost = now - firing.started if firing.cost is None else firing.cost + now - begun
        return self._record(firing.bound, firing, firing.time, cost, tables=tables, arrays=reference, notes=notes)

    def _put_arrays(self, label: str, reference: str, arrays: Arrays) -> bool:
        stored = self.store_file(f"arrays of {label}", lambda: self.backend.put_arrays(reference, arrays))
        return bool(stored)

    def _attempt(self, bound: Bound, moment: Moment, action: Any, part: str) -> Any:
        guarded = part != "record" and not bound.probe.reads_only
        self.guarding = guarded
        try:
            with torch.no_grad(), guard(self.subject.model) if guarded else bound.first_time(part):
                return action()
        except Exception as error:
            if self.strict:
                raise
            self.write(self._failed(bound, moment, error))
            return None
        finally:
            self.guarding = False

    def _failed(self, bound: Bound, moment: Moment | Firing, error: Exception) -> Record:
        """The record of a failure, of which the first of a probe is a warning too."""
        if not bound.warned:
            bound.warned = True
            text = "".join(traceback.format_exception(error))
            warnings.warn(
                f"{bound.label} failed at step {moment.step}; training goes on, and later failures of it are only "
                f"recorded:\n{text}",
                ProbeWarning,
                stacklevel=4,
            )
        return self._record(bound, moment, time.time(), 0.0, error=f"{type(error).__name__}: {error}")

    def _record(self, bound: Bound, moment: Moment | Firing, when: float, cost: float, **content: Any) -> Record:
        return Record(
            probe=bound.label, step=moment.step, epoch=moment.epoch, phase=moment.phase, source=self.source,
            attempt=self.attempt, time=when, cost=cost, **content,
        )  # fmt: skip
