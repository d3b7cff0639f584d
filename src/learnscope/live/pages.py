"""The pages that a server has: of all runs, of one, and of several laid over each other. Each is built again when its
runs have grown, and the less often the longer that takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from learnscope.comparison.compared import Comparison
from learnscope.comparison.page import comparison_payload
from learnscope.live.changes import Snapshot
from learnscope.live.shelf import Shelf
from learnscope.reading.gather import OnePass, one_pass
from learnscope.report.page.packing import Columns
from learnscope.report.page.runs import DRAWN, overlaid, row_of
from learnscope.report.page.training import VERSION, run_payload
from learnscope.run import findings_in
from learnscope.store.backend import RunError

PAUSE, PAUSE_FACTOR = 1.0, 4.0
"""Seconds between two versions of a page, and how many times as long as building one took: a fifth of one processor."""
JUDGING = 1.0
"""Seconds of reading runs for one version of the page of all runs; the next version has the next ones."""


@dataclass(frozen=True)
class Judged:
    """A run as the page of all runs shows it, and the state of its files then."""

    sign: tuple[int, ...]
    row: dict[str, Any] | None
    run: OnePass | None = None
    """Of the first runs, whose curves are drawn."""
    problem: str = ""


class Page:
    """One page, at its latest version. `names` are its runs: none for the page of all runs."""

    def __init__(self, shelf: Shelf, names: Sequence[str], server: str) -> None:
        self.shelf, self.names, self.server = shelf, tuple(names), server
        self._snapshot: Snapshot | None = None
        self._sign: object = None
        self._next = 0.0
        self._lock = threading.Lock()
        self._judged: dict[str, Judged] = {}
        self._left = 0

    def fresh(self) -> Snapshot:
        """The page as its runs are now, or were a moment ago."""
        with self._lock:
            sign = self._signs()
            unchanged = sign == self._sign and not self._left
            if self._snapshot is not None and (unchanged or time.monotonic() < self._next):
                return self._snapshot
            started = time.monotonic()
            columns = Columns()
            body = self._body(columns)
            self._snapshot = Snapshot(body, columns, self._snapshot)
            body["live"] = {
                "server": self.server, "version": self._snapshot.version, "layout": self._snapshot.layout,
            }  # fmt: skip
            took = time.monotonic() - started
            self._sign, self._next = sign, started + took + (0.0 if self._left else max(PAUSE, PAUSE_FACTOR * took))
            return self._snapshot

    def packed(self) -> tuple[bytes, dict[str, Any]]:
        """The whole page."""
        snapshot = self.fresh()
        return snapshot.columns.pack(snapshot.body), snapshot.body

    def _signs(self) -> object:
        names = self.names or self.shelf.names()
        return [(name, self.shelf.sign(name)) for name in names]

    def _body(self, columns: Columns) -> dict[str, Any]:
        if len(self.names) == 1:
            run = one_pass(self.shelf.run(self.names[0]))
            return run_payload(columns, run, findings_in(run), name=self.names[0])
        if self.names:
            comparison = Comparison({name: self.shelf.run(name) for name in self.names}, weights=False)
            return comparison_payload(columns, comparison)
        return self._all_runs(columns)

    def _all_runs(self, columns: Columns) -> dict[str, Any]:
        names, until = self.shelf.names(), time.monotonic() + JUDGING
        self._judged = {name: judged for name, judged in self._judged.items() if name in names}
        waiting = [name for name in names if (j := self._judged.get(name)) is None or j.sign != self.shelf.sign(name)]
        while waiting and time.monotonic() < until:
            name = waiting.pop(0)
            self._judged[name] = self._judge(name, keep=names.index(name) < DRAWN)
        self._left = len(waiting)
        judged = {name: self._judged.get(name) for name in names}
        rows = [(each.row if each else _unread(name)) for name, each in judged.items()]
        return {
            "version": VERSION, "kind": "runs", "name": self.shelf.name, "written": time.time(),
            "runs": [row for row in rows if row is not None],
            "broken": [{"name": name, "why": each.problem} for name, each in judged.items() if each and each.problem],
            "panels": overlaid(columns, {name: each.run for name, each in judged.items() if each and each.run}),
            "left_out": names[DRAWN:], "findings": [],
        }  # fmt: skip

    def _judge(self, name: str, *, keep: bool) -> Judged:
        sign = self.shelf.sign(name)
        try:
            run = one_pass(self.shelf.run(name))
            row = row_of(name, run, findings_in(run)) | {"report": f"?{urlencode({'run': name})}"}
        except (RunError, OSError, KeyError) as error:
            return Judged(sign, None, problem=str(error))
        return Judged(sign, row, run if keep else None)


def _unread(name: str) -> dict[str, Any]:
    """The row of a run that is read in a moment."""
    return {
        "name": name, "severity": "unknown", "sentence": "Being read.", "spark": None, "best": None, "last_step": 0,
        "status": "", "model": "", "path": None, "created": None, "report": f"?{urlencode({'run': name})}",
    }  # fmt: skip
