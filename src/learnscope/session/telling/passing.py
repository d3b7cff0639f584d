"""Passing records to sinks: queued unless they ask to be called directly, each counted, none able to hurt training."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learnscope.model.guard import preserve_rng
from learnscope.record import Record

if TYPE_CHECKING:
    from learnscope.sinks.base import Sink
    from learnscope.sinks.queued import Queued

FIRST_CALL = 1.0
"""Seconds for which the loop waits, once, for a sink that has no `open`: what it imports at its first record may draw
random numbers, which can be undone only while nobody else draws."""
HURRIED = 5.0
"""Seconds for all sinks where the process is to end now."""


class Passing:
    """The sinks of a session. `sinks` may be added to until they are opened."""

    def __init__(self, sinks: list[Sink], warn: Callable[[str, str], None], *, strict: bool) -> None:
        self.sinks, self._warn, self._strict = sinks, warn, strict
        self._called: set[int] = set()
        self._taken: Counter[int] = Counter()
        self._errors: Counter[int] = Counter()
        self.queued: list[Queued] = []
        """Those of the sinks that have a queue before them, once they are open."""
        self._held: list[Record] = []
        self.hurried = False
        """Whether the process is to end now."""

    def open(self, run: Path | None, manifest: Mapping[str, Any], kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Open the sinks in this thread, and put a queue before those that may be slow. Under `preserve_rng`."""
        for name, place in self._listed():
            from learnscope.sinks.base import Opening  # most sessions have no sinks

            sink = self.sinks[place]
            opening, opened = Opening(run, manifest, kept.get(name, {})), True
            if (opens := getattr(sink, "open", None)) is not None:
                opened = self._call(sink, "failed to open", partial(opens, opening))
            if not getattr(sink, "direct", False):
                self.sinks[place] = self._with_queue(sink, opened=opened)

    def _with_queue(self, sink: Sink, *, opened: bool) -> Sink:
        from learnscope.sinks.queued import Queued

        queued = sink if isinstance(sink, Queued) else Queued(sink)
        self.queued.append(queued)
        if hasattr(queued.sink, "open"):
            self._called.add(id(queued))
        if not opened:
            queued.is_dead()
        return queued

    def write(self, record: Record) -> None:
        """Pass a record to those that are called directly; the others get it when the run folder has it."""
        for sink in self.sinks:
            if sink not in self.queued:
                self._taken[id(sink)] += self._pass_on(sink, record)
        if self.queued:
            self._held.append(record)

    def release(self) -> None:
        """The records so far are in the run folder: pass them to the queues."""
        held, self._held = self._held, []
        for record in held:
            for sink in self.queued:
                self._pass_on(sink, record)
        for sink in self.queued:
            self._tell_failure(sink)

    def _pass_on(self, sink: Sink, record: Record) -> bool:
        first = id(sink) not in self._called
        self._called.add(id(sink))
        with preserve_rng() if first else nullcontext():  # as Bound.first_time
            done = self._call(sink, "failed", partial(sink.write, record))
            if first and (answered := getattr(sink, "answered", None)) is not None:
                answered.wait(FIRST_CALL)
        return done

    def close_direct(self) -> None:
        """Close those that are called directly; `wait` closes the others."""
        for sink in self.sinks:
            if sink not in self.queued:
                self._call(sink, "failed to close", sink.close)

    def wait(self) -> None:
        """Close the sinks behind queues when they have taken what waits, and say what was not delivered in time.

        Under `preserve_rng`: what closing draws in their threads is drawn while this one waits.
        """
        from learnscope.sinks.queued import wait_for_all

        wait_for_all(self.queued, HURRIED if self.hurried else None)
        for sink in self.queued:
            self._tell_failure(sink)
            if sink.dropped and not sink.dead:
                of = sink.taken + sink.errors + sink.dropped
                self._warn(
                    f"sink {id(sink)} dropped",
                    f"{type(sink.sink).__name__} did not take {sink.dropped:,} of {of:,} records in time: it is too "
                    "slow, or does not answer. The run has all of them.",
                )

    def accounts(self) -> dict[str, dict[str, Any]]:
        """For run.json: what each sink has taken so far, and what it needs to go on when the run is resumed."""
        return {name: self._account(self.sinks[place]) for name, place in self._listed()}

    def _account(self, sink: Sink) -> dict[str, Any]:
        counts = {"taken": self._taken[id(sink)], "dropped": 0, "errors": self._errors[id(sink)]}
        for queued in self.queued:
            if queued is sink:
                counts = {"taken": queued.taken, "dropped": queued.dropped, "errors": queued.errors}
        kept = getattr(sink, "kept", None)
        return {**counts, "kept": dict(kept)} if kept else counts

    def _listed(self) -> Iterator[tuple[str, int]]:
        """The name of every sink that is not a part of the session itself, and its place."""
        seen: Counter[str] = Counter()
        for place, sink in enumerate(self.sinks):
            if not getattr(sink, "unlisted", False):
                name = type(getattr(sink, "sink", sink)).__name__
                seen[name] += 1
                yield name if seen[name] == 1 else f"{name}_{seen[name]}", place

    def _call(self, sink: Sink, what: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except Exception:  # a sink is foreign code: its failure is reported, not passed on
            if self._strict:
                raise
            self._errors[id(sink)] += 1
            self._warn(f"sink {id(sink)}", f"{type(sink).__name__} {what}:\n{traceback.format_exc()}")
            return False
        return True

    def _tell_failure(self, sink: Queued) -> None:
        """What went wrong in the sink's own thread is told in the loop's, once."""
        if sink.failure is not None and not sink.told:
            sink.told = True
            text = f"{type(sink.sink).__name__} failed:\n{sink.failure}"
            if self._strict:
                raise RuntimeError(text)
            self._warn(f"sink {id(sink.sink)}", text)
