"""A line on the terminal from time to time: the latest value of each model-wide number."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.console import Console

from learnscope.characters import visible
from learnscope.record import Finding, Record

DEFAULT_NAMES = ("loss", "norm", "learning_rate", "holdout_loss", "holdout_accuracy", "update_to_weight")


class ConsoleSink:
    """Prints at most one line every `seconds`, with the latest values of `names`."""

    direct: ClassVar[bool] = True
    """A terminal takes no time, and what is printed stands where the loop was."""

    def __init__(
        self,
        seconds: float = 2.0,
        names: Sequence[str] = DEFAULT_NAMES,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds, self.names, self._clock = seconds, tuple(names), clock
        self._console = console or Console(highlight=False)
        self._values: dict[str, float | None] = {}
        self._step = 0
        self._unprinted = False
        self._printed_at = clock()

    def write(self, record: Record) -> None:
        if record.error:
            self._console.print(visible(f"step {record.step}: {record.probe} failed: {record.error}"), markup=False)
            return
        self._step = max(self._step, record.step)
        for row in record.rows():
            if row.kind == "model" and row.name in self.names:
                self._values[row.name] = row.value
                self._unprinted = True
        if self._clock() - self._printed_at >= self.seconds:
            self._print()

    def alert(self, finding: Finding) -> None:
        self._console.print(visible(f"step {self._step:>6}  {finding.severity}: {finding.title}"), markup=False)

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if not self._unprinted:
            return
        values = {name: self._values[name] for name in self.names if name in self._values}
        shown = [f"{name} {'n/a' if value is None else f'{value:.4g}'}" for name, value in values.items()]
        self._console.print(visible(f"step {self._step:>6}  " + "  ".join(shown)), markup=False)
        self._printed_at = self._clock()
        self._unprinted = False
