"""Noticing that epochs are too short for the interval."""

from __future__ import annotations

from collections.abc import Callable


class Epochs:
    """Warns once if an epoch has ended in which nothing was due."""

    def __init__(self, interval: int, warn: Callable[[str, str], None]) -> None:
        self._interval, self._warn = interval, warn
        self._epoch: int | None = None
        self._batches = 0
        self._collected = False

    def saw(self, epoch: int, batch_idx: int, due: bool) -> None:
        """A batch of this epoch has been trained on."""
        if epoch != self._epoch:
            self.end()
            # an epoch taken up in the middle, after a resume, says nothing about the others
            self._collected = self._epoch is None and batch_idx > 1
            self._epoch, self._batches = epoch, 0
        self._batches += 1
        self._collected |= due

    def end(self) -> None:
        if self._epoch is not None and not self._collected:
            self._warn(
                "short epoch",
                f"epoch {self._epoch} had {self._batches} batches, fewer than collect_every_n={self._interval}: "
                "nothing was collected in it. Use a smaller collect_every_n.",
            )
