"""What both trackers have in common for their users: to be saved, loaded, and made from a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from learnscope.run import Run
from learnscope.trackers.history import adapters_of
from learnscope.trackers.tracking import Kind, Tracking


class Tracker(ABC):
    """Looks at a model every so many steps; a subclass says at what, and how to ask for it."""

    _kind: ClassVar[Kind]
    _tracking: Tracking

    @abstractmethod
    def get_summary_stats(self, *, adapter: str | None = None) -> dict[str, Any]:
        """How much was logged, and its numbers over all modules (or one adapter's) at the latest step."""

    def save(self, path: str | Path | None = None, *, summary: bool = True) -> Path:
        """Write the history and its summary as JSON beside it.

        By default to `spectral_history.pt`, or `gradient_flow.pt`, in `save_dir`. `torch.load(path,
        weights_only=True)` reads it: plain names, numbers and tensors.
        """
        return self._tracking.save(path, self.get_summary_stats() if summary else None)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None, *, optimizer: Any = None) -> Self:
        """The tracker that was saved: for analysis, or with its model to go on from there."""
        return cls._of(Tracking.load(cls._kind, path, model, optimizer))

    @classmethod
    def from_run(cls, run: Run | str | Path) -> Self:
        """The same view of a run in which this tracker's probes recorded."""
        return cls._of(Tracking.from_run(cls._kind, run))

    @classmethod
    def _of(cls, tracking: Tracking) -> Self:
        tracker = cls.__new__(cls)
        tracker._tracking = tracking
        return tracker

    @property
    def steps(self) -> list[int]:
        """The logged steps."""
        return list(self._tracking.looks)

    @property
    def modules(self) -> dict[str, list[str]]:
        """The tracked modules of every adapter; what belongs to none is under `none`."""
        return adapters_of(self._tracking.looks)
