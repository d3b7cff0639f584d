"""What a session is told about a loop besides what its steps show: mostly by trainers, who know more of theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from learnscope.session.defaults import limit_defaults
from learnscope.session.engine import Engine
from learnscope.session.loop import Loop
from learnscope.store.backend import FolderBackend

P = ParamSpec("P")
R = TypeVar("R")


class Told:
    """The part of a session that takes facts about the loop."""

    _engine: Engine
    _loop: Loop

    def rows(self, ids: Any) -> None:
        """Say which examples a batch has, without their logits: they are named where the step's loss stands out."""
        self._engine.safely(self._loop.name_rows)(ids)

    def logs_follow_steps(self) -> None:
        """Say that what is logged without a backward is of the step before, also at first: trainers log so."""
        self._loop.feed.follow_steps()

    def note(self, **facts: Any) -> None:
        """Write facts about this attempt into run.json."""
        self._engine.store_file("run.json", lambda: self._engine.note(**facts))

    def store_file(self, name: str, action: Callable[[], R]) -> R | None:
        """Call `action`, which writes a file; if that fails, training goes on without it, and the run says so."""
        return self._engine.store_file(name, action)

    def micro_batch(self, size: float) -> None:
        """Say how many examples or tokens the coming micro-batch has; the noise scale then counts in them."""
        self._loop.sizes.append(float(size))

    def safely(self, action: Callable[P, R]) -> Callable[P, R | None]:
        """`action` with a warning in place of an error, which would stop the training; in a strict session it does."""
        return self._engine.safely(action)

    def chosen_by_nobody(self) -> None:
        """Say that the probes are a trainer's defaults: what may take long has a limit, as without `probes=`."""
        limit_defaults(self._engine.bound)

    @property
    def folder(self) -> Path | None:
        """The run's folder, which may be another than asked for; None for a run in memory, or of another rank."""
        backend = self._engine.backend
        return backend.path if isinstance(backend, FolderBackend) else None

    @property
    def wants_sizes(self) -> bool:
        """Whether the micro-batches of the coming step are measured, so that their sizes are of use."""
        return self._loop.measures_micro_batches
