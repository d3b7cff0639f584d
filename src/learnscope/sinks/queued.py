"""A queue and a thread around a sink, so that training never waits for it."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from learnscope.record import Finding, Record
from learnscope.sinks.base import Opening, Sink

LIMIT = 1_000_000
"""Numbers that may wait for a sink: some 50 MB. Records beyond are dropped, and counted."""
OF_A_RECORD = 30
"""What a record takes besides its numbers, counted in numbers."""
AT_ONCE = 500
"""The most records that a sink is given in one call."""
PATIENCE = 30.0
"""Seconds that closing waits for a sink to take what is left."""


class Queued:
    """Takes records at once, and passes them to a sink from a thread of its own, in order.

    The queue is bounded: while it is full, records are dropped. What the sink has `taken`, what was `dropped` (a full
    queue, or not delivered when closing gave up) and the `errors` (records of calls that raised) are counted;
    `failure` is the traceback of the first error. Nothing here raises or waits, except `close`, which waits for at
    most `patience` seconds.

    `ls.watch(sinks=[…])` puts one before every sink that is not `direct`; make your own to change its limits:
    `Queued(WandbSink(), patience=120)`.

    Counters have one writer each, and the queue is one that a signal's handler may use in the middle of a `put`: no
    lock is held that a handler, a fork or the end of the process could find taken.
    """

    def __init__(self, sink: Sink, *, limit: int = LIMIT, patience: float = PATIENCE) -> None:
        self.sink, self.limit, self.patience = sink, limit, patience
        self.taken = self.errors = 0
        self.failure: str | None = None
        self.told = False
        """Whether the failure was told."""
        self.dead = False
        self.answered = threading.Event()
        """Set when the sink has come back from its first call."""
        self._full = self._given = self._gone = 0
        self._size_in = self._size_out = 0
        self._waiting: SimpleQueue[Record | Callable[[], object] | None] = SimpleQueue()
        self._given_up = self._ended = False
        self._undelivered = 0
        name = f"learnscope {type(sink).__name__}"
        self._thread = threading.Thread(target=self._deliver, name=name, daemon=True)  # a daemon: exit never waits
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._full + self._undelivered

    @property
    def kept(self) -> dict[str, Any]:
        return dict(getattr(self.sink, "kept", {}))

    def open(self, opening: Opening) -> None:
        """Open the sink in this thread."""
        if (opens := getattr(self.sink, "open", None)) is not None:
            opens(opening)

    def is_dead(self) -> None:
        """The sink could not be opened: it is not called any more, and all that it would have taken is dropped."""
        self.dead = self._ended = self._given_up = True
        self._waiting.put(None)

    def write(self, record: Record) -> None:
        size = size_of(record)
        if self._ended or self._size_in - self._size_out + size > self.limit:
            self._full += 1
            return
        self._given += 1
        self._size_in += size
        self._waiting.put(record)

    def alert(self, finding: Finding) -> None:
        """Alerts are few and are never dropped for want of room."""
        tells = getattr(self.sink, "alert", None)
        if tells is not None and not self._ended:
            self._waiting.put(lambda: tells(finding))

    def end(self) -> None:
        """Close the sink when it has taken what waits; comes back at once."""
        if not self._ended:
            self._ended = True
            self._waiting.put(None)

    def wait(self, seconds: float) -> int:
        """Wait for the end for at most so long; gives the number of records that were not delivered."""
        if not self._given_up:
            self._thread.join(max(seconds, 0.0))
            self._given_up = True  # should the sink come back later, it gets no more
            self._undelivered = self._given - self._gone
        return self._undelivered

    def close(self) -> None:
        self.end()
        self.wait(self.patience)

    # in the thread

    def _deliver(self) -> None:
        for item in self._items():
            if self._given_up:
                return
            if isinstance(item, list):
                self._pass_on(item)
            else:
                self._call(item, 0)

    def _items(self) -> Iterator[list[Record] | Callable[[], object]]:
        """What waits: records together, as far as the sink takes several; at last, the sink's own end."""
        several = AT_ONCE if hasattr(self.sink, "write_all") else 1
        records: list[Record] = []
        while True:
            try:
                item = self._waiting.get(block=not records)
            except Empty:
                yield records
                records = []
                continue
            if isinstance(item, Record):
                records.append(item)
            if records and (len(records) == several or not isinstance(item, Record)):
                yield records
                records = []
            if item is None:
                yield self.sink.close
                return
            if not isinstance(item, Record):
                yield item

    def _pass_on(self, records: list[Record]) -> None:
        write_all: Callable[[Sequence[Record]], object] | None = getattr(self.sink, "write_all", None)
        done = self._call(
            lambda: write_all(records) if write_all is not None else self.sink.write(records[0]), len(records)
        )
        self.taken += len(records) if done else 0
        self._size_out += sum(map(size_of, records))
        self._gone += len(records)
        self.answered.set()

    def _call(self, action: Callable[[], object], records: int) -> bool:
        try:
            action()
        except Exception:  # noqa: BLE001  (a sink is foreign code: its failure is reported by the session)
            self.errors += max(records, 1)
            self.failure = self.failure or traceback.format_exc()
            return False
        return True


def size_of(record: Record) -> int:
    """The numbers of a record, and what it takes besides."""
    return OF_A_RECORD + sum(len(table.scopes) * len(table.columns) for table in record.tables)


def wait_for_all(sinks: Sequence[Queued], most: float | None = None) -> None:
    """End all of them, and wait for all at the same time: each for its own patience, and none for more than `most`."""
    begun = time.monotonic()
    for sink in sinks:
        sink.end()
    for sink in sinks:
        seconds = sink.patience if most is None else min(sink.patience, most)
        sink.wait(begun + seconds - time.monotonic())
