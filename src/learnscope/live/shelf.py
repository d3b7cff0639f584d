"""The runs that a server shows: found below folders, by name, and read on while they grow."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from learnscope.run import Run
from learnscope.store.backend import RunError
from learnscope.store.columnar.growing import GrowingFolder
from learnscope.store.folders import find_runs

LOOK_AGAIN = 2.0
"""Seconds after which folders are searched for new runs."""
OPEN_RUNS = 16
"""Runs that are kept in memory; of the others, the next reading begins at the first line."""


class Shelf:
    """Runs by name. A name is looked up among those that were found: no path is ever made of what a browser sends."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.folders = [Path(folder) for folder in folders]
        self._found: dict[str, Path] = {}
        self._searched = -LOOK_AGAIN
        self._open: OrderedDict[str, Run] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.folders[0].resolve().name if len(self.folders) == 1 else f"{len(self.folders)} folders"

    @property
    def is_one_run(self) -> bool:
        """Whether what is shown is one run folder and nothing else."""
        return len(self.folders) == 1 and (self.folders[0] / "run.json").is_file()

    def names(self) -> list[str]:
        """The runs that are there now."""
        with self._lock:
            if time.monotonic() - self._searched >= LOOK_AGAIN:
                self._found = self._search()
                self._searched = time.monotonic()
            return list(self._found)

    def _search(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:
            try:
                paths = find_runs(folder)
            except RunError:  # a folder that is still empty
                continue
            above = folder.resolve() if len(self.folders) == 1 else Path(os.path.commonpath(self._parents()))
            for path in paths:
                name = os.path.relpath(path.resolve(), above)
                found[path.resolve().name if name == "." else name] = path
        return found

    def _parents(self) -> list[Path]:
        return [folder.resolve().parent for folder in self.folders]

    def run(self, name: str) -> Run:
        """A run by its name; a name that was not found is refused."""
        if name not in self._found and name not in self.names():
            raise KeyError(name)
        with self._lock:
            run = self._open.get(name)
            if run is None:
                run = Run(GrowingFolder.existing(self._found[name]))
                self._open[name] = run
            self._open.move_to_end(name)
            while len(self._open) > OPEN_RUNS:
                self._open.popitem(last=False)
            return run

    def sign(self, name: str) -> tuple[int, ...]:
        """Changes whenever the run does."""
        return GrowingFolder(self._found[name]).sign() if name in self._found else ()
