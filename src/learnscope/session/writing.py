"""What a session writes: records, files beside them, and in run.json how much of both there is."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from learnscope.core.probe import ProbeWarning
from learnscope.model.collector import no_collection
from learnscope.record import SKIPPED, Record, nonfinite
from learnscope.session.telling.passing import Passing
from learnscope.store.backend import WRITE_ERRORS, Backend, LedgerLike, LinesLost

if TYPE_CHECKING:
    from learnscope.sinks.base import Sink

P = ParamSpec("P")
R = TypeVar("R")
FIRST_NOTE, NOTES_APART = 1.0, 60.0
"""Seconds until run.json first says how many records there are, and the most between two times; the pauses double."""


class Alerting(Protocol):
    """What judges a run when records were written; see `session/telling/alerts.py`."""

    def look(self) -> None: ...


class Writer:
    """Writes to a run and to sinks, and counts what could not be written instead of stopping the training."""

    source = ""
    """What kind of session it is."""

    def __init__(
        self, backend: Backend, sinks: Sequence[Sink], *, strict: bool, write_every: int = 1, write_seconds: float = 0.0
    ) -> None:
        self.backend, self.sinks, self.strict = backend, list(sinks), strict
        self.write_every, self.write_seconds = write_every, write_seconds
        """Records wait until they are of so many steps, or nothing was written for so long."""
        self._waiting = self._first_waiting = 0
        """Records that wait, and the step of the first."""
        self._last_write = time.time()
        self.alerts: Alerting | None = None
        """What is told while the training goes on."""
        self.writing = False
        self.after_writing: Callable[[], object] | None = None
        """What a signal had to put off until the records that were being written are there."""
        self.gather: Callable[[], object] | None = None
        """What hands over the numbers that wait elsewhere, before records are written."""
        self.attempt = 0
        self.last_step = 0
        self._there_before = backend.lines_written
        self.lost = self.files_lost = 0
        """Records that could not be written, and other files that could not."""
        self.inherited = False
        """Whether this is the copy of a session in a forked child, which does nothing."""
        self._pause, self._next_note = FIRST_NOTE, time.time() + FIRST_NOTE
        self._ledger: LedgerLike | None = None
        """The ledger of examples, if it waits to be written."""
        self._ledger_written = 0.0
        self._warned: set[str] = set()
        self.passing = Passing(self.sinks, self.warn, strict=strict)

    @property
    def written(self) -> int:
        """Records in the run, counted where they are written: a signal may come between a record and its line."""
        return self.backend.lines_written - self._there_before

    def goes_on_from(self, written: int, lost: int) -> None:
        """This attempt had so many records before, from another session."""
        self._there_before, self.lost = self.backend.lines_written - written, lost

    def memories(self) -> list[str]:
        """The labels of the probes that remember something between two measurements."""
        return []

    def write(self, record: Record) -> None:
        """Append to the run and pass to the sinks; a failure of either does not stop the training."""
        if self.inherited:
            return
        self.hold(record.step)
        self.append(record)
        if self.is_full(record.step) or is_alarming(record):
            self.write_out()
        self.write_in_time(record.time)

    def hold(self, step: int) -> None:
        """A record of this step waits to be written, or to be made and written."""
        if not self._waiting:
            self._first_waiting = step
        self._waiting += 1

    def is_full(self, step: int) -> bool:
        """Whether what waits is of so many steps that it has to be written."""
        return step - self._first_waiting >= self.write_every - 1

    def full_at(self, step: int) -> int:
        """The step whose records have to be written at once, if those of `step` wait."""
        return (self._first_waiting if self._waiting else step) + self.write_every - 1

    def look_at(self, now: float) -> float:
        """When what waits has to be written, as `write_in_time` has just been called."""
        due = self._last_write + self.write_seconds
        return due if self._waiting and due > now else now + self.write_seconds

    def append(self, record: Record) -> None:
        """Pass a record to the run, where it waits to be written, and to the sinks."""
        self.append_line(record.to_json(), record.step - (record.phase == SKIPPED))
        self.passing.write(record)

    def append_line(self, line: str, step: int) -> None:
        """Pass the line of a record to the run, after which so many steps had been taken; sinks are not told of it."""
        self.backend.append_later(line)
        self.last_step = max(self.last_step, step)

    def write_in_time(self, now: float) -> None:
        """Write the records that wait if nothing was written for long, and now and then how many there are.

        Called at the end of every step too.
        """
        if self._waiting and not 0 <= now - self._last_write < self.write_seconds:
            self.write_out()
        if now > self._next_note and (self._waiting or self.written):
            self._pause = min(2 * self._pause, NOTES_APART)
            self._next_note = now + self._pause
            self.store_file("run.json", self.note)
        if self._ledger is not None and not 0 <= now - self._ledger_written < self.write_seconds:
            self.write_ledger()

    def keep_examples(self, ledger: LedgerLike, *, may_wait: bool) -> None:
        """Write the ledger of examples, at once unless it was written just now and may wait, as may records."""
        self._ledger = ledger
        if not may_wait or not 0 <= time.time() - self._ledger_written < self.write_seconds:
            self.write_ledger()

    def write_ledger(self) -> None:
        """Write the ledger of examples as it is now, if it waits."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            self.store_file("the ledger of examples", lambda: self.backend.put_examples(ledger))
            self._ledger_written = time.time()

    def write_all(self) -> None:
        """Write whatever waits."""
        self.write_ledger()
        self.write_out()

    def write_out(self) -> None:
        """Write the records that wait; those that cannot be written are counted, and training goes on."""
        if self.inherited:
            return
        if self.gather is not None:
            self.gather()
        self._last_write = time.time()
        # many objects are made here and gone at its end: enough, else, for a collection of all that the process holds
        with self.uninterrupted(), no_collection():
            self.flush()
            self._waiting = 0
            try:
                self.backend.write_out()
            except LinesLost as error:
                self.lost += error.lost
                if self.strict:
                    raise
                self.warn("store", f"a record could not be written ({error}); training goes on, records are being lost")
            self.passing.release()
        if self.alerts is not None:
            self.alerts.look()

    def flush(self) -> None:
        """Make the records of what was measured and waits."""

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """A signal that ends the process waits for the end of the block, as what it writes would be there by halves."""
        outermost, self.writing = not self.writing, True
        try:
            yield
        finally:
            if outermost:
                self.writing = False
                put_off, self.after_writing = self.after_writing, None  # it writes too, and must not come again
                if put_off is not None:
                    put_off()

    def store_file(self, name: str, action: Callable[[], R]) -> R | None:
        """Write another file of the run; if that fails, training goes on without it, and the run says so."""
        if self.inherited:
            return None
        try:
            return action()
        except Exception as error:  # whatever it is, it is ours and not the training's: reported, not passed on
            if self.strict:
                raise
            self.files_lost += 1
            cause = error if isinstance(error, WRITE_ERRORS) else f"{type(error).__name__}: {error}"
            self.warn(f"store {name}", f"{name} could not be written ({cause}); training goes on without it")
            return None

    def safely(self, action: Callable[P, R]) -> Callable[P, R | None]:
        """`action` with a warning in place of an error that would stop the training, unless the session is strict."""

        def safe(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return action(*args, **kwargs)
            except Exception:  # noqa: BLE001  (whatever it is, it is ours and not the training's: reported)
                self.failed(action.__name__)
                return None

        return safe

    def failed(self, name: str) -> None:
        """Warn of the exception that is being handled, or raise it again if the session is strict."""
        if self.strict:
            raise  # what the caller has caught
        what = {"watch": "watching", "analysis": "the analysis"}.get(self.source, self.source)
        self.warn(f"failure in {name}", f"{what} failed, training goes on:\n{traceback.format_exc()}")

    @property
    def has_losses(self) -> bool:
        return self.lost > 0 or self.files_lost > 0

    def note(self, status: str | None = None, **facts: Any) -> None:
        """Say in run.json how much has been written, which probes have a memory, and other facts of the attempt."""
        self.write_out()
        manifest = self.backend.last_manifest()
        if not manifest:  # a session that writes no run
            return
        counts: dict[str, Any] = {
            "records": {"written": self.written, "lost": self.lost},
            "files_lost": self.files_lost,
        }
        if accounts := self.passing.accounts():
            counts["sinks"] = accounts
        manifest["attempts"][-1] |= {**counts, "memories": self.memories(), **facts}
        self.backend.put_manifest(manifest if status is None else {**manifest, "status": status})

    def warn(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(message, ProbeWarning, stacklevel=3)


def is_alarming(record: Record) -> bool:
    """Whether a record has to be there if the process dies next: of a failure, or of numbers that are not finite."""
    return record.error is not None or any(
        column.status and any(map(nonfinite, column.status.values()))
        for table in record.tables
        for column in table.columns
    )
